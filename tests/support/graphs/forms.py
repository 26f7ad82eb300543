"""Graphs in every form that langgraph.json allows, with states of several shapes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

opened: list[str] = []
"""Events of the contexts around graphs, oldest first."""


def _answering(text: str) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node(
        "answer", lambda state: {"messages": [AIMessage(f"{text} to {state['messages'][-1].text}")]}
    )
    builder.add_edge(START, "answer")
    return builder.compile()


def plain() -> Any:
    return _answering("plain")


def configured(config: RunnableConfig) -> Any:
    return _answering(config["configurable"]["greeting"])


async def later(config: RunnableConfig) -> Any:
    return _answering(config.get("configurable", {}).get("greeting", "later"))


@asynccontextmanager
async def around(config: RunnableConfig) -> AsyncGenerator[Any]:
    opened.append("open")
    yield _answering("around")
    opened.append("close")


@contextmanager
def around_sync() -> Generator[Any]:
    yield _answering("around_sync")


def two(one: str, other: str) -> Any:
    return None


class Report(TypedDict, total=False):
    topic: dict[str, Any]
    sections: list[dict[str, str]]
    reading: str


class Options(BaseModel):
    """Read by the nodes as `config["configurable"]`,
    though the graph declares it as its context.
    """

    allow_clarification: bool = True


def _write(state: Report, config: RunnableConfig) -> dict[str, Any]:
    given = config["configurable"]
    said = (
        f"{state['topic']['name']} at {state['topic']['depth']}, clarifying"
        f" {given.get('allow_clarification', True)}"
    )
    return {"sections": [{"title": "First", "text": said}], "reading": str(given.get("reading"))}


_report = StateGraph(Report, context_schema=Options)
_report.add_node("write", _write)
_report.add_edge(START, "write")
report = _report.compile()


@entrypoint()
def workflow(numbers: list[int]) -> int:
    return sum(numbers)
