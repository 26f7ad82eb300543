"""Runs that take over recorded results of another run of their task.

A tool call with the name and the arguments of a recorded one gets its result, and does not run. The
answers of models other than the policy are taken over in the same way, and so are the draws of
tasks. Requests are matched by `hrm_agent.runtime.replay.recorded_answers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from hrm_agent.runtime.episode import CONFIGURABLE, EpisodeRunner
from hrm_agent.runtime.execution.loading import Graph, load_graph
from hrm_agent.runtime.replay.lineage import lineage
from hrm_agent.runtime.replay.recorded_answers import (
    AdoptingRecording,
    RecordedAnswers,
    RecordedDraws,
    recorded_answers,
)
from hrm_agent.runtime.replay.task_path import TaskPathResolver
from hrm_agent.trajectory import Call, Trajectory

__all__ = ["adopting", "adopting_from"]


def adopting(
    runner: EpisodeRunner,
    graph: Graph,
    thread_id: str,
    *,
    answers: RecordedAnswers,
    draws: RecordedDraws,
) -> EpisodeRunner:
    """Runner that takes over results in a run of `graph` on a new thread."""
    saver = runner.store.checkpointer.allowing(graph)
    paths = TaskPathResolver(saver, thread_id, graph)
    record = partial(AdoptingRecording, answers=answers, draws=draws, paths=paths)
    return replace(runner, record=record)


def adopting_from(
    runner: EpisodeRunner, origin: Trajectory, thread_id: str, calls: Iterable[Call]
) -> EpisodeRunner:
    """Runner that takes over the results of a whole run in the same store, on a new thread.

    `origin`: run with its tool calls. `calls`: those of its model calls that are taken over.
    """
    graph = load_graph(origin.graph, origin.task.metadata.get(CONFIGURABLE))
    saver = runner.store.checkpointer.allowing(graph)
    named = saver.task_paths(origin.thread_id)
    places = TaskPathResolver(
        saver, origin.thread_id, graph, lambda task_id: named.get(task_id, "")
    )
    steps = {found.checkpoint["id"] for found in lineage(saver, origin)}
    return adopting(
        runner,
        graph,
        thread_id,
        answers=recorded_answers(calls, origin.tool_calls, steps, places),
        draws=RecordedDraws(runner.store.journal.draws_of(origin), steps, places),
    )
