"""Language tags (BCP 47) as files spell them."""


def language_matches(wanted: str, found: str) -> bool:
    """Whether one tag begins with the other: ``en`` is ``EN``, ``en-US`` and ``en_GB``."""
    return all(a == b for a, b in zip(_subtags(wanted), _subtags(found), strict=False))


def _subtags(language: str) -> list[str]:
    return language.lower().replace("_", "-").split("-")
