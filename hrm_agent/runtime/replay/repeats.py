"""Runs that repeat a recorded run on a thread of another store, up to what differs.

A request gets a recorded answer if its messages, tools, options and model are those of a recorded
request. If several fit, the place in the graph decides, as in a replay
(`hrm_agent.runtime.replay.recorded_answers`). Each answer is given once. Other requests are asked.
So an answer is asked for only if its request depends on what has changed, even if a parallel branch
has changed before.

A tool call gets a recorded result if its tool and arguments are those of a recorded call of the same
agent, and all earlier calls of this agent were answered from the record, too, in the recorded
order. An agent is one loop of the graph: its calls of the Python tool share a session, whose state
follows from the earlier calls. After the first tool call of an agent that runs, all its later ones
run. A session that continues in this way runs the code of its earlier calls again.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.models.call_recording import adopt_call
from hrm_agent.runtime.episode import CONFIGURABLE
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.replay.ends import result_of
from hrm_agent.runtime.replay.recorded_answers import (
    RecordedAnswers,
    RecordedDraws,
    UnrecordedRequest,
)
from hrm_agent.runtime.replay.request_diff import request_diff
from hrm_agent.runtime.replay.task_path import TaskPath, TaskPathResolver, without_steps
from hrm_agent.store import RunStore
from hrm_agent.trajectory import (
    AskedModel,
    Call,
    GraphIdentity,
    Journal,
    Recording,
    TaskDraws,
    TaskRef,
    ToolCall,
    Trajectory,
)

__all__ = [
    "RepeatingRecording",
    "RunOnRecord",
    "first_difference",
    "is_named",
    "other_options",
    "paths_of",
    "run_on_record",
]

Agent = tuple[tuple[str, str], ...]
"""Nodes around an agent's loop, without the numbers of their steps."""


@dataclass(frozen=True, slots=True)
class RunOnRecord:
    """Recorded run with the places of its calls."""

    trajectory: Trajectory
    """Run with its calls and their requests."""
    draws: Sequence[TaskDraws]
    """Draws of its tasks."""
    places: TaskPathResolver
    """Resolver of the places of its calls."""


def run_on_record(store: RunStore, header: Trajectory, graph: str, task: TaskRef) -> RunOnRecord:
    """Read a run. `graph`: name of the graph that repeats it. `task`: its task, with the options of
    the graph.
    """
    loaded = load_graph(graph, task.metadata.get(CONFIGURABLE))
    saver = store.checkpointer.allowing(loaded)
    named = saver.task_paths(header.thread_id)
    return RunOnRecord(
        store.journal.with_calls(header),
        store.journal.draws_of(header),
        TaskPathResolver(saver, header.thread_id, loaded, lambda task_id: named.get(task_id, "")),
    )


def paths_of(store: RunStore, thread_id: str, graph: str, task: TaskRef) -> TaskPathResolver:
    """Resolver of the places of a run that `graph` makes in `store`."""
    loaded = load_graph(graph, task.metadata.get(CONFIGURABLE))
    return TaskPathResolver(store.checkpointer.allowing(loaded), thread_id, loaded)


@dataclass(slots=True)
class _ToolHistory:
    """Tool calls of one agent in one recorded run, and those of them that were given out."""

    calls: list[ToolCall]
    given: set[str] = field(default_factory=set[str])
    """Ids of the records that were given out."""

    def find(self, wanted: ToolCall) -> ToolCall | None:
        """Record of an equal call whose predecessors were all given out (None if there is none)."""
        fitting = [
            call
            for number, call in enumerate(self.calls)
            if call.id not in self.given
            and call.status is not None
            and (call.name, call.arguments) == (wanted.name, wanted.arguments)
            and all(
                each.id in self.given
                for place, each in enumerate(self.calls)
                if (place < number if each.ended_at is None else each.ended_at <= call.started_at)
            )
        ]
        same_id = (call for call in fitting if call.tool_call_id == wanted.tool_call_id)
        return next(same_id, fitting[0] if fitting else None)


class RepeatingRecording(Recording):
    """Recording that answers from recorded runs, and asks and runs what is not recorded."""

    def __init__(
        self,
        journal: Journal,
        seed: int | None,
        inherited: Collection[str],
        *,
        records: Sequence[RunOnRecord],
        paths: TaskPathResolver,
        recorded_tools: bool = True,
        weights_at: float = 0.0,
        **more: Any,
    ) -> None:
        """`records`: runs of the same task, the one to repeat first. Later ones are earlier
        repetitions of it. `recorded_tools`: False to run all tools. `weights_at`: Unix time of the
        last change of the policy's files (0 without any).
        """
        super().__init__(journal, seed, inherited, **more)
        self._places = paths
        self._recorded_tools = recorded_tools
        self._weights_at = weights_at
        self._guard = threading.Lock()
        self.unrecorded: UnrecordedRequest | None = None
        """First request or tool call that the run to repeat did not make (None if it made all)."""
        taken = set[tuple[float, str]]()
        self.other_requests = False
        """True if a request to a model is not that of the run to repeat."""
        self.unrecorded_model: AskedModel | None = None
        """Model to which that request goes (None: not known, or a tool call)."""
        self.policies = set[str]()
        """Names of the models that stood behind policy()."""
        # a request that failed in an earlier repetition is asked again
        pools = [_fresh(record, taken, failed=not number) for number, record in enumerate(records)]
        self.answers = RecordedAnswers(pools[0], [])
        self._earlier = RecordedAnswers([each for pool in pools[1:] for each in pool], [])
        # only of the recorded run: a tool may have changed since an earlier repetition
        self._tools = _tools_by_agent(records[0])
        self._run_again = dict[str, tuple[Agent, ToolCall]]()
        """Id of a tool call that runs although its result is recorded -> its agent and record."""
        draws = [each for record in records[:1] for each in record.draws]
        self._others = RecordedDraws(
            draws, {each.identity.step for each in draws}, records[0].places
        )

    def claim(
        self,
        identity: GraphIdentity,
        request_hash: str,
        messages: Sequence[Any] = (),
        tools: Sequence[Any] = (),
        *,
        former_hash: str = "",
        model: AskedModel | None = None,
    ) -> Call | int:
        if model is not None and model.sent is None:
            self.policies.add(model.name)
        claimed = super().claim(
            identity, request_hash, messages, tools, former_hash=former_hash, model=model
        )
        if isinstance(claimed, Call):
            return claimed
        asked = UnrecordedRequest(identity, self._places.of(identity), messages, tools)

        def same(call: Call) -> bool:
            return call.request_hash in (request_hash, former_hash) and (
                model is None
                or (
                    is_named(call, model)
                    and other_options(call, model) == []
                    and not self.is_of_other_weights(call, model)
                )
            )

        with self.answers.lock:
            found = self.answers.take_if(asked, same)
            if found is None:
                self.other_requests = True
                if self.unrecorded is None:
                    self.unrecorded = asked
                    self.unrecorded_model = model
                found = self._earlier.take_if(asked, same)
        if found is None:
            return claimed
        return adopt_call(self, found, identity, claimed, request_hash, messages)

    def is_of_other_weights(self, call: Call, model: AskedModel) -> bool:
        """True if the files of the policy have changed since it gave an answer."""
        return model.sent is None and call.started_at < self._weights_at

    def claim_tool_call(self, started: ToolCall) -> ToolCall | None:
        own = super().claim_tool_call(started)
        if own is not None:
            return own
        place = self._places.of(started.identity)
        with self._guard:
            found = self._result_of(started, place) if self._recorded_tools else None
            if found is None:
                asked = UnrecordedRequest(started.identity, place, tool_call=started)
                self.unrecorded = self.unrecorded or asked
        asks = found is not None and self._asks_models(found)
        if found is None or asks:
            self.runs_tool(started, asks=asks)
            return None
        place_of = {
            "id": started.id,
            "identity": started.identity,
            "tool_call_id": started.tool_call_id,
        }
        adopted = found.model_copy(update=place_of)
        self.journal.write_tool_call(adopted)
        return adopted

    def write_tool_call(
        self, tool_call: ToolCall, *, again: bool = False, repeatable: bool = False
    ) -> ToolCall:
        written = super().write_tool_call(tool_call, again=again, repeatable=repeatable)
        with self._guard:
            agent, found = self._run_again.get(tool_call.id, ((), tool_call))
            if tool_call.status is not None and result_of(tool_call) != result_of(found):
                self._tools[agent] = _ToolHistory([])
        return written

    def runs_tool(self, started: ToolCall, *, asks: bool) -> None:
        """Called before a tool runs. `asks`: its result is recorded, and it runs since it asked
        models, whose answers are recorded, too. May raise.
        """

    def unused(self) -> list[Call]:
        """Recorded answers of the run to repeat that are left, the oldest first."""
        with self.answers.lock:
            left = [call for _, call in self.answers.calls]
        return sorted(left, key=lambda call: call.started_at)

    @property
    def answered_earlier(self) -> int:
        """Number of answers that were taken from earlier repetitions."""
        with self.answers.lock:
            return sum(map(len, self._earlier.given.values()))

    def _result_of(self, started: ToolCall, place: TaskPath) -> ToolCall | None:
        """Recorded result of a tool call (None if there is none). If the call does not come next,
        its agent gets no more results.
        """
        agent = without_steps(place)[:-1]
        history = self._tools.get(agent)
        found = history.find(started) if history is not None else None
        if history is None or found is None:
            self._tools[agent] = _ToolHistory([])
            return None
        history.given.add(found.id)
        self._run_again[started.id] = agent, found
        return found

    def _asks_models(self, found: ToolCall) -> bool:
        """True if a recorded tool call asked models, for example in a graph that it ran."""
        around = found.identity.checkpoint_ns
        with self.answers.lock:
            return any(
                f"{call.identity.checkpoint_ns}|".startswith(f"{around}|")
                and found.started_at <= call.started_at
                and (found.ended_at is None or call.ended_at <= found.ended_at)
                for _, call in self.answers.calls
            )

    def _draws_on_record(self, identity: GraphIdentity) -> TaskDraws | None:
        own = super()._draws_on_record(identity)
        found = None if own is not None else self._others.of(identity, self._places.of(identity))
        if found is None:
            return own
        adopted = found.model_copy(update={"identity": identity})
        self.journal.write_draws(identity.thread_id, adopted.key, lambda: adopted)
        return adopted


def _fresh(
    record: RunOnRecord, taken: set[tuple[float, str]], *, failed: bool
) -> list[tuple[TaskPath, Call]]:
    """Answers of a run with their places, the oldest first, without those of `taken`, to which they
    are added. A repetition has copies of the answers that it took over. `failed`: include calls
    that failed.
    """
    run = record.trajectory
    answered = (*run.calls, *(run.failed_calls if failed else ()))
    calls = sorted(answered, key=lambda call: call.started_at)
    fresh = [call for call in calls if _moment(call) not in taken]
    taken |= {_moment(call) for call in calls}
    return [(record.places.of(call.identity), call) for call in fresh]


def _moment(call: Call) -> tuple[float, str]:
    """Facts of a call that its copies share."""
    return call.started_at, call.context_hash


def _tools_by_agent(record: RunOnRecord) -> dict[Agent, _ToolHistory]:
    found = defaultdict[Agent, list[ToolCall]](list)
    for call in sorted(record.trajectory.tool_calls, key=lambda each: each.started_at):
        found[without_steps(record.places.of(call.identity))[:-1]].append(call)
    return {agent: _ToolHistory(calls) for agent, calls in found.items()}


def is_named(call: Call, model: AskedModel) -> bool:
    """True if the model that would be asked has the name of the one that gave an answer."""
    name = model.name.partition(":")[2].partition("?")[0]  # of a provider, in a model string
    return call.model in (model.name, name) or _absolute(call.model) == _absolute(model.name)


def _absolute(name: str) -> str:
    """Model string with the absolute path of a folder. Links are kept, since they can be changed."""
    path, mark, options = name.partition("?")
    return os.path.abspath(path) + mark + options  # noqa: PTH100


def other_options(call: Call, model: AskedModel) -> list[str] | None:
    """Names of the options of a request to `model` that are not those of `call` (None if not all
    options of both are known).
    """
    if model.sent is None:
        return []
    sent = call.sampling_sent
    if sent is None or sent.hashes is None or model.sent.hashes is None:
        return None
    then, now = (
        {**each.model_dump(exclude={"other", "hashes"}), **each.other, **(each.hashes or {})}
        for each in (sent, model.sent)
    )
    return sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))


def first_difference(store: RunStore, recording: RepeatingRecording) -> list[str]:
    """Lines of a diff from the nearest recorded request to the first one that is not recorded."""
    asked = recording.unrecorded
    return [] if asked is None else request_diff(store, asked, recording.answers.nearest(asked))
