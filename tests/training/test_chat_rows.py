"""Rows to fine-tune on, in the forms that people write them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import TaskError
from hrm_agent.training.sft import Conversation, read_chats
from hrm_agent.training.small_policy.cold_start import answer_text

FUNCTION = {"name": "add", "arguments": {"a": 2, "b": 3}}
ASKED = {"role": "user", "content": "2 + 3?"}
SAID = {"role": "assistant", "content": "5"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def read(tmp_path: Path, *rows: Any) -> list[Conversation]:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return read_chats(path)


def with_call(call: Any, result: dict[str, Any] | None = None, **of_answer: Any) -> dict[str, Any]:
    result = {"role": "tool", "content": "5", **(result or {})}
    answer = {"role": "assistant", "content": "", "tool_calls": [call], **of_answer}
    return {"messages": [ASKED, answer, result, SAID]}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            with_call({"type": "function", "function": FUNCTION}),
            id="no id, as the pages of transformers",
        ),
        pytest.param(
            with_call({"function": FUNCTION}, {"name": "add"}), id="no type, a result by name"
        ),
        pytest.param(with_call(FUNCTION), id="flat"),
        pytest.param(with_call({"name": "add", "args": FUNCTION["arguments"]}), id="args"),
        pytest.param(
            with_call({"function": FUNCTION | {"arguments": json.dumps(FUNCTION["arguments"])}}),
            id="JSON",
        ),
        pytest.param(
            with_call({"id": None, "type": None, "function": FUNCTION}, content=None), id="nulls"
        ),
        pytest.param(
            with_call({"function": FUNCTION}, {"tool_call_id": "x"}), id="an id in the result alone"
        ),
        pytest.param(
            with_call({"id": "x", "function": FUNCTION}, {"name": "add"}),
            id="an id in the call alone",
        ),
        pytest.param(with_call(FUNCTION, content=[{"type": "text", "text": ""}]), id="parts"),
        pytest.param(
            with_call(FUNCTION, {"content": [{"type": "text", "text": "5"}]}),
            id="parts of a result",
        ),
        pytest.param(
            {
                "messages": [
                    ASKED,
                    {"role": "assistant", "content": None, "function_call": FUNCTION},
                    {"role": "function", "name": "add", "content": "5"},
                    SAID,
                ]
            },
            id="function_call",
        ),
        pytest.param(
            {
                "conversations": [
                    {"from": "human", "value": "2 + 3?"},
                    {"from": "function_call", "value": json.dumps(FUNCTION)},
                    {"from": "observation", "value": "5"},
                    {"from": "gpt", "value": "5"},
                ],
                "messages": None,
            },
            id="ShareGPT",
        ),
    ],
)
def test_one_conversation_in_many_forms(tmp_path: Path, row: dict[str, Any]) -> None:
    (first,), (again,) = read(tmp_path, row), read(tmp_path, row)
    assert first == again, "ids that were made up are the same each time"
    asked, calls, result, answer = first.messages
    assert (asked.text, result.text, answer.text) == ("2 + 3?", "5", "5")
    assert (
        answer_text(calls)
        == '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    )
    assert result.tool_call_id == calls.tool_calls[0]["id"] != ""


def test_results_go_to_their_calls(tmp_path: Path) -> None:
    two = [{"function": {"name": name, "arguments": {}}} for name in ("one", "two")]
    two += [{"id": "call_0", "function": {"name": "three", "arguments": "{}"}}]
    results = [{"role": "tool", "name": name, "content": name} for name in ("two", "one")]
    results += [{"role": "tool", "tool_call_id": "call_0", "content": "three"}]
    row = {"messages": [ASKED, {"role": "assistant", "tool_calls": two}, *results, SAID]}
    (conversation,) = read(tmp_path, row)
    names = {call["id"]: call["name"] for call in conversation.messages[1].tool_calls}
    assert len(names) == 3
    assert [names[message.tool_call_id] for message in conversation.messages[2:5]] == [
        "two",
        "one",
        "three",
    ]


@pytest.mark.parametrize(
    "tools",
    [
        [TOOL],
        json.dumps([TOOL]),
        [json.dumps(TOOL)],
        [TOOL["function"]],
        [{"type": "function"} | TOOL["function"]],
    ],
)
def test_tools_in_many_forms(tmp_path: Path, tools: Any) -> None:
    (conversation,) = read(tmp_path, {"messages": [ASKED, SAID], "tools": tools})
    assert conversation.tools == (TOOL,)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [ASKED, SAID], "conversations": [ASKED]}, "messages and conversations"),
        ({"prompt": "a", "completion": "b"}, "no messages, and the columns prompt, completion"),
        (
            {"messages": [ASKED, SAID | {"thoughts": "so"}]},
            r"messages\[1\] has the unknown fields thoughts",
        ),
        (
            {"messages": [ASKED | {"thinking": "so"}, SAID]},
            r"messages\[0\] has thoughts, but its role is user",
        ),
        (
            {"messages": [ASKED, SAID | {"thinking": "so", "reasoning_content": "or so"}]},
            r"messages\[1\] has other thoughts in reasoning_content than in thinking",
        ),
        (
            {
                "messages": [
                    ASKED,
                    SAID | {"reasoning_content": "so", "reasoning": "so", "thinking": "or so"},
                ]
            },
            r"messages\[1\] has other thoughts in reasoning_content than in thinking",
        ),
        (
            {
                "messages": [
                    ASKED,
                    SAID | {"thinking": "so", "content": [{"type": "thinking", "thinking": "so"}]},
                ]
            },
            r"messages\[1\] has thoughts in a field and in its content",
        ),
        (
            {"messages": [ASKED, SAID | {"thinking": ["so"]}]},
            r"messages\[1\] has thoughts that are no text",
        ),
        (
            {"messages": [ASKED, SAID | {"content": [{"type": "reasoning", "encrypted": "x"}]}]},
            r"messages\[1\] has thoughts that are no text",
        ),
        ({"messages": [ASKED, SAID | {"value": "6"}]}, r"messages\[1\] has both content and value"),
        (
            {"messages": [{"role": "user", "content": None}, SAID]},
            r"messages\[0\] has no content and no value",
        ),
        (
            {"messages": [ASKED | {"content": [{"type": "image_url"}]}, SAID]},
            r"messages\[0\]\.content\[0\] is no text",
        ),
        (
            {"messages": [ASKED | {"role": "king"}, SAID]},
            r"messages\[0\] has the role 'king'; known are",
        ),
        (with_call({"function": {"arguments": {}}}), r"messages\[1\]\.tool_calls\[0\] has no name"),
        (with_call({"name": "add", "arguments": "{a"}), r"tool_calls\[0\]\.arguments is not JSON"),
        (
            with_call({"name": "add", "arguments": [1]}),
            r"tool_calls\[0\]\.arguments is not an object",
        ),
        (with_call({"name": "add", "arguments": {}, "args": {}}), "has both arguments and args"),
        (with_call({"name": "add", "function": FUNCTION}), "a name or arguments beside function"),
        (with_call({"type": "custom", "name": "add"}), "type is 'custom'"),
        (with_call({"name": "add", "inputs": {}}), "unknown fields inputs"),
        (with_call(FUNCTION, function_call=FUNCTION), "both tool_calls and function_call"),
        (
            with_call(FUNCTION, {"name": "sub"}),
            r"messages\[2\] is the result of no call before it: it has name 'sub'",
        ),
        ({"messages": [ASKED, {"role": "tool", "content": "5"}, SAID]}, "it has no tool_call_id"),
        (
            {"messages": [ASKED | {"tool_calls": [FUNCTION]}, SAID]},
            "has calls, but its role is user",
        ),
    ],
)
def test_what_could_mean_two_things_is_refused_with_its_row_and_field(
    tmp_path: Path, row: Any, said: str
) -> None:
    with pytest.raises(TaskError, match=rf"rows\.jsonl, line 2 is not a conversation: .*{said}"):
        read(tmp_path, {"messages": [ASKED, SAID]}, row)


@pytest.mark.parametrize(
    "said",
    [
        SAID | {"reasoning_content": "2 and 3."},
        SAID | {"reasoning": "2 and 3."},
        SAID | {"thinking": "2 and 3.", "reasoning": None},
        SAID | {"reasoning": "2 and 3.", "reasoning_content": "2 and 3."},
        SAID
        | {
            "content": [{"type": "thinking", "thinking": "2 and 3."}, {"type": "text", "text": "5"}]
        },
        SAID | {"content": [{"type": "reasoning", "summary": [{"text": "2 and 3."}]}, "5"]},
    ],
)
def test_thoughts_go_to_one_place(tmp_path: Path, said: dict[str, Any]) -> None:
    (conversation,) = read(tmp_path, {"messages": [ASKED, said]})
    answer = conversation.messages[1]
    assert (answer.text, answer.additional_kwargs) == ("5", {"reasoning_content": "2 and 3."})


def test_empty_thoughts_are_none(tmp_path: Path) -> None:
    (conversation,) = read(tmp_path, {"messages": [ASKED, SAID | {"reasoning_content": ""}]})
    assert conversation.messages[1].additional_kwargs == {}


@pytest.mark.parametrize("text", ["arguments", "call", "calls"])
def test_null_is_an_argument_where_arguments_came_as_text(tmp_path: Path, text: str) -> None:
    unit = {"unit": None}
    call = {"name": "weigh", "arguments": json.dumps(unit) if text == "arguments" else unit}
    row = with_call(json.dumps(call) if text == "call" else call)
    if text == "call":
        row = {"conversations": [ASKED, {"from": "function_call", "value": json.dumps(call)}, SAID]}
    elif text == "calls":
        row["messages"][1]["tool_calls"] = json.dumps([call])
    (conversation,) = read(tmp_path, row)
    assert conversation.messages[1].tool_calls[0]["args"] == unit
    (filled,) = read(tmp_path, with_call({"name": "weigh", "arguments": {"unit": None}}))
    assert filled.messages[1].tool_calls[0]["args"] == {}
