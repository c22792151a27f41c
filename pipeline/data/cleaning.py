"""One normalisation for all text, and named rules that drop training pairs, each counted."""

import re
import unicodedata

CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff]")
"""Control characters that are not white space, byte order marks, and halves of surrogate pairs."""

IGNORABLE = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
IGNORABLE += "\u3164\ufe00-\ufe0f\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"
VISIBLE = re.compile(rf"[^\s{IGNORABLE}]")
"""What is neither white space nor of Unicode's property Default_Ignorable_Code_Point."""

# Joiners stay at a word's end: Malayalam and Sinhala spell with them. So do the tags that end a flag.
ENDS = "[\\s\u00ad\u180e\u200b\u200e\u200f\u2060]+"
OUTSIDE = re.compile(f"^{ENDS}|{ENDS}$")


def normalise(text: str, unicode_form: str = "NFC") -> str:
    """The text as the model sees it, in training and in translating alike; applying it twice changes nothing.

    Control characters and byte order marks go, every run of white space (line and paragraph separators and
    no-break blanks too) becomes one blank, and blank or zero-width characters go from both ends. A text
    without a visible character is empty.
    """
    text = CONTROLS.sub("", text)
    if unicode_form != "none":
        text = unicodedata.normalize(unicode_form, text)
    text = OUTSIDE.sub("", " ".join(text.split()))
    return text if VISIBLE.search(text) else ""
