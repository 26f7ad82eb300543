"""Spans by the conventions of several years, each of which describes the same call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.trajectory import FinishReason, RunStatus, ToolStatus, Trajectory
from hrm_agent.trajectory.formats import import_from, missing_parts
from hrm_agent.trajectory.formats.shared.messages import RequestHints, messages_of

Row = dict[str, Any]
CALL: Row = {"id": "c1", "name": "add", "arguments": {"x": 1, "a.b": [2]}}
ARGUMENTS = json.dumps(CALL["arguments"])
OPENAI_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "add", "arguments": ARGUMENTS},
}
BASE: Row = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.usage.input_tokens": 5,
    "gen_ai.usage.output_tokens": 3,
}
REQUEST = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1 + 2?"},
    {"role": "assistant", "content": "", "tool_calls": [OPENAI_CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
]


def text(content: str) -> Row:
    return {"type": "text", "content": content}


PARTS = [
    {"role": "system", "parts": [text("Add.")]},
    {"role": "user", "parts": [text("1 + 2?")]},
    {"role": "assistant", "parts": [{"type": "tool_call", **CALL}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "3"}]},
]
SAID = [{"role": "assistant", "parts": [text("It is 3.")], "finish_reason": "length"}]


def flat(value: Any, name: str) -> Row:
    """Attributes with indexes and keys in their names."""
    if isinstance(value, list):
        return {k: v for i, one in enumerate(value) for k, v in flat(one, f"{name}.{i}").items()}
    if isinstance(value, dict):
        return {k: v for key, one in value.items() for k, v in flat(one, f"{name}.{key}").items()}
    return {name: value}


def _indexed() -> Row:
    """Attributes as OpenLLMetry wrote them until 2025."""
    call = {"id": "c1", "name": "add", "arguments": ARGUMENTS}
    sent = [*REQUEST[:2], {"role": "assistant", "tool_calls": [call]}, REQUEST[3]]
    said = [{"role": "assistant", "content": "It is 3.", "finish_reason": "length"}]
    return {
        **flat(sent, "gen_ai.prompt"),
        **flat(said, "gen_ai.completion"),
        "gen_ai.system": "openai",
        "llm.request.type": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.prompt_tokens": 5,
        "gen_ai.usage.completion_tokens": 3,
    }


def _inference() -> Row:
    """Attributes of OpenInference."""
    call = {"tool_call": {"id": "c1", "function": {"name": "add", "arguments": ARGUMENTS}}}
    sent = [
        {"message": {"role": "system", "content": "Add."}},
        {
            "message": {
                "role": "user",
                "contents": [{"message_content": {"type": "text", "text": "1 + 2?"}}],
            }
        },
        {"message": {"role": "assistant", "tool_calls": [call]}},
        {"message": {"role": "tool", "content": "3", "tool_call_id": "c1"}},
    ]
    return {
        "openinference.span.kind": "LLM",
        **flat(sent, "llm.input_messages"),
        **flat([{"message": {"role": "assistant", "content": "It is 3."}}], "llm.output_messages"),
        "llm.model_name": "m",
        "llm.token_count.prompt": 5,
        "llm.token_count.completion": 3,
        "llm.finish_reason": "length",
    }


def _inference_lists() -> Row:
    """Attributes of OpenInference as Phoenix's data frames have them."""
    call = {
        "tool_call.id": "c1",
        "tool_call.function.name": "add",
        "tool_call.function.arguments": ARGUMENTS,
    }
    sent = [
        {"message.role": "system", "message.content": "Add."},
        {"message.role": "user", "message.content": "1 + 2?"},
        {"message.role": "assistant", "message.tool_calls": [call]},
        {"message.role": "tool", "message.content": "3", "message.tool_call_id": "c1"},
    ]
    return {
        **{name: one for name, one in _inference().items() if "messages" not in name},
        "llm.input_messages": sent,
        "llm.output_messages": [{"message.role": "assistant", "message.content": "It is 3."}],
    }


def _events() -> list[Row]:
    rows = [
        ("gen_ai.system.message", {"content": "Add."}),
        ("gen_ai.user.message", {"content": "1 + 2?"}),
        ("gen_ai.assistant.message", {"tool_calls": json.dumps([OPENAI_CALL])}),
        ("gen_ai.tool.message", {"content": "3", "id": "c1"}),
        (
            "gen_ai.choice",
            {"index": 0, "finish_reason": "length", "message": json.dumps({"content": "It is 3."})},
        ),
    ]
    return [event(name, values, at) for at, (name, values) in enumerate(rows)]


FORMS: dict[str, tuple[Row, list[Row]]] = {
    "newest": (
        {
            **BASE,
            "gen_ai.input.messages": json.dumps(PARTS),
            "gen_ai.output.messages": json.dumps(SAID),
        },
        [],
    ),
    "structured": ({**BASE, "gen_ai.input.messages": PARTS, "gen_ai.output.messages": SAID}, []),
    "apart": (
        {
            **BASE,
            "gen_ai.system_instructions": json.dumps(PARTS[0]["parts"]),
            "gen_ai.input.messages": json.dumps(PARTS[1:]),
            "gen_ai.output.messages": json.dumps(SAID),
        },
        [],
    ),
    "json": (
        {
            **BASE,
            "gen_ai.prompt": json.dumps(REQUEST),
            "gen_ai.completion": json.dumps([{"role": "assistant", "content": "It is 3."}]),
            "gen_ai.response.finish_reasons": ["length"],
        },
        [],
    ),
    "indexed": (_indexed(), []),
    "events": ({**BASE, "gen_ai.response.finish_reasons": ["length"]}, []),
    "openinference": (_inference(), []),
    "openinference lists": (_inference_lists(), []),
}


def value(given: Any) -> Row:
    """Value in OTLP's JSON."""
    match given:
        case bool():
            return {"boolValue": given}
        case int():
            return {"intValue": str(given)}
        case float():
            return {"doubleValue": given}
        case list():
            return {"arrayValue": {"values": [value(one) for one in given]}}
        case dict():
            return {"kvlistValue": {"values": attributes(given)}}
        case _:
            return {"stringValue": given}


def attributes(given: Row) -> list[Row]:
    return [{"key": key, "value": value(one)} for key, one in given.items()]


def event(name: str, given: Row, at: int = 0) -> Row:
    return {"name": name, "timeUnixNano": str(10**18 + at), "attributes": attributes(given)}


def span(id_: str, given: Row, parent: str = "", **fields: Any) -> Row:
    """Span in OTLP's JSON."""
    return {
        "traceId": "ab" * 16,
        "spanId": id_ * 16,
        **({"parentSpanId": parent * 16} if parent else {}),
        "name": "span",
        "startTimeUnixNano": str(10**18),
        "endTimeUnixNano": str(10**18 + 10**9),
        "attributes": attributes(given),
        **fields,
    }


def message(*spans: Row) -> Row:
    """OTLP message in JSON."""
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def read(folder: Path, *spans: Row) -> Trajectory:
    (folder / "x.json").write_text(json.dumps(message(*spans), indent=1))
    (found,) = import_from(folder / "x.json")
    return found


@pytest.mark.parametrize("form", FORMS)
def test_one_call_in_each_convention(form: str, tmp_path: Path) -> None:
    given, _ = FORMS[form]
    found = read(tmp_path, span("1", given, events=_events() if form == "events" else []))
    (call,) = found.calls
    sent = messages_of(call, found, RequestHints())
    assert sent is not None
    assert [(one.type, one.text) for one in sent] == [
        ("system", "Add."),
        ("human", "1 + 2?"),
        ("ai", ""),
        ("tool", "3"),
        ("ai", "It is 3."),
    ]
    asked: Any = sent[2]
    assert [(one["id"], one["name"], one["args"]) for one in asked.tool_calls] == [
        ("c1", "add", CALL["arguments"])
    ]
    used = call.used
    assert used is not None
    assert (used.input_tokens, used.output_tokens) == (5, 3)
    assert (call.model, call.finish_reason) == ("m", FinishReason.LENGTH)
    assert (found.task.prompt, found.answer) == ("1 + 2?", "It is 3.")
    assert found.status is RunStatus.COMPLETED


def test_what_a_trace_does_not_have_is_named_and_not_made_up(tmp_path: Path) -> None:
    found = read(
        tmp_path, span("1", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"})
    )
    (call,) = found.calls
    assert (call.request, call.tools, call.usage, call.lost) == (None, None, None, ("content",))
    assert found.answer is None
    missing = missing_parts(found)
    assert {name.split()[0] for name in missing} == {
        "token",
        "states",
        "messages",
        "answers",
        "tools",
        "costs",
        "nodes",
    }
    assert set(missing.values()) == {1}
    assert set(found.task.metadata["not_recorded"].split(", ")) == set(missing)


def test_a_client_s_span_inside_of_langchain_s_is_the_same_call(tmp_path: Path) -> None:
    newest, _ = FORMS["newest"]
    inference, _ = FORMS["openinference"]
    assert len(read(tmp_path, span("1", inference), span("2", newest, "1")).calls) == 1


def test_calls_and_tools_that_fail(tmp_path: Path) -> None:
    thrown = event(
        "exception", {"exception.type": "openai.RateLimitError", "exception.message": "no"}
    )
    failed = {"status": {"code": 2}, "events": [thrown]}
    newest, _ = FORMS["newest"]
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}
    found = read(
        tmp_path,
        span("1", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "boss"}, **failed),
        span("2", BASE, "1", **failed),
        span("3", newest, "1"),
        span("4", tool, "1", **failed),
    )
    assert (found.status, found.error) == (RunStatus.FAILED, "RateLimitError: no")
    (call,) = found.failed_calls
    assert call.error is not None
    assert call.error.kinds == ("openai:RateLimitError", "builtins:Exception")
    assert [one.identity.role for one in (*found.calls, *found.failed_calls)] == ["boss", "boss"]
    (tool_call,) = found.tool_calls
    assert (tool_call.status, tool_call.content) == (ToolStatus.ERROR, "RateLimitError: no")


def test_tool_spans_without_ids_are_matched_by_their_arguments(tmp_path: Path) -> None:
    asked = [
        {"type": "tool_call", "id": f"c{n}", "name": "add", "arguments": {"x": n}} for n in (1, 2)
    ]
    said = json.dumps([{"role": "assistant", "parts": asked}])
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}
    found = read(
        tmp_path,
        span("1", {**BASE, "gen_ai.output.messages": said}),
        span("2", {**tool, "gen_ai.tool.call.arguments": '{"x": 2}'}),
        span("3", {**tool, "traceloop.entity.input": json.dumps({"input_str": "{'x': 1}"})}),
        span("4", {**tool, "gen_ai.tool.call.arguments": '{"x": 3}'}),
    )
    assert [(one.tool_call_id, one.arguments) for one in found.tool_calls] == [
        ("c2", {"x": 2}),
        ("c1", {"x": 1}),
        ("4" * 16, {"x": 3}),
    ]
    assert missing_parts(found)["ids of tool calls in an answer"] == 1


def test_a_result_that_openllmetry_writes_to_two_attributes(tmp_path: Path) -> None:
    kwargs = {"content": "45", "type": "tool", "tool_call_id": "c1", "status": "success"}
    message = {"lc": 1, "type": "constructor", "id": ["x", "ToolMessage"], "kwargs": kwargs}
    result = json.dumps({"output": message, "kwargs": {"tags": []}})
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}
    both = {"gen_ai.tool.call.result": result, "traceloop.entity.output": result}
    found = read(tmp_path, span("1", BASE), span("2", {**tool, **both}))
    (tool_call,) = found.tool_calls
    assert (tool_call.tool_call_id, tool_call.content) == ("c1", "45")
