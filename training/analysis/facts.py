"""Facts of a run from which the tables of an analysis are made: one record for each rollout,
without tokens, read step by step.

If a rollout was repeated because a machine failed, its second attempt counts, as in
`metrics.jsonl`.

Failed tool calls are counted by typed status. Calls with status `error` are also counted by class
of exception. The environment decides the status. The class is read from the last line of standard
error, which the code of the policy controls, so the class is only a label in a table and decides
nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hrm_agent.basics.intervals import wilson_interval
from hrm_agent.errors import StoreError
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
    "LengthBin",
    "Part",
    "RolloutFacts",
    "StepMetrics",
    "ToolErrorRow",
    "error_class",
    "error_classes",
    "error_line",
    "facts_of",
    "length_bins",
    "mean_tokens",
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
    """Number of tool calls of these rollouts."""
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


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Rollouts of similar length."""

    least: int
    """Smallest number of completion tokens in the bin."""
    most: int
    """Largest number of completion tokens in the bin."""
    rollouts: int
    """Number of rollouts in the bin."""
    accuracy: float
    """Share of right rollouts in the bin."""
    interval: tuple[float, float]
    """95 % interval of `accuracy` (Wilson). It treats rollouts as independent, although rollouts of
    one group are not quite.
    """


def error_line(stderr: str) -> str:
    """Last line of `stderr` that is not blank, truncated."""
    lines = stderr[-4096:].split("\n")
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if line.strip()), "")


def error_class(stderr: str) -> str:
    """Class of exception in the last line of a traceback, such as `NameError`."""
    found = _NAMED.match(error_line(stderr))
    return found[1] if found else _UNNAMED


def tool_error_rows(
    facts: Sequence[RolloutFacts], metrics: dict[str, StepMetrics]
) -> list[ToolErrorRow]:
    """One row for each part, in the order of the facts. `metrics`: metrics by name of the part."""
    parts: dict[str, list[RolloutFacts]] = {}
    for each in facts:
        parts.setdefault(each.part, []).append(each)
    found: list[ToolErrorRow] = []
    for name, of_part in parts.items():
        statuses = sum((each.statuses for each in of_part), Counter[str]())
        errors = sum((each.errors for each in of_part), Counter[str]())
        found.append(
            ToolErrorRow(
                part=name,
                step=of_part[0].step,
                rollouts=len(of_part),
                calls=statuses.total(),
                statuses=dict(statuses.most_common()),
                errors=dict(errors.most_common()),
                correct_with_tool_error=metrics[name]["rollout/correct_with_tool_error"],
            )
        )
    return found


def error_classes(facts: Iterable[RolloutFacts]) -> list[ErrorClass]:
    """Classes of exceptions of the whole run, most common first."""
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


def length_bins(facts: Iterable[RolloutFacts], bins: int = 8) -> list[LengthBin]:
    """Bins by length with about equal numbers of rollouts. Rollouts of equal length are in the same
    bin.
    """
    known = sorted(
        (each.tokens, each.correct) for each in facts if each.tokens is not None and each.scored
    )
    found: list[LengthBin] = []
    start = 0
    for number in range(1, bins + 1):
        stop = max(start, round(number * len(known) / bins))
        while 0 < stop < len(known) and known[stop][0] == known[stop - 1][0]:
            stop += 1
        if stop > start:
            size = stop - start
            right = sum(correct for _, correct in known[start:stop])
            interval = wilson_interval(right, size)
            found.append(
                LengthBin(known[start][0], known[stop - 1][0], size, right / size, interval)
            )
            start = stop
    return found


def mean_tokens(facts: Iterable[RolloutFacts], *, correct: bool) -> float:
    """Mean completion tokens of the correct or the wrong rollouts (nan if no length is known)."""
    known = [each.tokens for each in facts if each.correct is correct and each.tokens is not None]
    return fmean(known) if known else math.nan


StepMetrics = dict[str, float]
"""Metrics of one part, by their names in `metrics.jsonl`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a run: the rollouts of one training step or one evaluation, or single runs."""

    name: str
    """Name of the part: `step 1` (as the console counts), `eval-after`, another stage, the id of
    the run, or `single runs`.
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
    """True if the answer is right. A truncated run is wrong."""
    scored: bool
    """True if the rollout was scored."""
    tokens: int | None
    """Completion tokens (None if a provider did not report them)."""
    statuses: Counter[str]
    """Tool calls by status."""
    errors: Counter[str]
    """Tool calls with status `error`, by class of exception."""
    failed: bool
    """True if a tool call failed through the policy's fault."""
    penalty_format: float
    """p_format of GRPO-RoC, from the rollout's overlay if there is one."""
    padding: int
    """Number of tool calls that do nothing or repeat another call."""
    verdict: str | None
    """Verdict of the training (None outside of training)."""
    drop_reason: str | None
    """Reason why the rollout was not trained on (None if it was, and outside of training)."""
    error_examples: tuple[tuple[str, str], ...]
    """Exceptions in their order, each as (class, last line)."""


def parts_of(runs: RecordedRuns, left_out: dict[str, int]) -> list[Part]:
    """Parts of a record, in order, training steps first. `left_out`: reason -> number of rollouts
    left out, to which this adds.
    """
    headers = runs.headers(left_out)
    ended = [header for header in headers if header.status is not RunStatus.RUNNING]
    if len(ended) < len(headers):
        left_out["not ended"] = len(headers) - len(ended)
    threads = {header.thread_id for header in ended}
    counted = [header for header in ended if f"{header.thread_id}{SECOND_ATTEMPT}" not in threads]
    if again := len(ended) - len(counted):
        left_out["first attempts of rollouts that a machine failed"] = again
    # overlays of the runs that made the trajectories, not of later trainings on these
    overlays: dict[str, Overlay] = {}
    if runs.store is not None:
        for run_id in sorted({header.run_id for header in ended}):
            overlays |= {each.trajectory_id: each for each in runs.store.journal.overlays(run_id)}
    found: dict[tuple[int | None, str], list[Trajectory]] = {}
    for header in counted:
        overlay = overlays.get(header.id)
        step = overlay.step if overlay is not None else step_in_name(header.group_id, header.run_id)
        stage = header.group_id.split("/")[-2] if header.group_id.count("/") >= 2 else ""
        name = f"step {step + 1}" if step is not None else stage or header.run_id or "single runs"
        found.setdefault((None if step is None else step + 1, name), []).append(header)
    # parts that are no steps stay in the order in which they began
    ordered = sorted(found, key=lambda place: (place[0] is None, place[0] or 0))
    return [
        Part(
            name,
            step,
            tuple(found[step, name]),
            {each.id: overlays[each.id] for each in found[step, name] if each.id in overlays},
        )
        for step, name in ordered
    ]


def read_part(
    runs: RecordedRuns, part: Part, left_out: dict[str, int]
) -> tuple[list[RolloutFacts], StepMetrics]:
    """Read the facts of each rollout of a part, and the metrics of all of them."""
    whole = [*readable(runs, part.headers, left_out)]
    facts = [facts_of(trajectory, part, part.overlays.get(trajectory.id)) for trajectory in whole]
    # A step's metrics exclude rollouts that were carried over from another step, and rollouts that
    # were cut off.
    beside = {
        each.trajectory_id
        for each in part.overlays.values()
        if each.carried_from is not None or each.drop_reason is DropReason.CUT_OFF
    }
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
        penalty_format=(
            overlay.penalty_format
            if overlay
            else penalty_format(trajectory.own_calls, counted, trajectory.policy)
        ),
        padding=len(counted.padding),
        verdict=overlay.verdict.value if overlay else None,
        drop_reason=overlay.drop_reason.value if overlay and overlay.drop_reason else None,
        error_examples=tuple(
            zip(classes, (error_line(call.stderr) for call in raised), strict=True)
        ),
    )


def readable(
    runs: RecordedRuns,
    headers: Iterable[Trajectory],
    left_out: dict[str, int],
    *,
    requests: bool = False,
) -> Iterator[Trajectory]:
    """Yield the trajectories with their calls, and with the requests of these if asked for. Damaged
    trajectories are left out, and counted in `left_out`.
    """
    for header in headers:
        try:
            yield runs.whole(header.id, requests=requests)
        except StoreError:
            reason = "cannot be read: `hrm-agent store verify` lists why"
            left_out[reason] = left_out.get(reason, 0) + 1
