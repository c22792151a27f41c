"""Scores are sacreBLEU's on untouched references, by sentence pairs in order; expected numbers are sacreBLEU 2.6's."""

import json
import random

import pytest

from pipeline.inference.evaluation import (
    EvaluationSet,
    description,
    differences,
    doubts,
    evaluate,
    score,
    sentence_bleu,
    show,
    write_evaluation,
)

TRANSLATIONS = ["the cat sat on the mat today", "a dog ran in the park", "it rained on the old town all night"]
REFERENCES = [
    "the cat sat on the mat today",
    "two dogs were running in a park",
    "the old town had rain the whole night",
]


def values(translations, references, language="", **options):
    return {name: round(value, 2) for name, (value, *_) in score(translations, references, language, **options).items()}


def test_every_sentence_counts_against_its_own_reference():
    assert values(TRANSLATIONS, REFERENCES) == {"bleu": 42.51, "chrf": 53.86, "ter": 45.45}
    bleu = score(TRANSLATIONS, REFERENCES)["bleu"]
    assert (bleu.details["sys_len"], bleu.details["ref_len"]) == (21, 22)


def test_the_order_of_pairs_does_not_matter_but_the_order_of_one_side_does():
    pairs = list(zip(TRANSLATIONS, REFERENCES, strict=True))
    random.Random(1).shuffle(pairs)
    assert values(*zip(*pairs, strict=True)) == values(TRANSLATIONS, REFERENCES)
    assert values([TRANSLATIONS[2], TRANSLATIONS[0], TRANSLATIONS[1]], REFERENCES)["bleu"] == 4.62


def test_an_empty_translation_keeps_its_place_and_costs():
    references = ["the cat sat on the mat", "a dog ran in the park today"]
    translations = ["", "a dog ran in the park today"]
    assert values(translations, references) == {"bleu": 42.44, "chrf": 61.53, "ter": 46.15}
    scores = score(translations, references)
    assert round(scores["bleu"].details["bp"], 3) == 0.424
    assert "1 of 2 translations are empty" in doubts(translations, references, scores)


def test_only_empty_translations_score_nothing_and_do_not_crash():
    assert values(["", ""], REFERENCES[:2]) == {"bleu": 0, "chrf": 0, "ter": 100}


@pytest.mark.parametrize(("translations", "references"), [(3, 2), (2, 3)])
def test_unequal_counts_are_refused_with_both_counts(translations, references):
    with pytest.raises(ValueError, match=f"{translations} translations and {references} references"):
        score(TRANSLATIONS[:translations], REFERENCES[:references])


def test_nothing_has_no_score():
    with pytest.raises(ValueError, match="nothing to score"):
        score([], [])


PLAIN = ["He said, “no”.", "It's fine."]


@pytest.mark.parametrize(
    ("translations", "bleu"),
    [(["He said , “ no ” .", "It 's fine ."], 22.58), (["▁He ▁said , ▁“ no ” .", "▁It ' s ▁fine ."], None)],
)
def test_tokenised_text_is_scored_as_it_is_and_doubted(translations, bleu):
    scores = score(translations, PLAIN)
    assert bleu is None or round(scores["bleu"].value, 2) == bleu
    assert any("translations look tokenised" in doubt for doubt in doubts(translations, PLAIN, scores))
    assert any("references look tokenised" in doubt for doubt in doubts(PLAIN, translations, scores))


def test_blank_references_and_unknown_languages_are_doubted():
    scores = score(PLAIN, ["", " "])
    assert "2 of 2 references are empty" in doubts(PLAIN, ["", " "], scores)
    for code, is_doubted in (("jp", True), ("german", True), ("de-AT", False), ("deu", False), ("zh_Hant", False)):
        found = doubts(PLAIN, PLAIN, scores, code)
        assert any(f"{code} is the code of no known language" in each for each in found) == is_doubted


def test_plain_text_is_not_doubted():
    scores = score(PLAIN, PLAIN)
    assert values(PLAIN, PLAIN)["bleu"] == 100
    assert doubts(PLAIN, PLAIN, scores) == []


def test_very_short_sentences_have_no_corpus_bleu_but_one_each():
    lines = ["yes", "no thanks", "ok fine"]
    assert values(lines, lines) == {"bleu": 0, "chrf": 100, "ter": 0}
    assert any("BLEU is 0 by definition" in doubt for doubt in doubts(lines, lines, score(lines, lines)))
    assert [round(sentence_bleu(line, line), 6) for line in lines] == [100, 100, 100]
    assert sentence_bleu("yes", "no") == 0


CHINESE = ["我昨天去了北京的图书馆。", "他喜欢喝绿茶和咖啡。"], ["我昨天去了上海的图书馆。", "他喜欢喝红茶和咖啡。"]


@pytest.mark.parametrize("code", ["zh", "zh-CN", "zho", "zh_Hant"])
def test_the_target_language_picks_the_words_that_bleu_counts(code):
    scores = score(*CHINESE, code)
    assert round(scores["bleu"].value, 2) == 64.51 and "tok:zh" in scores["bleu"].signature
    assert round(scores["chrf"].value, 2) == 47.94
    assert scores["ter"].value < 20
    assert doubts(*CHINESE, scores) == []


def test_text_without_spaces_is_doubted_where_the_language_is_not_known():
    scores = score(*CHINESE)
    assert scores["bleu"].value < 0.01
    assert any("few spaces" in doubt for doubt in doubts(*CHINESE, scores))


@pytest.mark.parametrize(("code", "module"), [("ja", "MeCab"), ("ko", "mecab_ko")])
def test_a_language_whose_tokenizer_is_missing_is_refused(code, module, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    monkeypatch.delitem(__import__("sys").modules, f"sacrebleu.tokenizers.tokenizer_{code}_mecab", raising=False)
    with pytest.raises(ValueError, match=rf"pip install 'sacrebleu\[{code}\]'"):
        score(["a"], ["a"], f"{code}-x-{module}")


def test_case_counts_except_in_the_compatibility_metric_which_says_so():
    pair = ["The Cat Sat On The Mat"], ["the cat sat on the mat"]
    assert values(*pair, metrics=["bleu", "bleu_lowercased"]) == {"bleu": 0, "bleu_lowercased": 100}
    assert "case:lc" in score(*pair, metrics=["bleu_lowercased"])["bleu_lowercased"].signature
    assert "case:mixed" in score(*pair)["bleu"].signature


def test_equal_systems_do_not_differ_and_unlike_ones_do():
    references = [f"sentence number {i} of the little corpus of this test" for i in range(60)]
    worse = [line if i % 3 else "no idea what this was about at all" for i, line in enumerate(references)]
    p_values = differences({"first": worse, "same": worse, "better": references}, references)
    assert set(p_values) == {"same", "better"}
    assert set(p_values["same"]) == {"bleu", "chrf", "ter"}
    assert set(p_values["same"].values()) == {1}
    assert all(p < 0.01 for p in p_values["better"].values())


def test_a_long_name_is_whole_where_no_terminal_shows_it(capsys):
    name = "/where/models/are/" + "long/" * 30 + "checkpoint"
    on = EvaluationSet("test", TRANSLATIONS, REFERENCES, "en")
    show([([evaluate(name, TRANSLATIONS, on)], on)])
    assert any(name in line and "42.51" in line for line in capsys.readouterr().out.splitlines())


def test_scores_are_written_into_a_folder_that_is_not_there_yet(tmp_path, capsys):
    on = EvaluationSet("news", ["ein"], ["one two three four"], "en")
    show([([evaluate("rival", ["one two three four"], on)], on)], str(tmp_path / "new" / "scores.json"))
    assert json.loads((tmp_path / "new" / "scores.json").read_text("utf-8"))["evaluation_set"] == "news"


def test_the_scores_on_several_sets_are_one_document(tmp_path, capsys):
    sets = [EvaluationSet(name, ["ein"], ["one two three four"], "en") for name in ("test.de-en", "test.fr-en")]
    results = [([evaluate("system", ["one two three four"], on)], on) for on in sets]
    show(results, str(tmp_path / "scores.json"))
    assert "test.de-en" in capsys.readouterr().out
    show(results, "-")
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((tmp_path / "scores.json").read_text("utf-8"))
    assert [each["evaluation_set"] for each in said] == ["test.de-en", "test.fr-en"]


def test_an_evaluation_is_written_with_all_that_scoring_it_again_needs(tmp_path):
    on = EvaluationSet("test", ["eins\nzwei", "drei\u2028vier", "fünf"], REFERENCES, "en")
    evaluation = evaluate("system", TRANSLATIONS, on, compatibility=True)
    write_evaluation(tmp_path / "test", evaluation, on)
    assert (tmp_path / "test/source.txt").read_bytes() == "eins zwei\ndrei\u2028vier\nfünf\n".encode()
    translations = (tmp_path / "test/translation.txt").read_text("utf-8").splitlines()
    references = (tmp_path / "test/reference.txt").read_text("utf-8").splitlines()
    written = json.loads((tmp_path / "test/scores.json").read_text("utf-8"))
    assert written == json.loads(json.dumps(description([evaluation], on, {})))
    (system,) = written["systems"]
    assert list(system["scores"]) == ["bleu", "bleu_lowercased", "chrf", "ter"]
    assert system["scores"]["bleu"]["value"] == score(translations, references)["bleu"].value
    sentences = [json.loads(line) for line in (tmp_path / "test/sentences.jsonl").read_text("utf-8").split("\n")[:-1]]
    assert [row["translation"] for row in sentences] == TRANSLATIONS
    assert sentences[0]["bleu"] == pytest.approx(100)
