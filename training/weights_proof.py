"""Whether an engine samples with the weights that it was given: proved after each publish, never assumed.

Ways to hand weights to a server answer "done" and are wrong in silence: a server that was asleep wakes with what it had
(huggingface/trl issue 5312), an output layer tied to the embedding keeps another (pytorch/torchtitan PR 2402). Then a
training goes on, on samples of another policy, and its curves only look a little worse. Three things are held against
the trainer:

* the tensors, layer by layer, byte by byte (`hrm_agent/models/vllm/in_server/hrm_agent_held.py`), in whatever form and
  on however many cards: that says *which* are wrong, and sees a step of any size;
* the log-probs of a fixed text, which the server computes without its cache;
* the log-probs of fresh samples, which took the way of every rollout: prefill, cache, decoding, sampler. They begin
  with a prompt that the server had in its cache with the former weights, and must not be found there.

How far log-probs may differ depends on the dtype of the server's weights. In float32 the largest difference counts. In
half precision single tokens differ by up to 0.8 with equal weights, so there the mean does: it is 0.016 with the small
policy, and cannot see a small step. So tensors that cannot be compared are named, and taken on trust only where the
user says so.

A proof is of one moment. `hrm_agent.training.fleet_watch` sees to the time after it, and `engine_difference` of each
step, within the bounds of `difference_bound`, to what either of them misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hrm_agent.errors import ModelError

__all__ = [
    "PROBE_TEXT",
    "LogprobDifference",
    "OtherWeightsError",
    "ScoredText",
    "refuse_kept_cache",
    "refuse_other_weights",
    "refuse_unknown",
]

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
    tensors = f"It differs in: {_named(differing)}." if differing else "No tensor is known to differ."
    raise OtherWeightsError(
        f"The engine at {where} does not sample with the weights of version {version}: log-probs differ by "
        f"{measured:.2g} {'at most' if exact else 'on average'}, and {tolerance:g} is allowed in {dtype}. {tensors}",
        "Nothing was trained on its samples. Look at how the server was started and at what it says; then resume.",
    )


def refuse_unknown(where: str, version: int, unknown: Sequence[str], *, trusted: bool) -> str | None:
    """Raise `OtherWeightsError` where tensors of an engine cannot be compared; a text in place of it if `trusted`."""
    if not unknown:
        return None
    said = f"Not all weights of the engine at {where} can be compared with those of version {version}: "
    said += f"{_named(unknown)}."
    if trusted:
        return f"{said} They are taken on trust (unproved_weights)."
    raise OtherWeightsError(
        f"{said} Log-probs agree, and do not show a small difference.",
        "Go on without that proof with --unproved-weights; or let vLLM 0.32 serve the model in a form that it can "
        "reload layer by layer.",
    )


def refuse_kept_cache(where: str, version: int) -> None:
    """Raise `OtherWeightsError`: an engine was told to forget its cache of prefixes, and has it still."""
    raise OtherWeightsError(
        f"The engine at {where} answers with version {version} from a cache of its former weights: it said that it had "
        "dropped its cache, and found in it what it had been asked before.",
        "Nothing was trained on its samples. Look at what stands between trainer and server, and at the server's log; "
        "then resume.",
    )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
