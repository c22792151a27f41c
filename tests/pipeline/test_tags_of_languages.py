import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.config import ModelConfig
from models.search import Hypothesis
from pipeline.checkpoint import build_model, save_model
from pipeline.config import Configuration, OutputConfig, SearchConfig
from pipeline.data.config import CleaningConfig, CorporaConfig, CorpusConfig, TokenizerConfig
from pipeline.data.preparation import Prepared, prepare
from pipeline.data.tokenizer import Tokenizers, train_tokenizers
from pipeline.inference.attention import attended
from pipeline.inference.documents import load
from pipeline.inference.evaluation import show
from pipeline.inference.held_out import evaluate_models
from pipeline.inference.scoring import score_pairs
from pipeline.inference.translator import Translator

WORDS = "ra ke mi to lu ba ne so pi du".split()
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run folder of a model with random weights, for English to German and to French."""
    folder = tmp_path_factory.mktemp("tags")
    parts = []
    for language, mark in (("de", "x"), ("fr", "y")):
        lines = [" ".join(WORDS[(n * 7 + i * i + i * n) % 10] for i in range(3 + n % 5)) + f" {n}" for n in range(60)]
        for name, rows in (("train", lines[:50]), ("test", lines[50:])):
            (folder / f"{name}.{language}.en").write_text("".join(f"{language} {line}\n" for line in rows))
            (folder / f"{name}.{language}").write_text("".join(f"{mark} {line}\n" for line in rows))
        files = {
            name: [str(folder / f"{name}.{language}.en"), str(folder / f"{name}.{language}")]
            for name in ("train", "test")
        }
        parts.append(CorpusConfig(target_language=language, **files))
    configuration = Configuration(
        corpora=CorporaConfig(parts=parts, tags=True, valid_size=5),
        cleaning=CleaningConfig(near_overlap=0),
        tokenizer=TokenizerConfig(vocab_size=64),
        model=ModelConfig(d_model=16, num_heads=2, d_ff=32, encoder_layers=1, decoder_layers=2, dropout=0.0),
        search=SearchConfig(max_source_tokens=20, beam_size=2),
        output=OutputConfig(data=str(folder / "data")),
    )
    tokenizers = prepare(configuration).tokenizers
    torch.manual_seed(0)
    save_model(folder / "run" / "model", build_model(configuration, tokenizers), tokenizers, configuration, {})
    return folder / "run"


@pytest.fixture(scope="module")
def translator(run) -> Translator:
    return Translator.load(run, device="cpu")


@pytest.fixture(scope="module")
def untagged() -> tuple[Tokenizers, Configuration]:
    """Of a model without tags, for English to German."""
    tokenizers = train_tokenizers(WORDS, WORDS, TokenizerConfig(vocab_size=24))
    return tokenizers, Configuration(corpora=CorporaConfig(target_language="de"))


@pytest.fixture(scope="module")
def plain(run, untagged) -> dict[str, str]:
    """Folders of models without tags, by their only target language."""
    tokenizers, configuration = untagged
    folders = {language: str(run.with_name(f"plain-{language}")) for language in ("de", "fr")}
    for language, folder in folders.items():
        corpora, model = CorporaConfig(target_language=language), Translator.load(run).configuration.model
        its = replace(configuration, corpora=corpora, model=model)
        save_model(folder, build_model(its, tokenizers), tokenizers, its, {})
    return folders


@pytest.fixture(scope="module")
def given(run) -> tuple[str, str]:
    """Files of sentences and of their references."""
    files = run.with_name("a"), run.with_name("b")
    for file in files:
        file.write_text("ra ke\nmi to\n")
    return tuple(map(str, files))


class Echo:
    """An engine that says what it is given, as ids."""

    def __init__(self):
        self.seen = []

    def require(self, search):
        pass

    def search(self, sources, search, num_hypotheses=1):
        self.seen += sources
        return [[Hypothesis(list(source.ids), 0.0, True)] for source in sources]


def tags(translator: Translator) -> dict[str, int]:
    return translator.tokenizers.source.tags


def test_every_source_of_the_prepared_data_begins_with_the_tag_of_its_own_language(run, translator):
    prepared = Prepared.load(translator.configuration.output.data)
    for split in (prepared.train, prepared.valid, prepared.test):
        for row in split:
            language = translator.configuration.corpora.parts[row["corpus"]].target_language
            assert row["source_ids"][0] == tags(translator)[language]
            assert prepared.tokenizers.language_of(row["source_ids"]) == language
            assert not {*tags(translator).values()} & {*row["source_ids"][1:], *row["target_ids"]}


def test_what_training_reads_is_what_translating_reads(translator):
    row = Prepared.load(translator.configuration.output.data).train[0]
    language = translator.configuration.corpora.parts[row["corpus"]].target_language
    assert translator.into(language).source_ids([row["source"]]) == [row["source_ids"]]


def test_the_tag_of_the_language_asked_for_comes_before_every_part_and_not_into_the_translation(translator):
    long = " ".join(f"{word} {other}" for word in WORDS for other in WORDS)
    for language in ("de", "fr"):
        echo = Echo()
        asked = Translator(echo, translator.tokenizers, translator.configuration, language)
        texts = ["ra ke <2de>", "", " \u200b", long]
        found = asked.translate(texts)
        assert found == [
            translator.tokenizers.source.decode(translator.tokenizers.source.encode([texts[0]]))[0],
            "",
            "",
            long,
        ]
        assert len(echo.seen) > 2
        for source in echo.seen:
            assert source.ids[0] == tags(translator)[language]
            assert not {*tags(translator).values()} & {*source.ids[1:]}
            assert len(source.ids) <= asked.search.max_source_tokens


def test_sentences_are_translated_into_a_language_each(translator):
    languages, texts = ["de", "fr", "de"], ["ra ke", "ra ke", "mi to"]
    found = translator.translate_into(languages, texts, translator.search)
    assert found == [
        translator.into(language).translate([text])[0] for language, text in zip(languages, texts, strict=True)
    ]


def test_a_language_is_asked_for_where_there_are_several_and_refused_where_there_is_none(run, translator):
    with pytest.raises(ValueError, match=r"^this model translates into de, fr: choose with --to$"):
        load([str(run)])
    with pytest.raises(ValueError, match="^this model translates into de, fr"):
        translator.translate(["ra"])
    with pytest.raises(ValueError, match=r"^--to es: this model translates into de, fr: choose among these$"):
        load([str(run)], to="es")
    assert load([str(run)], to="fr", document=True, protect=["url"]).languages == ("en", "fr")
    only = train_tokenizers(WORDS, WORDS, TokenizerConfig(vocab_size=24), languages=["de"])
    assert Translator(Echo(), only, Configuration()).to == "de"


def test_a_model_without_tags_may_be_asked_for_its_only_language(untagged):
    asked = Translator(Echo(), *untagged, "de")
    assert asked.translate(["ra"]) == Translator(Echo(), *untagged).translate(["ra"]) == ["ra"]
    assert asked.languages == ("en", "de")
    with pytest.raises(ValueError, match=r"^--to fr: this model translates into de alone: leave --to out$"):
        Translator(Echo(), *untagged, "fr")


def test_a_model_without_tags_cannot_be_asked_for_one_of_several_languages(untagged):
    tokenizers, configuration = untagged
    both = [CorpusConfig("text", "en", "de"), CorpusConfig("text", "de", "en"), CorpusConfig("text", "en", "de")]
    several = replace(configuration, corpora=CorporaConfig(parts=both))
    assert Translator(Echo(), tokenizers, several).translate(["ra"]) == ["ra"]
    with pytest.raises(ValueError, match=r"^--to de: this model was trained for en-de, de-en, and has no language"):
        Translator(Echo(), tokenizers, several, "de")


def test_paragraphs_and_protected_spans_keep_the_language(run):
    documents = load([str(run)], to="fr", document=True, protect=["url"])
    assert documents.of_sentences.to == documents.to == "fr"
    assert documents.translate(["ra ke. mi to."])


def test_pairs_are_scored_and_attention_is_drawn_with_the_tag(translator):
    pairs = [("ra ke", "mi to"), ("", "")]
    scores = {language: list(score_pairs(translator.into(language), pairs)) for language in ("de", "fr")}
    assert scores["de"][0] != scores["fr"][0]
    assert scores["de"][1] == scores["fr"][1]
    shown = attended(translator.into("fr"), "ra ke", "mi to")
    assert shown.kinds["encoder"].keys[0] == "<2fr>"
    assert {source for source, _ in shown.alignment()} <= {0, 1}


def test_each_direction_of_a_model_is_evaluated_on_its_own_test_data(run, tmp_path):
    results = evaluate_models([str(run), str(run)])
    assert [on.name for _, on in results] == ["test.en-de", "test.en-fr"]
    model = Translator.load(run)
    for (first, second), on in results:
        assert len(on.sources) == 10
        assert {source.split()[0] for source in on.sources} == {on.target_language}
        assert first.translations == second.translations == model.into(on.target_language).translate(on.sources)
        assert (run / "evaluations" / on.name / "scores.json").exists()
    show(results, str(tmp_path / "scores.json"))
    read = json.loads((tmp_path / "scores.json").read_text())
    assert [each["evaluation_set"] for each in read] == ["test.en-de", "test.en-fr"]
    ((_, only),) = evaluate_models([str(run)], to="fr")
    assert only.name == "test.en-fr"
    with pytest.raises(ValueError, match="run: --to es: this model translates into de, fr: choose among these"):
        evaluate_models([str(run)], to="es")


def test_the_language_that_decides_how_bleu_tells_words_is_none_to_translate_into(run):
    for (first, second), on in evaluate_models([str(run), str(run)], target_language="zh"):
        assert on.target_language == "zh" and "tok:zh" in second.scores["bleu"].signature
        assert first.translations == second.translations


def test_given_sentences_are_evaluated_in_the_language_asked_for(run, given):
    (((evaluation,), on),) = evaluate_models([str(run)], *given, to="fr")
    assert on.target_language == "fr"
    assert evaluation.translations == Translator.load(run).into("fr").translate(["ra ke", "mi to"])
    with pytest.warns(UserWarning, match="/a, line 2 has [23] source tokens, more than search.max_source_tokens=1"):
        evaluate_models([str(run)], *given, to="fr", search={"max_source_tokens": 1})


def test_models_with_and_without_tags_are_compared_in_any_order(run, plain, given):
    paths = [str(run), plain["de"]]
    alone = {path: evaluate_models([path], *given, to="de")[0][0][0].translations for path in paths}
    for order in (paths, paths[::-1]):
        ((evaluations, on),) = evaluate_models(order, *given, to="de")
        assert [(each.system, each.translations) for each in evaluations] == [(path, alone[path]) for path in order]
        assert on.target_language == "de"


def test_what_is_wrong_with_any_model_s_language_is_said_before_the_first_translates(
    run, plain, given, monkeypatch, capsys
):
    monkeypatch.setattr(Translator, "hypotheses", None)
    tagged, german, french = str(run), plain["de"], plain["fr"]
    for paths, to, message in (
        ([tagged], "", "run: this model translates into de, fr: choose with --to"),
        ([german, tagged], "", "run: this model translates into de, fr: choose with --to"),
        ([tagged, german], "fr", "plain-de: --to fr: this model translates into de alone"),
        ([german, french], "", "plain-de translates into de and .*plain-fr into fr: name the language of the referenc"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_models(paths, *given, to=to)
    assert capsys.readouterr().err == ""


def test_every_script_that_reads_a_sentence_may_be_told_the_language(run, call, tmp_path):
    (tmp_path / "source").write_text("de ra ke\n")
    (tmp_path / "target").write_text("x ra ke\n")
    pair = ["--source", tmp_path / "source", "--target", tmp_path / "target"]
    for script, *arguments in (
        ["score.py", *pair],
        ["alternatives.py", "de ra ke"],
        ["attention.py", "de ra ke", "--translation", "x ra ke", "--output", tmp_path / "attention"],
    ):
        status, _, error = call(script, "--model", run, *arguments)
        assert status == 1 and "this model translates into de, fr: choose with --to" in error
        answers = [call(script, "--model", run, *arguments, "--to", to) for to in ("de", "fr")]
        assert [status for status, *_ in answers] == [0, 0]
        if script != "attention.py":  # which words are aligned may be the same
            assert answers[0][1] != answers[1][1]
