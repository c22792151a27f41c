"""Pictures of attention: what is drawn and aligned is what the model computed for just these tokens."""

import json
import re
import sys
import warnings
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from matplotlib.image import imread
from torch import tensor
from torch.testing import assert_close

from models.attention_maps import attention_maps
from models.config import ModelConfig
from pipeline.checkpoint import build_model, save_model
from pipeline.config import Configuration, SearchConfig, TokenizerConfig, TrainerConfig
from pipeline.data.batching import collate
from pipeline.data.tokenizer import train_tokenizers
from pipeline.inference.alignment import alignment, raw_words, words
from pipeline.inference.attention import Heads, attended
from pipeline.inference.attention_page import page
from pipeline.inference.attention_pictures import Letters, draw, figure
from pipeline.inference.engine import TorchEngine
from pipeline.inference.translator import Translator

WORDS = "the cat sat on a mat while two old trees of that garden seen in café".split()
SENTENCE, TRANSLATION = "the old cat sat", "a mat in café"


def build(**choices):
    """A translator with random weights."""
    sizes = dict(encoder_layers=2, decoder_layers=3, d_model=16, d_ff=32, num_heads=2)
    configuration = Configuration(
        tokenizer=TokenizerConfig(vocab_size=60),
        model=ModelConfig(**(sizes | choices)),
        search=SearchConfig(beam_size=3, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=40),
    )
    text = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
    tokenizers = train_tokenizers(text, text, configuration.tokenizer)
    torch.manual_seed(4)
    return Translator(TorchEngine(build_model(configuration, tokenizers).eval()), tokenizers, configuration)


@pytest.fixture(scope="module")
def translator():
    return build()


# word alignment


@pytest.mark.parametrize(
    ("weights", "source", "target", "links"),
    [
        ([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0, 0, 1]], "▁a ▁b </s>", "▁x ▁y </s>", [(0, 0), (1, 1)]),
        ([[0.3, 0.6, 0.1], [0.7, 0.2, 0.1], [0, 0, 1]], "▁a ▁b </s>", "▁x ▁y </s>", [(1, 0), (0, 1)]),
        # Two pieces together outweigh the strongest one, and a word's pieces vote by their weights.
        ([[0.3, 0.3, 0.4, 0], [0, 0, 0, 1]], "▁a b ▁c </s>", "▁x </s>", [(0, 0)]),
        ([[0.6, 0.4, 0], [0.1, 0.9, 0], [0, 0, 1]], "▁a ▁b </s>", "▁x y </s>", [(1, 0)]),
        # Whoever looks at the end of the sentence is linked to nothing; the row of eos to nothing in any case.
        ([[0.2, 0.3, 0.5], [0.9, 0, 0.1], [1, 0, 0]], "▁a ▁b </s>", "▁x ▁y </s>", [(0, 1)]),
        ([[0.5, 0.5]], "▁a </s>", "</s>", []),
        ([[0.1, 0.8, 0.1], [0, 0, 1]], "▁ ☃ </s>", "▁x </s>", [(0, 0)]),
    ],
)
def test_a_target_word_is_linked_to_the_source_word_it_attends_to_most(weights, source, target, links):
    assert alignment(tensor(weights, dtype=torch.double), source.split(), target.split()) == links


@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [("▁a b ▁c </s>", [0, 0, 1, 2]), ("</s>", [0]), ("<2de> ▁a </s>", [0, 1, 2]), ("▁ ☃ ▁ ☃ </s>", [0, 0, 1, 1, 2])],
)
def test_words_begin_where_sentencepiece_writes_a_blank(pieces, numbers):
    assert words(pieces.split()) == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("the old  cat", [0, 1, 2]),
        ("the \x00 cat", [0, 2]),
        ("\u200b \ufeff the cat \u200b", [2, 3, 4]),
        ("the\u00a0cat\u3000sat", [0, 1, 2]),
        ("the \u200b cat", [0, 1, 2]),
        ("the▁old cat", [0, 0, 1]),
        ("", []),
    ],
)
def test_words_are_counted_in_the_text_as_it_was_given(text, numbers):
    assert raw_words(text, "NFC") == numbers


def test_one_letter_may_be_two_words_after_normalisation():
    assert raw_words("a \u00b4b", "NFKC") == [0, 1]
    assert raw_words("a x\u00b4 c", "NFKC") == [0, 1, 1, 2]


def test_the_alignment_is_that_of_the_layer_averaged_over_heads(translator):
    shown = attended(translator, f"\x00 {SENTENCE}", TRANSLATION)
    cross = shown.kinds["cross"]
    assert [shown.layer(), shown.layer(3), attended(build(decoder_layers=1), SENTENCE).layer()] == [2, 3, 1]
    for layer in (1, 2, 3):
        expected = alignment(cross.weights[layer - 1].mean(0), cross.keys, cross.queries)
        assert shown.alignment(layer) == sorted((i + 1, j) for i, j in expected)
    with pytest.raises(ValueError, match="layer=4 is no layer of cross-attention: give 1 to 3"):
        shown.alignment(4)


# what the model looked at


def test_the_maps_are_those_of_training_on_the_pair(translator):
    shown = attended(translator, SENTENCE, TRANSLATION)
    ids = [translator.tokenizers.source.encode([text])[0] for text in (SENTENCE, TRANSLATION)]
    batch = collate([tuple(ids)], 0)
    maps = attention_maps(translator.engine.model, batch.source, batch.target_in)
    for kind, layers in zip(shown.kinds.values(), maps, strict=True):
        assert_close(kind.weights, torch.cat(layers))
    source, target = ["".join(kind.keys) for kind in (shown.kinds["encoder"], shown.kinds["decoder"])]
    assert source == "▁the▁old▁cat▁sat</s>" and target == "<s>▁a▁mat▁in▁café"
    cross = shown.kinds["cross"]
    assert "".join(cross.queries) == "▁a▁mat▁in▁café</s>" and cross.keys == shown.kinds["encoder"].keys


def test_without_a_translation_it_is_the_models_own(translator):
    greedy = replace(translator.search, beam_size=1)
    for search in (None, greedy):
        shown = attended(translator, SENTENCE, search=search)
        assert [shown.translation] == translator.translate([SENTENCE], search)


def test_texts_are_normalised_as_for_training(translator):
    kinds = attended(translator, "the old  cafe\u0301\ufeff", "\u200ba mat\n").kinds
    assert "".join(kinds["encoder"].keys) == "▁the▁old▁café</s>"
    assert "".join(kinds["cross"].queries) == "▁a▁mat</s>"


def test_a_character_that_the_model_does_not_know_is_marked(translator):
    assert attended(translator, "cat ☃", "mat").kinds["encoder"].keys[-2:] == ["☃ <unk>", "</s>"]


def test_what_cannot_be_shown_is_refused_in_one_line(translator):
    for blank in ("", " \t", "\u200b"):
        with pytest.raises(ValueError, match="the sentence is blank"):
            attended(translator, blank)
    short = replace(translator.search, max_source_tokens=3)
    with pytest.raises(ValueError, match=r"the sentence has \d+ tokens, more than search.max_source_tokens=3"):
        attended(translator, SENTENCE, "a", short)
    with pytest.raises(ValueError, match=r"the translation has \d+ tokens, more than search.max_source_tokens=3"):
        attended(translator, "the", TRANSLATION, short)
    with pytest.raises(ValueError, match="model.attention=none: this model has no attention to show"):
        attended(build(architecture="recurrent", attention="none"), SENTENCE)


# the page


class Scripts(HTMLParser):
    """The scripts of a page by their ids, all tags, and every address in it."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self.addresses, self.open = {}, [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        self.open = dict(attributes).get("id", "") if tag == "script" else None

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open is not None:
            self.scripts[self.open] = data


def test_the_page_holds_the_weights_the_tokens_and_the_alignment(translator):
    shown = attended(translator, SENTENCE, TRANSLATION)
    text = Scripts(page(shown, "runs/X", layer=3))
    data = json.loads(text.scripts["data"])
    assert (data["model"], data["sentence"], data["translation"]) == ("runs/X", SENTENCE, TRANSLATION)
    assert data["words"] == [SENTENCE.split(), TRANSLATION.split()]
    assert (data["layer"], data["links"]) == (3, [list(link) for link in shown.alignment(3)])
    for drawn, (name, kind) in zip(data["kinds"], shown.kinds.items(), strict=True):
        assert (drawn["name"], drawn["queries"], drawn["keys"]) == (name, kind.queries, kind.keys)
        assert_close(tensor(drawn["weights"]) / 1000, kind.weights, atol=0.00051, rtol=0)


def test_the_page_needs_no_network_and_no_text_becomes_code(translator):
    plain = page(attended(translator, "the", "a"), "X")
    evil = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> ]]> \\u003c &lt; DATA"
    shown = attended(replace_limit(translator), evil, evil)
    page_of_evil = page(shown, evil)
    assert Scripts(page_of_evil).tags == Scripts(plain).tags
    assert Scripts(page_of_evil).addresses == [] and not re.search(r"url\(|@import|fetch\(", plain)
    assert json.loads(Scripts(page_of_evil).scripts["data"])["sentence"] == evil


def replace_limit(translator):
    other = Translator(TorchEngine(translator.engine.model), translator.tokenizers, Configuration())
    other.search = replace(translator.search, max_source_tokens=500)
    return other


def test_a_recurrent_model_shows_its_cross_attention_alone(translator, tmp_path):
    shown = attended(build(architecture="recurrent"), SENTENCE, TRANSLATION)
    assert list(shown.kinds) == ["cross"] and shown.kinds["cross"].weights.shape[:2] == (1, 2)
    assert shown.layer() == 1 and all(j < 4 for _, j in shown.alignment())
    assert draw(shown.kinds, tmp_path) == [tmp_path / "cross.png"]


# PNG


def test_pictures_show_every_layer_and_head_with_its_tokens(translator):
    kind = attended(translator, SENTENCE, TRANSLATION).kinds["cross"]
    panels = figure(kind, Letters({*kind.queries, *kind.keys})).axes
    assert [panel.get_title() for panel in panels] == [f"layer {i}, head {j}" for i in (1, 2, 3) for j in (1, 2)]
    for panel, weights in zip(panels, kind.weights.flatten(0, 1), strict=True):
        assert_close(tensor(panel.images[0].get_array().data), weights.sqrt())
    assert [label.get_text() for label in panels[0].get_yticklabels()] == kind.queries
    assert [label.get_text() for label in panels[-1].get_xticklabels()] == kind.keys


@pytest.mark.parametrize("tokens", [1, 5, 100])
def test_pictures_have_a_sensible_size(tokens):
    kind = Heads("Cross-attention", torch.eye(tokens).expand(1, 4, -1, -1), ["▁a"] * tokens, ["▁b"] * tokens)
    drawn = figure(kind, Letters({"▁ab"}))
    assert all(1 <= side < 42 for side in drawn.get_size_inches())


def test_any_text_is_drawn_and_what_no_font_has_is_said_once(tmp_path):
    tokens = ["▁$x$", "▁_^{", "▁\\frac", "▁مرحبا", "a\u200db", "▁Ж", "\U000e0021\U0003fffd"]
    kind = Heads("Cross-attention", torch.eye(7).expand(2, 1, -1, -1), tokens, tokens)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        draw({"encoder": kind, "cross": kind}, tmp_path)
    assert len(said) == 1 and "no installed font shows \U0003fffd:" in str(said[0].message)
    assert imread(tmp_path / "cross.png").size > 0


def test_without_matplotlib_there_are_no_pictures_and_one_line_says_so(translator, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.font_manager", None)
    with pytest.warns(UserWarning, match=r"no PNG: matplotlib is not installed \(pip install 'dragoman\[plots\]'\)"):
        assert draw(attended(translator, SENTENCE).kinds, tmp_path) == []


# the command


def test_the_command_prints_the_alignment_and_nothing_else(translator, tmp_path, call, monkeypatch):
    sizes = ModelConfig(encoder_layers=2, decoder_layers=3, d_model=16, d_ff=32, num_heads=2)
    configuration = Configuration(model=sizes, search=translator.search)
    torch.manual_seed(4)  # as the translator's
    save_model(
        tmp_path / "model", build_model(configuration, translator.tokenizers), translator.tokenizers, configuration, {}
    )
    monkeypatch.chdir(tmp_path)
    asked = ["--layer", "3", "--translation", TRANSLATION, "--output", "pictures/of"]
    status, said, complaint = call("attention.py", "--model", "model", SENTENCE, *asked)
    assert status == 0, complaint
    links = attended(translator, SENTENCE, TRANSLATION).alignment(3)
    assert said == " ".join(f"{i}-{j}" for i, j in links) + "\n"
    files = ["attention.html", "encoder.png", "decoder.png", "cross.png"]
    assert complaint.split() == ["wrote", *(f"pictures/of/{name}" for name in files)]
    assert sorted(path.name for path in (tmp_path / "pictures/of").iterdir()) == sorted(files)


# the option of training


def test_pictures_while_training_need_something_to_draw():
    with pytest.raises(ValueError, match=r"attention_pictures=true has nothing to draw where model.attention=none"):
        Configuration(
            model=ModelConfig(architecture="recurrent", attention="none"),
            trainer=TrainerConfig(attention_pictures=True),
        )
    with pytest.raises(ValueError, match=r"nothing to draw where trainer.validation_sentences=0"):
        TrainerConfig(attention_pictures=True, validation_sentences=0, metric="loss")
