"""Paths whose differences are reported but do not count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.ignored_paths import Ignored, IgnoredPath
from hrm_agent.runtime.replay.player import Replay, replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TaskRef

TASK = TaskRef(id="1", family="test", prompt="Go.")


@pytest.mark.parametrize(
    ("text", "parts", "in_request"),
    [
        ("notes", ("notes",), False),
        ("messages[*].additional_kwargs.x", ("messages", None, "additional_kwargs", "x"), False),
        ("rows[10].a.*", ("rows", 10, "a", None), False),
        ("request", ("request",), False),
        ("request.messages[0].content", ("messages", 0, "content"), True),
        ("request.tools", ("tools",), True),
    ],
)
def test_what_a_path_says(text: str, parts: tuple[Any, ...], in_request: bool) -> None:
    found = IgnoredPath.parse(text)
    assert (found.parts, found.in_request) == (parts, in_request)


@pytest.mark.parametrize(
    "text",
    ["", ".", "a..b", "[0]", "*", "a[", "a[x]", "a[-1]", "a]", "a b[1]c", "request.tools[0]"],
)
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(ConfigError, match="--ignore"):
        IgnoredPath.parse(text)


class Report(BaseModel):
    text: str
    at: float


@dataclass(frozen=True)
class Row:
    name: str
    at: float


def test_ways_into_values() -> None:
    def state(at: float) -> dict[str, Any]:
        return {
            "report": Report(text="a", at=at),
            "rows": (Row("a", at), Row("b", at)),
            "messages": [AIMessage("a", additional_kwargs={"at": at, "kept": 1})],
        }

    paths = [
        "report.at",
        "rows[*].at",
        "messages[0].additional_kwargs.at",
        "rows[7].at",
        "nowhere.at",
    ]
    ignored = Ignored(map(IgnoredPath.parse, paths))
    old, new = ignored.blanked(state(1.0), state(2.0))
    assert old == new and old["messages"][0].additional_kwargs == {"at": None, "kept": 1}
    assert ignored.unmatched == ("rows[7].at", "nowhere.at")
    assert "report.at: 1.0 -> 2.0" in ignored.differences and len(ignored.differences) == 3
    assert state(1.0)["report"].at == 1.0


async def replayed(
    store: RunStore, environment: LocalEnvironment, graph: str, *ignore: str
) -> Replay:
    if store.journal.find_trajectory("thread") is None:
        with ScriptedEngine([]) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            named = f"tests.support.graphs.renamed_agents:{graph}"
            assert (await runner.run(Episode(TASK, "thread", seed=1, graph=named))).error is None
    return await replay_async(store, "thread", ignore=[IgnoredPath.parse(path) for path in ignore])


async def test_in_the_state(store: RunStore, environment: LocalEnvironment) -> None:
    some = ["waited", "rows[*].took"]
    assert not (await replayed(store, environment, "measures")).equal
    found = await replayed(store, environment, "measures", *some)
    assert [change.channel for change in found.changes] == ["messages"]
    found = await replayed(
        store, environment, "measures", *some, "messages[*].additional_kwargs.took", "rows[*].left"
    )
    assert found.equal and found.unmatched == ("rows[*].left",)
    assert {line.partition(":")[0] for line in found.ignored} == {
        *some,
        "messages[*].additional_kwargs.took",
    }


async def test_in_requests(store: RunStore, environment: LocalEnvironment) -> None:
    found = await replayed(store, environment, "reports")
    assert found.divergence is not None and found.divergence.asked.tool_call is not None
    found = await replayed(store, environment, "reports", "request.arguments.ticket")
    assert found.divergence is not None and found.divergence.asked.tool_call is None
    paths = ["request.arguments.ticket", "request.messages[1].content"]
    found = await replayed(store, environment, "reports", *paths)
    assert found.equal and found.unused == 0 and found.unmatched == (), found
    assert len(found.ignored) == 2


async def test_other_tools(
    store: RunStore, environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.graphs import renamed_agents

    assert (await replayed(store, environment, "offers")).equal
    monkeypatch.setattr(renamed_agents, "offered", [{"name": "another"}])
    assert not (await replayed(store, environment, "offers")).equal
    found = await replayed(store, environment, "offers", "request.tools")
    assert found.equal and found.ignored == ("request.tools: 'other tools' -> 'these'",)
