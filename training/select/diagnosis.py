"""Diagnosis of a training that learns nothing: the most likely cause, and what to do about it.

A single metric misleads. Rewards are equal in a step whose rollouts are all truncated, but also in
a step whose tasks are too hard. A step has no call to train on if its prompts are too long for the
policy, but also if it samples greedily.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hrm_agent.training.metrics import Row
from hrm_agent.training.rollout.eligibility import error_of, failed_by_policy, fault_of
from hrm_agent.training.update.batch import NoGradient
from hrm_agent.trajectory import DropReason, RewardFault, RunStatus, StopReason, Trajectory

__all__ = [
    "GROUPS_FAILED",
    "Totals",
    "diagnosis",
    "failure_counts",
    "nothing_got_through",
    "totals_of",
]

GROUPS_FAILED = "groups_failed"
_FEW = 0.05
"""Share of right answers below which tasks are too hard, and share of wrong answers below which
tasks are too easy.
"""
_MOST = 0.5
"""Share of the rollouts at or above which a cause is reported."""
_SHOWN = 3
"""Number of most frequent errors in a step's row."""


def failure_counts(rollouts: Sequence[Trajectory]) -> Row:
    """Number of failed rollouts of a step, by cause, and the most frequent errors as text
    (`errors`).

    A truncated run with an error had a prompt that was too long: its first prompt or a later one.
    """
    faults = [(each, fault_of(each)) for each in rollouts]
    reasons = Counter(fault[0] for _, fault in faults if fault is not None)
    unscored = [
        each for each, fault in faults if fault is not None and fault[0] is DropReason.NOT_SCORED
    ]
    kinds = Counter(map(_reward_fault, unscored))
    failed = [each for each in rollouts if each.status is not RunStatus.TRUNCATED and each.error]
    too_long = [each for each in rollouts if each.status is RunStatus.TRUNCATED and each.error]
    said = Counter(error_of(each, place=True) for each in (*failed, *too_long))
    return {
        "rollout/raised": float(reasons[DropReason.RUN_FAILED]),
        "rollout/tools_lost": float(reasons[DropReason.INFRASTRUCTURE]),
        "rollout/not_scored": float(len(unscored)),
        "rollout/reward_raised": float(kinds[RewardFault.RAISED]),
        "rollout/reward_not_finite": float(kinds[RewardFault.NOT_A_NUMBER]),
        "rollout/failed_by_policy": float(sum(map(failed_by_policy, rollouts))),
        "rollout/prompt_too_long": float(sum(1 for each in too_long if not each.own_calls)),
        "rollout/window_full": float(sum(1 for each in too_long if each.own_calls)),
        "errors": (
            "; ".join(f"{count} x {error}" for error, count in said.most_common(_SHOWN)) or None
        ),
    }


def _reward_fault(trajectory: Trajectory) -> RewardFault | None:
    """Kind of the fault that left a rollout without a reward (None if its error names none)."""
    # rubrics and the runtime write the kind of the fault and its reason in parentheses
    named = (kind for kind in RewardFault if f": {kind} (" in (trajectory.error or ""))
    raised = RewardFault.RAISED if trajectory.stop_reason is StopReason.VERIFIER_ERROR else None
    return next(named, raised)


class Totals(NamedTuple):
    """Summed counts of some steps."""

    steps: int
    """Number of steps."""
    counts: Mapping[str, float]
    """Counts by the name of the metric. Shares of rollouts are converted to counts."""
    errors: str
    """Most frequent errors of the newest step that has any."""

    def of(self, name: str) -> float:
        return self.counts.get(name, 0.0)

    @property
    def rollouts(self) -> float:
        return self.of("rollout/count")


_SHARES = ("rollout/correct", "rollout/truncated", "rollout/failed")


def totals_of(rows: Sequence[Mapping[str, object]]) -> Totals:
    """Sum the counts in rows of metrics."""
    names = {name for row in rows for name in row if name.startswith(("select/", "rollout/"))}
    counts = dict.fromkeys(names, 0.0)
    for row in rows:
        rollouts = _number(row.get("rollout/count")) or 1.0
        for name in names:
            counts[name] += _number(row.get(name)) * (rollouts if name in _SHARES else 1.0)
    if rows and "rollout/count" not in names:
        counts["rollout/count"] = float(len(rows))
    errors = next((str(row["errors"]) for row in reversed(rows) if row.get("errors")), "")
    return Totals(len(rows), counts, errors)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def nothing_got_through(totals: Totals) -> bool:
    """True if every rollout failed in its graph or its reward, and no later step can be better.

    A rollout that failed because of what the policy wrote counts only if all rollouts of each group
    raised the same error at the same line, since otherwise later rollouts may succeed by chance.
    """
    failed = sum(totals.of(f"rollout/{name}") for name in ("raised", "not_scored"))
    if all(not totals.of(f"select/{name}") for name in _GROUPS if name != GROUPS_FAILED):
        failed += (
            totals.of("rollout/failed_by_policy") if totals.of(f"select/{GROUPS_FAILED}") else 0.0
        )
    return 0 < totals.rollouts <= failed


def diagnosis(totals: Totals) -> str:
    """Return the most likely cause why these steps learned nothing, and what to do next, as text
    for the user.
    """
    for cause in _CAUSES:
        if cause.holds(totals):
            return cause.advice(totals)
    return (
        "Raise group_size: the smaller a group, the more often all of it is right, or all of it"
        " wrong."
    )


class _Cause(NamedTuple):
    holds: Callable[[Totals], bool]
    advice: Callable[[Totals], str]


_LOSSES = ("raised", "not_scored", "tools_lost")
_GROUPS = ("groups_equal_rewards", "groups_too_small", GROUPS_FAILED, "groups_without_gradient")


def _mostly(*names: str) -> Callable[[Totals], bool]:
    return lambda totals: (
        sum(totals.of(f"rollout/{name}") for name in names) >= _MOST * totals.rollouts > 0
    )


def _lost_by(name: str) -> Callable[[Totals], bool]:
    """Condition: most rollouts are lost or most groups too small, and `name` is the most frequent
    cause of loss.
    """

    def holds(totals: Totals) -> bool:
        lost = {each: totals.of(f"rollout/{each}") for each in _LOSSES}
        matters = sum(lost.values()) >= _MOST * totals.rollouts or _groups_are("groups_too_small")(
            totals
        )
        return matters and lost[name] > 0 and lost[name] == max(lost.values())

    return holds


def _groups_are(name: str) -> Callable[[Totals], bool]:
    def holds(totals: Totals) -> bool:
        found = {each: totals.of(f"select/{each}") for each in _GROUPS}
        return found[name] > 0 and found[name] == max(found.values())

    return holds


def _named(totals: Totals) -> str:
    return f": {totals.errors}" if totals.errors else ""


def _share(names: Iterable[str], totals: Totals) -> str:
    count = sum(totals.of(f"rollout/{name}") for name in names)
    return f"{count:.0f} of {totals.rollouts:.0f} rollouts"


def _solved(totals: Totals) -> float:
    return totals.of("rollout/correct") / max(1.0, totals.rollouts)


_CAUSES: tuple[_Cause, ...] = (
    _Cause(
        _lost_by("raised"),
        lambda t: (
            f"In {_share(['raised'], t)} the graph itself raised an error{_named(t)}. Mend the"
            " graph, or what it asks."
        ),
    ),
    _Cause(
        _lost_by("not_scored"),
        lambda t: (
            f"{_share(['not_scored'], t)} have no reward: their rewards or verifiers raised, or"
            f" gave no finite number{_named(t)}. Mend them: a reward that fails is not taken for 0."
        ),
    ),
    _Cause(
        _lost_by("tools_lost"),
        lambda t: (
            f"In {_share(['tools_lost'], t)} tool calls were lost to the environment or a service. "
            "`hrm-agent history` and `show` say what failed."
        ),
    ),
    _Cause(
        _groups_are("groups_too_small"),
        lambda _: (
            "`hrm-agent history` and `show` say what failed: the environment, a tool, or the graph"
            " itself."
        ),
    ),
    _Cause(
        _groups_are(GROUPS_FAILED),
        lambda t: (
            f"In {_share(['failed_by_policy'], t)} the graph raised the same error, whatever the"
            f" policy wrote{_named(t)}. Mend the graph there; or, where it reads a form that the"
            " policy does not know, teach it by `train sft`."
        ),
    ),
    _Cause(
        _mostly("failed_by_policy"),
        lambda t: (
            f"In {_share(['failed_by_policy'], t)} the graph could not go on from what the policy"
            f" wrote{_named(t)}. Look at some with `show`. Ask for a simpler form, or teach it by"
            " `train sft`."
        ),
    ),
    _Cause(
        _mostly("prompt_too_long", "window_full"),
        lambda t: (
            f"In {_share(['prompt_too_long', 'window_full'], t)} the prompt is longer than the"
            f" policy's context window{_named(t)}. Shorten what the graph sends, or take a policy"
            " with a larger window."
        ),
    ),
    _Cause(
        _mostly("truncated"),
        lambda t: (
            f"{_share(['truncated'], t)} ended at a limit before they were done. Raise max_tokens,"
            " or the graph's turns, tokens or seconds (`show` says which limit it was), or teach"
            " shorter answers by `train sft`."
        ),
    ),
    _Cause(
        lambda t: (
            _groups_are("groups_without_gradient")(t)
            and not any(t.of(f"select/{each}") for each in NoGradient)
        ),
        lambda _: (
            "The policy was asked for nothing, or each of its calls failed: `hrm-agent history` and"
            " `show` list the calls that failed, also those that the graph caught, such as of a"
            " prompt that is too long for the policy."
        ),
    ),
    _Cause(
        _groups_are("groups_without_gradient"),
        lambda _: (
            "Sample with temperatures above 0 and top_p 1, also in the options of roles, and from"
            " the policy itself."
        ),
    ),
    _Cause(
        lambda t: _solved(t) < _FEW,
        lambda _: (
            "Almost no answer was right: take easier tasks, a better start (`train sft`), or look"
            " at some with `show`."
        ),
    ),
    _Cause(
        lambda t: _solved(t) > 1 - _FEW,
        lambda _: "Almost every answer was right: take harder tasks.",
    ),
)
"""Causes in the order in which they are checked. Losses come first, since the policy does not cause
them.
"""
