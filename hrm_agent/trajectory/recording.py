"""Active recording, through which a model or tool call finds its journal and its recorded answer.

`hrm_agent.runtime.episode` opens a `Recording` around a graph run. A context variable carries it
through LangGraph's tasks and threads, so that the code of a graph need not know it. Outside a
recording everything works too, with bounded memory in place of the journal (a chat in a notebook
keeps its token prefix, but nothing survives the process).

`claim` compares requests and not only positions: two calls of one node may run in parallel and
start in another order when the node runs again after a crash. Each recorded answer goes once to the
request that it answers.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.errors import HrmError, StoreError
from hrm_agent.trajectory.call_facts import SentSampling
from hrm_agent.trajectory.draws import OpenDraws, TaskDraws
from hrm_agent.trajectory.ids import derive_seed
from hrm_agent.trajectory.journal import Journal, MemoryJournal
from hrm_agent.trajectory.schema import Call, GraphIdentity, ToolCall

__all__ = [
    "AskedModel",
    "Recording",
    "RequestSize",
    "TaskQuestions",
    "active_recording",
    "open_recording",
    "recording",
]


R = TypeVar("R")
_OPEN = 16
"""Maximum number of conversations of a run whose newest call is kept in memory. Others are read
back when they continue.
"""
_REMEMBERED = 1024
"""Maximum number of tasks and threads whose claims are kept in memory. A run has few at a time; a
chat without a recording has no limit.
"""


@dataclass(slots=True)
class _TaskSlot:
    """State of one LangGraph task: its calls on record when it began, and the indices handed out
    since.
    """

    recorded: list[Call]
    """Calls on record when the task began."""
    claimed: set[int] = field(default_factory=set[int])
    """Call indices handed out since."""
    failed: list[Call] = field(default_factory=list[Call])
    """Failed calls on record when the task began that were not asked again yet."""
    again: dict[int, str] = field(default_factory=dict[int, str])
    """Call index -> id of the failed call that is asked again under it."""


@dataclass(slots=True)
class TaskQuestions:
    """Questions to the user that the tools of one task ask, possibly in parallel."""

    answers: object
    """LangGraph's list of the answers."""
    passed: list[int] = field(default_factory=list[int])
    """Question numbers that an answered call skipped, which belong to a parallel call."""
    written: int = 0
    """Number of answers written to LangGraph."""


@dataclass(frozen=True, slots=True)
class AskedModel:
    """Model that would answer a request."""

    name: str
    """Name, as in `Call.model`. A policy that is not loaded yet has its model string."""
    sent: SentSampling | None = None
    """Sampling parameters of a model that the graph holds itself (None: the hash of the request
    covers them).
    """


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Upper bound of the tokens of a request that is about to be sent."""

    call_id: str
    """Id that the call will have."""
    model: str
    """Name of the model, as in `Call.model`."""
    read: int
    """Maximum number of prompt tokens."""
    sampled: int | None
    """Maximum number of completion tokens (None: the request sets no limit)."""
    engine: bool
    """True for an engine of this package, False for a provider's model."""
    by_policy: bool = True
    """False for a model that the graph holds itself."""
    can_wait: bool = True
    """False for a request that blocks the event loop. Others could not end while it waits."""
    retries: bool = False
    """True if the client may repeat a failed request by itself."""
    text_only: bool = True
    """False for a request with images, audio or files, whose tokens `read` does not bound."""


class Recording:
    """Open record of one run. It hands out call indices, seeds and recorded answers."""

    metered: bool = False
    """True if `may_ask` is to be called before each request to a model."""

    replaying: bool = False
    """True in a replay: no model may be asked and no tool run, not even for failed calls
    (`hrm_agent.runtime.replay.player`).
    """

    def __init__(
        self, journal: Journal, seed: int | None = None, inherited: Iterable[str] = ()
    ) -> None:
        self.journal = journal
        self.seed = seed
        """Base of the seeds of all calls (None: each is drawn from the system)."""
        self.inherited = frozenset(inherited)
        """Ids of the calls that a fork inherited. They belong to other threads and can be
        extended.
        """
        self.run_id = ""
        """Run on whose behalf shared resources are requested, such as an environment's slots."""
        self.thread_id = ""
        """Thread that all calls are recorded on; empty for the thread of the graph around a
        call.
        """
        self.agent = ""
        """Name of the agent that the run's graph is (empty for other graphs)."""
        self.chance_anew = False
        """True if a step is run again to find which of its results are chance. The recorded draws
        from `random` are ignored then.
        """
        self.broken: HrmError | None = None
        """Error of a call that could not be written (None without one). From then on nothing may be
        asked, even if the graph catches the error.
        """
        self._closed = False
        self._lock = threading.Lock()
        self._tasks = BoundedMap[tuple[str, str], _TaskSlot](_REMEMBERED)
        self._with_calls = BoundedMap[str, set[str]](_REMEMBERED)
        """Thread -> its tasks with calls on record. Other tasks are not looked up."""
        self._seeds = BoundedMap[str, set[int]](_REMEMBERED)
        self._draws = BoundedMap[tuple[str, str, int], OpenDraws](8 * _REMEMBERED)
        self._recorded_draws = BoundedMap[str, dict[tuple[str, int], TaskDraws]](_REMEMBERED)
        self._open = BoundedMap[str, tuple[Call, tuple[int, ...]]](_OPEN)
        self._keys: set[tuple[str, str]] = set()
        self._asked: Counter[tuple[str, str, int, str]] = Counter()
        self._questions = BoundedMap[tuple[str, str, int], TaskQuestions](_REMEMBERED)

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
        """Return the recorded answer to this request, or the index of a new call.

        A recorded answer belongs to the attempt that it was given in: a node that a retry policy
        runs again asks anew, and on resume each attempt gets its own answer. A failed call is asked
        again. `messages` and `tools` are the request itself, for a recording that reports unknown
        requests. `former_hash`: hash of the request in older records. `model`: model that would be
        asked (None: not known).
        """
        with self._lock:
            if self.broken is not None:
                raise self.broken
            task = self._task(identity)
            for call in task.recorded:
                asked = _asks(call, identity, request_hash, former_hash)
                if asked and call.call_index not in task.claimed:
                    task.claimed.add(call.call_index)
                    return call
            taken = task.claimed | {call.call_index for call in task.recorded}
            index = next(i for i in count() if i not in taken)
            task.claimed.add(index)
            again = next(
                (call for call in task.failed if _asks(call, identity, request_hash, former_hash)),
                None,
            )
            if again is not None:
                task.failed.remove(again)
                task.again[index] = again.id
            return index

    def may_load(self, *, can_wait: bool) -> bool:
        """True if a policy may be loaded for a request, False if the request has to wait. Called
        before `may_ask`. `can_wait`: False for a request that blocks the event loop.
        """
        del can_wait
        return True

    def may_ask(self, request: RequestSize) -> bool:
        """True if a request may be sent now, False if it has to wait for the end of others. A
        recording with a budget raises an `HrmError` if the request could exceed it.
        """
        del request
        return True

    def asked_again(self, identity: GraphIdentity, index: int) -> str | None:
        """Id of the failed call of an earlier run of the task, which a new call asks again (None if
        there is none).

        `index`: index of the new call.
        """
        with self._lock:
            return self._task(identity).again.pop(index, None)

    def release(self, identity: GraphIdentity, index: int) -> None:
        """Give back the index of a call that has no result."""
        with self._lock:
            self._task(identity).claimed.discard(index)

    def claim_tool_call(self, started: ToolCall) -> ToolCall | None:
        """Finished record of this tool call (None if it has to run)."""
        if self.broken is not None:
            raise self.broken
        earlier = self.journal.find_tool_call(started.id, started.identity.thread_id)
        if earlier is None or earlier.status is None:
            return None
        # Outside a graph only the call's id identifies a call, and some models number their calls
        # from 0 each time.
        return (
            earlier
            if (earlier.name, earlier.arguments) == (started.name, started.arguments)
            else None
        )

    def ordinal(self, identity: GraphIdentity, what: str) -> int:
        """Number of times that `what` was asked before in this attempt of a task. The number
        identifies calls that have no id.
        """
        with self._lock:
            key = (identity.thread_id, identity.task_id, identity.attempt, what)
            self._asked[key] += 1
            return self._asked[key] - 1

    def questions(self, identity: GraphIdentity, answers: object) -> TaskQuestions:
        """Questions of tools in a task's attempt.

        `answers`: LangGraph's list of the task's answers, a new one for each attempt.
        """
        key = (identity.thread_id, identity.task_id, identity.attempt)
        with self._lock:
            known = self._questions.get(key)
            if known is None or known.answers is not answers:
                known = self._questions[key] = TaskQuestions(answers)
            return known

    def run_again(self, started: ToolCall, lost: str = "") -> None:
        """Report that a tool runs although its call is recorded as ended.

        `lost`: the part that could not be stored, in words; empty if the tool runs again because
        the user's answer to its question has changed.
        """

    def not_run(self, identity: GraphIdentity, what: str, number: int) -> None:
        """Report that a run inside an answered tool call is skipped.

        `what`: `subgraphs` or `tasks`. `number`: its number within the task.
        """

    def draws(self, key: tuple[str, str, int], identity: Callable[[], GraphIdentity]) -> OpenDraws:
        """Draws of a task, recorded values first.

        `key`: thread, namespace and attempt of the task. `identity` is called on the first request
        only, since it is slow.
        """
        found = self._draws.get(key)
        if found is None:
            with self._lock:
                found = self._draws.get(key) or self._open_draws(identity())
                self._draws[key] = found
        return found

    def _open_draws(self, identity: GraphIdentity) -> OpenDraws:
        thread = identity.thread_id
        key = (identity.task_id, identity.attempt)

        def write(record: Callable[[], TaskDraws]) -> None:
            self.journal.write_draws(thread, key, record)

        return OpenDraws(identity, self._draws_on_record(identity), write)

    def _draws_on_record(self, identity: GraphIdentity) -> TaskDraws | None:
        """Recorded draws of a task (None if there are none). A replay also adopts those of other
        threads.
        """
        thread = identity.thread_id
        if thread not in self._recorded_draws:
            self._recorded_draws[thread] = {
                found.key: found for found in self.journal.draws_of_thread(thread)
            }
        found = self._recorded_draws[thread].get((identity.task_id, identity.attempt))
        if found is not None and self.chance_anew:
            return found.model_copy(update={"seeds": ()})
        return found

    def thread_of_step(self, thread_id: str, step: int) -> str:
        """Thread on which a step of `thread_id` was run. A replay of a fork also runs the steps
        before it.
        """
        return thread_id

    def hold_key(self, thread_id: str, key: str) -> bool:
        """Reserve an idempotency key during a call. Return False if another call holds it."""
        with self._lock:
            taken = (thread_id, key) in self._keys
            self._keys.add((thread_id, key))
            return not taken

    def release_key(self, thread_id: str, key: str) -> None:
        with self._lock:
            self._keys.discard((thread_id, key))

    def write_call(self, call: Call, sent: Sequence[Any] = ()) -> Call:
        """Write a finished call. Return the call on record, which is another call if that was
        written first.
        """
        self._refuse_late(call.identity.thread_id)
        with self._lock:
            self._with_calls.get(call.identity.thread_id, set()).add(call.identity.task_id)
        try:
            return self.journal.write_call(call, sent)
        except StoreError as error:
            self.broken = error
            raise

    def lose(self, error: Exception) -> None:
        """Report that a model's answer could not be recorded. The run ends, since a record must
        have no gaps.
        """
        raise error

    def keep_open(self, call: Call, path: tuple[int, ...]) -> None:
        """Remember a call that was just written, with the tokens from its root to its end. The next
        turn extends it.
        """
        with self._lock:
            if call.parent is not None:
                self._open.pop(call.parent, None)
            self._open[call.id] = call, path

    def opened(self, call_id: str) -> tuple[Call, tuple[int, ...]] | None:
        """Call and tokens given to `keep_open` (None if they are to be read from the journal)."""
        with self._lock:
            return self._open.get(call_id)

    def write_tool_call(
        self, tool_call: ToolCall, *, again: bool = False, repeatable: bool = False
    ) -> ToolCall:
        """Write a tool call that begins or has ended. Return the record in force. Options as in
        `Journal.write_tool_call`.
        """
        self._refuse_late(tool_call.identity.thread_id)
        try:
            return self.journal.write_tool_call(tool_call, again=again, repeatable=repeatable)
        except StoreError as error:
            self.broken = error
            raise

    def close(self) -> None:
        """Accept no more records. Threads cannot be cancelled, so that a tool may end after another
        process has taken over its run.
        """
        self._closed = True

    def _refuse_late(self, thread_id: str) -> None:
        if self._closed:
            raise StoreError(
                f"The run on thread {thread_id!r} has ended; a later record was not written."
            )

    async def apart(self, write: Callable[..., R], *values: Any) -> R:
        """Run `write`, in a thread if the journal waits for a disk or a server."""
        return (
            await asyncio.to_thread(write, *values) if self.journal.is_blocking else write(*values)
        )

    def draw_seed(self, identity: GraphIdentity, request_hash: str) -> int:
        """Seed of a new call: a function of the base seed, the call's place in its graph, and its
        request.

        A subgraph does not know its place in the outer graph, so that equal requests of parallel
        subgraphs have equal inputs. They are numbered in order of arrival: each gets its own seed,
        but two runs with one base seed may swap these seeds. Recorded seeds count as taken: a step
        that is taken again from an earlier checkpoint samples anew.
        """
        if self.seed is None:
            return secrets.randbits(63)
        with self._lock:
            thread_id = identity.thread_id
            if thread_id not in self._seeds:
                self._seeds[thread_id] = self.journal.seeds_of_thread(thread_id)
            taken = self._seeds[thread_id]
            seeds = (
                derive_seed(self.seed, identity.path, request_hash, number) for number in count()
            )
            seed = next(seed for seed in seeds if seed not in taken)
            taken.add(seed)
            return seed

    def _task(self, identity: GraphIdentity) -> _TaskSlot:
        key = (identity.thread_id, identity.task_id)
        if key not in self._tasks:
            thread, task = key
            if thread not in self._with_calls:
                self._with_calls[thread] = set(self.journal.tasks_of_thread(thread))
            known = task in self._with_calls[thread]
            calls = self.journal.calls_of_task(*key) if known else ()
            again = {call.instead_of for call in calls}
            failed = [call for call in calls if call.error is not None and call.id not in again]
            self._tasks[key] = _TaskSlot(
                [call for call in calls if call.error is None], failed=failed
            )
        return self._tasks[key]


def _asks(call: Call, identity: GraphIdentity, *request_hashes: str) -> bool:
    return call.request_hash in request_hashes and call.identity.attempt == identity.attempt


_active: ContextVar[Recording | None] = ContextVar("hrm_agent_recording", default=None)
_unrecorded = Recording(MemoryJournal())


def active_recording() -> Recording:
    """Recording around the current graph run, or one with bounded memory only."""
    return _active.get() or _unrecorded


def open_recording() -> Recording | None:
    """Recording around the current graph run (None outside of one)."""
    return _active.get()


@contextmanager
def recording(active: Recording) -> Generator[Recording]:
    """Make `active` the recording of everything that runs inside the block."""
    token = _active.set(active)
    try:
        yield active
    finally:
        _active.reset(token)
