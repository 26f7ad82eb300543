"""Films of trainings, against runs that were sampled in full."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import RunError
from hrm_agent.training.analysis import behaviours
from hrm_agent.training.analysis.behaviours import flip_of
from hrm_agent.training.analysis.films.drafts import answer_of, requests_of
from hrm_agent.training.analysis.films.film import Film, film
from hrm_agent.training.analysis.films.result import film_result
from hrm_agent.training.analysis.films.tasks import film_episodes
from hrm_agent.training.analysis.token_sample import token_texts
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.records.retrace import RecordedTraining, opened_training
from hrm_agent.trajectory import Trajectory

CONFIG = GrpoConfig.of(steps=2, prompts_per_step=3, group_size=4, keep_versions=1, seed=3)
TASKS = 12
THREAD = "run/step-1/0/1"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedTraining]:
    folder = tmp_path_factory.mktemp("film") / "run"
    asyncio.run(train(CONFIG, folder))
    with opened_training(folder, CONFIG) as training:
        yield training


@pytest.fixture(scope="module")
def made(training: RecordedTraining) -> Film:
    return asyncio.run(film(training, film_episodes(training, (), [THREAD], TASKS)))


def answers(run: Trajectory) -> list[tuple[str, tuple[int, ...]]]:
    """Answers by role, in any order, since parallel calls with equal requests may swap seeds."""
    return sorted((call.identity.role, call.token_ids) for call in run.calls)


def run_at(made: Film, reel: int, version: int) -> Trajectory:
    scenes = made.reels[reel].scenes
    return scenes[bisect_right([scene.version for scene in scenes], version) - 1].run


def assert_as_in_full(made: Film, whole: Film) -> None:
    for number in range(len(whole.reels)):
        for version in whole.versions:
            ours = run_at(made, number, version)
            theirs = run_at(whole, number, version)
            assert answers(ours) == answers(theirs), (number, version)
            assert (ours.answer, ours.rewards) == (theirs.answer, theirs.rewards)


def test_the_runs_are_those_that_are_sampled_in_full(
    training: RecordedTraining, made: Film
) -> None:
    episodes = [reel.episode for reel in made.reels]
    whole = asyncio.run(film(training, episodes, in_full=True))
    assert whole.versions == made.versions == [0, 1, 2]
    assert_as_in_full(made, whole)
    changes = [scene for reel in made.reels for scene in reel.scenes[1:]]
    assert changes and all(scene.flips for scene in changes)
    assert made.sampled_tokens < whole.sampled_tokens


def test_a_rollout_of_the_training_is_repeated_at_its_version(
    training: RecordedTraining, made: Film
) -> None:
    recorded = training.store.journal.trajectory(THREAD)
    again = run_at(made, TASKS, 1)
    assert answers(again) == answers(recorded) and again.rewards == recorded.rewards


def test_tool_results_before_a_flip_are_taken_over(made: Film) -> None:
    adopted = 0
    for reel in made.reels:
        for before, scene in zip(reel.scenes, reel.scenes[1:], strict=False):
            known = {tool.started_at for tool in before.run.tool_calls}
            first = min(flip.call for flip in scene.flips)
            for place, tool in enumerate(scene.run.tool_calls):
                # in this graph, the n-th call makes the n-th tool call
                assert (tool.started_at in known) == (place < first)
                adopted += place < first
    assert adopted


def test_a_flip_has_the_probabilities_of_its_tokens(made: Film) -> None:
    for reel in made.reels:
        for before, scene in zip(reel.scenes, reel.scenes[1:], strict=False):
            for flip in scene.flips:
                call = scene.run.calls[flip.call]
                place = scene.kept[flip.call]
                assert place is not None and call.policy_version == scene.version
                old = before.run.calls[place[0]]
                assert answer_of(old)[flip.token] == flip.old_id
                assert answer_of(call)[flip.token] == flip.new_id != flip.old_id
                sampled = len(call.token_ids) - call.sampled_tokens
                assert flip.new == call.logprobs[sampled + flip.token]
                if before.version == scene.version - 1:
                    at_sampling = old.logprobs[len(old.token_ids) - old.sampled_tokens + flip.token]
                    assert flip.before == at_sampling
                assert flip.old != flip.before


def test_a_film_of_one_task_shows_the_same_runs(training: RecordedTraining, made: Film) -> None:
    reel = next(each for each in made.reels[:TASKS] if len(each.scenes) > 1)
    (episode,) = film_episodes(training, [reel.episode.task.prompt])
    assert (episode.seed, episode.task) == (reel.episode.seed, reel.episode.task)
    scene = reel.scenes[1]
    flip = scene.flips[0]
    call = scene.run.calls[flip.call]
    behaviour = asyncio.run(flip_of(training, episode, scene.version))
    prompt = requests_of(scene.run)[call.id][0]
    assert behaviour.token_ids == (*prompt, *answer_of(call)[: flip.token + 1])
    assert behaviour.start == len(behaviour.token_ids) - 1


def test_a_flip_of_a_missing_version_is_refused_before_the_film(
    training: RecordedTraining, made: Film, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = made.reels[0].episode
    monkeypatch.setattr(behaviours, "film", None)
    with pytest.raises(RunError, match="has 2 steps, and no step 9"):
        asyncio.run(flip_of(training, episode, 9))
    monkeypatch.setattr(training, "kept", [0, 2])
    with pytest.raises(RunError, match=r"after step 1 is not kept\..*Kept are the versions 0, 2"):
        asyncio.run(flip_of(training, episode, 1))


def test_a_flip_over_missing_versions_has_a_range_of_steps(
    training: RecordedTraining, made: Film
) -> None:
    for task in film_result(training, made)["tasks"]:
        assert all(scene["first_step"] == scene["version"] for scene in task["scenes"][1:])
    episodes = [reel.episode for reel in made.reels if len(reel.scenes) > 1][:4]
    coarse = asyncio.run(film(training, episodes, versions=[0, 2]))
    tasks = film_result(training, coarse)["tasks"]
    steps = {(each["first_step"], each["version"]) for task in tasks for each in task["scenes"]}
    assert steps == {(None, 0), (1, 2)}


def test_a_truncated_run_is_named_and_judged_only_with_a_verifier(
    training: RecordedTraining,
) -> None:
    long = "word " * 3000
    (own,) = film_episodes(training, [long])
    (verified,) = film_episodes(training, held_out_tasks=1)
    task = verified.task.model_copy(update={"prompt": long})
    verified = replace(verified, task=task, thread_id="film/1")
    made = asyncio.run(film(training, [own, verified], versions=[0]))
    scenes = [task["scenes"][0] for task in film_result(training, made)["tasks"]]
    assert [scene["status"] for scene in scenes] == ["truncated"] * 2
    assert [scene["right"] for scene in scenes] == [None, False]
    assert all(scene["caption"][0] == "The run was truncated." for scene in scenes)


def test_the_result_holds_each_text_once(training: RecordedTraining, made: Film) -> None:
    codec: Any = training.learner.codec
    result = film_result(training, made)
    for reel, task in zip(made.reels, result["tasks"], strict=True):
        before: list[list[str]] = []
        for scene, shown in zip(reel.scenes, task["scenes"], strict=True):
            texts: list[list[str]] = []
            for call in shown["calls"]:
                if "same" in call:
                    texts.append(before[call["same"]])
                else:
                    kept = [] if call["like"] is None else before[call["like"]][: call["kept"]]
                    texts.append([*kept, *call["tokens"]])
            assert texts == [token_texts(codec, answer_of(call)) for call in scene.run.calls]
            before = texts
        changed = [call for scene in task["scenes"][1:] for call in scene["calls"]]
        assert all("same" in call or call["tokens"] for call in changed)
    unchanged = len(made.versions) * len(made.reels) - sum(len(r.scenes) for r in made.reels)
    assert unchanged > 0


def test_a_caption_names_what_changes(training: RecordedTraining, made: Film) -> None:
    result = film_result(training, made)
    for task in result["tasks"]:
        first, *others = task["scenes"]
        assert first["caption"][0].endswith(f"is {'right' if first['right'] else 'wrong'}.")
        for before, scene in zip(task["scenes"], others, strict=False):
            told = " ".join(scene["caption"])
            assert ("still right" in told) == bool(before["right"] and scene["right"])
            assert ("now right" in told) == bool(not before["right"] and scene["right"])
            assert ("before it was" in told) == (before["answer"] != scene["answer"])


def test_what_cannot_be_filmed_is_refused(training: RecordedTraining) -> None:
    with pytest.raises(RunError, match=r"'run/step-9/0/0' is missing"):
        film_episodes(training, (), ["run/step-9/0/0"])


@pytest.mark.slow
def test_roles_with_adapters_are_filmed(tmp_path: Path) -> None:
    config = GrpoConfig.of(
        graph="reasoning",
        policy="builtin:roles-cold-start",
        steps=2,
        prompts_per_step=1,
        group_size=4,
        keep_versions=1,
        learning_rate=5e-3,
        lora_rank=4,
        lora_roles=("plan", "solve"),
        seed=3,
    )
    asyncio.run(train(config, tmp_path / "run"))
    with opened_training(tmp_path / "run", config) as training:
        episodes = film_episodes(training, held_out_tasks=2)
        made = asyncio.run(film(training, episodes))
        assert_as_in_full(made, asyncio.run(film(training, episodes, in_full=True)))
        assert any(len(reel.scenes) > 1 for reel in made.reels)
