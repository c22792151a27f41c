"""Where a model looks while it reads a sentence and writes its translation: attention's weights with their tokens."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from models.attention_maps import attention_maps
from pipeline.config import SearchConfig, require
from pipeline.data.batching import collate
from pipeline.data.cleaning import normalise
from pipeline.data.tokenizer import BOS_ID, EOS_ID, SPECIAL_PIECES, UNK_ID, Tokenizer, tag
from pipeline.inference.alignment import alignment, raw_words
from pipeline.inference.engine import TorchEngine
from pipeline.inference.translation import Translation
from pipeline.inference.translator import Translator


class Heads(NamedTuple):
    """The weights of one kind of attention."""

    title: str
    weights: Float[Tensor, "layers heads queries keys"]
    queries: list[str]
    """Who looks: the tokens at the rows."""
    keys: list[str]
    """What is looked at: the tokens at the columns."""


@dataclass(frozen=True)
class Attended:
    """A sentence, its translation, and the attention that went into it."""

    sentence: str
    translation: str
    kinds: dict[str, Heads]
    """Those of ``encoder``, ``decoder`` and ``cross`` that the model has."""
    unicode_form: str
    num_tags: int = 0
    """Tokens before those of the sentence."""

    def layer(self, number: int = 0) -> int:
        """The layer of cross-attention that words are aligned by, from 1.

        0 is the last but one, often the best (Garg et al., 2019), or the only one.

        Raises:
            ValueError: there is no such layer.
        """
        count = len(self.kinds["cross"].weights)
        require(0 <= number <= count, f"layer={number} is no layer of cross-attention: give 1 to {count}, or 0")
        return number or max(1, count - 1)

    def alignment(self, layer: int = 0) -> list[tuple[int, int]]:
        """Pairs of words of the sentence and the translation, by their numbers between blanks, from 0."""
        _, weights, queries, keys = self.kinds["cross"]
        tags = self.num_tags
        pairs = alignment(weights[self.layer(layer) - 1].mean(0)[:, tags:], keys[tags:], queries)
        source, target = (raw_words(text, self.unicode_form) for text in (self.sentence, self.translation))
        return sorted({(source[i], target[j]) for i, j in pairs})


@torch.no_grad()
def attended(
    translator: Translator, sentence: str, translation: str | None = None, search: SearchConfig | None = None
) -> Attended:
    """The attention of writing ``translation``, or else the one the model finds, which is divided into pieces anew.

    Raises:
        ValueError: the model has no attention, the sentence is blank, or a text is too long.
    """
    search = search or translator.search
    require(
        isinstance(translator.engine, TorchEngine), "one model is looked into, no export and no ensemble: name one run"
    )
    config = translator.engine.model.config
    require(config.attention != "none", f"model.attention={config.attention}: this model has no attention to show")
    source_ids, source = _encode(translator, translator.tokenizers.source, "sentence", sentence, search)
    require(bool(source_ids), "the sentence is blank: give one with words in it")
    what = "translation"
    if translation is None:
        (translation,) = translator.translate([sentence], search)
        what = "model's own translation"
    (tagged_ids,), tags = translator.source_ids([sentence]), [tag(translator.to)] if translator.to else []
    target_ids, target = _encode(translator, translator.tokenizers.target, what, translation, search)

    source = tags + source
    batch = collate([(tagged_ids, target_ids)], update_tokens=0)
    device = next(translator.engine.model.parameters()).device
    maps = attention_maps(translator.engine.model, batch.source.to(device), batch.target_in.to(device))
    bos, eos = [SPECIAL_PIECES[BOS_ID]], [SPECIAL_PIECES[EOS_ID]]
    tokens = {
        "encoder": ("Encoder self-attention", source + eos, source + eos),
        "decoder": ("Decoder self-attention", bos + target, bos + target),
        "cross": ("Cross-attention", target + eos, source + eos),
    }
    kinds = {
        name: Heads(title, torch.cat(layers).float().cpu(), queries, keys)  # each layer's batch is of one
        for (name, (title, queries, keys)), layers in zip(tokens.items(), maps, strict=True)
        if layers
    }
    return Attended(sentence, translation, kinds, translator.unicode_form, len(tags))


def word_alignment(translator: Translator, translation: Translation) -> list[tuple[int, int]]:
    """Pairs of words of a text and its translation, by their numbers between blanks, from 0. Each of its parts is
    aligned by itself, as it was translated; what stayed as it is, word by word.

    Raises:
        ValueError: the model has no attention.
    """
    parts = translation.parts
    firsts = (_first_words(texts) for texts in ([part.source for part in parts], [part.target for part in parts]))
    found: set[tuple[int, int]] = set()
    for part, i, j in zip(parts, *firsts, strict=True):
        if not part.kept:
            links = _links(translator, part.source, part.target)
        else:
            links = [(word, word) for word in range(len(part.source.split()))] if part.source == part.target else []
        found.update((i + word, j + its) for word, its in links)
    return sorted(found)


def _links(translator: Translator, source: str, target: str) -> list[tuple[int, int]]:
    """None where one of them is blank, or, divided into pieces anew, has more than the model has positions."""
    [read], [written] = (
        translator.source_ids([source]),
        translator.tokenizers.target.encode([normalise(target, translator.unicode_form)]),
    )
    config, longest = translator.engine.model.config, max(len(read), len(written))
    if not read or not written or (config.positions == "learned" and longest >= config.max_positions):
        return []
    return attended(translator, source, target, replace(translator.search, max_source_tokens=longest)).alignment()


def _first_words(texts: Iterable[str]) -> Iterator[int]:
    """The number of the first word of each of these texts, which stand one after the other."""
    words, within = 0, False
    for text in texts:
        first = words - (within and not text[:1].isspace())  # it may go on with a word
        yield first
        if text:
            words, within = first + len(text.split()), not text[-1].isspace()


def _encode(
    translator: Translator, tokenizer: Tokenizer, what: str, text: str, search: SearchConfig
) -> tuple[list[int], list[str]]:
    """Ids of the pieces of a text, and the pieces; one that the model does not know is marked."""
    text = normalise(text, translator.unicode_form)
    (ids,) = tokenizer.encode([text])
    require(
        len(ids) <= search.max_source_tokens,
        f"the {what} has {len(ids)} tokens, more than search.max_source_tokens={search.max_source_tokens}, and is not "
        "looked at as a whole: give a shorter one, or raise that",
    )
    pieces = tokenizer.processor.encode(text, out_type=str)
    unknown = SPECIAL_PIECES[UNK_ID]
    return ids, [f"{piece} {unknown}" if id == UNK_ID else piece for piece, id in zip(pieces, ids, strict=True)]
