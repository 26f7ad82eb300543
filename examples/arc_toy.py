r"""ARC-like puzzle: the hierarchical agent as one node of a custom graph.

    hrm-agent run invert --graph examples.arc_toy:graph --policy scripted:examples/arc_toy.jsonl
    hrm-agent eval --graph examples.arc_toy:graph --policy scripted:examples/arc_toy.jsonl --count 1 \
        --tasks examples.arc_toy:tasks --rewards examples.arc_toy:rubric --out runs/arc_toy

The prompt of a task is the name of a puzzle. `pose` puts the puzzle into words. `reason` is the
built-in graph, which plans, solves by code in the sandbox, criticises and writes the answer. The
steps and calls of this subgraph are recorded like all others. The answer of a task is a grid, and
the rubric compares the agent's grid with it. Each command takes some 5 seconds.

The script has the answers of a model that can solve the puzzle `invert`. The policies that come
with the package know word problems but no grids, and end with a wrong answer.
`benchmarks/arc_policy.py` trains a policy for such grids.
"""

from __future__ import annotations

import json
import re
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.graphs.reasoning.agent import ReasoningContext
from hrm_agent.graphs.reasoning.agent import graph as reason
from hrm_agent.rewards import Rubric

Grid = list[list[int]]

PUZZLES: dict[str, tuple[list[tuple[Grid, Grid]], Grid, Grid]] = {
    "invert": (
        [([[0, 0], [1, 0]], [[1, 1], [0, 1]]), ([[0, 1], [0, 0]], [[1, 0], [1, 1]])],
        [[0, 0], [0, 1]],
        [[1, 1], [1, 0]],
    ),
    "mirror": (
        [([[1, 2, 3]], [[3, 2, 1]]), ([[4, 0], [5, 6]], [[0, 4], [6, 5]])],
        [[7, 8], [0, 9]],
        [[8, 7], [9, 0]],
    ),
}
"""Name of a puzzle -> pairs of grids that show a rule, the grid to which the rule is applied, and
the result.
"""


def pose(state: MessagesState) -> dict[str, Any]:
    pairs, given, _ = PUZZLES[state["messages"][-1].text.strip()]
    shown = "\n".join(f"{json.dumps(before)} -> {json.dumps(after)}" for before, after in pairs)
    text = (
        f"One rule makes the right grid of the left one:\n{shown}\nApply it to {json.dumps(given)}."
    )
    return {
        "messages": [
            HumanMessage(f"{text} Return exactly: 'Answer: <grid>', a list of lists of integers.")
        ]
    }


def correct(text: str, reference: str) -> bool:
    found = re.search(r"Answer: *(\[\[[\d, \[\]]*\]\])", text)
    return found is not None and found[1].replace(" ", "") == reference.replace(" ", "")


tasks = [
    {"id": name, "question": name, "answer": json.dumps(made)}
    for name, (_, _, made) in PUZZLES.items()
]
rubric = Rubric([correct])

builder = StateGraph(MessagesState, context_schema=ReasoningContext)
builder.add_node("pose", pose)
builder.add_node("reason", reason)
builder.add_edge(START, "pose")
builder.add_edge("pose", "reason")
graph = builder.compile()
