"""Means with confidence intervals.

Repeated measurements of one unit (a problem, a question) are not independent, so units are
resampled, not measurements. Intervals are percentiles of the mean over units that are drawn with
replacement (Efron 1979), from a seed. If all units have the same value, such an interval has no
width, and Wilson's interval (1927) is used instead. Two systems that were measured on the same
units are compared by their differences per unit, which cancels the difficulty of a unit. A handful
of units, such as the seeds of a training, is too few to resample, and Student's t is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

__all__ = [
    "Estimate",
    "bootstrapped",
    "bootstrapped_share",
    "mean_interval",
    "wilson_interval",
]

_Z95 = 1.959963984540054
_T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
"""Percentiles (97.5th) of Student's t, by degrees of freedom from 1. With more degrees of freedom the
last one is used, which is slightly too large.
"""
_MOST_DRAWS = 2**22
"""Maximum number of values drawn at once. They take 32 MiB, however many units there are."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over units with its 95 % confidence interval."""

    value: float
    """Mean over the units."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


def bootstrapped(
    columns_MU: Sequence[Sequence[float]], *, seed: int, resamples: int, shares: bool = True
) -> list[Estimate]:
    """Mean of each of M measures over U units, with its interval (nan and (0, 1) without units).

    All measures share the draws. The draws depend on the order of the units, so the caller should
    sort them. `shares`: the measures are in [0, 1], so Wilson's interval is used if all units have
    the same value.
    """
    values_MU = np.asarray(columns_MU, dtype=float)
    units = values_MU.shape[1] if values_MU.ndim == 2 else 0
    if units == 0:
        return [Estimate(math.nan, 0.0, 1.0) for _ in columns_MU]
    found: list[Estimate] = []
    means_MR = _drawn_means(values_MU, seed, resamples)
    for values_U, means_R in zip(values_MU, means_MR, strict=True):
        value = math.fsum(values_U) / units
        low, high = _percentiles(means_R)
        if values_U.min() == values_U.max():
            # without the width that rounding gives to the means of equal values
            low, high = wilson_interval(value * units, units) if shares else (value, value)
        found.append(Estimate(value, low, high))
    return found


def bootstrapped_share(
    parts_U: Sequence[float], wholes_U: Sequence[float], *, seed: int, resamples: int
) -> Estimate:
    """Sum of the parts of U units over the sum of their wholes, which are at least 0, with its
    interval (nan and (0, 1) if that sum is 0).
    """
    whole = math.fsum(wholes_U)
    if not whole > 0:
        return Estimate(math.nan, 0.0, 1.0)
    value = math.fsum(parts_U) / whole
    parts_R, wholes_R = _drawn_means(np.asarray([parts_U, wholes_U], dtype=float), seed, resamples)
    low, high = _percentiles(parts_R[wholes_R > 0] / wholes_R[wholes_R > 0])
    if low == high and 0 <= value <= 1:
        low, high = wilson_interval(value * len(parts_U), len(parts_U))
    return Estimate(value, low, high)


def _drawn_means(values_MU: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """Means (measures, resamples) over units that are drawn with replacement."""
    measures, units = values_MU.shape
    rng = np.random.default_rng(seed)
    at_once = max(1, _MOST_DRAWS // units)
    means_MR = np.empty((measures, resamples))
    for first in range(0, resamples, at_once):
        times_RU = rng.multinomial(
            units, np.full(units, 1 / units), size=min(at_once, resamples - first)
        )
        means_MR[:, first : first + len(times_RU)] = values_MU @ times_RU.T / units
    return means_MR


def _percentiles(means_R: np.ndarray) -> tuple[float, float]:
    ordered_R = np.sort(means_R)
    resamples = len(ordered_R)
    lowest = int(0.025 * resamples)
    highest = min(resamples - 1, int(0.975 * resamples))
    return float(ordered_R[lowest]), float(ordered_R[highest])


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean of a few independent values with Student's interval (nan if there are fewer than two
    values).
    """
    mean = fmean(values) if values else math.nan
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan)
    t = _T95[min(len(values) - 1, len(_T95)) - 1]
    half = t * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def wilson_interval(successes: float, trials: int, z: float = _Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion, (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    # by rounding, the share could lie outside of its own interval
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))
