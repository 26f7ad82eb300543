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
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache
from typing import Any, Literal, get_type_hints

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel

from graphs.loading import load_graph
from hrm_agent.environment import Environment, using_environment
from hrm_agent.errors import ConfigError, ContextLengthError, HrmError, RunError, nearest
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

        What the graph raises ends up in the trajectory (`failed`), a context window that is full is a limit like any
        other (`truncated`). An `HrmError` is what a person can mend (no room on the disk, no sandbox, a provider that
        does not answer): it is raised, and the episode can be gone on with.
        """
        graph = load_graph(episode.graph)
        context, given = _context(graph, episode), _input(graph, episode.task.prompt)
        known = self.store.journal.find_trajectory(episode.trajectory_id)
        if known is not None and known.status is not RunStatus.RUNNING:
            return known
        active = Recording(self.store.journal, episode.seed)
        with _one_at_a_time(str(self.store.path), episode.thread_id), self._in_force(active):
            begun = known or self._begin(episode)
            drive = _Drive(graph, self._config(episode, active), context, given, resumed=known is not None)
            try:
                ended = await drive.to_the_end(self.store, on_update)
            except ContextLengthError:
                ended = _ended(RunStatus.TRUNCATED, StopReason.MAX_TOKENS)
            except HrmError:
                raise
            except GraphRecursionError:
                ended = _ended(RunStatus.TRUNCATED, StopReason.RECURSION_LIMIT)
            except Exception as error:
                ended = _failed(f"{type(error).__name__}: {error}")
            if active.broken is not None:  # the graph caught the error; its record has a hole all the same
                raise active.broken
            return self._end(begun, episode, ended)

    @contextmanager
    def _in_force(self, active: Recording) -> Generator[None]:
        """Recording, policy and sandbox for everything that runs inside the block."""
        with ExitStack() as stack:
            stack.enter_context(recording(active))
            stack.enter_context(using_policy(self.backend, self.sampling))
            stack.enter_context(using_environment(self.environment))
            if self.stand_in:
                stack.enter_context(standing_in())
            yield

    def _config(self, episode: Episode, active: Recording) -> RunnableConfig:
        return {
            "configurable": {"thread_id": episode.thread_id},
            "recursion_limit": self.recursion_limit,
            "callbacks": [JournalHandler(active)],
        }

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

    def _end(self, begun: Trajectory, episode: Episode, ended: dict[str, Any]) -> Trajectory:
        rewards: dict[str, float] = {}
        if episode.verify is not None:
            try:
                rewards = {"correct": _checked(episode.verify(ended.get("answer") or ""))}
            except Exception as error:
                ended = _failed(f"the verifier failed: {type(error).__name__}: {error}") | {"answer": ended["answer"]}
        times = {"rewards": rewards, "ended_at": max(time.time(), begun.started_at)}
        self.store.journal.write_trajectory(begun.model_copy(update=ended | times))
        return self.store.journal.trajectory(begun.id)


@dataclass(frozen=True, slots=True)
class _Drive:
    """One graph on one thread, from where it stands to its end."""

    graph: Pregel[Any, Any, Any, Any]
    config: RunnableConfig
    context: Any
    given: dict[str, Any]
    """The input of a thread that has no checkpoint yet."""
    resumed: bool

    async def to_the_end(self, store: RunStore, on_update: OnUpdate | None) -> dict[str, Any]:
        """Status, stop reason and answer, as fields of a trajectory."""
        graph = self.graph.copy(update={"checkpointer": store.checkpointer.allowing(self.graph)})
        given: dict[str, Any] | None = self.given
        if self.resumed:
            snapshot = await graph.aget_state(self.config)
            if snapshot.values and not snapshot.tasks:
                return self._outcome(snapshot.values)
            given = None if snapshot.values or snapshot.tasks else given
        final: dict[str, Any] = {}
        modes: list[Literal["values", "updates"]] = ["values", "updates"] if on_update else ["values"]
        stream: AsyncIterator[Any] = graph.astream(
            given, self.config, context=self.context, stream_mode=modes, subgraphs=True, durability="sync"
        )
        async for namespace, mode, data in stream:
            if mode == "updates" and on_update:
                on_update(tuple(part.partition(":")[0] for part in namespace), data)
            elif not namespace:
                final = {**final, **data}
        if "__interrupt__" in final or await self._at_breakpoint(graph):
            return _ended(RunStatus.TRUNCATED, StopReason.INTERRUPT, self._answer(final))
        return self._outcome(final)

    async def _at_breakpoint(self, graph: Pregel[Any, Any, Any, Any]) -> bool:
        stops = graph.interrupt_before_nodes or graph.interrupt_after_nodes
        return bool(stops and (await graph.aget_state(self.config)).next)

    def _outcome(self, final: Mapping[str, Any]) -> dict[str, Any]:
        """A graph may say in `stop_reason` why it stopped; what it says there in other words means that it answered."""
        said = str(final.get("stop_reason") or "")
        reason = StopReason(said) if said in set(StopReason) else StopReason.ANSWER
        status = RunStatus.TRUNCATED if reason in _TRUNCATED else RunStatus.COMPLETED
        return _ended(status, reason, self._answer(final))

    def _answer(self, final: Mapping[str, Any]) -> str | None:
        shown = self.graph.output_channels
        output = {k: v for k, v in final.items() if isinstance(shown, str) or k in shown}
        for message in reversed(output.get("messages", ())):
            if isinstance(message, AIMessage):
                return message.text
        return next((str(output[name]) for name in _OUTPUTS if output.get(name) is not None), None)


def _ended(status: RunStatus, reason: StopReason, answer: str | None = None) -> dict[str, Any]:
    return {"status": status, "stop_reason": reason, "answer": answer}


def _failed(error: str) -> dict[str, Any]:
    return _ended(RunStatus.FAILED, StopReason.ERROR) | {"error": error}


def _checked(reward: float) -> float:
    if not 0.0 <= reward <= 1.0:
        raise ValueError(f"a reward lies in [0, 1], not {reward}")
    return float(reward)


_running: set[tuple[str, str]] = set()


@contextmanager
def _one_at_a_time(store: str, thread_id: str) -> Generator[None]:
    """LangGraph would fork a thread that is run twice at once, without a word."""
    key = (store, thread_id)
    if key in _running:
        raise RunError(f"Thread {thread_id!r} is being run already.", "Wait for it, or use a thread of its own.")
    _running.add(key)
    try:
        yield
    finally:
        _running.discard(key)


def _input(graph: Pregel[Any, Any, Any, Any], prompt: str) -> dict[str, Any]:
    """The task in the form that the graph's input has a place for."""
    places = _input_fields(graph)
    if "messages" in places:
        return {"messages": [HumanMessage(prompt)]}
    name = next((name for name in _INPUTS if name in places), None)
    if name is None:
        raise ConfigError(
            f"The graph's input has none of messages, {', '.join(_INPUTS)}: there is no place for the task.",
            "Add `messages: Annotated[list, add_messages]` to its state.",
        )
    return {name: prompt}


@lru_cache
def _input_fields(graph: Pregel[Any, Any, Any, Any]) -> tuple[str, ...]:
    """Names in the graph's input schema; of a graph that is no state graph, its channels."""
    schema = getattr(getattr(graph, "builder", None), "input_schema", None)
    return _fields_of(schema) if schema is not None else tuple(graph.channels)


def _context(graph: Pregel[Any, Any, Any, Any], episode: Episode) -> Any:
    """The run context as the graph declares it; an option that it does not know is an error."""
    schema = graph.context_schema
    known = _fields_of(schema) if schema is not None else ()
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
def _fields_of(schema: type[Any]) -> tuple[str, ...]:
    """Field names of a dataclass, a pydantic model or a typed dict."""
    return tuple(getattr(schema, "model_fields", None) or get_type_hints(schema))
