"""Whether an engine samples with the weights that it was given: proved after each publish, never assumed.

Ways to hand weights to a server answer "done" and are wrong in silence: a server that was asleep wakes with what it had
(huggingface/trl issue 5312), an output layer tied to the embedding keeps another (pytorch/torchtitan PR 2402). Then a
training goes on, on samples of another policy, and its curves only look a little worse. Three things are held against
the trainer:

* the log-probs of a fixed text, which the server computes without its cache;
* the log-probs of fresh samples, which took the way of every rollout: prefill, cache, decoding, sampler;
* the tensors, layer by layer (`hrm_agent/models/vllm/in_server/hrm_agent_weights.py`): that says *which* are wrong.

How far log-probs may differ depends on the dtype of the server's weights. In float32 the largest difference counts. In
half precision single tokens differ by up to 0.8 with equal weights, so there the mean does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hrm_agent.errors import ModelError

__all__ = ["PROBE_TEXT", "LogprobDifference", "OtherWeightsError", "ScoredText", "refuse_other_weights"]

PROBE_TEXT = (
    "A tank holds 1200 L. It leaks 2% per hour for 3 hours, then is refilled by 150 L. Let me compute: "
    "1200 * 0.98 ** 3 = 1129.43, and 1129.43 + 150 = 1279.43. def f(x): return x * 17 + 23 # check"
)
_FLOAT32 = 1e-4
_HALF = 5e-2
_NAMED = 8


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text and its log-probs by the trainer."""

    token_ids: tuple[int, ...]
    """The whole text."""
    logprobs: tuple[float, ...]
    """Of its last tokens, as many as there are."""


@dataclass(frozen=True, slots=True)
class LogprobDifference:
    """How far an engine's log-probs are from the trainer's."""

    largest: float
    """Over all tokens that were compared."""
    mean: float
    """Mean of the absolute differences."""

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> LogprobDifference:
        """Of log-probs of the same tokens."""
        apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        return cls(max(apart, default=0.0), fmean(apart) if apart else 0.0)


class OtherWeightsError(ModelError):
    """An engine samples with other weights than those that it was given."""


def refuse_other_weights(
    where: str, version: int, dtype: str, tolerance: float | None, found: LogprobDifference, differing: Sequence[str]
) -> None:
    """Raise `OtherWeightsError` where an engine does not sample with the weights of `version`. `where`: its address.

    `tolerance`: how far log-probs may differ; None: by dtype. `differing`: tensors that are known to; one that differs
    by less than log-probs show is refused, too.
    """
    exact = dtype == "float32"
    tolerance = tolerance if tolerance is not None else _FLOAT32 if exact else _HALF
    measured = found.largest if exact else found.mean
    if measured <= tolerance and not differing:
        return
    named = ", ".join(differing[:_NAMED]) + (f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else "")
    tensors = f"It differs in: {named}." if differing else "No tensor is known to differ."
    raise OtherWeightsError(
        f"The engine at {where} does not sample with the weights of version {version}: log-probs differ by "
        f"{measured:.2g} {'at most' if exact else 'on average'}, and {tolerance:g} is allowed in {dtype}. {tensors}",
        "Nothing was trained on its samples. Look at how the server was started and at what it says; then resume.",
    )
