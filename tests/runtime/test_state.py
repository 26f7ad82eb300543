"""States with channels whose value LangGraph computes from writes (`DeltaChannel`), wherever a
state is read.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Command

from hrm_agent.cli.records.request_hints import states_of
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import GraphError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.rewards import Reward, Rollout, Rubric
from hrm_agent.rewards.rollout import arguments_of
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.newest_state import newest_state
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.runtime.state import StateReader, Unbuilt
from hrm_agent.runtime.time_travel.fork import fork, history, thread_diff
from hrm_agent.store import RunStore
from hrm_agent.store.browse.state import Written, newest_plain_channels, shown_channels
from hrm_agent.store.upkeep.verification import verify
from hrm_agent.store.values.plain_reader import NeedsItsType, ShownMessage
from hrm_agent.trajectory import Call, GraphIdentity, TaskRef

TASK = TaskRef(id="1", family="test", prompt="Go.")
DESK = "tests.support.graphs.compared_agents:desk"
FIRST, BOTH = {"0.md": "draft of 1"}, {"0.md": "draft of 1", "1.md": "draft of 4"}


def on(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def compiled(store: RunStore, name: str = DESK) -> Any:
    graph = load_graph(name)
    return graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})


async def two_turns(store: RunStore, environment: LocalEnvironment, name: str = DESK) -> None:
    with ScriptedEngine([]) as engine:
        await EpisodeRunner(store, engine, "scripted", environment).run(
            Episode(TASK, "t", graph=name)
        )
    await compiled(store, name).ainvoke(
        {"messages": [HumanMessage("more", id="more")]}, on("t"), durability="sync"
    )


async def test_the_newest_state_is_langgraphs(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await two_turns(store, environment)
    state = newest_state(store, "t", DESK)
    assert state is not None
    assert {name: state[name] for name in ("files", "messages", "note")} == compiled(
        store
    ).get_state(on("t")).values
    assert state["files"] == BOTH
    assert [message.text for message in state["messages"]][3:] == [
        "more",
        "draft 4",
        "2 files, 5 messages",
    ]


async def test_rewards_see_it(store: RunStore, environment: LocalEnvironment) -> None:
    def written(state: dict[str, Any]) -> int:
        return len(state["files"])

    await two_turns(store, environment)
    reward = Reward(written)
    given = arguments_of(
        reward, Rollout(store.journal.trajectory("t"), newest_state(store, "t", DESK)), []
    )
    assert Rubric([reward]) and reward.function(**given) == 2


@pytest.mark.parametrize(
    "graph", ["gone.module:graph", "tests.support.graphs.compared_agents:steps"]
)
async def test_without_the_graph_it_is_not_known(
    graph: str, store: RunStore, environment: LocalEnvironment
) -> None:
    """`steps` has a channel `messages` of another kind, and no `files`."""
    await two_turns(store, environment)
    with pytest.raises(GraphError, match="files") as raised:
        newest_state(store, "t", graph)
    assert "reducer" in str(raised.value)
    found = store.checkpointer.get_tuple(on("t"))
    assert found is not None
    files = StateReader(store.checkpointer, None).values(found)["files"]
    assert isinstance(files, Unbuilt) and "not known without the graph" in str(files)
    assert list(files.writes) == [{"0.md": "draft of 1"}, {"1.md": "draft of 4"}]
    with pytest.raises(NeedsItsType):
        newest_plain_channels(store, "t", ("files",))


async def test_each_moment_has_its_own(store: RunStore, environment: LocalEnvironment) -> None:
    await two_turns(store, environment)
    states = compiled(store).get_state_history(on("t"))
    by_id = {each.config["configurable"]["checkpoint_id"]: each.values for each in states}
    moments = history(store, "t").moments
    for moment in moments:
        expected = {
            name: value
            for name, value in by_id[moment.checkpoint_id].items()
            if name in moment.values
        }
        assert moment.values == expected
    assert [len(moment.values.get("files", {})) for moment in moments] == [0, 0, 1, 1, 1, 1, 2, 2]
    assert "files" in [change.channel for change in thread_diff(store, "t@3", "t").changes]


@pytest.mark.parametrize(
    ("at", "edit", "files", "texts"),
    [
        ("2", {}, FIRST, ["Go.", "draft 1", "1 files, 2 messages"]),
        ("2", {"files": {"x": "y"}}, {"x": "y"}, ["Go.", "draft 1", "1 files, 2 messages"]),
        (
            "6",
            {"messages": [{"role": "user", "content": "hm"}]},
            BOTH,
            ["hm", "2 files, 1 messages"],
        ),
        (
            "before:write#2",
            {"note": "z"},
            BOTH,
            ["Go.", "draft 1", "1 files, 2 messages", "more", "draft 4"],
        ),
        ("last", {}, BOTH, ["Go.", "draft 1", "1 files, 2 messages", "more", "draft 4"]),
    ],
)
async def test_forks_and_edits(
    at: str, edit: Any, files: Any, texts: list[str], store: RunStore, environment: LocalEnvironment
) -> None:
    await two_turns(store, environment)
    fork(store, "t", at, edit=edit, name="u")
    await compiled(store).ainvoke(None, on("u"), durability="sync")
    state = newest_state(store, "u", DESK)
    assert state is not None and state["files"] == files
    assert [message.text for message in state["messages"]][: len(texts)] == texts
    assert (await replay_async(store, "u")).equal


async def test_a_question_is_answered_and_the_next_turn_knows(
    store: RunStore, environment: LocalEnvironment
) -> None:
    name = "tests.support.graphs.compared_agents:desk_asks"
    with ScriptedEngine([]) as engine:
        await EpisodeRunner(store, engine, "scripted", environment).run(
            Episode(TASK, "t", graph=name)
        )
    for given in (
        Command(resume="yes"),
        {"messages": [HumanMessage("more", id="m")]},
        Command(resume="no"),
    ):
        await compiled(store, name).ainvoke(given, on("t"), durability="sync")
        assert (await replay_async(store, "t")).equal
    assert (newest_state(store, "t", name) or {})["files"] == FIRST | {
        "approved.md": "no",
        "2.md": "draft of 3",
    }


async def test_an_edit_in_langgraphs_own_way(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await two_turns(store, environment)
    await compiled(store).aupdate_state(on("t"), {"files": {"own": "edit"}}, as_node="write")
    await compiled(store).ainvoke(None, on("t"), durability="sync")
    assert (newest_state(store, "t", DESK) or {})["files"] == BOTH | {"own": "edit"}
    assert (await replay_async(store, "t")).equal


async def test_what_it_is_made_of_is_kept(store: RunStore, environment: LocalEnvironment) -> None:
    await two_turns(store, environment)
    before = newest_state(store, "t", DESK)
    store.checkpointer.prune(["t"])
    assert newest_state(store, "t", DESK) == before
    assert list(verify(store)) == []
    await compiled(store).ainvoke(
        {"messages": [HumanMessage("more", id="3")]}, on("t"), durability="sync"
    )
    assert len((newest_state(store, "t", DESK) or {})["files"]) == 3


async def test_of_another_runs_checkpoints_those_stay_that_it_is_made_of(store: RunStore) -> None:
    graph = compiled(store)
    for run_id in ("one", "two"):
        config = on("t") | {"metadata": {"run_id": run_id}}
        await graph.ainvoke(
            {"messages": [HumanMessage("more", id=run_id)]}, config, durability="sync"
        )
    before = newest_state(store, "t", DESK)
    store.checkpointer.delete_for_runs(["one"])
    assert newest_state(store, "t", DESK) == before
    store.checkpointer.delete_for_runs(["one", "two"])
    assert newest_state(store, "t", DESK) is None


async def test_a_viewer_shows_what_it_is_made_of(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await two_turns(store, environment)
    found = shown_channels(store, "t")
    assert found is not None
    files, messages = (found.checkpoint["channel_values"][name] for name in ("files", "messages"))
    assert files == Written(None, [{"0.md": "draft of 1"}, {"1.md": "draft of 4"}])
    assert isinstance(messages, Written) and isinstance(messages.snapshot, list)
    shown = [message for each in (messages.snapshot, *messages.writes) for message in each]
    assert all(isinstance(message, ShownMessage) for message in shown)
    assert [message.fields["content"] for message in shown][-1] == "2 files, 5 messages"


async def test_messages_of_a_call_that_was_recorded_without_its_request(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await two_turns(store, environment)
    found = store.checkpointer.get_tuple(on("t"))
    assert found is not None
    identity = GraphIdentity(
        thread_id="t",
        checkpoint_id=found.checkpoint["id"],
        checkpoint_ns="read:1",
        task_id="1",
        node="read",
    )
    call = Call.model_construct(identity=identity)
    told = [message.text for message in states_of(store.checkpointer)(call)]
    assert told == [
        "Go.",
        "draft 1",
        "1 files, 2 messages",
        "more",
        "draft 4",
        "2 files, 5 messages",
    ]


async def test_a_message_that_names_no_record_is_found(
    store: RunStore, environment: LocalEnvironment
) -> None:
    with ScriptedEngine([]) as engine:
        await EpisodeRunner(store, engine, "scripted", environment).run(
            Episode(TASK, "t", graph=DESK)
        )
    lost = AIMessage("x", id="x", response_metadata={"call_id": "nowhere"})
    await compiled(store).ainvoke({"messages": [lost]}, on("t"), durability="sync")
    found = list(verify(store))
    assert len(found) == 1 and "names the model call nowhere, which is not on record" in found[0]


@pytest.mark.parametrize(
    ("name", "namespaces", "roles"),
    [
        ("memory", {"calls_remembering"}, {"before:calls_remembering/think"}),
        ("memory_as_node", {"special"}, {"before:special/think"}),
        ("memory_deep", {"outer|calls_remembering"}, {"before:outer/calls_remembering/think"}),
    ],
)
async def test_a_subgraph_that_keeps_its_state(
    name: str, namespaces: set[str], roles: set[str], store: RunStore, environment: LocalEnvironment
) -> None:
    await two_turns(store, environment, f"tests.support.graphs.compared_agents:{name}")
    found = history(store, "t")
    inner = [moment for moment in found.walk() if ":" not in moment.namespace and moment.namespace]
    assert {moment.namespace for moment in inner} == namespaces
    assert len(inner) == 8, "two runs of an input, a start and two nodes"
    assert roles <= {known for moment in inner for known in moment.names}
    assert inner[-1].values["seen"] == ["once", "once"], "it goes on from the turn before"
    assert (await replay_async(store, "t")).equal
    graph = compiled(store, f"tests.support.graphs.compared_agents:{name}")
    fork(store, "t", found.moments[-1], name="u")
    await graph.ainvoke({"messages": [HumanMessage("more", id="3")]}, on("u"), durability="sync")
    assert [m.values.get("seen") for m in history(store, "u").walk() if m.namespace in namespaces][
        -1
    ] == ["once"] * 3
    assert (await replay_async(store, "u")).equal
