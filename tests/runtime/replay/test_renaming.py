"""IDs that differ by name: which strings may differ, one to one, in requests as in states."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import ReplayVerdict, replay_async
from hrm_agent.runtime.replay.renaming import Renaming
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TaskRef
from tests.support.graphs import renamed_agents

A, B, C, D = (str(uuid.UUID(int=number << 64 | number, version=4)) for number in (1, 2, 3, 4))
TASK = TaskRef(id="1", family="test", prompt="Go.")


def equal(renaming: Renaming, old: Any, new: Any) -> bool:
    return renaming.equal(json.dumps(old).encode(), json.dumps(new).encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (A, B),
        (f"Ticket {A}: open", f"Ticket {B}: open"),
        (f"run-{A}", f"run-{B}"),
        (f"lc_run--{A}", f"lc_run--{B}"),
        (A.replace("-", ""), B.replace("-", "")),
        ("call_a1B2c3D4e5F6g7H8i9J0k1L2", "call_z1B2c3D4e5F6g7H8i9J0k1L2"),
        ("toolu_01ABCDEFGHIJKLMNOPQRSTUV", "toolu_01abcdefghijklmnopqrstuv"),
        ("0e06df84-afcb-8b25-400d-28a2a3ca17e0", "4d7ffcbf-cbe5-ea91-fea7-ebc30dbecfa0"),
    ],
)
def test_generated_ids_may_differ(old: str, new: str) -> None:
    renaming = Renaming()
    assert equal(renaming, [old, {"of": old}], [new, {"of": new}]) and renaming.count == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("4", "5"),
        ("red", "blue"),
        ("call_internationalization", "call_internationalisation"),
        ("order_12345678901234567890", "order_12345678901234567891"),
        (str(uuid.uuid5(uuid.NAMESPACE_DNS, "a")), str(uuid.uuid5(uuid.NAMESPACE_DNS, "b"))),
        ("d41d8cd98f00b204e9800998ecf8427e", "0cc175b9c0f1b6a831c399e269772661"),
        (A, B.replace("-", "")),
        (f"run-{A}", f"ran-{B}"),
        ("call_a1B2c3D4e5F6g7H8i9J0k1L2", "toolu_z1B2c3D4e5F6g7H8i9J0k1"),
        (f"{A} open", f"{B} shut"),
    ],
)
def test_nothing_else_may(old: str, new: str) -> None:
    renaming = Renaming()
    assert not equal(renaming, [old], [new]) and renaming.count == 0


def test_one_to_one_over_all() -> None:
    renaming = Renaming()
    assert equal(renaming, [A, B], [C, D])
    assert not equal(renaming, [A, B], [D, C]), "what was one is another now"
    assert not equal(renaming, [A, A], [C, D]), "what was one is two now"
    assert not equal(renaming, [A, B], [C, C]), "what was two is one now"
    assert not equal(renaming, [A], [A])
    assert equal(renaming, [B, A, A], [D, C, C]) and renaming.count == 2


def test_an_id_that_stayed_is_no_other() -> None:
    renaming = Renaming()
    assert equal(renaming, [A, B], [A, B])
    assert not equal(renaming, [A], [B]) and not equal(renaming, [A], [C])


def test_what_failed_leaves_nothing_behind() -> None:
    renaming = Renaming()
    assert not equal(renaming, [A, B, B], [C, D, A])
    assert equal(renaming, [A], [D])


async def run(store: RunStore, environment: LocalEnvironment, graph: str, script: Any) -> None:
    with ScriptedEngine(script) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        done = await runner.run(
            Episode(TASK, "thread", seed=1, graph=f"tests.support.graphs.renamed_agents:{graph}")
        )
        assert done.error is None, done.error


@pytest.mark.parametrize("graph", ["tickets", "policy_tickets"])
async def test_requests_and_answers_with_other_ids(
    graph: str, store: RunStore, environment: LocalEnvironment
) -> None:
    """The IDs are drawn outside the recording. The answer quotes them, and the next request
    contains that answer.
    """
    await run(store, environment, graph, lambda messages: f"Seen: {messages[0].text}")
    found = await replay_async(store, "thread")
    assert found.equal and found.unused == 0, found
    assert found.renamed_ids >= 2


async def test_agents_that_hand_over_the_whole_conversation(
    store: RunStore, environment: LocalEnvironment
) -> None:
    """The recorded tool returned messages whose ids LangGraph had drawn, two levels deep."""
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        done = await runner.run(
            Episode(TASK, "thread", graph="tests.support.graphs.handing_over:team")
        )
    assert done.error is None and len(done.calls) == 7 and len(done.tool_calls) == 4, done.error
    found = await replay_async(store, "thread")
    assert found.equal and found.unused == 0, found
    assert found.renamed_ids >= 2


async def test_another_id_in_the_place_of_one_is_seen(
    store: RunStore, environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(store, environment, "tickets", [])
    monkeypatch.setattr(renamed_agents, "mixed_up", True)
    found = await replay_async(store, "thread")
    assert found.verdict in (ReplayVerdict.ASKS, ReplayVerdict.DIFFERS)


def test_messages_with_other_ids() -> None:
    old, new = (
        AIMessage("hello", id=f"run-{each}", tool_calls=[{"name": "f", "args": {}, "id": each}])
        for each in (A, B)
    )
    assert Renaming().equal(old.model_dump_json().encode(), new.model_dump_json().encode())
