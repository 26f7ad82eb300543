"""Driver of smolagents' agents for the same conversations, run by the interpreter of a virtual
environment that has it.

`tool_loop` is a `ToolCallingAgent` with the tool. `reasoning` is a plain Python program with such
agents: planner, two solvers one after the other, critic, synthesizer. Each ends with a call of
`final_answer`. The scripted model of smolagents costs next to nothing (our engine encodes prompts
and decodes answers), and its record is a list in memory. Standard library and smolagents only.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from smolagents import ChatMessage, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import LogLevel


@tool
def python(code: str) -> str:
    """Run Python code and return the value of its last expression.

    Args:
        code: Python source.

    """
    return VALUE


VALUE = "226"
CODE = {"code": "hens, cows = 23, 45\n2 * hens + 4 * cows"}


class Scripted(Model):
    """Model that calls the tool a fixed number of times, then answers."""

    def __init__(self, tool_calls: int, answer: str) -> None:
        super().__init__(model_id="scripted")
        self.left, self.answer, self.calls = tool_calls, answer, 0

    def generate(self, *args: Any, **kwargs: Any) -> ChatMessage:
        self.calls += 1
        self.left -= 1
        name, given = (
            ("python", CODE) if self.left >= 0 else ("final_answer", {"answer": self.answer})
        )
        function = ChatMessageToolCallFunction(name=name, arguments=dict(given))
        call = ChatMessageToolCall(function=function, id=f"call-{self.calls}", type="function")
        return ChatMessage(MessageRole.ASSISTANT, "I compute it with python.", tool_calls=[call])


def ask(problem: str, tool_calls: int, answer: str) -> tuple[str, int]:
    model = Scripted(tool_calls, answer)
    agent = ToolCallingAgent([python] if tool_calls else [], model, verbosity_level=LogLevel.OFF)
    return str(agent.run(problem)), model.calls


def converse(agent: str, given: dict[str, str]) -> int:
    """Run one conversation and return the number of its model calls."""
    problem, answer = given["problem"], given["answer"]
    if agent == "tool_loop":
        said, calls = ask(problem, 3, answer)
        assert said == answer
        return calls
    plan, calls = ask(f"Plan: {problem}", 0, given["plan"])
    results = {}
    for subgoal in json.loads(plan)["subgoals"]:
        results[subgoal["name"]], more = ask(f"{problem}\nSubgoal: {subgoal['goal']}", 1, VALUE)
        calls += more
    for role in ("Judge", "Write the answer"):
        said, more = ask(f"{role}: {problem}\n{results}", 0, answer)
        calls += more
    assert said == answer
    return calls


def main() -> None:
    given = json.load(sys.stdin)
    for agent in given["agents"]:
        converse(agent, given)
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        calls = sum(converse(agent, given) for _ in range(given["conversations"]))
        spent = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({"agent": agent, "calls": calls, **spent}), flush=True)


if __name__ == "__main__":
    main()
