"""A user's graph that a test kills. Its hosted model and its tools log each use outside the
process.

    python -m tests.support.graphs.external_agent_driver FOLDER MOMENT

MOMENT names the line after which the process dies by `kill -9`; `-` lets it end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import open_store
from hrm_agent.tools import idempotency_key, idempotent
from hrm_agent.trajectory import TaskRef, Trajectory

TASK = TaskRef(id="1", family="test", prompt="Buy it.")


def log(line: str) -> None:
    """Log that a model is asked or a tool runs. In a replay the variables are not set, so that such
    a call would raise.
    """
    with (Path(os.environ["AGENT_FOLDER"]) / "log.txt").open("a") as file:
        file.write(f"{line}\n")
    if line == os.environ["AGENT_MOMENT"]:
        os.kill(os.getpid(), signal.SIGKILL)


def moment(line: str) -> None:
    """Log that a node has come to this line."""
    if "AGENT_FOLDER" in os.environ:
        log(line)


class Hosted(BaseChatModel):
    """Model that answers in a stream or as a whole, and asks twice to pay for one order."""

    name: str = "hosted"

    @property
    def _llm_type(self) -> str:
        return "hosted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=[{"name": one.name} for one in tools], **options)

    def _message(self, messages: Any) -> AIMessage:
        log(f"model {len(messages)}")
        if len(messages) > 1:
            return AIMessage("Bought.")
        calls = [
            {"name": "pay", "args": {"order": "o-1", "note": note}, "id": f"c-{note}"}
            for note in "ab"
        ]
        return AIMessage("I pay.", tool_calls=calls)

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._message(messages))])

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        message = self._message(messages)
        for part in message.text.split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{part} "))
        log("streamed")
        kept = message.model_dump(include={"tool_calls"})
        yield ChatGenerationChunk(message=AIMessageChunk(content="", **kept))


@idempotent("order")
@tool(response_format="content_and_artifact")
def pay(order: str, note: str) -> tuple[str, dict[str, Any]]:
    """Pay for an order."""
    log(f"paid under {idempotency_key()}")
    return f"paid {order}", {"receipt": [1, {"note": note}]}


@tool
def look(x: int) -> int:
    """Look."""
    log(f"look {x}")
    return x + 1


async def ask(state: MessagesState) -> dict[str, Any]:
    model: Any = Hosted(disable_streaming=True).bind_tools([pay])
    answer = await model.ainvoke(state["messages"])
    moment("asked")
    return {"messages": [answer]}


async def stream(state: MessagesState) -> dict[str, Any]:
    chunks: AsyncIterator[Any] = Hosted().astream(state["messages"])
    whole: Any = None
    async for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    moment("read")
    return {"messages": [whole]}


def by_hand(state: MessagesState) -> dict[str, Any]:
    seen = [look.invoke({"x": 1}), look.invoke({"x": 1})]
    moment("looked")
    return {"messages": [AIMessage(str(seen))]}


def pay_again(state: MessagesState) -> dict[str, Any]:
    answer = pay.invoke(
        {"type": "tool_call", "name": "pay", "id": "z", "args": {"order": "o-1", "note": "z"}}
    )
    moment("paid again")
    return {"messages": [AIMessage(answer.text, id="again")]}


graph = (
    StateGraph(MessagesState)
    .add_sequence([ask, ("tools", ToolNode([pay])), stream, by_hand, pay_again])
    .add_edge(START, "ask")
    .compile()
)


async def main(folder: Path) -> Trajectory:
    environment = LocalEnvironment()
    with open_store(folder / "store.db") as store, ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        done = await runner.run(
            Episode(TASK, "thread", graph="tests.support.graphs.external_agent_driver:graph")
        )
    await environment.close()
    return done


if __name__ == "__main__":
    os.environ |= {"AGENT_FOLDER": sys.argv[1], "AGENT_MOMENT": sys.argv[2]}
    ended = asyncio.run(main(Path(sys.argv[1])))
    print(ended.status, ended.error)
