"""Reflection tokens: tokens of high entropy among the first that a policy samples after a tool
response.

There it reads what its code came to, and the paper finds it checking, or turning to repair. So the
tables are apart by what the response was: after responses of which one failed by the policy's
doing, and after others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hrm_agent.training.analysis.entropy import After, CallEntropy
from hrm_agent.training.analysis.forking import Texts, TokenRow, forking_indices, token_rows

__all__ = ["ReflectionReport", "reflection_indices", "reflections"]

WINDOW = 16
"""Completion tokens after a tool response that are looked at."""


@dataclass(frozen=True, slots=True)
class ReflectionReport:
    """What is sampled right after tool responses of one kind."""

    after: After
    """`ok` or `error`; `none` for the first tokens of calls that begin after no tool response, to
    compare with.
    """
    calls: int
    """Calls that begin after such responses."""
    tokens: int
    """First completion tokens of theirs that were looked at."""
    mean_entropy: float
    """Of those tokens, in nats; nan without one."""
    marked_share: float
    """Share of those tokens that is above the threshold of forking tokens; nan without one."""
    entropy_by_place: tuple[float, ...]
    """Mean entropy of the first, second, ... completion token; nan where no call has so many."""
    rows: tuple[TokenRow, ...]
    """Those above the threshold, by text."""


def first_places(call: CallEntropy, window: int = WINDOW) -> list[int]:
    """Places of a call's first completion tokens."""
    return [int(place) for place in call.sampled[:window]]


def reflection_indices(call: CallEntropy, threshold: float, window: int = WINDOW) -> list[int]:
    """Places of reflection tokens; none in a call that begins after no tool response."""
    if call.after == "none":
        return []
    return sorted(set(first_places(call, window)) & set(forking_indices(call, threshold)))


def reflections(
    calls: Sequence[CallEntropy], texts: Texts, threshold: float, window: int = WINDOW
) -> list[ReflectionReport]:
    """After responses that failed, after others, and after none."""
    return [
        _report(kind, [c for c in calls if c.after == kind], texts, threshold, window)
        for kind in _KINDS
    ]


_KINDS: tuple[After, ...] = ("error", "ok", "none")


def _report(
    kind: After, calls: Sequence[CallEntropy], texts: Texts, threshold: float, window: int
) -> ReflectionReport:
    def places(call: CallEntropy) -> list[int]:
        return first_places(call, window)

    def marked(call: CallEntropy) -> list[int]:
        return [place for place in places(call) if call.entropies[place] > threshold]

    values = (
        np.concatenate([call.entropies[places(call)] for call in calls]) if calls else np.zeros(0)
    )
    by_place = [
        [float(c.entropies[c.sampled[place]]) for c in calls if len(c.sampled) > place]
        for place in range(window)
    ]
    return ReflectionReport(
        after=kind,
        calls=len(calls),
        tokens=len(values),
        mean_entropy=float(values.mean()) if len(values) else float("nan"),
        marked_share=float((values > threshold).mean()) if len(values) else float("nan"),
        entropy_by_place=tuple(float(np.mean(each)) if each else float("nan") for each in by_place),
        rows=tuple(token_rows(calls, texts, marked, places)),
    )
