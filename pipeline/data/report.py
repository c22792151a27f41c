"""What a prepared corpus looks like, in numbers.

``report.json`` holds, besides the settings:

- ``languages``: by side, the codes of all that occur
- ``read``, ``pairs``: pairs by split, before and after
- ``stream_window``: as it was set; above 0 all figures of the training data are of the beginning of each corpus alone
- ``dropped``, ``examples``, ``repaired``, ``with_controls``: what cleaning did to the training data
- ``corpora``: the same of each training corpus: ``name``, ``read``, ``pairs``, ``dropped``, ``repaired``
- ``overlap``: training pairs, by the held-out split that they share a side with
- ``statistics``: by split, what ``summarise`` tells
- ``of_corpora``: the same of each of several training corpora, with its ``languages``
- ``tokens``: by split and side
- ``vocabulary``: of both sides together, or of each
- ``warnings``: the sentences of ``advice.advise``
- ``files``: of the data beside it, size and, of tokenizers, SHA-256
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.data.corpora import SPLITS
from pipeline.data.languages import identifier
from pipeline.data.statistics import Side, Statistics, TokenCounts
from pipeline.data.text import SIDES
from pipeline.data.tokenizer import SPECIAL_PIECES, UNK_ID, Tokenizer, Tokenizers

SHOWN = 40
"""Characters and pieces that a report lists, at most, of the most frequent and of the rarest."""

UNLIKE_THEIR_NAMES = {
    "Cjk": "Han",
    "Ideographic": "Han",
    "Katakana-hiragana": "Katakana",
    "Feminine": "Latin",
    "Masculine": "Latin",
    "Micro": "Greek",
    "Combining": "accents",
    "Modifier": "accents",
}
"""Scripts of letters, by the first words of their names where these say another."""

SIGNS = {
    "tokenised": re.compile(r"\w [,.](?: |$)|@-@|&apos;"),
    "markup": re.compile(r"</?[A-Za-z][^<>]*>|&(?:#\d+|amp|lt|gt|quot|nbsp);"),
    "mojibake": re.compile("[ÃÂ][\u0080-\u00bf]|â€|Ã[–—‘-„†-•…‰Œœ]|\ufffd"),
}
"""What text that is not plain looks like."""


def describe(
    statistics: Mapping[str, Statistics],
    tokens: Mapping[str, Mapping[str, TokenCounts]],
    tokenizers: Tokenizers,
    languages: Mapping[str, list[str]],
    corpora: Sequence[tuple[Mapping[str, list[str]], Statistics]] = (),
) -> dict[str, Any]:
    """The report's languages, statistics, tokens and vocabulary, from those of each split (and side); and what each of
    several training corpora looks like, from its languages and statistics."""
    unknown = {
        side: _unknown_characters(getattr(statistics["train"], side).alphabet, tokenizer)
        for side, tokenizer in zip(SIDES, tokenizers, strict=True)
    }
    return {
        "languages": dict(languages),
        "statistics": {name: summarise(of_split) for name, of_split in statistics.items()},
        "of_corpora": [{"languages": dict(codes), **summarise(of_corpus)} for codes, of_corpus in corpora],
        "tokens": {
            name: {side: _of_tokens(of_split[side], getattr(statistics[name], side)) for side in SIDES}
            for name, of_split in tokens.items()
        },
        "vocabulary": {"coverage": _vocabulary(tokens["train"], tokenizers), "unknown_characters": unknown},
    }


def summarise(statistics: Statistics) -> dict[str, Any]:
    """What is worth telling of some pairs. Languages and signs are shares of the sample."""
    sample = {side: [quote[1 + place] for quote in statistics.sample] for place, side in enumerate(SIDES)}
    return {
        "pairs": statistics.pairs,
        "ratio": statistics.ratio.as_dict(),
        "sampled": len(statistics.sample),
        "sample": [quote[1:] for quote in statistics.sample[:10]],
        "extremes": {name: [quote[1:] for quote in quotes] for name, quotes in statistics.extremes.items()},
    } | {side: _of_side(getattr(statistics, side), sample[side]) for side in SIDES}


def _of_side(side: Side, sample: list[str]) -> dict[str, Any]:
    by_frequency = side.alphabet.most_common()
    scripts: dict[str, list[int]] = {}
    for character, count in by_frequency:
        script = scripts.setdefault(script_of(character), [0, 0])
        script[0] += count
        script[1] += 1
    cased: Counter[str] = Counter()
    for character, count in by_frequency:
        cased[unicodedata.category(character)] += count
    return {
        "characters": side.characters.as_dict(),
        "words": side.words.as_dict(),
        "distinct_characters": len(by_frequency),
        "scripts": {
            name: {"characters": number, "distinct": distinct}
            for name, (number, distinct) in sorted(scripts.items(), key=lambda item: -item[1][0])
        },
        "frequent_characters": dict(by_frequency[:SHOWN]),
        "rare_characters": dict(by_frequency[SHOWN:][: -SHOWN - 1 : -1]),
        "capitals": cased["Lu"] / max(1, cased["Lu"] + cased["Ll"]),
        "languages": languages_of(sample),
        "signs": {name: sum(map(bool, map(sign.search, sample))) / max(1, len(sample)) for name, sign in SIGNS.items()},
    }


def script_of(character: str) -> str:
    """Latin, Cyrillic, Han, or what else a character is: digits, punctuation, symbols."""
    match unicodedata.category(character)[0]:
        case "L" | "M":
            words = unicodedata.name(character, "unnamed").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
            first = words.split()[0].capitalize()
            return UNLIKE_THEIR_NAMES.get(first, first)
        case "N":
            return "digits"
        case "P":
            return "punctuation"
        case "S":
            return "symbols"
    return "invisible"


def languages_of(texts: Iterable[str]) -> dict[str, float]:
    """Shares of the languages that texts of 20 bytes and more are in, as far as py3langid is sure."""
    guesses = [identifier().classify(text) for text in texts if len(text.encode("utf-8", "replace")) >= 20]
    found = Counter(language for language, probability in guesses if probability >= 0.5)
    return {language: count / found.total() for language, count in found.most_common(8)}


def _of_tokens(tokens: TokenCounts, side: Side) -> dict[str, Any]:
    total = int(tokens.lengths.total)
    return {
        "total": total,
        "mean": round(tokens.lengths.mean, 2),
        "longest": int(tokens.lengths.largest),
        "unknown_share": int(tokens.pieces[UNK_ID]) / max(1, total),
        "per_word": total / max(1, side.words.total),
        "characters_each": side.characters.total / max(1, total),
        "lengths": tokens.lengths.as_dict(),
    }


def _vocabulary(tokens: Mapping[str, TokenCounts], tokenizers: Tokenizers) -> dict[str, Any]:
    """How much of the vocabulary the training data uses."""
    if tokenizers.joint:
        return {"both": _coverage(tokens["source"].pieces + tokens["target"].pieces, tokenizers.source)}
    return {side: _coverage(tokens[side].pieces, getattr(tokenizers, side)) for side in SIDES}


def _coverage(counts: np.ndarray, tokenizer: Tokenizer) -> dict[str, Any]:
    processor = tokenizer.processor
    ids = range(len(SPECIAL_PIECES), len(counts))
    real = np.array([id for id in ids if not (processor.is_control(id) or processor.is_byte(id))], dtype=np.int64)
    ranked = real[np.argsort(-counts[real], kind="stable")]
    pieces = [(processor.id_to_piece(id), int(counts[id])) for id in ranked.tolist()]
    ranks = np.unique(np.geomspace(1, max(1, len(ranked)), 60).astype(int))[: len(ranked)]
    return {
        "pieces": len(ranked),
        "never": int((counts[real] == 0).sum()),
        "below_10": int((counts[real] < 10).sum()),
        "below_100": int((counts[real] < 100).sum()),
        "by_rank": [[rank, int(counts[ranked[rank - 1]])] for rank in ranks.tolist()],
        "frequent_pieces": dict(pieces[:SHOWN]),
        "rare_pieces": dict(pieces[SHOWN:][: -SHOWN - 1 : -1]),
    }


def _unknown_characters(alphabet: Counter[str], tokenizer: Tokenizer) -> dict[str, int]:
    """The characters that have no piece, the most frequent first."""
    characters = [character for character, _ in alphabet.most_common()]
    encoded = zip(characters, tokenizer.encode(characters), strict=True)
    return {character: alphabet[character] for character, ids in encoded if UNK_ID in ids}


def print_report(report: dict[str, Any]) -> None:
    """What became of the corpus, as a table on stderr, and the warnings."""
    table = Table("", *SPLITS, title="Prepared corpus")
    table.add_row("pairs", *(f"{report['pairs'][name]:,}" for name in SPLITS))
    for side in SIDES:
        for number, text in (("mean", "{:.1f}"), ("longest", "{:,}"), ("unknown_share", "{:.3%}")):
            values = (report["tokens"][name][side][number] for name in SPLITS)
            table.add_row(f"{side} tokens, {number.replace('_', ' ')}", *map(text.format, values))
    console = Console(stderr=True)
    console.print(table)
    read = f"{report['read']['train']:,} training pairs read"
    dropped = ", ".join(f"{count:,} {rule}" for rule, count in report["dropped"].items() if count) or "nothing"
    console.print(f"{read}, dropped: {dropped}", highlight=False, soft_wrap=True)
    sizes = " and ".join(f"{size:,}" for size in report["tokenizer"]["vocab_size"])
    console.print(
        f"vocabulary: {sizes} pieces; text normalised to {report['tokenizer']['unicode_form']}", highlight=False
    )
    for warning in report["warnings"]:
        console.print(f"[yellow]look:[/] {escape(warning)}", highlight=False, soft_wrap=True)
