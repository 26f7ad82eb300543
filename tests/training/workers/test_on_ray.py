"""Rollout workers as actors of a real Ray cluster: the same record as by one process, whatever is
lost on the way.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from safetensors.torch import load_file

from hrm_agent.errors import ConfigError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import open_store
from hrm_agent.testing import wait_until
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.rollout.rollout import group_episodes, open_run, rollout
from hrm_agent.training.tasks import load_tasks
from hrm_agent.training.workers import ray_cluster as on_ray
from hrm_agent.training.workers.pool import RolloutWorkers, opened_workers
from hrm_agent.trajectory import RunStatus, Trajectory
from tests.support.ray_cluster import add_node, with_nodes
from tests.support.training.worker_runs import KINDS, OWN, by_graphs, facts, on_record, told

pytestmark = [pytest.mark.whole, pytest.mark.slow]

PROJECT = Path(__file__).parents[3]
CONFIG = CollectConfig(
    policy="builtin:cold-start",
    count=6,
    samples=2,
    seed=5,
    context={"max_turns": 4, "max_tokens": 96},
)
ASKS = """
from langgraph.graph import END, START, MessagesState, StateGraph
from hrm_agent.models import policy

async def ask(state):
    return {"messages": [await policy().ainvoke(state["messages"])]}

builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_edge(START, "ask")
builder.add_conditional_edges("ask", lambda state: END if len(state["messages"]) > 3 else "ask")
graph = builder.compile()
"""
CALLS = 3
"""Number of model calls of each run."""


@pytest.fixture
def address(ray_cluster: Any) -> str:
    """Address of a cluster of two nodes with one CPU each."""
    return with_nodes(ray_cluster, 2).address


def by_actors(config: CollectConfig, address: str, processes: int = 2) -> CollectConfig:
    return config.model_copy(update={"processes": processes, "ray": address})


def test_actors_record_what_one_process_does_and_a_dead_one_takes_nothing_with_it(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    undisturbed = facts(asyncio.run(collect(CONFIG, tmp_path / "one" / "run")))
    opened, ended = list[RolloutWorkers](), list[str]()

    def kill_one(trajectory: Trajectory) -> None:
        ended.append(trajectory.thread_id)
        if len(ended) == 3:
            os.kill(opened[0].pids[0], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RolloutWorkers, "__init__", _noting(opened))
        found = asyncio.run(
            collect(by_actors(CONFIG, address), tmp_path / "two" / "run", on_rollout=kill_one)
        )
    assert facts(found) == facts(on_record(tmp_path / "two" / "run")) == undisturbed
    assert len(ended) == 12
    said = capfd.readouterr().err
    assert (
        "A rollout worker died on the node" in said and "its open rollouts go on in another" in said
    )


def _noting(opened: list[RolloutWorkers]) -> Callable[..., None]:
    before = RolloutWorkers.__init__

    def noting(workers: RolloutWorkers, *given: Any, **more: Any) -> None:
        opened.append(workers)
        before(workers, *given, **more)

    return noting


def test_graphs_of_ones_own_are_run_there_as_here(address: str, tmp_path: Path) -> None:
    """Includes a graph that blocks its event loop while it waits for the engine."""
    (own := tmp_path / "own.py").write_text(OWN)
    here, there = by_graphs(own, 1, KINDS), by_graphs(own, 2, KINDS, address)
    assert [told(each) for each in there] == [told(each) for each in here]


class Held:
    """Script whose answers a test holds back."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()

    def __call__(self, messages: Any) -> str:
        assert self.go.wait(300)
        return f"answer {len(messages)}"


def test_a_node_is_lost_and_another_joins_and_nothing_is_lost_or_doubled(
    ray_cluster: Any, fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three nodes with a worker each; the store is PostgreSQL."""
    (tmp_path / "asks.py").write_text(ASKS)
    secret = {"PGPASSWORD": urlsplit(fresh_database).password or ""}
    monkeypatch.setenv("PGPASSWORD", secret["PGPASSWORD"])
    store = fresh_database.replace(f":{secret['PGPASSWORD']}@", "@")
    cluster = with_nodes(ray_cluster, 0)
    nodes = [add_node(cluster, env_vars=secret) for _ in range(3)]
    config = CollectConfig(
        policy="scripted", count=100, samples=2, concurrency=60, processes=3, ray=cluster.address
    )
    draw = partial(
        load_tasks, config.tasks, split=config.split, seed=config.seed, count=config.count
    )
    episodes = [
        replace(episode, graph=f"{tmp_path}/asks.py:graph")
        for episode in group_episodes(draw(), 2, run_id="run", stage="step-0", seed=0, graph="")
    ]
    answers, ended, used = Held(), Counter[str](), set[str]()

    async def run(engine: ScriptedEngine) -> list[Trajectory]:
        async with (
            open_run(tmp_path / "run", "scripted", config, store=store, backend=engine) as runner,
            opened_workers(config.processes, runner, config, draw=draw) as workers,
        ):
            assert workers is not None

            def happened(trajectory: Trajectory) -> None:
                ended[trajectory.thread_id] += 1
                used.update(worker.place for worker in workers._workers if worker.runs)
                if ended.total() == 60:
                    cluster.remove_node(nodes[0], allow_graceful=False)
                if ended.total() == 120:
                    answers.go.clear()  # until the node that joins has something to run
                    nodes.append(add_node(cluster, env_vars=secret))

            running = asyncio.create_task(
                rollout(runner, episodes, concurrency=60, on_done=happened, workers=workers)
            )
            try:
                await wait_until(lambda: running.done() or len(nodes) == 4)
                await wait_until(
                    lambda: (
                        running.done()
                        or any(w.place == nodes[3].node_id and w.runs for w in workers._workers)
                    )
                )
                answers.go.set()
                return await running
            finally:
                running.cancel()

    with ScriptedEngine(answers) as engine:
        found = asyncio.run(run(engine))
    assert used == {node.node_id for node in nodes}
    assert [each.thread_id for each in found] == [episode.thread_id for episode in episodes]
    assert set(ended.values()) == {1} and len(ended) == len(episodes) == 200
    assert {each.status for each in found} == {RunStatus.COMPLETED}
    with open_store(store) as opened:
        recorded = list(opened.journal.trajectories())
        with opened.database.read() as cursor:
            calls = cursor.execute(
                "SELECT thread_id, COUNT(*) FROM calls GROUP BY thread_id"
            ).fetchall()
            leases = cursor.execute("SELECT COUNT(*) FROM leases WHERE expires_at > 0").fetchone()
    assert Counter(each.thread_id for each in recorded) == ended
    assert {str(thread): int(number) for thread, number in calls} == dict.fromkeys(ended, CALLS)
    assert leases is not None and int(leases[0]) == 0
    assert engine.calls >= 200 * CALLS  # what was answered and not committed was asked again
    with_nodes(cluster, 0)


PROGRAM = """
import asyncio, psutil, sys
from pathlib import Path
from hrm_agent.errors import RunError
from hrm_agent.store import open_store
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.workers import ray_cluster as on_ray
from tests.support.ray_cluster import add_node, running_cluster
from tests.training.workers.test_on_ray import CONFIG, by_actors

on_ray.HEADLESS_SECONDS = on_ray.LOOK_SECONDS = 0.1
with running_cluster() as cluster:
    add_node(cluster, cpus=2)
    ended = []

    def kill_the_head(trajectory):
        ended.append(trajectory)
        if len(ended) == 3:
            cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    config = by_actors(CONFIG.model_copy(update={"count": 40}), cluster.address)
    try:
        asyncio.run(collect(config, Path(sys.argv[1]), on_rollout=kill_the_head))
    except RunError as error:
        print(error)
    with open_store(Path(sys.argv[1]) / "store.db") as store, store.database.read() as cursor:
        held = cursor.execute("SELECT COUNT(*) FROM leases WHERE expires_at > 0").fetchone()[0]
    print(f"{held} leases are held, by {len(psutil.Process().children(recursive=True))} processes that live")
"""


def test_a_head_that_dies_ends_the_run_which_goes_on_on_another_cluster(
    address: str, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"count": 40})
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run")]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=PROJECT, timeout=300, check=False
    )
    assert "is gone, and with it the cluster. What was recorded is kept." in done.stdout, (
        done.stderr
    )
    assert re.search("^0 leases are held, by [1-9]", done.stdout, re.MULTILINE), (
        "workers have given them back"
    )
    before = on_record(tmp_path / "run")
    kept = {each.thread_id: each for each in before if each.status is not RunStatus.RUNNING}
    assert 3 <= len(kept) < 80
    found = asyncio.run(collect(by_actors(config, address), tmp_path / "run"))
    assert facts(found) == facts(asyncio.run(collect(config, tmp_path / "one" / "run")))
    assert {each.thread_id: each for each in found if each.thread_id in kept} == kept


WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "hrm_agent":
            raise ModuleNotFoundError("No module named 'hrm_agent'", name=name)

sys.meta_path.insert(0, Without())
"""


def test_a_node_without_the_package_is_left_out_and_told(
    ray_cluster: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "site").mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT)
    cluster = with_nodes(ray_cluster, 0)
    bare = add_node(cluster, env_vars={"PYTHONPATH": str(folder)})
    config = by_actors(CONFIG.model_copy(update={"count": 2}), cluster.address, 1)
    with pytest.raises(
        ConfigError, match="It cannot import hrm_agent: ModuleNotFoundError"
    ) as raised:
        asyncio.run(collect(config, tmp_path / "run"))
    assert "on that node, with its extras ray and train." in raised.value.hint
    add_node(cluster)
    found = asyncio.run(collect(config.model_copy(update={"processes": 2}), tmp_path / "run"))
    assert len(found) == 4
    assert (
        f"({bare.node_id[:8]}) of the Ray cluster is left out. It cannot import"
        in capfd.readouterr().err
    )
    cluster.remove_node(bare)


def test_a_node_of_another_version_is_told(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrm_agent.training.workers.ray_worker.__version__", "99.0")
    with pytest.raises(ConfigError, match=r"It has hrm_agent \S+, but the trainer has 99.0."):
        asyncio.run(collect(by_actors(CONFIG, address), tmp_path / "run"))


def test_a_file_is_no_store_of_several_machines(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(on_ray.socket, "gethostname", lambda: "elsewhere")
        with pytest.raises(
            ConfigError, match="is a file of this machine, but the Ray cluster has others"
        ) as raised:
            asyncio.run(collect(by_actors(CONFIG, address), tmp_path / "run"))
        assert "--store postgresql://" in raised.value.hint
    # as where another joins under the same name
    monkeypatch.setattr(on_ray, "this_host", lambda: "elsewhere")
    with pytest.raises(ConfigError, match="The store is a file of another machine"):
        asyncio.run(collect(by_actors(CONFIG, address), tmp_path / "run"))


def test_what_does_not_go_together_is_told(tmp_path: Path) -> None:
    config = by_actors(CONFIG, "127.0.0.1:1").model_copy(update={"environment": "ray"})
    with pytest.raises(ConfigError, match="an actor on every node for each of the workers on Ray"):
        asyncio.run(collect(config, tmp_path / "a"))


def test_workers_without_a_place_are_told_of(
    ray_cluster: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two workers and one CPU: one waits, and the run continues."""
    monkeypatch.setattr(on_ray, "PLACE_SECONDS", 0.0)
    monkeypatch.setattr(on_ray, "LOOK_SECONDS", 0.05)
    cluster = with_nodes(ray_cluster, 1)
    found = asyncio.run(collect(by_actors(CONFIG, cluster.address), tmp_path / "run"))
    assert len(found) == 12
    assert "for a free CPU of the Ray cluster; others go on." in capfd.readouterr().err


def test_training_by_actors_ends_in_the_same_weights(address: str, tmp_path: Path) -> None:
    config = GrpoConfig.of(
        steps=2,
        prompts_per_step=2,
        group_size=2,
        seed=5,
        cooldown=0.0,
        context={"max_turns": 4, "max_tokens": 96},
    )
    one, two = tmp_path / "one" / "run", tmp_path / "two" / "run"
    asyncio.run(train(config, one))
    asyncio.run(train(config.but(processes=2, ray=address), two))
    assert facts(on_record(two)) == facts(on_record(one))
    assert {t.policy_version for t in on_record(two)} == {0, 1}
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (two, one))
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], rtol=0, atol=1e-5)
