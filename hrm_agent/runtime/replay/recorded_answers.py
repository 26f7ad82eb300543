"""Matching of the requests of a replayed graph with recorded answers.

A recorded answer fits a request with the same messages and tools (of a model call) or the same name
and arguments (of a tool call). If none fits, an answer is taken whose request differs only in
generated ids (`hrm_agent.runtime.replay.request_match`). Sampling parameters are not compared,
since the limits of a run are not part of its graph. If several answers fit, one from the same task
path is preferred (`hrm_agent.runtime.replay.task_path`), then one from the same nodes in another
step, then the oldest. Each answer is returned once. So parallel branches with equal requests get
their own answers, and a node added before them changes nothing. A failed call answers a request
like any other: with the error that it raised.

A replayed task gets the recorded draws (clock, uuid, random) of the task at the same place.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp

from hrm_agent.langgraph_format import namespace_around
from hrm_agent.models.call_recording import copied_call, in_one_order, offered
from hrm_agent.models.recorded_values import unpack_answer
from hrm_agent.runtime.replay.effects import Effect, note_effect
from hrm_agent.runtime.replay.request_match import RequestMatch
from hrm_agent.runtime.replay.task_path import TaskPath, TaskPathResolver, without_steps
from hrm_agent.trajectory import (
    AskedModel,
    Call,
    GraphIdentity,
    Journal,
    MemoryJournal,
    OpenDraws,
    Recording,
    TaskDraws,
    ToolCall,
    call_id,
    content_hash,
)
from hrm_agent.trajectory.conversation_digest import context_hash

__all__ = [
    "AdoptingRecording",
    "NotRecorded",
    "RecordedAnswers",
    "RecordedDraws",
    "ReplayRecording",
    "UnrecordedRequest",
    "recorded_answers",
    "says_the_same",
]


class RecordedDraws:
    """Draws of one segment of a run. Each record is for one task, even if the task is begun several
    times. Thread-safe.
    """

    def __init__(
        self, records: Iterable[TaskDraws], steps: set[str], paths: TaskPathResolver
    ) -> None:
        """Select those of `records` that were made in steps that began at the checkpoints
        `steps`.
        """
        self._left = [
            (paths.of(found.identity), found) for found in records if found.identity.step in steps
        ]
        self._given: dict[tuple[str, int], TaskDraws | None] = {}
        self.missed = False
        """True if a task drew something that is not recorded."""
        self._lock = threading.Lock()

    def of(self, identity: GraphIdentity, place: TaskPath) -> TaskDraws | None:
        """Recorded draws of the task in this attempt (None if there are none)."""
        key = (identity.task_id, identity.attempt)
        with self._lock:
            if key not in self._given:
                self._given[key] = self._take(identity.attempt, place)
            return self._given[key]

    def _take(self, attempt: int, place: TaskPath) -> TaskDraws | None:
        """Take the record from the same place, else from the same nodes in another step, since a
        node may have been added before them.
        """
        ways: tuple[Callable[[TaskPath], Any], ...] = (lambda path: path, without_steps)
        for way in ways:
            for number, (path, found) in enumerate(self._left):
                if found.identity.attempt == attempt and way(path) == way(place):
                    del self._left[number]
                    return found
        self.missed = True
        return None


_Record = TypeVar("_Record", Call, ToolCall)


@dataclass(frozen=True, slots=True)
class UnrecordedRequest:
    """Request of the graph that is not recorded."""

    identity: GraphIdentity
    """Identity of the step that made the request."""
    place: TaskPath
    """Path of the request's task, without random ids."""
    messages: Sequence[BaseMessage] = ()
    """Messages of a model call; empty for a tool call."""
    tools: Sequence[Any] = ()
    """Tools offered with a model call."""
    tool_call: ToolCall | None = None
    """Tool call that was about to run (None for a model call)."""


class NotRecorded(GraphBubbleUp):
    """Stops a graph, without retries, at a request that is not recorded."""


@dataclass(slots=True)
class RecordedAnswers:
    """Recorded answers of one segment of a run."""

    calls: list[tuple[TaskPath, Call]]
    """Unused model calls, each with the path of its task."""
    tool_calls: list[tuple[TaskPath, ToolCall]]
    """Unused tool calls, each with the path of its task."""
    given: dict[str, list[tuple[Call, Call]]] = field(default_factory=lambda: defaultdict(list))
    """Model calls given out, as (recorded, given) by id of the task. A task that runs again after
    an interrupt repeats its requests.
    """
    given_tools: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    """Tool calls given out, by the id that their records would have in the replay."""
    not_run: set[tuple[str, GraphIdentity, int]] = field(
        default_factory=set[tuple[str, GraphIdentity, int]]
    )
    """Runs within answered tools, each as (`subgraphs` or `tasks`, task around the tool, number
    within that task).
    """
    loosely: RequestMatch | None = None
    """Matcher for requests that are not recorded word for word (None: such requests have no
    answer).
    """
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Lock for the lookup of an answer, since parallel branches may ask from several threads."""

    def take(self, asked: UnrecordedRequest, request_hash: str) -> Call | None:
        """Return the answer to a request (None if there is none). No other request gets it."""

        def fit(call: Call) -> tuple[bool, ...]:
            return (
                call.request_hash == request_hash,
                call.identity.attempt == asked.identity.attempt,
            )

        match = self.loosely
        if match is not None:
            match.learn()
        found = _best(self.calls, asked.place, lambda call: says_the_same(call, asked), fit)
        if found is None and match is not None:
            found = _best(self.calls, asked.place, lambda call: self._like(call, asked), fit)
            if found is not None:
                match.note(found, asked.messages, asked.tools, same_tools=_same_tools(found, asked))
        if found is None:
            return None
        answer = found if match is None else match.answer(found)
        self.given[asked.identity.task_id].append((found, answer))
        return answer

    def take_if(self, asked: UnrecordedRequest, same: Callable[[Call], bool]) -> Call | None:
        """Take the nearest answer for which `same` holds (None: no answer fits). No other
        request gets it.
        """
        found = _best(
            self.calls,
            asked.place,
            same,
            lambda call: (call.identity.attempt == asked.identity.attempt,),
        )
        if found is not None:
            self.given[asked.identity.task_id].append((found, found))
        return found

    def fits(self, call: Call, asked: UnrecordedRequest) -> bool:
        """True if a recorded call answers a request."""
        return says_the_same(call, asked) or self._like(call, asked)

    def _like(self, call: Call, asked: UnrecordedRequest) -> bool:
        match = self.loosely
        tools = _same_tools(call, asked)
        return match is not None and match.same(call, asked.messages, asked.tools, same_tools=tools)

    def take_tool_call(self, asked: UnrecordedRequest, started: ToolCall) -> ToolCall | None:
        """Return the finished record of a tool call (None if there is none). No other call gets
        it.
        """

        def same(call: ToolCall) -> bool:
            return (call.name, call.arguments) == (started.name, started.arguments)

        def fit(call: ToolCall) -> tuple[bool, ...]:
            return (call.tool_call_id == started.tool_call_id,)

        match = self.loosely
        if match is not None:
            match.learn()
        found = _best(self.tool_calls, asked.place, same, fit)
        if found is None and match is not None:
            found = _best(
                self.tool_calls, asked.place, lambda call: match.same_tool_call(call, started), fit
            )
            if found is not None:
                match.note_tool_call(found, started)
        if found is None:
            return None
        answer = found if match is None else match.tool_answer(found)
        self.given_tools[started.id] = answer
        return answer

    def nearest(self, asked: UnrecordedRequest) -> Call | ToolCall | None:
        """Record of the same node to compare with: an unused one, else one that was given out (None
        if there is none).
        """
        tool = asked.tool_call is not None
        dealt = (
            [*self.given_tools.values()]
            if tool
            else [call for calls in self.given.values() for call, _ in calls]
        )
        left = [record for _, record in (self.tool_calls if tool else self.calls)]
        node = asked.identity.node
        for records in (left, dealt):
            there = [record for record in records if record.identity.node == node]
            if there:
                return next((r for r in there if r.identity.path == asked.identity.path), there[0])
        return None

    def left_at(self, place: TaskPath) -> bool:
        """True if an answer from the same nodes is unused."""
        return any(
            without_steps(found) == without_steps(place)
            for found, _ in [*self.calls, *self.tool_calls]
        )


def says_the_same(call: Call, asked: UnrecordedRequest) -> bool:
    """True if messages and tools are those that `call` answered. The call's hash covers both the
    messages and the answer.
    """
    messages = [*asked.messages, *([unpack_answer(call)] if call.error is None else [])]
    return _same_tools(call, asked) and call.context_hash == context_hash(messages)


def _same_tools(call: Call, asked: UnrecordedRequest) -> bool:
    """True if the tools are the same in any order, since some agents take theirs from a set."""
    forms = (asked.tools, _common_form(asked.tools))
    if call.tools_hash in map(content_hash, forms):
        return True
    return bool(call.tools) and in_one_order(call.tools) in [
        in_one_order(offered(form)) for form in forms
    ]


def _common_form(tools: Sequence[Any]) -> list[Any]:
    """Tools in the form in which `standing_in` passes them on: the policy may have answered for a
    model whose provider has its own form.
    """
    try:
        return [convert_to_openai_tool(tool) for tool in tools]
    except ValueError:  # a provider's own tool
        return []


def _best(
    records: list[tuple[TaskPath, _Record]],
    place: TaskPath,
    same: Callable[[_Record], bool],
    fit: Callable[[_Record], tuple[bool, ...]],
) -> _Record | None:
    """Remove and return, among the records that fit the request, the nearest in place (None if none
    fits).
    """
    for near in (
        lambda found: found == place,
        lambda found: without_steps(found) == without_steps(place),
        lambda _: True,
    ):
        found = [entry for entry in records if near(entry[0]) and same(entry[1])]
        if found:
            taken = max(found, key=lambda entry: fit(entry[1]))
            records.remove(taken)
            return taken[1]
    return None


class ReplayRecording(Recording):
    """Recording that answers from the record, and stops at a request that is not in the record.
    Each start of the graph has its own.
    """

    replaying = True
    """True: nothing may be asked or run, not even failed calls."""

    def __init__(
        self,
        answers: RecordedAnswers,
        draws: RecordedDraws,
        paths: TaskPathResolver,
        inherited_steps: Sequence[tuple[int, str]] = (),
        serializer: JsonPlusSerializer | None = None,
    ) -> None:
        """`inherited_steps`: the threads that a fork descends from, oldest first, each with its
        last step.
        """
        super().__init__(MemoryJournal(serializer=serializer))
        self._recorded = draws
        self._inherited_steps = inherited_steps
        self.unanswered: UnrecordedRequest | None = None
        self._answers = answers
        self._places = paths
        self._again = {task: list(calls) for task, calls in answers.given.items()}

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
        asked = UnrecordedRequest(identity, self._places.of(identity), messages, tools)
        with self._answers.lock:
            self._refuse_more()
            before = self._again.get(identity.task_id, [])
            again = next((pair for pair in before if self._answers.fits(pair[0], asked)), None)
            if again is not None:
                before.remove(again)
                return again[1]
            return self._answers.take(asked, request_hash) or self._stop(asked)

    def claim_tool_call(self, started: ToolCall) -> ToolCall | None:
        asked = UnrecordedRequest(
            started.identity, self._places.of(started.identity), tool_call=started
        )
        with self._answers.lock:
            self._refuse_more()
            again = self._answers.given_tools.get(started.id)
            return again or self._answers.take_tool_call(asked, started) or self._stop(asked)

    def run_again(self, started: ToolCall, lost: str = "") -> None:
        """List an effect if the record lacks a part of the call (`lost`); else the call counts as
        not recorded.
        """
        if not lost:
            self._stop(
                UnrecordedRequest(
                    started.identity, self._places.of(started.identity), tool_call=started
                )
            )
        note_effect(Effect(started.identity.node, f"runs the tool {started.name!r} again: {lost}"))

    def not_run(self, identity: GraphIdentity, what: str, number: int) -> None:
        self._answers.not_run.add((what, identity, number))

    def _open_draws(self, identity: GraphIdentity) -> OpenDraws:
        return OpenDraws(identity, self._recorded.of(identity, self._places.of(identity)))

    def thread_of_step(self, thread_id: str, step: int) -> str:
        return next((thread for last, thread in self._inherited_steps if step <= last), thread_id)

    def _refuse_more(self) -> None:
        if self.unanswered is not None:  # the graph may have caught `NotRecorded`
            raise NotRecorded

    def _stop(self, asked: UnrecordedRequest) -> Any:
        self.unanswered = asked
        raise NotRecorded


class AdoptingRecording(Recording):
    """Recording that copies fitting answers of another thread under this thread's ids. All other
    requests are sent.
    """

    def __init__(
        self,
        journal: Journal,
        seed: int | None,
        inherited: Collection[str],
        *,
        answers: RecordedAnswers,
        draws: RecordedDraws,
        paths: TaskPathResolver,
    ) -> None:
        super().__init__(journal, seed, inherited)
        self._answers = answers
        self._places = paths
        self._others = draws
        self._own: dict[str, str] = {}

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
        claimed = super().claim(
            identity, request_hash, messages, tools, former_hash=former_hash, model=model
        )
        if isinstance(claimed, Call):
            return claimed
        asked = UnrecordedRequest(identity, self._places.of(identity), messages, tools)
        with self._answers.lock:
            found = self._answers.take(asked, request_hash)
            return (
                claimed
                if found is None
                else self.write_call(self._adopted(found, identity, claimed, request_hash))
            )

    def claim_tool_call(self, started: ToolCall) -> ToolCall | None:
        own = super().claim_tool_call(started)
        if own is not None:
            return own
        asked = UnrecordedRequest(
            started.identity, self._places.of(started.identity), tool_call=started
        )
        with self._answers.lock:
            found = self._answers.take_tool_call(asked, started)
        if found is None:
            return None
        place = {
            "id": started.id,
            "identity": started.identity,
            "tool_call_id": started.tool_call_id,
        }
        adopted = found.model_copy(update=place)
        self.journal.write_tool_call(adopted)
        return adopted

    def _draws_on_record(self, identity: GraphIdentity) -> TaskDraws | None:
        own = super()._draws_on_record(identity)
        found = None if own is not None else self._others.of(identity, self._places.of(identity))
        if found is None:
            return own
        adopted = found.model_copy(update={"identity": identity})
        self.journal.write_draws(identity.thread_id, adopted.key, lambda: adopted)
        return adopted

    def _adopted(self, call: Call, identity: GraphIdentity, index: int, request_hash: str) -> Call:
        """Copy of a call with its tokens and answer under this thread's ids, so that later calls
        extend it.
        """
        self._own[call.id] = call_id(identity.thread_id, identity.task_id, index)
        links = {
            name: self._own.get(other, other) if (other := getattr(call, name)) else None
            for name in ("parent", "branch_of")
        }
        return copied_call(call, identity, index, request_hash, **links)


def recorded_answers(
    calls: Iterable[Call],
    tool_calls: Iterable[ToolCall],
    steps: set[str],
    paths: TaskPathResolver,
    loosely: RequestMatch | None = None,
) -> RecordedAnswers:
    """Answers of the steps that began at the checkpoints `steps`. Old records do not name the steps
    of subgraphs, so that all calls of subgraphs are included.

    `calls` include failed ones, in any order. A failed call that a resume asked again is left out.
    """

    def within(identity: GraphIdentity) -> bool:
        nested = namespace_around(identity.checkpoint_ns)
        root = identity.root_checkpoint_id or ("" if nested else identity.checkpoint_id)
        return not root or root in steps

    return RecordedAnswers(
        [(paths.of(call.identity), call) for call in _in_order([*calls]) if within(call.identity)],
        [
            (paths.of(call.identity), call)
            for call in tool_calls
            if within(call.identity) and call.status is not None
        ],
        loosely=loosely,
    )


def _in_order(calls: Sequence[Call]) -> list[Call]:
    """Insert each failed call before the later calls of its task, whose index is the same or
    higher.
    """
    again = {call.instead_of for call in calls}
    found = [call for call in calls if call.error is None]
    for failed in reversed(
        [call for call in calls if call.error is not None and call.id not in again]
    ):
        task = (failed.identity.thread_id, failed.identity.task_id)
        later = (
            number
            for number, call in enumerate(found)
            if (call.identity.thread_id, call.identity.task_id) == task
            and call.call_index >= failed.call_index
        )
        found.insert(next(later, len(found)), failed)
    return found
