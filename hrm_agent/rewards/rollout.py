"""Input of reward functions, and the rules that turn their values into a scoring."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hrm_agent.errors import ConfigError
from hrm_agent.rewards.rubric import GROUP, STATE, Reward, Rubric, Scored
from hrm_agent.trajectory import RewardFault, RewardScore, RunStatus, Scoring, Trajectory

__all__ = ["Rollout", "arguments_of", "as_score", "scoring_of", "storable"]


def storable(text: str) -> str:
    """Replace each surrogate in `text` by a question mark. JSON can contain surrogates as escapes,
    but no record can hold them.
    """
    return text.encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class Rollout:
    """Trajectory to be scored."""

    trajectory: Trajectory
    """Recorded trajectory (without its calls if no reward uses them)."""
    state: Mapping[str, Any] | None = None
    """The graph's last state by channel (None if it is not on record or not needed)."""


def arguments_of(reward: Reward, rollout: Rollout, group: Sequence[Rollout]) -> dict[str, Any]:
    """Arguments for the function of `reward`. Raises LookupError if an argument is not on
    record.
    """
    trajectory = rollout.trajectory
    if STATE in reward.wants and rollout.state is None:
        raise LookupError(f"the state of thread {trajectory.thread_id!r} is not on record")
    given: dict[str, Any] = {
        "text": trajectory.answer or "",
        "reference": trajectory.task.answer,
        "task": trajectory.task,
        "trajectory": trajectory,
        "calls": trajectory.own_calls,
        "tool_calls": trajectory.own_tool_calls,
        STATE: rollout.state,
        GROUP: [each.trajectory for each in group],
    }
    return {name: given[name] for name in reward.wants}


def as_score(
    reward: Reward, given: Any, trajectory: Trajectory, *, decides: bool, seconds: float = 0.0
) -> RewardScore:
    """Score for a function's value. `decides`: the reward is the rubric's outcome.

    Raises `ConfigError` for a value that is not a number. Such a function is wrong for every input,
    so this is no fault of a single rollout.
    """
    if isinstance(given, (Mapping, list)):
        given = Scored(None, calls=cast("Mapping[str, float]", given))
    scored = given if isinstance(given, Scored) else Scored(given)
    fault = None
    reason = storable(scored.reason)
    value = scored.value
    if value is not None and not hasattr(value, "__float__"):
        shown = repr(value)[:80]
        raise ConfigError(
            f"The reward {reward.name!r} returned {shown}, a {type(value).__name__}.",
            "Return a number, a bool, None for no opinion, or a Scored.",
        )
    number = None if value is None else float(value)
    if number is not None and not math.isfinite(number):
        fault = RewardFault.NOT_A_NUMBER
        reason = f"it returned {number}"
        number = None
    elif number is not None and decides and not 0.0 <= number <= 1.0:
        fault = RewardFault.OUT_OF_RANGE
        reason = f"the outcome lies in [0, 1], it returned {number:g}"
        number = None
    by_call, wrong = _by_call(reward, scored.calls or (), trajectory)
    if wrong and fault is None:
        fault = RewardFault.RAISED
        reason = wrong
    return RewardScore(
        name=reward.name,
        value=number if fault is None else None,
        by_call=by_call if fault is None else {},
        weight=reward.weight,
        fault=fault,
        reason=reason,
        seconds=seconds,
        judge_calls=scored.judge_calls,
    )


def _by_call(
    reward: Reward, given: Mapping[str, float] | Sequence[float], trajectory: Trajectory
) -> tuple[dict[str, float], str]:
    """Values of single calls by the call's id, and what is wrong with them (empty if nothing)."""
    turns = [call.id for call in trajectory.own_calls]
    if isinstance(given, Mapping):
        by_id = dict(given)
    elif not isinstance(given, (list, tuple)):
        raise _no_values(reward, given)
    elif len(given) in (0, len(turns)):
        by_id = dict(zip(turns, given, strict=len(given) > 0))
    else:
        return {}, f"it returned {len(given)} values for {len(turns)} model calls"
    known = {*turns, *(call.id for call in trajectory.own_tool_calls)}
    found: dict[str, float] = {}
    for id_, value in by_id.items():
        try:
            number = float(value) + 0.0  # -0.0 is 0
        except (TypeError, ValueError):
            raise _no_values(reward, value) from None
        if id_ not in known:
            return {}, f"it returned a value for the unknown call {str(id_)[:80]!r}"
        if not math.isfinite(number):
            return {}, f"it returned {number} for call {id_}"
        found[id_] = number
    return found, ""


def _no_values(reward: Reward, given: Any) -> ConfigError:
    return ConfigError(
        f"The reward {reward.name!r} returned {repr(given)[:80]} for calls, a"
        f" {type(given).__name__}.",
        "Return numbers by the id of a model call or tool call, or a list of numbers.",
    )


def scoring_of(
    rubric: Rubric,
    code: str,
    trajectory: Trajectory,
    scores: Sequence[RewardScore],
    *,
    keeps_truncated: bool = False,
) -> Scoring:
    """Scoring of one trajectory, from its scores.

    A truncated run is never right: its outcome is 0, and its other rewards are unchanged.
    `keeps_truncated`: the value of the outcome is kept too, for its part in the sum. Only the run's
    status then shows that the run is not right.
    """
    cut = trajectory.status is RunStatus.TRUNCATED and not keeps_truncated
    scores = [
        s.model_copy(
            update={"value": 0.0, "reason": f"the run was truncated; {s.reason}".rstrip("; ")}
        )
        if cut and s.name == rubric.outcome and s.value is not None
        else s
        for s in scores
    ]
    outcome = next(score.value for score in scores if score.name == rubric.outcome)
    counted = [score for score in scores if score.weight != 0]
    values = [score.weight * score.value for score in counted if score.value is not None]
    whole = bool(values) and all(score.fault is None for score in counted)
    return Scoring(
        trajectory_id=trajectory.id,
        rubric=rubric.name,
        code=code,
        scores=tuple(scores),
        outcome=outcome,
        total=math.fsum(values) if whole else None,
        scored_at=time.time(),
    )
