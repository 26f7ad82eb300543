"""Sync tools that hang until they are released, and a program whose calls of these tools time
out.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool, create_retriever_tool, tool

from hrm_agent.graphs.research.state import ResearchContext
from hrm_agent.graphs.research.tools import Toolbox
from hrm_agent.tools import run_tool_calls
from hrm_agent.tools.load_tools import as_tools

LET_GO = threading.Event()


@tool
def hang(query: str) -> str:
    """Hangs."""
    LET_GO.wait()
    return query


class Hanging(BaseRetriever):
    """Hangs."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any = None) -> list[Document]:
        LET_GO.wait()
        return [Document(query)]


class HangingTool(BaseTool):
    """Tool that hangs, written as a class."""

    name: str = "hanging_tool"
    description: str = "Hangs."

    def _run(self, query: str) -> str:
        LET_GO.wait()
        return query


TOOLS = as_tools(
    [hang, Hanging(), HangingTool(), create_retriever_tool(Hanging(), "made", "Hangs.")]
)


async def call(given: Any, arguments: Any, seconds: float = 60.0) -> ToolMessage:
    """Call a user's tool as the research graph does."""
    (asked,) = as_tools([given])
    tools = Toolbox(ResearchContext(max_tool_seconds=seconds), [asked]).tools("tea", 1, ())
    message = AIMessage("", tool_calls=[{"name": asked.name, "args": arguments, "id": uuid4().hex}])
    (answer,) = await run_tool_calls(message, tools, {"metadata": {"thread_id": "t"}})
    return answer


async def main() -> None:
    """Call each tool, and let each call time out. The program ends although the tools hang."""
    for hanging in TOOLS:
        answer = await call(hanging, {"query": "tea"}, seconds=0.05)
        assert "no answer within" in answer.text, answer
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
