"""Resample on correct (GRPO-RoC): selects the rollouts of a group to train on.

rStar2-Agent (arXiv 2508.20722) samples 2G rollouts of a question and keeps G. It keeps half of the
negatives, drawn at random so that failures stay diverse, and half of the positives, preferring
those with few tool errors and a clean format. An outcome reward alone teaches that a clumsy
trajectory is as good as a clean one if both end right. Selection favours clean trajectories
*without a change of the reward*, since penalties in the reward would invite reward hacking.

    p_err    = 0.5 if the rollout called no tool, else failed calls / calls
    p_format = 1 without an <answer> tag,         else min(1, surplus answer tags / turns)
    keep probability of a positive ~ 1 / (p_err + p_format + eps), without replacement

`select` runs one of four algorithms that differ only in the rollouts that they keep, as an ablation
needs. `grpo` trains on every rollout, and `grpo-roc` selects as above. The other two are controls
that the paper lacks. `grpo-random` keeps a random G of 2G. If a group of 16 has a single positive,
half of the draws lose it, and with it the group. `grpo-roc-random` keeps as many positives and
negatives as `grpo-roc`, and with the same seed the same negatives, but draws the positives
uniformly. So the two differ only in the preference for clean positives.

There are three deviations from the paper and its released code. Each prevents cheating or a loss of
data:

* Errors are *typed outcomes* (`ToolStatus.is_policy_failure`), not the word "error" in a text.
  Calls that failed because of the infrastructure, or were never finished, count neither as calls
  nor as failures.
* Calls and turns that do nothing do not count (`hrm_agent.training.select.penalties`): padding must
  not lower a penalty.
* Surplus answer tags are counted within each conversation. With one conversation this is the
  paper's answer_tags - 1. So a graph in which several solvers answer once each has no surplus. Only
  messages of the policy are counted.

For graphs with several roles, penalties can be counted by role
(`hrm_agent.training.select.penalties`).

The outcome (`correct`) decides whether a rollout is positive or negative, and thus the quotas. The
reward (the rubric's weighted sum if the run has a rubric) is maximised and decides the advantages.

Every rollout gets an `Overlay` with the reason why it was kept or dropped. By default truncated
rollouts stay, with outcome 0, since filtering them made truncation worse. Some rollouts are dropped
*before* the quotas are computed: rollouts that failed through no fault of the policy, were aborted,
never ended, or lost a tool call to the infrastructure. So a fault of a machine neither counts as a
negative nor changes the mean. If fewer than G rollouts remain, all are kept. If less than the share
`min_group` remains, the group is rejected, since the mean and deviation of two survivors do not
characterise the prompt.

A rollout is a negative if its graph raised an error on what the policy wrote (see
`hrm_agent.runtime.failures`). Its reward is 0, or the lowest of its group if that is less, so that
unreadable answers never pay. If every rollout of a group raised the same error at the same place,
the graph itself may be the cause, and the group is rejected.

The draw depends on the seed and on each rollout's place in its group (`sample_index`). It does not
depend on the order of the list, or on ids that contain the time. Therefore a group gets the same
verdicts if it is permuted, or collected again after a crash.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hrm_agent.errors import ConfigError
from hrm_agent.training.config.parts import Truncated
from hrm_agent.training.own_parts import OwnFunction, part_by_name
from hrm_agent.training.rollout.eligibility import (
    Why,
    error_of,
    failed_by_policy,
    fault_of,
    too_small,
)
from hrm_agent.training.select.penalties import (
    PENALTIES,
    Penalize,
    Penalties,
    penalty_error,
    penalty_format,
)
from hrm_agent.training.update.advantages import TurnOptions, turns_differ
from hrm_agent.trajectory import (
    DropReason,
    Overlay,
    RolePenalty,
    RunStatus,
    Trajectory,
    Verdict,
    derive_seed,
)

__all__ = [
    "ALGORITHMS",
    "SELECTIONS",
    "RocOptions",
    "SelectableRollout",
    "is_positive",
    "outcome_of",
    "penalty_error",
    "penalty_format",
    "quotas",
    "reward_of",
    "select",
]


@dataclass(frozen=True, slots=True)
class RocOptions:
    """Options that the paper leaves open. Raises `ConfigError` for invalid values."""

    selection: str = "inverse"
    """Choice of positives: one of `SELECTIONS`, or a user's function. inverse: a random draw
    weighted by inverse penalties (the paper). lowest: the positives with the lowest penalties (the
    released code).
    """
    min_negatives: int = 2
    """Minimum number of negatives to keep, if there are that many. Without it, a group of 31
    positives and one negative might have no contrast.
    """
    min_positives: int = 2
    """Minimum number of positives to keep, if there are that many."""
    eps: float = 1e-6
    """Constant added to the penalty. With a small value, positives without penalty are drawn before
    all others.
    """
    penalties: str = "whole"
    """Penalties: one of `PENALTIES`, or a user's function. whole: over all calls and turns (the
    paper). by_role: means over roles (see `hrm_agent.training.select.penalties`).
    """
    truncated: Truncated = "wrong"
    """Treatment of rollouts that ended at a limit."""
    turns: TurnOptions | None = None
    """Options by which rewards of single calls are trained on (None: they are not)."""
    taught: bool = False
    """True if there is a teacher, so that rollouts with equal rewards teach something, too."""

    def __post_init__(self) -> None:
        if self.eps <= 0 or self.min_negatives < 0 or self.min_positives < 0:
            raise ConfigError(
                f"{self} is invalid.", "Take an eps above 0, and minima of 0 or more."
            )


@dataclass(frozen=True, slots=True)
class SelectableRollout:
    """Rollout that takes part in the selection."""

    trajectory: Trajectory
    """Trajectory of the rollout."""
    reward: float
    """Value to maximise: the outcome, or a rubric's weighted sum."""
    outcome: float
    """Correctness of the answer, in [0, 1]. 0 for a truncated run."""
    penalty_error: float
    """p_err, in [0, 1]."""
    penalty_format: float
    """p_format, in [0, 1]."""
    by_role: Mapping[str, RolePenalty]
    """Penalties by role, whose means are the two penalties (empty if the two are over the whole
    rollout).
    """

    @property
    def penalty(self) -> float:
        return self.penalty_error + self.penalty_format

    @property
    def positive(self) -> bool:
        return is_positive(self.outcome)


Reasons = dict[str, str]
"""Reasons for keeping rollouts, by trajectory id."""
Algorithm = Callable[[Sequence[SelectableRollout], int, random.Random, RocOptions], Reasons]
"""Function (candidates, number to keep, source of randomness, options) -> reason for each kept
rollout.
"""
Draw = Callable[[Sequence[SelectableRollout], int, random.Random, float], list[SelectableRollout]]
"""Function (positives, number to keep, source of randomness, eps) -> kept positives."""


def select(
    group: Sequence[Trajectory],
    keep: int,
    algorithm: str = "grpo-roc",
    *,
    seed: int,
    run_id: str = "",
    step: int = 0,
    options: RocOptions | None = None,
    min_group: float = 0.0,
) -> list[Overlay]:
    """Judge the rollouts of one group. Returns an `Overlay` for each, in the order of `group`,
    without advantages.

    `keep` is G. If fewer rollouts can take part, all of them are kept, unless they are less than
    the share `min_group` of the group. `algorithm` is one of `ALGORITHMS`, or names a
    user's function.
    """
    chosen = part_by_name("algorithm", algorithm, ALGORITHMS, _own_algorithm)
    if keep < 2:
        raise ConfigError(
            f"{keep} rollouts of a group are to be kept.",
            "Keep 2 or more: a single rollout has no contrast.",
        )
    options = options or RocOptions()
    judged = _with_failures_last([_candidate(trajectory, options) for trajectory in group])
    ordered = sorted(group, key=lambda t: (t.sample_index, t.id))
    candidates = [judged[trajectory.id] for trajectory in ordered if fault_of(trajectory) is None]
    task = group[0].task if group else None
    rng = random.Random(derive_seed(seed, "select", step, task and task.family, task and task.id))
    kept = chosen(candidates, keep, rng, options) if candidates else {}
    rejection = too_small(len(candidates), len(group), min_group) or _rejection(
        candidates, kept, options
    )
    return [_judge(judged[trajectory.id], kept, rejection, run_id, step) for trajectory in group]


def is_positive(reward: float) -> bool:
    """True if a rollout counts as correct. Verifiers may give fractions."""
    return reward > 0.5


def outcome_of(trajectory: Trajectory) -> float:
    """Correctness of the answer, in [0, 1] (0 for a truncated rollout)."""
    return 0.0 if trajectory.status is RunStatus.TRUNCATED else trajectory.outcome


def reward_of(trajectory: Trajectory, truncated: Truncated = "wrong") -> float:
    """Reward that the trainer maximises: a rubric's weighted sum, else the outcome. `truncated` is
    the run's setting.

    The reward is 0 if the graph could not continue from what the policy wrote; `select` may then
    lower it to the lowest in the group.
    """
    if failed_by_policy(trajectory):
        return 0.0
    return (
        trajectory.reward
        if truncated == "keep_reward"
        else trajectory.rewards.get("reward", outcome_of(trajectory))
    )


# --- the algorithms
# ---------------------------------------------------------------------------------------------------


def _keep_all(
    candidates: Sequence[SelectableRollout], keep: int, rng: random.Random, options: RocOptions
) -> Reasons:
    del rng, options
    short = f", fewer than the {keep} wanted" if len(candidates) < keep else ""
    return {c.trajectory.id: f"one of all {len(candidates)} rollouts{short}" for c in candidates}


def _keep_random(
    candidates: Sequence[SelectableRollout], keep: int, rng: random.Random, options: RocOptions
) -> Reasons:
    del options
    drawn = rng.sample(candidates, min(keep, len(candidates)))
    return {
        c.trajectory.id: f"one of {len(drawn)} drawn at random from {len(candidates)} rollouts"
        for c in drawn
    }


def _resample_on_correct(
    candidates: Sequence[SelectableRollout], keep: int, rng: random.Random, options: RocOptions
) -> Reasons:
    draw = part_by_name("selection", options.selection, SELECTIONS, _own_draw)
    return _resample(candidates, keep, rng, options, draw)


def _resample_at_random(
    candidates: Sequence[SelectableRollout], keep: int, rng: random.Random, options: RocOptions
) -> Reasons:
    return _resample(candidates, keep, rng, options, _uniform)


def _resample(
    candidates: Sequence[SelectableRollout],
    keep: int,
    rng: random.Random,
    options: RocOptions,
    draw: Draw,
) -> Reasons:
    """Keep the quotas of negatives, drawn uniformly, and of positives, drawn by `draw`."""
    if len(candidates) <= keep:
        return _keep_all(candidates, keep, rng, options)
    positives = [c for c in candidates if c.positive]
    negatives = [c for c in candidates if not c.positive]
    p, z = quotas(
        len(positives), len(negatives), keep, options.min_positives, options.min_negatives
    )
    reasons = {
        c.trajectory.id: f"one of {z} of {len(negatives)} negatives, drawn uniformly"
        for c in rng.sample(negatives, z)
    }
    for c in draw(positives, p, rng, options.eps):
        reasons[c.trajectory.id] = (
            f"one of {p} of {len(positives)} positives, penalty {c.penalty:.3f}"
        )
    return reasons


ALGORITHMS: dict[str, Algorithm] = {
    "grpo": _keep_all,
    "grpo-random": _keep_random,
    "grpo-roc": _resample_on_correct,
    "grpo-roc-random": _resample_at_random,
}
"""Selection algorithms by the name that a user gives."""


def _own_algorithm(own: OwnFunction) -> Algorithm:
    def chosen(
        candidates: Sequence[SelectableRollout],
        keep: int,
        rng: random.Random,
        options: RocOptions,
    ) -> Reasons:
        found = own(candidates, keep, rng, options)
        if isinstance(found, Mapping):
            kept = {str(each): str(why) for each, why in cast("Reasons", found).items()}
        else:
            kept = dict.fromkeys(_ids(own, found), f"kept by {own.name}")
        _require_among(own, kept, candidates)
        return kept

    return chosen


def _ids(own: OwnFunction, found: Any) -> list[str]:
    """Ids of the rollouts that a user's function returned."""
    if not isinstance(found, Sequence) or not all(
        isinstance(each, SelectableRollout) for each in cast("Sequence[Any]", found)
    ):
        raise own.wrong(f"returned {type(found).__name__}, not a list of the rollouts to keep")
    return [each.trajectory.id for each in cast("Sequence[SelectableRollout]", found)]


def _require_among(
    own: OwnFunction, kept: Iterable[str], given: Sequence[SelectableRollout]
) -> None:
    unknown = set(kept) - {each.trajectory.id for each in given}
    if unknown:
        raise own.wrong(f"returned the unknown rollout {min(unknown)}")


def quotas(
    positives: int, negatives: int, keep: int, min_positives: int = 2, min_negatives: int = 2
) -> tuple[int, int]:
    """Numbers of (positives, negatives) to keep of a group larger than `keep`. Their sum is `keep`.

    The rule is that of the released code, with two corrections. If the rounded shares do not add up
    to `keep`, the number of positives is adjusted. The minimum of a side is at most half of `keep`.
    """
    total = positives + negatives
    least_z = min(min_negatives, negatives, keep // 2)
    least_p = min(min_positives, positives, keep // 2)
    z = round(negatives * keep / total)
    p = keep - z
    if z <= least_z:
        z = least_z
        p = keep - least_z
    if p <= least_p:
        p = least_p
        z = keep - least_p
    return p, z


def _inverse(
    positives: Sequence[SelectableRollout], count: int, rng: random.Random, eps: float
) -> list[SelectableRollout]:
    """Draw without replacement with weights 1 / (penalty + eps), by the exponential keys of
    Efraimidis and Spirakis.
    """
    keys = [-math.log(1.0 - rng.random()) * (c.penalty + eps) for c in positives]
    return [positives[i] for i in sorted(range(len(positives)), key=keys.__getitem__)[:count]]


def _lowest(
    positives: Sequence[SelectableRollout], count: int, rng: random.Random, eps: float
) -> list[SelectableRollout]:
    del rng, eps
    return sorted(positives, key=lambda c: c.penalty)[:count]


def _uniform(
    positives: Sequence[SelectableRollout], count: int, rng: random.Random, eps: float
) -> list[SelectableRollout]:
    del eps
    return rng.sample(positives, count)


SELECTIONS: Mapping[str, Draw] = {"inverse": _inverse, "lowest": _lowest}
"""Draws of positives by the name that a user gives."""


def _own_draw(own: OwnFunction) -> Draw:
    def draw(
        positives: Sequence[SelectableRollout], count: int, rng: random.Random, eps: float
    ) -> list[SelectableRollout]:
        drawn = own(positives, count, rng, eps)
        ids = _ids(own, drawn)
        _require_among(own, ids, positives)
        if len(set(ids)) != count or len(ids) != count:
            raise own.wrong(f"drew {len(set(ids))} of {len(positives)} positives, not {count}")
        return list(drawn)

    return draw


def _own_penalties(own: OwnFunction) -> Penalize:
    def penalties(trajectory: Trajectory) -> Penalties:
        of = f"trajectory {trajectory.id}"
        found = own(trajectory)
        if isinstance(found, Penalties):
            return found
        error, form = (own.number(each, of) for each in own.items(found, 2, of))
        if min(error, form) < 0:
            raise own.wrong(f"returned {min(error, form):g} for {of}, and a penalty is 0 or more")
        return Penalties(error, form)

    return penalties


def _candidate(trajectory: Trajectory, options: RocOptions) -> SelectableRollout:
    name = options.penalties if fault_of(trajectory) is None else "whole"
    found = part_by_name("penalties", name, PENALTIES, _own_penalties)(trajectory)
    reward = reward_of(trajectory, options.truncated)
    return SelectableRollout(trajectory, reward, outcome_of(trajectory), *found)


def _with_failures_last(group: Sequence[SelectableRollout]) -> dict[str, SelectableRollout]:
    """Candidates by trajectory id, in which a rollout that failed because of the policy has at most
    the lowest reward of the group.
    """
    able = [c.reward for c in group if fault_of(c.trajectory) is None]
    lowest = min(able, default=0.0)
    return {
        c.trajectory.id: (
            replace(c, reward=min(c.reward, lowest)) if failed_by_policy(c.trajectory) else c
        )
        for c in group
    }


# --- verdicts
# ---------------------------------------------------------------------------------------------------------


def _rejection(
    candidates: Sequence[SelectableRollout], kept: Reasons, options: RocOptions
) -> Why | None:
    """Reason why the whole group teaches nothing (None if it teaches something)."""
    if not candidates:
        return DropReason.SMALL_GROUP, "group rejected: no rollout of it can take part"
    ends = {
        (c.trajectory.error or "").partition(":")[0] + f" {c.trajectory.error_at}"
        for c in candidates
    }
    if len(ends) == 1 and all(failed_by_policy(c.trajectory) for c in candidates):
        said = (
            f"group rejected: all {len(candidates)} rollouts raised"
            f" {error_of(candidates[0].trajectory, place=True)}"
        )
        return DropReason.RUN_FAILED, said
    if not kept:
        return DropReason.SMALL_GROUP, "group rejected: none of its rollouts was kept"
    learnt_from = [c.trajectory for c in candidates if c.trajectory.id in kept]
    if options.taught or (options.turns is not None and turns_differ(learnt_from, options.turns)):
        return None
    if len({c.reward for c in candidates}) == 1:
        said = f"group rejected: all {len(candidates)} rewards are {candidates[0].reward:g}"
        return DropReason.EQUAL_REWARDS, said
    rewards = {c.reward for c in candidates if c.trajectory.id in kept}
    if len(rewards) > 1:
        return None
    return (
        DropReason.EQUAL_REWARDS,
        f"group rejected: the rewards of those drawn are all {rewards.pop():g}",
    )


def _judge(
    rollout: SelectableRollout, kept: Reasons, rejection: Why | None, run_id: str, step: int
) -> Overlay:
    trajectory = rollout.trajectory
    verdict, drop_reason, reason = _verdict(trajectory, kept, rejection)
    return Overlay(
        run_id=run_id,
        step=step,
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        reward=rollout.reward,
        verdict=verdict,
        reason=reason,
        drop_reason=drop_reason,
        penalty_error=rollout.penalty_error,
        penalty_format=rollout.penalty_format,
        penalty_by_role=dict(rollout.by_role) or None,
    )


def _verdict(
    trajectory: Trajectory, kept: Reasons, rejection: Why | None
) -> tuple[Verdict, DropReason | None, str]:
    fault = fault_of(trajectory)
    if fault is not None:
        return Verdict.DROPPED, fault[0], f"left out of the selection: {fault[1]}"
    if rejection is not None:
        return Verdict.GROUP_REJECTED, *rejection
    if trajectory.id in kept:
        return Verdict.KEPT, None, kept[trajectory.id]
    side = "positive" if is_positive(outcome_of(trajectory)) else "negative"
    return (
        Verdict.DROPPED,
        DropReason.NOT_DRAWN,
        f"a {side} that was not among the {len(kept)} drawn",
    )
