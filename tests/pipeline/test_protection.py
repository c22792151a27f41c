"""What is protected comes back byte for byte and as often, whatever the model."""

import dataclasses
import re
import time
import warnings
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import ModelConfig
from pipeline.checkpoint import build_model
from pipeline.config import Configuration, SearchConfig, TokenizerConfig
from pipeline.data.tokenizer import train_tokenizers
from pipeline.inference.engine import EnsembleEngine, TorchEngine
from pipeline.inference.protection import PATTERNS, STAND_IN_BEAM, ProtectingTranslator
from pipeline.inference.tags import pairs, put_back, taken_out
from pipeline.inference.translation import Translation
from pipeline.inference.translator import Translator

SPANS = [
    *["<b>", "</b>", "<i>", "</i>", "<br/>", '<a href="http://a.b/c?d=e">', "</a>"],
    *["{name}", "{0}", "%s", "%d", "%(x)s", "${x}", "{{x}}", "{}"],
    *["https://example.com/a_b?c=%20&d#e", "www.example.org", "john.doe+x@mail.example.org"],
    *["5", "-3", "1,234.56", "2020-11-30", "12:30", "3/4"],
]
WORDS = ["the cat", "seen", "in", "café,", "(old", "trees)", "a", "mat.", ":", "two", "...", "x", "漢"]
MORE = [
    *["<0>", "</0>", '<a title="x > y">', "<!-- <b> -->", "&amp;"],
    *["%%", "%ld", "%@", "%1", "%{x}", "$x", "HTTP://A.B/c_(d)"],
]
TEXTS = st.lists(
    st.sampled_from(SPANS + MORE + WORDS) | st.sampled_from([" ", " ", " ", " ", "", "  ", "\t"]), max_size=12
).map("".join)


@pytest.fixture(scope="module")
def translator():
    """An untrained model, which can say anything and writes much that is protected."""
    configuration = Configuration(
        tokenizer=TokenizerConfig(vocab_size=150),
        model=ModelConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, num_heads=2),
        search=SearchConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=60),
    )
    text = [" ".join([*WORDS, *SPANS[i:], *SPANS[:i], *map(str, range(3, 30))]) for i in range(len(SPANS))]
    tokenizers = train_tokenizers(text, text, configuration.tokenizer)
    torch.manual_seed(4)
    model = build_model(configuration, tokenizers).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return Translator(TorchEngine(model, workers=1), tokenizers, configuration)


class Written:
    """In place of an engine's search: what a translation is, by the sentence's text."""

    def __init__(self, monkeypatch, write):
        self.asked = []

        def of_passages(translator, passages, search, num_hypotheses):
            self.asked += passages
            return [[Translation(write(passage.text), -1.0, True)] for passage in passages]

        monkeypatch.setattr(Translator, "of_passages", of_passages)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), kinds=st.sets(st.sampled_from(list(PATTERNS)), min_size=1))
def test_every_protected_span_comes_back_whatever_the_model_writes(translator, texts, kinds):
    found = ProtectingTranslator(translator, sorted(kinds)).translate(texts)
    for text, translation in zip(texts, found, strict=True):
        spans, there = (
            Counter(span for kind in kinds for span in re.findall(PATTERNS[kind], each)) for each in (text, translation)
        )
        # Alone, a pattern may see a number within what is an address or a tag to all of them together.
        joint = re.compile("|".join(pattern for kind, pattern in PATTERNS.items() if kind in kinds))
        wanted, written = Counter(joint.findall(text)), Counter(joint.findall(translation))
        assert {span: written[span] for span in wanted} == wanted
        assert all(there[span] >= count for span, count in spans.items() if span in wanted)
        if "tag" in kinds:
            assert tag_pairs(translation) == tag_pairs(text)
        if not wanted:
            assert translation == translator.translate([text])[0]


def tag_pairs(text):
    tags = [span for span in re.findall(PATTERNS["tag"], text) if span.startswith("<")]
    closed = pairs(tags)
    alone = set(range(len(tags))) - closed.keys() - set(closed.values())
    return Counter([*((tags[a], tags[b]) for a, b in closed.items()), *(tags[i] for i in alone)])


@pytest.mark.parametrize(
    "kind, text, spans",
    [
        ("url", "See https://a.b/c_(d), or (http://x.y). www.e.f!", ["https://a.b/c_(d)", "http://x.y", "www.e.f"]),
        ("url", "[a](HTTP://a.b/(c)d)e, Www.f.g/(h_i http://.", ["HTTP://a.b/(c)d", "Www.f.g/"]),
        ("url", "请看https://a.cn/b。谢谢", ["https://a.cn/b"]),
        ("email", "a.b+c@d-e.fg, not a@b or @c.de; x@y.z.", ["a.b+c@d-e.fg", "x@y.z"]),
        ("number", "17 of 1,234.5 on 2020-11-30, 12:30, -3.", ["17", "1,234.5", "2020-11-30", "12:30", "-3"]),
        ("number", "A4, 5th, x2 and 3.5x are names; (7)", ["7"]),
        ("placeholder", "{name} {0} %s %d %(x)s ${x} {{x}} %2$s %.2f 100% of 5 %",
         ["{name}", "{0}", "%s", "%d", "%(x)s", "${x}", "{{x}}", "%2$s", "%.2f"]),
        ("placeholder", "%ld %llu %hd %zu %'d %*d %@ %1$@ %1, %L2 %n",
         ["%ld", "%llu", "%hd", "%zu", "%'d", "%*d", "%@", "%1$@", "%1", "%L2", "%n"]),
        ("placeholder", "100%% %{name} $name's ${name} 100%'s, $5", ["%%", "%{name}", "$name", "${name}"]),
        ("tag", '<b>a</b> <br/> <a href="x">1 < 2</a> <3 a<b', ["<b>", "</b>", "<br/>", '<a href="x">', "</a>"]),
        ("tag", '<0>a</0> <1/> <!-- <b> -- > --> <a b="c > d" e=\'>\'>don\'t</a> <i don\'t>',
         ["<0>", "</0>", "<1/>", "<!-- <b> -- > -->", '<a b="c > d" e=\'>\'>', "</a>", "<i don't>"]),
        ("tag", "R&amp;D &#8217; &#x2019; AT&T; & b; <!-- a <b", ["&amp;", "&#8217;", "&#x2019;"]),
    ],
)  # fmt: skip
def test_what_is_protected(kind, text, spans):
    assert re.findall(PATTERNS[kind], text) == spans


@pytest.mark.parametrize(
    "text",
    [
        *("a" * 100_000, "a@" * 50_000, "a." * 50_000, "a-" * 50_000, "@a." * 33_000, "a@b" + ".c" * 50_000 + "@"),
        *("1" * 100_000, "1." * 50_000 + "x", "1" * 100_000 + "x", "-" * 100_000, "1-" * 50_000),
        *("{" * 100_000, "{a" * 50_000, "{{" * 50_000, "%(" * 50_000, "%" * 100_000, "%0" * 50_000, "$" * 100_000),
        *(
            "<a" * 50_000,
            "<a " * 33_000,
            "<" * 100_000,
            "</a" * 33_000,
            "<a>" * 33_000,
            "<a>" * 16_000 + "</b>" * 16_000,
        ),
        *("<!--" * 25_000, "<!-- a-" * 14_000, "<a b=" * 20_000, '<a b="c' * 12_000, "<a b='c' " * 10_000),
        *("www.(" * 20_000, "http://a(" * 10_000, "www." + "(a)" * 33_000, "www.(" + "." * 100_000, "&a" * 50_000),
        *("http://" * 14_000, "www." * 25_000, "http://" + "." * 100_000, "www" * 33_000),
    ],
    ids=lambda text: text[:6],
)
def test_hostile_text_takes_no_longer_than_other_text(translator, text):
    protecting = ProtectingTranslator(translator, list(PATTERNS))
    start = time.process_time()
    protecting._plan(text)
    assert protecting.keeps(text, text)
    assert time.process_time() - start < 2


def test_a_model_that_copies_is_left_alone(translator, monkeypatch):
    written = Written(monkeypatch, str.upper)
    protecting = ProtectingTranslator(translator, ["number", "url"])
    assert protecting.translate(["two 5 cats", "no spans"]) == ["TWO 5 CATS", "NO SPANS"]
    assert len(written.asked) == 2


def test_what_is_a_word_in_one_language_may_be_a_figure_in_another(translator, monkeypatch):
    Written(monkeypatch, lambda text: text.replace("two", "2"))
    protecting = ProtectingTranslator(translator, ["number"])
    assert protecting.translate(["two cats", "two of 5 cats", "two of 2 cats"]) == [
        "2 cats",
        "2 of 5 cats",
        "two of 2 cats",
    ]


def test_stand_ins_take_the_place_of_what_a_model_does_not_copy(translator, monkeypatch):
    written = Written(monkeypatch, lambda text: " ".join(reversed(text.replace("{", "?").split())))
    protecting = ProtectingTranslator(translator, ["placeholder", "email"])
    first, second, third, *_ = protecting.stand_ins
    [[found]] = protecting.hypotheses([f"mail {{name}} at a.b@c.de with {first} cats"])
    assert found.text == f"cats {first} with a.b@c.de at {{name}} mail"
    assert [found.ids] == [tuple(ids) for ids in translator.tokenizers.target.encode([found.text])]
    asked = written.asked[1]
    assert asked.text == f"mail {second} at {third} with {first} cats"
    assert asked.source.terms == (protecting.stand_ins[second], protecting.stand_ins[third])


def test_there_are_never_more_stand_ins_than_a_beam_can_hold(translator, monkeypatch):
    written = Written(monkeypatch, lambda text: text.replace("{", "?"))
    spans = " and ".join("{x}" for _ in range(STAND_IN_BEAM))
    assert ProtectingTranslator(translator, ["placeholder"]).translate([spans]) == [spans]
    assert not any(each.source.terms for each in written.asked)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "sampling"},
        {"minimum_bayes_risk": "chrf", "candidates": 6},
        {"diverse_groups": 2},
        {"method": "sampling", "minimum_bayes_risk": "bleu", "candidates": 6},
    ],
    ids=str,
)
def test_protected_lines_are_searched_as_all_others(translator, changes):
    texts = ["the cat seen in https://example.org/a", "two trees (old) 12 {name}", "a mat. <b>the cat</b>"]
    search = dataclasses.replace(translator.search, beam_size=4, **changes)
    protecting = ProtectingTranslator(translator, list(PATTERNS))
    found = protecting.hypotheses(texts, search, 3)
    for text, translations in zip(texts, found, strict=True):
        written = [each.text for each in translations]
        assert len({*written}) == len(written) <= 3 and all(protecting.keeps(text, each) for each in written)
    assert sum(map(len, found)) > 5
    if search.method == "sampling":
        assert found != protecting.hypotheses(texts, dataclasses.replace(search, seed=2), 3)


def test_an_over_long_line_is_warned_of_once_and_never_cut_within_a_span(translator):
    protecting = ProtectingTranslator(translator, list(PATTERNS))
    address = "https://example.com/" + "a_b?c=%20&d#e/" * 20  # alone too long to be read
    text = f"the cat, seen in {address} and {{a very long name}} " + "two trees. " * 20
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        [[found]] = protecting.hypotheses([text])
    assert len(told) == 1 and "it is translated in" in str(told[0].message)
    assert protecting.keeps(text, found.text) and found.text != text
    assert "".join(part.source for part in found.parts) == text
    assert "".join(part.target for part in found.parts) == found.text


def test_tags_go_around_the_words_that_were_written_from_theirs(translator, monkeypatch):
    Written(monkeypatch, lambda text: re.sub(r"<.*?>", "", text).upper())
    seen = []

    class Aligned:
        def alignment(self):
            return [(0, 2), (1, 1), (2, 0)]

    monkeypatch.setattr(
        "pipeline.inference.protection.attended", lambda *arguments: seen.append(arguments[1:]) or Aligned()
    )
    protecting = ProtectingTranslator(translator, ["tag"])
    assert protecting.translate(["<b>a</b> b <i>c</i>"]) == ["<i>A</i> B <b>C</b>"]
    assert seen == [("a b c", "A B C")]
    assert protecting.translate(["a b c <b>d</b>"]) == ["A B C <b>D</b>"]  # nothing comes from the last word


REVERSED, STRAIGHT = [(0, 2), (1, 1), (2, 0)], [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(
    "source, alignment, target",
    [
        ("<b>a</b> b c.", STRAIGHT, "<b>X</b> Y Z."),
        ("<b>a b</b> c.", REVERSED, "X <b>Y Z.</b>"),
        ("a <b>b <i>c</i></b>.", STRAIGHT, "X <b>Y <i>Z</i></b>."),
        ("a <b>b <i>c</i></b>.", REVERSED, "<b><i>X</i> Y</b> Z."),
        ("(<b>a</b>) b c", STRAIGHT, "<b>X</b> Y Z."),
        ("<b> a </b> b c.", STRAIGHT, "<b> X </b> Y Z."),
        ("a<br/> b c.", REVERSED, "X Y Z.<br/>"),
        ("a <br/>b c.", STRAIGHT, "X <br/>Y Z."),
        ("a <br/> b c.", STRAIGHT, "X <br/> Y Z."),
        ("a b c <br/>", STRAIGHT, "X Y Z. <br/>"),
        ("a b <i></i>c", STRAIGHT, "X Y <i></i>Z."),
        ("a <b>b</b> c", [(0, 0), (2, 2)], None),
        ("a b<b>c</b>", STRAIGHT, None),
        ("a </b>b <b>c", STRAIGHT, "X </b>Y <b>Z."),
    ],
)
def test_where_tags_go(source, alignment, target):
    without = taken_out(re.split(PATTERNS["tag"], source), re.findall(PATTERNS["tag"], source))
    found = without and put_back("X Y Z.", without[1], alignment)
    assert found == target
    if target:
        assert tag_pairs(found) == tag_pairs(source)


@pytest.mark.parametrize(
    "tags, closed",
    [
        (["<b>", "</b>"], {0: 1}),
        (["<b>", "<br>", "</b>"], {0: 2}),
        (["<b>", "<i>", "</b>", "</i>"], {0: 2}),
        (["</b>", "<b>"], {}),
        (["<b>", "<b>", "</b>", "</b>"], {1: 2, 0: 3}),
        (["<b/>", "<a x='1'>", "</a>"], {1: 2}),
    ],
)
def test_which_tags_belong_together(tags, closed):
    assert pairs(tags) == closed


def test_pieces_keep_the_spaces_around_spans_and_lose_full_stops_they_had_not(translator, monkeypatch):
    Written(monkeypatch, lambda text: "Ja." if len(text) < 12 else "nothing of it")
    protecting = ProtectingTranslator(translator, ["placeholder"])
    [[found]] = protecting.hypotheses(["Go to{x}, now  {y}(then) stop."])
    assert found.text == "Ja{x}, Ja  {y}(Ja."
    assert [*found.ids] == [*translator.tokenizers.target.encode(["Ja"])[0]] * 2  # the third is as it was found


def test_a_piece_whose_translation_would_spoil_a_span_stays_as_it_is(translator, monkeypatch):
    Written(monkeypatch, lambda text: text.replace("a", "1").replace("b", "6"))
    protecting = ProtectingTranslator(translator, ["number"])
    assert protecting.translate(["a,5 is b 6!a c 7"]) == ["a,5 is b 6!1 c 7"]


def test_kinds_are_checked(translator):
    with pytest.raises(ValueError, match="protect=names is unknown: choose among tag, placeholder, url, email, number"):
        ProtectingTranslator(translator, ["names"])
    with pytest.raises(ValueError, match="protect= names nothing"):
        ProtectingTranslator(translator, [])


@pytest.mark.parametrize("text", ["https://example.org/a", "12", "{name}: 3.5 (<b>7</b>)"])
def test_a_line_of_nothing_but_what_is_protected_stays_as_it_is(translator, text):
    assert translator.translate([text]) != [text]
    assert ProtectingTranslator(translator, list(PATTERNS)).translate([text]) == [text]


@pytest.mark.parametrize("kind", ["ensemble", "foreign"])
def test_engines_without_terms_or_without_one_attention_protect_in_pieces(translator, kind):
    class Foreign:
        """Takes no terms."""

        def require(self, search):
            pass

        def search(self, sources, search, num_hypotheses=1):
            assert not any(source.terms or source.prefix for source in sources)
            return translator.engine.search(sources, search, num_hypotheses)

    engine = EnsembleEngine([translator.engine] * 2) if kind == "ensemble" else Foreign()
    other = Translator(engine, translator.tokenizers, translator.configuration)
    texts = ["the cat <b>seen</b> in https://example.org/a", "two old trees {name} in café 12"]
    protecting = ProtectingTranslator(other, list(PATTERNS))
    for text, found in zip(texts, protecting.translate(texts), strict=True):
        assert protecting.keeps(text, found)
