"""Answers that no graph expects, chat templates that refuse what policies write, and agents that
meet both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, TypedDict

from langchain_core.messages import AnyMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from hrm_agent.models import policy

PIECES = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<|im_end|>",
        "<|im_start|>",
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        ",",
        ":",
        "null",
        "true",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-0",
        "9" * 5000,
    ),
    *(
        "\x00",
        "\x1b[2J",
        "\u2028",
        "\ufeff",
        "\ufffd",
        "\U0001f40b",
        "e\u0301",
        "\u202e",
        "\\ud800",
        "\\u0000",
        "\\x",
    ),
    *(
        "[" * 300,
        '{"a":' * 300,
        "\\boxed{",
        "}" * 9,
        "[1]",
        "[^a]",
        "{{ 7 * 7 }}",
        "{% raise %}",
        "%s",
        "{0}",
        "\r\n",
        " ",
    ),
    *(
        "```json\n",
        "```",
        "name",
        "arguments",
        "answer",
        "x" * 3000,
        "-",
        "1" * 30,
        "'; DROP TABLE runs; --",
    ),
)
SCALARS: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        2**63,
        2**64,
        -(2**63) - 1,
        10**400,
        0.1,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        " ",
        "\x00",
        "\ud800",
        "\udc00x",
        "a\u0000b",
        "<|im_end|>",
        "</tool_call>",
        "\U0001f40b",
        "x" * 2000,
        "NaN",
    ),
)
NAMES = (
    "echo",
    "add",
    "",
    "echo ",
    "python",
    "\x00",
    "ech\u00f6",
    "x" * 300,
    "final_answer",
    "__class__",
    "a/b",
)
REFUSALS = (
    (
        "{% if message.tool_calls | selectattr('function.name', 'equalto', 'echo') | list | length"
        " > 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}"
    ),
    (
        "{% if message.content == '' and message.tool_calls and message.tool_calls[0].function.name"
        " == 'echo' %}{{ raise_exception('an answer needs a text') }}{% endif %}"
    ),
    (
        "{% for c in message.tool_calls or [] if c.function.name == 'echo' %}"
        "{{ c.function.arguments.items() | list | first | first + 1 }}{% endfor %}"
    ),
    (
        "{% for c in message.tool_calls or [] %}{{ 7 // (c.function.arguments | length - 1) }}{%"
        " endfor %}"
    ),
    "{% if message.content | length > 40 %}{{ message.content.missing.attribute }}{% endif %}",
)
"""Templates that refuse an answer, by a message or by an error in their code. A codec learns when
it is opened whether a template refuses calls of any tool; these templates refuse something that
shows only later.
"""


def hostile_answer(rng: random.Random) -> str:
    """One answer: pieces of the forms that are read, calls with arguments of every kind, and JSON
    of every kind.
    """
    kind = rng.randrange(4)
    if kind == 0:
        return "".join(rng.choices(PIECES, k=rng.randrange(12)))
    if kind == 1:
        plan = {"answer": _value(rng, 2), "steps": []} if rng.random() < 0.5 else _value(rng, 3)
        return _cut(json.dumps(plan, ensure_ascii=rng.random() < 0.8), rng)
    calls = [_call(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    return (
        rng.choice(("", "so:", rng.choice(PIECES)))
        + "".join(calls)
        + rng.choice(("", "", rng.choice(PIECES)))
    )


def _call(rng: random.Random) -> str:
    arguments = (
        _value(rng, 3)
        if rng.random() < 0.2
        else {rng.choice(("text", "a", "b", "", "\x00")): _value(rng, 2)}
    )
    said = json.dumps({"name": rng.choice(NAMES[: rng.choice((2, 11))]), "arguments": arguments})
    return f"<tool_call>{_cut(said, rng)}{rng.choice(('</tool_call>', '</tool_call>', ''))}"


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6) if depth else 5
    if kind == 0:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 1:
        return {str(_value(rng, 0)): _value(rng, depth - 1) for _ in range(rng.randrange(4))}
    if kind == 2:
        return {"answer": _value(rng, depth - 1), "steps": [_value(rng, depth - 1)]}
    return rng.choice(SCALARS)


def _cut(text: str, rng: random.Random) -> str:
    """Text, mostly unchanged, else with an end missing or a piece inserted."""
    at = rng.randrange(len(text) + 1)
    return (
        text if rng.random() < 0.7 else text[:at] + rng.choice(("", rng.choice(PIECES) + text[at:]))
    )


@tool
def echo(text: str) -> str:
    """Say it again."""
    return text


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def _ask(state: MessagesState) -> dict[str, list[AnyMessage]]:
    return {"messages": [await policy().bind_tools([echo, add]).ainvoke(state["messages"])]}


calling = (
    StateGraph(MessagesState)
    .add_node("ask", _ask)
    .add_node("tools", ToolNode([echo, add]))
    .add_edge(START, "ask")
    .add_conditional_edges("ask", tools_condition)
    .add_edge("tools", "ask")
    .compile()
)
"""Graph that asks, runs the calls by LangGraph's own node, and asks again."""


class Read(TypedDict, total=False):
    question: str
    said: Any
    answer: Any


async def _read(state: Read) -> dict[str, Any]:
    return {"said": json.loads((await policy().ainvoke([("user", state["question"])])).text)}


def _use(state: Read) -> dict[str, Any]:
    said: Any = state["said"]
    said["steps"].append("done")
    return {"answer": said.get("answer")}


reading = (
    StateGraph(Read)
    .add_node("read", _read)
    .add_node("use", _use)
    .add_edge(START, "read")
    .add_edge("read", "use")
    .compile()
)
"""Graph that reads an answer as JSON into its state, and uses fields of it without a check."""


async def _quote(state: Read) -> dict[str, Any]:
    said = json.loads((await policy().ainvoke([("user", state["question"])])).text)
    asked = [("system", str(said)), ("user", json.dumps(said, ensure_ascii=False))]
    return {"answer": (await policy().ainvoke(asked)).text}


quoting = StateGraph(Read).add_node("quote", _quote).add_edge(START, "quote").compile()
"""Graph that reads an answer as JSON, and asks about its contents."""


async def _own_fault(state: Read) -> dict[str, Any]:
    await policy().ainvoke([("user", state["question"])])
    raise KeyError("missing")


always_raising = StateGraph(Read).add_node("think", _own_fault).add_edge(START, "think").compile()
"""Graph that raises, whatever the answer is."""


def by_chance(fails: Callable[[], bool]) -> Any:
    """A graph that asks, and then fails by its own fault whenever `fails()` is true."""

    async def think(state: Read) -> dict[str, Any]:
        said = (await policy().ainvoke([("user", state["question"])])).text
        if fails():
            raise RuntimeError("the service was away")
        return {"answer": said}

    return StateGraph(Read).add_node("think", think).add_edge(START, "think").compile()
