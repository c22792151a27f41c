"""Of all that a search finds, what is returned, and in which order."""

import re
from collections.abc import Sequence
from dataclasses import replace

from pipeline.config import SearchConfig
from pipeline.inference.risk import choose
from pipeline.inference.translation import Translation

WIDEST_BEAM = 100
"""Of a second search, for n-best lists in which equal texts have left room."""


def asked_for(search: SearchConfig, num_hypotheses: int) -> tuple[int, SearchConfig]:
    """How many hypotheses an engine is asked for, when so many translations are wanted, and by what search."""
    of_least_risk = search.minimum_bayes_risk != "none"
    if search.method == "sampling":
        return (max(search.candidates, num_hypotheses) if of_least_risk else num_hypotheses), search
    if of_least_risk and search.candidates > search.beam_size:
        groups = search.diverse_groups
        search = replace(search, beam_size=-(-search.candidates // groups) * groups)
    # Different pieces may spell the same text, or a banned one, so of a list the engine is asked for all it can give.
    return (search.beam_size if num_hypotheses > 1 or of_least_risk or search.banned else 1), search


def widened(search: SearchConfig) -> SearchConfig | None:
    """The search that looks for more, where a beam found too few translations that differ; None where there is none."""
    beam_size = 2 * search.beam_size
    return replace(search, beam_size=beam_size) if search.method == "beam" and beam_size <= WIDEST_BEAM else None


def best_first(
    translations: Sequence[Translation], search: SearchConfig, banned: re.Pattern | None, language: str
) -> list[Translation]:
    """Without banned ones, unless there are no others, and with the one of least risk at the front."""
    found = list(translations)
    if banned:
        found = [each for each in found if not banned.search(each.text)] or found
    if search.minimum_bayes_risk != "none":
        best = choose([each.text for each in found], search.minimum_bayes_risk, language)
        found = [found[best], *found[:best], *found[best + 1 :]]
    return found


def filled_up(found: Sequence[Translation], others: Sequence[Translation]) -> list[Translation]:
    """With others behind the first, as good as they are; what is better than the first would make it another one."""
    best, *rest = found
    texts = {each.text for each in found}
    new = [each for each in others if each.text not in texts and each.score <= best.score]
    return [best, *sorted(rest + new, key=lambda each: -each.score)]
