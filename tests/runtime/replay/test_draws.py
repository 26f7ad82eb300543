"""Draws of nodes from clock, uuid and random: recorded, and returned on replay and on resume."""

from __future__ import annotations

import os
import random
import secrets
import time
import uuid
from datetime import datetime
from typing import Any

import pytest

from hrm_agent.draws import drawn, record_draws
from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import NO_ANSWER, Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.runtime.time_travel.fork import fork, history
from hrm_agent.store import RunStore
from hrm_agent.trajectory import GraphIdentity, OpenDraws, RunStatus, TaskDraws, TaskRef, Trajectory
from hrm_agent.trajectory.draws import MOST_RECORDED
from tests.support.graphs.drawing_agents import asked

TASK = TaskRef(id="1", family="test", prompt="Go.")


async def run(
    store: RunStore,
    environment: LocalEnvironment,
    name: str,
    thread: str = "thread",
    answer: Any = NO_ANSWER,
) -> Trajectory:
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        graph = f"tests.support.graphs.drawing_agents:{name}"
        return await runner.run(Episode(TASK, thread, seed=1, graph=graph), answer=answer)


def notes(store: RunStore, thread: str = "thread") -> list[Any]:
    found = next(
        store.checkpointer.list({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    )
    return found.checkpoint["channel_values"]["notes"]


@pytest.mark.parametrize("name", ["graph", "wraps", "retries", "seeds", "waits", "react_agent"])
async def test_a_replay_draws_what_the_run_drew(
    name: str, store: RunStore, environment: LocalEnvironment
) -> None:
    done = await run(store, environment, name)
    assert done.status is RunStatus.COMPLETED, done.error
    asked.clear()
    found = await replay_async(store, "thread")
    assert found.equal and found.unused == 0, found
    assert not [line for line in asked if line.startswith("model")]


async def test_each_task_has_its_own_and_a_model_has_none(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "graph")
    draws = {one.identity.path: one for one in store.journal.draws_of_thread("thread")}
    nodes = [one.identity.node for one in draws.values()]
    assert nodes.count("work") >= 4 and {"plan", "inner", "beside", "tool"} <= set(nodes)
    plan = next(one for one in draws.values() if one.identity.node == "plan")
    assert (len(plan.times), len(plan.uuids), len(plan.seeds)) == (3, 2, 2)
    tool = next(one for one in draws.values() if one.identity.node == "tool")
    assert (len(tool.times), len(tool.uuids), len(tool.seeds)) == (0, 1, 1)
    assert len({one.seeds for one in draws.values()}) == len(draws)


async def test_a_run_sees_the_real_clock(store: RunStore, environment: LocalEnvironment) -> None:
    before = time.time()
    await run(store, environment, "graph")
    plan = next(
        one for one in store.journal.draws_of_thread("thread") if one.identity.node == "plan"
    )
    assert before <= plan.times[0] / 1e9 <= plan.times[-1] / 1e9 <= time.time()
    assert str(uuid.UUID(bytes=bytes.fromhex(plan.uuids[0]), version=4)) in notes(store)[0]


async def test_a_task_that_asked_a_person_goes_on_as_it_began(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "asks")
    asked.clear()
    done = await run(store, environment, "asks", answer="yes")
    assert done.status is RunStatus.COMPLETED and len(done.calls) == 1
    assert asked == [], "the prompt is the one that was answered"
    assert (await replay_async(store, "thread")).equal


async def test_each_attempt_has_its_own(store: RunStore, environment: LocalEnvironment) -> None:
    await run(store, environment, "retries")
    first, second = sorted(
        store.journal.draws_of_thread("thread"), key=lambda one: one.identity.attempt
    )
    assert (first.identity.attempt, second.identity.attempt) == (1, 2)
    assert first.uuids[0] != second.uuids[0]


async def test_a_fork_is_replayed_with_what_it_left_and_draws_anew(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "graph")
    moment = history(store, "thread").select("before:work")
    (episode,) = fork(store, "thread", moment, name="other", seed=2)
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        await runner.run(episode)
    assert notes(store, "other")[:3] == notes(store)[:3]
    assert notes(store, "other")[3:] != notes(store)[3:]
    found = await replay_async(store, "other")
    assert found.equal and found.unused == 0, found


async def test_a_run_that_goes_on_live_takes_the_draws_over(
    store: RunStore, environment: LocalEnvironment
) -> None:
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        await runner.run(Episode(TASK, "thread", graph="tests.support.graphs.killed_draws:graph"))
        asked.clear()
        changed = "tests.support.graphs.killed_draws:otherwise"
        found = await replay_async(store, "thread", graph=changed, live_after=runner, thread="live")
    assert found.live is not None and found.live.error is None and len(found.live.calls) == 3
    assert [line.split()[1] for line in asked] == ["fourth"], (
        "the requests before it are those on record"
    )
    assert (await replay_async(store, "live")).equal


async def test_what_json_cannot_hold_is_refused(
    store: RunStore, environment: LocalEnvironment
) -> None:
    with pytest.raises(Exception, match="tuple cannot be recorded"):
        await run(store, environment, "wraps_a_tuple")


def test_outside_of_a_node_nothing_changes() -> None:
    record_draws()
    random.seed(3)
    there = random.Random(3)
    assert [random.random(), random.gauss(0, 1), random.gauss(0, 1)] == [
        there.random(),
        there.gauss(0, 1),
        there.gauss(0, 1),
    ]
    assert random.sample(range(100), 5) == there.sample(range(100), 5)
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    assert random.random() == first
    assert uuid.uuid4() != uuid.uuid4() and len(os.urandom(7)) == 7 and secrets.token_hex(4)
    assert abs(datetime.now().timestamp() - time.time()) < 5
    assert drawn(lambda: (1, 2)) == (1, 2)


TASK_OF = GraphIdentity(thread_id="t", task_id="a")


def test_a_replayed_clock_goes_on_from_the_last_recorded_time() -> None:
    draws = OpenDraws(TASK_OF, TaskDraws(identity=TASK_OF, times=(100, 200)))
    assert [draws.time(now) for now in (5000, 5001, 5006)] == [100, 200, 205]


def test_a_resumed_task_goes_on_with_new_draws() -> None:
    written = list[TaskDraws]()
    draws = OpenDraws(
        TASK_OF, TaskDraws(identity=TASK_OF, times=(100,)), lambda record: written.append(record())
    )
    assert [draws.time(now) for now in (5000, 5001)] == [100, 5001]
    assert written[-1].times == (100, 5001)


def test_a_loop_is_not_recorded_without_end() -> None:
    written = list[TaskDraws]()
    draws = OpenDraws(TASK_OF, None, lambda record: written.append(record()))
    assert [draws.time(now) for now in range(MOST_RECORDED + 5)] == [*range(MOST_RECORDED + 5)]
    assert draws.record().times == tuple(range(MOST_RECORDED))
