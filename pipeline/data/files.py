"""Names of files in a configuration, with ``*`` and ``?`` in them."""

import glob
import re


def expand(names: list[str]) -> list[str]:
    """The files that the names stand for, sorted for each name; ``ValueError`` where there is none."""
    return [file for name in names for file in _matches(name)]


def expand_couples(names: list[str]) -> list[str]:
    """The same of names that come in couples, source then target, as does the result.

    ``part-*.en`` and ``part-*.de`` stand for the couples in which ``*`` is the same text.
    """
    if len(names) % 2:
        raise ValueError(f"corpora: {names[-1]} has no partner: files come in couples, source then target")
    files = []
    for couple in zip(names[::2], names[1::2], strict=True):
        source, target = ({_wildcards(name, file): file for file in _matches(name)} for name in couple)
        if len(source) + len(target) > 2:
            for wildcards, file in (source | target).items():
                if wildcards not in source or wildcards not in target:
                    raise ValueError(f"corpora: {file} has no partner among {couple[0]} and {couple[1]}: add it")
        else:
            target = dict(zip(source, target.values(), strict=True))
        files += [file for wildcards in source for file in (source[wildcards], target[wildcards])]
    return files


def _matches(name: str) -> list[str]:
    if not _is_pattern(name):
        return [name]
    found = sorted(glob.glob(name.replace("[", "[[]")))
    if not found:
        raise ValueError(f"corpora: no file is named like {name}: correct the name")
    return found


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _wildcards(name: str, file: str) -> tuple[str, ...]:
    """What stands for each ``*`` and ``?``."""
    pattern = re.escape(name).replace(r"\*", "(.*)").replace(r"\?", "(.)")
    found = re.fullmatch(pattern, file, re.DOTALL)
    return found.groups() if found and _is_pattern(name) else ()
