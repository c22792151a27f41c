"""What comes in to be translated and what goes out: lines of text, or of JSON objects that keep their other fields.

A JSON object goes out as the text it came in, with fields added at its end: numbers, escapes and order stay as they
were written.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pipeline.config import SearchConfig, require
from pipeline.data.cleaning import normalise
from pipeline.data.lines import read_lines, shown
from pipeline.inference.attention import word_alignment
from pipeline.inference.engine import TorchEngine
from pipeline.inference.translation import Sentence, Translation
from pipeline.inference.translator import Translator
from pipeline.inference.vocabulary import occurs


class Row(NamedTuple):
    sentence: Sentence

    json: str = ""
    """The object it stands in, or is to stand in; none for a line of text, and for a blank line among objects."""


class Rows(NamedTuple):
    """Consecutive rows of an input."""

    first: int
    """The number of the first one, from 1."""

    rows: list[Row]


class Answer(NamedTuple):
    text: str
    """Lines with their ends."""

    rows: int
    """How many rows they answer."""


@dataclass(frozen=True)
class Form:
    """How rows are read, and what is written of each."""

    json_in: bool = False
    """Every line is a JSON object."""

    json_out: bool = False

    source_column: str = "source"
    """The field that holds the text, or a dotted path to one inside."""

    nbest: int = 1

    scores: bool = False

    add: list[str] = field(default_factory=list)
    """More fields for JSON objects: ``tokens``, ``alignment``, ``missing_terms``, ``missing_prefix``."""

    @classmethod
    def chosen(cls, format: str, path: str, json_out: bool, *options) -> "Form":
        """``auto`` among the formats is ``jsonl`` where the path ends so; objects in are objects out.

        Raises:
            ValueError: text has no columns.
        """
        json_in = format == "jsonl" or (format == "auto" and path.removesuffix(".gz").endswith(".jsonl"))
        form = cls(json_in, json_out, *options)
        require(
            json_in or form.source_column == "source",
            f"--source_column={form.source_column} is of JSON objects, and the input is text: give --format jsonl too, "
            "or neither",
        )
        return replace(form, json_out=json_in or json_out or bool(form.add))

    @property
    def fields(self) -> list[str]:
        """What is added to an object."""
        scores = ["score", "finished"] if self.scores else []
        return ["translation", *scores, *(["nbest"] if self.nbest > 1 else []), *self.add]

    def read(self, path: str) -> Iterator[Row]:
        """The rows of a file, or of the standard input (``-``).

        Raises:
            ValueError, OSError: as ``read_lines``; a line is no object with a text, a ``prefix`` that is a text and
                ``terms`` that are a list of texts, or has a field twice, or one that is to be added.
        """
        for number, line in enumerate(read_lines(path), 1):
            yield self.row(line, f"{shown(path)}, line {number}")

    def row(self, line: str, place: str) -> Row:
        """What a line says; ``place`` tells where it stands."""
        if not self.json_in:
            made = json.dumps({self.source_column: line}, ensure_ascii=False) if self.json_out else ""
            return Row(Sentence(line, place=place), made)
        if not line.strip():
            return Row(Sentence(""))
        given = _object(line, place)
        if taken := [name for name in self.fields if name in given]:
            raise ValueError(f"{place}: there is a field {taken[0]} already, which is to be added: rename it")
        prefix, terms = given.get("prefix"), given.get("terms")
        sentence = Sentence(
            _text(_inside(given, self.source_column, place), self.source_column, place),
            "" if prefix is None else _text(prefix, "prefix", place),
            () if terms is None else tuple(_text(term, "terms", place) for term in _list(terms, "terms", place)),
            place,
        )
        return Row(sentence, line.strip())

    def answer(self, translator: Translator, rows: Rows, search: SearchConfig) -> Answer:
        sentences = [row.sentence for row in rows.rows]
        found = translator.hypotheses(sentences, search, self.nbest)
        lines = [
            self._lines(number, *each, translator)
            for number, each in enumerate(zip(rows.rows, found, strict=True), rows.first)
        ]
        return Answer("".join(lines), len(lines))

    def _lines(self, number: int, row: Row, found: list[Translation], translator: Translator) -> str:
        if self.json_out:
            if not row.json:
                return "\n"
            added = {name: FIELDS[name](row.sentence, found, translator) for name in self.fields}
            return f"{row.json[:-1].rstrip()}, {json.dumps(added, ensure_ascii=False)[1:]}\n"
        if self.scores or self.nbest > 1:
            return "".join(
                f"{number}\t{each.score:.4f}\t{'end' if each.finished else 'limit'}\t{each.text}\n" for each in found
            )
        return f"{found[0].text}\n"


def typed(sentences: Iterable[str], form: Form) -> Iterator[Row]:
    """Rows of the command line's arguments, which are UTF-8 whatever the locale has made of them."""
    for number, sentence in enumerate(sentences, 1):
        try:
            text = os.fsencode(sentence).decode()
        except UnicodeDecodeError as error:
            wrong = error.object[error.start]
            raise ValueError(f"sentence {number}: byte 0x{wrong:02x} is not utf-8: convert it to UTF-8") from None
        yield form.row(text, f"sentence {number}")


def _object(line: str, place: str) -> dict:
    """The fields of a JSON object, and of objects in it as couples; of their values only texts matter."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{place}: {constant} is no JSON, whatever Python writes: write null")

    try:
        # A number as a float: as an int it may have too many digits for Python.
        fields = json.loads(line, object_pairs_hook=tuple, parse_int=float, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{place}, character {error.pos + 1}: {error.msg}: every line must be one JSON object"
        ) from None
    except RecursionError:
        raise ValueError(f"{place}: nested too deeply: make it simpler") from None
    if not isinstance(fields, tuple):
        raise ValueError(f'{place} is no JSON object: write one like {{"source": "a sentence"}}')
    given = dict(fields)
    for name, _ in fields if len(given) < len(fields) else ():
        if [other for other, _ in fields].count(name) > 1:
            raise ValueError(f"{place}: there are two fields {name}: leave one")
    return given


def _inside(given: dict, path: str, place: str) -> object:
    """The value of a field, or of the field that a dotted path leads to."""
    if path in given:
        return given[path]
    value: object = tuple(given.items())
    for name in path.split("."):
        if not isinstance(value, tuple) or name not in (inside := dict(value)):
            raise ValueError(
                f"{place}: there is no field {path}: correct the row, or name the field that holds the text by "
                "--source_column"
            )
        value = inside[name]
    return value


def _list(value: object, name: str, place: str) -> list:
    require(isinstance(value, list), f'{place}: {name} is no list: write one like ["a", "b"], or null')
    return value


def _text(value: object, name: str, place: str) -> str:
    if not isinstance(value, str):
        found = "null" if value is None else {float: "a number", bool: "true or false"}.get(type(value), "no text")
        raise ValueError(f"{place}: {found} in {name} where text is needed: correct the row")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{place}: half of a surrogate pair in {name} is not text: correct the row")
    return value


def _score(score: float) -> float | None:
    return round(score, 4) if math.isfinite(score) else None


def _tokens(sentence: Sentence, found: list[Translation], translator: Translator) -> list[str]:
    return translator.tokenizers.target.processor.id_to_piece(list(found[0].ids))


def _alignment(sentence: Sentence, found: list[Translation], translator: Translator) -> str:
    require(
        isinstance(translator.engine, TorchEngine),
        "alignment is read from one model's attention: name a run or model folder, and only one",
    )
    return " ".join(f"{i}-{j}" for i, j in word_alignment(translator, found[0]))


def _missing_terms(sentence: Sentence, found: list[Translation], translator: Translator) -> list[str]:
    return [term for term in sentence.terms if not occurs(normalise(term, translator.unicode_form), found[0].text)]


def _missing_prefix(sentence: Sentence, found: list[Translation], translator: Translator) -> str:
    prefix = normalise(sentence.prefix, translator.unicode_form)
    return "" if found[0].text.startswith(prefix) else sentence.prefix


FIELDS = {
    "translation": lambda sentence, found, *_: found[0].text,
    "score": lambda sentence, found, *_: _score(found[0].score),
    "finished": lambda sentence, found, *_: found[0].finished,
    "nbest": lambda sentence, found, *_: [
        {"text": each.text, "score": _score(each.score), "finished": each.finished} for each in found
    ],
    "tokens": _tokens,
    "alignment": _alignment,
    "missing_terms": _missing_terms,
    "missing_prefix": _missing_prefix,
}
"""What may be added to an object."""
