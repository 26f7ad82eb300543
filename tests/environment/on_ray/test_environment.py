"""A real Ray cluster on this machine: a head that runs nothing, and nodes that come and go. Bound
to loopback.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from hrm_agent.environment.base import ExecutionResult, SessionState, Submission
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.on_ray import workers as nodes
from hrm_agent.environment.on_ray.environment import RayEnvironment
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.errors import HrmError, to_install
from hrm_agent.testing import block_until
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import LONG, SLOTS, EnvironmentContract, run_batch
from tests.support.environment.held import HOLD, let_go, until_held
from tests.support.environment.scheduler_workers import ThreadWorkers
from tests.support.ray_cluster import add_node, with_nodes

pytestmark = [pytest.mark.whole, pytest.mark.slow]

PROJECT = Path(__file__).parents[3]
NODES = 2


@pytest.fixture(scope="module")
def cluster(ray_cluster: Any) -> Any:
    return with_nodes(ray_cluster, NODES)


@pytest.fixture(scope="module")
def environment(cluster: Any) -> Iterator[RayEnvironment]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "LOOK_SECONDS", 0.25)
        environment = RayEnvironment(cluster.address, slots=2)
        yield environment
        environment.shutdown()


class TestContract(EnvironmentContract):
    """Over two nodes with a slot each."""

    @pytest.fixture(scope="class")
    @classmethod
    def environment(cls, cluster: Any) -> Iterator[RayEnvironment]:
        environment = opened(cluster)
        yield environment
        environment.shutdown()

    @pytest.fixture
    def closing(self, cluster: Any) -> Iterator[RayEnvironment]:
        environment = opened(cluster)
        yield environment
        environment.shutdown()


def opened(cluster: Any) -> RayEnvironment:
    environment = RayEnvironment(cluster.address, slots=SLOTS // NODES, overhang=1)
    assert len(by_node(environment, "slots")) == NODES
    return environment


def by_node(environment: RayEnvironment, name: str) -> dict[str, int]:
    """A metric of the nodes."""
    found = re.findall(
        rf'^hrm_environment_node_{name}{{node="(.*)"}} (\d+)$',
        environment._workers.metrics(),
        re.MULTILINE,
    )
    return {node: int(value) for node, value in found}


async def all_nodes_in_use(environment: RayEnvironment, nodes: int) -> None:
    await asyncio.to_thread(block_until, lambda: len(by_node(environment, "slots")) == nodes)


async def test_outcomes_are_right_and_the_nodes_share_the_calls(
    environment: RayEnvironment,
) -> None:
    before = by_node(environment, "works_total")
    results = await run_batch(
        environment, [Submission(f"print({i})\n{i} ** 2") for i in range(100)]
    )
    assert [(r.status, r.stdout, r.value) for r in results] == [
        ("ok", f"{i}\n", f"{i * i}") for i in range(100)
    ]
    assert {result.isolation for result in results} == {environment.isolation}
    shares = [count - before[node] for node, count in by_node(environment, "works_total").items()]
    assert len(shares) == NODES
    assert sum(shares) == 100
    assert min(shares) >= 4  # two slots with two calls each, before any has ended
    assert set(by_node(environment, "open").values()) == {0}
    text = await environment.metrics()
    assert 'hrm_environment_calls_total{status="ok"}' in text


async def test_what_a_snippet_does_wrong_is_typed(environment: RayEnvironment) -> None:
    codes = ["1 / 0", "import os\nos._exit(3)", "RESULT = {'a': [1]}"]
    results = await run_batch(environment, [Submission(code) for code in codes])
    assert [result.status for result in results] == ["error", "error", "ok"]
    assert results[2].value_json == '{"a": [1]}'


async def test_a_slow_call_delays_none_of_its_batch(environment: RayEnvironment) -> None:
    slow = asyncio.create_task(environment.execute(f"{HOLD}'slow'", limits=LONG))
    holds = await until_held()
    quick = await run_batch(environment, [Submission("1")] * 20)
    assert not slow.done()
    assert {result.value for result in quick} == {"1"}
    let_go(holds)
    assert (await slow).value == "'slow'"


async def test_a_session_stays_on_its_node_and_can_be_forked(environment: RayEnvironment) -> None:
    names = [f"stays {i}" for i in range(4)]
    for expected in ("1", "2", "3"):
        code = "n = globals().get('n', 0) + 1\nn"
        results = await run_batch(environment, [Submission(code, session=name) for name in names])
        assert [result.value for result in results] == [expected] * 4
    assert {result.session for result in results} == {SessionState.KEPT}
    assert sum(by_node(environment, "sessions").values()) == 4
    assert min(by_node(environment, "sessions").values()) >= 1
    await environment.fork_session(names[0], "fork")
    assert (await environment.execute("n += 10\nn", session="fork")).value == "13"
    assert (await environment.execute("n", session=names[0])).value == "3"
    for name in (*names, "fork"):
        await environment.end_session(name)
    assert (await environment.execute("n", session=names[0])).session is SessionState.NEW


async def test_a_cancelled_call_frees_its_slot(environment: RayEnvironment) -> None:
    forever = [asyncio.create_task(environment.execute(HOLD, limits=LONG)) for _ in range(20)]
    await until_held(4)
    for task in forever:
        task.cancel()
    assert (await environment.execute("1")).value == "1"
    await asyncio.to_thread(block_until, lambda: not any(by_node(environment, "open").values()))


def test_threads_with_loops_of_their_own(environment: RayEnvironment) -> None:
    found: dict[int, list[str | None]] = {}

    def ask(i: int) -> None:
        async def several() -> list[str | None]:
            return [
                result.value for result in await run_batch(environment, [Submission(f"{i}")] * 5)
            ]

        found[i] = asyncio.run(several())

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [str(i)] * 5 for i in range(4)}


async def test_a_dead_node_s_calls_are_run_elsewhere_and_a_new_node_is_used(
    cluster: Any, environment: RayEnvironment
) -> None:
    await all_nodes_in_use(environment, NODES)
    names = [f"moves {i}" for i in range(4)]
    await run_batch(environment, [Submission("x = 5", session=name) for name in names])
    busy = Submission(f"{HOLD}x += 1\nx", session=names[0], limits=LONG)
    of_session = asyncio.create_task(environment.run(busy))
    hit = await until_held()
    (dying,) = (node for node in environment._workers._nodes.values() if node.open)
    moved = len(dying.sessions)
    calls = asyncio.create_task(
        run_batch(environment, [Submission(f"print({i})") for i in range(100)])
    )
    (there,) = (node for node in cluster.worker_nodes if node.node_id == dying.id)
    await asyncio.to_thread(cluster.remove_node, there, allow_graceful=False)
    let_go(await until_held(known=hit))
    results, again = await calls, await of_session
    assert [(result.status, result.stdout) for result in results] == [
        ("ok", f"{i}\n") for i in range(100)
    ]
    assert {result.attempt for result in results} <= {1, 2}
    assert (again.value, again.attempt) == ("6", 2)
    after = await run_batch(environment, [Submission("x", session=name) for name in names])
    assert [result.value for result in after] == ["6", "5", "5", "5"]
    states = [again.session, *(result.session for result in after)]
    assert states.count(SessionState.REPLAYED) == moved
    assert set(states) == {SessionState.REPLAYED, SessionState.KEPT}
    add_node(cluster)
    await all_nodes_in_use(environment, NODES)
    await run_batch(environment, [Submission("1")] * 20)
    assert min(by_node(environment, "works_total").values()) > 0


async def test_a_node_whose_actor_died_gets_another(environment: RayEnvironment) -> None:
    await all_nodes_in_use(environment, NODES)
    import ray

    node = next(iter(environment._workers._nodes.values()))
    await run_batch(environment, [Submission("1")] * 4)
    await asyncio.to_thread(ray.kill, node.actor)
    results = await run_batch(environment, [Submission("2")] * 20)
    assert {result.value for result in results} == {"2"}
    await asyncio.to_thread(block_until, lambda: node not in environment._workers._nodes.values())
    await all_nodes_in_use(environment, NODES)


@pytest.mark.usefixtures("environment")
async def test_an_outcome_that_cannot_be_read_takes_no_other_call_with_it() -> None:
    def workers() -> ThreadWorkers:
        class Unreadable:
            def __reduce__(self) -> Any:
                return int, ("no number",)

        class Workers(ThreadWorkers):
            def start(self, work: Work) -> None:
                bad = {"unsent": threading.Lock, "unread": Unreadable}.get(work.code)
                if bad is None:
                    super().start(work)
                else:
                    work.done(ExecutionResult(ToolStatus.OK, value=cast(Any, bad())), False)

        return Workers()

    second = RayEnvironment(factory=workers, isolation=Isolation.L0)
    other = asyncio.create_task(second.execute("wait"))
    for code in ("unsent", "unread"):
        result = await second.execute(code)
        assert (result.status, result.attempt) == ("infrastructure", 2)
        assert "its outcome could not be read" in result.stderr
    assert not other.done()
    assert "hrm_environment_nodes_lost_total 0\n" in second._workers.metrics()
    await second.close()
    assert (await other).attempt == 1


async def test_a_call_that_cannot_be_placed_has_an_outcome(
    environment: RayEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes._Node, "load", property(lambda node: 1 / 0))
    result = await environment.execute("1")
    assert result.status == "infrastructure"
    assert "The call could not be placed: " in result.stderr


@pytest.mark.usefixtures("environment")
async def test_closing_leaves_ray_and_no_call_open() -> None:
    import ray

    second = RayEnvironment(factory=partial(ThreadWorkers, slots=64), isolation=Isolation.L0)
    slots = NODES * 64 * 2  # a node is given twice as many calls as it has
    # some run, some wait on their node, some here
    open_calls = [asyncio.create_task(second.execute("wait")) for _ in range(300)]
    await asyncio.to_thread(
        block_until, lambda: sum(by_node(second, "works_total").values()) == slots
    )
    assert "hrm_environment_waiting 44\n" in second._scheduler.metrics()
    await second.close()
    assert {result.status for result in await asyncio.gather(*open_calls)} == {
        ToolStatus.INFRASTRUCTURE
    }
    with pytest.raises(HrmError, match="closed"):
        await second.execute("value 1")
    await second.close()
    assert ray.is_initialized()


@pytest.mark.usefixtures("environment")
async def test_thousands_of_calls() -> None:
    second = RayEnvironment(factory=partial(ThreadWorkers, slots=64), isolation=Isolation.L0)
    results = await run_batch(second, [Submission(f"value {i}") for i in range(2000)])
    assert [result.value for result in results] == [str(i) for i in range(2000)]
    assert sum(by_node(second, "works_total").values()) == 2000
    await second.close()


@pytest.mark.usefixtures("environment")
async def test_the_level_is_the_weakest_node_s_and_one_below_the_least_is_left_out(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    weak = next(iter(cluster.worker_nodes)).node_id

    def workers() -> ThreadWorkers:
        import ray

        return ThreadWorkers(
            isolation="L1" if ray.get_runtime_context().get_node_id() == weak else "L3"
        )

    both = RayEnvironment(factory=workers, isolation=Isolation.L1)
    assert (both.isolation, len(by_node(both, "slots"))) == ("L1", 2)
    await both.close()
    with caplog.at_level(logging.WARNING):
        strong = RayEnvironment(factory=workers, isolation=Isolation.L2)
    assert (strong.isolation, len(by_node(strong, "slots"))) == ("L3", 1)
    assert "is left out: it isolates at level L1, less than the accepted minimum L2" in caplog.text
    await strong.close()

    def none() -> ThreadWorkers:
        raise HrmError("This machine cannot.", "Take another.")

    with pytest.raises(HrmError, match=r"can run calls: .*This machine cannot\. Take another"):
        RayEnvironment(factory=none)


def test_ray_that_is_missing_or_out_of_reach_is_said_in_a_sentence() -> None:
    program = """
import sys
from hrm_agent.environment.on_ray.environment import RayEnvironment
from hrm_agent.errors import HrmError
for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "somewhere"):
    try: RayEnvironment(address)
    except HrmError as error: print(error)
sys.modules["ray"] = None
try: RayEnvironment()
except HrmError as error: print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=PROJECT, timeout=100, check=True
    )
    unreachable, client, word, missing = done.stdout.splitlines()
    assert unreachable.startswith("No Ray cluster answers at 127.0.0.1:1: ")
    assert "'ray://127.0.0.1:1' is not the address of a Ray cluster." in client
    assert "'somewhere' is not the address" in word
    assert missing == f"Ray is not installed. Run `{to_install('ray')}`."


def test_ray_that_this_process_has_left_is_not_started_again() -> None:
    program = """
import asyncio, ray
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.on_ray import workers
from hrm_agent.environment.on_ray.environment import RayEnvironment
from hrm_agent.testing import block_until
from tests.support.environment.scheduler_workers import ThreadWorkers
workers.LOOK_SECONDS, workers.NOBODY_SECONDS = 30, 0.1
environment = RayEnvironment("local", factory=ThreadWorkers, isolation=Isolation.L0)
print(asyncio.run(environment.execute("value 1")).value)
ray.shutdown()  # the environment's next check is 30 seconds away, so it does not know of it
started = []
ray.init = lambda *_, **__: started.append("started")
print(asyncio.run(environment.execute("value 2")).stderr)
block_until(lambda: "nodes_lost_total 1" in environment._workers.metrics())
environment.shutdown()
print(f"{len(started)} clusters were started")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=PROJECT, timeout=100, check=False
    )
    value, *said, started = done.stdout.splitlines()
    assert value == "1", done.stderr
    assert "no node of the Ray cluster can be used" in " ".join(said), done.stderr
    assert started == "0 clusters were started"


async def test_nodes_die_at_random_during_thousands_of_calls(
    cluster: Any, environment: RayEnvironment
) -> None:
    draw, over = random.Random(0), asyncio.Event()

    async def episode(number: int) -> list[Any]:
        code = "import time\ntime.sleep(0.02)\nn = globals().get('n', 0) + 1\nn"
        return [await environment.execute(code, session=f"episode {number}") for _ in range(20)]

    async def kill() -> None:
        while not over.is_set():
            await asyncio.sleep(draw.uniform(2, 5))
            await all_nodes_in_use(environment, NODES)
            node = draw.choice(sorted(cluster.worker_nodes, key=lambda node: node.unique_id))
            await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
            add_node(cluster)  # Ray wants to be on the main thread for this

    killer = asyncio.create_task(kill())
    stateless = run_batch(
        environment, [Submission(f"print({i})", id=f"chaos {i}") for i in range(1500)]
    )
    results, *sessions = await asyncio.gather(stateless, *map(episode, range(10)))
    over.set()
    await killer
    wrong = [
        r
        for i, r in enumerate(results)
        if r.status != "infrastructure" and (r.status, r.stdout) != ("ok", f"{i}\n")
    ]
    assert wrong == []
    lost = [
        result
        for result in (*results, *(cell for cells in sessions for cell in cells))
        if result.status != "ok"
    ]
    assert len(lost) < 10, "two attempts, both on nodes that died: must be rare"
    for cells in sessions:
        values = [int(cell.value) for cell in cells if cell.status == "ok"]
        assert values == list(range(1, len(values) + 1))
