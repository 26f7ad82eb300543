"""Users' own tools in the research graph: recorded, limited, quoted and cited like a wiki's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts.prompts import SEARCHER_PROMPT
from hrm_agent.graphs.research.agent import build_research, graph
from hrm_agent.graphs.research.state import ResearchContext
from hrm_agent.models import using_policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.execution.run_context import run_context
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.tools import python_stateless
from hrm_agent.trajectory import ToolStatus
from hrm_agent.trajectory.lint import lint
from tests.support.graphs import own_tools
from tests.support.graphs.research_scripts import (
    AGENT,
    Researcher,
    Talk,
    assert_exact,
    planned,
    tool,
)
from tests.support.graphs.small_wiki import SmallWiki

MODULE = "tests.support.graphs.own_tools"
held = build_research(tools=[own_tools.price_list, own_tools.shelf])


@pytest.fixture
def talk_to(store: RunStore, idle_environment: LocalEnvironment) -> Iterator[Any]:
    opened: list[Talk] = []

    def talk_to(script: Any, **context: Any) -> Talk:
        own_tools.CALLS.clear()
        opened.append(Talk(store, idle_environment, script, **context))
        return opened[-1]

    yield talk_to
    for talk in opened:
        talk.close()


def calls(*steps: str) -> Any:
    """A searcher that makes these calls, one after the other."""
    return lambda messages: [*steps, "Looked."][
        min(sum(m.type == "ai" for m in messages), len(steps))
    ]


def shop(
    *steps: str, writer: str = 'It costs [S1: "The price of tea is 3.50 pounds"].'
) -> Researcher:
    return Researcher(planner=planned("The price of tea?"), searcher=calls(*steps), writer=writer)


def offered(talk: Talk) -> set[tuple[str, str]]:
    """Names and descriptions of the tools, as the searcher's system turn lists them."""
    codec = talk.engine.codec
    (prompt,) = {
        codec.decode(request.prompt_ids).partition("<|im_end|>")[0]
        for request in talk.engine.requests
        if request.messages[0].text == SEARCHER_PROMPT
    }
    return set(re.findall(r'"name": "(\w+)", "description": "([^"]*)"', prompt))


TEA = tool("price_list", article="tea")


async def test_a_tool_by_name_is_offered_recorded_quoted_and_cited(
    talk_to: Any, store: RunStore
) -> None:
    talk = talk_to(shop(TEA), tools=f"{MODULE}:price_list")
    trajectory = await talk("What does tea cost?")
    assert (
        trajectory.answer
        == "It costs [1].\n\nSources:\n[1] price_list(article='tea'), 0-31: \"The price of tea is"
        ' 3.50 pounds"'
    )
    assert_exact(talk.state)
    (source,) = talk.state["sources"].values()
    assert (
        source["text"] == "The price of tea is 3.50 pounds a packet."
        and len(source["revision"]) == 16
    )
    (call,) = trajectory.tool_calls
    assert (call.name, call.arguments, call.status) == (
        "price_list",
        {"article": "tea"},
        ToolStatus.OK,
    )
    assert call.content.startswith("<source S1 ") and source["text"] in call.content, (
        "as the model was shown it"
    )
    assert offered(talk) == {("price_list", "Prices of a shop, by article.")}
    assert own_tools.CALLS == ["tea"] and lint(trajectory) == []
    assert (await replay_async(store, "talk")).equal and own_tools.CALLS == ["tea"], (
        "a replay runs no tool"
    )


async def test_documents_of_a_retriever_are_a_source_each(talk_to: Any, store: RunStore) -> None:
    writer = (
        'So [S1: "Page 1 of the catalogue"; S2: "Page 2 of the catalogue"; S3: "Page 3 of the'
        ' catalogue"].'
    )
    talk = talk_to(shop(tool("Shelf", query="green tea"), writer=writer), tools=[f"{MODULE}:both"])
    trajectory = await talk("Tea?")
    sources = talk.state["sources"]
    assert [
        (s["title"], s["url"], s["file"], s["offset"])
        for s in (sources[f"S{n}"] for n in range(1, 6))
    ] == [
        ("A", "https://shop.test/a", "", 0),
        ("/data/catalogue.pdf, page 2", "", "/data/catalogue.pdf", 0),
        ("catalogue.pdf, page iii", "", "catalogue.pdf", 40),
        ("document", "", "", 0),
        ("document", "", "", 0),
    ]
    assert "2 more are not shown." in trajectory.tool_calls[0].content
    assert "[3] catalogue.pdf, page iii, 40-63: " in (trajectory.answer or "")
    assert_exact(talk.state)
    assert (await replay_async(store, "talk")).equal and own_tools.CALLS == ["green tea"]


async def test_tools_beside_a_wiki(talk_to: Any) -> None:
    wiki = SmallWiki()
    writer = 'Long [S1: "a length of 29.9 m"], cheap [S6: "The price of tea is 3.50"].'
    steps = tool("wiki_page", title="Blue whale"), TEA
    talk = talk_to(
        shop(*steps, writer=writer), wiki=wiki.url, user_agent=AGENT, tools=f"{MODULE}:price_list"
    )
    trajectory = await talk("Both?")
    wiki.close()
    assert [call.name for call in trajectory.tool_calls] == ["wiki_page", "price_list"]
    assert len(talk.state["citations"]) == 2 and {"S1", "S2"} == talk.state["sources"].keys()


OUTCOMES = [
    ("denied", tool("price_list", article="gold"), ToolStatus.DENIED, "Gold is not for sale."),
    ("error", tool("price_list", article="lead"), ToolStatus.ERROR, "KeyError: 'leadlead"),
    ("timeout", tool("slow", article="tea"), ToolStatus.TIMEOUT, "no answer within 0.05 s"),
    (
        "invalid",
        tool("price_list", thing="tea"),
        ToolStatus.INVALID_CALL,
        "article: Field required",
    ),
    ("nothing", tool("price_list", article="nothing"), ToolStatus.OK, "Nothing was found."),
]


@pytest.mark.parametrize(
    ("name", "step", "status", "content"), OUTCOMES, ids=[each[0] for each in OUTCOMES]
)
async def test_what_goes_wrong_is_a_typed_outcome(
    name: str, step: str, status: ToolStatus, content: str, talk_to: Any, store: RunStore
) -> None:
    names = [f"{MODULE}:price_list", f"{MODULE}:slow"]
    talk = talk_to(
        shop(step, writer="NOT ANSWERED"),
        tools=names,
        max_tool_seconds=0.05 if name == "timeout" else 60,
    )
    trajectory = await talk("Tea?")
    (call,) = trajectory.tool_calls
    assert call.status is status and content in call.content and len(call.content) < 2100
    assert (
        talk.state["stop_reason"] == "no_answer"
        and talk.state["sources"] == {}
        and lint(trajectory) == []
    )
    assert (await replay_async(store, "talk")).equal


async def test_calls_are_limited(talk_to: Any) -> None:
    talk = talk_to(shop(TEA, TEA, TEA + TEA), tools=f"{MODULE}:price_list", max_tool_calls=2)
    trajectory = await talk("Tea?")
    assert [call.status for call in trajectory.tool_calls] == [ToolStatus.OK] * 2 + [
        ToolStatus.DENIED
    ] * 2
    assert own_tools.CALLS == ["tea", "tea"] and len(talk.state["sources"]) == 1, (
        "one text is one source"
    )


async def test_what_a_tool_says_stays_in_its_frame(talk_to: Any) -> None:
    talk = talk_to(
        shop(tool("price_list", article="hostile"), writer='It says [S1: "Say 666. "].'),
        tools=f"{MODULE}:price_list",
    )
    trajectory = await talk("Tea?")
    shown = trajectory.tool_calls[0].content
    opened = shown.partition("<source ")[2].partition(">")[0]
    assert shown.count(f"</source {opened}>") == 1 and shown.endswith(f"</source {opened}>")
    assert opened not in own_tools.HOSTILE and talk.state["answered"] is False


async def test_tools_that_a_graph_holds(talk_to: Any, store: RunStore) -> None:
    talk = talk_to(shop(TEA))
    talk.graph = f"{__name__}:held"
    trajectory = await talk("Tea?")
    assert talk.state["answered"] and lint(trajectory) == []
    assert [name for name, _ in sorted(offered(talk))] == ["Shelf", "price_list"]
    assert (await replay_async(store, "talk")).equal and own_tools.CALLS == ["tea"]


async def test_without_a_record() -> None:
    own = build_research(tools=[own_tools.price_list]).copy(
        update={"checkpointer": InMemorySaver()}
    )
    given: Any = {"messages": [HumanMessage("Tea?")]}
    with ScriptedEngine(shop(TEA)) as engine, using_policy(engine):
        state = await own.ainvoke(
            given, {"configurable": {"thread_id": "t"}}, context=ResearchContext(max_calls=9)
        )
    assert state["answered"]
    assert_exact(state)


async def test_a_tool_that_records_itself_is_recorded_once(talk_to: Any, store: RunStore) -> None:
    talk = talk_to(shop(tool("python_stateless", code="print(6 * 7)"), writer="NOT ANSWERED"))
    talk.graph = f"{__name__}:calculating"
    trajectory = await talk("Tea?")
    (call,) = trajectory.tool_calls
    assert call.content.strip() == "42" and talk.state["sources"] == {} and lint(trajectory) == []


calculating = build_research(tools=[python_stateless])


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("price_list", "'price_list' names no tool. Name it as package.module:attribute"),
        ("no.such.module:tool", "does not import: ModuleNotFoundError"),
        ("./none.py:tool", "There is no file none.py in "),
        (f"{MODULE}:price", f"{MODULE} has no 'price'. Tools found there: price_list, slow, shelf"),
        (f"{MODULE}:function", "A function is neither a LangChain tool nor a retriever. Decorate"),
        (f"{MODULE}:number", "A int is neither"),
        (f"{MODULE}:twice", "two tools named 'price_list'"),
        ([f"{MODULE}:both", f"{MODULE}:price_list"], "two tools named 'price_list'"),
        ([7], "7 names no tool"),
    ],
)
def test_a_tool_that_is_none_is_told_in_a_line(tools: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_context(graph, {"tools": tools}, "t")
    assert message in str(caught.value) and "\n" not in str(caught.value)


async def test_no_tool_takes_the_name_of_another(
    talk_to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from langchain_core.tools import tool\n"
        "@tool\ndef wiki_page(title: str) -> str:\n    '''Mine.'''\n    return title\n"
    )
    monkeypatch.chdir(tmp_path)
    talk = talk_to(
        shop(TEA), wiki="http://127.0.0.1:9/api.php", user_agent=AGENT, tools="./mine.py:wiki_page"
    )
    with pytest.raises(ConfigError, match="two tools named 'wiki_page'"):
        await talk("Tea?")
    with pytest.raises(ConfigError, match="two tools named"):
        build_research(tools=own_tools.twice)
