"""Messages in the forms that traces have: LangChain's, OpenAI's, Anthropic's, OpenTelemetry's parts
and OpenInference's attributes.

The form is seen from the keys of a message. Nothing is converted but names: texts, tool calls and
their ids are those of the trace.
"""

from __future__ import annotations

import json
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import ValidationError

from hrm_agent.trajectory.formats.shared.json_documents import refused, refused_field
from hrm_agent.trajectory.formats.traces.values import (
    as_text,
    at,
    decoded,
    elements,
    mapping,
    nested,
)
from hrm_agent.trajectory.words import REASONING

__all__ = ["Messages", "blocks_of", "plain_text", "tool_offers"]

_ROLES = {
    "user": "human",
    "human": "human",
    "assistant": "ai",
    "ai": "ai",
    "model": "ai",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
"""Role, or type of LangChain -> type of LangChain."""
_CLASSES = {
    "AIMessage": "ai",
    "AIMessageChunk": "ai",
    "HumanMessage": "human",
    "HumanMessageChunk": "human",
    "SystemMessage": "system",
    "SystemMessageChunk": "system",
    "ToolMessage": "tool",
    "ToolMessageChunk": "tool",
}
_LONGEST_ID = 512


class Messages:
    """Reader of the messages of one trace. Equal messages are one object, since each request
    repeats those of the requests before it.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[BaseMessage]] = {}

    def read(self, value: Any, place: str) -> list[BaseMessage] | None:
        """Messages of a request: a list of messages, a list with one such list, an object with
        `messages`, or a text (None for other values).
        """
        value = _form(value, place)
        if isinstance(value, dict):
            held = cast("dict[str, Any]", value)
            inner = next(
                (held[key] for key in ("messages", "prompts", "input", "prompt") if key in held),
                None,
            )
            if inner is not None and not _is_message(held):
                return self.read(inner, place)
            value = elements(held) or [held]
        if isinstance(value, str):
            return [HumanMessage(value)]
        if not isinstance(value, list):
            return None
        rows = cast("list[Any]", value)
        if len(rows) == 1 and isinstance(rows[0], list):
            rows = cast("list[Any]", rows[0])
        found: list[BaseMessage] = []
        for row in rows:
            if isinstance(row, str):
                found.append(HumanMessage(row))
            elif not isinstance(row, dict) or not _is_message(_opened(cast("Any", row))):
                return None
            else:
                found += self.read_one(cast("dict[str, Any]", row), place)
        return found

    def answer(self, value: Any, place: str) -> AIMessage | None:
        """First answer in a span's output, whatever its role is called (None if there is none)."""
        value = _form(value, place)
        if isinstance(value, str):
            return AIMessage(value) if value else None
        held = mapping(value)
        if isinstance(held.get("messages"), list):
            return self.answer(held["messages"], place)
        rows = [mapping(one) for one in elements(value)] or [held]
        for row in map(_opened, rows):
            if _is_message(row) or "content" in row or "tool_calls" in row:
                known = _ROLES.get(str(row.get("role") or row.get("type")))
                if known in ("human", "system", "tool"):
                    continue
                said = row if known == "ai" else {**row, "role": "assistant"}
                return next(
                    (one for one in self.read_one(said, place) if isinstance(one, AIMessage)), None
                )
        return None

    def read_one(self, row: dict[str, Any], place: str) -> list[BaseMessage]:
        """Message of a row; several if it holds the results of several tools."""
        key = json.dumps(row, sort_keys=True, default=str)
        if key not in self._known:
            try:
                self._known[key] = _messages(_opened(row), place)
            except ValidationError as error:
                refused_field(error, place, "message")
        return self._known[key]


def _is_message(row: dict[str, Any]) -> bool:
    return "role" in row or ("type" in row and ("content" in row or "parts" in row))


def _form(value: Any, place: str) -> Any:
    """`value`, decoded if it is the JSON of messages in one of their forms. Other texts stay as they
    are, also if they are JSON: they are what a user or a model wrote.
    """
    found = decoded(value, place)
    return found if found is value or _has_messages(found) else value


def _has_messages(value: Any) -> bool:
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        opened = _opened(held)
        if _is_message(opened) or "tool_calls" in opened or set(opened) == {"content"}:
            return True
        if set(held) <= {"input", "output", "prompt"} and len(held) == 1:
            return True
        listed = (held[key] for key in ("messages", "prompts", "input", "prompt") if key in held)
        return any(isinstance(one, list) or _has_messages(one) for one in listed)
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    if len(rows) == 1 and isinstance(rows[0], list):
        rows = cast("list[Any]", rows[0])
    return bool(rows) and all(
        isinstance(one, dict) and _has_messages(cast("Any", one)) for one in rows
    )


def blocks_of(value: Any, place: str) -> Any:
    """Content of a message, decoded if it is the JSON of blocks, each with a type."""
    found = decoded(value, place)
    if isinstance(found, list):
        rows = cast("list[Any]", found)
        if rows and all(isinstance(mapping(one).get("type"), str) for one in rows):
            return rows
    return value


def _opened(row: dict[str, Any]) -> dict[str, Any]:
    """Fields of a message, out of LangChain's serialised forms and out of OpenInference's."""
    if row.get("lc") == 1 and isinstance(row.get("kwargs"), dict):
        names = elements(row.get("id"))
        kind = _CLASSES.get(str(names[-1]) if names else "")
        inner = mapping(row["kwargs"])
        return {**inner, **({"type": kind} if kind else {})}
    if isinstance(row.get("data"), dict) and isinstance(row.get("type"), str):
        return {**mapping(row["data"]), "type": row["type"]}
    if any(key.startswith("message.") for key in row):
        row = nested(row, "")
    if isinstance(row.get("message"), dict) and "role" not in row:
        return mapping(row["message"])
    return row


def _messages(row: dict[str, Any], place: str) -> list[BaseMessage]:
    role = str(row.get("role") or row.get("type") or "").removesuffix("MessageChunk").lower()
    kind = _ROLES.get(role)
    if "parts" in row:
        return _of_parts(row, kind, role, place)
    blocks: Any = _content(row)
    results = [
        one
        for one in (blocks if isinstance(blocks, list) else ())
        if isinstance(one, dict) and one.get("type") == "tool_result"
    ]
    if kind == "human" and results:
        rest = [one for one in cast("list[Any]", blocks) if one not in results]
        said: list[BaseMessage] = [
            _tool(
                one.get("content"), one.get("tool_use_id"), None, failed=bool(one.get("is_error"))
            )
            for one in cast("list[dict[str, Any]]", results)
        ]
        return [*said, *([HumanMessage(cast("Any", rest))] if rest else [])]
    name = row.get("name") if isinstance(row.get("name"), str) else None
    match kind:
        case "ai":
            return [_answer(row, blocks, name, place)]
        case "tool":
            asked = row.get("tool_call_id") or row.get("id") or ""
            return [_tool(blocks, asked, name, failed=row.get("status") == "error")]
        case "system":
            return [SystemMessage(blocks, name=name)]
        case "human":
            return [HumanMessage(blocks, name=name)]
        case _:
            return [ChatMessage(content=cast("Any", blocks), role=role or "unknown", name=name)]


def _content(row: dict[str, Any]) -> str | list[Any]:
    """Content: a text, or blocks. A single block of text in OpenInference's form is that text."""
    several = elements(row.get("contents"))
    if several:
        blocks: list[Any] = []
        for one in several:
            held = mapping(mapping(one).get("message_content"))
            if held.get("type") == "text" or "text" in held:
                blocks.append({"type": "text", "text": as_text(held.get("text"))})
            else:
                url = at(held, "image.image.url")
                blocks.append({"type": "image_url", "image_url": {"url": url}} if url else held)
        return blocks
    content = row.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return [
            one if isinstance(one, (str, dict)) else str(one) for one in cast("list[Any]", content)
        ]
    listed = elements(content)
    return listed or json.dumps(content, ensure_ascii=False, default=str)


def _answer(
    row: dict[str, Any], blocks: str | list[Any], name: str | None, place: str
) -> AIMessage:
    calls = elements(row.get("tool_calls"))
    extra = mapping(row.get("additional_kwargs"))
    if not calls and isinstance(blocks, list):
        calls = [one for one in blocks if isinstance(one, dict) and one.get("type") == "tool_use"]
    calls = calls or elements(extra.get("tool_calls"))
    if not calls and isinstance(row.get("function_call"), dict):
        calls = [row["function_call"]]
    thought = row.get("reasoning_content") or extra.get(REASONING)
    facts = {
        key: row[key]
        for key in ("response_metadata", "usage_metadata", "id")
        if isinstance(row.get(key), (dict, str))
    }
    return _with_calls(
        blocks,
        calls,
        place,
        name=name,
        additional_kwargs={
            **{key: value for key, value in extra.items() if key != "tool_calls"},
            **({REASONING: thought} if isinstance(thought, str) and thought else {}),
        },
        invalid_tool_calls=[
            {**mapping(one), "type": "invalid_tool_call"}
            for one in elements(row.get("invalid_tool_calls"))
        ],
        **facts,
    )


def _with_calls(content: str | list[Any], calls: list[Any], place: str, **facts: Any) -> AIMessage:
    """Answer with its tool calls. A call whose arguments are no JSON object is an invalid one."""
    valid: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = list(facts.pop("invalid_tool_calls", ()))
    for one in calls:
        row = mapping(one)
        if any(key.startswith("tool_call.") for key in row):
            row = nested(row, place)
        row = mapping(row.get("tool_call")) or row
        function = mapping(row.get("function")) or row
        id_ = row.get("id")
        if id_ is not None and (not isinstance(id_, str) or len(id_) > _LONGEST_ID):
            refused(place, "tool_calls", f"an id is no text of at most {_LONGEST_ID} characters")
        given = next(
            (function[key] for key in ("args", "arguments", "input") if key in function), None
        )
        arguments = {} if given in (None, "") else decoded(given, place)
        call = {"name": as_text(function.get("name")), "id": id_}
        if isinstance(arguments, dict):
            valid.append({**call, "args": arguments, "type": "tool_call"})
        else:
            invalid.append(
                {
                    **call,
                    "args": as_text(given),
                    "error": "the arguments are no JSON object",
                    "type": "invalid_tool_call",
                }
            )
    return AIMessage(cast("Any", content), tool_calls=valid, invalid_tool_calls=invalid, **facts)


def _tool(content: Any, asked: Any, name: str | None, *, failed: bool) -> ToolMessage:
    if isinstance(content, dict):
        content = json.dumps(content, ensure_ascii=False, default=str)
    return ToolMessage(
        content if isinstance(content, (str, list)) else as_text(content),
        tool_call_id=as_text(asked)[:_LONGEST_ID],
        name=name,
        status="error" if failed else "success",
    )


def _of_parts(row: dict[str, Any], kind: str | None, role: str, place: str) -> list[BaseMessage]:
    """Messages of OpenTelemetry's parts."""
    parts = [mapping(one) for one in elements(row.get("parts"))]
    results = [one for one in parts if one.get("type") == "tool_call_response"]
    said: list[BaseMessage] = [
        _tool(
            one.get("response", one.get("result", one.get("content"))),
            one.get("id"),
            row.get("name") if isinstance(row.get("name"), str) else None,
            failed=False,
        )
        for one in results
    ]
    blocks: list[Any] = []
    thoughts: list[str] = []
    calls: list[Any] = []
    for one in parts:
        match one.get("type"):
            case "tool_call_response":
                pass
            case "tool_call":
                calls.append(one)
            case "reasoning" | "thinking":
                thoughts.append(as_text(one.get("content")))
            case "text":
                blocks.append({"type": "text", "text": as_text(one.get("content"))})
            case "uri":
                blocks.append({"type": "image_url", "image_url": {"url": as_text(one.get("uri"))}})
            case _:
                blocks.append(one)
    if results and not blocks:
        return said
    single = len(blocks) == 1 and blocks[0].get("type") == "text"
    content: Any = blocks[0]["text"] if single else blocks or ""
    name = row.get("name") if isinstance(row.get("name"), str) else None
    if kind == "ai":
        extra = {REASONING: "\n\n".join(thoughts)} if thoughts else {}
        return [_with_calls(content, calls, place, name=name, additional_kwargs=extra)]
    if kind == "tool" and not results:
        return [_tool(content, row.get("tool_call_id") or row.get("id"), name, failed=False)]
    made = {"system": SystemMessage, "human": HumanMessage, "tool": HumanMessage}.get(kind or "")
    return [
        *said,
        made(content, name=name) if made else ChatMessage(content=content, role=role or "unknown"),
    ]


def tool_offers(value: Any, place: str) -> list[dict[str, Any]]:
    """Tools offered, in OpenAI's form where a name, a description and parameters are given."""
    found: list[dict[str, Any]] = []
    for one in elements(decoded(value, place)):
        row = mapping(decoded(one, place))
        row = mapping(row.get("tool")) or row
        row = mapping(decoded(row.get("json_schema"), place)) or row
        if isinstance(row.get("name"), str) and "function" not in row and "input_schema" not in row:
            kept = ("name", "description", "parameters", "strict")
            function = {
                key: decoded(row[key], place) if key == "parameters" else row[key]
                for key in kept
                if key in row
            }
            row = {"type": "function", "function": function}
        if row:
            found.append(row)
    return found


def plain_text(value: Any, messages: Messages, place: str) -> str | None:
    """Text of the newest message in a span's input or output, or the text itself (None if it holds
    none).
    """
    value = _form(value, place)
    if isinstance(value, str):
        return value or None
    read = messages.read(value, place)
    if read is None and isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        return plain_text(held["output"], messages, place) if "output" in held else None
    return (read[-1].text or None) if read else None
