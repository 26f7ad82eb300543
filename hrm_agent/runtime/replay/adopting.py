"""Runs that take over recorded results of another run of their task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hrm_agent.langgraph_format import namespace_around
from hrm_agent.runtime.episode import CONFIGURABLE, EpisodeRunner
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.replay.lineage import lineage
from hrm_agent.runtime.replay.recorded_answers import (
    AdoptingRecording,
    RecordedAnswers,
    RecordedDraws,
    recorded_answers,
)
from hrm_agent.runtime.replay.task_path import TaskPathResolver
from hrm_agent.trajectory import AskedModel, Call, GraphIdentity, Journal, ToolCall, Trajectory

__all__ = ["Repeated", "repeating"]

Repeated = Callable[[Call, tuple[int, ...]], Call | None]
"""Lookup of a recorded call by a new call and all tokens from its root to its end. It returns the
recorded call with the same tokens (None without one).
"""


class _RepeatingRecording(AdoptingRecording):
    """Recording that also takes over the results of tool calls, each from the recorded answer that
    the calling answer repeats.

    An equal tool call of another answer runs, since a session's earlier calls may differ. So do all
    calls of a session after the first one that runs.
    """

    def __init__(
        self,
        journal: Journal,
        seed: int | None,
        inherited: Collection[str],
        *,
        origin: Trajectory,
        repeated: Repeated,
        answers: RecordedAnswers,
        draws: RecordedDraws,
        paths: TaskPathResolver,
    ) -> None:
        super().__init__(journal, seed, inherited, answers=answers, draws=draws, paths=paths)
        self._repeated = repeated
        self._results = {each.tool_call_id: each for each in origin.tool_calls}
        self._sources: dict[str, str] = {}
        """Id of a tool call in a message -> its id in the recorded message."""
        self._ran: set[str] = set()
        """Namespaces of agents that have run a tool."""
        self._guard = threading.Lock()

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
            self._note(claimed, claimed)
        return claimed

    def keep_open(self, call: Call, path: tuple[int, ...]) -> None:
        super().keep_open(call, path)
        recorded = self._repeated(call, path)
        if recorded is not None:
            self._note(call, recorded)

    def _note(self, call: Call, recorded: Call) -> None:
        pairs = zip(_tool_call_ids(call), _tool_call_ids(recorded), strict=True)
        with self._guard:
            self._sources.update(pairs)

    def claim_tool_call(self, started: ToolCall) -> ToolCall | None:
        own = super().claim_tool_call(started)
        if own is not None:
            return own
        agent = namespace_around(started.identity.checkpoint_ns)
        with self._guard:
            found = self._results.get(self._sources.get(started.tool_call_id, ""))
            if found is None or found.status is None or agent in self._ran:
                self._ran.add(agent)
                return None
        place = {
            "id": started.id,
            "identity": started.identity,
            "tool_call_id": started.tool_call_id,
        }
        adopted = found.model_copy(update=place)
        self.journal.write_tool_call(adopted)
        return adopted


def _tool_call_ids(call: Call) -> list[str]:
    return [each["id"] for each in call.response.get("tool_calls", ())]


def repeating(
    runner: EpisodeRunner,
    origin: Trajectory,
    thread_id: str,
    calls: Iterable[Call],
    repeated: Repeated,
) -> EpisodeRunner:
    """Runner of an episode that repeats a run in the same store, on a new thread, up to some answers
    of the policy.

    It takes over `calls` for equal requests, draws of tasks at the same places, and the results of
    tool calls whose calling answer is `repeated`. `origin`: the run, with its tool calls.
    """
    graph = load_graph(origin.graph, origin.task.metadata.get(CONFIGURABLE))
    saver = runner.store.checkpointer.allowing(graph)
    named = saver.task_paths(origin.thread_id)
    places = TaskPathResolver(
        saver, origin.thread_id, graph, lambda task_id: named.get(task_id, "")
    )
    steps = {found.checkpoint["id"] for found in lineage(saver, origin)}
    record = partial(
        _RepeatingRecording,
        origin=origin,
        repeated=repeated,
        answers=recorded_answers(calls, (), steps, places),
        draws=RecordedDraws(runner.store.journal.draws_of(origin), steps, places),
        paths=TaskPathResolver(saver, thread_id, graph),
    )
    return replace(runner, record=record)
