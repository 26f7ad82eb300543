"""Tools of other authors: their errors end their own call and nothing else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime

from hrm_agent.errors import ConfigError, RetrievalError
from hrm_agent.tools.load_tools import as_tools
from hrm_agent.trajectory import ToolStatus
from tests.support.graphs.hanging_tools import LET_GO, TOOLS, call


@pytest.mark.parametrize("hanging", TOOLS, ids=[tool.name for tool in TOOLS])
async def test_a_tool_that_hangs_holds_no_thread_of_the_pool(hanging: BaseTool) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    try:
        answer = await call(hanging, {"query": "tea"}, seconds=0.05)
        assert "no answer within 0.05 s" in answer.text
        assert await asyncio.wait_for(asyncio.to_thread(str, 7), 30) == "7", (
            "the only thread of the pool is free"
        )
    finally:
        LET_GO.set()
        LET_GO.clear()


def test_a_process_ends_whose_tools_hang() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.graphs.hanging_tools"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


class Known(BaseRetriever):
    """Retriever of one document with this metadata."""

    metadata_of: dict[str, Any]

    def _get_relevant_documents(self, query: str, *, run_manager: Any = None) -> list[Document]:
        return [Document("Tea is cheap.", metadata=self.metadata_of)]


@pytest.mark.parametrize(
    ("known", "title", "url", "file"),
    [
        ({"title": "a\ud800"}, "a\ufffd", "", ""),
        ({"source": "a\ud800.md"}, "a\ufffd.md", "", "a\ufffd.md"),
        ({"url": "http://e.test/\ud800", "title": "t"}, "t", "", ""),
    ],
)
async def test_lone_surrogates_in_what_is_known_of_a_document(
    known: dict[str, Any], title: str, url: str, file: str
) -> None:
    answer = await call(Known(metadata_of=known), {"query": "tea"})
    (source,) = answer.artifact["artifact"]
    assert (source["title"], source["url"], source["file"]) == (title, url, file)
    json.dumps(source, ensure_ascii=False).encode()
    answer.text.encode()


@pytest.mark.parametrize("place", ["http://[bad", "//[bad"])
@pytest.mark.parametrize("name", ["source", "url"])
async def test_what_cannot_be_parsed_as_an_address_is_none(name: str, place: str) -> None:
    answer = await call(Known(metadata_of={name: place}), {"query": "tea"})
    (source,) = answer.artifact["artifact"]
    assert (source["title"], source["url"], source["file"]) == ("document", "", "")
    assert answer.status == "success" and "Tea is cheap." in answer.text


class Unread(BaseRetriever):
    """Asks an index that is not there, as IndexRetriever says it."""

    error: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any = None) -> list[Document]:
        raise self.error


async def test_an_index_that_cannot_be_read_is_an_outcome() -> None:
    answer = await call(Unread(error=RetrievalError("There is no index.")), {"query": "tea"})
    assert answer.status == "error" and "There is no index." in answer.text
    assert answer.artifact["status"] == ToolStatus.INFRASTRUCTURE
    with pytest.raises(ConfigError):
        await call(Unread(error=ConfigError("Wrong.")), {"query": "tea"})


@tool
def with_runtime(query: str, runtime: ToolRuntime[Any, Any]) -> str:
    """Asks its node."""
    return f"{query} {runtime.state}"


@tool
def with_state(query: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Asks its node."""
    return f"{query} {state}"


@tool
async def with_store(query: str, store: Annotated[Any, InjectedStore()]) -> str:
    """Asks its node."""
    return f"{query} {store}"


@tool
def without_node(
    query: str, given: Annotated[str, InjectedToolCallId], config: RunnableConfig
) -> str:
    """Asks no node."""
    return f"{query} {bool(given and config)}"


@pytest.mark.parametrize(
    ("given", "name"), [(with_runtime, "runtime"), (with_state, "state"), (with_store, "store")]
)
def test_a_tool_that_a_graph_would_inject_into_is_refused(given: BaseTool, name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=f"The argument '{name}' of the tool 'with_{name}' is required, and only LangGraph",
    ):
        as_tools([given])


async def test_a_tool_is_given_the_id_of_its_call_and_the_config() -> None:
    answer = await call(without_node, {"query": "tea"})
    assert "tea True" in answer.text
