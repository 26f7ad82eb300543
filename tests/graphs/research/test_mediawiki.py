"""A research conversation with a real MediaWiki: redirects, scripts, failures; every citation leads
to its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.graphs.research import tools as research_tools
from hrm_agent.models import load_policy
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.tools.mediawiki import transport as asking
from hrm_agent.trajectory import RunStatus, ToolStatus
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.research_scripts import (
    AGENT,
    Researcher,
    Talk,
    assert_exact,
    planned,
    tool,
)
from tests.support.graphs.small_wiki import Patience
from tests.support.wiki.proxy import Proxy, dies, says, serving, silence
from tests.support.wiki.server import WikiServer

pytestmark = pytest.mark.whole

SEARCH, READ = "wiki_search", "wiki_page"
OK, ERROR, INFRASTRUCTURE = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.INFRASTRUCTURE


@pytest.fixture
def proxy(wiki_server: WikiServer) -> Iterator[Proxy]:
    with serving(Proxy(wiki_server.url)) as proxy:
        yield proxy


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Patience:
    patience = Patience(attempts=2)
    monkeypatch.setattr(research_tools, "open_wiki", patience.open_wiki)
    # what a wiki has asked for is not asked of the next one on its port
    monkeypatch.setattr(asking, "_hosts", {})
    return patience


def does(*steps: tuple[str, str]) -> Any:
    """A searcher that takes these steps, then says that it has."""

    def searcher(messages: Any) -> str:
        done = sum(message.type == "ai" for message in messages)
        return tool(steps[done][0], **_words(*steps[done])) if done < len(steps) else "Done."

    return searcher


def _words(name: str, words: str) -> dict[str, str]:
    return {"query" if name == SEARCH else "title": words}


def quotes(*cited: tuple[str, str]) -> Any:
    """A writer that quotes pages by their titles."""

    def writer(messages: Any) -> str:
        shown = {
            title: name
            for name, title in re.findall(r"<source (S\d+) \w+> (.*?) \(http", messages[1].text)
        }
        return " ".join(
            f'So it says [{shown.get(title, "S0")}: "{quote}"].' for title, quote in cited
        )

    return writer


class Turn:
    """User message, steps of the roles, and expected citations and outcomes."""

    def __init__(
        self, said: str, steps: Any, cited: Any, outcomes: list[tuple[str, ToolStatus]]
    ) -> None:
        self.said, self.steps, self.cited, self.outcomes = said, steps, cited, outcomes


CONVERSATION = [
    Turn(
        "Who built the lighthouse?",
        [(SEARCH, "Orrin"), (READ, "Orrin Lighthouse"), (READ, "Ida Kestrel")],
        [
            ("Orrin Lighthouse", "built in 1874 by the engineer Ida Kestrel"),
            ("Ida Kestrel", "born in Zürich"),
        ],
        [(SEARCH, OK), (READ, OK), (READ, OK)],
    ),
    Turn(
        "And the largest animal?",
        [(READ, "Sulphur-bottom")],
        [("Blue whale", "the largest animal known")],
        [(READ, OK)],
    ),
    Turn("東京とは？", [(READ, "Tokyo")], [("東京", "東京は日本の首都である。")], [(READ, OK)]),
    Turn("🐋?", [(READ, "🐋 (sign)")], [("🐋 (sign)", "👩‍👩‍👧‍👦 is one grapheme")], [(READ, OK)]),
    Turn(
        "The bridge?",
        [(SEARCH, "drawbridge"), (READ, "The drawbridge")],
        [],
        [(SEARCH, OK), (READ, ERROR)],
    ),
    Turn(
        "And AC/DC?", [(READ, "AC/DC")], [("AC/DC", "alternating and direct current")], [(READ, OK)]
    ),
]


async def test_a_conversation(
    proxy: Proxy, store: RunStore, idle_environment: LocalEnvironment, impatient: Patience
) -> None:
    turns = iter(CONVERSATION)
    model = Researcher(
        planner=lambda messages: planned(messages[-1].text.partition("Newest message: ")[2])
    )
    talk = Talk(store, idle_environment, model, wiki=proxy.url, user_agent=AGENT)
    done = 0
    for turn in turns:
        model.answers |= {
            "searcher": does(*turn.steps),
            "writer": quotes(*turn.cited) if turn.cited else "NOT ANSWERED",
        }
        trajectory = await talk(turn.said)
        outcomes = [(call.name, call.status) for call in trajectory.tool_calls][done:]
        done += len(outcomes)
        state = talk.state
        assert outcomes == turn.outcomes and state["stop_reason"] == (
            "answer" if turn.cited else "no_answer"
        )
        assert [state["sources"][cited["source"]]["title"] for cited in state["citations"]] == [
            t for t, _ in turn.cited
        ]
        assert_exact(state)
        for cited in state["citations"]:
            page = httpx.get(cited["url"], follow_redirects=True)
            assert (
                page.status_code == 200
                and "oldid=" in cited["url"]
                and cited["quote"].split()[0] in page.text
            )
    assert len(talk.state["messages"]) == 2 * len(CONVERSATION) and lint(trajectory) == []
    asked = len(proxy.asked)
    assert (await replay_async(store, "talk")).equal and len(proxy.asked) == asked
    talk.close()


async def test_a_wiki_in_trouble(
    proxy: Proxy, store: RunStore, idle_environment: LocalEnvironment, impatient: Patience
) -> None:
    """Busy for a second; silent; cut off in the middle of a page; busy for too long. It is talked
    on all along.
    """
    model = Researcher(planner=planned("Krill?"), writer=quotes(("Krill", "live in all oceans")))
    model.answers["searcher"] = does((READ, "Krill"))
    talk = Talk(
        store, idle_environment, model, wiki=proxy.url, user_agent=AGENT, max_remembered_chars=0
    )
    busy, long = (says(503, {"Retry-After": seconds}) for seconds in ("1", "600"))
    troubles = [
        ([busy], OK),
        ([silence], INFRASTRUCTURE),
        ([dies, dies], INFRASTRUCTURE),
        ([], OK),
        ([long], INFRASTRUCTURE),
    ]
    for answers, status in troubles:
        proxy.answers = list(answers)
        impatient.seconds = 0.3 if answers == [silence] else 60.0
        trajectory = await talk("Krill?")
        assert trajectory.tool_calls[-1].status is status, trajectory.tool_calls[-1].content
        assert talk.state["answered"] is (status is OK) and trajectory.status is RunStatus.COMPLETED
        assert_exact(talk.state)
    assert lint(trajectory) == []
    talk.close()


@pytest.mark.slow
async def test_the_small_policy_ends_well(
    wiki_server: WikiServer, store: RunStore, idle_environment: LocalEnvironment
) -> None:
    """The policy was never trained to research. Its output is read as far as possible, and the turn
    ends with a typed outcome.
    """
    limits = {"max_calls": 4, "max_answer_tokens": 48, "temperature": 0.5}
    policy = load_policy("builtin:trained")
    talk = Talk(store, idle_environment, policy, wiki=wiki_server.url, user_agent=AGENT, **limits)
    trajectory = await talk("Who built the Orrin Lighthouse?")
    state = talk.state
    assert trajectory.status in (RunStatus.COMPLETED, RunStatus.TRUNCATED) and trajectory.answer
    assert (
        state["stop_reason"] and state["reason"] and state["messages"][-1].text == trajectory.answer
    )
    assert {call.identity.node for call in trajectory.calls} >= {"plan", "reason"} and len(
        trajectory.calls
    ) <= 4
    assert_exact(state)
    assert lint(trajectory) == []
    assert all(
        call.untrainable is None for call in trajectory.calls if call.identity.node != "plan"
    )
