"""Groups that continue without a hanging rollout. It stays as it was, and a repeated step is the
same.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from hrm_agent.cli.main import main
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore, open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import RolloutPart
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.rollout.rollout import Attempts
from hrm_agent.training.rollout.stragglers import Stragglers, quorum_of
from hrm_agent.trajectory import DropReason, Overlay, RunStatus, TaskRef, Trajectory, Verdict
from tests.support.graphs.hanging_rollout import HANGS
from tests.support.training.builders import trajectory
from tests.support.training.killed_training import assert_same_weights, killed_runs

CONFIG = GrpoConfig.of(
    steps=2,
    prompts_per_step=2,
    group_size=2,
    seed=5,
    cooldown=0.0,
    max_tokens=48,
    graph="tests.support.graphs.hanging_rollout:graph",
    context={},
    group_quorum=0.75,
    group_deadline=0.0,
    checkpoints=9,
)
ENDED = 3 * 2
"""Number of rollouts of a step that end."""


def threads(folder: Path) -> dict[str, Trajectory]:
    with open_store(folder / "store.db") as store:
        return {each.thread_id: each for each in store.journal.trajectories()}


def verdicts(folder: Path) -> dict[str, Overlay]:
    with open_store(folder / "store.db") as store:
        return {each.trajectory_id: each for each in store.journal.overlays("run")}


def hanging(folder: Path) -> dict[str, Trajectory]:
    return {thread: each for thread, each in threads(folder).items() if thread.endswith("/1")}


async def resumed(cut: Trajectory, folder: Path) -> None:
    """Let a rollout end, as the trainer would."""
    names = ("task", "thread_id", "run_id", "group_id", "sample_index")
    episode = Episode(graph=CONFIG.graph, seed=0, **{name: getattr(cut, name) for name in names})
    with open_store(folder / "store.db") as store:
        async with EpisodeRunner.open(store, str(folder / "model"), CONFIG) as runner:
            await runner.run(episode)


@pytest.mark.whole
def test_a_group_goes_on_without_a_rollout_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HANGS, "1")
    folder = tmp_path / "run"
    asyncio.run(train(CONFIG, folder))
    rows, cut = read_metrics(folder / "metrics.jsonl"), hanging(folder)
    counts = [(row["rollout/count"], row["rollout/cut_off"], row["rollout/failed"]) for row in rows]
    assert counts == [(ENDED, 2, 0)] * 2
    assert len(cut) == 4 and {each.status for each in cut.values()} == {RunStatus.RUNNING}
    assert all(len(each.own_calls) == 1 for each in cut.values()), "what it had sampled is kept"
    said = verdicts(folder)
    assert {said[each.id].drop_reason for each in cut.values()} == {DropReason.CUT_OFF}
    assert {said[each.id].verdict for each in cut.values()} == {Verdict.DROPPED}
    assert "3 of 4 rollouts of its group had ended" in said[next(iter(cut.values())).id].reason

    monkeypatch.delenv(HANGS)
    flags = [
        "--store",
        str(folder),
        "--graph",
        CONFIG.graph,
        "--policy",
        str(folder / "model"),
        "--name",
        "forked",
    ]
    assert main(["fork", min(cut), "--run", *flags]) == 0
    capsys.readouterr()
    forked = next(each for thread, each in threads(folder).items() if "forked" in thread)
    assert forked.status is RunStatus.COMPLETED and forked.calls[0].id == cut[min(cut)].calls[0].id
    asyncio.run(resumed(cut[max(cut)], folder))
    assert threads(folder)[max(cut)].status is RunStatus.COMPLETED
    again = Path(shutil.copytree(folder, tmp_path / "again" / "run"))
    shutil.rmtree(again / "model")
    shutil.rmtree(again / "checkpoints")
    asyncio.run(train(CONFIG, again))
    assert verdicts(again) == said, "nothing hangs any more, and the step is as it was"
    assert_same_weights(again, folder, atol=0.0)


@pytest.mark.whole
def test_a_killed_run_comes_to_the_same_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANGS, "1")
    folder = killed_runs(CONFIG, tmp_path, {"killed": ("step", 1)}) / "killed" / "run"
    before = verdicts(folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # the step is taken again
    monkeypatch.delenv(HANGS)
    asyncio.run(train(CONFIG, folder))
    after = verdicts(folder)
    assert {id_: after[id_] for id_ in before} == before
    assert sum(each.drop_reason is DropReason.CUT_OFF for each in before.values()) == 2
    assert read_metrics(folder / "metrics.jsonl")[0]["rollout/cut_off"] == 2


def episodes(count: int) -> list[Episode]:
    task = TaskRef(id="1", family="f", prompt="p")
    return [
        Episode(task=task, thread_id=f"run/step-0/0/{index}", group_id="g")
        for index in range(count)
    ]


OPTIONS = RolloutPart(group_quorum=0.5, group_deadline=0.0)


def test_who_comes_in_time_is_not_cut_off_and_an_error_ends_the_rest(store: RunStore) -> None:
    cancelled: list[str] = []

    async def attempt(episode: Episode) -> Attempts:
        return (trajectory(thread_id=episode.thread_id),)

    async def fails(episode: Episode) -> Attempts:
        if episode.thread_id.endswith("/0"):
            raise OSError("the disk is full")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(episode.thread_id)
            raise
        raise AssertionError

    async def scene() -> None:
        stragglers = Stragglers(store, "run")
        found = await stragglers.run_group(
            episodes(4),
            attempt,
            step=0,
            options=OPTIONS.model_copy(update={"group_deadline": 600.0}),
        )
        assert [each[-1].thread_id for each in found] == [each.thread_id for each in episodes(4)]
        with pytest.raises(OSError, match="full"):
            await stragglers.run_group(episodes(3), fails, step=0, options=OPTIONS)

    asyncio.run(scene())
    assert len(cancelled) == 2 and store.journal.overlays("run") == []


def test_what_has_ended_on_record_is_never_cut_off(store: RunStore) -> None:
    """A repeated step reads back its rollouts one after the other."""
    one, two, ended, failed = episodes(4)
    for episode, status in ((ended, RunStatus.COMPLETED), (failed, RunStatus.FAILED)):
        store.journal.write_trajectory(
            episode.begun("m").model_copy(update={"status": status, "ended_at": 2e9})
        )

    async def attempt(episode: Episode) -> Attempts:
        if episode is failed:  # its second attempt hangs
            await asyncio.Event().wait()
        while episode is ended and not store.journal.overlays("run"):
            await asyncio.sleep(0)
        return (trajectory(thread_id=episode.thread_id),)

    async def scene() -> list[str]:
        found = await Stragglers(store, "run").run_group(
            [one, two, ended, failed], attempt, step=0, options=OPTIONS
        )
        return [each[-1].thread_id for each in found]

    assert asyncio.run(scene()) == [one.thread_id, two.thread_id, ended.thread_id]
    assert [each.trajectory_id for each in store.journal.overlays("run")] == [failed.trajectory_id]


def test_a_quorum_is_a_share_of_the_group() -> None:
    assert [
        quorum_of(count, share) for count, share in ((4, 0.75), (25, 0.28), (16, 0.5), (3, 0.5))
    ] == [3, 7, 8, 2]
