"""Reflection tokens: tokens of high entropy among the first that a policy samples after a tool
response.

There the policy reads the result of its code; the paper observes that it checks the result, or
turns to repair. So the tables are separated by the response: after responses of which one failed
through the policy's fault, and after others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hrm_agent.training.analysis.entropy import After, CallEntropy
from hrm_agent.training.analysis.forking import Texts, TokenRow, forking_indices, token_rows

__all__ = ["ReflectionReport", "reflection_indices", "reflections"]

WINDOW = 16
"""Number of completion tokens after a tool response that are searched."""


@dataclass(frozen=True, slots=True)
class ReflectionReport:
    """First tokens sampled after tool responses of one kind."""

    after: After
    """Kind of response: `ok` or `error`. For comparison, `none` has the first tokens of calls after
    no tool response.
    """
    calls: int
    """Number of calls that begin after such responses."""
    tokens: int
    """Number of their first completion tokens, within the window."""
    mean_entropy: float
    """Mean entropy of those tokens, in nats (nan without any)."""
    marked_share: float
    """Share of those tokens above the threshold of forking tokens (nan without any)."""
    entropy_by_place: tuple[float, ...]
    """Mean entropy of the first, second, ... completion token (nan if no call has that many)."""
    rows: tuple[TokenRow, ...]
    """Tokens above the threshold, by text."""


def first_places(call: CallEntropy, window: int = WINDOW) -> list[int]:
    """Indices of a call's first completion tokens."""
    return [int(place) for place in call.sampled[:window]]


def reflection_indices(call: CallEntropy, threshold: float, window: int = WINDOW) -> list[int]:
    """Indices of reflection tokens (empty for a call after no tool response)."""
    if call.after == "none":
        return []
    return sorted(set(first_places(call, window)) & set(forking_indices(call, threshold)))


def reflections(
    calls: Sequence[CallEntropy], texts: Texts, threshold: float, window: int = WINDOW
) -> list[ReflectionReport]:
    """Reports after failed tool responses, after others, and after none."""
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
