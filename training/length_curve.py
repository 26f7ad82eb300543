"""How long rollouts get, as the last complete step had them; and what a set of running ones will need at most.

A rollout's length is in tokens past its prompt: sampled ones, tool results. Of the rollouts that have `x` tokens
now, the share `S(x + h) / S(x)` will be there when each of them has `h` more; `S` is the survival curve. Lengths of the
rollouts that have finished *so far* are biased to the short ones, which is why a step counts only when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_agent.errors import ConfigError

__all__ = ["Floats", "LengthCurve", "PeakTable", "highest"]

Floats = NDArray[np.floating]

HORIZONS = 20
"""Moments ahead at which the need is computed, from now to the longest length."""
_BUCKETS = 512
"""Lengths are told apart as far as one in so many of the longest."""


@dataclass(frozen=True)
class LengthCurve:
    """The survival curve of final lengths, from all rollouts of one step."""

    lengths: tuple[int, ...]
    """Final lengths in tokens past the prompt, ascending."""

    @classmethod
    def of(cls, lengths: Iterable[int]) -> LengthCurve:
        """Raises `ConfigError` for none, or for a negative one."""
        found = tuple(sorted(int(length) for length in lengths))
        if not found or found[0] < 0:
            raise ConfigError(
                "A curve of lengths needs at least one length, and none below 0.",
                "Leave the lengths out where there are none yet: the first step then does without.",
            )
        return cls(found)

    @property
    def longest(self) -> int:
        """Tokens past the prompt; at least 1."""
        return max(1, self.lengths[-1])

    @property
    def mean(self) -> float:
        """Tokens past the prompt; at least 1."""
        return max(1.0, sum(self.lengths) / len(self.lengths))

    def survival(self, tokens: Floats) -> Floats:
        """Share of rollouts that get longer than `tokens`, of any shape; never 0, since a later one may."""
        longer = len(self.lengths) - np.searchsorted(np.asarray(self.lengths), tokens, side="right")
        return (longer + 0.5) / (len(self.lengths) + 0.5)


class PeakTable:
    """For each length a rollout may have now: mean and variance of the tokens it holds at each horizon.

    One row of numbers a rollout, so that what an engine will hold is a sum of rows: a decision costs a rollout's row
    where nothing else has changed, and one gather over the engine's own rollouts where something has.
    """

    def __init__(self, curve: LengthCurve) -> None:
        self._width = max(1.0, curve.longest / _BUCKETS)
        now = (np.arange(2 * _BUCKETS + 1) * self._width)[:, None]
        ahead = np.arange(HORIZONS)[None, :] * (curve.longest / HORIZONS)
        alive = curve.survival(now + ahead) / curve.survival(now)
        tokens = now + ahead
        self._rows_B2H: Floats = np.stack([tokens * alive, tokens**2 * alive * (1 - alive)], axis=1)

    def row(self, tokens: float) -> Floats:
        """Of one rollout that has `tokens` past its prompt: (mean and variance, horizon)."""
        return self._rows_B2H[min(int(tokens / self._width), len(self._rows_B2H) - 1)]

    def total(self, tokens: Sequence[float]) -> Floats:
        """Of several: (mean and variance, horizon)."""
        found = (np.array(tokens, np.float64) / self._width).astype(np.int64)
        return self._rows_B2H[np.minimum(found, len(self._rows_B2H) - 1)].sum(axis=0)


def highest(total_2H: Floats, deviations: float) -> float:
    """The most tokens over all horizons, `deviations` standard deviations above the mean."""
    return float((total_2H[0] + deviations * np.sqrt(total_2H[1])).max())
