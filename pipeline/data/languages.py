"""What is known of languages: the scripts they are written in, whether they are written with blanks, and which one a
text is in.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

SCRIPTS = {
    "Latin": "aa af ak an ast ay az bi bm br bs ca ceb ch co crh cs cy da de ee en eo es et eu ext ff fi fil fj fo fr "
    "fur fuv fy ga gcf gcr gd gl gn gsw guw gv ha haw hr hsb ht hu ia id ie ig ilo is it jv kab ki kl kmr ku kw la lb "
    "lg li lij ln lt ltg lv mg mh mi mos ms mt na nb nd nds nl nn no nr nso ny oc om pap pcm pl pt qu rm rn ro rw "
    "sc scn se sg sh sk sl sm sn so sq sr ss st su sv sw szl tet tk tl tn to tpi tr ts tt tw ty uz vec vi vo wa "
    "war wo xh yo zu",
    "Cyrillic": "ab av ba be bg bs ce chm cv kk ky mhr mk mn mrj myv os ru rue sah sh sr tg tt tyv udm uk uz",
    "Arabic": "ar arb ary arz azb ckb fa ku pnb ps sd sdh skr ug ur",
    "Hebrew": "hbo he iw yi",
    "Greek": "el grc",
    "Armenian": "hy hyw",
    "Georgian": "ka xmf",
    "Devanagari": "awa bho doi gom hi kok mag mai mr ne new sa sd",
    "Bengali": "as bn bpy mni",
    "Gurmukhi": "pa",
    "Gujarati": "gu",
    "Oriya": "or",
    "Tamil": "ta",
    "Telugu": "te",
    "Kannada": "kn tcy",
    "Malayalam": "ml",
    "Sinhala": "si",
    "Thai": "th",
    "Lao": "lo",
    "Khmer": "km",
    "Myanmar": "my shn",
    "Tibetan": "bo dz",
    "Ethiopic": "am ti",
    "Thaana": "dv",
    "Mongolian": "mn",
    "Han": "cmn ja ko lzh wuu yue zh",
    "Hiragana": "ja",
    "Katakana": "ja",
    "Hangul": "ko",
}
"""Scripts by their Unicode names, and the codes of languages written in them; in some cases in several."""

TAGS = {
    "Latn": ["Latin"],
    "Cyrl": ["Cyrillic"],
    "Arab": ["Arabic"],
    "Deva": ["Devanagari"],
    "Beng": ["Bengali"],
    "Ethi": ["Ethiopic"],
    "Hebr": ["Hebrew"],
    "Grek": ["Greek"],
    "Hans": ["Han"],
    "Hant": ["Han"],
    "Jpan": ["Han", "Hiragana", "Katakana"],
    "Kore": ["Hangul", "Han"],
}
"""Scripts that a code may name itself: ``sr-Latn``, ``zho_Hans``."""

WITHOUT_BLANKS = frozenset("bo cmn dz ja km lo lzh my shn th wuu yue zh zho jpn tha lao khm mya".split())
"""Languages that are written without blanks between words."""

SAME = {"nb": "no", "fil": "tl", "iw": "he", "cmn": "zh", "sh": "sr"}
"""Codes by which py3langid knows a language."""


def scripts_of(language: str) -> list[str]:
    """The scripts that a language is written in; none where they are not known."""
    primary, *subtags = re.split("[-_]", language)
    named = [TAGS[tag.title()] for tag in subtags if tag.title() in TAGS]
    return named[0] if named else [script for script, codes in SCRIPTS.items() if primary.lower() in codes.split()]


def has_blanks(language: str) -> bool:
    """Whether words are written with blanks between them."""
    return re.split("[-_]", language)[0].lower() not in WITHOUT_BLANKS


def known_as(language: str) -> str:
    """The code by which the identifier knows a language.

    Raises:
        ValueError: it does not know it.
    """
    primary = re.split("[-_]", language)[0].lower()
    code = SAME.get(primary, primary)
    if code not in identifier().labels:
        raise ValueError(
            f"cleaning.min_language_probability: the language {language} is not one of those that py3langid can tell: "
            "set it to 0, or name the language by its two-letter code"
        )
    return code


@cache
def identifier() -> LanguageIdentifier:
    """py3langid with its model, which takes a second to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
