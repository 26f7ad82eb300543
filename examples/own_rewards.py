"""Agent that answers "Final answer: 226", scored and trained by custom rewards.

    hrm-agent eval --graph examples.own_rewards:graph --rewards examples.own_rewards:rubric --count 64
    hrm-agent train rl --graph examples.own_rewards:graph --rewards examples.own_rewards:rubric --steps 20

The agent writes its answers in a custom format, so the tasks' verifier, which reads a box, would
reject all of them. The rubric reads the last number instead, subtracts a little for each Python
call that failed, and adds a little if Python was called at all. The answer alone decides which
rollouts count as correct, and training maximises the weighted sum of the rewards. On two cores the
evaluation takes some 15 seconds, and the training some minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.graphs import tool_loop
from hrm_agent.graphs.tool_loop import Budget, LoopState
from hrm_agent.rewards import Reward, Rubric, answer_is
from hrm_agent.trajectory import ToolCall

__all__ = ["graph", "rubric"]


def say(state: LoopState) -> LoopState:
    """Write the answer in the format that this agent's users want."""
    found = final_answer(state["messages"][-1].text)
    return {"messages": [AIMessage(f"Final answer: {found}" if found else "I found no answer.")]}


def few_failures(tool_calls: Sequence[ToolCall]) -> float:
    """Penalty for failed calls: 0 less the number of failed calls."""
    return -float(
        sum(call.status is not None and call.status.is_policy_failure for call in tool_calls)
    )


def uses_python(tool_calls: Sequence[ToolCall]) -> bool:
    """True if Python was called at all."""
    return bool(tool_calls)


builder = StateGraph(LoopState, context_schema=Budget)
builder.add_node("solve", tool_loop.graph)
builder.add_node("say", say)
builder.add_edge(START, "solve")
builder.add_edge("solve", "say")
builder.add_edge("say", END)
graph = builder.compile()

rubric = Rubric(
    [answer_is("last_number"), Reward(few_failures, weight=0.1), Reward(uses_python, weight=0.1)],
    outcome="correct",
)
