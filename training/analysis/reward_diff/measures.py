"""Measures of rollouts, and their predicted changes by an update.

The change of the mean of a measure f is, to first order, E[sum over tokens of f d log p]. Here d log
p is the change of a token's log-prob along the update. A baseline that depends only on what precedes
a token does not change the expectation. The rollouts of a group share their prompt, and many share
the beginning of their answers. So the baseline of a token is the mean of f over the rollouts of the
group that share all tokens before it:

    sum over beginnings of  n / N * sum over i of (f_i - mean f) d log p_i / (n - 1)

with n rollouts that share a beginning, and N in the group. A beginning of one rollout contributes
nothing. With the mean of the whole group as baseline instead, the random changes of later tokens,
such as the digits of a guess, dominate the estimate.

The estimate is the mean over groups, and its standard error comes from the spread between them. All
rollouts of a group are used, selected or not, since all of them were sampled from the policy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hrm_agent.training.analysis.reward_diff.judged import Scores
from hrm_agent.training.rollout.eligibility import failed_by_policy, fault_of
from hrm_agent.training.select.roc import outcome_of
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.forest import paths

__all__ = ["MEASURES", "Measured", "PredictedChange", "changes_of", "measured"]

Changes = Mapping[str, Sequence[float]]
"""Call id -> change of the log-prob of each of its sampled tokens."""
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
    old: Changes
    """Changes of token log-probs along the update under the old reward."""
    new: Changes
    """Changes of token log-probs along the update under the new reward."""

    @property
    def group(self) -> tuple[int, str]:
        return self.step, self.rollout.group_id

    def push(self, side: Literal["old", "new"]) -> float:
        """Change of the rollout's log-prob along an update."""
        changes: Changes = getattr(self, side)
        return math.fsum(
            change for call in self.rollout.own_calls for change in changes.get(call.id, ())
        )


@dataclass(frozen=True, slots=True)
class PredictedChange:
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
    old: Changes,
    new: Changes,
) -> list[Measured]:
    """Measure the rollouts of a step that can be judged. Forks are left out, since their beginnings
    were chosen. `old`, `new`: changes of token log-probs by call id.
    """
    found: list[Measured] = []
    for each in rollouts:
        if fault_of(each) is not None or each.forked_from is not None:
            continue
        tools = each.own_tool_calls
        found.append(
            Measured(
                each,
                step,
                _accuracy(each, verifier),
                float(bool(tools)),
                float(each.sampled_tokens),
                float(sum(bool(t.status and t.status.is_policy_failure) for t in tools)),
                old,
                new,
            )
        )
    return found


def _accuracy(rollout: Trajectory, verifier: Scores) -> float | None:
    if failed_by_policy(rollout):
        return 0.0
    verified = verifier.given_to(rollout)
    return outcome_of(verified) if verified.rewards else None


def changes_of(rollouts: Sequence[Measured]) -> dict[str, PredictedChange]:
    """Predicted change of each measure that all rollouts have."""
    groups: dict[tuple[int, str], list[Measured]] = {}
    for each in rollouts:
        groups.setdefault(each.group, []).append(each)
    known = [name for name in MEASURES if all(getattr(r, name) is not None for r in rollouts)]
    by_group = [_changes(group, known) for group in groups.values() if len(group) > 1]
    if not by_group:
        return {}
    found: dict[str, PredictedChange] = {}
    for place, name in enumerate(known):
        old = [each[place][0] for each in by_group]
        new = [each[place][1] for each in by_group]
        differences = [b - a for a, b in zip(old, new, strict=True)]
        found[name] = PredictedChange(
            statistics.fmean(old), statistics.fmean(new), _error(new), _error(differences)
        )
    return found


def _changes(group: Sequence[Measured], names: Sequence[str]) -> list[tuple[float, float]]:
    """Changes of the measures within a group, each under the old and the new reward."""
    values = [[float(getattr(each, name)) for name in names] for each in group]
    sums = [(0.0, 0.0)] * len(names)
    for tokens in _by_beginning(group):
        if len(tokens) < 2:
            continue
        scale = len(tokens) / (len(tokens) - 1) / len(group)
        for place, (old_sum, new_sum) in enumerate(sums):
            mean = statistics.fmean(values[rollout][place] for rollout, _, _ in tokens)
            weighed = [(values[rollout][place] - mean, old, new) for rollout, old, new in tokens]
            sums[place] = (
                old_sum + scale * math.fsum(f * old for f, old, _ in weighed),
                new_sum + scale * math.fsum(f * new for f, _, new in weighed),
            )
    return sums


def _by_beginning(group: Sequence[Measured]) -> Iterable[list[tuple[int, float, float]]]:
    """Sampled tokens that follow the same tokens: index of the rollout, and the changes of the
    token's log-prob under the old and the new reward.
    """
    nodes: dict[tuple[int, int], int] = {}
    found: dict[int, list[tuple[int, float, float]]] = {}
    for index, each in enumerate(group):
        done: set[str] = set()
        for path in paths(each.rollout.calls):
            node = 0
            for call in path:
                old = iter(each.old.get(call.id, ()))
                new = iter(each.new.get(call.id, ()))
                for token_id, sampled in zip(call.token_ids, call.mask, strict=True):
                    if sampled and call.id not in done:
                        changes = (next(old, None), next(new, None))
                        if changes[0] is not None and changes[1] is not None:
                            found.setdefault(node, []).append((index, changes[0], changes[1]))
                    node = nodes.setdefault((node, token_id), len(nodes) + 1)
                done.add(call.id)
    return found.values()


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
