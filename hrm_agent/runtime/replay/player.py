"""True replay: a stored run is repeated from its recorded answers, with the graph's current code.

No model is called. Only tools whose output could not be stored are run, and these are listed. All
other calls are answered from the journal (`hrm_agent.runtime.replay.recorded_answers`), on a
checkpointer in memory. All states, tasks and writes are compared with the stored ones, byte for
byte (`hrm_agent.runtime.replay.comparison`). (LangGraph's own "replay" of a checkpoint runs the
models again.)

A thread is replayed along its lineage, from the first checkpoint to the newest, in segments. Each
segment begins at an input, an edit or a fork, which is copied from the store. An `interrupt()` is
resumed with the recorded value, found by its task path. Values that nodes took from the clock,
`uuid` and `random` are returned again (`hrm_agent.draws`). Calls that are not LangChain's are not
replayed. Ids that LangGraph draws at random are compared up to renaming.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.managed.base import is_managed_value
from langgraph.pregel import Pregel
from langgraph.types import Command

from hrm_agent.draws import record_draws
from hrm_agent.errors import GraphError, HrmError
from hrm_agent.langgraph_format import (
    ERROR,
    INTERRUPT,
    NULL_TASK,
    RESUME,
    agent_of,
    stopping_at,
    subgraphs_of,
)
from hrm_agent.models import using_policy
from hrm_agent.models.external.recorded import record_external_models
from hrm_agent.models.external.substitute import read_structured_output
from hrm_agent.models.recorded_values import is_on_record
from hrm_agent.prompts import PROMPTS, recorded_texts, texts_on_record, using_prompts
from hrm_agent.runtime.episode import CONFIGURABLE, Episode, EpisodeRunner
from hrm_agent.runtime.execution.conversation import texts_of_task
from hrm_agent.runtime.execution.loading import Graph, load_graph
from hrm_agent.runtime.execution.memories import RunMemory
from hrm_agent.runtime.execution.run_context import (
    CONFIGURED,
    CONTEXT,
    OptionsOnRecord,
    has_options,
    options_of,
    run_context,
)
from hrm_agent.runtime.replay.checkpoint_diff import same_next_tasks, state_changes
from hrm_agent.runtime.replay.comparison import SegmentComparison
from hrm_agent.runtime.replay.effects import EffectRefused, Effects, watching
from hrm_agent.runtime.replay.ignored_paths import Ignored, IgnoredPath
from hrm_agent.runtime.replay.learned_ids import RecordedStates, learner
from hrm_agent.runtime.replay.lineage import Segment, inherited_steps, lineage, step_of
from hrm_agent.runtime.replay.recorded_answers import (
    AdoptingRecording,
    NotRecorded,
    RecordedAnswers,
    RecordedDraws,
    ReplayRecording,
    UnrecordedRequest,
    recorded_answers,
)
from hrm_agent.runtime.replay.renaming import Renaming
from hrm_agent.runtime.replay.request_diff import template_texts
from hrm_agent.runtime.replay.request_match import RequestMatch
from hrm_agent.runtime.replay.result import Divergence, Replay, ReplayVerdict
from hrm_agent.runtime.replay.task_path import TaskPath, TaskPathResolver
from hrm_agent.runtime.state import StateReader
from hrm_agent.runtime.time_travel.fork import fork
from hrm_agent.runtime.time_travel.scratch_saver import ScratchSaver, StopStepReached
from hrm_agent.store import RunStore, StoreSaver
from hrm_agent.store.checkpoints.memory import read_memory
from hrm_agent.tools.external_tools import record_external_tools
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, Trajectory, recording

__all__ = ["Divergence", "Replay", "ReplayVerdict", "replay", "replay_async"]


def replay(
    store: RunStore,
    trajectory_id: str,
    *,
    graph: Graph | str | None = None,
    context: Mapping[str, Any] | None = None,
    configurable: Mapping[str, Any] | None = None,
    prompts: Mapping[str, str] | None = None,
    live_after: EpisodeRunner | None = None,
    thread: str | None = None,
    refuse_effects: bool = False,
    ignore: Sequence[IgnoredPath] = (),
) -> Replay:
    """Replay a stored run.

    `graph`: another graph, or its name (None: the recorded one, with its current code). `context`,
    `configurable`: options of the graph, over the recorded ones. `prompts`: texts of prompts, over the
    recorded ones. `live_after`: if the graph makes a
    request that is not recorded, continue from there with this runner on a new thread of this
    store, named `thread`. Without `live_after` nothing is written to the store. Effects of nodes
    outside of the record happen again, and are listed in `Replay.effects`. With `refuse_effects`
    the replay ends before such an effect (`hrm_agent.runtime.replay.effects` lists those that are
    detected). `ignore`: paths whose differences do not count
    (`hrm_agent.runtime.replay.ignored_paths`). Raises `RunError` for a thread without checkpoints.
    """
    options: dict[str, Any] = {"graph": graph, "live_after": live_after, "thread": thread}
    options |= {"context": context, "configurable": configurable, "prompts": prompts}
    return asyncio.run(
        replay_async(store, trajectory_id, **options, refuse_effects=refuse_effects, ignore=ignore)
    )


async def replay_async(
    store: RunStore,
    trajectory_id: str,
    *,
    graph: Graph | str | None = None,
    context: Mapping[str, Any] | None = None,
    configurable: Mapping[str, Any] | None = None,
    prompts: Mapping[str, str] | None = None,
    live_after: EpisodeRunner | None = None,
    thread: str | None = None,
    refuse_effects: bool = False,
    ignore: Sequence[IgnoredPath] = (),
) -> Replay:
    """Replay a stored run inside an event loop, with the parameters of `replay`."""
    trajectory = _given(store.journal.trajectory(trajectory_id), configurable or {}, prompts or {})
    name = graph if isinstance(graph, str) else trajectory.graph
    compiled = (
        graph
        if isinstance(graph, Pregel)
        else load_graph(name, trajectory.task.metadata.get(CONFIGURABLE))
    )
    effects = Effects(refuse_effects)
    player = ReplayRun(store, trajectory, compiled, context, configurable, effects, Ignored(ignore))
    found = replace(
        await player.play(), graph=name, effects=tuple(effects.found), drawn=player.drawn
    )
    if found.divergence is None or live_after is None:
        return found
    return replace(found, live=await player.continue_live(live_after, name, thread))


def _given(
    trajectory: Trajectory, configurable: Mapping[str, Any], prompts: Mapping[str, str]
) -> Trajectory:
    metadata = trajectory.task.metadata
    changed = dict[str, Any]()
    for name, given in ((CONFIGURABLE, configurable), (PROMPTS, prompts)):
        if given:
            changed[name] = {**metadata.get(name, {}), **given}
    if not changed:
        return trajectory
    task = trajectory.task.model_copy(update={"metadata": {**metadata, **changed}})
    return trajectory.model_copy(update={"task": task})


class _Silent(BaseChatModel):
    """Placeholder for the model behind `policy()`: its answers are all recorded."""

    @property
    def _llm_type(self) -> str:
        return "silent"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise GraphError("A replay asks no model.")


class ReplayRun:
    """Replay of one trajectory through the graph."""

    def __init__(
        self,
        store: RunStore,
        trajectory: Trajectory,
        graph: Graph,
        context: Mapping[str, Any] | None,
        configurable: Mapping[str, Any] | None,
        effects: Effects,
        ignored: Ignored,
    ) -> None:
        self._effects = effects
        self._ignored = ignored
        self._renaming = Renaming()
        self._store = store
        self._trajectory = trajectory
        self._graph = graph
        self._saver: StoreSaver = store.checkpointer.allowing(graph)
        self._memory = RunMemory(graph, None, alone=True)
        graphs = (graph, *(inner for _, inner in subgraphs_of(graph)))
        channels = (entry for each in graphs for entry in each.channels.items())
        self._managed = frozenset(name for name, channel in channels if is_managed_value(channel))
        self._task_paths = self._saver.task_paths(trajectory.thread_id)
        self._places = TaskPathResolver(self._saver, trajectory.thread_id, graph, self._task_path)
        self._line = lineage(self._saver, trajectory)
        self._states = RecordedStates(self._saver, self._line, self._places, graph)
        self._given_context = context or {}
        self._given_configurable = configurable or {}
        self._resumed = self._recorded_resumes()
        self._draws = store.journal.draws_of(trajectory)
        self._inherited_steps = inherited_steps(store, trajectory, self._line)
        self._not_compared = Counter[str]()
        self.drawn = False
        self._cut = False  # True if the record ends at a request without an answer
        self._last_matching = self._line[0]
        """Newest recorded checkpoint that the replay reached with an equal state."""

    async def play(self) -> Replay:
        """Replay all segments; return the result."""
        for begin in (
            record_external_models,
            record_external_tools,
            read_structured_output,
            record_draws,
        ):
            begin()
        texts = recorded_texts(self._trajectory.task.metadata)
        said = texts_of_task(self._trajectory.task, self._trajectory.prompts)
        prompts = texts_on_record(texts, said) if texts else None
        with using_policy(_Silent()), using_prompts(prompts):
            try:
                segments = await self._segments()
            except HrmError:
                raise
            except Exception as error:  # the graph now declares another state
                said = f"{type(error).__name__}: {error}"
                if said == self._trajectory.error:  # the recorded run ended so, too
                    return Replay(self._trajectory, "", ReplayVerdict.EQUAL)
                ended = f"it does not accept the recorded state: {said}"
                return Replay(self._trajectory, "", ReplayVerdict.DIFFERS, ended=ended)
            total = Replay(self._trajectory, "", ReplayVerdict.EQUAL)
            for segment in segments:
                self._renaming.restart()
                found = await self._play(segment)
                total = replace(
                    found,
                    checkpoints=total.checkpoints + found.checkpoints,
                    tasks=total.tasks + found.tasks,
                    writes=total.writes + found.writes,
                    unused=total.unused + found.unused,
                )
                if not total.equal:
                    break
            ignored = {"ignored": self._ignored.differences, "unmatched": self._ignored.unmatched}
            left = (f"{count} {what}" for what, count in self._not_compared.items() if count)
            not_compared = (*self._not_on_record(), *left)
            return replace(
                total, renamed_ids=self._renaming.count, not_compared=not_compared, **ignored
            )

    def _not_on_record(self) -> Iterator[str]:
        """Parts of the run that are not recorded, in words."""
        first = self._line[0]
        if first.parent_config is not None or first.metadata.get("source") == "loop":
            yield "what led to the oldest checkpoint, since no earlier one is on record"
        for name, inner in subgraphs_of(self._graph):
            if isinstance(inner.checkpointer, BaseCheckpointSaver):
                yield f"the steps of subgraph {name}, which has a checkpointer of its own"

    async def continue_live(
        self, runner: EpisodeRunner, graph: str, thread: str | None
    ) -> Trajectory:
        """Continue on a new thread from the last equal checkpoint. Later recorded answers that
        still fit are reused.
        """
        (episode,) = fork(
            self._store,
            self._trajectory.thread_id,
            self._last_matching.checkpoint["id"],
            name=thread,
            graph=graph,
            task=self._trajectory.task,
            context=self._context(self._last_matching) or {},
            policy=runner.policy,
        )
        steps = {found.checkpoint["id"] for found in self._line}
        since = steps - {
            found.checkpoint["id"] for found in self._line[: self._number(self._last_matching)]
        }
        answers = recorded_answers(
            self._trajectory.calls, self._trajectory.tool_calls, since, self._places
        )
        draws = RecordedDraws(self._draws, since, self._places)
        paths = TaskPathResolver(self._saver, episode.thread_id, self._graph)
        own = replace(
            runner, record=partial(AdoptingRecording, answers=answers, draws=draws, paths=paths)
        )
        return await own.run(episode)

    def _number(self, wanted: CheckpointTuple) -> int:
        return next(i for i, found in enumerate(self._line) if found is wanted)

    # the record

    async def _segments(self) -> list[Segment]:
        given = [
            i
            for i, found in enumerate(self._line)
            if i == 0 or found.metadata.get("source") != "loop"
        ]
        begins = sorted({*given, *self._with_other_options()})
        ends = [*(begin - (begin in given) for begin in begins[1:]), len(self._line) - 1]
        graph = self._graph.copy(update={"checkpointer": self._saver})
        found = list[Segment]()
        for begin, end in zip(begins, ends, strict=True):
            finished = not (await graph.aget_state(self._line[end].config)).tasks
            found.append(Segment(self._line[begin : end + 1], end == len(self._line) - 1, finished))
        return found

    def _with_other_options(self) -> Iterator[int]:
        """Indices of the checkpoints in the lineage from which a fork or a resumed run continued
        with other options.
        """
        for number, (one, then) in enumerate(pairwise(self._line)):
            both = (one.metadata, then.metadata)
            within = all(each.get("source") == "loop" for each in both)
            if within and any(
                both[0].get(key) != both[1].get(key) for key in (CONTEXT, CONFIGURED)
            ):
                yield number

    def _task_path(self, task_id: str) -> str:
        return self._task_paths.get(task_id, "")

    def _context(self, until: CheckpointTuple) -> Mapping[str, Any] | None:
        """Run context that a checkpoint was made with. Each turn of a conversation, and each fork,
        has its own.
        """
        said = self._options_at(until).context
        return (
            {**(said or {}), **self._given_context}
            if said is not None or self._given_context
            else None
        )

    def _task(self, until: CheckpointTuple) -> TaskRef:
        """Task, with the graph's `config["configurable"]` when a checkpoint was made."""
        task = self._trajectory.task
        kept = self._options_at(until).configurable
        given = {CONFIGURABLE: {**kept, **self._given_configurable}}
        return task.model_copy(update={"metadata": {**task.metadata, **given}})

    def _options_at(self, until: CheckpointTuple) -> OptionsOnRecord:
        before = reversed(self._line[: self._number(until) + 1])
        made = (found.metadata for found in before if has_options(found.metadata))
        return options_of(next(made, {}), self._trajectory.task)

    def _recorded_resumes(self) -> dict[TaskPath, list[Any]]:
        """Recorded answers to the questions of each task, in their order."""
        line = {found.checkpoint["id"] for found in self._line}
        answers = dict[TaskPath, list[Any]]()
        config: RunnableConfig = {"configurable": {"thread_id": self._trajectory.thread_id}}
        for found in self._saver.list(config):
            here: Any = found.config.get("configurable", {})
            root = found.metadata.get("parents", {}).get("", here["checkpoint_id"])
            for task_id, channel, value in found.pending_writes or () if root in line else ():
                if channel == RESUME and task_id != NULL_TASK:
                    place = self._places.of_write(
                        here["checkpoint_ns"], here["checkpoint_id"], task_id
                    )
                    answers[place] = (
                        cast("list[Any]", value) if isinstance(value, list) else [value]
                    )
        return answers

    # replaying

    async def _play(self, segment: Segment) -> Replay:
        stop_at = self._stop_at(segment)
        if stop_at == step_of(segment.start):
            return Replay(self._trajectory, "", ReplayVerdict.EQUAL, checkpoints=1)
        start = self._states.reader.alone(segment.start)
        scratch = ScratchSaver(self._saver, start, stop_at, self._states.memories(segment.start))
        played = segment.checkpoints if stop_at is None else segment.checkpoints[:-1]
        steps = {found.checkpoint["id"] for found in played}
        paths_now = scratch.task_path if self._task_paths else lambda _: ""
        paths = TaskPathResolver(scratch, self._trajectory.thread_id, self._graph, paths_now)
        learn = learner(
            self._states, scratch, StateReader(scratch, self._graph), paths, self._renaming
        )
        match = RequestMatch(self._renaming, self._ignored, template_texts(self._store), learn)
        calls = (*self._trajectory.calls, *self._trajectory.failed_calls)
        answers = recorded_answers(calls, self._trajectory.tool_calls, steps, self._places, match)
        draws = RecordedDraws(self._draws, steps, self._places)
        error, asked = await self._run(segment, scratch, answers, draws, paths)
        self.drawn |= draws.missed
        if asked is not None and self._record_ends_at(segment, scratch, asked, answers):
            asked = None
            error = None
            self._cut = True
        states = StateReader(
            scratch, self._graph, scratch.list({"configurable": {"thread_id": scratch.thread_id}})
        )
        seen = SegmentComparison(
            self._saver.serde,
            self._renaming,
            self._ignored,
            cached=self._graph.cache is not None,
            managed=self._managed,
            in_tools=partial(self._in_tools, answers, paths),
        )
        refused = self._effects.refuse and bool(self._effects.found)
        stopped = asked is not None or self._cut or refused
        reached = seen.compare(segment, self._states, self._places, states, paths, stopped=stopped)
        self._last_matching = reached or self._last_matching
        self._not_compared += seen.not_compared
        at_end = (
            scratch.head if segment.finished else scratch.at(step_of(segment.end)) or scratch.head
        )
        at_end = states.complete(at_end)
        found = state_changes(
            self._saver.serde,
            self._states.reader.complete(segment.end),
            at_end,
            self._renaming.equal,
            self._ignored,
        )
        ended = "" if asked is not None else self._ended_otherwise(segment, error) or seen.ended
        differs = bool(found or ended) or seen.step is not None
        verdict = ReplayVerdict.DIFFERS if differs else ReplayVerdict.EQUAL
        divergence = None
        if asked is not None:
            verdict = ReplayVerdict.ASKS
            divergence = Divergence(asked, answers.nearest(asked), asked.place[0].step)
        if refused:
            verdict = ReplayVerdict.REFUSED
            divergence = None
        differs = verdict is ReplayVerdict.DIFFERS
        return Replay(
            self._trajectory,
            "",
            verdict,
            checkpoints=seen.checkpoints,
            tasks=seen.tasks,
            writes=seen.writes,
            unused=len(answers.calls) + len(answers.tool_calls),
            divergence=divergence,
            step=seen.step if differs else None,
            changes=found or (seen.changes if differs else ()),
            on_the_way=differs and not found and bool(seen.changes),
            ended=ended,
        )

    def _stop_at(self, segment: Segment) -> int | None:
        """Step after which the recorded run stopped (None: the graph ends by itself).

        At the end of the record a step that failed, asked a person or was killed is tried once
        more.
        """
        if segment.finished:
            return None
        tried = {channel for _, channel, _ in segment.end.pending_writes or ()} & {INTERRUPT, ERROR}
        reason = self._trajectory.stop_reason
        cut = reason not in (StopReason.RECURSION_LIMIT, StopReason.INTERRUPT)
        return None if segment.last and (tried or cut) else step_of(segment.end)

    async def _run(
        self,
        segment: Segment,
        scratch: ScratchSaver,
        answers: RecordedAnswers,
        draws: RecordedDraws,
        paths: TaskPathResolver,
    ) -> tuple[Exception | None, UnrecordedRequest | None]:
        """Run the segment; return the graph's error, and the request that is not recorded."""
        graph = await self._bound(segment, scratch)
        given: Command[Any] | None = None
        until = scratch.stop_at
        while True:
            resumed = segment.resumed_after(step_of(scratch.head))
            scratch.stop_at = until if resumed is None else resumed
            replaying = ReplayRecording(
                answers, draws, paths, self._inherited_steps, self._saver.serializer
            )
            replaying.agent = agent_of(graph)
            error = await self._invoke(graph, given, segment, scratch, replaying)
            if isinstance(error, StopStepReached) and resumed is not None:
                given = None
                continue
            if isinstance(error, (StopStepReached, NotRecorded, EffectRefused)):
                return None, replaying.unanswered
            if error is not None or replaying.unanswered is not None:
                return error, replaying.unanswered
            resumes = self._resumes(scratch, paths)
            if not (resumes or self._write_commands(segment, scratch)):
                return None, None
            # the graph no longer takes these answers
            if given is not None and resumes == given.resume:
                return None, None
            given = Command(resume=resumes) if resumes else None

    async def _bound(self, segment: Segment, scratch: ScratchSaver) -> Graph:
        """Graph over `scratch`, with the LangGraph store as it was at the segment's start, and
        without breakpoints.
        """
        await self._memory.begin_with(
            read_memory(self._saver, self._trajectory.thread_id, segment.start.checkpoint["id"])
        )
        free = {"checkpointer": scratch, "store": self._memory.store}
        return self._graph.copy(
            update={**free, "interrupt_before_nodes": [], "interrupt_after_nodes": []}
        )

    async def _invoke(
        self,
        graph: Graph,
        given: Command[Any] | None,
        segment: Segment,
        scratch: ScratchSaver,
        replaying: ReplayRecording,
    ) -> Exception | None:
        """Invoke the graph with the recorded options of the next step; return its error (None if it
        raised none).
        """
        said = self._context(segment.end)
        context = None if said is None else run_context(self._graph, said, self._trajectory.graph)
        episode = Episode(self._task(segment.end), self._trajectory.thread_id, context=said or {})
        config: RunnableConfig = {"configurable": episode.configurable}
        limit, stop = segment.steps_after(step_of(scratch.head)) or (
            2 * len(segment.checkpoints) + 50,
            None,
        )
        if limit is not None:
            config["recursion_limit"] = limit
        try:
            with (
                recording(replaying),
                self._memory.in_force(),
                watching(self._effects),
                stopping_at(stop),
            ):
                async for _ in graph.astream(given, config, context=context, durability="sync"):
                    pass
        except Exception as error:
            return error
        return None

    def _resumes(self, scratch: ScratchSaver, paths: TaskPathResolver) -> dict[str, Any]:
        """Recorded answers to the waiting questions, by LangGraph's ids of the questions."""
        answers = dict[str, Any]()
        for namespace, checkpoint_id, task_id, asked, answered in scratch.questions():
            known = self._resumed.get(paths.of_write(namespace, checkpoint_id, task_id), [])
            if len(known) > answered:
                answers[asked.id] = known[answered]
        return answers

    def _write_commands(self, segment: Segment, scratch: ScratchSaver) -> bool:
        """Write the recorded writes of a `Command` at this checkpoint. True if there were any."""
        head = scratch.head
        there = next(
            (found for found in segment.checkpoints[:-1] if step_of(found) == step_of(head)), None
        )
        writes = (
            []
            if there is None
            else [(c, v) for task, c, v in there.pending_writes or () if task == NULL_TASK]
        )
        writes = [(channel, value) for channel, value in writes if channel != RESUME]
        known = [channel for task, channel, _ in head.pending_writes or () if task == NULL_TASK]
        if not writes or known:
            return False
        scratch.put_writes(head.config, writes, NULL_TASK)
        return True

    def _record_ends_at(
        self,
        segment: Segment,
        scratch: ScratchSaver,
        asked: UnrecordedRequest,
        answers: RecordedAnswers,
    ) -> bool:
        """True if the recorded run was killed before this request was answered, and all its answers
        are used.
        """
        step = step_of(segment.end)
        if segment.finished or not segment.last or asked.place[0].step != step + 1:
            return False
        now = scratch.at(step)
        alike = now is not None and same_next_tasks(
            self._saver.serde, segment.end, now, self._renaming.equal, managed=self._managed
        )
        return alike and not answers.left_at(asked.place)

    # judging

    def _in_tools(
        self,
        answers: RecordedAnswers,
        paths: TaskPathResolver,
        place: TaskPath,
        found: CheckpointTuple,
    ) -> bool:
        """True if a subgraph or a task of the functional API ran in a tool that was answered from
        the record.

        Records of earlier versions do not note that. For a subgraph of such a record, the time of
        the tool call decides.
        """
        if any(paths.is_within(place, *what) for what in answers.not_run):
            return True
        namespace = found.config.get("configurable", {})["checkpoint_ns"]
        made = datetime.fromisoformat(found.checkpoint["ts"])
        return not place[-1].node and any(
            f"{namespace}|".startswith(f"{call.identity.checkpoint_ns}|")
            and call.started_at <= made.timestamp() <= (call.ended_at or 0.0)
            for call in self._trajectory.tool_calls
            if call.identity.checkpoint_ns and not call.graph_effects
        )

    def _ended_otherwise(self, segment: Segment, error: Exception | None) -> str:
        """Difference between the graph's end and the recorded one; empty if there is none."""
        if isinstance(error, HrmError) and not is_on_record(error):
            raise error
        raised = f"{type(error).__name__}: {error}" if error is not None else ""
        failed = (
            segment.last
            and self._trajectory.status is RunStatus.FAILED
            and not (segment.finished or self._cut)
        )
        expected = (self._trajectory.error or "") if failed else ""
        # our own errors are recorded without their class
        alike = expected in (raised, str(error or ""))
        if alike or (segment.last and error is not None and not segment.finished and not failed):
            return ""
        return f"it raised {raised}" if raised else f"it did not raise {expected}"
