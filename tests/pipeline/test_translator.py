"""Text in, text out: a translation depends on its sentence alone, and n lines stay n lines."""

import copy
import dataclasses

import pytest
import torch

from models.search import beam_search
from pipeline.checkpoint import build_model
from pipeline.config import BatchingConfig, Configuration
from pipeline.data.tokenizer import BOS_ID, PAD_ID, UNK_ID
from pipeline.inference import engine as engine_module
from pipeline.inference.engine import TorchEngine
from pipeline.inference.translation import Sentence, Translation
from pipeline.inference.translator import Translator
from tests.pipeline import untrained
from tests.pipeline.untrained import WORDS

SENTENCES = [*untrained.SENTENCES, "cat cat cat cat cat cat cat cat", "garden"]


def settings(translator, **changes):
    return dataclasses.replace(translator.search, **changes)


def assert_same(found, expected):
    assert [[(t.text, t.finished) for t in row] for row in found] == [
        [(t.text, t.finished) for t in row] for row in expected
    ]
    assert [t.score for row in found for t in row] == pytest.approx([t.score for row in expected for t in row])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_translation_depends_on_its_sentence_alone(translator, beam_size):
    search = settings(translator, beam_size=beam_size)
    alone = [translator.hypotheses([sentence], search, beam_size)[0] for sentence in SENTENCES]
    assert len({found[0].text for found in alone}) == len(SENTENCES)
    for budget in (1, 30, 4096):
        search = settings(translator, beam_size=beam_size, tokens_per_batch=budget)
        assert_same(translator.hypotheses(SENTENCES, search, beam_size), alone)
        assert_same(translator.hypotheses(SENTENCES[::-1], search, beam_size), alone[::-1])
        assert_same(translator.hypotheses(["", *SENTENCES, "", *SENTENCES], search, beam_size)[1:9], alone)
    assert translator.translate(SENTENCES, search) == [found[0].text for found in alone]


def test_batches_keep_to_the_token_budget_and_equal_sentences_are_translated_once(translator, monkeypatch):
    shapes = []
    encode = translator.engine.model.encode
    monkeypatch.setattr(translator.engine.model, "encode", lambda source: shapes.append(source.shape) or encode(source))
    translator.translate(SENTENCES * 3, settings(translator, tokens_per_batch=50))
    assert sum(rows for rows, _ in shapes) == len(SENTENCES)
    assert len(shapes) > 1 and all(rows == 1 or rows * width <= 50 for rows, width in shapes)


def test_padding_has_no_voice(translator):
    loud = Translator(TorchEngine(copy.deepcopy(translator.engine.model)), translator.tokenizers, Configuration())
    embedding = copy.deepcopy(loud.engine.model.source_embedding)  # the target's stays as it is
    with torch.no_grad():
        embedding.weight[PAD_ID] = 1e6
    loud.engine.model.source_embedding = embedding
    assert_same(loud.hypotheses(SENTENCES, translator.search), translator.hypotheses(SENTENCES))


@pytest.mark.parametrize("blank", ["", "   ", "\t\r", "\u200b", "\ufeff", "\x00", "\u00ad\u2060"])
def test_a_text_without_a_visible_character_is_not_shown_to_the_model(translator, monkeypatch, blank):
    monkeypatch.setattr(translator.engine.model, "encode", None)
    assert translator.hypotheses([blank, blank]) == [[Translation("", 0.0, True)]] * 2


def test_blank_sentences_are_safe_among_others_in_half_precision(translator):
    model = build_model(Configuration(model=translator.engine.model.config), translator.tokenizers).eval()
    half = Translator(TorchEngine(model.bfloat16()), translator.tokenizers, Configuration())
    found = half.translate(["the cat", "", "\u200b", "a mat"], settings(translator))
    assert found[1:3] == ["", ""] and found[0] and found[3]


@pytest.mark.parametrize(
    "variant",
    [
        "trees in garden of a cafe\u0301",
        "  trees in  garden\tof a café ",
        "trees in garden of a café\r",
        "trees in garden of a café\n",
        "\ufefftrees in garden\u00a0of a café",
        "trees\u2028in garden of\x0ca café",
        "trees in garden of a ca\x00fé\u200b",
    ],
)
def test_text_is_normalised_as_for_training(translator, variant):
    assert translator.translate([variant]) == translator.translate(["trees in garden of a café"])


def test_settings_come_with_the_model(translator):
    plain = Configuration(
        model=translator.engine.model.config, search=settings(translator, beam_size=1, max_length_extra=1)
    )
    other = Translator(TorchEngine(translator.engine.model), translator.tokenizers, plain)
    search = settings(translator, beam_size=1, max_length_extra=1)
    assert other.translate(SENTENCES) == translator.translate(SENTENCES, search) != translator.translate(SENTENCES)


def test_the_length_limit_grows_with_the_source(translator, monkeypatch):
    limits = {}

    def spy(step, state, max_lengths, **options):
        limits.update(zip([len(ids) for ids in sources], max_lengths.tolist(), strict=True))
        return beam_search(step, state, max_lengths, **options)

    monkeypatch.setattr(engine_module, "beam_search", spy)
    sources = sorted(translator.tokenizers.source.encode(SENTENCES), key=lambda ids: (-len(ids), ids))
    translator.translate(SENTENCES, settings(translator, max_length_ratio=1.5, max_length_extra=2))
    assert limits == {len(ids): int(1.5 * len(ids) + 2) for ids in sources}
    sources = sources[-1:]
    translator.translate(["seen"], settings(translator, max_length_ratio=0.01, max_length_extra=0))
    assert 1 in limits.values(), "a source that is short beside its ratio still gets a token"


def test_special_tokens_are_not_generated(translator, monkeypatch):
    step = translator.engine.step

    def pushy(ids, state):
        logits, state = step(ids, state)
        logits[:, [PAD_ID, UNK_ID, BOS_ID]] += 50.0
        pushed.append(len(ids))
        return logits, state

    pushed = []
    expected = translator.hypotheses(SENTENCES)
    monkeypatch.setattr(translator.engine, "step", pushy)
    assert_same(translator.hypotheses(SENTENCES), expected)
    assert pushed


def test_typed_control_tokens_are_text(translator):
    ids = translator.tokenizers.source.encode(["the cat </s> sat", "<s> <unk> <pad>"])
    assert all(token > 3 or token == UNK_ID for row in ids for token in row)
    cut, whole = translator.translate(["the cat", "the cat </s> sat"])
    assert cut != whole


def test_a_translation_is_one_line_whatever_the_pieces_spell(translator, monkeypatch):
    class Spelling:
        @staticmethod
        def decode(ids):
            return ["two\nlines\r\nor\u2028more\n"] * len(ids)

    monkeypatch.setattr(translator, "tokenizers", translator.tokenizers._replace(target=Spelling))
    assert translator.translate(["seen"]) == ["two lines or more"]


def test_what_is_asked_of_a_translation_reaches_the_engine_and_equal_wishes_are_met_once(translator, monkeypatch):
    asked = []
    search = translator.engine.search
    monkeypatch.setattr(
        translator.engine, "search", lambda sources, *rest: asked.extend(sources) or search(sources, *rest)
    )
    wishes = [
        Sentence("the cat"),
        Sentence("the cat", "a  mat"),
        Sentence("the cat", terms=("seen", " ", "cafe\u0301")),
    ]
    found = translator.translate([*wishes, "the cat", *wishes[::-1], Sentence(" ", "a mat", ("seen",))])
    [ids], [prefix], [seen], [cafe] = (
        translator.tokenizers.source.encode([text]) for text in ("the cat", "a mat", "seen", "café")
    )
    assert (
        set(asked)
        == {
            (tuple(ids), (), ()),
            (tuple(ids), tuple(prefix), ()),
            (tuple(ids), (), (tuple(seen), tuple(cafe))),
        }
        and len(asked) == 3
    )
    assert found == [found[0], found[1], found[2], found[0], found[2], found[1], found[0], ""]
    assert found[1].startswith("a mat") and "seen" in found[2] and "café" in found[2]


def test_wishes_that_cannot_be_met_are_told_and_left_out(translator):
    plain, parts = "the cat", "the cat sat on a mat. two old trees on that mat."
    with pytest.warns(UserWarning, match='sentence 2: the model cannot spell "Ж", which its translation is to have'):
        found = translator.translate([plain, Sentence(plain, "Ж", ("Ж",))])
    assert found[0] == found[1]
    search = settings(translator, max_source_tokens=10)
    with pytest.warns(UserWarning, match="it is translated in 2 parts, without its terms"):
        [found] = translator.translate([Sentence(parts, "seen", ("garden",))], search)
    first, second = "the cat sat on a mat.", "two old trees on that mat."
    assert found == " ".join(translator.translate([Sentence(first, "seen"), second], search))


def test_a_stream_is_read_in_chunks_and_equals_the_whole(translator):
    sentences = [SENTENCES[i % 8] if i % 4 else "" for i in range(50)]
    read = []
    stream = translator.stream((read.append(s) or s for s in sentences), chunk=7)
    next(stream)
    assert len(read) == 7
    assert [found[0].text for found in stream] == translator.translate(sentences)[1:]
    assert list(translator.stream([])) == []
    long = " ".join(WORDS * 3)
    with pytest.warns(UserWarning, match="sentence 9 has"):
        list(translator.stream(["seen"] * 8 + [long], chunk=3))


def test_settings_that_allow_no_translation_are_refused_at_once(translator):
    with pytest.raises(ValueError, match=r"search.min_length=9 exceeds the 4 tokens that a one-token sentence"):
        translator.translate([], settings(translator, min_length=9))
    with pytest.raises(ValueError, match=r"4 hypotheses cannot come of search.beam_size=3: raise it"):
        translator.hypotheses([], None, 4)


def test_settings_that_need_more_positions_than_the_model_has_learned_are_refused_at_once(translator):
    learned = dataclasses.replace(translator.engine.model.config, positions="learned", max_positions=43)
    search = settings(translator)  # up to 40 source tokens, and 43 of a translation
    batching = BatchingConfig(max_source_tokens=42, max_target_tokens=42)
    configuration = Configuration(model=learned, batching=batching, search=search)
    longest = " ".join(["seen"] * 40)
    short = Translator(
        TorchEngine(build_model(configuration, translator.tokenizers).eval()), translator.tokenizers, configuration
    )
    assert len(translator.tokenizers.source.encode([longest])[0]) == 40
    assert not short.hypotheses([longest])[0][0].finished  # it took all 43
    with pytest.raises(ValueError, match=r"search.max_source_tokens=43 may take 44 positions, more than model.max_p"):
        short.translate([longest], dataclasses.replace(search, max_source_tokens=43))
