"""Why a training pair is dropped: a rule makes a test of normalised pairs from settings, or none where it is off."""

import re
import unicodedata
from collections.abc import Callable

import regex

from pipeline.data.config import CleaningConfig
from pipeline.data.languages import has_blanks, identifier, known_as, scripts_of

Breaks = Callable[[str, str], bool]
"""True for a source and a target that are to be dropped."""

Languages = tuple[str, str]
"""Of the source and of the target."""

NOT_LETTERS = regex.compile(r"[^\p{L}\p{M}\p{Cf}\s]")
DIGITS = re.compile(r"\d+")
THOUSANDS = re.compile(r"(?<!\d)\d{1,3}([.,'’٬ ])\d{3}(?:\1\d{3})*(?!\d)")
LINK = re.compile(r"(?:https?://|www\.)[!-~]+|(?<![\w.%+-])[\w.%+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII | re.IGNORECASE)

IDENTIFIED = slice(100)
"""The characters by which a text's language is told: more take longer, and tell no more."""


def empty(config: CleaningConfig, languages: Languages) -> Breaks:
    """A side has no visible character."""
    return lambda source, target: not (source and target)


def too_short(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """A side has fewer than ``min_characters``."""
    least = config.min_characters
    return (lambda source, target: len(source) < least or len(target) < least) if least > 1 else None


def too_long(config: CleaningConfig, languages: Languages) -> Breaks:
    """A side has more than ``max_characters``."""
    most = config.max_characters
    return lambda source, target: len(source) > most or len(target) > most


def too_many_words(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """A side has more than ``max_words``."""
    most = config.max_words
    return _either([(lambda text: text.count(" ") >= most) if has_blanks(code) else None for code in languages], most)


def length_ratio(config: CleaningConfig, languages: Languages) -> Breaks:
    """The longer side has more than ``max_length_ratio`` times the other's characters, ten added to both."""
    most = config.max_length_ratio

    def breaks(source: str, target: str) -> bool:
        one, other = len(source) + 10, len(target) + 10
        return one > most * other or other > most * one

    return breaks


def word_ratio(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """A side has more than ``max_word_ratio`` times the other's words, three added to both."""
    most = config.max_word_ratio

    def breaks(source: str, target: str) -> bool:
        one, other = source.count(" ") + 4, target.count(" ") + 4
        return one > most * other or other > most * one

    return breaks if most and all(map(has_blanks, languages)) else None


def identical_sides(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """Both sides are the same text."""
    return (lambda source, target: source == target) if config.drop_identical else None


def few_letters(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """Less than ``min_letter_share`` of a side's visible characters are letters, with their marks."""
    least = config.min_letter_share

    def breaks(text: str) -> bool:
        visible = len(text) - text.count(" ")
        return visible - len(NOT_LETTERS.findall(text)) < least * visible

    return _either([breaks, breaks], least)


def wrong_script(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """More than ``max_foreign_letters`` of a side's letters are of scripts that its language is not written in."""
    most = config.max_foreign_letters

    def side(scripts: list[str]) -> Callable[[str], bool] | None:
        own = "".join(rf"--\p{{Script_Extensions={script}}}" for script in ["Common", "Inherited", *scripts])
        foreign = regex.compile(rf"[\p{{L}}{own}]", regex.VERSION1)

        def breaks(text: str) -> bool:
            if text.isascii() and "Latin" in scripts:
                return False
            count = len(foreign.findall(text))
            return count > 0 and count > most * sum(map(str.isalpha, text))

        return breaks if scripts else None

    return _either([side(scripts_of(code)) for code in languages], most < 1)


def repeated_characters(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """A character stands more than ``max_repeated_characters`` times in a row."""
    search = re.compile(rf"(\S)\1{{{config.max_repeated_characters}}}").search
    return _either([search, search], config.max_repeated_characters)


def repeated_words(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """One to three words together stand more than ``max_repeated_words`` times in a row."""
    most = config.max_repeated_words

    def breaks(text: str) -> bool:
        words = text.split(" ")
        if len(words) - len(set(words)) < most:
            return False
        return any(_longest_run(words, distance) >= distance * most for distance in (1, 2, 3))

    return _either([breaks if has_blanks(code) else None for code in languages], most)


def numbers_differ(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """The sides hold different numbers, whether signs between digits are read as thousands' (1,000 and 1000) or not
    (2.5 and 2,5)."""

    def breaks(source: str, target: str) -> bool:
        if not (DIGITS.search(source) or DIGITS.search(target)):
            return False
        return _numbers(source) != _numbers(target) and (
            _numbers(THOUSANDS.sub(_together, source)) != _numbers(THOUSANDS.sub(_together, target))
        )

    return breaks if config.numbers_match else None


def links_differ(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """The sides hold different URLs or e-mail addresses."""
    return (lambda source, target: _links(source) != _links(target)) if config.links_match else None


def wrong_language(config: CleaningConfig, languages: Languages) -> Breaks | None:
    """A side of 20 characters or more is in its language with less than ``min_language_probability``."""
    least = config.min_language_probability

    def side(language: str) -> Callable[[str], bool]:
        code, classify, rank = known_as(language), identifier().classify, identifier().rank

        def breaks(text: str) -> bool:
            if len(text) < 20:
                return False
            best, probability = classify(text[IDENTIFIED])
            if best != code and probability > 1 - least:
                return True
            return (probability if best == code else dict(rank(text[IDENTIFIED]))[code]) < least

        return breaks

    return _either([side(language) for language in languages], least) if least else None


RULES: dict[str, Callable[[CleaningConfig, Languages], Breaks | None]] = {
    rule.__name__: rule
    for rule in (
        empty,
        too_short,
        too_long,
        too_many_words,
        length_ratio,
        word_ratio,
        identical_sides,
        repeated_characters,
        repeated_words,
        few_letters,
        wrong_script,
        numbers_differ,
        links_differ,
        wrong_language,
    )
}
"""By name, in the order in which they are asked, dear ones last; the first one that applies counts."""


def _either(sides: list[Callable[[str], object] | None], on: object) -> Breaks | None:
    """A test of both sides from one for each, of which either may be missing."""
    if not on or not any(sides):
        return None
    one, other = (side or (lambda text: False) for side in sides)
    return lambda source, target: bool(one(source) or other(target))


def _longest_run(words: list[str], distance: int) -> int:
    """Of words in a row that are the same as the one so far before."""
    longest = run = 0
    for earlier, word in zip(words, words[distance:], strict=False):
        run = run + 1 if word == earlier else 0
        longest = max(longest, run)
    return longest


def _numbers(text: str) -> list[str]:
    return sorted(_western(number).lstrip("0") for number in DIGITS.findall(text))


def _western(number: str) -> str:
    return number if number.isascii() else "".join(str(unicodedata.decimal(digit)) for digit in number)


def _together(number: re.Match[str]) -> str:
    return number[0].replace(number[1], "")


def _links(text: str) -> list[str]:
    if "@" not in text and "://" not in text and "www." not in text:
        return []
    return sorted(link.lower().rstrip(".,;:!?)]}>'\"/") for link in LINK.findall(text))
