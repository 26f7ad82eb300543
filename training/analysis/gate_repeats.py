"""Repetitions of recorded runs by a new agent, which ask only for what has changed.

A repetition has two parts. Offline, it goes on until the first request or tool call that is not
recorded. This asks nothing, and shows which runs differ, and where. Live, it continues from there.

Each start of the gate repeats each run on a new thread, and takes answers from the record and from
the threads of earlier starts. So a gate that was killed asks nothing twice, and an agent that was
changed since then is not mistaken for the earlier one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from hrm_agent.errors import HrmError, RunError
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.ends import other_end
from hrm_agent.runtime.replay.repeats import (
    RepeatingRecording,
    RunOnRecord,
    first_difference,
    is_named,
    other_options,
    paths_of,
    run_on_record,
)
from hrm_agent.store import RunStore
from hrm_agent.training.evaluation.budget import BudgetUsedUp, Meter
from hrm_agent.training.evaluation.metered import MeteredRecording, Stuck, run_until_refused
from hrm_agent.trajectory import (
    Call,
    Journal,
    TaskRef,
    ToolCall,
    Trajectory,
    derive_seed,
)

__all__ = ["FirstDifference", "RecordedRun", "Repeat", "Repeats", "ToolRule"]

ToolRule = Literal["recorded", "run", "refuse"]
"""Rule for tool calls. `recorded`: recorded results are used if the call and its history are equal,
other calls run. `run`: all run. `refuse`: as `recorded`, but other calls end the repetition.
"""
_MOST_OPTIONS = 5
"""Maximum number of options of a request that are named."""
_MOST_LINES = 40
"""Maximum number of lines of a difference that are kept."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Recorded run to repeat."""

    trajectory: Trajectory
    """Run that has ended, without its calls."""
    task: TaskRef
    """Task of the run, with the options of the graph."""
    graph: str
    """Name of the graph that repeats it."""
    context: Mapping[str, Any]
    """LangGraph's run context."""
    seed: int
    """Base of the seeds of its calls."""
    weights_at: float
    """Unix time of the last change of the policy's files (0 without any)."""
    runner: EpisodeRunner
    """Runner that need not have loaded its policy, with another store than that of the gate."""
    live: Callable[[], EpisodeRunner]
    """Function that returns the runner that may ask."""


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """First request or tool call of a repetition that the recorded run did not make."""

    role: str
    """Role that makes it."""
    words: str
    """The difference in one sentence."""
    lines: tuple[str, ...]
    """Diff from the recorded request."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repetition of a run, as far as it has come."""

    run: RecordedRun
    """Recorded run that is repeated."""
    sample: int
    """Index of the sample of the new agent."""
    trajectory: Trajectory | None
    """Ended repetition (None: it waits where a request was refused)."""
    difference: FirstDifference | None
    """First difference (None: all requests and tool calls are those of the recorded run)."""
    other_requests: bool
    """True if a request to a model is not that of the recorded run."""
    unused: tuple[Call, ...]
    """Recorded answers that are left."""
    other_end: str = ""
    """Part of the end that is not the recorded one, in words (empty: none, or not ended)."""
    answered: int = 0
    """Number of answers of earlier starts that were used in the offline part."""
    begun: int = 0
    """Number of further samples that earlier starts have begun."""
    refused: str = ""
    """Reason why the repetition cannot be continued (empty if it can)."""

    @property
    def unchanged(self) -> bool:
        """True if the repetition has the recorded requests, tool calls and end."""
        return self.same_requests and not self.other_end

    @property
    def same_requests(self) -> bool:
        """True if the repetition has ended with the recorded requests."""
        return self.trajectory is not None and not self.other_requests and not self.unused


class Repeats:
    """Repetitions of runs in a store of their own."""

    def __init__(
        self,
        source: RunStore,
        store: RunStore,
        run_id: str,
        tools: ToolRule,
        meter: Meter,
    ) -> None:
        """`source`: store of the recorded runs. `meter`: budget of the requests."""
        self.store = store
        self.meter = meter
        self._source = source
        self._run_id = run_id
        self._tools: ToolRule = tools
        self.policies = set[str]()
        """Names of all models that were behind policy()."""
        self._before = dict[str, list[tuple[int, Trajectory]]]()
        for header in store.journal.headers("run_id = ?", (run_id,)):
            start, _, rest = header.thread_id.removeprefix(f"{run_id}/").partition("/")
            if start.isdecimal():
                self._before.setdefault(rest, []).append((int(start), header))
        samples = (name.partition("/") for name in self._before)
        self._further = Counter(thread for sample, _, thread in samples if sample != "0")
        starts = (start for each in self._before.values() for start, _ in each)
        self._start = max(starts, default=0) + 1

    async def offline(self, run: RecordedRun, closed: Meter) -> Repeat:
        """Repeat a run until the first difference. `closed`: meter that accepts no request."""
        found = await self._repeat(run, 0, run.runner, closed, known=None)
        return replace(found, begun=self._further[run.trajectory.thread_id])

    async def live(self, run: RecordedRun, sample: int, known: Repeat) -> Repeat:
        """Repeat a run to its end, or until the budget is used up. `known`: its offline part.

        The run begins anew on another thread: a node of the offline part may have caught the
        refusal of a request, and have written what an asked model would not have made it write.
        """
        return await self._repeat(run, sample, run.live(), self.meter, known=known)

    async def _repeat(
        self,
        run: RecordedRun,
        sample: int,
        runner: EpisodeRunner,
        meter: Meter,
        known: Repeat | None,
    ) -> Repeat:
        episode = self._episode(run, sample, live=known is not None)
        stuck = Stuck(asyncio.get_running_loop())
        records = await asyncio.to_thread(self._records, run, sample)
        recordings = list[GateRecording]()
        record = partial(
            GateRecording,
            records=records,
            paths=paths_of(self.store, episode.thread_id, run.graph, run.task),
            weights_at=run.weights_at,
            tools=self._tools,
            offline=known is None,
            meter=meter,
            stuck=stuck,
            opened=recordings,
        )
        ended = None
        refused = ""
        try:
            ended = await run_until_refused(
                replace(runner, store=self.store, record=record), episode, stuck
            )
        except _NoResult as error:
            refused = error.message
        for each in recordings:
            self.policies |= each.policies
        active = next((each for each in recordings if each.unrecorded), None)
        active = active or (recordings[-1] if recordings else None)
        difference = None if active is None else _difference(self._source, active, self._tools)
        unused = () if active is None else tuple(active.unused())
        other = any(each.other_requests for each in recordings)
        answered = 0 if active is None else active.answered_earlier
        end = ""
        if ended is not None:
            sides = (self._source, run.trajectory, self.store, ended)
            end = await asyncio.to_thread(other_end, *sides, run.graph)
        found = Repeat(
            run, sample, ended, difference, other, unused, end, answered=answered, refused=refused
        )
        if known is None:
            return found
        # the offline part has the first difference for all samples
        return replace(
            found,
            difference=known.difference or difference,
            other_requests=known.other_requests or other,
        )

    def _records(self, run: RecordedRun, sample: int) -> list[RunOnRecord]:
        """The recorded run, then its earlier repetitions, the newest first."""
        before = sorted(self._before.get(_name(run, sample), ()), key=lambda each: -each[0])
        return [
            run_on_record(self._source, run.trajectory, run.graph, run.task),
            *(run_on_record(self.store, each, run.graph, run.task) for _, each in before),
        ]

    def _episode(self, run: RecordedRun, sample: int, *, live: bool) -> Episode:
        thread = f"{self._run_id}/{self._start + live}/{_name(run, sample)}"
        return Episode(
            task=run.task,
            thread_id=thread,
            graph=run.graph,
            run_id=self._run_id,
            group_id=thread,  # each repetition has memories of its own
            seed=run.seed if not sample else derive_seed(run.seed, "gate", sample),
            context=run.context,
        )


def _name(run: RecordedRun, sample: int) -> str:
    return f"{sample}/{run.trajectory.thread_id}"


class _NoResult(RunError):
    """A tool call has no recorded result, and may not run."""


class GateRecording(MeteredRecording, RepeatingRecording):
    """Recording of a repetition."""

    def __init__(
        self,
        journal: Journal,
        seed: int | None,
        inherited: Collection[str],
        *,
        records: Sequence[RunOnRecord],
        tools: ToolRule,
        offline: bool,
        opened: list[GateRecording],
        **more: Any,
    ) -> None:
        """`opened`: list that this recording is added to."""
        recorded = tools != "run"
        super().__init__(journal, seed, inherited, records=records, recorded_tools=recorded, **more)
        self._tools_rule = tools
        self._offline = offline
        opened.append(self)

    def may_load(self, *, can_wait: bool) -> bool:
        if not self._offline:
            return True
        error = BudgetUsedUp("Nothing is asked offline.")
        if self._closed:  # a node in a thread cannot be cancelled
            raise error
        if not can_wait:
            self._refuse(error)
        self._stuck.error = self._stuck.error or error
        self._stuck.report()
        return False

    def runs_tool(self, started: ToolCall, *, asks: bool) -> None:
        if self._tools_rule == "refuse":
            why = "asks models" if asks else "has no recorded result"
            self._refuse(_NoResult(f"the tool {started.name} {why}, and may not run"))
        if self._offline and not asks:
            self._refuse(BudgetUsedUp("No tool runs offline."))

    def _refuse(self, error: HrmError) -> None:
        self._stuck.error = self._stuck.error or error
        self._stuck.report()
        self.broken = self.broken or error
        raise asyncio.CancelledError from error


def _other_model(recording: RepeatingRecording, nearest: Call) -> str:
    """Difference between requests with equal messages and tools, in words."""
    model = recording.unrecorded_model
    if model is None:
        return "asks with other options"
    if not is_named(nearest, model):
        return f"asks {model.name} in place of {nearest.model}"
    if recording.is_of_other_weights(nearest, model):
        return f"asks {model.name}, whose files have changed since"
    names = other_options(nearest, model)
    if names is None:
        return "asks with options that are not all on record"
    shown = f" ({', '.join(names[:_MOST_OPTIONS])})" if names else ""
    return f"asks with other options{shown}"


def _difference(
    store: RunStore, recording: RepeatingRecording, tools: ToolRule
) -> FirstDifference | None:
    asked = recording.unrecorded
    if asked is None:
        return None
    nearest = recording.answers.nearest(asked)
    node = asked.identity.node
    if asked.tool_call is not None:
        why = "is run" if tools == "run" else "has no recorded result"
        words = f"{node} calls {asked.tool_call.name}, which {why}"
        return FirstDifference(asked.identity.role, words, ())
    lines = tuple(first_difference(store, recording))
    what = "sends a request for which there is none on record"
    if isinstance(nearest, Call):
        what = "sends another request" if lines else _other_model(recording, nearest)
    return FirstDifference(asked.identity.role, f"{node} {what}", lines[:_MOST_LINES])
