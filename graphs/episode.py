"""The front door: one task, one graph, one thread, one trajectory.

Commands and the trainer reach agents only through here. An episode is started, or, if its thread is on record already,
carried on: a finished one is read back, an interrupted one goes on from its newest checkpoint, and what its unfinished
step had asked before is answered from the journal.

A graph needs nothing special. It is given the task as a human message in `messages` (or as text in `problem`,
`question`, `task` or `input`, whichever its state has), and its answer is the last message (or `answer`, `output` or
`result`).
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any, Literal, TypeGuard, cast, get_type_hints

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt

from graphs.loading import load_graph
from hrm_agent.environment import Environment, using_environment
from hrm_agent.errors import ConfigError, ContextLengthError, HrmError, RunError, nearest
from hrm_agent.models import Backend, using_policy
from hrm_agent.models.foreign import record_foreign_models
from hrm_agent.models.stand_in import standing_in
from hrm_agent.store import RunStore
from hrm_agent.tools.foreign import record_foreign_tools
from hrm_agent.tools.sessions import end_sessions
from hrm_agent.trajectory import (
    Journal,
    Recording,
    RunStatus,
    Sampling,
    StopReason,
    TaskRef,
    Trajectory,
    content_hash,
    recording,
)

__all__ = ["CONTEXT", "HISTORY", "NO_ANSWER", "Episode", "EpisodeRunner", "OnChunk", "OnUpdate", "run_context"]

OnUpdate = Callable[[tuple[str, ...], dict[str, Any]], None]
"""Called with each node's update as it happens: the names of the enclosing subgraphs' nodes, and `{node: update}`."""
OnChunk = Callable[[tuple[str, ...], str, AIMessageChunk], None]
"""Called with each piece of an answer as it is sampled: the enclosing subgraphs' nodes, the node, the piece."""

CONTEXT = "hrm_agent_context"
"""Key in the metadata of checkpoints: the run context as JSON, since LangGraph stores none and a replay needs it."""
HISTORY = "history"
"""Key in a task's metadata: the turns before it, `{"role": "user" or "assistant", "content": text}` each, for graphs
whose input has messages."""
NO_ANSWER: Any = object()
"""None may be an answer."""
_SAID = {"user": HumanMessage, "assistant": AIMessage}
_INPUTS = ("problem", "question", "task", "input")
_OUTPUTS = ("answer", "output", "result")


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
    constrain: bool = True
    """Answers are held to the schemas that the graph asks for; a trainer's rollouts are not."""
    record: Callable[[Journal, int | None, Collection[str]], Recording] = Recording
    """Opens the recording of an episode: journal, base of its seeds, ids of the calls that a fork was begun with."""

    async def run(
        self,
        episode: Episode,
        on_update: OnUpdate | None = None,
        *,
        answer: Any = NO_ANSWER,
        on_chunk: OnChunk | None = None,
    ) -> Trajectory:
        """Run, resume or read back an episode; returns its trajectory with all calls.

        `answer`: what an `interrupt()` that waits is answered with (by interrupt id, where several wait); None passes
        a breakpoint. The run goes on from there.

        What the graph raises ends up in the trajectory (`failed`), a context window that is full is a limit like any
        other (`truncated`). An `HrmError` is what a person can mend (no room on the disk, no sandbox, a provider that
        does not answer): it is raised, and the episode can be gone on with.
        """
        graph = load_graph(episode.graph)
        context, given = run_context(graph, episode), _input(graph, episode)
        known = self.store.journal.find_trajectory(episode.trajectory_id)
        if answer is NO_ANSWER and _is_over(known):
            return known
        async with AsyncExitStack() as stack:
            stack.enter_context(self.store.lease(episode.thread_id))
            known = self.store.journal.find_trajectory(episode.trajectory_id)
            if answer is NO_ANSWER and _is_over(known):  # another process has run it before the lease was ours
                return known
            active = self.record(self.store.journal, episode.seed, _inherited(known))
            active.run_id = episode.run_id or episode.thread_id
            await stack.enter_async_context(self._in_force(active))
            drive = _Drive(graph, self._config(episode), context, given, resumed=known is not None)
            if answer is not NO_ANSWER:
                drive = await drive.answering(self.store, known, answer)
                known = self._reopen(known)
            begun = known or self.begin(episode)
            try:
                ended = await drive.to_the_end(self.store, on_update, on_chunk)
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

    @asynccontextmanager
    async def _in_force(self, active: Recording) -> AsyncGenerator[None]:
        """Recording, policy and sandbox for everything that runs inside the block; its sessions end with it."""
        record_foreign_models()
        record_foreign_tools()
        with ExitStack() as stack:
            stack.enter_context(recording(active))
            stack.enter_context(using_policy(self.backend, self.sampling, self.constrain))
            stack.enter_context(using_environment(self.environment))
            if self.stand_in:
                stack.enter_context(standing_in())
            try:
                yield
            finally:
                await end_sessions(active, self.environment)

    def _config(self, episode: Episode) -> RunnableConfig:
        context = {CONTEXT: json.dumps(dict(episode.context), default=str)} if episode.context else {}
        return {
            "configurable": {"thread_id": episode.thread_id},
            "metadata": context,
            "recursion_limit": self.recursion_limit,
        }

    def begin(self, episode: Episode) -> Trajectory:
        """Put an episode on record that is not run yet."""
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

    def _reopen(self, known: Trajectory | None) -> Trajectory | None:
        """A run that had stopped at a question is under way again."""
        if known is None or known.status is RunStatus.RUNNING:
            return known
        again: dict[str, Any] = {"status": RunStatus.RUNNING, "stop_reason": None, "answer": None, "ended_at": None}
        reopened = known.model_copy(update=again | {"rewards": {}})
        self.store.journal.write_trajectory(reopened)
        return reopened

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
    given: dict[str, Any] | Command[Any] | None
    """The input of a thread that has no checkpoint yet, or what answers its question."""
    resumed: bool

    async def answering(self, store: RunStore, known: Trajectory | None, answer: Any) -> _Drive:
        """The same, going on with `answer`. Raises `RunError` where nothing waits for it."""
        if known is None or (known.status is not RunStatus.RUNNING and known.stop_reason is not StopReason.INTERRUPT):
            stands = f"it is {known.status.value}" if known else "it was never run"
            raise RunError(f"The thread waits for no answer: {stands}.", "Leave the answer out.")
        graph = self.graph.copy(update={"checkpointer": store.checkpointer.allowing(self.graph)})
        waiting = (await graph.aget_state(self.config)).interrupts
        return replace(self, given=_command(waiting, answer), resumed=False)

    async def to_the_end(self, store: RunStore, on_update: OnUpdate | None, on_chunk: OnChunk | None) -> dict[str, Any]:
        """Status, stop reason and answer, as fields of a trajectory."""
        graph = self.graph.copy(update={"checkpointer": store.checkpointer.allowing(self.graph)})
        given = self.given
        if self.resumed:
            snapshot = await graph.aget_state(self.config)
            if snapshot.values and not snapshot.tasks:
                return self._outcome(snapshot.values)
            given = None if snapshot.values or snapshot.tasks else given
        final: dict[str, Any] = {}
        stream: AsyncIterator[Any] = graph.astream(
            given,
            self.config,
            context=self.context,
            stream_mode=_modes(on_update, on_chunk),
            subgraphs=True,
            durability="sync",
        )
        async for namespace, mode, data in stream:
            around = tuple(part.partition(":")[0] for part in namespace)
            if mode == "updates" and on_update:
                on_update(around, data)
            elif mode == "messages":
                if on_chunk and isinstance(data[0], AIMessageChunk):
                    on_chunk(around, data[1]["langgraph_node"], data[0])
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
        status = RunStatus.TRUNCATED if reason.truncates else RunStatus.COMPLETED
        return _ended(status, reason, self._answer(final))

    def _answer(self, final: Mapping[str, Any]) -> str | None:
        shown = self.graph.output_channels
        output = {k: v for k, v in final.items() if isinstance(shown, str) or k in shown}
        task = _input_id(str(self.config.get("configurable", {}).get("thread_id")))
        for message in takewhile(lambda m: getattr(m, "id", None) != task, reversed(output.get("messages", ()))):
            if isinstance(message, AIMessage):
                return message.text
        return next((str(output[name]) for name in _OUTPUTS if output.get(name) is not None), None)


def _modes(on_update: OnUpdate | None, on_chunk: OnChunk | None) -> list[Literal["values", "updates", "messages"]]:
    """Messages only where somebody listens: LangGraph then has every answer streamed."""
    return ["values", *(["updates"] if on_update else []), *(["messages"] if on_chunk else [])]


def _is_over(known: Trajectory | None) -> TypeGuard[Trajectory]:
    return known is not None and known.status is not RunStatus.RUNNING


def _inherited(known: Trajectory | None) -> set[str]:
    """Ids of the calls that a fork was begun with."""
    return {call.id for call in known.calls if call.identity.thread_id != known.thread_id} if known else set()


def _command(waiting: Sequence[Interrupt], answer: Any) -> Command[Any] | None:
    """None goes on past a breakpoint. Where one question waits, or a fork will ask it anew, it need not be named."""
    if not waiting:
        return None if answer is None else Command(resume=answer)
    by_id: Mapping[str, Any] = cast("Mapping[str, Any]", answer) if isinstance(answer, Mapping) else {}
    if by_id and by_id.keys() <= {question.id for question in waiting}:
        return Command(resume=dict(by_id))
    if len(waiting) > 1:
        asked = "; ".join(f"{question.id}: {question.value}" for question in waiting)
        raise RunError(f"{len(waiting)} questions wait: {asked}.", "Give the answers by id, as a JSON object.")
    # An empty mapping by itself would answer no question; so would one whose keys look like ids.
    return Command(resume={waiting[0].id: answer} if isinstance(answer, Mapping) else answer)


def _ended(status: RunStatus, reason: StopReason, answer: str | None = None) -> dict[str, Any]:
    return {"status": status, "stop_reason": reason, "answer": answer}


def _failed(error: str) -> dict[str, Any]:
    return _ended(RunStatus.FAILED, StopReason.ERROR) | {"error": error}


def _checked(reward: float) -> float:
    if not 0.0 <= reward <= 1.0:
        raise ValueError(f"a reward lies in [0, 1], not {reward}")
    return float(reward)


def _input(graph: Pregel[Any, Any, Any, Any], episode: Episode) -> dict[str, Any]:
    """The task in the form that the graph's input has a place for."""
    prompt = episode.task.prompt
    places = _input_fields(graph)
    if "messages" in places:
        before = [_SAID[turn["role"]](turn["content"]) for turn in episode.task.metadata.get(HISTORY, ())]
        return {"messages": [*before, HumanMessage(prompt, id=_input_id(episode.thread_id))]}
    name = next((name for name in _INPUTS if name in places), None)
    if name is None:
        raise ConfigError(
            f"The graph's input has none of messages, {', '.join(_INPUTS)}: there is no place for the task.",
            "Add `messages: Annotated[list, add_messages]` to its state.",
        )
    return {name: prompt}


def _input_id(thread_id: str) -> str:
    """Of the message that holds the task: what an assistant has said before it is no answer to it."""
    return content_hash("input", thread_id)


@lru_cache
def _input_fields(graph: Pregel[Any, Any, Any, Any]) -> tuple[str, ...]:
    """Names in the graph's input schema; of a graph that is no state graph, its channels."""
    schema = getattr(getattr(graph, "builder", None), "input_schema", None)
    return _fields_of(schema) if schema is not None else tuple(graph.channels)


def run_context(graph: Pregel[Any, Any, Any, Any], episode: Episode) -> Any:
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
    try:
        return schema(**episode.context) if is_dataclass(schema) else dict(episode.context)
    except (TypeError, ValueError, AttributeError) as error:  # a list where a mapping is wanted, say
        raise ConfigError(f"An option of graph {episode.graph!r} has a value of the wrong kind: {error}.") from error


@lru_cache
def _fields_of(schema: type[Any]) -> tuple[str, ...]:
    """Field names of a dataclass, a pydantic model or a typed dict."""
    return tuple(getattr(schema, "model_fields", None) or get_type_hints(schema))
