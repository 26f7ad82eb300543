"""Forking tokens: the tokens of highest entropy, at which a reasoning may go one way or another.

rStar2-Agent (arXiv 2508.20722, section 5.4) takes the fifth of all completion tokens with the
highest entropy. The threshold is that quantile of the tokens that were analysed, in nats, and
stands in the report: of a policy that is sure of nearly everything, it is low.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hrm_agent.training.analysis.entropy import CallEntropy

__all__ = ["Texts", "TokenExample", "TokenRow", "fork_threshold", "forking_indices", "token_rows"]

Texts = Mapping[str, Sequence[str]]
"""By call, the text of each of its tokens."""
ROWS = 30
EXAMPLES = 2
AROUND = 80
"""Characters of context on either side of an example."""
PART_OF_CHARACTER = "(part of a character)"


@dataclass(frozen=True, slots=True)
class TokenExample:
    """One place where a token stands."""

    trajectory_id: str
    """Its trajectory."""
    call_id: str
    """Its call."""
    index: int
    """Its place among the call's tokens."""
    entropy: float
    """In nats."""
    before: str
    """What stands before it in its call, cut where it is long."""
    text: str
    """The token."""
    after: str
    """What stands after it in its call, cut where it is long."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """All places of one token's text among the marked ones."""

    text: str
    """The token's text."""
    count: int
    """Marked places with this text."""
    share: float
    """Of all marked places."""
    mean_entropy: float
    """Over these places, in nats."""
    occurrences: int
    """All places with this text among those that could have been marked."""
    examples: tuple[TokenExample, ...]
    """Those of highest entropy."""


def fork_threshold(calls: Sequence[CallEntropy], share: float) -> float:
    """The entropy that a share of all completion tokens is above; nan without one."""
    values = [each.entropies[each.sampled] for each in calls]
    return (
        float(np.quantile(np.concatenate(values), 1 - share))
        if any(map(len, values))
        else float("nan")
    )


def forking_indices(call: CallEntropy, threshold: float) -> list[int]:
    """Places of a call's tokens above the threshold."""
    return [int(place) for place in call.sampled if call.entropies[place] > threshold]


def token_rows(
    calls: Sequence[CallEntropy],
    texts: Texts,
    marked: Callable[[CallEntropy], Sequence[int]],
    could_be: Callable[[CallEntropy], Sequence[int]] = lambda call: call.sampled.tolist(),
) -> list[TokenRow]:
    """The commonest texts of marked tokens first. `could_be`: places of a call that are counted as
    occurrences.
    """
    places: dict[str, list[tuple[CallEntropy, int]]] = defaultdict(list)
    seen: defaultdict[str, int] = defaultdict(int)
    for call in calls:
        for index in marked(call):
            places[_label(texts[call.call_id][index])].append((call, index))
        for index in could_be(call):
            seen[_label(texts[call.call_id][index])] += 1
    total = sum(map(len, places.values()))
    ordered = sorted(places.items(), key=lambda item: (-len(item[1]), item[0]))[:ROWS]
    return [_row(text, found, seen[text], total, texts) for text, found in ordered]


def _row(
    text: str, found: Sequence[tuple[CallEntropy, int]], seen: int, total: int, texts: Texts
) -> TokenRow:
    ordered = sorted(found, key=lambda place: -float(place[0].entropies[place[1]]))
    examples: dict[tuple[str, str], TokenExample] = {}
    for call, index in ordered:
        example = _example(call, index, texts[call.call_id])
        # siblings say the same: once is enough
        examples.setdefault((example.before, example.after), example)
        if len(examples) == EXAMPLES:
            break
    mean = float(np.mean([call.entropies[index] for call, index in found]))
    return TokenRow(text, len(found), len(found) / total, mean, seen, tuple(examples.values()))


def _example(call: CallEntropy, index: int, texts: Sequence[str]) -> TokenExample:
    before, after = "".join(texts[:index]), "".join(texts[index + 1 :])
    return TokenExample(
        trajectory_id=call.trajectory_id,
        call_id=call.call_id,
        index=index,
        entropy=float(call.entropies[index]),
        before=f"…{before[-AROUND:]}" if len(before) > AROUND else before,
        text=texts[index],
        after=f"{after[:AROUND]}…" if len(after) > AROUND else after,
    )


def _label(text: str) -> str:
    return text or PART_OF_CHARACTER
