"""Measures of rollouts, and their predicted changes by an update.

The predicted change of the mean of a measure f is, to first order, the covariance within a group of
f and the change of the rollout's log-prob along the update:

    d E[f] = E[f d log p]    estimated by    sum over i of (f_i - mean f) d log p_i / (n - 1)

Its mean is over groups, and its standard error from the spread between them. All rollouts of a group
are used, selected or not, since all of them were sampled from the policy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hrm_agent.training.analysis.reward_diff.judged import Scores
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.trajectory import Trajectory

__all__ = ["MEASURES", "Change", "Measured", "changes_of", "measured"]

MEASURES = ("accuracy", "tool_use", "length", "tool_errors")
"""Names of the measures."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Rollout with its measures, and the changes of its log-prob."""

    rollout: Trajectory
    """Rollout, with its recorded rewards."""
    step: int
    """Number of its step, from 0."""
    accuracy: float | None
    """Value of the task's verifier (None if the task has none)."""
    tool_use: float
    """1 if the rollout called a tool, else 0."""
    length: float
    """Number of sampled tokens."""
    tool_errors: float
    """Number of tool calls that failed through a fault of the policy."""
    old: float
    """Change of the log-prob along the update under the old reward."""
    new: float
    """Change of the log-prob along the update under the new reward."""

    @property
    def group(self) -> tuple[int, str]:
        return self.step, self.rollout.group_id


@dataclass(frozen=True, slots=True)
class Change:
    """Predicted change of the mean of a measure by one step of training."""

    old: float
    """Change under the old reward."""
    new: float
    """Change under the new reward."""
    new_error: float
    """Standard error of `new` (nan for a single group)."""
    difference_error: float
    """Standard error of the difference between the two changes (nan for a single group)."""

    @property
    def difference(self) -> float:
        """Change if one trains with the new reward instead of the old one."""
        return self.new - self.old


def measured(
    step: int,
    rollouts: Sequence[Trajectory],
    verifier: Scores,
    old: Mapping[str, Sequence[float]],
    new: Mapping[str, Sequence[float]],
) -> list[Measured]:
    """Measure the rollouts of a step that can be judged. Forks are left out, since their beginnings
    were chosen. `old`, `new`: changes of token log-probs by call id.
    """
    found: list[Measured] = []
    for each in rollouts:
        if fault_of(each) is not None or each.forked_from is not None:
            continue
        rewards = verifier.given_to(each).rewards
        tools = each.own_tool_calls
        ids = [call.id for call in each.own_calls]
        found.append(
            Measured(
                each,
                step,
                rewards.get("correct"),
                float(bool(tools)),
                float(each.sampled_tokens),
                float(sum(bool(t.status and t.status.is_policy_failure) for t in tools)),
                math.fsum(change for id_ in ids for change in old.get(id_, ())),
                math.fsum(change for id_ in ids for change in new.get(id_, ())),
            )
        )
    return found


def changes_of(rollouts: Sequence[Measured]) -> dict[str, Change]:
    """Predicted change of each measure that all rollouts have."""
    groups: dict[tuple[int, str], list[Measured]] = {}
    for each in rollouts:
        groups.setdefault(each.group, []).append(each)
    found: dict[str, Change] = {}
    for name in MEASURES:
        if any(getattr(each, name) is None for each in rollouts):
            continue
        old, new = (
            [_covariance(group, name, side) for group in groups.values() if len(group) > 1]
            for side in ("old", "new")
        )
        if old:
            differences = [b - a for a, b in zip(old, new, strict=True)]
            found[name] = Change(
                statistics.fmean(old), statistics.fmean(new), _error(new), _error(differences)
            )
    return found


def _covariance(group: Sequence[Measured], name: str, side: str) -> float:
    values = [float(getattr(each, name)) for each in group]
    mean = statistics.fmean(values)
    pairs = zip(values, group, strict=True)
    return math.fsum((f - mean) * getattr(each, side) for f, each in pairs) / (len(group) - 1)


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
