"""Verdicts for the rollouts of a step, group by group, and the reasons why a step has nothing to
train on.

Only the last attempt of a rollout is judged with its group. Earlier attempts get separate verdicts,
so that every attempt on record has a verdict. A group is rejected if its rewards are equal, and
also if none of its calls was sampled from the unmodified policy (temperature 0, top-p).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from hrm_agent.errors import RunError
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.metrics import METRICS_FILE, NOT_FINITE, Row, read_metrics
from hrm_agent.training.rollout.eligibility import Why, fault_of
from hrm_agent.training.rollout.rollout import Attempts
from hrm_agent.training.select.diagnosis import (
    GROUPS_FAILED,
    diagnosis,
    failure_counts,
    nothing_got_through,
    totals_of,
)
from hrm_agent.training.select.roc import RocOptions, select
from hrm_agent.training.update.advantages import by_group, credit_by_name, credited, turn_options
from hrm_agent.training.update.batch import NoGradient, no_gradient
from hrm_agent.training.update.optimizer_step import ALL_STALE, NOTHING_TO_TRAIN
from hrm_agent.trajectory import DropReason, Overlay, RunStatus, Trajectory, Verdict

__all__ = [
    "advice",
    "credited_overlays",
    "explained",
    "judge",
    "judge_group",
    "refuse_hopeless",
    "selection_metrics",
    "when_learning_stopped",
    "why_nothing_is_kept",
    "why_nothing_was_learnt",
]

_GROUPS = {
    DropReason.EQUAL_REWARDS: "groups_equal_rewards",
    DropReason.SMALL_GROUP: "groups_too_small",
    DropReason.RUN_FAILED: GROUPS_FAILED,
    DropReason.NO_GRADIENT: "groups_without_gradient",
}
"""Reason why a whole group is left out -> name of the metric `select/{name}`."""
_WORDS = {
    DropReason.EQUAL_REWARDS: "have equal rewards",
    DropReason.SMALL_GROUP: "have too few rollouts that can take part",
    DropReason.RUN_FAILED: "raised the same error in every rollout",
    DropReason.NO_GRADIENT: "have no call that can be trained on",
}
_MOST_GROUPS = 0.8
"""Share of rejected groups at or above which a step teaches almost nothing."""
_LAST_STEPS = 5
_LOST = (DropReason.INFRASTRUCTURE, DropReason.RUN_FAILED)


def judge(
    rollouts: Sequence[Attempts], step: int, run_id: str, config: GrpoConfig
) -> list[Overlay]:
    """Return a verdict for every attempt of every rollout of a step, group by group, without
    advantages.
    """
    groups: dict[str, list[Attempts]] = {}
    for attempts in rollouts:
        groups.setdefault(attempts[-1].group_id, []).append(attempts)
    return [
        overlay for group in groups.values() for overlay in judge_group(group, step, run_id, config)
    ]


def judge_group(
    group: Sequence[Attempts], step: int, run_id: str, config: GrpoConfig
) -> list[Overlay]:
    """Return a verdict for every attempt of every rollout of one group, without advantages."""
    config = config.of_family(group[0][-1].task.family)
    options = RocOptions(
        selection=config.select.selection,
        min_negatives=config.select.min_negatives,
        min_positives=config.select.min_positives,
        eps=config.select.penalty_eps,
        penalties=config.select.penalties,
        truncated=config.select.truncated,
        turns=turn_options(config.loss) if config.loss.credit == "per_turn" else None,
        taught=config.loss.teacher is not None,
    )

    def selected(
        trajectories: Sequence[Trajectory],
        min_group: float = 0.0,
        algorithm: str = "grpo",  # for the verdict of a single rollout
    ) -> list[Overlay]:
        return select(
            trajectories,
            config.rollout.group_size,
            algorithm,
            seed=config.seed,
            run_id=run_id,
            step=step,
            options=options,
            min_group=min_group,
        )

    out = {
        attempts[-1].id: why
        for attempts in group
        if (why := _why_left_out(attempts[-1], step, config))
    }
    last = [attempts[-1] for attempts in group if attempts[-1].id not in out]
    of_group = selected(last, config.select.min_group, config.select.algorithm) if last else []
    judged = _without_gradient(last, of_group) if last else []
    judged += [
        selected([each[-1]])[0].model_copy(
            update={"verdict": Verdict.DROPPED, "drop_reason": reason, "reason": why}
        )
        for each in group
        if each[-1].id in out
        for reason, why in [out[each[-1].id]]
    ]
    for attempts in group:
        for first in attempts[:-1]:
            overlay = selected([first])[0]
            reason = f"{overlay.reason}; run once more as {attempts[-1].thread_id}"
            judged.append(overlay.model_copy(update={"reason": reason}))
    return judged


def _without_gradient(group: Sequence[Trajectory], overlays: list[Overlay]) -> list[Overlay]:
    """Overlays of a group, which is rejected if none of the calls to learn from can be trained on.

    A group of greedy rollouts also has equal rewards, but the reported reason is that it has no
    call to train on.
    """
    able = [t for t in group if fault_of(t) is None]
    kept = {overlay.trajectory_id for overlay in overlays if _is_kept(overlay)}
    learnt_from = [t for t in able if t.id in kept] or able
    found = Counter(no_gradient(call, t.policy) for t in learnt_from for call in t.own_calls)
    small = any(overlay.drop_reason is DropReason.SMALL_GROUP for overlay in overlays)
    if small or not able or found[None]:
        return overlays
    calls = ", ".join(
        f"{count} {reason.value.replace('_', ' ')}" for reason, count in found.items() if reason
    )
    said = {
        "verdict": Verdict.GROUP_REJECTED,
        "drop_reason": DropReason.NO_GRADIENT,
        "reason": (
            f"group rejected: none of its calls can be trained on ({calls or 'no call was made'})"
        ),
    }
    ids = {trajectory.id for trajectory in able}
    return [o.model_copy(update=said) if o.trajectory_id in ids else o for o in overlays]


def _why_left_out(trajectory: Trajectory, step: int, config: GrpoConfig) -> Why | None:
    """Reason why an ended rollout is left out of its group (None if it is not)."""
    if (old := _too_old(trajectory, step, config)) is not None:
        return DropReason.TOO_OLD, old
    cut = trajectory.status is RunStatus.TRUNCATED and config.select.truncated == "leave_out"
    if not cut or fault_of(trajectory) is not None:
        return None
    limit = trajectory.stop_reason.value if trajectory.stop_reason else "a limit"
    return DropReason.TRUNCATED, f"left out of the selection: truncated ({limit})"


def _too_old(trajectory: Trajectory, step: int, config: GrpoConfig) -> str | None:
    """Reason why a rollout is too old: one of its tokens was sampled by older weights than the run
    allows (None if there is no such token).

    A run begins no rollout so early. But a rollout on record can be too old if the run allowed more
    `versions_behind` before it was resumed.
    """
    bound = config.rollout.versions_behind
    if not bound or config.source:  # versions on record are those of another training
        return None
    versions = (
        call.policy_version
        for call in trajectory.own_calls
        if no_gradient(call, trajectory.policy) is None
    )
    behind = step - min(versions, default=step)
    return (
        f"sampled by weights {behind} versions back, more than versions_behind = {bound}"
        if behind > bound
        else None
    )


def credited_overlays(
    rollouts: Sequence[Trajectory],
    judged: Sequence[Overlay],
    config: GrpoConfig,
    beside: Sequence[Overlay] = (),
) -> list[Overlay]:
    """Overlays of a step with advantages and the weight of each call.

    `beside`: further overlays of the step, which already have advantages. They are passed to the
    estimator, which may use all rewards of a step.
    """
    loss = config.loss
    overlays = by_group([*judged, *beside], loss.advantages, loss.advantage_eps)[: len(judged)]
    credit = credit_by_name(
        loss.credit,
        advantages=loss.advantages,
        eps=loss.advantage_eps,
        frozen=loss.frozen_roles,
        turns=turn_options(loss),
    )
    return credited(rollouts, overlays, credit)


def selection_metrics(rollouts: Sequence[Attempts], overlays: Iterable[Overlay]) -> Row:
    """Numbers of rollouts that were run again, failed or were lost, and of groups that were left
    out, by reason.
    """
    by_id = {overlay.trajectory_id: overlay for overlay in overlays}
    last = [by_id[attempts[-1].id] for attempts in rollouts]
    members: dict[str, list[Overlay]] = {}
    for overlay in last:
        members.setdefault(overlay.group_id, []).append(overlay)
    groups = Counter(
        _why_rejected(group) for group in members.values() if not any(map(_is_kept, group))
    )
    return {
        "rollout/second_attempts": float(sum(len(attempts) > 1 for attempts in rollouts)),
        "rollout/lost": float(
            sum(
                overlay.drop_reason in _LOST
                for overlay in last
                if overlay.verdict is Verdict.DROPPED
            )
        ),
        "select/truncated": float(
            sum(overlay.drop_reason is DropReason.TRUNCATED for overlay in last)
        ),
        **failure_counts([attempts[-1] for attempts in rollouts]),
        **{f"select/{name}": float(groups[reason]) for reason, name in _GROUPS.items()},
    }


def _is_kept(overlay: Overlay) -> bool:
    return overlay.verdict is Verdict.KEPT


def _why_rejected(group: Sequence[Overlay]) -> DropReason:
    """Reason why a group was rejected (`SMALL_GROUP` if all its rollouts were lost)."""
    reasons = (
        overlay.drop_reason for overlay in group if overlay.verdict is Verdict.GROUP_REJECTED
    )
    return next(filter(None, reasons), DropReason.SMALL_GROUP)


def explained(update: Row, metrics: Mapping[str, float]) -> Row:
    """Metrics of an update, in which `skipped` also says why there was nothing to train on."""
    if update["skipped"] != NOTHING_TO_TRAIN:
        return update
    return {**update, "skipped": f"{NOTHING_TO_TRAIN}: {why_nothing_is_kept(metrics)}"}


def why_nothing_is_kept(metrics: Mapping[str, Any]) -> str:
    """Reasons why groups were rejected, for one step or the summed metrics of several.

    Example: `14 of 16 groups have equal rewards, 2 of 16 ...`.
    """
    counts = {reason: int(metrics.get(f"select/{name}") or 0) for reason, name in _GROUPS.items()}
    total = sum(counts.values())
    parts = [
        f"{count} of {total} groups {_WORDS[reason]}" for reason, count in counts.items() if count
    ]
    if counts[DropReason.NO_GRADIENT]:
        calls = {reason: int(metrics.get(f"select/{reason.value}") or 0) for reason in NoGradient}
        shown = [
            f"{count} {reason.value.replace('_', ' ')}" for reason, count in calls.items() if count
        ]
        parts[-1] += f" ({', '.join(shown) or 'no call was made'})"
    return ", ".join(parts) or "there was no rollout"


def why_nothing_was_learnt(rows: Sequence[Row]) -> str | None:
    """Reason why no step of a run changed the weights, with advice.

    Returns None if a step changed them, or if there are no rows. Rows written by an earlier version
    contain no reason.
    """
    if not rows or any(row["stepped"] for row in rows):
        return None
    if any(row.get("skipped") == NOT_FINITE for row in rows):
        return f"Nothing was learnt: {NOT_FINITE}. Lower learning_rate, and look at the rewards."
    if any(row.get("skipped") == ALL_STALE for row in rows):
        return (
            f"Nothing was learnt: {ALL_STALE}. Raise max_staleness, or sample with newer weights."
        )
    totals = totals_of(rows)
    steps = f"{len(rows)} step{'s' * (len(rows) != 1)}"
    if not totals.counts.keys() & {f"select/{name}" for name in _GROUPS.values()}:
        return (
            f"Nothing was learnt in {steps}. An earlier version took them, which did not record"
            " why."
        )
    return (
        f"Nothing was learnt in {steps}: {why_nothing_is_kept(totals.counts)}. {diagnosis(totals)}"
    )


def when_learning_stopped(rows: Sequence[Row]) -> str | None:
    """Text with the first step from which on almost no group taught anything, and advice (None if
    there is no such step).

    At least `_LAST_STEPS` such steps at the end are required, since a single one may be bad luck.
    """
    rejected = [row.get("select/groups_rejected") for row in rows]
    idle = list(
        takewhile(lambda share: share is not None and share >= _MOST_GROUPS, reversed(rejected))
    )
    if len(idle) < _LAST_STEPS or len(idle) == len(rows):
        return None
    last = rows[-len(idle) :]
    shares = [share for share in idle if share is not None]
    totals = totals_of(last)
    span = f"{min(shares):.0%} to {max(shares):.0%}"
    return (
        f"From step {int(last[0]['step']) + 1} on, {span} of the groups taught nothing: "
        f"{why_nothing_is_kept(totals.counts)}. {diagnosis(totals)}"
    )


def refuse_hopeless(row: Row, folder: Path) -> None:
    """Raise `RunError` if every rollout of the run so far failed in its graph or its reward, so
    that further steps would fail, too.
    """
    if not nothing_got_through(totals_of([row])):
        return
    totals = totals_of(read_metrics(folder / METRICS_FILE))
    if nothing_got_through(totals):
        raise RunError(
            f"No rollout of {totals.steps} step{'s' * (totals.steps != 1)} got through."
            f" {diagnosis(totals)}",
            f"`hrm-agent history --store {folder}` lists them; `hrm-agent resume {folder}` goes on"
            " with the next step.",
        )


def advice(rows: Sequence[Row]) -> str:
    """Advice for steps in which many groups taught nothing."""
    return diagnosis(totals_of(rows))
