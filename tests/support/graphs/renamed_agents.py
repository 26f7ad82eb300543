"""Users' graphs whose ids come from a source that no recording reaches, so that a replay has other
ids.
"""

from __future__ import annotations

import operator
import os
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.models import policy

mixed_up = False
"""True if the graph makes a mistake, as a test wants it: one ticket's id stands where the other's
belongs.
"""

offered = [{"name": "one"}]
"""Tools that a model may choose from."""


def drawn_id() -> str:
    """Id from the system's own random source, as a compiled library draws it."""
    return str(uuid.UUID(bytes=os.getrandom(16), version=4))


class Tickets(MessagesState):
    ids: Annotated[list[str], operator.add]
    waited: float
    rows: list[dict[str, Any]]


class Quoting(BaseChatModel):
    """Model that repeats the first message of its request."""

    @property
    def _llm_type(self) -> str:
        return "quoting"

    def _generate(self, messages: Sequence[AnyMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(f"Seen: {messages[0].text}"))]
        )


@tool
def look_up(ticket: str) -> str:
    """Look up a ticket."""
    return f"ticket {ticket} is open"


def open_tickets(state: Tickets) -> dict[str, Any]:
    return {"ids": [drawn_id(), drawn_id()]}


def request(state: Tickets) -> list[AnyMessage]:
    first, second = state["ids"][:2]
    last = first if mixed_up else second
    return [SystemMessage(f"tickets {first} and {last}"), *state["messages"]]


def ask(state: Tickets) -> dict[str, Any]:
    answer = Quoting().invoke(request(state))
    return {"messages": [answer, AIMessage(look_up.invoke({"ticket": state["ids"][0]}))]}


async def ask_policy(state: Tickets) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke(request(state))]}


def again(state: Tickets) -> dict[str, Any]:
    answer = Quoting().invoke([*request(state), HumanMessage("again")])
    return {"messages": [answer]}


def chain(*nodes: Any) -> Any:
    return StateGraph(Tickets).add_sequence(nodes).add_edge(START, nodes[0].__name__).compile()


tickets = chain(open_tickets, ask, again)
policy_tickets = chain(open_tickets, ask_policy, again)


def measure(state: Tickets) -> dict[str, Any]:
    """Return clock readings, which no replay can restore."""
    rows = [{"name": name, "took": time.perf_counter_ns()} for name in "ab"]
    took = AIMessage("done", id="done", additional_kwargs={"took": time.monotonic_ns()})
    return {"waited": time.monotonic(), "rows": rows, "messages": [took]}


def report(state: Tickets) -> dict[str, Any]:
    prompt = f"It took {time.perf_counter_ns()}"
    look_up.invoke({"ticket": str(time.perf_counter_ns())})
    return {"messages": [Quoting().invoke([SystemMessage("Report."), HumanMessage(prompt)])]}


def offer(state: Tickets) -> dict[str, Any]:
    return {"messages": [Quoting().bind(tools=offered).invoke([SystemMessage("Choose.")])]}


offers = chain(offer)
measures = chain(measure)
reports = chain(report)
