"""Facts of a run for its tables: one record for each rollout, read step by step, without tokens.

A rollout that was repeated because a machine failed it counts by its second attempt, as in
`metrics.jsonl`.

Failed tool calls are counted by typed status, and those with status `error` also by class of
exception. The status is decided by the side that enforces it. The class is read from the last line
of standard error, which the code controls: it is only a label for a table, and decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hrm_agent.errors import StoreError
from hrm_agent.training.analysis.entropy import Surprise, surprise_of
from hrm_agent.training.evaluation.evaluate import group_metrics
from hrm_agent.training.records.runs import RecordedRuns
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT
from hrm_agent.training.select.penalties import count_calls, penalty_format, policy_tool_calls
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.trajectory import (
    DropReason,
    Overlay,
    RunStatus,
    ToolStatus,
    Trajectory,
    step_in_name,
)

__all__ = [
    "ErrorClass",
    "Part",
    "RolloutFacts",
    "StepMetrics",
    "ToolErrorRow",
    "error_class",
    "error_classes",
    "error_line",
    "facts_of",
    "parts_of",
    "read_part",
    "readable",
    "tool_error_rows",
]

_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w{0,59})(?::|$)")
_UNNAMED = "no exception named"
_LONGEST = 160
"""Maximum number of characters of an example."""


@dataclass(frozen=True, slots=True)
class ToolErrorRow:
    """Tool calls of one part of a run."""

    part: str
    """Name of the part."""
    step: int | None
    """Training step, counted from 1 (None outside of training)."""
    rollouts: int
    """Number of rollouts of the part."""
    calls: int
    """Number of their tool calls."""
    statuses: dict[str, int]
    """Tool calls by status, `ok` included."""
    errors: dict[str, int]
    """Tool calls with status `error` by class of exception."""
    correct_with_tool_error: float
    """Share of correct rollouts with a tool call that failed through the policy's fault, as in
    `metrics.jsonl` (nan if none is correct).
    """


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Tool calls that raised one class of exception, over the whole run."""

    name: str
    """Name of the class."""
    calls: int
    """Number of tool calls that raised it."""
    correct_rollouts: int
    """Number of correct rollouts with such a call."""
    example: str
    """Most common last line, truncated."""


def error_line(stderr: str) -> str:
    """Last line that is not blank, truncated."""
    lines = stderr[-4096:].split("\n")
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if line.strip()), "")


def error_class(stderr: str) -> str:
    """Class of exception in the last line of a traceback, such as `NameError`."""
    found = _NAMED.match(error_line(stderr))
    return found[1] if found else _UNNAMED


def tool_error_rows(
    facts: Sequence[RolloutFacts], metrics: dict[str, StepMetrics]
) -> list[ToolErrorRow]:
    """One row for each part, in the order of the facts. `metrics`: by part."""
    parts: dict[str, list[RolloutFacts]] = {}
    for each in facts:
        parts.setdefault(each.part, []).append(each)
    return [_row(name, of_part, metrics[name]) for name, of_part in parts.items()]


def error_classes(facts: Iterable[RolloutFacts]) -> list[ErrorClass]:
    """Classes of exceptions, most common first."""
    lines: dict[str, Counter[str]] = {}
    right: Counter[str] = Counter()
    for each in facts:
        for name, line in each.error_examples:
            lines.setdefault(name, Counter())[line] += 1
        right.update(each.errors.keys() if each.correct else ())
    found = [
        ErrorClass(name, seen.total(), right[name], seen.most_common(1)[0][0])
        for name, seen in lines.items()
    ]
    return sorted(found, key=lambda each: (-each.calls, each.name))


def _row(name: str, facts: Sequence[RolloutFacts], metrics: StepMetrics) -> ToolErrorRow:
    statuses = sum((each.statuses for each in facts), Counter[str]())
    errors = sum((each.errors for each in facts), Counter[str]())
    return ToolErrorRow(
        part=name,
        step=facts[0].step,
        rollouts=len(facts),
        calls=statuses.total(),
        statuses=dict(statuses.most_common()),
        errors=dict(errors.most_common()),
        correct_with_tool_error=metrics["rollout/correct_with_tool_error"],
    )


StepMetrics = dict[str, float]
"""Metrics of one part, by their names in `metrics.jsonl`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rollouts that belong together: of one training step, of one evaluation, or single runs."""

    name: str
    """Name: `step 1`, as the console counts; `eval-after`; the stage or id of the run; or `single
    runs`.
    """
    step: int | None
    """Training step, counted from 1 (None outside of training)."""
    headers: tuple[Trajectory, ...]
    """Rollouts, without their calls."""
    overlays: Mapping[str, Overlay]
    """Verdicts of the training, by trajectory (empty if nothing was selected)."""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Facts of one rollout for the tables."""

    part: str
    """Name of its part."""
    step: int | None
    """Training step, counted from 1 (None outside of training)."""
    correct: bool
    """True if its answer is right. A truncated run is wrong."""
    scored: bool
    """True if it was scored."""
    tokens: int | None
    """Completion tokens (None if a provider did not report them)."""
    statuses: Counter[str]
    """Tool calls by status."""
    errors: Counter[str]
    """Tool calls with status `error`, by class of exception."""
    failed: bool
    """True if a tool call failed through the policy's fault."""
    penalty_error: float
    """p_err of GRPO-RoC, from its overlay if there is one."""
    penalty_format: float
    """p_format of GRPO-RoC, from its overlay if there is one."""
    padding: int
    """Number of tool calls that do nothing or repeat another one."""
    verdict: str | None
    """Verdict of the training (None outside of training)."""
    drop_reason: str | None
    """Reason why it was not trained on (None if it was, and outside of training)."""
    surprise: Surprise
    """-log p of its sampled tokens, as recorded."""
    error_examples: tuple[tuple[str, str], ...]
    """Class and last line of the errors, in their order."""


def parts_of(runs: RecordedRuns, left_out: dict[str, int]) -> list[Part]:
    """Parts of a record, training steps first, in order. `left_out`: counts by reason, which are
    added to.
    """
    ended = [header for header in runs.headers(left_out) if header.status is not RunStatus.RUNNING]
    threads = {header.thread_id for header in ended}
    counted = [header for header in ended if f"{header.thread_id}{SECOND_ATTEMPT}" not in threads]
    if again := len(ended) - len(counted):
        left_out["first attempts of rollouts that a machine failed"] = again
    overlays = _overlays(runs, {header.run_id for header in ended})
    found: dict[tuple[int | None, str], list[Trajectory]] = {}
    for header in counted:
        found.setdefault(_place(header, overlays.get(header.id)), []).append(header)
    # other parts in the order in which they began
    ordered = sorted(found, key=lambda place: (place[0] is None, place[0] or 0))
    return [_part(step, name, found[step, name], overlays) for step, name in ordered]


def read_part(
    runs: RecordedRuns, part: Part, left_out: dict[str, int]
) -> tuple[list[RolloutFacts], StepMetrics]:
    """Read the facts of each rollout of a part, and the metrics of all of them."""
    whole = [*readable(runs, part.headers, left_out)]
    facts = [facts_of(trajectory, part, part.overlays.get(trajectory.id)) for trajectory in whole]
    beside = {each.trajectory_id for each in part.overlays.values() if _is_beside(each)}
    counted = [trajectory for trajectory in whole if trajectory.id not in beside]
    return facts, group_metrics(
        counted, [each for name, each in part.overlays.items() if name not in beside]
    )


def facts_of(trajectory: Trajectory, part: Part, overlay: Overlay | None) -> RolloutFacts:
    """Facts of one rollout."""
    tools = trajectory.own_tool_calls
    counted = count_calls(
        policy_tool_calls(trajectory), trajectory.task.prompt if trajectory.task else ""
    )
    raised = [call for call in tools if call.status is ToolStatus.ERROR]
    classes = [error_class(call.stderr) for call in raised]
    return RolloutFacts(
        part=part.name,
        step=part.step,
        correct=is_positive(outcome_of(trajectory)),
        scored="correct" in trajectory.rewards,
        tokens=trajectory.sampled_tokens or trajectory.used.output_tokens,
        statuses=Counter(call.status.value if call.status else "under way" for call in tools),
        errors=Counter(classes),
        failed=any(call.status is not None and call.status.is_policy_failure for call in tools),
        penalty_error=overlay.penalty_error if overlay else counted.error,
        penalty_format=(
            overlay.penalty_format
            if overlay
            else penalty_format(trajectory.own_calls, counted, trajectory.policy)
        ),
        padding=len(counted.padding),
        verdict=overlay.verdict.value if overlay else None,
        drop_reason=overlay.drop_reason.value if overlay and overlay.drop_reason else None,
        surprise=surprise_of(trajectory),
        error_examples=tuple(
            zip(classes, (error_line(call.stderr) for call in raised), strict=True)
        ),
    )


def readable(
    runs: RecordedRuns, headers: Iterable[Trajectory], left_out: dict[str, int]
) -> Iterator[Trajectory]:
    """Yield the trajectories with their calls. Damaged ones are counted in `left_out`."""
    for header in headers:
        try:
            yield runs.whole(header.id, requests=False)
        except StoreError:
            reason = "cannot be read: `hrm-agent store verify` lists why"
            left_out[reason] = left_out.get(reason, 0) + 1


def _overlays(runs: RecordedRuns, run_ids: Iterable[str]) -> dict[str, Overlay]:
    """Overlays by trajectory, from the runs that made them. Overlays of other trainings on them are
    ignored.
    """
    if runs.store is None:
        return {}
    journal = runs.store.journal
    return {
        each.trajectory_id: each for run_id in sorted(run_ids) for each in journal.overlays(run_id)
    }


def _place(header: Trajectory, overlay: Overlay | None) -> tuple[int | None, str]:
    """Step from 1 (None without a step), and name of the part."""
    stage = header.group_id.split("/")[-2] if header.group_id.count("/") >= 2 else ""
    step = overlay.step if overlay is not None else step_in_name(header.group_id, header.run_id)
    if step is not None:
        return step + 1, f"step {step + 1}"
    return None, stage or header.run_id or "single runs"


def _is_beside(overlay: Overlay) -> bool:
    """True if the metrics of a step exclude the rollout: it was cut off from its group, or carried
    over from another step.
    """
    return overlay.carried_from is not None or overlay.drop_reason is DropReason.CUT_OFF


def _part(
    step: int | None, name: str, headers: Sequence[Trajectory], overlays: Mapping[str, Overlay]
) -> Part:
    own = {header.id: overlays[header.id] for header in headers if header.id in overlays}
    return Part(name, step, tuple(headers), own)
