"""Graphs that read the clock, draw ids and choose at random, as users' graphs do."""

from __future__ import annotations

import asyncio
import operator
import os
import random
import secrets
import signal
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import choice, gauss
from typing import Annotated, Any
from uuid import uuid4

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, Send, interrupt

from hrm_agent.draws import drawn

asked: list[str] = []
"""Requests to models in this process, oldest first."""


def log(line: str) -> None:
    """Record a request, also in a file if a test has named a folder. If the test has named this
    line, the process dies.
    """
    asked.append(line)
    if "AGENT_FOLDER" in os.environ:
        with (Path(os.environ["AGENT_FOLDER"]) / "log.txt").open("a") as file:
            file.write(f"{line}\n")
        if line.startswith(os.environ["AGENT_MOMENT"]):
            os.kill(os.getpid(), signal.SIGKILL)


class Model(BaseChatModel):
    """Model whose answers have an id and a time, as a provider's have."""

    @property
    def _llm_type(self) -> str:
        return "drawing"

    def _generate(self, messages: Sequence[AnyMessage], *_: Any, **__: Any) -> ChatResult:
        log(f"model {messages[0].text}")
        answer = AIMessage(f"{uuid.uuid4()} at {time.time()}, {random.random()}")
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def roll(sides: int) -> int:
    """Roll a die."""
    return int(random.random() * 0) + secrets.randbelow(sides)


class Notes(MessagesState):
    notes: Annotated[list[Any], operator.add]


def now_and_ids() -> str:
    return f"{datetime.now(UTC).isoformat()} {time.time()} {uuid4()} {uuid.uuid4().hex}"


async def plan(state: Notes) -> dict[str, Any]:
    prompt = f"plan {now_and_ids()} {choice('abcdef')} {gauss(0, 1)} {random.Random().random()}"
    answer = await Model().ainvoke([SystemMessage(prompt), *state["messages"]])
    return {
        "messages": [answer],
        "notes": [prompt, datetime.now().isoformat(), random.randrange(10**9)],
    }


def tasks(state: Notes) -> list[Send]:
    return [Send("work", {"messages": [], "notes": []}) for _ in range(4 + random.randrange(3))]


async def work(state: Notes) -> dict[str, Any]:
    await asyncio.sleep(random.random() / 100)
    answer = await Model().ainvoke([SystemMessage(f"work {now_and_ids()}")])
    await asyncio.sleep(random.random() / 100)
    return {"notes": [answer.text, time.time_ns(), random.getrandbits(64), str(uuid4())]}


def work_in_a_thread(state: Notes) -> dict[str, Any]:
    time.sleep(random.random() / 100)
    answer = Model().invoke([SystemMessage(f"thread {now_and_ids()}")])
    return {
        "messages": [AIMessage(f"at {datetime.now()}")],
        "notes": [answer.text, random.sample(range(99), 5)],
    }


def use_a_tool(state: Notes) -> dict[str, Any]:
    rolled = roll.invoke({"sides": 10**6})
    return {"notes": [rolled, str(uuid4()), random.random()]}


inner = StateGraph(Notes).add_node("inner", work_in_a_thread).add_edge(START, "inner").compile()
builder = StateGraph(Notes).add_node("plan", plan).add_node("work", work).add_node("inside", inner)
builder.add_node("beside", work_in_a_thread).add_node("tool", use_a_tool).add_edge(START, "plan")
builder.add_conditional_edges("plan", tasks, ["work"]).add_edge("work", "inside").add_edge(
    "work", "beside"
)
graph = builder.add_edge("inside", "tool").compile()
"""Graph with parallel tasks in one event loop and in threads, a subgraph, a router that draws, and
a tool.
"""


def wrapped(state: Notes) -> dict[str, Any]:
    generator = np.random.default_rng()
    return {
        "notes": [
            drawn(lambda: [float(generator.normal()), time.time(), secrets.token_hex(4)]),
            time.time(),
        ]
    }


wraps = StateGraph(Notes).add_node("wrapped", wrapped).add_edge(START, "wrapped").compile()


def cannot_wrap(state: Notes) -> dict[str, Any]:
    return {"notes": [drawn(lambda: (1, 2))]}


wraps_a_tuple = (
    StateGraph(Notes).add_node("wrapped", cannot_wrap).add_edge(START, "wrapped").compile()
)


def flaky(state: Notes) -> dict[str, Any]:
    log(f"attempt {uuid4()}")
    if len([line for line in asked if line.startswith("attempt")]) % 2:
        raise ConnectionError("try again")
    return {"notes": [time.time(), str(uuid4())]}


policy = RetryPolicy(max_attempts=2, initial_interval=0.001, retry_on=ConnectionError)
retries = (
    StateGraph(Notes)
    .add_node("flaky", flaky, retry_policy=policy)
    .add_edge(START, "flaky")
    .compile()
)


def ask(state: Notes) -> dict[str, Any]:
    answer = Model().invoke([SystemMessage(f"ask {now_and_ids()}")])
    said = interrupt(f"{answer.text}?")
    return {"notes": [answer.text, said, time.time(), str(uuid4())]}


asks = StateGraph(Notes).add_node("ask", ask).add_edge(START, "ask").compile()


def seeded(state: Notes) -> dict[str, Any]:
    random.seed(5)
    return {"notes": [random.random(), [random.random() for _ in range(3)]]}


seeds = StateGraph(Notes).add_node("seeded", seeded).add_edge(START, "seeded").compile()


def wait(state: Notes) -> dict[str, Any]:
    """Read the clock far more often than is recorded."""
    end = time.time() + 0.02
    while time.time() < end:
        pass
    return {"notes": ["waited"]}


waits = StateGraph(Notes).add_node("wait", wait).add_edge(START, "wait").compile()


def react(state: MessagesState) -> dict[str, Any]:
    """Ask with the time in the prompt, as LangGraph's template does."""
    prompt = f"You are a helpful assistant.\n\nSystem time: {datetime.now(tz=UTC).isoformat()}"
    if len(state["messages"]) > 1:
        Model().invoke([SystemMessage(prompt), *state["messages"]])
        return {"messages": [AIMessage("done")]}
    calls = [
        {
            "name": "roll",
            "args": {"sides": 6},
            "id": f"call_{uuid4().hex[:24]}",
            "type": "tool_call",
        }
    ]
    Model().invoke([SystemMessage(prompt), *state["messages"]])
    return {"messages": [AIMessage("", tool_calls=calls)]}


def more(state: MessagesState) -> str:
    return "tools" if getattr(state["messages"][-1], "tool_calls", ()) else END


builder = (
    StateGraph(MessagesState).add_node("call_model", react).add_node("tools", ToolNode([roll]))
)
builder.add_edge(START, "call_model").add_conditional_edges("call_model", more).add_edge(
    "tools", "call_model"
)
react_agent = builder.compile()
