"""Resample on correct (GRPO-RoC): which rollouts of a group are trained on.

rStar2-Agent (arXiv 2508.20722) samples 2G rollouts of a question and keeps G: half of the negatives at random, so
that the ways of failing stay diverse, and half of the positives, preferring those with few tool errors and a clean
format. An outcome reward alone teaches that a clumsy trajectory is as good as a clean one if both end right; selecting
the clean ones says otherwise *without touching the reward*, which would invite hacking it.

    p_err    = 0.5 if the rollout called no tool, else failed calls / calls
    p_format = 1 without an <answer> tag,         else min(1, surplus answer tags / turns)
    keep probability of a positive ~ 1 / (p_err + p_format + eps), without replacement

`select` runs one of three algorithms that differ in nothing else, so that an ablation compares like with like: `grpo`
trains on every rollout, `grpo-random` on a random G of 2G (the control that the paper lacks), `grpo-roc` as above.

Three deviations from the paper and the code released with it, each because of a way to cheat or to lose data:

* Errors are *typed outcomes* (`ToolStatus.is_policy_failure`), never the word "error" in a text. Faults of the
  infrastructure, and calls that were never finished, count neither as calls nor as failures.
* p_err is over **distinct** calls (`ToolCall.repeated_of`), and a call failed if any of its repeats did. Repeating a
  harmless call must not dilute the ratio. Calls padded with small changes are not recognised.
* Surplus answer tags are counted within each conversation. With one conversation this is the paper's answer_tags - 1; a
  graph in which several solvers answer once each has no surplus. Only the policy's own messages are counted.

Nothing vanishes: each rollout gets an `Overlay` that says why it was kept or dropped. Truncated rollouts stay, with
reward 0 (filtering them made truncation worse). Rollouts that failed, were aborted or never ended (by no fault of
the policy: what a policy does wrong is data, not a failure) are dropped *before* the quotas, so that a fault of a
machine neither counts as a negative nor changes the mean. A group that shrinks below G by this is kept whole. (So a
graph should answer what its policy writes, however odd, and not raise on it: a run that raised is no lesson.)

The draw depends on the seed and on each rollout's place in its group (`sample_index`), not on the order of the list nor
on ids that contain the time. Hence a permuted group, or one collected again after a crash, is judged alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.trajectory import (
    Call,
    Overlay,
    RunStatus,
    ToolCall,
    ToolStatus,
    Trajectory,
    Verdict,
    derive_seed,
)
from hrm_agent.trajectory.forest import conversations

__all__ = ["ALGORITHMS", "RocOptions", "SelectableRollout", "is_positive", "outcome_reward", "quotas", "select"]


@dataclass(frozen=True, slots=True)
class RocOptions:
    """What the paper leaves open."""

    selection: Literal["inverse", "lowest"] = "inverse"
    """Positives by a draw with inverse weights (the paper), or those with the lowest penalty (the released code)."""
    min_negatives: int = 2
    """Negatives that are kept if there are as many: without them a group of 31 positives has no contrast."""
    min_positives: int = 2
    """Positives that are kept if there are as many."""
    eps: float = 1e-6
    """Added to the penalty. So small a value takes positives without penalty before all others."""


@dataclass(frozen=True, slots=True)
class SelectableRollout:
    """A rollout that takes part in the selection."""

    trajectory: Trajectory
    """The rollout itself."""
    reward: float
    """Outcome in [0, 1]; 0 for a truncated run."""
    penalty_error: float
    """p_err, in [0, 1]."""
    penalty_format: float
    """p_format, in [0, 1]."""

    @property
    def penalty(self) -> float:
        return self.penalty_error + self.penalty_format

    @property
    def positive(self) -> bool:
        return is_positive(self.reward)


Reasons = dict[str, str]
"""By trajectory id, why it was kept."""
Algorithm = Callable[[Sequence[SelectableRollout], int, random.Random, RocOptions], Reasons]
"""(candidates, number to keep, source of randomness, options) -> those kept."""


def select(
    group: Sequence[Trajectory],
    keep: int,
    algorithm: str = "grpo-roc",
    *,
    seed: int,
    run_id: str = "",
    step: int = 0,
    options: RocOptions | None = None,
) -> list[Overlay]:
    """Judge the rollouts of one group: an `Overlay` for each, in the order of `group`, without advantages.

    `keep` is G; where fewer rollouts can take part, all of them are kept. `algorithm` is a name of `ALGORITHMS`.
    """
    chosen = _algorithm(algorithm)
    if keep < 2:
        raise ConfigError(f"{keep} rollouts of a group are to be kept.", "Keep 2 or more: one alone has no contrast.")
    ordered = sorted(group, key=lambda t: (t.sample_index, t.id))
    candidates = [_candidate(trajectory) for trajectory in ordered if _fault(trajectory) is None]
    task = group[0].task if group else None
    rng = random.Random(derive_seed(seed, "select", step, task and task.family, task and task.id))
    kept = chosen(candidates, keep, rng, options or RocOptions())
    rejection = _rejection(candidates, kept)
    return [_judge(trajectory, kept, rejection, run_id, step) for trajectory in group]


def _algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        hint = f"{nearest(name, ALGORITHMS)} Algorithms: {', '.join(ALGORITHMS)}.".strip()
        raise ConfigError(f"There is no algorithm {name!r}.", hint)
    return ALGORITHMS[name]


def is_positive(reward: float) -> bool:
    """Whether a rollout counts as correct, where a verifier may give fractions."""
    return reward > 0.5


def outcome_reward(trajectory: Trajectory) -> float:
    """The reward that the trainer uses: the outcome, and 0 for a truncated rollout."""
    return 0.0 if trajectory.status is RunStatus.TRUNCATED else trajectory.reward


# --- the algorithms ---------------------------------------------------------------------------------------------------


def _keep_all(candidates: Sequence[SelectableRollout], keep: int, rng: random.Random, options: RocOptions) -> Reasons:
    del rng, options
    short = f", fewer than the {keep} wanted" if len(candidates) < keep else ""
    return {c.trajectory.id: f"one of all {len(candidates)} rollouts{short}" for c in candidates}


def _keep_random(
    candidates: Sequence[SelectableRollout], keep: int, rng: random.Random, options: RocOptions
) -> Reasons:
    del options
    drawn = rng.sample(candidates, min(keep, len(candidates)))
    return {c.trajectory.id: f"one of {len(drawn)} drawn at random from {len(candidates)} rollouts" for c in drawn}


def _resample_on_correct(
    candidates: Sequence[SelectableRollout], keep: int, rng: random.Random, options: RocOptions
) -> Reasons:
    if len(candidates) <= keep:
        return _keep_all(candidates, keep, rng, options)
    positives = [c for c in candidates if c.positive]
    negatives = [c for c in candidates if not c.positive]
    p, z = quotas(len(positives), len(negatives), keep, options.min_positives, options.min_negatives)
    reasons = {
        c.trajectory.id: f"one of {z} of {len(negatives)} negatives, drawn uniformly" for c in rng.sample(negatives, z)
    }
    for c in _SELECTIONS[options.selection](positives, p, rng, options.eps):
        reasons[c.trajectory.id] = f"one of {p} of {len(positives)} positives, penalty {c.penalty:.3f}"
    return reasons


ALGORITHMS: dict[str, Algorithm] = {
    "grpo": _keep_all,
    "grpo-random": _keep_random,
    "grpo-roc": _resample_on_correct,
}
"""By the name that a user gives."""


def quotas(
    positives: int, negatives: int, keep: int, min_positives: int = 2, min_negatives: int = 2
) -> tuple[int, int]:
    """(positives, negatives) to keep of a group larger than `keep`; their sum is `keep`.

    As in the released code, with two repairs: where both shares round the same way (an odd `keep`) the positives give
    way, and the minimum of a side is at most half of `keep`.
    """
    total = positives + negatives
    least_z = min(min_negatives, negatives, keep // 2)
    least_p = min(min_positives, positives, keep // 2)
    z = round(negatives * keep / total)
    p = keep - z
    if z <= least_z:
        z, p = least_z, keep - least_z
    if p <= least_p:
        p, z = least_p, keep - least_p
    return p, z


def _inverse(
    positives: Sequence[SelectableRollout], count: int, rng: random.Random, eps: float
) -> list[SelectableRollout]:
    """A draw without replacement with weight 1 / (penalty + eps), by Efraimidis and Spirakis' exponential keys."""
    keys = [-math.log(1.0 - rng.random()) * (c.penalty + eps) for c in positives]
    return [positives[i] for i in sorted(range(len(positives)), key=keys.__getitem__)[:count]]


def _lowest(
    positives: Sequence[SelectableRollout], count: int, rng: random.Random, eps: float
) -> list[SelectableRollout]:
    del rng, eps
    return sorted(positives, key=lambda c: c.penalty)[:count]


_SELECTIONS: Mapping[
    str, Callable[[Sequence[SelectableRollout], int, random.Random, float], list[SelectableRollout]]
] = {
    "inverse": _inverse,
    "lowest": _lowest,
}


# --- penalties --------------------------------------------------------------------------------------------------------


def _candidate(trajectory: Trajectory) -> SelectableRollout:
    error, form = penalty_error(trajectory.own_tool_calls), penalty_format(trajectory.own_calls)
    return SelectableRollout(trajectory, outcome_reward(trajectory), error, form)


def penalty_error(tool_calls: Sequence[ToolCall]) -> float:
    """Share of failed calls among the distinct ones that came to an end of the policy's own making; 0.5 without any."""
    failed: dict[str, bool] = {}
    for call in tool_calls:
        if call.status is None or call.status is ToolStatus.INFRASTRUCTURE:
            continue
        first = call.repeated_of or call.id
        failed[first] = failed.get(first, False) or call.status.is_policy_failure
    return sum(failed.values()) / len(failed) if failed else 0.5


def penalty_format(calls: Sequence[Call]) -> float:
    """1 without an answer tag, else the surplus of answer tags per turn, at most 1."""
    tags = [sum(_answer_tags(call) for call in conversation) for conversation in conversations(calls)]
    if not any(tags):
        return 1.0
    return min(1.0, sum(max(0, count - 1) for count in tags) / len(calls))


def _answer_tags(call: Call) -> int:
    return _text(call.response.get("content")).count("<answer>")


def _text(content: Any) -> str:
    """The text of a message's content, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block if isinstance(block, str) else str(block.get("text", "")) for block in blocks)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def _fault(trajectory: Trajectory) -> str | None:
    """Why a rollout cannot take part; None if it can."""
    faults = {
        RunStatus.FAILED: f"the run failed by no fault of the policy: {trajectory.error or 'no error was recorded'}",
        RunStatus.ABORTED: "the run was aborted from outside",
        RunStatus.RUNNING: "the run has not ended",
    }
    return faults.get(trajectory.status)


def _rejection(candidates: Sequence[SelectableRollout], kept: Reasons) -> str | None:
    """Why the whole group teaches nothing; None if it does."""
    if not candidates:
        return "group rejected: no rollout of it can take part"
    if len({c.reward for c in candidates}) == 1:
        return f"group rejected: all {len(candidates)} rewards are {candidates[0].reward:g}"
    rewards = {c.reward for c in candidates if c.trajectory.id in kept}
    return f"group rejected: the rewards of those drawn are all {rewards.pop():g}" if len(rewards) == 1 else None


def _judge(trajectory: Trajectory, kept: Reasons, rejection: str | None, run_id: str, step: int) -> Overlay:
    verdict, reason = _verdict(trajectory, kept, rejection)
    return Overlay(
        run_id=run_id,
        step=step,
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        reward=outcome_reward(trajectory),
        verdict=verdict,
        reason=reason,
        penalty_error=penalty_error(trajectory.own_tool_calls),
        penalty_format=penalty_format(trajectory.own_calls),
    )


def _verdict(trajectory: Trajectory, kept: Reasons, rejection: str | None) -> tuple[Verdict, str]:
    fault = _fault(trajectory)
    if fault is not None:
        return Verdict.DROPPED, f"left out of the selection: {fault}"
    if rejection is not None:
        return Verdict.GROUP_REJECTED, rejection
    if trajectory.id in kept:
        return Verdict.KEPT, kept[trajectory.id]
    side = "positive" if is_positive(outcome_reward(trajectory)) else "negative"
    return Verdict.DROPPED, f"a {side} that was not among the {len(kept)} drawn"
