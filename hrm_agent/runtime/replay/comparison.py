"""Comparison of a replayed segment with the record: states, next tasks, and writes of tasks.

Checkpoints and tasks are paired by their place in the run (`hrm_agent.runtime.replay.task_path`),
in subgraphs too. Recorded parts that are not compared are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from hrm_agent.langgraph_format import ERROR
from hrm_agent.runtime.replay.checkpoint_diff import (
    Change,
    TaskWrites,
    next_changes,
    same_next_tasks,
    state_changes,
    task_writes,
    write_changes,
)
from hrm_agent.runtime.replay.ignored_paths import Ignored
from hrm_agent.runtime.replay.learned_ids import RecordedStates, root_of
from hrm_agent.runtime.replay.lineage import Segment, step_of
from hrm_agent.runtime.replay.renaming import Renaming
from hrm_agent.runtime.replay.task_path import TaskPath, TaskPathResolver, in_words
from hrm_agent.runtime.state import StateReader, Unbuilt

__all__ = ["SegmentComparison"]

_FAILED = "errors of attempts whose task ended well later"
_LEFT = "tasks of a step that the recorded run left before its end"
_RETRIED = "checkpoints of subgraphs in a step that was tried again or left"
_CACHED = "tasks that the graph's cache may have answered"
_NEXT = "sets of next tasks at the end of a record, which are others now"
_GRAPHS_IN_TOOLS = "checkpoints of subgraphs that ran in a tool, which is not run again"
_TASKS_IN_TOOLS = "tasks that a tool called, which is not run again"
_UNKNOWN = "states with a channel whose value the graph does not say how to make"
_IGNORED = "writes to channels that --ignore leads into"

Tasks = dict[TaskPath, list[TaskWrites]]
"""Writes of tasks by place. Tasks of the functional API share a place if LangGraph's names of them
are not recorded.
"""


class SegmentComparison:
    """Comparison of one segment: counts, and the first difference."""

    def __init__(
        self,
        serializer: SerializerProtocol,
        renaming: Renaming,
        ignored: Ignored,
        *,
        cached: bool,
        managed: Collection[str] = (),
        in_tools: Callable[[TaskPath, CheckpointTuple], bool] = lambda *_: False,
    ) -> None:
        """`cached`: the graph has a cache, whose results LangGraph does not write. `managed`: names
        of values that LangGraph computes beside the state. `in_tools`: True for a recorded task or
        subgraph that ran in a tool that was not run again.
        """
        self._serializer = serializer
        self._renaming = renaming
        self._ignored = ignored
        self._cached = cached
        self._managed = managed
        self._in_tools = in_tools
        self._left = Counter[str]()
        self.checkpoints = self.tasks = self.writes = 0
        self.step: int | None = None
        """Number of the first step that differs."""
        self.changes: tuple[Change, ...] = ()
        """Differences of that step."""
        self.ended = ""
        """Message if the replay ended before the record, or continues after it."""

    @property
    def not_compared(self) -> Counter[str]:
        """Number of recorded parts that were not compared, by description."""
        return self._left

    def compare(
        self,
        segment: Segment,
        recorded: RecordedStates,
        then_at: TaskPathResolver,
        states: StateReader,
        now_at: TaskPathResolver,
        *,
        stopped: bool,
    ) -> CheckpointTuple | None:
        """Return the newest checkpoint of the outermost graph up to which the replay equals the
        record.

        `states` reads the replay's checkpoints. `stopped`: the replay ended before the graph did.
        """
        line = _Line(
            recorded.by_place.items(), {found.checkpoint["id"] for found in segment.checkpoints}
        )
        now = _Line(((now_at.of_checkpoint(found), found) for found in states.listed), None)
        reached: CheckpointTuple | None = None
        for place, found in line.in_order:
            there = now.places.get(place)
            step = line.step_of(found)
            if there is None:
                self._missing(place, found, line, now, stopped=stopped)
                continue
            there = states.complete(there)
            outermost = len(place) == 1
            followed = _id(found) in line.followed
            same = self._same_state(found, there, step, outermost=outermost, followed=followed)
            if same and self.step is None and outermost:
                reached = next(
                    each
                    for each in segment.checkpoints
                    if each.checkpoint["id"] == found.checkpoint["id"]
                )
            started = step + 1 if outermost else step
            over = followed and _id(there) in now.followed
            self._compare_writes(
                found, _tasks(found, then_at), _tasks(there, now_at), started, over=over
            )
        if not stopped:
            self._additional(line, now, finished=segment.finished)
        return reached

    def _same_state(
        self,
        found: CheckpointTuple,
        now: CheckpointTuple,
        step: int,
        *,
        outermost: bool,
        followed: bool,
    ) -> bool:
        """Compare state and next tasks. `followed`: the next tasks ran to their end on record."""
        self.checkpoints += 1
        if any(isinstance(value, Unbuilt) for value in found.checkpoint["channel_values"].values()):
            self._left[_UNKNOWN] += 1
        equal = self._renaming.equal if outermost else self._renaming.learn
        changes = state_changes(self._serializer, found, now, equal, self._ignored)
        same = not changes and same_next_tasks(
            self._serializer, found, now, equal, self._ignored, self._managed
        )
        if not changes and not same and followed:
            changes = (next_changes(found, now),)
        elif not changes and not same:
            self._left[_NEXT] += 1
        self._note(step, changes or None)
        return same

    def _compare_writes(
        self, found: CheckpointTuple, then: Tasks, now: Tasks, step: int, *, over: bool
    ) -> None:
        """Compare the writes of tasks. `over`: their step has ended, on record and now."""
        for place, recorded in then.items():
            there = now.pop(place, [])
            if not there and self._in_tools(place, found):
                self._left[_TASKS_IN_TOOLS] += len(recorded)
                continue
            if len(recorded) != len(there):
                # an edit is not a task
                tasks = sum(bool(place[-1].node) or writes.is_functional for writes in recorded)
                self._lone(place, len(recorded) if over else tasks, len(there), step, over=over)
                continue
            for old, new in zip(self._in_order(recorded), self._in_order(there), strict=True):
                if over or (old.channels and new.channels):
                    self._same_writes(place, old, new, step)
                elif old.channels:
                    self._left[_LEFT] += 1
        for place, there in now.items() if over else ():
            self._lone(place, 0, len(there), step, over=True)

    def _in_order(self, tasks: list[TaskWrites]) -> list[TaskWrites]:
        """Sort tasks that share a place by their writes, since LangGraph's ids of them differ in
        each run.
        """
        if len(tasks) == 1:
            return tasks
        return sorted(
            tasks,
            key=lambda task: [self._serializer.dumps_typed(value)[1] for _, value in task.channels],
        )

    def _lone(self, place: TaskPath, recorded: int, now: int, step: int, *, over: bool) -> None:
        """Note tasks that wrote only on record, or only now."""
        if not over or self._cached:
            self._left[_CACHED if over else _LEFT] += recorded
            return
        diff = (f"-{recorded} on record", f"+{now} now")
        self._note(step, (Change("tasks that wrote", in_words(place), diff),))

    def _same_writes(self, place: TaskPath, old: TaskWrites, new: TaskWrites, step: int) -> None:
        ignored = sum(self._ignored.leads_into(channel) for channel, _ in old.channels)
        self.tasks, self.writes = self.tasks + 1, self.writes + len(old.channels) - ignored
        self._left.update({_FAILED: old.failed and old.ended, _IGNORED: ignored})
        changes = write_changes(self._serializer, old, new, self._renaming.learn, self._ignored)
        named = tuple(replace(change, part=f"written by {in_words(place)}") for change in changes)
        self._note(step, named or None)

    def _missing(
        self, place: TaskPath, found: CheckpointTuple, line: _Line, now: _Line, *, stopped: bool
    ) -> None:
        """Note a recorded checkpoint that the replay has not made."""
        step = line.step_of(found)
        if stopped:
            return
        if len(place) == 1:
            self.ended = (
                self.ended
                or f"it ended after step {now.last}, where the record goes on to step {line.last}"
            )
            self._note(step, ())
        elif self._in_tools(place, found):
            self._left[_GRAPHS_IN_TOOLS] += 1
        elif step > now.last or step > line.last or line.retried(found):
            self._left[_RETRIED] += 1
        else:
            self._note(
                step,
                (Change("subgraph", in_words(place), ("-ran on record", "+does not run now")),),
            )

    def _additional(self, line: _Line, now: _Line, *, finished: bool) -> None:
        """Note checkpoints of the replay that are not recorded."""
        if finished and now.last > line.last:
            self.ended = (
                self.ended
                or f"it goes on to step {now.last}, where the record ends with step {line.last}"
            )
            self._note(line.last + 1, ())
        for place, found in now.in_order:
            step = now.step_of(found)
            if len(place) > 1 and place not in line.places and step <= line.last:
                self._note(
                    step,
                    (Change("subgraph", in_words(place), ("-did not run on record", "+runs now")),),
                )
                return

    def _note(self, step: int, changes: tuple[Change, ...] | None) -> None:
        """Remember the first difference (None: no difference)."""
        if changes is not None and self.step is None:
            self.step = step
            self.changes = changes


class _Line:
    """Checkpoints of one side."""

    def __init__(
        self, found: Iterable[tuple[TaskPath, CheckpointTuple]], within: Collection[str] | None
    ) -> None:
        """`within`: ids of the checkpoints of the outermost graph (None: all)."""
        found = sorted(found, key=lambda one: _id(one[1]))
        outer = {_id(each): each for place, each in found if len(place) == 1}
        self._steps = {
            id_: step_of(each) for id_, each in outer.items() if within is None or id_ in within
        }
        self.in_order = [
            (place, each) for place, each in found if (root_of(each) or _id(each)) in self._steps
        ]
        """Checkpoints by time, with their places. Checkpoints of subgraphs from before these steps
        are left out.
        """
        self.places = dict(self.in_order)
        self.followed = {
            str((each.parent_config or {}).get("configurable", {}).get("checkpoint_id", ""))
            for _, each in self.in_order
        }
        """Ids of checkpoints whose step has ended."""
        self.last = max(self._steps.values())
        """Number of the last step of the outermost graph."""
        self._failed = {
            root_of(each) or _id(each)
            for _, each in self.in_order
            if any(channel == ERROR for _, channel, _ in each.pending_writes or ())
        }

    def step_of(self, found: CheckpointTuple) -> int:
        """Number of the outermost graph's step that led to a checkpoint, or that contains a
        subgraph's checkpoint.
        """
        root = root_of(found)
        return self._steps[_id(found)] if root is None else self._steps[root] + 1

    def retried(self, found: CheckpointTuple) -> bool:
        """True if an attempt at the step around a subgraph's checkpoint failed."""
        return root_of(found) in self._failed


def _tasks(found: CheckpointTuple, resolver: TaskPathResolver) -> Tasks:
    named = found.config.get("configurable", {})
    tasks: Tasks = {}
    for task_id, writes in task_writes(found).items():
        place = resolver.of_write(named.get("checkpoint_ns", ""), _id(found), task_id)
        tasks.setdefault(place, []).append(writes)
    return tasks


def _id(found: CheckpointTuple) -> str:
    return str(found.checkpoint["id"])
