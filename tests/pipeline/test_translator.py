"""Text in, text out: a translation depends on its sentence alone, and n lines stay n lines."""

import copy
import dataclasses
import warnings

import pytest
import torch

from models.config import ModelConfig
from models.search import Hypothesis, beam_search
from pipeline.checkpoint import build_model
from pipeline.config import BatchingConfig, Configuration, SearchConfig, TokenizerConfig
from pipeline.data.tokenizer import BOS_ID, PAD_ID, UNK_ID, train_tokenizers
from pipeline.inference import engine as engine_module
from pipeline.inference.advice import Advice
from pipeline.inference.engine import TorchEngine
from pipeline.inference.translation import Part, Sentence, Translation, distinct, joined, ranked
from pipeline.inference.translator import Translator

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "two",
    "old",
    "trees",
    "of",
    "that",
    "garden",
    "seen",
    "in",
    "café",
]
SENTENCES = [
    "the cat sat",
    "a mat",
    "two old trees of that garden seen in café while the cat sat on a mat",
    "seen",
    "the old garden on the mat",
    "cat cat cat cat cat cat cat cat",
    "trees in garden of a café",
    "garden",
]


@pytest.fixture(scope="module")
def translator():
    """An untrained model with weights large enough for it to have opinions."""
    configuration = Configuration(
        tokenizer=TokenizerConfig(vocab_size=60),
        model=ModelConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, num_heads=2),
        search=SearchConfig(beam_size=3, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=40),
    )
    text = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
    tokenizers = train_tokenizers(text, text, configuration.tokenizer)
    torch.manual_seed(4)
    model = build_model(configuration, tokenizers).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return Translator(TorchEngine(model), tokenizers, configuration)


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


def test_a_source_too_long_is_translated_in_parts_with_a_warning(translator):
    parts = ["the cat sat on a mat.", "two old trees on that mat.", "a garden in café on it.", "the mat sat on a cat."]
    search = settings(translator, max_source_tokens=10)
    together = " ".join(parts)
    num_tokens = len(translator.tokenizers.source.encode([together])[0])
    with pytest.warns(
        UserWarning,
        match=rf"sentence 2 has {num_tokens} source tokens, more than search.max_source_tokens=10: .* in 4 parts",
    ):
        first, found, last = translator.translate(["seen", together, "garden"], search)
    assert found == " ".join(translator.translate(parts, search))
    assert [first, last] == translator.translate(["seen", "garden"], search)


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


def test_a_translation_knows_its_pieces(translator):
    parts = ["the cat sat on a mat.", "two old trees on that mat."]
    search = settings(translator, max_source_tokens=10)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [[whole], [blank]] = translator.hypotheses([" ".join(parts), ""], search)
    [[first], [second]] = translator.hypotheses(parts, search)
    assert translator.tokenizers.target.decode([list(first.ids)]) == [first.text]
    assert whole.ids == first.ids + second.ids and blank.ids == ()


def test_parts_say_what_was_translated_by_itself(translator):
    parts = ["the cat sat on a mat.", "two old trees on that mat."]
    [[whole]] = translator.hypotheses([" seen  in"])
    assert whole.parts == (Part(" seen  in", whole.text),)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [[whole]] = translator.hypotheses(["\t \t".join(parts) + " "], settings(translator, max_source_tokens=10))
    first, second = translator.translate(parts)
    assert whole.parts == (
        Part(parts[0], first),
        Part("\t \t", " ", kept=True),
        Part(parts[1], second),
        Part(" ", "", kept=True),
    )


def test_what_has_no_letter_stays_where_an_over_long_line_is_divided(translator):
    search = settings(translator, max_source_tokens=10)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [found] = translator.translate(["the cat sat on a mat. two old trees on that mat. ???"], search)
    first, second = translator.translate(["the cat sat on a mat.", "two old trees on that mat."])
    assert found == f"{first} {second} ???"
    with pytest.warns(UserWarning, match="it is translated in"):
        assert translator.translate([". ? ." * 20], search) != [""]


def test_lists_of_different_length_are_joined_to_the_longest():
    short, long = ([Translation(f"{name}{i}", -float(i), True) for i in range(n)] for name, n in (("a", 1), ("b", 3)))
    found = [joined([("x", one), (" ", "-"), ("y", other)]) for one, other in ranked([short, long])]
    assert [each.text for each in found] == ["a0-b0", "a0-b1", "a0-b2"]
    assert [each.score for each in found] == [0.0, -0.5, -1.0]
    assert [each.text for each in distinct(found * 2)] == ["a0-b0", "a0-b1", "a0-b2"]


class Echo:
    """An engine whose hypotheses are given, as many as its beam has."""

    def __init__(self, hypotheses):
        self.hypotheses, self.beams = hypotheses, []

    def require(self, search):
        pass

    def search(self, sources, search, num_hypotheses=1):
        self.beams.append((search.beam_size, num_hypotheses))
        return [self.hypotheses[: search.beam_size][:num_hypotheses] for _ in sources]


def test_a_list_in_which_equal_texts_leave_room_is_filled_up_behind_its_first(translator):
    the, cat, old = translator.tokenizers.target.encode(["the", "cat", "old"])
    spelt = translator.tokenizers.target.processor.piece_to_id
    again = [spelt(piece) for piece in ("▁", *"the")]
    hypotheses = [Hypothesis(ids, score, True) for ids, score in ((the, -1), (again, -2), (cat, -4), (old, -0.5))]
    engine = Echo([*hypotheses, Hypothesis([*cat, *old], -3, True)])
    echo = Translator(engine, translator.tokenizers, translator.configuration)
    [found] = echo.hypotheses(["seen"], None, 3)
    # Of the beam of six, what is better than the first would have made another one the best.
    assert [(each.text, each.score) for each in found] == [("the", -1), ("cat old", -3), ("cat", -4)]
    assert engine.beams == [(3, 3), (6, 6)]
    echo.hypotheses(["seen"], None, 1)
    assert engine.beams[2:] == [(3, 1)]


def test_the_least_risk_is_sought_among_as_many_candidates_of_a_beam_as_of_samples(translator):
    engine = Echo([Hypothesis([5], -1.0, True)])
    echo = Translator(engine, translator.tokenizers, translator.configuration)
    for changes in ({}, {"diverse_groups": 3}, {"candidates": 2}, {"method": "sampling"}):
        echo.translate(["seen"], settings(translator, minimum_bayes_risk="chrf", **{"candidates": 16, **changes}))
    assert engine.beams == [(16, 16), (18, 18), (3, 3), (3, 16)]
    with pytest.raises(ValueError, match="search.candidates=2000 are more than the 1000 that a beam may have: lower"):
        settings(translator, minimum_bayes_risk="bleu", candidates=2000)


def advised(translator, *pieces, finished=True):
    """One that finds these pieces, and that somebody listens to."""
    found = Translator(Echo([Hypothesis([*pieces], -1.0, finished)]), translator.tokenizers, translator.configuration)
    found.advice = Advice(found.languages)
    return found


def at_line(number, text, **asked):
    return Sentence(text, **asked, place=f"in.txt, line {number}")


def test_a_line_that_lost_most_of_its_sentences_is_told_of_once(translator):
    long = "the cat sat on a mat. " * 12
    roomy = settings(translator, max_source_tokens=200)
    short, whole = advised(translator, 5), advised(translator, *[5] * 80)
    with pytest.warns(UserWarning, match=r"in.txt, line 7 is several, and the \d+ tokens .* became 1: .*--document"):
        short.translate([at_line(6, "the cat"), at_line(7, long)], roomy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short.translate([at_line(8, long)], roomy)
        whole.translate([at_line(8, long)], roomy)
        whole.translate([at_line(8, "cat " * 100)], roomy)
        Translator(short.engine, translator.tokenizers, translator.configuration).translate([long], roomy)


def test_a_line_of_three_sentences_is_looked_at_at_any_length(translator):
    short, whole = advised(translator, 5, 5), advised(translator, *[5] * 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short.translate([at_line(8, "the cat sat. a mat was seen.")])
        whole.translate([at_line(8, "the cat sat. a mat. that garden.")])
    with pytest.warns(UserWarning, match="in.txt, line 9 is several"):
        short.translate([at_line(9, "the cat sat. a mat. that garden.")])


def test_a_translation_that_the_limit_has_cut_is_told_of_once(translator):
    (ids,) = translator.tokenizers.target.encode(["the cat"])
    cut = advised(translator, *ids, finished=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cut.translate([at_line(6, "a mat", prefix="the cat"), "", at_line(8, "seen"), at_line(9, "garden")])
        cut.translate([at_line(10, "seen")])
    assert len(told) == 1
    assert str(told[0].message).startswith("the length limit has cut the translation of in.txt, line 8, and perhaps")


def test_a_term_that_is_banned_is_refused(translator):
    search = settings(translator, banned=["cat"])
    for term in ("cat", "Cat", "old cats", "the cat sat"):
        if UNK_ID in translator.tokenizers.target.encode([term])[0]:
            continue
        with pytest.raises(ValueError, match=rf'the term "{term}" has what search.banned=.* forbids: leave out either'):
            translator.translate([Sentence("seen", terms=(term,))], search)
    translator.translate([Sentence("seen", terms=("mat",))], search)


def test_n_best_lists_of_parts_are_joined(translator):
    parts = ["the cat sat on a mat.", "two old trees on that mat."]
    search = settings(translator, max_source_tokens=10)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [found] = translator.hypotheses([" ".join(parts)], search, 3)
    first, second = translator.hypotheses(parts, search, 3)
    assert [t.text for t in found] == [f"{a.text} {b.text}" for a, b in zip(first, second, strict=True)]
    assert [t.score for t in found] == pytest.approx(
        [(a.score + b.score) / 2 for a, b in zip(first, second, strict=True)]
    )


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
