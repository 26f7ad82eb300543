"""The front door: one task, one graph, one thread, one trajectory.

Commands and the trainer reach agents only through here. An episode is started, or, if its thread is on record already,
carried on: a finished one is read back, an interrupted one goes on from its newest checkpoint, and what its unfinished
step had asked before is answered from the journal.

A graph needs nothing special. It is given the task as a human message in `messages` (or as text in `problem`,
`question`, `task` or `input`, whichever its state has), and its answer is the last message (or `answer`, `output` or
`result`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel

from graphs.loading import load_graph
from hrm_agent.environment import Environment, using_environment
from hrm_agent.errors import ConfigError, StoreError, nearest
from hrm_agent.models import Backend, using_policy
from hrm_agent.models.capture import JournalHandler
from hrm_agent.models.stand_in import standing_in
from hrm_agent.store import RunStore
from hrm_agent.trajectory import (
    Recording,
    RunStatus,
    Sampling,
    StopReason,
    TaskRef,
    Trajectory,
    content_hash,
    recording,
)

__all__ = ["Episode", "EpisodeRunner", "OnUpdate"]

OnUpdate = Callable[[tuple[str, ...], dict[str, Any]], None]
"""Called with each node's update as it happens: the names of the enclosing subgraphs' nodes, and `{node: update}`."""

_INPUTS = ("problem", "question", "task", "input")
_OUTPUTS = ("answer", "output", "result")
_TRUNCATED = {
    StopReason.MAX_TURNS,
    StopReason.MAX_TOKENS,
    StopReason.MAX_SECONDS,
    StopReason.RECURSION_LIMIT,
    StopReason.INTERRUPT,
}


@dataclass(frozen=True, slots=True)
class Episode:
    """One run that is asked for. Its `thread_id` is its identity: the same thread is never run twice."""

    task: TaskRef
    thread_id: str
    graph: str = "tool_loop"
    run_id: str = ""
    group_id: str = ""
    sample_index: int = 0
    seed: int | None = None
    """Base of the seeds of all model calls; None draws them from the system."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """LangGraph's run context: the graph's budgets and options."""
    verify: Callable[[str], float] | None = None
    """Scores the final text, in this process; the reward is stored as `correct`."""

    @property
    def trajectory_id(self) -> str:
        return content_hash("trajectory", self.thread_id)[:16]


@dataclass(frozen=True, slots=True)
class EpisodeRunner:
    """What the episodes of a run share. Episodes run side by side, as tasks of one event loop."""

    store: RunStore
    backend: Backend
    policy: str
    """The string that names the backend."""
    environment: Environment
    sampling: Sampling = field(default_factory=Sampling)
    recursion_limit: int = 200
    """LangGraph's steps; the graph's own budgets should end it long before."""
    stand_in: bool = False
    """The policy answers for chat models that the graph holds itself (`hrm_agent.models.stand_in`)."""

    async def run(self, episode: Episode, on_update: OnUpdate | None = None) -> Trajectory:
        """Run, resume or read back an episode; returns its trajectory with all calls.

        What the graph raises ends up in the trajectory (`failed`). Raises `StoreError` if nothing can be recorded,
        `GraphError` and `ConfigError` for an episode that cannot be run at all.
        """
        graph = load_graph(episode.graph)
        context = _context(graph, episode)
        journal = self.store.journal
        known = journal.find_trajectory(episode.trajectory_id)
        if known is not None and known.status is not RunStatus.RUNNING:
            return known
        begun = known or self._begin(episode)
        with ExitStack() as stack:
            stack.enter_context(recording(Recording(journal, episode.seed)))
            stack.enter_context(using_policy(self.backend, self.sampling))
            stack.enter_context(using_environment(self.environment))
            if self.stand_in:
                stack.enter_context(standing_in())
            try:
                ended = await self._drive(graph, episode, context, on_update, resumed=known is not None)
            except StoreError:
                raise
            except GraphRecursionError:
                ended = {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.RECURSION_LIMIT}
            except Exception as error:
                ended = {
                    "status": RunStatus.FAILED,
                    "stop_reason": StopReason.ERROR,
                    "error": f"{type(error).__name__}: {error}",
                }
        return self._end(begun, episode, ended)

    def _begin(self, episode: Episode) -> Trajectory:
        begun = Trajectory(
            id=episode.trajectory_id,
            thread_id=episode.thread_id,
            run_id=episode.run_id,
            group_id=episode.group_id,
            sample_index=episode.sample_index,
            task=episode.task,
            graph=episode.graph,
            policy=self.policy,
            policy_version=getattr(self.backend, "policy_version", 0),
            started_at=time.time(),
        )
        self.store.journal.write_trajectory(begun)
        return begun

    async def _drive(
        self,
        graph: Pregel[Any, Any, Any, Any],
        episode: Episode,
        context: Any,
        on_update: OnUpdate | None,
        *,
        resumed: bool,
    ) -> dict[str, Any]:
        graph = graph.copy(update={"checkpointer": self.store.checkpointer.allowing(graph)})
        config: RunnableConfig = {
            "configurable": {"thread_id": episode.thread_id},
            "recursion_limit": self.recursion_limit,
            "callbacks": [JournalHandler(self.store.journal)],
        }
        given: dict[str, Any] | None = _input(graph, episode.task.prompt)
        if resumed:
            snapshot = await graph.aget_state(config)
            if snapshot.values and not snapshot.tasks:
                return _outcome(snapshot.values)
            given = None if snapshot.values or snapshot.tasks else given
        final: dict[str, Any] = {}
        modes: list[Literal["values", "updates"]] = ["values", "updates"] if on_update else ["values"]
        stream: AsyncIterator[Any] = graph.astream(
            given, config, context=context, stream_mode=modes, subgraphs=True, durability="sync"
        )
        async for namespace, mode, data in stream:
            if mode == "updates" and on_update:
                on_update(tuple(part.partition(":")[0] for part in namespace), data)
            elif not namespace:
                final = {**final, **data}
        return _outcome(final)

    def _end(self, begun: Trajectory, episode: Episode, ended: dict[str, Any]) -> Trajectory:
        answer = ended.get("answer")
        rewards = {"correct": float(episode.verify(answer or ""))} if episode.verify else {}
        self.store.journal.write_trajectory(
            begun.model_copy(update={**ended, "rewards": rewards, "ended_at": max(time.time(), begun.started_at)})
        )
        return self.store.journal.trajectory(begun.id)


def _outcome(final: Mapping[str, Any]) -> dict[str, Any]:
    """Status, stop reason and answer out of a graph's final state."""
    reason = StopReason(final.get("stop_reason") or StopReason.ANSWER)
    if final.get("__interrupt__"):
        reason = StopReason.INTERRUPT
    status = RunStatus.TRUNCATED if reason in _TRUNCATED else RunStatus.COMPLETED
    return {"status": status, "stop_reason": reason, "answer": _answer(final)}


def _answer(final: Mapping[str, Any]) -> str | None:
    for message in reversed(final.get("messages", ())):
        if isinstance(message, AIMessage):
            return message.text
    return next((str(final[name]) for name in _OUTPUTS if final.get(name) is not None), None)


def _input(graph: Pregel[Any, Any, Any, Any], prompt: str) -> dict[str, Any]:
    if "messages" in graph.channels:
        return {"messages": [HumanMessage(prompt)]}
    name = next((name for name in _INPUTS if name in graph.channels), None)
    if name is None:
        raise ConfigError(
            f"The graph's state has none of messages, {', '.join(_INPUTS)}: there is no place for the task.",
            "Add `messages: Annotated[list, add_messages]` to its state.",
        )
    return {name: prompt}


def _context(graph: Pregel[Any, Any, Any, Any], episode: Episode) -> Any:
    """The run context as the graph declares it; an option that it does not know is an error."""
    schema = graph.context_schema
    known = _context_fields(schema) if schema is not None else ()
    for name in episode.context:
        if name not in known:
            raise ConfigError(
                f"Graph {episode.graph!r} has no option {name!r}. {nearest(name, known)}".strip(),
                f"Its options: {', '.join(known) or 'none'}.",
            )
    if schema is None:
        return None
    return schema(**episode.context) if is_dataclass(schema) else dict(episode.context)


@lru_cache
def _context_fields(schema: type[Any]) -> tuple[str, ...]:
    if is_dataclass(schema):
        return tuple(item.name for item in fields(schema))
    return tuple(getattr(schema, "model_fields", None) or getattr(schema, "__annotations__", {}))
