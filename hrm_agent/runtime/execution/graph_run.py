"""One graph on one thread, from its current state to its end, with callbacks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph.types import Command, Interrupt

from hrm_agent.basics.unicode import without_surrogates
from hrm_agent.errors import RunError
from hrm_agent.langgraph_format import INTERRUPT, UPDATE_METADATA, namespace_parts
from hrm_agent.runtime.execution.answer_path import text_at
from hrm_agent.runtime.execution.conversation import (
    ABORTED,
    last_answer,
    turn_input,
    turns_not_read,
)
from hrm_agent.runtime.execution.run_context import InvocationNotes
from hrm_agent.store import RunStore, StoreSaver
from hrm_agent.trajectory import RunStatus, StopReason, Trajectory, Turn, TurnEnd

__all__ = ["GraphRun", "OnChunk", "OnEvent", "OnUpdate", "StreamCallbacks", "as_state"]

OnUpdate = Callable[[tuple[str, ...], dict[str, Any]], None]
"""Called with each node's update as it happens: the names of the enclosing subgraphs' nodes, and
`{node: update}`.
"""
OnChunk = Callable[[tuple[str, ...], str, AIMessageChunk], None]
"""Called with each piece of an answer as it is sampled: the enclosing subgraphs' nodes, the node,
the piece.
"""
OnEvent = Callable[[tuple[str, ...], dict[str, Any]], None]
"""Called with the output of nodes to LangGraph's stream writer: the enclosing subgraphs' nodes, the
event. Tool calls are announced there before they run (`hrm_agent.tools.run_tool_calls`).
"""

_OUTPUTS = ("answer", "output", "result")
Graph = Pregel[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One graph on one thread, from its current state to its end."""

    graph: Graph
    """Compiled graph, not yet bound to the store's checkpointer."""
    config: RunnableConfig
    """LangGraph's config, which names the thread and the limit of steps."""
    context: Any
    """LangGraph's run context, of the class that the graph declares (None if it declares none)."""
    first: Callable[[], Any]
    """Function that makes the input of a thread without checkpoints."""
    record: Trajectory | None
    """Record of a thread that is resumed (None for a new thread)."""
    command: Command[Any] | None = None
    """Command that resumes a pending interrupt (None passes a breakpoint)."""
    answers: bool = False
    """True if a pending interrupt is resumed with `command`, or a breakpoint is passed."""
    memories: BaseStore | None = None
    """LangGraph store of the run."""
    noted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Options to note with each checkpoint, as `configurable` and `context`, without secrets."""
    answer_path: str = ""
    """Path of the answer in the final state. If it is empty, the answer is the last message, or
    `answer`, `output` or `result`.
    """

    async def answering(self, store: RunStore, answer: Any) -> GraphRun:
        """Return the run, resumed with `answer`. Raises `RunError` if it is not waiting for an
        answer.
        """
        record = self.record
        over = record is not None and record.status is not RunStatus.RUNNING
        if record is None or (over and record.stop_reason is not StopReason.INTERRUPT):
            stands = f"it is {record.status.value}" if record else "it was never run"
            raise RunError(
                f"The thread is not waiting for an answer: {stands}.", "Leave the answer out."
            )
        waiting = (await self._in(store).aget_state(self.config)).interrupts
        return replace(self, command=_command(waiting, answer), answers=True)

    async def is_stopped(self, store: RunStore) -> bool:
        """True if the recorded run ended before its graph: it failed, was stopped, or met a limit.

        A run that waits for an answer is not stopped.
        """
        record = self.record
        if record is None or record.status in (RunStatus.COMPLETED, RunStatus.RUNNING):
            return False
        if record.status is not RunStatus.TRUNCATED:
            return True
        if record.stop_reason is StopReason.INTERRUPT:
            return False
        return bool((await self._in(store).aget_state(self.config)).tasks)

    async def ended_before(self, store: RunStore) -> TurnEnd:
        """End of the newest recorded turn. A turn that is not over counts as aborted."""
        record = self.record
        graph = self._in(store)
        if record is not None and record.status is not RunStatus.RUNNING:
            return TurnEnd.model_validate(record.model_dump(include=set(TurnEnd.model_fields)))
        snapshot = await graph.aget_state(self.config)
        over = snapshot.values and not snapshot.tasks and not await self._not_read(graph)
        return self.outcome(as_state(snapshot.values)) if over else ABORTED

    def _in(self, store: RunStore) -> Graph:
        """Graph with the checkpoints of the store, and with a LangGraph store for its nodes."""
        saver = store.checkpointer.allowing(self.graph)
        return self.graph.copy(update={"checkpointer": saver, "store": self.memories})

    def _noting(self, graph: Graph) -> Graph:
        """Graph with a checkpointer that notes the options of the run."""
        context = None if self.context is None else self.noted.get("context", {})
        limit = self.config.get("recursion_limit")
        notes = InvocationNotes(
            limit, configurable=self.noted.get("configurable", {}), context=context
        )
        return graph.copy(
            update={"checkpointer": cast("StoreSaver", graph.checkpointer).noting(notes)}
        )

    async def _not_read(self, graph: Graph) -> Sequence[Turn]:
        turns = self.record.turns if self.record is not None else ()
        return await turns_not_read(
            cast("BaseCheckpointSaver[Any]", graph.checkpointer), self.config, turns
        )

    async def _where_it_stands(self, graph: Graph) -> tuple[Any, Mapping[str, Any] | None]:
        """Input of a resumed thread, or the state of a thread that has ended."""
        snapshot = await graph.aget_state(self.config)
        if not (snapshot.values or snapshot.tasks):
            graph_input = self.first()
            turns = self.record.turns if self.record else ()
            later: list[Any] = turn_input(turns, {})["messages"]
            return (
                graph_input | {"messages": [*graph_input["messages"], *later]}
                if later
                else graph_input
            ), None
        if unread := await self._not_read(graph):
            return turn_input(unread, snapshot.values), None
        return None, (as_state(snapshot.values) if snapshot.values and not snapshot.tasks else None)

    async def run_to_end(self, store: RunStore, callbacks: StreamCallbacks) -> TurnEnd:
        """Run from the newest checkpoint. A thread that has ended is read back."""
        graph = self._noting(self._in(store))
        if self.answers:
            graph_input: Any = self.command
        elif self.record is None:
            graph_input = self.first()
        else:
            graph_input, at_end = await self._where_it_stands(graph)
            if at_end is not None:
                return self.outcome(at_end)
        final: dict[str, Any] = {}
        stream: AsyncIterator[Any] = graph.astream(
            graph_input,
            self.config,
            context=self.context,
            stream_mode=callbacks.modes,
            subgraphs=True,
            durability="sync",
        )
        async for namespace, mode, data in stream:
            around = tuple(part.node for text in namespace for part in namespace_parts(text))
            if mode != "values":
                callbacks.dispatch(mode, around, data)
            elif not namespace:
                final = {**final, **as_state(data)}
        if INTERRUPT in final or await self._at_breakpoint(graph):
            return TurnEnd(
                status=RunStatus.TRUNCATED,
                stop_reason=StopReason.INTERRUPT,
                answer=self._answer(final),
            )
        return self.outcome(final)

    async def _at_breakpoint(self, graph: Graph) -> bool:
        stops = graph.interrupt_before_nodes or graph.interrupt_after_nodes
        return bool(stops and (await graph.aget_state(self.config)).next)

    def outcome(self, final: Mapping[str, Any]) -> TurnEnd:
        """Outcome of a run with this final state. Its `stop_reason` may be set by the graph; any
        value but a `StopReason` counts as ANSWER.
        """
        said = str(final.get("stop_reason") or "")
        reason = StopReason(said) if said in set(StopReason) else StopReason.ANSWER
        status = RunStatus.TRUNCATED if reason.truncates else RunStatus.COMPLETED
        return TurnEnd(status=status, stop_reason=reason, answer=self._answer(final))

    def _answer(self, final: Mapping[str, Any]) -> str | None:
        """Text of the answer. Lone surrogates, which can come from JSON and cannot be recorded, are
        replaced.
        """
        said = self._said(final)
        return None if said is None else without_surrogates(said)

    def _said(self, final: Mapping[str, Any]) -> str | None:
        if self.answer_path:
            return text_at(final, self.answer_path)
        shown = self.graph.output_channels
        output = {k: v for k, v in final.items() if isinstance(shown, str) or k in shown}
        thread = str(self.config.get("configurable", {}).get("thread_id"))
        said = last_answer(
            output.get("messages", ()), thread, self.record.turns if self.record else ()
        )
        if said is not None:
            return said
        return next((str(output[name]) for name in _OUTPUTS if output.get(name) is not None), None)


def as_state(values: Any) -> Mapping[str, Any]:
    """State as a mapping. The return value of a functional workflow is its `output`."""
    return cast("Mapping[str, Any]", values) if isinstance(values, Mapping) else {"output": values}


class StreamCallbacks(NamedTuple):
    """Callbacks of a run (None: not called)."""

    on_update: OnUpdate | None
    """Called with each node's update."""
    on_chunk: OnChunk | None
    """Called with each piece of a reply as it is sampled."""
    on_event: OnEvent | None
    """Called with the output of nodes to LangGraph's stream writer."""

    @property
    def modes(self) -> list[Literal["values", "updates", "messages", "custom"]]:
        """Stream modes. `messages` is used only with a callback for it, since it makes LangGraph
        stream every answer.
        """
        return [
            "values",
            *(["updates"] if self.on_update else []),
            *(["messages"] if self.on_chunk else []),
            *(["custom"] if self.on_event else []),
        ]

    def dispatch(self, mode: str, around: tuple[str, ...], data: Any) -> None:
        if mode == "updates" and self.on_update:
            self.on_update(
                around, {node: values for node, values in data.items() if node != UPDATE_METADATA}
            )
        elif mode == "custom" and self.on_event and isinstance(data, dict):
            self.on_event(around, cast("dict[str, Any]", data))
        elif mode == "messages" and self.on_chunk and isinstance(data[0], AIMessageChunk):
            self.on_chunk(around, data[1]["langgraph_node"], data[0])


def _command(waiting: Sequence[Interrupt], answer: Any) -> Command[Any] | None:
    """Command that resumes (None passes a breakpoint). An id is needed only if several interrupts
    are pending.
    """
    # A nested question is reported by each graph around it.
    waiting = list({question.id: question for question in waiting}.values())
    if not waiting:
        return None if answer is None else Command(resume=answer)
    by_id: Mapping[str, Any] = (
        cast("Mapping[str, Any]", answer) if isinstance(answer, Mapping) else {}
    )
    if by_id and by_id.keys() <= {question.id for question in waiting}:
        return Command(resume=dict(by_id))
    if len(waiting) > 1:
        asked = "; ".join(f"{question.id}: {question.value}" for question in waiting)
        raise RunError(
            f"{len(waiting)} questions are pending: {asked}.",
            "Give the answers by id, as a JSON object.",
        )
    # LangGraph reads a mapping as answers by id, so that an empty mapping, or one whose keys look
    # like ids, would answer no question.
    return Command(resume={waiting[0].id: answer} if isinstance(answer, Mapping) else answer)
