"""Effects of nodes outside the record. A replay repeats and reports them, or refuses them
beforehand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import ReplayVerdict, replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TaskRef
from tests.support.graphs.effectful import LOG

WRITES = f"opens {LOG} for writing"


async def record(name: str, store: RunStore, environment: LocalEnvironment) -> None:
    with ScriptedEngine(["Fine."]) as engine:
        task = TaskRef(id="1", family="test", prompt="Act.")
        episode = Episode(task, "t", graph=f"tests.support.graphs.effectful:{name}", seed=1)
        done = await EpisodeRunner(store, engine, "scripted", environment).run(episode)
    assert done.error is None


@pytest.mark.parametrize(
    ("name", "node", "what"),
    [
        ("writes", "act", WRITES),
        ("swallows", "act", WRITES),
        ("in_a_thread", "act", WRITES),
        ("in_an_executor", "act", WRITES),
        ("in_a_pool", "act", WRITES),
        ("in_its_own", "act", WRITES),
        ("in_threads", "act", WRITES),
        ("below", "inner", WRITES),
        ("connects", "act", "connects to ('127.0.0.1', 9)"),
        ("starts", "act", "starts the process "),
        ("spawns", "act", "starts the process "),
    ],
)
async def test_an_effect_is_named_or_refused(
    name: str, node: str, what: str, store: RunStore, environment: LocalEnvironment,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    await record(name, store, environment)
    again = await replay_async(store, "t")
    assert again.equal and [(e.node, e.what[: len(what)]) for e in again.effects] == [(node, what)]
    refused = await replay_async(store, "t", refuse_effects=True)
    assert refused.verdict is ReplayVerdict.REFUSED and not refused.equal
    assert [(e.node, e.what[: len(what)]) for e in refused.effects] == [(node, what)]
    if what == WRITES:
        assert LOG.read_text() == "acted\n" * 2, (
            "the run and the replay that was let; not the one that refused"
        )


async def test_what_changes_nothing_is_none(store: RunStore, environment: LocalEnvironment) -> None:
    await record("reads", store, environment)
    found = await replay_async(store, "t", refuse_effects=True)
    assert found.equal and found.effects == ()


async def test_the_tool_loop_has_none(store: RunStore, environment: LocalEnvironment) -> None:
    with ScriptedEngine(
        ['<tool_call>{"name": "python", "arguments": {"code": "6 * 7"}}</tool_call>', "42"]
    ) as engine:
        task = TaskRef(id="1", family="test", prompt="6 * 7?")
        await EpisodeRunner(store, engine, "scripted", environment).run(Episode(task, "t", seed=1))
    assert (await replay_async(store, "t", refuse_effects=True)).equal


async def test_outside_of_replays_nothing_is_refused(
    store: RunStore, environment: LocalEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook stays in the process."""
    monkeypatch.chdir(tmp_path)
    await record("writes", store, environment)
    await replay_async(store, "t", refuse_effects=True)
    (tmp_path / "mine").write_text("x")
    assert LOG.read_text() == "acted\n"
