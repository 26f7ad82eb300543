r"""Custom role: a checker of units after the solver, which sends the answer back once.

    hrm-agent run "A tank of 2 cubic metres leaks 150 L. How many liters are left?" \
        --graph examples.own_role:graph --policy scripted:examples/own_role.jsonl

A role is a system turn and the form of its answers. `ask_role` finds the JSON in an answer, even
with text around it. If the answer cannot be parsed, it asks once more, and if that fails, too, the
value is None. The graph decides what None means: in this example the answer is then accepted
without a check.

The script has the answers of a model that first makes an error and is then corrected. The policies
that come with the package were not trained for this role: they solve word problems of certain
kinds, and their answers as a checker cannot be parsed. The command takes some 3 seconds.
"""

from __future__ import annotations

from typing import Any, NotRequired

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.graphs.parts.prompts import SOLVER_PROMPT, solver_request
from hrm_agent.graphs.parts.roles import Role, ask_role
from hrm_agent.graphs.tool_loop import build_tool_loop

MAX_TRIES = 2


class Verdict(BaseModel):
    """Answer of the checker."""

    fits: bool
    complaint: str = ""


UNIT_CHECKER = Role(
    "unit_checker",
    "You check units. Is the answer in the unit that the problem asks for? "
    'Answer with JSON only: {"fits": true or false, "complaint": what is wrong}',
    Verdict,
    temperature=0.0,
)


class State(MessagesState):
    draft: NotRequired[str]
    complaint: NotRequired[str]
    tries: NotRequired[int]


solver = build_tool_loop(SOLVER_PROMPT)


async def solve(state: State) -> dict[str, Any]:
    problem = state["messages"][-1].text
    request = solver_request(problem, problem, {}, state.get("complaint", ""))
    end = await solver.ainvoke({"messages": [HumanMessage(request)]})
    return {"draft": end["messages"][-1].text, "tries": state.get("tries", 0) + 1}


async def check(state: State) -> Command[Any]:
    draft = state.get("draft", "")
    said = await ask_role(
        UNIT_CHECKER, f"Problem: {state['messages'][-1].text}\nAnswer: {final_answer(draft)}"
    )
    if said.value is not None and not said.value.fits and state.get("tries", 0) < MAX_TRIES:
        return Command(goto="solve", update={"complaint": said.value.complaint})
    return Command(goto=END, update={"messages": [AIMessage(draft)]})


builder = StateGraph(State)
builder.add_node("solve", solve)
builder.add_node("check", check, destinations=("solve", END))
builder.add_edge(START, "solve")
builder.add_edge("solve", "check")
graph = builder.compile()
