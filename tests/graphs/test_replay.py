"""A stored run played again: nothing is asked, nothing is run, and it comes to the same bytes, or says where not."""

from __future__ import annotations

from typing import Any

import pytest

from graphs.episode import Episode, EpisodeRunner
from graphs.replay import Replay, ReplayVerdict, replay_async
from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import RunStore
from hrm_agent.trajectory import StopReason, TaskRef, Trajectory
from tests.graphs.scripts import TASK_PROMPT, Roles, call, multiplier

TASK = TaskRef(id="1", family="test", prompt=TASK_PROMPT, answer="42")


async def record(
    store: RunStore, environment: LocalEnvironment, script: Any, thread: str = "thread", **options: Any
) -> Trajectory:
    with ScriptedEngine(script) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment, stand_in=options.pop("stand_in", False))
        return await runner.run(Episode(TASK, thread, seed=1, **options))


async def check(store: RunStore, thread: str = "thread", **options: Any) -> Replay:
    before = len(list(store.checkpointer.list(None)))
    found = await replay_async(store, thread, **options)
    assert len(list(store.checkpointer.list(None))) == before, "a replay writes nothing"
    return found


async def test_the_tool_loop_byte_for_byte(store: RunStore, environment: LocalEnvironment) -> None:
    await record(store, environment, multiplier)
    found = await check(store)
    assert (found.verdict, found.random_ids, found.unused) == (ReplayVerdict.EQUAL, 0, 0)
    assert found.checkpoints > 3


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ({"max_turns": 2}, StopReason.MAX_TURNS),
        ({"max_tokens": 100}, StopReason.MAX_TOKENS),
        ({"max_seconds": 0.0}, StopReason.MAX_SECONDS),
    ],
)
async def test_budgets_end_it_as_they_did(
    context: dict[str, Any], reason: StopReason, store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await record(store, environment, lambda _: call("1"), context=context)
    assert trajectory.stop_reason is reason
    assert (await check(store)).equal


async def test_parallel_solvers(store: RunStore, environment: LocalEnvironment) -> None:
    await record(store, environment, Roles(), graph="reasoning")
    found = await check(store)
    assert (found.verdict, found.random_ids, found.unused) == (ReplayVerdict.EQUAL, 0, 0)


class Twins(Roles):
    """Two solvers that ask exactly the same, and are answered differently."""

    plan: Any = {"subgoals": [{"name": "a", "goal": "guess", "needs": []}, {"name": "b", "goal": "guess", "needs": []}]}

    def __init__(self) -> None:
        super().__init__()
        self.guesses = 0

    def solver(self, messages: Any) -> str:
        self.guesses += 1
        return f"<answer>\\boxed{{{self.guesses}}}</answer>"


async def test_parallel_subgraphs_that_ask_the_same(store: RunStore, environment: LocalEnvironment) -> None:
    for number in range(4):
        await record(store, environment, Twins(), f"thread {number}", graph="reasoning")
        found = await check(store, f"thread {number}")
        assert found.equal and found.unused == 0


@pytest.mark.parametrize("stand_in", [False, True])
async def test_a_graph_with_a_model_and_tools_of_its_own(
    stand_in: bool, store: RunStore, environment: LocalEnvironment
) -> None:
    asks = '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'
    own = "tests.graphs.own_agent:graph"
    await record(store, environment, [asks, "It is 42."], graph=own, stand_in=stand_in)
    found = await check(store)
    assert found.equal and found.unused == 0
    assert found.random_ids == 1, "ToolNode gives its message no id"
