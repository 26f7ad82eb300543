"""Tasks of a film, each with the seed of its model calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hrm_agent.errors import HrmError, RunError, nearest
from hrm_agent.runtime.episode import Episode
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.records.retrace import RecordedTraining
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT
from hrm_agent.training.rollout.rollout import group_episodes
from hrm_agent.training.rollout.source import held_out
from hrm_agent.training.tasks import Task
from hrm_agent.training.tasks.registry import run_verifier_of, verifier_of
from hrm_agent.trajectory import TaskRef, derive_seed

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

    `prompts`: tasks by their prompts. A task of the training's record and a held-out task have their
    verifiers, any other task has none. `threads`: rollouts of the training, with the seeds that they
    were sampled with. `held_out_tasks`: number of held-out tasks. `seed`: base of all seeds (None:
    the training's).

    Seeds of rollouts are the recorded ones. All other seeds depend on the prompt alone, so a film of
    one task shows the same runs as a film of many.

    Raises `RunError` for a thread that is missing or is no rollout of the training.
    """
    config = training.config_at(len(training.rows) - 1)
    base = config.seed if seed is None else seed
    headers = training.store.journal.headers("run_id = ?", (training.run_id,))
    by_prompt = {each.task.prompt: each.task for each in headers}
    by_thread = {each.thread_id: each.task for each in headers}
    wanted = list(prompts)
    known = all(each in by_prompt for each in wanted)
    others = _held_out(training, config, held_out_tasks, more=not known)
    found = {each.prompt: each for each in others}
    tasks = [
        _task(training, by_prompt[each])
        if each in by_prompt
        else found.get(each, Task(prompt=each))
        for each in wanted
    ]
    tasks += others[:held_out_tasks]
    episodes: list[Episode] = []
    for task in tasks:
        episode = _episode(config, task, training.run_id, _STAGE, 0, 0, base)
        episodes.append(replace(episode, seed=derive_seed(base, _STAGE, task.prompt)))
    for thread in threads:
        if thread not in by_thread:
            raise RunError(
                f"Thread {thread!r} is missing in {training.store.url}."
                f" {nearest(thread, by_thread)}".strip(),
                f"`hrm-agent history --store {training.folder}` lists them.",
            )
        name = thread.removesuffix(SECOND_ATTEMPT).removeprefix(f"{training.run_id}/")
        stage, place, sample = [*name.split("/"), "", ""][:3]
        if not (place.isdecimal() and sample.isdecimal()):
            raise RunError(
                f"The seed of thread {thread!r} is unknown, since it does not begin with a task.",
                "Name a rollout that is no fork.",
            )
        task = _task(training, by_thread[thread])
        episodes.append(
            _episode(config, task, training.run_id, stage, int(place), int(sample), base)
        )
    return [replace(each, thread_id=f"{_STAGE}/{n}") for n, each in enumerate(episodes)]


def _held_out(
    training: RecordedTraining, config: GrpoConfig, count: int, *, more: bool
) -> list[Task]:
    """Held-out tasks. `more`: also those of the training's evaluations, if there are any."""
    if more:
        try:
            most = max(count, config.evaluation.eval_problems)
            return held_out(config, training.folder, most)
        except HrmError:  # the family may have no held-out tasks
            pass
    return held_out(config, training.folder, count) if count else []


def _episode(
    config: GrpoConfig, task: Task, run_id: str, stage: str, place: int, sample: int, seed: int
) -> Episode:
    config = config.of_family(task.family)
    (*_, episode) = group_episodes(
        [task],
        sample + 1,
        run_id=run_id,
        stage=stage,
        seed=seed,
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
