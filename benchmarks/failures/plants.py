r"""Runs that fail in a known way, by scripted policies in real graphs with a real sandbox.

Each plant is one run with the class that it should get. The plants were written from the names of
the classes, before there were rules.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from hrm_agent.environment import Environment, ExecutionResult, Submission
from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
)
from hrm_agent.models import policy
from hrm_agent.training.tasks import Verifier
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import ToolStatus

__all__ = ["COUNT", "LostEnvironment", "Plant", "plants"]

COUNT = 12
"""Number of plants of each class."""
Script = Sequence[str] | Callable[[Sequence[BaseMessage]], str]


@dataclass(frozen=True)
class Plant:
    """One run."""

    planted: str
    """Class of the failure; `right` for a right run, `unexplained` if no rule can say the cause."""
    script: Script
    """Replies of the policy."""
    prompt: str
    """Task."""
    answer: str
    """Reference answer."""
    graph: Any = "tool_loop"
    """Graph of the run."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Run context."""
    verify: Verifier | None = None
    """Verifier (None: the exact verifier of the answer)."""
    lost: bool = False
    """True if the sandbox loses each call."""

    @property
    def verifier(self) -> Verifier:
        return self.verify or exact_verifier(self.answer)


class LostEnvironment(Environment):
    """Environment of a machine that fails."""

    @property
    def isolation(self) -> str:
        return "L0"

    async def run(self, submission: Submission) -> ExecutionResult:
        del submission
        return ExecutionResult(ToolStatus.INFRASTRUCTURE, stderr="the worker is gone")

    async def fork_session(self, source: str, target: str, *, run: str = "") -> None: ...

    async def end_session(self, session: str, *, run: str = "") -> None: ...

    async def metrics(self) -> str:
        return ""

    async def close(self) -> None: ...


def call(code: str, tool_name: str = "python", /, **arguments: Any) -> str:
    """Tool call, as text of the policy."""
    given = arguments or {"code": code}
    asked = json.dumps({"name": tool_name, "arguments": given})
    return f"<reason>compute</reason><tool_call>{asked}</tool_call>"


def boxed(value: object) -> str:
    return f"<reason>done</reason><answer>\\boxed{{{value}}}</answer>"


class Roles:
    """Scripted roles of the hierarchical graph. A list is answered in turn, its last item again."""

    def __init__(self, plan: Any, solver: Any, critic: Any, synthesizer: Any) -> None:
        self._said = {
            PLANNER_PROMPT: plan,
            SOLVER_PROMPT: solver,
            CRITIC_PROMPT: critic,
            SYNTHESIZER_PROMPT: synthesizer,
        }
        self._counts = dict.fromkeys(self._said, 0)

    def __call__(self, messages: Sequence[BaseMessage]) -> str:
        role = messages[0].text
        self._counts[role] += 1
        said = self._said[role]
        if isinstance(said, list):
            said = said[min(self._counts[role], len(said)) - 1]
        return str(said(messages) if callable(said) else said)


def plan_of(*goals: str) -> str:
    return json.dumps(
        {
            "subgoals": [
                {"name": f"part_{i}", "goal": goal, "needs": []} for i, goal in enumerate(goals, 1)
            ]
        }
    )


ACCEPT, GIVE_UP = '{"action": "accept"}', '{"action": "give_up", "hint": "there is no way"}'


def verdict(action: str, **more: str) -> str:
    return json.dumps({"action": action, **more})


class Failing(BaseChatModel):
    """Model of a provider that does not answer."""

    said: str

    @property
    def _llm_type(self) -> str:
        return "failing"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        raise ConnectionError(self.said)


@tool
def search(query: str) -> str:
    """Search the archive."""
    return {"rivers": "No results found.", "lakes": "[]", "hills": "0 documents match."}.get(
        query.split(maxsplit=1)[0], '{"results": []}'
    )


@tool
def lookup(name: str) -> str:
    """Look up a price."""
    raise ValueError(f"{name} is not in the list")


@tool
def price(name: str) -> str:
    """Look up a price."""
    return json.dumps({"name": name, "price": 10 + sum(map(ord, name)) % 90})


def loop_of(*tools: Any) -> Any:
    """Agent of another author: a model node and a tool node."""

    async def agent(state: MessagesState) -> dict[str, Any]:
        said = [SystemMessage("You are a helpful shop assistant."), *state["messages"]]
        return {"messages": [await policy().bind_tools([*tools]).ainvoke(said)]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([*tools], handle_tool_errors=True))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile()


async def _planner(state: MessagesState) -> dict[str, Any]:
    said = [SystemMessage("Plan. Reply with JSON."), state["messages"][0]]
    return {"messages": [await policy().ainvoke(said)]}


async def _executor(state: MessagesState) -> dict[str, Any]:
    steps = json.loads(state["messages"][-1].text)["subgoals"]
    said = list[Any]()
    for step in steps[: len(steps) // 2]:  # the fault: the rest is never done
        said.append(
            await policy().ainvoke([SystemMessage("Do this step."), HumanMessage(step["goal"])])
        )
    return {"messages": said}


async def _writer(state: MessagesState) -> dict[str, Any]:
    said = [SystemMessage("Answer."), HumanMessage(" ".join(m.text for m in state["messages"]))]
    return {"messages": [await policy().ainvoke(said)]}


def half_done() -> Any:
    """Agent of another author, which does half of its plan."""
    builder = StateGraph(MessagesState)
    builder.add_node("planner", _planner).add_node("executor", _executor)
    builder.add_node("writer", _writer)
    builder.add_edge(START, "planner").add_edge("planner", "executor")
    builder.add_edge("executor", "writer").add_edge("writer", END)
    return builder.compile()


def hosted(model: BaseChatModel) -> Any:
    """Agent of another author with a model of its own."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


def broken() -> Any:
    """Agent with a bug before it asks a model."""

    async def prepare(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage(state["documents"])]}  # type: ignore[typeddict-item]

    return (
        StateGraph(MessagesState).add_node("prepare", prepare).add_edge(START, "prepare").compile()
    )


SHOP = loop_of(lookup)
PRICES = loop_of(price)
ARCHIVE = loop_of(search)
HALF_DONE = half_done()
BROKEN = broken()


def says(answer: str) -> Callable[[str], float]:
    """Verifier of another author: the text has the answer as a word."""
    return lambda text: float(answer in text.replace(",", " ").replace(".", " ").split())


def raises(text: str) -> float:
    raise RuntimeError("the verifier has a bug")


def plants(count: int = COUNT) -> Iterator[Plant]:
    """All plants, `count` of each class."""
    for number in range(count):
        rng = random.Random(number)
        a = rng.randint(12, 99)
        b = rng.randint(12, 99)
        for make in _MAKERS:
            yield make(number, a, b)


def _tool_error(i: int, a: int, b: int) -> Plant:
    codes = [
        f"{a} * bb",
        f"{a} / 0",
        f"print({a} * {b}",
        "import pandas_of_mine",
        f"int('{a}x') * {b}",
        f"[{a}][{b}]",
        f"{{'a': {a}}}['b']",
        f"'{a}' * '{b}'",
        "raise RuntimeError('no')",
        f"import sys\nsys.exit({a})",
        f"assert {a} == {b}, 'not equal'",
    ]
    if i % 12 == 11:
        said = [call("", "lookup", name=f"item {a}"), f"It costs {a + 1}."]
        return Plant(
            "tool_error", said, "What does it cost?", str(a + b), SHOP, verify=says(str(a + b))
        )
    wrong = boxed(a * b + 10)
    return Plant("tool_error", [call(codes[i % 11]), wrong], f"What is {a} * {b}?", str(a * b))


def _tool_timeout(i: int, a: int, b: int) -> Plant:
    codes = ["import time\ntime.sleep(60)", f"import time\nfor n in range({a}):\n    time.sleep(9)"]
    said = [call(codes[i % 2]), boxed(a * b - 3)]
    return Plant("tool_timeout", said, f"What is {a} * {b}?", str(a * b))


def _tool_memory(i: int, a: int, b: int) -> Plant:
    codes = [
        "x = bytearray(3 * 2**30)\nlen(x)",
        "x = []\nwhile True:\n    x.append(bytearray(2**24))",
    ]
    said = [call(codes[i % 2]), boxed(a + b)]
    return Plant("tool_memory", said, f"What is {a} * {b}?", str(a * b))


def _invalid_call(i: int, a: int, b: int) -> Plant:
    broken_calls = [
        f'<tool_call>{{"name": "python", "arguments": {{"code": "{a} * {b}"</tool_call>',
        f"<tool_call>python({a} * {b})</tool_call>",
        call("", "python", source=f"{a} * {b}"),
        call("", "calculator", expression=f"{a} * {b}"),
        f'<tool_call>{{"name": "python", "arguments": "{a} * {b}"}}</tool_call>',
        f'<tool_call>{{"tool": "python", "code": "{a} * {b}"}}</tool_call>',
    ]
    said = broken_calls[i % 6]
    return Plant("invalid_tool_call", [said, boxed(a * b + 7)], f"What is {a} * {b}?", str(a * b))


def _no_answer(i: int, a: int, b: int) -> Plant:
    texts = [
        "I have computed everything that is needed.",
        "<reason>the product is needed</reason>",
        "<answer>see above</answer>",
        "<answer>\\boxed{</answer>",
        "The calculation is done, thank you.",
        "<reason>so it must be the product of both, which is large",
    ]
    return Plant("no_final_answer", [texts[i % 6]], f"What is {a} * {b}?", str(a * b))


def _plan(i: int, a: int, b: int) -> Plant:
    goals = [f"Count the hens of farm {n}" for n in range(a, a + 2 + i % 3 * 2)]
    said = [plan_of(*goals), *[f"There are {n}." for n in range(len(goals) // 2)], f"In all {a}."]
    return Plant(
        "plan_not_followed", said, "How many hens?", str(a * b), HALF_DONE, verify=says(str(a * b))
    )


def _loop(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    answer = str(a * b)
    same = call(f"{a} + {b}")
    if i % 6 == 0:
        return Plant("loop", [same] * 8, prompt, answer)
    if i % 6 == 1:
        codes = [f"{a} + {b}  # try {n}" for n in range(6)]
        return Plant("loop", [*map(call, codes), boxed(a + b)], prompt, answer)
    if i % 6 == 2:
        return Plant("loop", [same, call(f"{a} - {b}")] * 4, prompt, answer)
    if i % 6 == 3:
        text = "Wait, let me think about it again. " * 200
        return Plant("loop", [f"<reason>{text}"], prompt, answer, context={"max_tokens": 3000})
    if i % 6 == 4:
        return Plant(
            "loop", [call(f"print({a} +\n {b})"), same] + [same] * 3 + [boxed(a)], prompt, answer
        )
    said = [call("", "price", name="pear")] * 5 + [f"It is {a}."]
    return Plant("loop", said, "What is the sum?", answer, PRICES, verify=says(answer))


def _gave_up(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    texts = [
        "I cannot solve this problem.",
        "",
        "I'm sorry, but I can't help with that.",
        "I don't know.",
        "<answer>\\boxed{unknown}</answer>",
        "Unfortunately, I am unable to determine the answer.",
        "<reason>this is hard</reason>I give up.",
        "It is impossible to say from what is given.",
        "<answer>I do not know</answer>",
        "As an AI, I am not able to do this calculation.",
        "Ich weiss es leider nicht.",
    ]
    if i % 12 == 11:
        roles = Roles(plan_of("the product"), boxed(a + b), GIVE_UP, f"Answer: {a + b}")
        return Plant("gave_up", roles, prompt, str(a * b), "reasoning")
    return Plant("gave_up", [texts[i % 12]], prompt, str(a * b))


def _limit(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    answer = str(a * b)
    if i % 3 == 0:
        words = " ".join(f"{n} times {a} is {n * a}," for n in range(2, 60))
        return Plant("limit", [f"<reason>{words}"], prompt, answer, context={"max_tokens": 300})
    if i % 3 == 1:
        said = [call(f"{a} + {n}") for n in range(b, b + 4)]
        return Plant("limit", said, prompt, answer, context={"max_turns": 3})
    said = [call(f"import time\ntime.sleep(0.4)\n{a} + {n}") for n in range(b, b + 6)]
    return Plant("limit", said, prompt, answer, context={"max_seconds": 0.3})


def _provider(i: int, a: int, b: int) -> Plant:
    texts = [
        "429 rate limit reached",
        "connection reset by peer",
        "503 overloaded",
        "read timed out",
    ]
    model = Failing(said=texts[i % 4])
    return Plant("provider", ["unused"], f"What is {a} * {b}?", str(a * b), hosted(model))


def _infrastructure(i: int, a: int, b: int) -> Plant:
    said = [call(f"{a} * {b}"), boxed(a + b)]
    return Plant("infrastructure", said, f"What is {a} * {b}?", str(a * b), lost=True)


def _graph(i: int, a: int, b: int) -> Plant:
    return Plant("graph_error", ["unused"], f"What is {a} * {b}?", str(a * b), BROKEN)


def _verifier(i: int, a: int, b: int) -> Plant:
    said = [call(f"{a} * {b}"), boxed(a * b)]
    return Plant("not_scored", said, f"What is {a} * {b}?", str(a * b), verify=raises)


def _lost_result(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    right = a * b
    wrong = [right + 1, right - 10, right * 10, int(str(right)[::-1]) + 2, right + 100, a + b][
        i % 6
    ]
    if i % 4 == 3:
        solver = [call(f"{a} * {b}"), boxed(right)]
        roles = Roles(plan_of("the product"), solver, ACCEPT, f"Answer: {wrong}")
        return Plant("lost_result", roles, prompt, str(right), "reasoning")
    if i % 4 == 2:  # an error that was mended does not explain the wrong number
        said = [call(f"{a} * bb"), call(f"print('product', {a} * {b})"), boxed(wrong)]
        return Plant("lost_result", said, prompt, str(right))
    if i % 4 == 1:
        said = [call("", "price", name="pear"), f"It costs {a + 100}."]
        value = str(10 + sum(map(ord, "pear")) % 90)
        return Plant("lost_result", said, "Price?", value, PRICES, verify=says(value))
    return Plant("lost_result", [call(f"{a} * {b}"), boxed(wrong)], prompt, str(right))


def _wrong_form(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    right = a * b
    texts = [
        f"The answer is {right}.",
        f"<answer>{right}</answer>",
        boxed(f"{right} apples"),
        boxed(f"x = {right}"),
        f"#### {right}",
        f"So \\boxed{{{right}}} is the result.",
        f"**{right}**",
        boxed(f"the product is {right}"),
        f"Answer: {right}\nI hope that helps.",
        f"{a} * {b} = {right}",
    ]
    said = [call(f"{a} * {b}"), texts[i % 10]]
    if i % 12 == 11:
        roles = Roles(plan_of("the product"), [*said[:1], boxed(right)], ACCEPT, f"It is {right}")
        return Plant("wrong_form", roles, prompt, str(right), "reasoning")
    return Plant("wrong_form", said if i % 2 else said[1:], prompt, str(right))


def _critic_rejected(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    right = a * b
    actions = [
        verdict("revise", subgoal="part_1", hint="check it"),
        verdict("replan", hint="another way"),
        GIVE_UP,
    ]
    solver = [boxed(right), boxed(right + 3), boxed(right + 3)]
    critic = [actions[i % 3], ACCEPT]
    roles = Roles(plan_of("the product"), solver, critic, f"Answer: {right + 3}")
    return Plant("critic_rejected_right", roles, prompt, str(right), "reasoning")


def _critic_accepted(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    wrong = a * b + 2 + i
    solver = boxed(wrong) if i % 2 else [call(f"{a} + {b}"), boxed(wrong)]
    critic = ACCEPT if i % 3 else [verdict("revise", subgoal="part_1", hint="again"), ACCEPT]
    roles = Roles(plan_of("the product"), solver, critic, f"Answer: {wrong}")
    return Plant("critic_accepted_wrong", roles, prompt, str(a * b), "reasoning")


def _no_source(i: int, a: int, b: int) -> Plant:
    queries = ["rivers of Asia", "lakes of Africa", "hills of Rome", "towns"]
    texts = [f"It is about {a} km long.", "The archive has nothing on it.", f"I think {a}."]
    said = [call("", "search", query=queries[i % 4]), texts[i % 3]]
    if i % 2:
        said.insert(1, call("", "search", query=queries[(i + 1) % 4]))
    return Plant("no_source", said, "How long is it?", str(a * b), ARCHIVE, verify=says(str(a * b)))


def _unexplained(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    wrong = a * b + 10 * (i + 1)
    said = [
        [boxed(wrong)],
        [call(f"{a} + {b}"), boxed(a + b)],
        [call("bb"), call(f"{a} - {b}"), boxed(a - b)],  # the error was mended, the sum is wrong
    ][i % 3]
    # without a tool call there is a rule, which was added after these plants
    return Plant("unexplained" if i % 3 else "no_tool", said, prompt, str(a * b))


def _right(i: int, a: int, b: int) -> Plant:
    prompt = f"What is {a} * {b}?"
    right = a * b
    product = call(f"{a} * {b}")
    texts = [
        [product, boxed(right)],
        [call("bb"), product, boxed(right)],
        [product, product, product, product, boxed(right)],
        [f"<reason>I cannot be sure, I don't know.</reason>{boxed(right)}"],
        [call("import time\ntime.sleep(60)") if i == 4 else product, boxed(right)],
        [call("", "calculator", expression="1"), boxed(right)],
    ]
    if i % 4 == 3:
        critic = [verdict("revise", subgoal="part_1", hint="check it"), ACCEPT]
        roles = Roles(plan_of("the product"), boxed(right), critic, f"Answer: {right}")
        return Plant("right", roles, prompt, str(right), "reasoning")
    return Plant("right", texts[i % 6], prompt, str(right))


_MAKERS: tuple[Callable[[int, int, int], Plant], ...] = (
    _tool_error,
    _tool_timeout,
    _tool_memory,
    _invalid_call,
    _no_answer,
    _plan,
    _loop,
    _gave_up,
    _limit,
    _provider,
    _infrastructure,
    _graph,
    _verifier,
    _lost_result,
    _wrong_form,
    _critic_rejected,
    _critic_accepted,
    _no_source,
    _unexplained,
    _right,
)
