"""Bound on the difference of engine and trainer log-probs, beyond which a step's rollouts belong to
another policy.

Engine and trainer are assumed to be one policy. `engine_difference`, the mean absolute difference
of their log-probs of the trained tokens, measures this. The bounds are well above the differences
of correct engines, and below those observed for wrong ones:

* float32: correct ones differ by 1e-7 to 1e-5; a cache of former weights made 1e-3, former weights
  1e-2;
* half precision: 0.016 between bfloat16 and float32 of one policy, and engines of the same dtype
  are no closer;
* 8 and 4 bits against unrounded weights: divergences of 0.0015 to 0.005 and 0.06 to 0.14 nats were
  measured, which are differences of about sqrt(KL): 0.04 to 0.07 and 0.25 to 0.37.

Small differences of weights are not detected by this, but by the proof of each publish. Tokens of
older weights differ by the training since, and are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hrm_agent.errors import ModelError

__all__ = ["difference_bound", "refuse_difference"]

_BY_DTYPE = {"float32": 5e-4}
_HALF, _EIGHT_BITS, _FOUR_BITS = 0.05, 0.15, 0.5
_EIGHT = ("8", "ptpc")
"""Parts of the names of quantizations to 8 bits. All others are coarser."""


def difference_bound(dtype: str, quantization: str = "") -> float:
    """Maximum `engine_difference` in nats for a dtype, and a quantization if given."""
    if quantization:
        return _EIGHT_BITS if any(sign in quantization for sign in _EIGHT) else _FOUR_BITS
    return _BY_DTYPE.get(dtype, _HALF)


def refuse_difference(
    row: Mapping[str, Any], formats: Mapping[str, float], limit: float | None
) -> None:
    """Raise `ModelError` if a step's engine and trainer differ too much to be one policy.

    `row`: metrics of the update. `formats`: number formats of trainer and engines, with the bound
    of each.
    """
    found, oldest = float(row["engine_difference"]), float(row["staleness_max"])
    bound = limit if limit is not None else max(formats.values())
    if math.isnan(found) or found <= bound or oldest > 0:
        return
    raise ModelError(
        f"Engine and trainer are not the same policy: engine_difference is {found:.2g} nats, and"
        f" {bound:g} is allowed in {' and '.join(formats)}. This step was not kept.",
        "Its rollouts are on record: look at what sampled them, and at docs/metrics.md for what a"
        " difference may come from. To go on all the same, resume with --engine-difference-limit"
        " and a number above it.",
    )
