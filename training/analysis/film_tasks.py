"""Tasks of a film, each with the seed of its model calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hrm_agent.errors import RunError, nearest
from hrm_agent.runtime.episode import Episode
from hrm_agent.training.records.retrace import RecordedTraining
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT
from hrm_agent.training.rollout.rollout import group_episodes
from hrm_agent.training.rollout.source import held_out
from hrm_agent.training.tasks import Task
from hrm_agent.training.tasks.registry import run_verifier_of, verifier_of
from hrm_agent.trajectory import TaskRef

__all__ = ["film_episodes"]

_STAGE = "film"


def film_episodes(
    training: RecordedTraining,
    prompts: Iterable[str] = (),
    threads: Iterable[str] = (),
    held_out_tasks: int = 0,
    seed: int | None = None,
) -> list[Episode]:
    """Episodes of a film.

    `prompts`: tasks by their prompts. A task of the training's record has its verifier, any other
    has none. `threads`: rollouts of the training, each with the seed that it was sampled with.
    `held_out_tasks`: number of held-out tasks. `seed`: base of all seeds (None: the training's).

    Raises `RunError` for a thread that is missing or is no rollout of the training.
    """
    headers = training.store.journal.headers("run_id = ?", (training.run_id,))
    by_prompt = {each.task.prompt: each.task for each in headers}
    by_thread = {each.thread_id: each.task for each in headers}
    config = training.config_at(len(training.rows) - 1)
    tasks = [
        _task(training, by_prompt[each])
        if each in by_prompt
        else Task(prompt=each, id=each, family=_STAGE)
        for each in prompts
    ]
    if held_out_tasks:
        tasks += held_out(config, training.folder, held_out_tasks)
    episodes = [_episode(training, each, _STAGE, 0, 0, seed) for each in tasks]
    for thread in threads:
        if thread not in by_thread:
            raise RunError(
                f"Thread {thread!r} is missing in {training.store.url}."
                f" {nearest(thread, by_thread)}".strip(),
                f"`hrm-agent history --store {training.folder}` lists them.",
            )
        name = thread.removesuffix(SECOND_ATTEMPT).removeprefix(f"{training.run_id}/")
        stage, _, numbers = name.partition("/")
        place, _, sample = numbers.partition("/")
        if not (place.isdecimal() and sample.isdecimal()):
            raise RunError(
                f"Thread {thread!r} does not begin with its task, so its seed is unknown.",
                "Name a rollout that is no fork.",
            )
        task = _task(training, by_thread[thread])
        episodes.append(_episode(training, task, stage, int(place), int(sample), seed))
    return [replace(each, thread_id=f"film/{n}") for n, each in enumerate(episodes)]


def _episode(
    training: RecordedTraining, task: Task, stage: str, place: int, sample: int, seed: int | None
) -> Episode:
    config = training.config_at(len(training.rows) - 1).of_family(task.family)
    (*_, episode) = group_episodes(
        [task],
        sample + 1,
        run_id=training.run_id,
        stage=stage,
        seed=config.seed if seed is None else seed,
        graph=config.graph,
        context=config.context,
        verified=config.rewards is None,
        options=config.task_options(),
        first=place,
    )
    return episode


def _task(training: RecordedTraining, ref: TaskRef) -> Task:
    """Task of a record, with its verifier."""
    return Task(
        prompt=ref.prompt,
        id=ref.id,
        family=ref.family,
        answer=ref.answer,
        metadata=dict(ref.metadata),
        verify=verifier_of(ref, training.folder),
        verify_run=run_verifier_of(ref),
    )
