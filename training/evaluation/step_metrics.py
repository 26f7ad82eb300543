"""Metrics of a step's rollouts, besides accuracy: rewards, lengths, and metrics of each role."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from hrm_agent.training.evaluation.roles import role_counts
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.training.update.advantages import as_recorded
from hrm_agent.training.update.batch import no_gradient
from hrm_agent.trajectory import Overlay, Trajectory, Verdict
from hrm_agent.trajectory.forest import training_roots

__all__ = ["families_of_step", "fork_metrics", "roles_of_step", "rollout_metrics"]


def rollout_metrics(
    rollouts: Sequence[Trajectory], overlays: Sequence[Overlay]
) -> dict[str, float]:
    """Metrics of rewards (as the selection judged them, for rollouts without a fault) and of
    lengths (for all rollouts).
    """
    judged = {overlay.trajectory_id: overlay.reward for overlay in overlays}
    rewards: dict[str, list[float]] = defaultdict(list)
    for each in rollouts:
        if fault_of(each) is None:
            rewards[each.group_id].append(judged[each.id])
    every = [reward for group in rewards.values() for reward in group]
    lengths = sorted(each.sampled_tokens for each in rollouts)
    return {
        "rollout/reward_mean": _mean(every),
        "rollout/reward_std": statistics.pstdev(every) if every else float("nan"),
        "rollout/reward_std_in_group": _mean(
            [statistics.pstdev(group) for group in rewards.values()]
        ),
        **{
            f"rollout/sampled_tokens_{name}": (
                float(lengths[min(len(lengths) - 1, int(share * len(lengths)))])
                if lengths
                else float("nan")
            )
            for name, share in (("p50", 0.5), ("p90", 0.9), ("max", 1.0))
        },
        "rollout/model_calls": _mean([len(each.own_calls) for each in rollouts]),
        "rollout/sequences": _mean([len(training_roots(each)) for each in rollouts]),
    }


def roles_of_step(
    rollouts: Sequence[Trajectory], overlays: Sequence[Overlay]
) -> dict[str, dict[str, float]]:
    """Metrics by role: of the role's calls in all rollouts, and of the role's share of the training
    on kept rollouts.

    `tokens`: sampled tokens per rollout. `entropy`: mean of -log p as the engine recorded it.
    `failed`: share of its runs without the role's required output. `tool_errors`: share of its tool
    calls that failed through the policy's fault. `weight_share`: share of the sum of |weight| over
    all trained tokens. `advantage`: mean weight of its trained tokens.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    surprise: Counter[str] = Counter()
    for each in rollouts:
        for role, found in role_counts(each).items():
            counts[role].update(found)
        for call in each.own_calls:
            sampled = (log for log, free in zip(call.logprobs, call.mask, strict=False) if free)
            surprise[call.identity.role] += -sum(sampled)  # pyright: ignore[reportArgumentType] - a float
    by_id = {each.id: each for each in rollouts}
    kept = [each for each in overlays if each.verdict is Verdict.KEPT]
    whole = [by_id[each.trajectory_id] for each in kept]
    weights = as_recorded(whole, kept)
    # for each role: number of trained tokens, sum of their weights, and sum of the absolute weights
    trained: defaultdict[str, float] = defaultdict(float)
    signed: defaultdict[str, float] = defaultdict(float)
    absolute: defaultdict[str, float] = defaultdict(float)
    for trajectory in whole:
        for call in trajectory.own_calls:
            if call.id in weights and no_gradient(call, trajectory.policy) is None:
                role = call.identity.role
                weight = weights[call.id]
                trained[role] += call.sampled_tokens
                signed[role] += weight * call.sampled_tokens
                absolute[role] += abs(weight) * call.sampled_tokens
    total = sum(absolute.values())
    return {
        role: {
            "tokens": found["sampled_tokens"] / max(1, len(rollouts)),
            "entropy": surprise[role] / max(1, found["sampled_tokens"]),
            "failed": found["failed"] / max(1, found["runs"]),
            "tool_errors": found["tool_errors"] / max(1, found["tool_calls"]),
            "weight_share": absolute[role] / total if total else 0.0,
            "advantage": signed[role] / max(1.0, trained[role]),
        }
        for role, found in counts.items()
    }


def fork_metrics(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    """Number of rollouts that begin in the middle of others, share of right ones among them, and
    sampled tokens per fork (empty without forks).
    """
    forks = [each for each in rollouts if each.forked_from is not None]
    if not forks:
        return {}
    return {
        "forks/count": float(len(forks)),
        "forks/correct": _mean([float(is_positive(outcome_of(each))) for each in forks]),
        "forks/sampled_tokens": _mean([each.sampled_tokens for each in forks]),
    }


def families_of_step(
    rollouts: Sequence[Trajectory], overlays: Sequence[Overlay]
) -> dict[str, dict[str, float]]:
    """Metrics by family of tasks (empty if the rollouts are of one family): rollouts, share of right
    ones, mean reward as the selection judged it, sampled tokens per rollout, and share of rollouts
    that are trained on.
    """
    judged = {overlay.trajectory_id: overlay for overlay in overlays}
    by_family: dict[str, list[Trajectory]] = defaultdict(list)
    for each in rollouts:
        by_family[each.task.family].append(each)
    if len(by_family) < 2:
        return {}
    return {
        family: {
            "rollouts": float(len(found)),
            "correct": _mean([float(is_positive(outcome_of(each))) for each in found]),
            "reward": _mean([judged[each.id].reward for each in found]),
            "tokens": _mean([each.sampled_tokens for each in found]),
            "kept": _mean([float(judged[each.id].verdict is Verdict.KEPT) for each in found]),
        }
        for family, found in sorted(by_family.items())
    }


def _mean(values: Sequence[Any]) -> float:
    return statistics.fmean(values) if values else float("nan")
