"""Bound on the difference of engine and trainer log-probs, beyond which a step's rollouts belong to
another policy.

Engine and trainer are assumed to be one policy. `engine_difference`, the mean absolute difference
of their log-probs of the trained tokens, tests this assumption. The bounds are well above the
differences of correct engines, and below the differences observed for wrong engines:

* float32: correct engines differ by 1e-7 to 1e-5. A cache of former weights made a difference of
  1e-3, and former weights 1e-2.
* half precision: bfloat16 and float32 of one policy differ by 0.016, and two engines of the same
  half precision differ as much.
* 8 and 4 bits against unrounded weights: measured divergences were 0.0015 to 0.005 and 0.06 to 0.14
  nats. The difference is about sqrt(KL), that is 0.04 to 0.07 and 0.25 to 0.37.

Small differences of weights stay below these bounds; the proof of each publish detects them. Tokens
that older weights sampled differ because of the training since then, so a step with such tokens is
not checked.
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
"""Parts of names of quantizations to 8 bits. A name without such a part is taken as 4 bits."""


def difference_bound(dtype: str, quantization: str = "") -> float:
    """Maximum `engine_difference` in nats for a dtype, and a quantization if given."""
    if quantization:
        return _EIGHT_BITS if any(sign in quantization for sign in _EIGHT) else _FOUR_BITS
    return _BY_DTYPE.get(dtype, _HALF)


def refuse_difference(
    row: Mapping[str, Any], formats: Mapping[str, float], limit: float | None
) -> None:
    """Raise `ModelError` if engine and trainer differ too much in a step to be one policy.

    `row`: metrics of the update. `formats`: number format of trainer or engine -> bound. `limit`:
    bound given by the user (None: the largest in `formats`).
    """
    found = float(row["engine_difference"])
    oldest = float(row["staleness_max"])
    bound = limit if limit is not None else max(formats.values())
    if math.isnan(found) or found <= bound or oldest > 0:
        return
    raise ModelError(
        f"Engine and trainer are not the same policy: engine_difference is {found:.2g} nats, but"
        f" only {bound:g} is allowed in {' and '.join(formats)}. This step was not kept.",
        "Its rollouts are on record. Check the engine that sampled them; docs/metrics.md lists"
        " causes of a difference. To go on all the same, resume with --engine-difference-limit"
        " and a number above the difference.",
    )
