"""Effects of a tool on the graph around it, besides its result: recorded while it runs, repeated
from the record.

A tool may ask the user (`interrupt`), stream events, put items into the graph's store, and run
subgraphs and functional tasks. LangGraph numbers some of this within the task around the tool. For
example, an answer belongs to the question with its number. So a call that is answered from the
record has to repeat its effects: without its question, the node's next question would get the
answer to it.

Events of subgraphs that a tool runs are not recorded, as their steps are checkpoints. Writes to a
store outside of the process are not recorded either, as the store still has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass, replace
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context
from langgraph.errors import GraphInterrupt
from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt

from hrm_agent.langgraph_format import CALL, RESUME, RUNTIME, SCRATCHPAD, SEND, question_asked
from hrm_agent.models.call_recording import plain
from hrm_agent.tools.output_codec import OutputCodec, is_answer, why_lost
from hrm_agent.trajectory import GraphIdentity, Recording, ToolCall, ToolStatus
from hrm_agent.trajectory.recording import TaskQuestions

__all__ = ["GraphEffects", "repeat_effects"]

MOST_EVENTS = 1000
"""Maximum number of recorded events of one call. Later events can be left out, since events are
only shown again and affect nothing.
"""
_frame = sys._getframe  # pyright: ignore[reportPrivateUsage]


class GraphEffects:
    """Recorder of a tool call's effects on the graph around it. It records nothing outside of a
    graph's task.
    """

    def __init__(
        self,
        recording: Recording,
        identity: GraphIdentity,
        config: RunnableConfig,
        codec: OutputCodec,
        drawn: Sequence[int] = (),
    ) -> None:
        """`drawn`: numbers of questions that an earlier run of the call has asked. The call's first
        questions get these numbers again.
        """
        self._pad: Any = (config.get("configurable") or {}).get(SCRATCHPAD)
        self._recording = recording
        self._identity = identity
        self._codec = codec
        self._drawn = [*drawn]
        self._wanted: int | None = None
        self._of_task = (
            TaskQuestions(None)
            if self._pad is None
            else recording.questions(identity, self._pad.resume)
        )
        self._noted: list[dict[str, Any]] = []
        self._questions: list[dict[str, Any]] = []
        self._counted = {"subgraphs": 0, "tasks": 0}
        self._events = 0
        self.config = self._observed(config)
        """Config to run the tool with."""

    def arguments(self, given: Any) -> Any:
        """Arguments of the tool. Injected ones (runtime, store) are replaced by objects that record
        their use.
        """
        if self._pad is None or not isinstance(given, dict):
            return given
        arguments = cast("dict[str, Any]", given)
        injected = {name: self._injected(value) for name, value in arguments.items()}
        return (
            injected if any(injected[name] is not arguments[name] for name in arguments) else given
        )

    def record(self) -> tuple[dict[str, Any], ...]:
        """Effects recorded so far, in stored form."""
        for question in self._questions:
            if (number := question["number"]) < len(self._pad.resume):
                question["answer"] = plain(self._pad.resume[number])
        counted = {name: count for name, count in self._counted.items() if count}
        return (*self._noted, *([{"counted": counted}] if counted else []))

    @property
    def drawn(self) -> tuple[int, ...]:
        """Numbers of the questions asked so far."""
        return tuple(question["number"] for question in self._questions)

    def ask(self, effect: Mapping[str, Any]) -> bool:
        """Ask a recorded question again. True if the answer is the recorded one.

        Also true if neither this question nor the recorded one got an answer: the tool had caught
        the interrupt. Raises LangGraph's `GraphInterrupt` while a recorded answer is missing now.
        """
        self._wanted = effect["number"]
        schema = {"response_schema": effect["schema"]} if "schema" in effect else {}
        try:
            with set_config_context(self.config) as context:
                context.run(interrupt, self._codec.unpack(effect["asked"]), **schema)
        except GraphInterrupt:
            if "answer" in effect:
                raise
            return True
        self.record()
        return "answer" in effect and self._questions[-1].get("answer") == effect["answer"]

    def do_again(self, effect: Mapping[str, Any]) -> None:
        """Repeat an effect that is not a question."""
        with set_config_context(self.config) as context:
            context.run(self._do_again, effect)

    def _do_again(self, effect: Mapping[str, Any]) -> None:
        given: dict[str, Any] = self.config.get("configurable") or {}
        runtime = given.get(RUNTIME)
        if "told" in effect and runtime is not None:
            runtime.stream_writer(self._codec.unpack(effect["told"]))
        elif "kept" in effect and isinstance(
            store := getattr(runtime, "store", None), InMemoryStore
        ):
            store.batch(
                [
                    PutOp(tuple(namespace), *rest)
                    for namespace, *rest in self._codec.unpack(effect["kept"])
                ]
            )
        elif "written" in effect and SEND in given:
            given[SEND](
                [(channel, value) for channel, value in self._codec.unpack(effect["written"])]
            )
        elif "counted" in effect:
            counters = {
                "subgraphs": given[SCRATCHPAD].subgraph_counter,
                "tasks": given[SCRATCHPAD].call_counter,
            }
            for name, count in effect["counted"].items():
                for _ in range(count):
                    self._recording.not_run(self._identity, name, counters[name]())

    def _take(self, number: int) -> int:
        """Draw the number that a question had. Lower numbers drawn on the way are kept for the
        parallel calls that will ask for them.
        """
        with suppress(ValueError):
            self._of_task.passed.remove(number)
            return number
        passed = list[int]()
        while (drawn := self._pad.interrupt_counter()) < number:
            passed.append(drawn)
        self._of_task.passed += passed
        return drawn

    def _observed(self, config: RunnableConfig) -> RunnableConfig:
        given: dict[str, Any] = config.get("configurable") or {}
        if self._pad is None or SCRATCHPAD not in given:
            return config
        counters: dict[str, Any] = {
            "interrupt_counter": self._next_question,
            "subgraph_counter": self._counting("subgraphs", self._pad.subgraph_counter),
            "call_counter": self._counting("tasks", self._pad.call_counter),
        }
        observed: dict[str, Any] = {SCRATCHPAD: replace(self._pad, **counters)}
        if SEND in given:
            observed[SEND] = self._sending(given[SEND])
        if CALL in given:  # this function draws from the task's own counter, not the observed one
            observed[CALL] = self._counting("tasks", given[CALL])
        if (runtime := given.get(RUNTIME)) is not None:
            observed[RUNTIME] = runtime.override(**self._observers(runtime))
        return {**config, "configurable": {**given, **observed}}

    def _injected(self, value: Any) -> Any:
        if type(value).__module__ == "builtins":  # an argument from a model, not an injected one
            return value
        if isinstance(value, BaseStore):
            return self._keeping(value)
        if is_dataclass(value) and all(
            hasattr(value, name) for name in ("stream_writer", "store", "config")
        ):
            runtime: Any = value  # LangGraph's `ToolRuntime`
            return replace(
                runtime, config=self._observed(runtime.config), **self._observers(runtime)
            )
        return value

    def _observers(self, runtime: Any) -> dict[str, Any]:
        return {
            "stream_writer": self._telling(runtime.stream_writer),
            "store": self._keeping(runtime.store),
        }

    def _next_question(self) -> int:
        asked = question_asked(_frame(1))
        number = self._next_number()
        question: dict[str, Any] = {"number": number, "asked": {"lost": "a question"}}
        if asked is not None:
            value, schema = asked
            question["asked"] = self._codec.pack(value)
            if schema is not None:
                question["schema"] = schema
        self._questions.append(question)
        self._noted.append(question)
        return number

    def _next_number(self) -> int:
        """Number of the next question: a number that an earlier run of this call had, one that a
        parallel call has skipped, or a new one.
        """
        if (wanted := self._wanted) is not None:
            self._wanted = None
            return self._take(wanted)
        for numbers in (self._drawn, self._of_task.passed):
            with suppress(IndexError):
                return numbers.pop(0)
        return self._pad.interrupt_counter()

    def _counting(self, what: str, entry: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            self._counted[what] += 1
            return entry(*given, **options)

        return counted

    def _sending(self, send: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def sent(writes: Any) -> Any:
            writes = [write for write in writes if not self._says_less(*write)]
            if own := [[channel, value] for channel, value in writes if channel != RESUME]:
                self._noted.append({"written": self._codec.pack(own)})
            return send(writes)

        return sent

    def _says_less(self, channel: str, value: Any) -> bool:
        """True if a write of answers has fewer of them than an earlier write. It has to be dropped,
        since LangGraph keeps the last write.
        """
        if channel != RESUME:
            return False
        before, self._of_task.written = (
            self._of_task.written,
            max(self._of_task.written, len(value)),
        )
        return len(value) < before

    def _telling(self, write: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def told(event: Any) -> Any:
            self._events += 1
            if self._events <= MOST_EVENTS and is_answer(packed := self._codec.pack(event)):
                self._noted.append({"told": packed})
            return write(event)

        return told

    def _keeping(self, store: Any) -> Any:
        """Wrap a store in memory, so that its writes are recorded: in another process it is empty.
        Other stores keep their items and are unchanged.
        """
        return _ObservedStore(store, self._kept) if isinstance(store, InMemoryStore) else store

    def _kept(self, done: Sequence[Op]) -> None:
        put = [[list(op.namespace), *op[1:]] for op in done if isinstance(op, PutOp)]
        if put:
            self._noted.append({"kept": self._codec.pack(put)})


class _ObservedStore(BaseStore):
    """LangGraph store whose writes are recorded. To `isinstance` it is of the wrapped store's
    class.
    """

    def __init__(self, store: BaseStore, note: Callable[[Sequence[Op]], None]) -> None:
        self._store = store
        self._note = note
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        done = list(ops)
        results = self._store.batch(done)
        self._note(done)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        done = list(ops)
        results = await self._store.abatch(done)
        self._note(done)
        return results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._store)


def repeat_effects(
    ended: ToolCall,
    asked: ToolCall,
    recording: Recording,
    config: RunnableConfig,
    codec: OutputCodec,
) -> tuple[int, ...] | None:
    """Repeat the effects of the call `ended` on the graph, for the call `asked`.

    Returns None if the record can answer the call. If a question now has a different answer, or if
    an effect could not be stored, the call has to be run again, and the numbers of its questions
    are returned. A call with an idempotency key that ended well is never run again. Raises
    LangGraph's `GraphInterrupt` while an answer is missing.
    """
    configurable: dict[str, Any] = config.get("configurable") or {}
    if not ended.graph_effects or SCRATCHPAD not in configurable:
        return None
    packed = [
        effect[kind]
        for effect in ended.graph_effects
        for kind in ("asked", "written", "kept")
        if kind in effect
    ]
    lost = next((why_lost(each) for each in packed if not is_answer(each)), "")
    drawn: tuple[int, ...] = ()
    if not lost:
        asking = GraphEffects(recording, asked.identity, config, codec)
        if all(asking.ask(effect) for effect in ended.graph_effects if "asked" in effect):
            for effect in ended.graph_effects:
                asking.do_again(effect)
            return None
        drawn = asking.drawn
    if ended.idempotency_key is not None and ended.status is ToolStatus.OK:
        return None
    recording.run_again(asked, lost)
    return drawn
