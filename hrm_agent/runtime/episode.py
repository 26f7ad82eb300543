"""Entry point to run graphs: one task, one graph, one thread, one trajectory.

Commands and the trainer run agents only through this module. An episode with a recorded thread is
resumed: a finished one is read back, an interrupted one continues from its newest checkpoint, and
earlier calls of its unfinished step are answered from the journal.

A graph needs nothing special. It receives the task as a human message in `messages` (or as text in
`problem`, `question`, `task` or `input`, whichever its state has). Its answer is the last message
(or `answer`, `output` or `result`). A graph with `messages` takes conversations: each later message
is a further turn on the same thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import isfinite
from typing import Any

from langgraph.errors import GraphRecursionError

from hrm_agent.draws import record_draws
from hrm_agent.environment import Environment, using_environment
from hrm_agent.environment.open import opened_environment
from hrm_agent.errors import (
    ConfigError,
    ContextLengthError,
    HrmError,
    LeaseLostError,
    RunError,
    TemplateRefusalError,
    UnstorableError,
)
from hrm_agent.langgraph_format import agent_of
from hrm_agent.models import ActivePolicy, Backend, load_policy, using_policy
from hrm_agent.models.external.recorded import record_external_models
from hrm_agent.models.external.substitute import standing_in
from hrm_agent.prompts import PromptTexts, recorded_texts, using_prompts
from hrm_agent.runtime.execution.answer_path import check_answer_path
from hrm_agent.runtime.execution.conversation import (
    ANSWER_PATH,
    CONFIGURABLE,
    HISTORY,
    close_tool_calls,
    first_input,
    reopened,
    takes_turns,
    texts_of_task,
    with_turn,
)
from hrm_agent.runtime.execution.graph_names import graph_name
from hrm_agent.runtime.execution.graph_run import (
    GraphRun,
    OnChunk,
    OnEvent,
    OnUpdate,
    StreamCallbacks,
)
from hrm_agent.runtime.execution.lazy_policy import model_that_answered, policy_for
from hrm_agent.runtime.execution.loading import (
    BUILTIN_GRAPHS,
    Graph,
    opened_graph,
    refuse_other_roles,
)
from hrm_agent.runtime.execution.memories import RunMemory, refuse_shared_store
from hrm_agent.runtime.execution.run_context import GIVEN_CONTEXT, run_context
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.runtime.failures import is_repeated, may_follow_from_answers, run_failed
from hrm_agent.runtime.settings import Durability, RolloutSettings, RunSettings
from hrm_agent.runtime.telemetry import OnEnd, exporting
from hrm_agent.store import Lease, RunStore
from hrm_agent.store.checkpoints.memory import read_memory
from hrm_agent.tools.external_tools import record_external_tools
from hrm_agent.tools.sessions import end_sessions
from hrm_agent.tools.task_environments.play import end_episodes
from hrm_agent.trajectory import (
    ForkRef,
    Journal,
    Recording,
    RewardFault,
    RunStatus,
    Sampling,
    StopReason,
    TaskRef,
    Trajectory,
    TurnEnd,
    content_hash,
    recording,
)

__all__ = [
    "CONFIGURABLE",
    "HISTORY",
    "NO_ANSWER",
    "Episode",
    "EpisodeRunner",
    "OnChunk",
    "OnEvent",
    "OnUpdate",
    "exporting",
    "policy_for",
    "refuse_other_roles",
]


@dataclass(frozen=True, slots=True)
class Episode:
    """Request for one run. Its `thread_id` is its identity: the same thread is never run twice."""

    task: TaskRef
    """Task for the graph."""
    thread_id: str
    """LangGraph's thread, from which the trajectory's id is made."""
    graph: Any = "tool_loop"
    """Built-in graph by name, `package.module:attribute`, or `./file.py:attribute`. It may also be
    the object itself: a graph, a `StateGraph`, or a factory.
    """
    run_id: str = ""
    """Id of the collect, eval or training run of the episode; empty for a single run."""
    group_id: str = ""
    """Id shared by the rollouts of one task in one step; empty outside of groups."""
    sample_index: int = 0
    """Index within the group, from 0."""
    seed: int | None = None
    """Base of the seeds of all model calls (None: drawn from the system)."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """LangGraph's run context: the graph's budgets and options."""
    unrecorded: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    """Secret options, by `configurable` and `context`: passed to the graph and not recorded."""
    verify: Callable[[str], float | Mapping[str, float]] | None = None
    """Verifier of the final text, in this process. Its reward is stored as `correct`; if it returns
    several numbers by name, `correct` is among them.
    """
    verify_run: Callable[[Trajectory], float | Mapping[str, float] | None] | None = None
    """Verifier of the whole run, in place of `verify`. It may return None if it cannot judge the run,
    which then has no rewards.
    """
    forked_from: ForkRef | None = None
    """Moment of another run of this task in the same store, in its first turn, from which a new
    thread begins (None: it begins with the task).
    """

    @property
    def graph_name(self) -> str:
        """Name of the graph in the record."""
        return self.graph if isinstance(self.graph, str) else graph_name(self.graph)

    @property
    def configurable(self) -> dict[str, Any]:
        """`config["configurable"]` of the run. It contains the run's context, since LangGraph's
        platform passes the context there, too. The task's options override the context, secret
        options override both, and the thread's id is set last.
        """
        named = self.task.metadata.get(CONFIGURABLE, {})
        return {
            **self.context,
            **named,
            **self.unrecorded.get(CONFIGURABLE, {}),
            "thread_id": self.thread_id,
        }

    @property
    def trajectory_id(self) -> str:
        return content_hash("trajectory", self.thread_id)[:16]

    def begun(self, policy: str, policy_version: int = 0) -> Trajectory:
        """Trajectory of the episode before it has run. It starts now."""
        return Trajectory(
            id=self.trajectory_id,
            thread_id=self.thread_id,
            run_id=self.run_id,
            group_id=self.group_id,
            sample_index=self.sample_index,
            task=self.task,
            graph=self.graph_name,
            policy=policy,
            policy_version=policy_version,
            forked_from=self.forked_from,
            started_at=time.time(),
        )


NO_ANSWER: Any = object()
"""Default of `answer`, since None may be an answer."""


@dataclass(frozen=True, slots=True)
class EpisodeRunner:
    """Settings shared by the episodes of a run. Episodes run in parallel as tasks of one event
    loop.
    """

    store: RunStore
    """Store for checkpoints and calls, which are read back on resume."""
    backend: Backend | str
    """Engine or chat model behind the graphs' `policy()`. A string is loaded at the first call."""
    policy: str
    """Model string of the backend."""
    environment: Environment
    """Environment for model-written code."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling parameters of calls that name none."""
    recursion_limit: int = 200
    """Maximum number of steps of the graph. The graph's own budgets should end a run much
    earlier.
    """
    stand_in: bool = False
    """Let the policy answer for chat models that the graph holds itself
    (`hrm_agent.models.external.substitute`).
    """
    constrain: bool = True
    """Constrain answers to the schemas that the graph requests. A trainer's rollouts are not
    constrained.
    """
    own_sampling: bool = False
    """Use `sampling` for the policy alone. A hosted model in a role is then sent only the
    parameters that the graph names. True under a trainer.
    """
    repeats_errors: bool = False
    """Repeat a step that raises after an answer of the policy, to find out whether the error
    follows from the answers (`hrm_agent.runtime.failures`). True for rollouts. False for a single
    run, so that its effects are not repeated.
    """
    durability: Durability = "steps"
    """Time of commits. With `steps`, each step of the graph and each call is committed as it ends.
    With `calls`, each model call is committed as it ends; steps and `python` calls are committed
    with the next model call, or some milliseconds later.
    """
    share_memory: bool = False
    """Share the graph's caches and LangGraph stores among the episodes of a group, as among
    episodes outside of groups. If False, each episode of a group has its own, and a graph whose
    store cannot be copied raises `ConfigError` in a run of groups.
    """
    takes_up_stopped: bool = False
    """Continue a recorded run that stopped before its graph had ended (it failed, was stopped, or
    met a limit of steps). If False, the record is read back unchanged, as for rollouts of a
    training.
    """
    by_role: Mapping[str, ActivePolicy] = field(default_factory=dict[str, ActivePolicy])
    """Policies of single roles, in place of `backend` and of the models that the graph holds for
    these roles.
    """
    record: Callable[[Journal, int | None, Collection[str]], Recording] = Recording
    """Function that opens the recording of an episode, from the journal, the base of its seeds, and
    the ids of calls shared with a fork's origin.
    """
    on_end: OnEnd | None = None
    """Callback for each run and each turn that ends here, but not for a run that is read back."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        store: RunStore,
        policy: str,
        settings: RolloutSettings | None = None,
        *,
        backend: Backend | str | None = None,
    ) -> AsyncGenerator[EpisodeRunner]:
        """Open a runner with these settings and an environment. `backend`: result of `policy_for`
        for `policy` (None: the policy is loaded).
        """
        settings = settings or RunSettings()
        held = backend or load_policy(policy)
        with exporting(settings) as on_end:
            async with opened_environment(
                settings.environment, isolation=settings.isolation
            ) as environment:
                yield cls(
                    store, held, policy, environment, on_end=on_end, **settings.runner_options()
                )

    async def run_all(
        self,
        episodes: Iterable[Episode],
        *,
        concurrency: int = 64,
        gate: asyncio.Semaphore | None = None,
        on_done: Callable[[Trajectory], object] | None = None,
    ) -> list[Trajectory]:
        """Run episodes in parallel; return their trajectories in order. An `HrmError` of one
        episode cancels the others.

        `gate`: semaphore shared by several calls, in place of `concurrency`.
        """
        gate = gate or asyncio.Semaphore(concurrency)

        async def run(episode: Episode) -> Trajectory:
            async with gate:
                trajectory = await self.run(episode)
            if on_done is not None:
                on_done(trajectory)
            return trajectory

        return await run_group(episodes, run)

    async def run(
        self,
        episode: Episode,
        on_update: OnUpdate | None = None,
        *,
        answer: Any = NO_ANSWER,
        say: str | None = None,
        on_chunk: OnChunk | None = None,
        on_event: OnEvent | None = None,
    ) -> Trajectory:
        """Run, resume or read back an episode; return its trajectory with all calls.

        `answer`: value that resumes a pending `interrupt()` (by interrupt id, if several are
        pending); None passes a breakpoint. `say`: a further user message on a recorded thread,
        however its last turn ended. A turn that is still running is given up. It requires a graph
        whose input has `messages`.

        An exception of the graph is stored in the trajectory (`failed`), with the stop reason
        `unusable_answer` if it follows from the policy's answers. A full context window is a limit
        like any other (`truncated`). An `HrmError` is a problem that a person can fix (a full disk,
        no sandbox, a provider that does not answer). It is raised, and the episode can be resumed.
        """
        callbacks = StreamCallbacks(on_update, on_chunk, on_event)
        async with opened_graph(episode.graph, episode.configurable) as graph:
            return await self._run(graph, episode, callbacks, answer, say)

    async def _run(
        self,
        graph: Graph,
        episode: Episode,
        callbacks: StreamCallbacks,
        answer: Any,
        say: str | None,
    ) -> Trajectory:
        path = str(episode.task.metadata.get(ANSWER_PATH, ""))
        check_answer_path(graph, path)
        given = {**episode.context, **episode.unrecorded.get(GIVEN_CONTEXT, {})}
        context = run_context(graph, given, episode.graph_name)
        texts = recorded_texts(episode.task.metadata)
        PromptTexts(texts)  # reports an unknown name before anything is written
        first = cache(partial(first_input, graph, episode.task, episode.thread_id))
        asks_nothing = answer is NO_ANSWER and say is None
        if (
            asks_nothing
            and not self.takes_up_stopped
            and self.store.journal.is_over(episode.trajectory_id)
        ):
            return self.store.journal.trajectory(episode.trajectory_id)
        async with AsyncExitStack() as stack:
            lease = stack.enter_context(
                self.store.lease(episode.thread_id, joins=self.durability == "calls")
            )
            await stack.enter_async_context(lease.stops_when_lost())
            record = (
                None if lease.new else self.store.journal.find_trajectory(episode.trajectory_id)
            )
            new = lease.new
            if record is None and episode.forked_from is not None:
                record = self._branched_off(episode, episode.forked_from)
                new = False
            memory = await self._memory(graph, episode, new=new)
            if record is None:
                first()  # reports a task that does not fit the input before anything is written
            configurable: Mapping[str, Any] = episode.task.metadata.get(CONFIGURABLE, {})
            noted = {"configurable": configurable, "context": episode.context}
            more: dict[str, Any] = {"answer_path": path, "memories": memory.store, "noted": noted}
            graph_run = GraphRun(
                graph,
                {"configurable": episode.configurable, "recursion_limit": self.recursion_limit},
                context,
                first,
                record,
                **more,
            )
            # another process may have run it before we had the lease
            if asks_nothing and record is not None and record.status is not RunStatus.RUNNING:
                if not (self.takes_up_stopped and await graph_run.is_stopped(self.store)):
                    return record
                record = self._reopen(record)
                graph_run = replace(graph_run, record=record)
            if say is not None:
                record = await self._take_turn(graph_run, say)
                graph_run = replace(graph_run, record=record)
            if episode.graph_name not in BUILTIN_GRAPHS:  # built-in graphs draw nothing
                record_draws()
            if answer is not NO_ANSWER:
                graph_run = await graph_run.answering(self.store, answer)
                record = self._reopen(record)
            begun = record or self.begin(episode)
            said = texts_of_task(episode.task, begun.prompts)
            prompts = PromptTexts(texts, said) if texts else None
            with memory.in_force(), using_prompts(prompts):
                over = await self._to_end(graph_run, begun, episode, lease, callbacks)
        if self.on_end is not None:
            self.on_end(over)
        return over

    async def _memory(self, graph: Graph, episode: Episode, *, new: bool) -> RunMemory:
        """Caches and LangGraph stores of an episode, with the recorded items of its thread."""
        alone = bool(episode.group_id) and not self.share_memory
        if alone and episode.run_id:
            refuse_shared_store(graph, episode.graph_name)
        memory = RunMemory(graph, self.store.checkpointer, alone=alone)
        if not new:
            kept = read_memory(self.store.checkpointer, episode.thread_id)
            await memory.restore(kept, (self.store.owner, episode.thread_id))
        return memory

    async def _to_end(
        self,
        graph_run: GraphRun,
        begun: Trajectory,
        episode: Episode,
        lease: Lease,
        callbacks: StreamCallbacks,
    ) -> Trajectory:
        """Run to the end, and record it. A step that raised may be repeated once."""
        inherited = set[str]()
        first = None
        if (record := graph_run.record) is not None:  # a fork shares calls with its origin
            inherited = {c.id for c in record.calls if c.identity.thread_id != record.thread_id}
        while True:
            active = self.record(self.store.journal, episode.seed, inherited)
            active.run_id = episode.run_id or episode.thread_id
            active.agent = agent_of(graph_run.graph)
            active.chance_anew = first is not None
            async with self._in_force(active, lease):
                ended, error = await self._attempt(graph_run, callbacks)
                # The graph may have caught the error of a write, but the record is incomplete.
                if active.broken is not None:
                    raise active.broken
                if (
                    error is not None
                    and (cause := self._cause(error, ended, first, episode)) is not None
                ):
                    ended = ended.model_copy(update={"stop_reason": cause})
                    error = None
                if error is None:
                    return self._end(begun, episode, ended)
            first = ended
            graph_run = replace(graph_run, record=begun, answers=False)

    def _cause(
        self, error: Exception, ended: TurnEnd, first: TurnEnd | None, episode: Episode
    ) -> StopReason | None:
        """Cause of an error (None if the step must be repeated to find out)."""
        refused = isinstance(error, TemplateRefusalError)
        if not may_follow_from_answers(error) or not self._has_answered(episode):
            if refused:  # the graph's own request was refused
                raise error
            return StopReason.ERROR
        if refused or (first is not None and is_repeated(first, ended)):
            return StopReason.UNUSABLE_ANSWER
        return None if self.repeats_errors and first is None else StopReason.ERROR

    async def _attempt(
        self, graph_run: GraphRun, callbacks: StreamCallbacks
    ) -> tuple[TurnEnd, Exception | None]:
        try:
            return await graph_run.run_to_end(self.store, callbacks), None
        except ContextLengthError as error:
            cut = run_failed(error).model_copy(
                update={"status": RunStatus.TRUNCATED, "stop_reason": StopReason.MAX_TOKENS}
            )
            return cut, None
        except GraphRecursionError:
            return TurnEnd(status=RunStatus.TRUNCATED, stop_reason=StopReason.RECURSION_LIMIT), None
        except Exception as error:
            if isinstance(error, HrmError) and not isinstance(
                error, (TemplateRefusalError, UnstorableError)
            ):
                raise
            return run_failed(error), error

    def _has_answered(self, episode: Episode) -> bool:
        """True if the policy has written something in this run."""
        record = self.store.journal.trajectory(episode.trajectory_id)
        return any(call.model == record.policy or not record.policy for call in record.own_calls)

    @asynccontextmanager
    async def _in_force(self, active: Recording, lease: Lease) -> AsyncGenerator[None]:
        """Apply recording, policy and sandbox to everything inside the block. The thread's sessions
        end with the block.

        If another process has taken over the thread, its sessions do not end, since that process
        uses their names.
        """
        record_external_models()
        record_external_tools()
        policy = using_policy(
            self.backend,
            self.sampling,
            self.constrain,
            own_sampling=self.own_sampling,
            by_role=self.by_role,
        )
        with ExitStack() as stack:
            stack.enter_context(recording(active))
            stack.enter_context(policy)
            stack.enter_context(using_environment(self.environment))
            if self.stand_in or self.by_role:
                stack.enter_context(standing_in(None if self.stand_in else self.by_role))
            try:
                yield
            finally:
                active.close()
                if not isinstance(lease.error, LeaseLostError):
                    await end_sessions(active, self.environment)
                await end_episodes(active)

    def _branched_off(self, episode: Episode, at: ForkRef) -> Trajectory:
        """Record an episode that begins with the lineage of another run."""
        origin = self.store.journal.find_trajectory(at.trajectory_id, requests=False)
        if origin is None:
            raise RunError(
                f"Thread {episode.thread_id!r} begins in trajectory {at.trajectory_id!r}, which is"
                f" not in {self.store.url}.",
                "Fork a run of the same store.",
            )
        # a process that was killed here may have copied the lineage already
        self.store.checkpointer.delete_thread(episode.thread_id)
        self.store.fork_thread(origin.thread_id, episode.thread_id, at.checkpoint_id)
        return self.begin(episode)

    def begin(self, episode: Episode) -> Trajectory:
        """Record an episode that has not run yet."""
        # While the policy is not loaded, it is not known whether the policy or another model will
        # answer.
        policy = "" if isinstance(self.backend, str) else self.policy
        begun = episode.begun(policy, getattr(self.backend, "policy_version", 0))
        self.store.journal.write_trajectory(begun)
        return begun

    def _reopen(self, record: Trajectory | None) -> Trajectory | None:
        """Mark a stopped run as running."""
        if record is None or record.status is RunStatus.RUNNING:
            return record
        self.store.journal.write_trajectory(again := reopened(record))
        return again

    async def _take_turn(self, graph_run: GraphRun, prompt: str) -> Trajectory:
        """Record a further turn, after closing open calls of the turn before."""
        record = graph_run.record
        if record is None:
            raise RunError("The thread has no turns.", "Start it with a task.")
        if record.stop_reason is StopReason.INTERRUPT:
            raise RunError(
                f"Thread {record.thread_id!r} is waiting for an answer to its question.",
                f"Answer it: `hrm-agent resume {record.thread_id} --answer VALUE`.",
            )
        if not takes_turns(graph_run.graph):
            raise ConfigError(
                f"Graph {record.graph!r} takes one task a thread: its input has no messages.",
                "Use one thread for each task.",
            )
        over = await graph_run.ended_before(self.store)
        close_tool_calls(self.store.journal, record)
        self.store.journal.write_trajectory(again := with_turn(record, prompt, over))
        return again

    def _end(self, begun: Trajectory, episode: Episode, ended: TurnEnd) -> Trajectory:
        rewards: dict[str, float] = {}
        # The verifier checks the answer to the task, and a later turn asks something else.
        if (episode.verify or episode.verify_run) and not begun.turns:
            try:
                rewards = _rewards_of(self._verified(begun, episode, ended))
            except Exception as error:
                ended = run_failed(error, StopReason.VERIFIER_ERROR, ended.answer)
                ended = ended.model_copy(update={"error": f"the verifier failed: {ended.error}"})
        changes: dict[str, Any] = {
            "rewards": rewards,
            "ended_at": max(time.time(), begun.started_at),
        }
        if isinstance(self.backend, str):
            calls = self.store.journal.trajectory(begun.id).own_calls
            changes["policy"] = model_that_answered(calls, self.policy)
        self.store.journal.write_trajectory(begun.model_copy(update=ended.model_dump() | changes))
        return self.store.journal.trajectory(begun.thread_id)

    def _verified(
        self, begun: Trajectory, episode: Episode, ended: TurnEnd
    ) -> float | Mapping[str, float] | None:
        # there is no answer to verify
        if ended.stop_reason is StopReason.UNUSABLE_ANSWER:
            return 0.0
        if episode.verify_run is not None:
            whole = self.store.journal.trajectory(begun.thread_id)
            return episode.verify_run(whole.model_copy(update=ended.model_dump()))
        assert episode.verify is not None
        return episode.verify(ended.answer or "")


def _rewards_of(verified: float | Mapping[str, float] | None) -> dict[str, float]:
    """Rewards to record, from the value of a verifier. Raises `ValueError` for an invalid value."""
    if verified is None:
        return {}
    given = verified if isinstance(verified, Mapping) else {"correct": verified}
    if "correct" not in given or "reward" in given:
        raise ValueError(f"a verifier gives `correct`, and nothing named `reward`: {sorted(given)}")
    reward = given["correct"]
    if not 0.0 <= reward <= 1.0:
        fault = RewardFault.OUT_OF_RANGE if isfinite(reward) else RewardFault.NOT_A_NUMBER
        raise ValueError(f"{fault} (a reward lies in [0, 1], not {reward})")
    for name, value in given.items():
        if not isfinite(value):
            raise ValueError(f"{RewardFault.NOT_A_NUMBER} ({name} is {value})")
    return {name: float(value) for name, value in given.items()}
