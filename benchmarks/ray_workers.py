"""Speed-up and cost of rollout workers on a Ray cluster, on local nodes of one CPU and one worker
each.

    python -m benchmarks.ray_workers [--nodes 1 2 3] [--rollouts 120] [--repeats 1] [--lose 2000] [--json FILE]

It measures three things, with an engine that answers at once:

* Rollouts a second by number of nodes, if a turn computes (`--burn` ms of a core) and if it waits
  (`--wait` ms). A rollout has three turns, and a worker has `--each` rollouts open at a time.
  Timing begins when all workers have run some rollouts. Turns that compute gain by another node
  only if the machine has a core for it.
* Calls of the engine: ms of a call that is made alone, and calls a second if 512 are made at once;
  over Ray, and over the socket of a worker process on this machine.
* `--lose N`: of N rollouts on three nodes. A node is lost when one third of the rollouts has ended,
  and another joins when two thirds have. Recorded rollouts and model calls that are surplus or
  missing are counted. 0 skips this.

The store is SQLite in a temporary folder. The machine that the nodes share needs half a GB of
memory for each node.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import EpisodeRunner
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.rollout import group_episodes, open_run, rollout
from hrm_agent.training.tasks import load_tasks
from hrm_agent.training.workers.pool import RolloutWorkers, opened_workers
from hrm_agent.trajectory import Trajectory

TURNS = 3
GRAPHS = """
import asyncio, json, time
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from hrm_agent.models import GenerationRequest, load_policy, policy
from hrm_agent.trajectory import Sampling

async def compute(state):
    over = time.thread_time() + {burn} / 1e3
    while time.thread_time() < over:
        pass
    return {{"messages": [await policy().ainvoke(state["messages"])]}}

async def wait(state):
    await asyncio.sleep({wait} / 1e3)
    return {{"messages": [await policy().ainvoke(state["messages"])]}}

def ask(state):
    engine, request = load_policy("scripted"), GenerationRequest(tuple(range(200)), Sampling(seed=0, max_tokens=16))
    engine.submit(request).result()
    began = time.perf_counter()
    for _ in range(200):
        engine.submit(request).result()
    alone = (time.perf_counter() - began) / 200 * 1e3
    began = time.perf_counter()
    for future in [engine.submit(request) for _ in range(512)]:
        future.result()
    found = {{"ms_alone": alone, "calls_per_s": 512 / (time.perf_counter() - began)}}
    return {{"messages": [AIMessage(json.dumps(found))]}}

def of(node, turns):
    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_conditional_edges("node", lambda state: END if len(state["messages"]) > turns else "node")
    return builder.compile()

computing, waiting, asking = of(compute, {turns}), of(wait, {turns}), of(ask, 1)
"""
Row = dict[str, Any]


def node_options(cpus: int = 1) -> dict[str, Any]:
    return {"num_cpus": cpus, "node_ip_address": "127.0.0.1", "include_log_monitor": False}


@asynccontextmanager
async def opened(
    folder: Path, workers: int, each: int, ray: str | None
) -> AsyncGenerator[tuple[EpisodeRunner, RolloutWorkers, CollectConfig]]:
    config = CollectConfig(
        policy="scripted", concurrency=workers * each, processes=workers, ray=ray
    )
    draw = partial(
        load_tasks, config.tasks, split=config.split, seed=config.seed, count=config.count
    )
    with ScriptedEngine(lambda messages: f"{len(messages)}") as engine:
        async with (
            open_run(folder, "scripted", config, backend=engine) as runner,
            opened_workers(workers, runner, config, draw=draw) as found,
        ):
            assert found is not None
            yield runner, found, config


async def ran(
    run: tuple[EpisodeRunner, RolloutWorkers, CollectConfig],
    graph: str,
    stage: str,
    count: int,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    runner, workers, config = run
    tasks = load_tasks(config.tasks, split=config.split, seed=config.seed, count=min(count, 256))
    samples = -(-count // len(tasks))
    episodes = group_episodes(tasks, samples, run_id="run", stage=stage, seed=0, graph="")[:count]
    episodes = [replace(episode, graph=graph) for episode in episodes]
    return await rollout(
        runner, episodes, concurrency=config.concurrency, on_done=on_done, workers=workers
    )


async def throughput(
    cluster: Any, folder: Path, graphs: str, nodes: int, options: argparse.Namespace
) -> Row:
    """Rollouts a second of turns that compute and of turns that wait, as medians over the
    repeats.
    """
    found: dict[str, list[float]] = {"computing": [], "waiting": []}
    async with opened(folder / str(nodes), nodes, options.each, cluster.address) as run:
        warm_up = 0
        while len(run[1].pids) < nodes or not warm_up:
            warm_up += 1
            await ran(run, f"{graphs}:waiting", f"warm-up-{warm_up}", nodes * options.each)
        for repeat in range(options.repeats):
            for kind, rates in found.items():
                began = time.perf_counter()
                await ran(run, f"{graphs}:{kind}", f"{kind}-{repeat}", options.rollouts)
                rates.append(options.rollouts / (time.perf_counter() - began))
    return {
        "nodes": nodes,
        **{f"{kind}_per_s": statistics.median(rates) for kind, rates in found.items()},
    }


async def way_to_the_engine(folder: Path, graphs: str, where: str, ray: str | None) -> Row:
    async with opened(folder / where, 2 if ray is None else 1, 1, ray) as run:
        (asked,) = await ran(run, f"{graphs}:asking", "asking", 1)
    assert asked.answer is not None, asked.error
    return {"over": where, **json.loads(asked.answer)}


async def lose_a_node(
    cluster: Any, folder: Path, graphs: str, count: int, options: argparse.Namespace
) -> Row:
    """Recorded rollouts and calls of a run that loses a node and gets another."""
    ended = Counter[str]()

    def happened(trajectory: Trajectory) -> None:
        ended[trajectory.thread_id] += 1
        if ended.total() == count // 3:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        if ended.total() == 2 * count // 3:
            cluster.add_node(**node_options())

    began = time.perf_counter()
    async with opened(folder / "lose", 3, options.each, cluster.address) as run:
        found = await ran(run, f"{graphs}:computing", "lose", count, happened)
    seconds = time.perf_counter() - began
    with open_store(folder / "lose" / "store.db") as store, store.database.read() as cursor:
        recorded = Counter(each.thread_id for each in store.journal.trajectories())
        calls = cursor.execute(
            "SELECT thread_id, COUNT(*) FROM calls GROUP BY thread_id"
        ).fetchall()
    numbers = [int(number) for _, number in calls]
    return {
        "rollouts": count,
        "seconds": seconds,
        "completed": sum(each.status.value == "completed" for each in found),
        "lost": count - len(recorded),
        "doubled": recorded.total() - len(recorded) + ended.total() - len(ended),
        "calls_lost": (
            sum(max(0, TURNS - number) for number in numbers) + TURNS * (count - len(numbers))
        ),
        "calls_doubled": sum(max(0, number - TURNS) for number in numbers),
    }


async def measured(cluster: Any, folder: Path, options: argparse.Namespace) -> dict[str, list[Row]]:
    (graphs := folder / "graphs.py").write_text(
        GRAPHS.format(burn=options.burn, wait=options.wait, turns=TURNS)
    )
    found: dict[str, list[Row]] = {"throughput": [], "engine": [], "lose": []}
    for nodes in sorted(options.nodes):
        while len(cluster.worker_nodes) < nodes:
            cluster.add_node(**node_options())
        found["throughput"].append(await throughput(cluster, folder, str(graphs), nodes, options))
    for where, ray in (("a socket", None), ("Ray", cluster.address)):
        found["engine"].append(await way_to_the_engine(folder, str(graphs), where, ray))
    if options.lose:
        while len(cluster.worker_nodes) < 3:
            cluster.add_node(**node_options())
        found["lose"].append(await lose_a_node(cluster, folder, str(graphs), options.lose, options))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Rollout workers on local Ray nodes")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rollouts", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--each", type=int, default=16, help="rollouts that a worker has open")
    parser.add_argument(
        "--burn", type=float, default=20.0, help="ms of one core that a turn computes"
    )
    parser.add_argument("--wait", type=float, default=500.0, help="ms that a turn waits")
    parser.add_argument("--lose", type=int, default=0, help="rollouts of a run that loses a node")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    # without this variable Ray binds to the machine's outer address
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    head = {"include_dashboard": False, "no_monitor": True, **node_options(cpus=0)}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(measured(cluster, Path(folder), options))
    finally:
        cluster.shutdown()
    for name, rows in found.items():
        if rows:
            table = Table(*rows[0], title=name)
            for row in rows:
                table.add_row(
                    *(
                        f"{value:,.2f}" if isinstance(value, float) else str(value)
                        for value in row.values()
                    )
                )
            Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
