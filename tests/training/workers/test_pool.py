"""Graphs in worker processes: the same record as by one process, whatever is killed on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from langchain_core.language_models import FakeListChatModel
from safetensors.torch import load_file

from hrm_agent.errors import ConfigError, RunError
from hrm_agent.graphs.tool_loop import graph
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import open_store
from hrm_agent.store.database.leases import leased
from hrm_agent.testing import block_until
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.rollout.rollout import group_episodes, open_run, rollout
from hrm_agent.training.tasks import Task, load_tasks
from hrm_agent.training.workers.pool import opened_workers
from hrm_agent.training.workers.subprocess import SubprocessWorker
from hrm_agent.trajectory import RunStatus, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.processes import children_that_run
from tests.support.training.worker_runs import KINDS, OWN, by_graphs, facts, on_record, told

pytestmark = pytest.mark.whole

PROJECT = Path(__file__).parents[3]
CONFIG = CollectConfig(
    policy="builtin:cold-start",
    count=6,
    samples=2,
    seed=5,
    context={"max_turns": 4, "max_tokens": 96},
)
ROLLOUTS = 12
SEVERAL = CONFIG.model_copy(update={"processes": 2})


def worker_processes(of: psutil.Process | None = None) -> list[psutil.Process]:
    return children_that_run("hrm_agent.training.workers.process", of)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Facts recorded by a single process."""
    return facts(asyncio.run(collect(CONFIG, tmp_path_factory.mktemp("undisturbed") / "run")))


def test_two_processes_record_what_one_does_and_a_dead_worker_takes_nothing_with_it(
    undisturbed: list[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[Trajectory] = []

    def kill_one(trajectory: Trajectory) -> None:
        ended.append(trajectory)
        if len(ended) == 3:
            first, _ = worker_processes()
            first.kill()

    found = asyncio.run(collect(SEVERAL, tmp_path / "run", on_rollout=kill_one))
    assert "A rollout worker died by signal 9 (Killed)" in capfd.readouterr().err
    assert [t.thread_id for t in found] == [
        f"run/collect/{task}/{sample}" for task in range(6) for sample in range(2)
    ]
    assert facts(found) == facts(on_record(tmp_path / "run")) == undisturbed
    assert len(ended) == ROLLOUTS
    assert worker_processes() == []
    assert [finding for t in found for finding in lint(t)] == []
    assert all(t.trainable for t in found)
    # What is on record is read back, for which no worker is started.
    again = asyncio.run(
        collect(SEVERAL, tmp_path / "run", on_rollout=lambda _: _none(worker_processes()))
    )
    assert again == found


def _none(found: Sequence[object]) -> None:
    assert not found


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.training.workers.test_pool import SEVERAL, worker_processes
from hrm_agent.training.rollout.collect import collect

def run(name):
    left = 3
    def happened(_):
        nonlocal left
        left -= 1
        if left == 0:
            workers = worker_processes()
            Path(sys.argv[1], f"{name}.pids").write_text(" ".join(str(worker.pid) for worker in workers))
            for worker in workers if name == "all" else ():
                worker.kill()
            os.kill(os.getpid(), signal.SIGKILL)
    asyncio.run(collect(SEVERAL, Path(sys.argv[1], name, "run"), on_rollout=happened))

for name in ("parent", "all"):
    if (child := os.fork()) == 0:
        run(name)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, name
"""


@pytest.mark.slow
def test_workers_die_with_their_parent_and_the_run_is_resumed(
    undisturbed: list[Any], tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, cwd=PROJECT)
    for name in ("parent", "all"):
        pids = [int(pid) for pid in (tmp_path / f"{name}.pids").read_text().split()]
        assert len(pids) == 2
        block_until(lambda pids=pids: not any(map(_lives, pids)))
        before = on_record(tmp_path / name / "run")
        assert 3 <= sum(t.status is not RunStatus.RUNNING for t in before) < ROLLOUTS
        # by one process: it is the same run
        found = asyncio.run(collect(CONFIG, tmp_path / name / "run"))
        assert facts(found) == undisturbed


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (path := tmp_path / "own.py").write_text(OWN)
    return path


def test_graphs_of_ones_own_are_run_there_as_here(own: Path) -> None:
    one, two = (by_graphs(own, processes, KINDS) for processes in (1, 2))
    assert [told(each) for each in two] == [told(each) for each in one]
    assert [each.status for each in two].count(RunStatus.COMPLETED) == 4
    assert two[3].error == "LookupError: no such page"


@pytest.mark.slow
def test_a_graph_that_ends_its_process_each_time_ends_the_run(
    own: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        RunError, match="3 rollout workers died one after another, the last one by signal 9"
    ):
        by_graphs(own, 2, ["deadly"])
    assert capfd.readouterr().err.count("A rollout worker died") == 2
    assert worker_processes() == []


@pytest.mark.slow
def test_one_that_dies_while_it_loads_counts_as_a_death(
    own: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones were ready: what can be loaded can be loaded again."""
    opened, whole = count(1), SubprocessWorker.open

    async def killed(worker: Any, setup: Any) -> None:
        opening = asyncio.create_task(whole(worker, setup))
        if next(opened) == 3:
            worker._process.kill()
        await opening

    monkeypatch.setattr(SubprocessWorker, "open", killed)
    with pytest.raises(RunError, match="3 rollout workers died one after another") as raised:
        by_graphs(own, 2, ["deadly"])
    said = capfd.readouterr().err
    assert said.count("A rollout worker died") == 2
    # whichever of the three it was
    assert f"{said}{raised.value}".count("before it was ready") == 1


async def test_what_an_engine_still_answers_is_not_sent_to_a_worker_that_was_told_to_end() -> None:
    worker = SubprocessWorker({})
    await worker._process.connect()
    closing = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    worker.send([("stop", 1)])  # after the end of the connection it would raise
    await closing
    assert not psutil.pid_exists(worker.pid)


@pytest.mark.slow
def test_what_a_graph_has_started_holds_nothing_up(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of a worker that has ended stays open where a child of it lives on."""
    monkeypatch.chdir(own.parent)
    (found,) = by_graphs(own, 2, ["leaving"])
    assert found.status is RunStatus.COMPLETED and worker_processes() == []
    inside, outside = (int(Path(f"children-{session}").read_text()) for session in (False, True))
    block_until(lambda: not _lives(inside))  # it ends with its worker
    os.kill(outside, signal.SIGKILL)


@pytest.mark.slow
def test_a_run_that_is_cancelled_from_inside_is_told(own: Path) -> None:
    with pytest.raises(
        RunError, match="graph or the verifier of a rollout awaited something that was cancelled"
    ):
        by_graphs(own, 2, ["cancelled"])


@pytest.mark.slow
def test_an_interrupt_ends_all_and_gives_back_what_is_held(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own.parent
    (folder / "gated.jsonl").write_text('"forty-two"\n' * 4)
    os.mkfifo(folder / "waiting")
    words = [
        "collect",
        "--graph",
        "./own.py:gated",
        "--policy",
        "scripted:gated.jsonl",
        "--count",
        "4",
    ]
    command = [sys.executable, "-m", "hrm_agent"]
    options: Any = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(PROJECT)}, "text": True}
    process = subprocess.Popen(
        [*command, *words, "--processes", "2", "--out", "run"], stderr=subprocess.PIPE, **options
    )
    assert process.stderr is not None
    (folder / "waiting").read_bytes()  # once a node waits
    workers = worker_processes(psutil.Process(process.pid))
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(60) == 130, said
    assert "Resume it: `hrm-agent resume run`" in said
    assert len(workers) == 2 and not any(map(_lives, (worker.pid for worker in workers)))
    with open_store(folder / "run" / "store.db") as store, store.database.read() as cursor:
        assert leased(store.database, cursor) == set()
    (folder / "waiting").unlink()
    (folder / "waiting").touch()
    (folder / "go").touch()
    monkeypatch.chdir(folder)
    again = CollectConfig(graph="./own.py:gated", policy="scripted:gated.jsonl", count=4)
    assert [t.answer for t in asyncio.run(collect(again, folder / "run"))] == ["forty-two"] * 4


@pytest.mark.slow
def test_what_cannot_cross_is_told(tmp_path: Path) -> None:
    given = [Task(id="mine", family="mine", prompt="?", verify=lambda _: 1.0)]
    with ScriptedEngine([]) as engine:
        config = SEVERAL.model_copy(update={"policy": "scripted"})
        with pytest.raises(ConfigError, match="gets no task 'mine'"):
            asyncio.run(collect(config, tmp_path / "a", tasks=given, backend=engine))
        with pytest.raises(ConfigError, match="FakeListChatModel is an object of this process"):
            asyncio.run(collect(config, tmp_path / "b", backend=FakeListChatModel(responses=[])))
        with pytest.raises(ConfigError, match="worker would start another one"):
            asyncio.run(
                collect(
                    config.model_copy(update={"environment": "ray"}), tmp_path / "c", backend=engine
                )
            )
    assert not (tmp_path / "b").exists() and not (tmp_path / "c" / "store.db").exists()


def test_a_graph_that_is_an_object_is_told_before_a_worker_is_started(tmp_path: Path) -> None:
    draw = partial(load_tasks, "word_problems", split="eval", seed=0, count=1)
    (episode,) = group_episodes(draw(), 1, run_id="run", stage="step-0", seed=0, graph="")

    async def run(engine: ScriptedEngine) -> None:
        async with (
            open_run(tmp_path, "scripted", SEVERAL, backend=engine) as runner,
            opened_workers(2, runner, SEVERAL, draw=draw) as workers,
        ):
            await rollout(runner, [replace(episode, graph=graph)], workers=workers)

    with (
        ScriptedEngine([]) as engine,
        pytest.raises(
            ConfigError,
            match="an object of this process, but worker processes have to import the graph",
        ),
    ):
        asyncio.run(run(engine))


TRAIN = GrpoConfig.of(
    steps=2,
    prompts_per_step=2,
    group_size=2,
    seed=5,
    cooldown=0.0,
    context={"max_turns": 4, "max_tokens": 96},
)


@pytest.mark.slow
def test_training_by_two_processes_ends_in_the_same_weights(tmp_path: Path) -> None:
    one, two = tmp_path / "one" / "run", tmp_path / "two" / "run"
    asyncio.run(train(TRAIN, one))
    asyncio.run(train(TRAIN.but(processes=2), two))
    assert facts(on_record(two)) == facts(on_record(one))
    assert {t.policy_version for t in on_record(two)} == {0, 1}
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (two, one))
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], rtol=0, atol=1e-5)
