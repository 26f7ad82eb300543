"""Forms of JSON behind a mark, or behind none: Llama 3, Mistral, DeepSeek, Granite.

* Llama 3.1 and later: `{"name": ..., "parameters": {...}}` as the whole answer, or after `<|python_tag|>`, where bare
  code may stand as well: it is for the tool that takes one string.
* Mistral: `[TOOL_CALLS]` and an array, or name and arguments each: `[TOOL_CALLS]name[ARGS]{...}`.
* DeepSeek V3 and R1: tokens around each call, a name, and JSON in a fence; V3.1 without the fence.
* Granite and Phi-4: an array after `<|tool_call|>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hrm_agent.models.codec.calls.form import (
    CallForm,
    Schemas,
    add_call,
    add_invalid,
    add_named_call,
    decode_json,
    json_text,
    skip_space,
    unclosed,
)
from hrm_agent.models.engine import ParsedTurn

__all__ = ["DEEPSEEK", "GRANITE", "LLAMA", "MISTRAL"]

_ARGUMENTS = ("arguments", "parameters")
_PYTHON = "<|python_tag|>"
_CALLS = "[TOOL_CALLS]"
_ARRAY = "<|tool_call|>"
_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def _read_llama(text: str, schemas: Schemas) -> ParsedTurn:
    content, mark, rest = text.partition(_PYTHON)
    if mark:
        turn = ParsedTurn(content.strip())
        if rest.lstrip().startswith("{"):
            _read_objects(rest.strip(), turn)
        else:
            _read_code(rest.strip(), schemas, turn)
        return turn
    stripped = text.strip()
    if not _is_call(stripped):
        return ParsedTurn(text)
    turn = ParsedTurn("")
    _read_objects(stripped, turn)
    return turn


def _is_call(text: str) -> bool:
    """True for an object that names a tool, and for one that is broken and begins as such."""
    if not text.startswith("{"):
        return False
    try:
        value, _ = decode_json(text)
    except ValueError:
        return re.match(r'\{\s*"(type|name|function)"\s*:', text) is not None
    return "name" in value and any(key in value for key in _ARGUMENTS)


def _read_objects(text: str, turn: ParsedTurn) -> None:
    """Calls one after the other, with white space or a semicolon between them."""
    position = 0
    while position < len(text):
        try:
            value, end = decode_json(text, position)
        except ValueError as error:
            return add_invalid(None, text[position:], str(error), turn)
        add_named_call(value, text[position:end], turn, keys=("parameters", "arguments"))
        position = skip_space(text, end)
        position = skip_space(text, position + text.startswith(";", position))
    return None


def _read_code(code: str, schemas: Schemas, turn: ParsedTurn) -> None:
    takers = [(name, only) for name, schema in schemas.items() if (only := _only_string(schema))]
    if len(takers) != 1:
        return add_invalid(None, code, "bare code is for a tool that takes one string, and there is not one", turn)
    name, argument = takers[0]
    return add_call(name, {argument: code}, code, turn)


def _only_string(schema: Mapping[str, Any]) -> str:
    """Name of the one argument that has to be given, if it is a string."""
    known = cast("Mapping[str, Any]", schema.get("properties") or {})
    wanted = cast("Sequence[str]", schema.get("required") or list(known))
    declared: Any = known.get(wanted[0]) if len(wanted) == 1 else None
    return wanted[0] if isinstance(declared, Mapping) and cast("Any", declared).get("type") == "string" else ""


def _write_llama(calls: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(json_text({"name": call["name"], "parameters": call["args"]}) for call in calls)


def _read_mistral(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    content, mark, rest = text.partition(_CALLS)
    if not mark:
        return ParsedTurn(text)
    turn = ParsedTurn(content.strip())
    if rest.lstrip().startswith(("[{", "[ {", "[]", "[\n")):
        _read_array(rest.strip(), turn)
        return turn
    for each in rest.split(_CALLS):
        _read_named(each.strip(), turn)
    return turn


def _read_named(text: str, turn: ParsedTurn) -> None:
    name, mark, rest = text.partition("[ARGS]")
    name = name.partition("[CALL_ID]")[0].strip()
    if not mark:  # before the mark was made, a name was followed by its arguments
        start = text.find("{")
        name, rest = (text[:start].strip(), text[start:]) if start >= 0 else (text, "")
    try:
        value, end = decode_json(rest, skip_space(rest, 0))
    except ValueError as error:
        return add_invalid(name or None, text, str(error), turn)
    if skip_space(rest, end) < len(rest):
        return add_invalid(name or None, text, "text stands after the arguments", turn)
    return add_named_call({"name": name, "arguments": value}, text, turn)


def _read_array(text: str, turn: ParsedTurn) -> None:
    try:
        value, end = decode_json(text)
    except ValueError as error:
        return add_invalid(None, text, str(error), turn)
    if not isinstance(value, list):
        return add_named_call(value, text[:end], turn, keys=_ARGUMENTS)
    for each in cast("list[Any]", value):
        add_named_call(each, json_text(each), turn, keys=_ARGUMENTS)
    if left := text[end:].strip():
        add_invalid(None, left, "text stands after the calls", turn)
    return None


def _write_array(calls: Sequence[Mapping[str, Any]]) -> str:
    return json_text([{"name": call["name"], "arguments": call["args"]} for call in calls])


def _write_mistral(calls: Sequence[Mapping[str, Any]]) -> str:
    return _CALLS + _write_array(calls)


def _read_granite(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    content, mark, rest = text.partition(_ARRAY)
    if not mark:
        return ParsedTurn(text)
    turn = ParsedTurn(content.strip())
    _read_array(rest.strip().removesuffix("<|/tool_call|>").strip(), turn)
    return turn


def _write_granite(calls: Sequence[Mapping[str, Any]]) -> str:
    return _ARRAY + _write_array(calls)


def _read_deepseek(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    content, mark, rest = text.partition(_SECTION)
    if not mark:
        return ParsedTurn(text)
    turn = ParsedTurn(content.strip())
    section, _, after = _rpartition(rest, _SECTION_END)
    pieces = section.split(_CALL)
    for piece in pieces[1:]:
        _read_deepseek_call(piece, turn)
    if len(pieces) < 2 or pieces[0].strip():
        add_invalid(None, section.strip(), f"a call begins with {_CALL}", turn)
    return ParsedTurn((turn.content + after.strip()).strip(), turn.tool_calls, turn.invalid_tool_calls)


def _rpartition(text: str, mark: str) -> tuple[str, str, str]:
    """`str.rpartition` that leaves a text without the mark in front."""
    return text.rpartition(mark) if mark in text else (text, "", "")


def _read_deepseek_call(text: str, turn: ParsedTurn) -> None:
    call, closed, _ = _rpartition(text, _CALL_END)
    before, separator, after = call.partition(_SEPARATOR)
    raw = call.strip()
    if not separator:
        return add_invalid(None, raw, f"the call has no {_SEPARATOR}", turn)
    fenced = re.match(r"\s*([^\n]*?)\s*\n```json\s*\n", after)
    name = fenced.group(1) if fenced else before.strip()
    if not closed:
        return add_invalid(name or None, raw, unclosed(_CALL_END), turn)
    start = fenced.end() if fenced else 0
    try:
        value, end = decode_json(after, skip_space(after, start))
    except ValueError as error:
        return add_invalid(name or None, raw, str(error), turn)
    if after[end:].strip() not in (("```",) if fenced else ("",)):
        return add_invalid(name or None, raw, "text stands after the arguments", turn)
    return add_named_call({"name": name, "arguments": value}, raw, turn)


def _write_deepseek(calls: Sequence[Mapping[str, Any]]) -> str:
    written = (
        f"{_CALL}function{_SEPARATOR}{call['name']}\n```json\n{json_text(call['args'])}\n```{_CALL_END}"
        for call in calls
    )
    return f"{_SECTION}{chr(10).join(written)}{_SECTION_END}"


LLAMA = CallForm("llama", (_PYTHON,), (_PYTHON,), _read_llama, _write_llama, ends=("<|eom_id|>",), opening=("{",))
MISTRAL = CallForm("mistral", (_CALLS,), (_CALLS, "[ARGS]", "[CALL_ID]"), _read_mistral, _write_mistral)
GRANITE = CallForm("granite", (_ARRAY,), (_ARRAY, "<|/tool_call|>"), _read_granite, _write_granite)
DEEPSEEK = CallForm(
    "deepseek", (_SECTION,), (_SECTION, _SECTION_END, _CALL, _CALL_END, _SEPARATOR), _read_deepseek, _write_deepseek
)
