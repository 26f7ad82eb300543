"""Tools of a real MCP server: over standard input and output, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import uvicorn
from langchain_core.messages import AIMessage

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import open_store
from hrm_agent.tools import run_tool_calls
from hrm_agent.tools.mcp import mcp_tools
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.research_scripts import Researcher, Talk, assert_exact, planned, tool

COMMAND = f"{sys.executable} -m tests.support.tools.mcp_server"
RUDE = f"{sys.executable} -m tests.support.tools.rude_mcp_server"
LONG = "Lies.\n" * 1000
PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _from_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)


async def answered(tools: Any, *calls: tuple[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Status and text of each call."""
    asked = [{"name": name, "args": args, "id": f"c{n}"} for n, (name, args) in enumerate(calls)]
    thread = {"thread_id": str(uuid4())}  # another test's calls are on record, in memory
    messages = await run_tool_calls(AIMessage("", tool_calls=asked), tools, {"metadata": thread})
    return [(message.artifact["status"], message.text) for message in messages]


@pytest.mark.whole
async def test_the_tools_of_a_command_are_listed_once_and_called(tmp_path: Path) -> None:
    started, listing = tmp_path / "started", tmp_path / "tools.json"
    command = f"{COMMAND} {started}"
    tools = mcp_tools(command, listing=listing)
    assert [tool.name for tool in tools] == ["stock", "lies"]
    assert (
        tools[0].description == "How much of an article is in stock."
        and len(tools[1].description) <= 1000
    )
    assert await answered(tools, ("stock", {"article": "tea"}), ("stock", {"article": "gold"})) == [
        ("ok", "There are 12 packets of tea in stock."),
        ("error", "Error executing tool stock: Gold is not in stock."),
    ]
    times = started.read_text().count("started")
    assert times == 3, "for the list, and for each call"
    (again,) = mcp_tools(command, only=["lies"], listing=listing)
    assert again.name == "lies" and started.read_text().count("started") == times
    with pytest.raises(ConfigError, match=r"no tool 'stok'\. Did you mean 'stock'"):
        mcp_tools(command, only=["stok"], listing=listing)


@pytest.mark.whole
async def test_a_server_that_dies_is_nobodys_fault(tmp_path: Path) -> None:
    listing = tmp_path / "tools.json"
    tools = mcp_tools(COMMAND, listing=listing)
    ((status, text),) = await answered(tools, ("stock", {"article": "exit"}))
    assert status == "infrastructure" and text.startswith("The MCP server failed: ")
    gone = mcp_tools("/no/such/command", listing=listing)
    ((status, text),) = await answered(gone, ("stock", {"article": "tea"}))
    assert status == "infrastructure" and "FileNotFoundError" in text


@pytest.mark.whole
async def test_whose_fault_a_failure_is() -> None:
    """An invalid answer is the server's failure. Arguments that it refuses are the call's."""
    tools = mcp_tools(RUDE)
    found = await answered(
        tools, *(("answer", {"how": how}) for how in ("malformed", "invalid", "broken"))
    )
    assert [status for status, _ in found] == ["infrastructure", "error", "infrastructure"]
    assert "There is no such day." in found[1][1] and "The disk is gone." in found[2][1]


@pytest.mark.whole
def test_what_a_server_says_of_arguments_is_bounded_as_well() -> None:
    (found,) = mcp_tools(RUDE)
    schema: Any = found.args_schema
    for name in ("how", "default"):
        told = schema["properties"][name]["description"]
        assert told.startswith("Lies. Lies.") and len(told) == 1000
    inner = schema["properties"]["description"]["anyOf"][0]
    assert len(inner["title"]) == 1000 and inner["default"] == {"description": LONG}, (
        "a value is no description"
    )


@pytest.mark.parametrize("arguments", [None, "-m server", [3]])
def test_a_connection_whose_arguments_are_no_words_is_refused(arguments: Any) -> None:
    with pytest.raises(ConfigError, match="args"):
        mcp_tools({"transport": "stdio", "command": "/no/such/command", "args": arguments})


def test_a_server_that_does_not_answer_is_told_in_a_line(tmp_path: Path) -> None:
    silent = f"{sys.executable} -c 'import time; time.sleep(600)'"
    for server, seconds in (
        ("/no/such/command", 30.0),
        (silent, 0.5),
        ("http://127.0.0.1:9/mcp", 30.0),
    ):
        with pytest.raises(ConfigError, match=r"The MCP server .* does not answer") as caught:
            mcp_tools(server, seconds=seconds)
        assert "\n" not in str(caught.value)
    for server in ("", "python 'never closed"):
        with pytest.raises(ConfigError, match="is not a command"):
            mcp_tools(server)
    (tmp_path / "tools.json").write_text(json.dumps({"no": "list"}))
    with pytest.raises(ConfigError, match="does not contain a list of tools"):
        mcp_tools(COMMAND, listing=tmp_path / "tools.json")


def test_without_the_package_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['langchain_mcp_adapters'] = None\n"
        "from hrm_agent.tools.mcp import mcp_tools\nmcp_tools('x')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=PROJECT, check=False
    )
    assert "[mcp]'" in done.stderr.splitlines()[-1]


@pytest.fixture
def url() -> Iterator[str]:
    """URL of the test's MCP server over HTTP. A connection waits at its socket until the server is
    up.
    """
    from tests.support.tools.mcp_server import server

    with socket.create_server(("127.0.0.1", 0)) as listening:
        served = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error"))
        thread = threading.Thread(target=served.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        served.should_exit = True
        thread.join()


async def test_the_tools_of_a_url(url: str) -> None:
    tools = await asyncio.to_thread(mcp_tools, url)
    found = await answered(tools, ("stock", {"article": "tea"}), ("lies", {}))
    assert found[0] == ("ok", "There are 12 packets of tea in stock.") and "666" in found[1][1]


@pytest.mark.whole
async def test_a_research_cites_what_a_server_says_and_is_replayed_without_it(
    tmp_path: Path,
) -> None:
    started = tmp_path / "started"
    (tmp_path / "shop.py").write_text(
        "from hrm_agent.tools.mcp import mcp_tools\n"
        f"TOOLS = mcp_tools({f'{COMMAND} {started}'!r}, listing={str(tmp_path / 'tools.json')!r})\n"
    )
    call = tool("stock", article="tea")
    model = Researcher(
        planner=planned("How much tea?"),
        searcher=lambda messages: call if messages[-1].type == "human" else "Looked.",
        writer='There is [S1: "12 packets of tea in stock"].',
    )
    with open_store(tmp_path / "store.db") as store:
        talk = Talk(store, LocalEnvironment(slots=1), model, tools=f"{tmp_path / 'shop.py'}:TOOLS")
        trajectory = await talk("How much tea?")
        talk.close()
        assert (trajectory.answer or "").startswith("There is [1].") and lint(trajectory) == []
        assert_exact(talk.state)
        times = started.read_text()
        assert (await replay_async(store, "talk")).equal and started.read_text() == times
