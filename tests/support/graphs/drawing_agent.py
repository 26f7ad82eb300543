"""A graph whose node writes the time, an id and a die into its answer."""

from __future__ import annotations

import random
from datetime import datetime
from uuid import uuid4

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict


class Drawn(TypedDict):
    input: str
    output: str


def draw(state: Drawn) -> dict[str, str]:
    return {"output": f"{datetime.now().isoformat()} {uuid4()} {random.random()}"}


graph = StateGraph(Drawn).add_node("draw", draw).add_edge(START, "draw").compile()
