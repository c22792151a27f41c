"""Two Bibles aligned by verse: modules of the SWORD project, read with pysword, fetched as Debian packages."""

import html
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pysword.cleaner import GBFCleaner

from pipeline.data.config import CorpusConfig
from pipeline.data.packages import fetch
from pipeline.data.sword_modules import Module, Place, find_modules

TWICE = math.log(2)
INSTEAD = "or name a folder with SWORD modules (corpora.sword_folder), or files of your own (corpora.kind=text)"


class Row(NamedTuple):
    """One verse in both languages; ``fault`` says why it is not to be used."""

    source: str
    target: str
    group: str
    fault: str


def verse_pairs(corpora: CorpusConfig, names: list[str]) -> Iterator[Row]:
    """All verses of the books that both modules have, in order; a chapter is a group.

    Texts count verses differently in places. A verse on one side only, one more than twice as long as the other
    side makes usual, and all of a chapter whose lengths go twice as far apart as is usual are marked as faults.
    """
    source, target = (plain_verses(module) for module in _modules(corpora))
    shared = {book for book, _, _ in source} & {book for book, _, _ in target}
    places = [place for place in source | target if place[0] in shared and (source.get(place) or target.get(place))]
    both = [place for place in places if source.get(place) and target.get(place)]
    if not both:
        raise ValueError("corpora: the two SWORD modules have no verse in common: name other modules or packages")
    ratios = {place: math.log((10 + len(source[place])) / (10 + len(target[place]))) for place in both}
    usual = statistics.median(ratios.values())
    chapters: dict[tuple[str, int], list[float]] = {}
    for (book, chapter, _), ratio in ratios.items():
        chapters.setdefault((book, chapter), []).append(min(abs(ratio - usual), TWICE))
    spread = {chapter: statistics.mean(distances) for chapter, distances in chapters.items()}
    usual_spread = statistics.median(spread.values())
    for place in places:
        book, chapter, _ = place
        fault = ""
        if place not in ratios:
            fault = "verse_on_one_side"
        elif spread[book, chapter] > 2 * usual_spread:
            fault = "chapter_numbered_differently"
        elif abs(ratios[place] - usual) > TWICE:
            fault = "verses_differ"
        yield Row(source.get(place, ""), target.get(place, ""), f"{book} {chapter}", fault)


def module_files(corpora: CorpusConfig) -> list[Path]:
    """The files of both modules, which are fetched where they are missing."""
    return [path for module in _modules(corpora) for path in sorted(module.data.rglob("*")) if path.is_file()]


def _modules(corpora: CorpusConfig) -> tuple[Module, Module]:
    return (
        _module(corpora, "source", corpora.source_package, corpora.source_module),
        _module(corpora, "target", corpora.target_package, corpora.target_module),
    )


def _module(corpora: CorpusConfig, side: str, package: str, name: str) -> Module:
    folder = Path(corpora.sword_folder) if corpora.sword_folder else _shared(package)
    if not (folder / "mods.d").is_dir():
        raise ValueError(f"corpora.sword_folder={folder} has no mods.d: name the folder that holds mods.d and modules")
    modules = find_modules(folder)
    if not name and len(modules) == 1:
        (name,) = modules
    if name not in modules:
        raise ValueError(f"corpora.{side}_module={name}: set it to one of {', '.join(modules)} (in {folder})")
    return modules[name]


def _shared(package: str) -> Path:
    return fetch(package, "sword", INSTEAD) / "usr" / "share" / "sword"


def plain_verses(module: Module) -> dict[Place, str]:
    """All verses as text; those that the module does not have are empty."""
    plain = PLAIN.get(module.description.get("sourcetype", "").lower(), plain_text)
    return {place: " ".join(plain(text).split()) if text else "" for place, text in module.verses()}


# A psalm's title is canonical: many texts have it as the beginning of the first verse.
NOT_TEXT = re.compile(r'<(note|figure|speaker|title(?![^>]*canonical="true"))\b[^>]*(?<!/)>.*?</\1>', re.DOTALL)
AFTER_BOOK = re.compile(r'<div\b(?=[^>]*\btype="book")(?=[^>]*\beID=).*', re.DOTALL)
WITHIN_WORDS = re.compile(r"</?(?:w|q|transChange|seg|hi|divineName|foreign|name|a|abbr|inscription)\b[^>]*>")
TAG = re.compile("<[^>]*>")
# Words that translators added are often not set off by a blank, which is right only for a Spanish verb's pronouns.
GLUED = re.compile(r"(?<=\w)</(?:transChange><w|w><transChange)\b(?![^>]*>(?:l[aeo]s?|me|te|se|nos|os)</)(?=[^>]*>\w)")
STRAY_BLANK = re.compile(r" +(?=[,.;:!?)\]”])|(?<=[—(\[“¡¿]) +")


def plain_text(osis: str) -> str:
    """A verse of OSIS markup as text: without notes, headings and what follows the book's end, lines joined."""
    text = NOT_TEXT.sub(" ", AFTER_BOOK.sub("", osis))
    text = GLUED.sub(r" \g<0>", text)
    text = html.unescape(TAG.sub(" ", WITHIN_WORDS.sub("", text)))
    return STRAY_BLANK.sub("", " ".join(text.split()))


# pysword's own takes the cube of a text's length where such elements do not end.
THML_REFERENCE = re.compile(r"<(scripRef|scripCom)\b[^>]*>.*?</\1>", re.DOTALL)

PLAIN = {"gbf": GBFCleaner().clean, "thml": lambda thml: TAG.sub("", THML_REFERENCE.sub("", thml))}
"""What leaves a verse's text of the markups other than OSIS."""
