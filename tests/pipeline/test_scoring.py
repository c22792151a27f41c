"""What a model thinks of given translations is what its search says of its own."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from models.config import ModelConfig
from pipeline.checkpoint import build_model, save_model
from pipeline.config import Configuration, SearchConfig, TokenizerConfig
from pipeline.data.tokenizer import EOS_ID, train_tokenizers
from pipeline.inference.engine import Source, TorchEngine
from pipeline.inference.scoring import alternatives, read_pairs, score_ids, score_pairs, write_scores
from pipeline.inference.translator import Translator
from tests.pipeline import untrained

ROOT = Path(__file__).parents[2]
SENTENCES = [*untrained.SENTENCES[:5], "cat cat cat cat cat cat cat cat"]


@pytest.fixture(scope="module", params=[("transformer", 6.0), ("recurrent", 3.0)], ids=lambda pair: pair[0])
def translator(request):
    """An untrained model with weights large enough for it to have opinions, and with a wish to come to an end."""
    architecture, wish = request.param
    configuration = Configuration(
        tokenizer=TokenizerConfig(vocab_size=60),
        model=ModelConfig(
            architecture=architecture, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, num_heads=2
        ),
        search=SearchConfig(beam_size=3, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=40),
    )
    tokenizers = train_tokenizers(untrained.TEXT, untrained.TEXT, configuration.tokenizer)
    torch.manual_seed(4)
    model = build_model(configuration, tokenizers).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    engine = TorchEngine(model)
    engine.project = lambda hidden: (
        model.project(hidden) + wish * F.one_hot(torch.tensor(EOS_ID), tokenizers.target.vocab_size)
    )
    return Translator(engine, tokenizers, configuration)


def settings(translator, **changes):
    return dataclasses.replace(translator.search, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"length_normalisation": "gnmt", "length_penalty": 0.6},
        {"length_normalisation": "word_reward", "length_penalty": 0.2},
        {"length_normalisation": "none"},
    ],
)
def test_the_model_s_own_translations_get_the_score_that_its_search_gave_them(translator, changes):
    search = settings(translator, max_length_extra=60, **changes)
    sources = [tuple(ids) for ids in translator.tokenizers.source.encode(SENTENCES)]
    found = translator.engine.search([Source(ids) for ids in sources], search, 3)
    pairs = [(ids, each) for ids, row in zip(sources, found, strict=True) for each in row if each.finished]
    assert len(pairs) > 12
    scores = score_ids([translator.engine], [ids for ids, _ in pairs], [each.ids for _, each in pairs], search)
    assert [each.score for each in scores] == pytest.approx([each.score for _, each in pairs], abs=1e-5)


def test_a_log_probability_is_the_sum_over_the_tokens_one_by_one(translator):
    pairs = list(zip(SENTENCES * 2, SENTENCES + SENTENCES[::-1], strict=True))
    for budget in (1, 50, 4096):
        for pair, found in zip(
            pairs, score_pairs(translator, pairs, settings(translator, tokens_per_batch=budget)), strict=True
        ):
            assert found.log_prob == pytest.approx(by_steps(translator, *pair), rel=1e-6)
            assert found.tokens == len(translator.tokenizers.target.encode([pair[1]])[0]) + 1
            assert found.score == pytest.approx(found.log_prob / found.tokens)


def by_steps(translator, source, target):
    model = translator.engine.model
    (source,), (target,) = translator.tokenizers.source.encode([source]), translator.tokenizers.target.encode([target])
    state, last, total = model.start(model.encode(torch.tensor([[*source, 3]]))), 2, 0.0
    with torch.no_grad():
        for token in [*target, 3]:
            hidden, state = model.advance(torch.tensor([[last]]), state)
            logits = translator.engine.project(hidden[0, 0])
            logits[[0, 1, 2]] = -math.inf
            total += logits.log_softmax(-1)[token].item()
            last = token
    return total


def test_text_is_normalised_and_blank_lines_are_what_translating_makes_of_them(translator):
    plain, variant, nothing, impossible, possible, unwritable = score_pairs(
        translator,
        [
            ("the café", "a café"),
            (" the  cafe\u0301\u200b", "a\u00a0cafe\u0301 "),
            ("", " "),
            ("\u200b", "a mat"),
            ("a mat", ""),
            ("a mat", "a 漢 mat"),
        ],
    )
    assert plain == variant
    assert nothing == (0.0, 0.0, 0)
    assert impossible.score == impossible.log_prob == -math.inf
    assert possible.tokens == 1 and -math.inf < possible.log_prob < 0
    assert unwritable.score == -math.inf
    assert list(score_pairs(translator, [])) == []
    assert list(score_pairs(translator, [("", "")])) == [nothing]


def test_pairs_are_read_in_chunks_and_scored_as_a_whole_however_long(translator):
    read = []
    pairs = [("the cat " * 30, "a mat " * 50), *((SENTENCES[i % 6], SENTENCES[i % 5]) for i in range(30))]
    scores = score_pairs(translator, (read.append(p) or p for p in pairs), settings(translator, tokens_per_batch=7))
    first = next(scores)
    assert len(read) == 7 and first.tokens > 100
    together = list(score_pairs(translator, pairs))
    assert [first.score, *(each.score for each in scores)] == pytest.approx([each.score for each in together])


@pytest.mark.parametrize("translator", [("transformer", 6.0)], indirect=True, ids=["transformer"])
def test_a_pair_too_long_for_learned_positions_is_named(translator):
    config = dataclasses.replace(translator.engine.model.config, positions="learned", max_positions=43)
    configuration = Configuration(model=config, search=settings(translator), batching=dataclasses.replace(
        Configuration().batching, max_source_tokens=42, max_target_tokens=42))  # fmt: skip
    short = Translator(
        TorchEngine(build_model(configuration, translator.tokenizers).eval()), translator.tokenizers, configuration
    )
    assert len(list(score_pairs(short, [("seen", "a mat")]))) == 1
    with pytest.raises(ValueError, match=r"pair 2 may take \d+ positions, more than model.max_positions=43"):
        list(score_pairs(short, [("seen", "a mat"), ("seen", "a mat " * 30)]))


def test_scores_need_a_model_itself(translator):
    with pytest.raises(ValueError, match="an export gives no scores: name the run that it was made of"):
        list(score_pairs(Translator(None, translator.tokenizers, Configuration()), [("a", "b")]))


def test_alternatives_begin_with_the_prefix_and_differ_in_the_token_after(translator):
    tokenizer = translator.tokenizers.target
    for prefix in ("", "the cat"):
        found = alternatives(translator, "two old trees", prefix, 5)
        probabilities = [each.probability for each in found]
        assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) < 1
        assert all(each.translation.text.startswith(prefix) for each in found)
        assert len({each.translation.ids for each in found}) == 5
        (begun,) = tokenizer.encode([prefix])
        (source,) = translator.tokenizers.source.encode(["two old trees"])
        model = translator.engine.model
        with torch.no_grad():
            hidden = model.decode(torch.tensor([[2, *begun]]), model.encode(torch.tensor([[*source, 3]])))
            logits = translator.engine.project(hidden[0, -1])
        logits[[0, 1, 2]] = -math.inf
        assert probabilities == pytest.approx(logits.softmax(-1).topk(5).values.tolist(), rel=1e-5)


def test_the_best_alternative_at_the_start_is_where_greedy_search_goes(translator):
    search = settings(translator, beam_size=1, min_length=2)
    (best,) = alternatives(translator, "the old garden", "", 1, search)
    (greedy,) = translator.hypotheses(["the old garden"], search)[0]
    assert best.translation.text == greedy.text and best.translation.score == pytest.approx(greedy.score)


def test_the_end_is_an_alternative_where_it_is_likely_and_allowed(translator):
    for prefix in ("", "the cat"):
        (begun,) = map(tuple, translator.tokenizers.target.encode([prefix]))
        found = alternatives(translator, "two old trees", prefix, 5)
        (end,) = [each.translation for each in found if each.translation.ids == begun]  # this model wishes for it
        (scored,) = score_pairs(translator, [("two old trees", prefix)])
        assert end.text == prefix and end.finished and end.score == pytest.approx(scored.score)
        roomy = settings(translator, min_length=12, max_length_extra=20)
        longer = alternatives(translator, "two old trees", prefix, 5, roomy)
        assert all(each.translation.ids != begun for each in longer)


def test_what_is_banned_is_no_alternative(translator):
    free = alternatives(translator, "two old trees", "", 4)
    word = next(each.translation.text for each in free if each.translation.text).split()[0]
    held = alternatives(translator, "two old trees", "", 4, settings(translator, banned=[word]))
    assert all(word not in each.translation.text.split() for each in held)


def test_samples_and_what_cannot_be_spelled_are_refused_as_alternatives(translator):
    with pytest.raises(ValueError, match="search.method=sampling draws, and alternatives are looked for: leave it out"):
        alternatives(translator, "seen", "", 1, settings(translator, method="sampling"))
    with pytest.raises(ValueError, match='--prefix="a 漢" has a character that the model cannot write: leave it out'):
        alternatives(translator, "seen", "a 漢", 1)


@pytest.mark.parametrize(
    "sentence, count, message",
    [
        (" ", 1, "the sentence is blank: give one with words in it"),
        ("cat " * 50, 1, r"the sentence has \d+ tokens, more than search.max_source_tokens=40: give a shorter one"),
        ("cat", 100, r"100 alternatives are not to be had: ask for 1 to \d+"),
        ("cat", 0, r"0 alternatives are not to be had"),
    ],
)
def test_alternatives_that_cannot_be_are_refused(translator, sentence, count, message):
    with pytest.raises(ValueError, match=message):
        alternatives(translator, sentence, "the", count)


def test_a_damaged_model_has_no_scores_and_no_alternatives(translator, monkeypatch):
    project = translator.engine.project
    monkeypatch.setattr(translator.engine, "project", lambda hidden: project(hidden) * math.nan)
    with pytest.raises(ValueError, match="the model returned NaN"):
        list(score_pairs(translator, [(SENTENCES[0], SENTENCES[1])]))
    with pytest.raises(ValueError, match="the model returned NaN"):
        alternatives(translator, SENTENCES[0], "", 2)


def test_pairs_come_from_two_files_or_one(tmp_path):
    for name, text in {
        "a": "x\ny\n", "b": "1\n2\n", "c": "1\n", "p.tsv": 'x\t1\n"y\t2\n',
        "p.jsonl": '{"source": "x", "target": "1"}\n', "three.tsv": "x\t1\nx\t1\t2\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    a, b, c, table, objects = (str(tmp_path / name) for name in ("a", "b", "c", "p.tsv", "p.jsonl"))
    assert list(read_pairs(a, b, "")) == [("x", "1"), ("y", "2")]
    assert list(read_pairs("", "", table)) == [("x", "1"), ('"y', "2")]
    assert list(read_pairs("", "", objects)) == [("x", "1")]
    with pytest.raises(ValueError, match="a has 2 lines but .*c has 1: line-aligned files are needed"):
        list(read_pairs(a, c, ""))
    with pytest.raises(ValueError, match="three.tsv, line 2: 3 columns, where two are needed"):
        list(read_pairs("", "", str(tmp_path / "three.tsv")))
    for given in (("", "", ""), (a, "", ""), (a, b, table), ("", b, table)):
        with pytest.raises(ValueError, match="give --source and --target, line by line, or --pairs: one file of both"):
            read_pairs(*given)


@pytest.mark.parametrize("translator", [("transformer", 6.0)], indirect=True, ids=["transformer"])
def test_the_script_writes_a_row_for_every_pair(translator, tmp_path):
    configuration = Configuration(model=translator.engine.model.config, search=translator.search)
    save_model(tmp_path / "model", translator.engine.model, translator.tokenizers, configuration, {})
    (tmp_path / "pairs.tsv").write_text("the cat\ta mat\n\ta mat\n", encoding="utf-8")
    pairs = list(read_pairs("", "", str(tmp_path / "pairs.tsv")))
    write_scores(translator, pairs, translator.search, str(tmp_path / "scores.tsv"), as_json=False)
    first, second = (line.split("\t") for line in (tmp_path / "scores.tsv").read_text("utf-8").splitlines())
    assert first[0] == "1" and float(first[1]) == pytest.approx(float(first[2]) / int(first[3]), abs=1e-6)
    assert second == ["2", "-inf", "-inf", second[3]]

    command = ["scripts/score.py", "--model", tmp_path / "model", "--pairs", tmp_path / "pairs.tsv", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, encoding="utf-8", cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 0 and done.stderr == ""
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[0]["source"] == "the cat" and rows[0]["log_prob"] == pytest.approx(
        rows[0]["score"] * rows[0]["tokens"], rel=1e-6
    )
    assert rows[1] == {"source": "", "target": "a mat", "score": None, "log_prob": None, "tokens": int(second[3])}


@pytest.mark.parametrize("translator", [("transformer", 6.0)], indirect=True, ids=["transformer"])
def test_the_script_shows_how_else_a_translation_could_go_on(translator, tmp_path):
    configuration = Configuration(model=translator.engine.model.config, search=translator.search)
    save_model(tmp_path / "model", translator.engine.model, translator.tokenizers, configuration, {})
    command = [
        sys.executable,
        str(ROOT / "scripts/alternatives.py"),
        "--model",
        "model",
        "--prefix",
        "the",
        "--count",
        "3",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done, refused = (
        subprocess.run([*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        for words in (["two old trees"], ["two", "trees"])
    )
    expected = alternatives(Translator.load(tmp_path / "model"), "two old trees", "the", 3)
    assert done.returncode == 0, done.stderr
    assert [row.split("\t")[2] for row in done.stdout.splitlines()] == [each.translation.text for each in expected]
    assert refused.returncode == 1 and "2 sentences given: give one, in quotes" in refused.stderr
