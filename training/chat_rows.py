"""Converter of conversation rows in common formats to OpenAI's format.

Accepted are `messages` with `role` and `content`, and ShareGPT's `conversations` with `from` and
`value`. Calls may lack an id, a `type` and the wrapper `function`; their arguments are an object or
JSON text. Results name their call by its id or by the tool, or follow the order of calls. `tools`
is a list or JSON text. Missing ids are generated: `call_0`, `call_1` and so on. Null counts as a
missing field, since tables fill missing fields with null, but is kept in arguments that come as
text. Thoughts of an answer are taken from `reasoning_content`, `reasoning` or `thinking`, and from
parts of its content. Ambiguous rows and unknown fields are refused: if they were dropped silently,
the policy would learn something else than the row contains.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from hrm_agent.trajectory.words import REASONING, thoughts_of

__all__ = ["chat_of"]

Fields = dict[str, Any]

_ROLES = {
    "ai": "assistant",
    "assistant": "assistant",
    "developer": "developer",
    "function": "tool",
    "function_call": "assistant",
    "gpt": "assistant",
    "human": "user",
    "model": "assistant",
    "observation": "tool",
    "system": "system",
    "tool": "tool",
    "user": "user",
}
_THOUGHTS = (REASONING, "reasoning", "thinking")
"""Names of fields with an answer's thoughts. The second and third are also types of
content parts.
"""
_OF_MESSAGES = {
    *("annotations", "audio", "content", "from", "function_call", "id", "name", "refusal", "role"),
    *("tool_call_id", "tool_calls", "type", "value", "weight"),
    *_THOUGHTS,
    *(
        "additional_kwargs",
        "artifact",
        "example",
        "invalid_tool_calls",
        "response_metadata",
        "status",
        "usage_metadata",
    ),
}
_OF_CALLS = {"args", "arguments", "function", "id", "index", "name", "parameters", "type"}


class _Calls:
    """Tool calls of a conversation, and the calls that have no result yet."""

    def __init__(self) -> None:
        self._all: list[Fields] = []
        self._waiting: list[Fields] = []

    def add(self, call: Fields) -> None:
        self._all.append(call)
        self._waiting.append(call)

    def answered(self, message: Fields, place: str) -> Fields:
        """Return the call to which a result belongs, and give the call the result's id.

        A result with an unknown id is accepted, since its call may be outside of the row. Raises
        `ValueError` if a result without an id matches no call.
        """
        id_ = message.get("tool_call_id")
        name = message.get("name")
        call = next((each for each in self._waiting if id_ is not None and each["id"] == id_), None)
        if call is None:
            free = [each for each in self._waiting if each["id"] is None or id_ is None]
            call = next((each for each in free if name in (None, each["function"]["name"])), None)
        if call is None and id_ is not None:
            return {"id": id_}
        if call is None:
            named = f"name {name!r}" if name else "no tool_call_id"
            raise ValueError(f"{place} is the result of no call before it: it has {named}")
        self._waiting.remove(call)
        call["id"] = call["id"] if id_ is None else id_
        return call

    def number(self) -> None:
        """Generate missing ids."""
        taken = {call["id"] for call in self._all}
        fresh = (
            f"call_{number}"
            for number in range(2 * len(self._all) + 1)
            if f"call_{number}" not in taken
        )
        for call in self._all:
            call["id"] = next(fresh) if call["id"] is None else call["id"]


def chat_of(row: Any) -> tuple[list[Fields], list[Fields]]:
    """Convert a row to (messages, tools) in OpenAI's format. Calls have an id, and arguments as
    text.

    Raises `ValueError` or `TypeError` that names the invalid field.
    """
    if not isinstance(row, dict):
        raise TypeError("a row has to be an object")
    fields = _given(cast("Fields", row))
    columns = ("messages", "conversations", "conversation")
    named = [key for key in columns if key in fields] or [key for key in columns if key in row]
    if len(named) != 1:
        raise ValueError(
            f"it has {' and '.join(named) or 'no messages'}, and the columns"
            f" {', '.join(fields) or 'none'}"
        )
    listed = _objects(fields.get(named[0]), named[0])
    calls = _Calls()
    messages: list[Fields] = []
    results: list[tuple[Fields, Fields]] = []
    for number, message in enumerate(listed):
        place = f"{named[0]}[{number}]"
        messages.append(_message(message, place, calls))
        if messages[-1]["role"] == "tool":
            results.append((messages[-1], calls.answered(message, place)))
    calls.number()
    for message, call in results:
        message["tool_call_id"] = call["id"]
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return messages, [
        _tool(tool, f"tools[{number}]") for number, tool in enumerate(_tools(fields.get("tools")))
    ]


def _message(given: Fields, place: str, calls: _Calls) -> Fields:
    unknown = given.keys() - _OF_MESSAGES
    if unknown:
        raise ValueError(f"{place} has the unknown fields {', '.join(sorted(unknown))}")
    said = _one_of(given, ("role", "from"), place, needed="type" not in given)
    said = given["type"] if said is None else said
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise ValueError(f"{place} has the role {said!r}; known are {', '.join(sorted(_ROLES))}")
    content = _one_of(
        given, ("content", "value"), place, needed=role in ("user", "system", "developer")
    )
    kept = {
        key: given[key]
        for key in given.keys() - {"from", "function_call", "role", "type", "value", *_THOUGHTS}
    }
    thoughts, content = _apart(given, content, place) if role == "assistant" else ("", content)
    if any(key in given for key in _THOUGHTS) and role != "assistant":
        raise ValueError(f"{place} has thoughts, but its role is {said}")
    message: Fields = {**kept, "role": role, "content": _text(content, f"{place}.content")}
    if thoughts:
        message[REASONING] = thoughts
    asked = [*_calls(given, place)]
    if said == "function_call":
        asked, message["content"] = [(message["content"], f"{place}.value")], ""
    if asked and role != "assistant":
        raise ValueError(f"{place} has calls, but its role is {said}")
    message.pop("tool_calls", None)
    if asked:
        message["tool_calls"] = [_call(call, where) for call, where in asked]
        for call in message["tool_calls"]:
            calls.add(call)
    return message


def _apart(given: Fields, content: Any, place: str) -> tuple[str, Any]:
    """Separate the thoughts of an answer from its content: (thoughts, content)."""
    fields = [key for key in _THOUGHTS if key in given]
    stated = given[fields[0]] if fields else ""
    # some servers send the same text under two names
    others = [key for key in fields if given[key] != stated]
    if others:
        raise ValueError(f"{place} has other thoughts in {fields[0]} than in {others[0]}")
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    marked = [part for part in parts if isinstance(part, dict) and part.get("type") in _THOUGHTS]
    found = thoughts_of({"content": marked}) or ""
    if not isinstance(stated, str) or (marked and not found):
        raise TypeError(
            f"{place} has thoughts that are no text: {json.dumps(marked or stated)[:80]}"
        )
    if stated and found:
        raise ValueError(f"{place} has thoughts in a field and in its content")
    return stated or found, [part for part in parts if part not in marked] if marked else content


def _calls(given: Fields, place: str) -> Iterator[tuple[Any, str]]:
    if "tool_calls" in given and "function_call" in given:
        raise ValueError(f"{place} has both tool_calls and function_call")
    if "function_call" in given:
        yield given["function_call"], f"{place}.function_call"
    listed = _decoded(given.get("tool_calls", []), f"{place}.tool_calls")
    for number, call in enumerate(_objects(listed, f"{place}.tool_calls")):
        as_text = isinstance(given["tool_calls"], str)
        yield json.dumps(call) if as_text else call, f"{place}.tool_calls[{number}]"


def _call(given: Any, place: str) -> Fields:
    call = _object(_decoded(given, place), place)
    if call.get("type", "function") != "function":
        raise ValueError(f"{place}.type is {call['type']!r}, not 'function'")
    function = _object(call["function"], f"{place}.function") if "function" in call else call
    if function is not call and call.keys() & {"name", "arguments", "args", "parameters"}:
        raise ValueError(f"{place} has a name or arguments beside function")
    unknown = (call.keys() | function.keys()) - _OF_CALLS
    if unknown:
        raise ValueError(f"{place} has the unknown fields {', '.join(sorted(unknown))}")
    name = function.get("name")
    id_ = call.get("id")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{place} has no name")
    if id_ is not None and not isinstance(id_, str):
        raise ValueError(f"{place}.id is {id_!r}, not a text")
    key = next((key for key in ("arguments", "args", "parameters") if key in function), "arguments")
    _one_of(function, ("arguments", "args", "parameters"), place, needed=False)
    written = function.get(key) or {}
    arguments = _decoded(written, f"{place}.{key}")
    fields = _object(arguments, f"{place}.{key}")
    # if arguments came as text, nulls are kept, since no table has filled them in
    as_text = isinstance(given, str) or isinstance(written, str)
    return {
        "id": id_,
        "type": "function",
        "function": {"name": name, "arguments": arguments if as_text else fields},
    }


def _tools(given: Any) -> list[Fields]:
    try:
        listed = _decoded(given or [], "tools")
    except ValueError:
        listed = None
    if not isinstance(listed, list):
        raise TypeError("`tools` has to be a list of objects, or such a list as JSON")
    decoded = [
        _decoded(tool, f"tools[{number}]") for number, tool in enumerate(cast("list[Any]", listed))
    ]
    return _objects(decoded, "tools")


def _tool(tool: Fields, place: str) -> Fields:
    if "name" not in tool:
        return tool
    if "function" in tool:
        raise ValueError(f"{place} has a name beside function")
    return {
        "type": "function",
        "function": {key: value for key, value in tool.items() if key != "type"},
    }


def _text(content: Any, place: str) -> str:
    """Text of a message's content, in which the texts of parts are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[str] = []
    for number, part in enumerate(
        cast("list[Any]", content) if isinstance(content, list) else [content]
    ):
        where = f"{place}[{number}]" if isinstance(content, list) else place
        text = (
            part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        )
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if not isinstance(text, str) or kind not in ("text", "input_text", "output_text"):
            raise TypeError(f"{where} is no text: {json.dumps(part)[:80]}")
        parts.append(text)
    return "".join(parts)


def _one_of(given: Fields, keys: tuple[str, ...], place: str, *, needed: bool = True) -> Any:
    """Value of the key, among `keys`, that `given` has (None if it has no such key and none is
    `needed`). Raises `ValueError` if it has several, or none although one is needed.
    """
    there = [key for key in keys if key in given]
    if len(there) > 1:
        raise ValueError(f"{place} has both {there[0]} and {there[1]}")
    if not there and needed:
        raise ValueError(f"{place} has no {' and no '.join(keys)}")
    return given[there[0]] if there else None


def _decoded(value: Any, place: str) -> Any:
    """Decode a text as JSON. A value that is not a text is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}") from error


def _objects(value: Any, place: str) -> list[Fields]:
    if not isinstance(value, list) or not all(
        isinstance(each, dict) for each in cast("list[Any]", value)
    ):
        raise TypeError(f"`{place}` has to be a list of objects")
    return [_given(cast("Fields", each)) for each in cast("list[Any]", value)]


def _object(value: Any, place: str) -> Fields:
    if not isinstance(value, dict):
        raise TypeError(f"{place} is not an object: {json.dumps(value)[:80]}")
    return _given(cast("Fields", value))


def _given(fields: Fields) -> Fields:
    return {key: value for key, value in fields.items() if value is not None}
