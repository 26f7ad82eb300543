"""Film of a training: the same tasks with the same noise, under each kept version of the weights.

The engine draws each token with a number that depends on the request's seed and the token's index
alone (`hrm_agent.models.local.sampling`). A seed depends on the place of a call in its graph and on
its request, not on the weights. So two versions of the weights give the same run up to the first
token at which the drawn number falls on another token: the *flip*.

The run of the previous version is a draft (`hrm_agent.training.analysis.films.drafts`). If no token
differs, the run is unchanged, and the graph does not run. Otherwise the graph runs once more.
Answers without a flip are taken over whole, with the results of their tool calls, and an answer with
a flip is continued from it. Only the rest is sampled.

A forward pass over a whole answer rounds differently from sampling token by token. If a drawn number
lies on the border of two tokens to the last bits, a version may count as unchanged although it would
have sampled the other token.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.runtime.replay.adopting import repeating
from hrm_agent.training.analysis.films.drafts import (
    Draft,
    DraftedEngine,
    RequestKey,
    answer_of,
    checked,
    requests_of,
)
from hrm_agent.training.records.retrace import RecordedTraining
from hrm_agent.training.rollout.rollout import attempts_of, open_run
from hrm_agent.training.rollout.scoring import Score, scoring_by_family
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.trajectory import Call, RunStatus, Trajectory

__all__ = ["Film", "Flip", "Reel", "Scene", "film"]


@dataclass(frozen=True, slots=True)
class Flip:
    """Token of an answer that differs from the one that the previous version sampled."""

    call: int
    """Index of the call in the scene's run."""
    token: int
    """Index of the token in the answer."""
    old_id: int
    """Token that the previous version sampled."""
    new_id: int
    """Token that this version samples."""
    before: float
    """Log-prob of the old token under the previous version."""
    old: float
    """Log-prob of the old token under this version."""
    new: float
    """Log-prob of the new token under this version."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Run of a task under one version of the weights, unchanged until the next scene."""

    version: int
    """Number of steps behind the weights."""
    run: Trajectory
    """Run with its calls."""
    right: bool | None
    """True if the answer is right (None if nothing verifies it)."""
    flips: tuple[Flip, ...] = ()
    """First changed token of each answer to an unchanged prompt (empty in the first scene)."""
    kept: tuple[tuple[int, int] | None, ...] = ()
    """Entry of each call: index of the call with the same prompt in the previous scene, and number
    of tokens taken over from its answer (None for a new prompt).
    """


@dataclass(slots=True)
class Reel:
    """Scenes of one task."""

    episode: Episode
    """Task, seed and graph."""
    scenes: list[Scene] = field(default_factory=list[Scene])
    """Scenes in the order of their versions."""
    logprobs: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """Log-probs of the last scene's answers under the newest version, by id of the call."""

    @property
    def run(self) -> Trajectory:
        """Run under the newest version."""
        return self.scenes[-1].run

    def add(self, scene: Scene) -> None:
        """Add the scene of the newest version."""
        self.scenes.append(scene)
        self.logprobs = {call.id: _logprobs(call) for call in scene.run.calls}


@dataclass(slots=True)
class Film:
    """Scenes of some tasks over a training."""

    reels: list[Reel]
    """Reels, one for each task."""
    versions: list[int] = field(default_factory=list[int])
    """Versions of the weights, ascending."""
    sampled_tokens: int = 0
    """Number of tokens that were sampled."""
    checked_tokens: int = 0
    """Number of tokens that were drawn again from forward passes over drafts."""


async def film(
    training: RecordedTraining,
    episodes: Sequence[Episode],
    *,
    versions: Sequence[int] | None = None,
    on_version: Callable[[int], object] = lambda _: None,
    in_full: bool = False,
) -> Film:
    """Run each episode under each version of the weights.

    `versions`: kept versions to use (None: all). `on_version`: called after each version.
    `in_full`: sample each run in full, without drafts, for comparison. Each version then has a
    scene.
    """
    made = Film([Reel(each) for each in episodes])
    loaded = training.versions(training.kept if versions is None else versions)
    version = next(loaded)
    async with _opened(training) as studio:
        await studio.begin(made, version)
        on_version(version)
        for version in loaded:
            studio.engine.publish(version)
            await (studio.begin if in_full else studio.go_on)(made, version)
            on_version(version)
        made.sampled_tokens = studio.engine.sampled_tokens
    return made


@asynccontextmanager
async def _opened(training: RecordedTraining) -> AsyncGenerator[_Studio]:
    config = training.config_at(len(training.rows) - 1)
    learner = training.learner
    model: Any = learner.accelerator.unwrap_model(learner.model)
    engine = DraftedEngine(TransformersEngine(model, learner.codec, name=learner.name))
    try:
        with tempfile.TemporaryDirectory() as folder:
            allow = config.allowed_types
            opened = open_run(Path(folder), learner.name, config, backend=engine, allow=allow)
            async with (
                opened as runner,
                scoring_by_family(
                    config,
                    runner.store,
                    carry_over=False,
                    forks=False,
                    keeps_truncated=config.select.truncated == "keep_reward",
                ) as score,
            ):
                yield _Studio(training, engine, runner, score)
    finally:
        engine.close()


@dataclass(frozen=True, slots=True)
class _Studio:
    """Engine on the loaded weights, a runner with a temporary store, and the run's rubric."""

    training: RecordedTraining
    engine: DraftedEngine
    runner: EpisodeRunner
    score: Score

    async def begin(self, made: Film, version: int) -> None:
        """Run all tasks in full."""
        made.versions.append(version)

        async def run(reel: Reel) -> None:
            episode = _at(reel.episode, version)
            reel.add(await self._run(self.runner, episode, version))

        await run_group(made.reels, run)

    async def go_on(self, made: Film, version: int) -> None:
        """Check all runs with the next version, and run those again that change."""
        made.versions.append(version)
        drafts = checked(self.training, [reel.run for reel in made.reels])
        made.checked_tokens += sum(len(each.logprobs) for each in drafts.values())
        self.engine.drafts = drafts

        async def run(reel: Reel) -> None:
            requests = requests_of(reel.run)
            own = {key: drafts[key] for key in requests.values() if key in drafts}
            name = self.training.learner.name
            # an answer under a schema has no draft, so its run is repeated
            known = all(requests[call.id] in own for call in reel.run.calls if call.model == name)
            if not (known and all(each.whole for each in own.values())):
                await self._run_again(reel, version, own)
            for each in own.values():
                if each.call.id in reel.logprobs:
                    reel.logprobs[each.call.id] = each.logprobs

        await run_group(made.reels, run)

    async def _run_again(self, reel: Reel, version: int, drafts: dict[RequestKey, Draft]) -> None:
        before = reel.run
        episode = _at(reel.episode, version)
        others = [call for call in before.calls if call.model != self.training.learner.name]

        def repeated(call: Call, path: tuple[int, ...]) -> Call | None:
            answer = answer_of(call)
            prompt = path[: len(path) - len(answer)]
            draft = drafts.get((prompt, call.seed, call.identity.role))
            return draft.call if draft is not None and draft.answer == answer else None

        runner = repeating(self.runner, before, episode.thread_id, others, repeated)
        scene = await self._run(runner, episode, version)
        scene = _compared(scene, reel, drafts)
        # a difference within rounding errors leaves the run unchanged
        if scene.flips or len(scene.run.calls) != len(before.calls):
            reel.add(scene)

    async def _run(self, runner: EpisodeRunner, episode: Episode, version: int) -> Scene:
        attempts = await attempts_of(runner)(episode)
        ((*_, run),) = await self.score([attempts])
        verified = episode.verify is not None or episode.verify_run is not None
        judged = bool(run.rewards) or (verified and run.status is not RunStatus.COMPLETED)
        return Scene(version, run, is_positive(outcome_of(run)) if judged else None)


def _at(episode: Episode, version: int) -> Episode:
    """Episode on the thread of a version."""
    return replace(episode, thread_id=f"{episode.thread_id}/{version}")


def _compared(scene: Scene, reel: Reel, drafts: dict[RequestKey, Draft]) -> Scene:
    """Scene with its differences to the last scene of a reel."""
    places = {call.id: place for place, call in enumerate(reel.run.calls)}
    requests = requests_of(scene.run)
    flips: list[Flip] = []
    kept: list[tuple[int, int] | None] = []
    for number, call in enumerate(scene.run.calls):
        draft = drafts.get(requests[call.id])
        if draft is None:
            kept.append(None)
            continue
        old = draft.answer
        new = answer_of(call)
        pairs = zip(old, new, strict=False)
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), len(old))
        kept.append((places[draft.call.id], same))
        if same < len(old):
            flips.append(
                Flip(
                    number,
                    same,
                    old[same],
                    new[same],
                    before=reel.logprobs[draft.call.id][same],
                    old=draft.logprobs[same],
                    new=_logprobs(call)[same],
                )
            )
    return replace(scene, flips=tuple(flips), kept=tuple(kept))


def _logprobs(call: Call) -> tuple[float, ...]:
    """Log-probs of the sampled tokens of a call."""
    return call.logprobs[len(call.logprobs) - call.sampled_tokens :]
