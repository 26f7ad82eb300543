"""Each state, task and write of a run is compared with the record. The verdict is drawn from all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.replay.ignored_paths import IgnoredPath
from hrm_agent.runtime.replay.player import Replay, ReplayVerdict, replay_async
from hrm_agent.runtime.time_travel.fork import fork
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TaskRef, Trajectory
from tests.support.graphs import compared_agents

TASK = TaskRef(id="1", family="test", prompt="Go.")
EVERY = [
    "steps",
    "parallel",
    "nested",
    "nested_twice",
    "memory",
    "memory_as_node",
    "memory_deep",
    "functional",
    "retried",
    "desk",
    "desk_inside",
    "desk_by_name",
]


@pytest.fixture(autouse=True)
def as_written() -> Iterator[None]:
    yield
    compared_agents.word, compared_agents.runs_inner = "draft", True
    compared_agents.failures.clear()


def named(name: str) -> str:
    return f"tests.support.graphs.compared_agents:{name}"


async def run(store: RunStore, environment: LocalEnvironment, name: str) -> Trajectory:
    with ScriptedEngine([]) as engine:
        return await EpisodeRunner(store, engine, "scripted", environment).run(
            Episode(TASK, "t", graph=named(name))
        )


async def go_on(store: RunStore, name: str, given: Any, thread: str = "t") -> None:
    graph = load_graph(named(name))
    graph = graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})
    await graph.ainvoke(given, {"configurable": {"thread_id": thread}}, durability="sync")


def where(found: Replay) -> list[str]:
    return [f"{change.channel} {change.part}".rstrip() for change in found.changes]


@pytest.mark.parametrize("name", EVERY)
async def test_a_conversation_of_three_turns_comes_to_the_same(
    name: str, store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, name)
    for number in range(2):
        await go_on(store, name, {"messages": [HumanMessage("again", id=f"again {number}")]})
    found = await replay_async(store, "t")
    assert (found.verdict, found.changes, found.ended) == (ReplayVerdict.EQUAL, (), "")
    with store.database.read() as cursor:
        checkpoints = cursor.execute("SELECT count(*) FROM checkpoints").fetchone()[0]
        # an input has no path
        query = "SELECT DISTINCT ns, checkpoint_id, task_id FROM writes WHERE task_path <> ''"
        tasks = len(cursor.execute(query).fetchall())
    assert (found.checkpoints, found.tasks) == (checkpoints, tasks)
    assert found.writes >= found.tasks


@pytest.mark.parametrize(
    ("name", "differs", "step"),
    [
        ("steps", ["note written by early"], 1),
        ("nested", ["scratch written by calls_inner/think"], 1),
        ("nested_twice", ["scratch written by calls_twice"], 1),
        ("memory", ["scratch written by calls_remembering/think"], 1),
        ("memory_as_node", ["scratch written by special/think"], 1),
        ("memory_deep", ["scratch written by outer/calls_remembering/think"], 1),
        ("functional", ["__return__ written by a task of the functional API"], 0),
        ("desk_inside", ["files written by at_desk/write", "messages written by at_desk/write"], 1),
        ("desk_by_name", ["files written by at_some_desk", "messages written by at_some_desk"], 1),
    ],
)
async def test_what_leaves_no_trace_in_the_last_state_differs_all_the_same(
    name: str, differs: list[str], step: int, store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, name)
    compared_agents.word = "other"
    found = await replay_async(store, "t")
    assert (found.verdict, where(found), found.step) == (ReplayVerdict.DIFFERS, differs, step)
    assert found.on_the_way
    assert any("draft" in line for line in found.changes[0].lines), "the record"
    assert any("other" in line for line in found.changes[0].lines), "now"


@pytest.mark.parametrize(
    ("name", "channels"), [("parallel", ["parts"]), ("desk", ["files", "messages"])]
)
async def test_the_last_state_is_told_where_it_differs(
    name: str, channels: list[str], store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, name)
    compared_agents.word = "other"
    found = await replay_async(store, "t")
    assert (found.verdict, where(found), found.step) == (ReplayVerdict.DIFFERS, channels, 1)
    assert not found.on_the_way


@pytest.mark.parametrize(
    ("recorded", "now", "ended"),
    [
        ("steps", "extra_step", "it goes on to step 3, where the record ends with step 2"),
        ("extra_step", "steps", "it ended after step 2, where the record goes on to step 3"),
    ],
)
async def test_a_step_that_changes_nothing_is_one(
    recorded: str, now: str, ended: str, store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, recorded)
    found = await replay_async(store, "t", graph=named(now))
    assert (found.verdict, found.ended) == (ReplayVerdict.DIFFERS, ended)


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_subgraph_that_runs_on_one_side_only(
    recorded: bool, store: RunStore, environment: LocalEnvironment
) -> None:
    compared_agents.runs_inner = recorded
    await run(store, environment, "nested")
    compared_agents.runs_inner = not recorded
    found = await replay_async(store, "t")
    assert (found.verdict, where(found)) == (ReplayVerdict.DIFFERS, ["subgraph calls_inner"])


async def test_a_question_is_compared_and_its_answer_given(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "asks")
    waiting = await replay_async(store, "t")
    await go_on(store, "asks", Command(resume="yes"))
    done = await replay_async(store, "t")
    assert waiting.equal and done.equal
    assert done.writes > waiting.writes
    compared_agents.word = "other"
    found = await replay_async(store, "t", ignore=[IgnoredPath.parse("note")])
    assert (found.verdict, where(found)) == (ReplayVerdict.DIFFERS, ["question written by ask"])


async def test_each_task_of_the_functional_api_gets_its_own_answer(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "asks_in_tasks")
    for number in range(5):
        assert (await replay_async(store, "t")).equal
        await go_on(store, "asks_in_tasks", Command(resume=f"{number}"))
    found = await replay_async(store, "t")
    assert (found.verdict, found.changes, found.tasks) == (ReplayVerdict.EQUAL, (), 6)


async def test_what_ran_in_a_tool_that_is_answered_is_told(
    store: RunStore, environment: LocalEnvironment
) -> None:
    """The number of remaining steps, which is sent on, differs in a replay."""
    await run(store, environment, "in_tools")
    found = await replay_async(store, "t")
    assert (found.verdict, found.changes, found.ended) == (ReplayVerdict.EQUAL, (), "")
    assert found.not_compared == (
        "2 tasks that a tool called, which is not run again",
        "16 checkpoints of subgraphs that ran in a tool, which is not run again",
    )
    compared_agents.runs_inner = False
    found = await replay_async(store, "t")
    assert (found.verdict, found.changes[0].channel) == (ReplayVerdict.DIFFERS, "subgraph")


async def test_an_attempt_that_failed_is_told(
    store: RunStore, environment: LocalEnvironment
) -> None:
    failed = await run(store, environment, "fails_once")
    assert failed.error == "ValueError: away"
    await go_on(store, "fails_once", None)
    found = await replay_async(store, "t")
    assert found.equal
    assert found.not_compared == ("1 errors of attempts whose task ended well later",)


async def test_what_is_to_be_ignored_is_told(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "steps")
    compared_agents.word = "other"
    found = await replay_async(store, "t", ignore=[IgnoredPath.parse("note")])
    assert found.equal
    assert found.not_compared == ("2 writes to channels that --ignore leads into",)


async def test_a_value_that_only_a_subgraph_out_of_sight_could_make_is_told(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "desk_by_name")
    found = await replay_async(store, "t")
    assert found.equal
    assert found.not_compared == (
        "3 states with a channel whose value the graph does not say how to make",
    )


@pytest.mark.parametrize(
    ("name", "at"), [("steps", "2"), ("desk", "2"), ("memory", "4"), ("desk", "last")]
)
async def test_a_fork_comes_to_the_same(
    name: str, at: str, store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, name)
    await go_on(store, name, {"messages": [HumanMessage("again", id="again")]})
    (episode,) = fork(store, "t", at, edit={"note": "edited"}, name="u")
    await go_on(store, name, None, "u")
    found = await replay_async(store, episode.thread_id)
    assert (found.verdict, found.changes, found.ended) == (ReplayVerdict.EQUAL, (), "")


async def test_subgraphs_that_are_not_on_record_are_told(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "kept_elsewhere")
    found = await replay_async(store, "t")
    assert found.equal
    assert found.not_compared == (
        "the steps of subgraph calls_elsewhere, which has a checkpointer of its own",
    )


async def test_steps_that_are_not_on_record_any_more_are_told(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, "steps")
    store.checkpointer.prune(["t"])
    found = await replay_async(store, "t")
    assert found.equal and found.not_compared == (
        "what led to the oldest checkpoint, since no earlier one is on record",
    )
