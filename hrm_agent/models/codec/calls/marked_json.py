"""Forms of JSON with or without a mark in front: Llama 3, Mistral, DeepSeek, Granite.

* Llama 3.1 and later: `{"name": ..., "parameters": {...}}` as the whole answer, or after
  `<|python_tag|>`. Bare code may follow that tag, too, if exactly one offered tool takes a single
  string.
* Mistral: `[TOOL_CALLS]` and an array, or for each call, `[TOOL_CALLS]name[ARGS]{...}`.
* DeepSeek V3 and R1: tokens around each call, which is a name and JSON in a fence. V3.1 has no
  fence.
* Granite and Phi-4: an array after `<|tool_call|>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hrm_agent.models.codec.calls.form import (
    CallForm,
    Scan,
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
_SECTION = "<｜tool▁calls▁begin｜>"
_SECTION_END = "<｜tool▁calls▁end｜>"
_CALL = "<｜tool▁call▁begin｜>"
_CALL_END = "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCED = re.compile(r"[ \t\r\n]*+([^\s`<]++)[ \t\r]*+\n```json[ \t\r]*+\n")
_FENCE_END = re.compile(rf"\s*+```\s*+{_CALL_END}")
_PLAIN_END = re.compile(rf"\s*+{_CALL_END}")


def _read_llama(text: str, schemas: Schemas) -> ParsedTurn:
    stripped = text.strip()
    content, mark, rest = text.partition(_PYTHON)
    if _is_call(stripped):
        turn = ParsedTurn("")
        _read_objects(stripped, turn)
    elif not mark:
        return ParsedTurn(text)
    else:
        turn = ParsedTurn(content.strip())
        if rest.lstrip().startswith("{"):
            _read_objects(rest.strip(), turn)
        else:
            _read_code(rest.strip(), schemas, turn)
    return turn


def _is_call(text: str) -> bool:
    """True if `text` begins with an object that names a tool, even if the object is invalid further
    on.
    """
    if not text.startswith("{"):
        return False
    try:
        value, _ = decode_json(text)
    except ValueError:
        return re.match(r'\{\s*"(type|name|function)"\s*:', text) is not None
    return "name" in value and any(key in value for key in _ARGUMENTS)


def _read_objects(text: str, turn: ParsedTurn) -> None:
    """Read consecutive calls, with white space or a semicolon between them."""
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
        return add_invalid(
            None, code, "bare code is for a tool that takes one string, and there is not one", turn
        )
    name, argument = takers[0]
    return add_call(name, {argument: code}, code, turn)


def _only_string(schema: Mapping[str, Any]) -> str:
    """Name of the only required argument, if it is a string."""
    known = cast("Mapping[str, Any]", schema.get("properties") or {})
    wanted = cast("Sequence[str]", schema.get("required") or list(known))
    declared: Any = known.get(wanted[0]) if len(wanted) == 1 else None
    return (
        wanted[0]
        if isinstance(declared, Mapping) and cast("Any", declared).get("type") == "string"
        else ""
    )


def _write_llama(calls: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(
        json_text({"name": call["name"], "parameters": call["args"]}) for call in calls
    )


def _read_mistral(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    content, mark, rest = text.partition(_CALLS)
    if not mark:
        return ParsedTurn(text)
    turn = ParsedTurn(content.strip())
    if re.match(r"\s*+\[\s*+[{\]]", rest):
        _read_array(rest.strip(), turn)
        return turn
    scan = Scan(rest)
    position = 0
    while position <= len(rest):
        position = _read_named(scan, position, turn)
    return turn


def _read_named(scan: Scan, start: int, turn: ParsedTurn) -> int:
    """Add the call at `start` to `turn`, and return the position after the mark of the next one."""
    text = scan.text
    following = scan.find(_CALLS, start)
    end = following if following >= 0 else len(text)
    name, mark, _ = text[start:end].partition("[ARGS]")
    if not mark:  # before the mark existed, arguments followed the name directly
        name = text[start:end].partition("{")[0]
    begin = skip_space(text, start + len(name) + len(mark))
    name = name.partition("[CALL_ID]")[0].strip()
    try:
        value, after = decode_json(text, begin)
        after = skip_space(text, after)
        if after < len(text) and not text.startswith(_CALLS, after):
            raise ValueError("text stands after the arguments")
    except ValueError as error:
        add_invalid(name or None, text[start:end].strip(), str(error), turn)
        return end + len(_CALLS)
    add_named_call({"name": name, "arguments": value}, text[start:after].strip(), turn)
    return after + len(_CALLS)


def _read_array(text: str, turn: ParsedTurn) -> None:
    try:
        value, end = decode_json(text)
    except ValueError as error:
        return add_invalid(None, text, str(error), turn)
    if not isinstance(value, list):
        return add_named_call(value, text[:end], turn, keys=_ARGUMENTS)
    position = 1
    for each in cast("list[Any]", value):
        begin = skip_space(text, position)
        _, after = decode_json(text, begin)
        add_named_call(each, text[begin:after], turn, keys=_ARGUMENTS)
        position = skip_space(text, after) + 1
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
    scan = Scan(text)
    turn = ParsedTurn("")
    kept = list[str]()
    position = 0
    while (start := scan.find(_SECTION, position)) >= 0:
        kept.append(text[position:start])
        position = _read_section(scan, start + len(_SECTION), turn)
    if not kept:
        return ParsedTurn(text)
    kept.append(text[position:])
    return ParsedTurn("".join(kept).strip(), turn.tool_calls, turn.invalid_tool_calls)


def _read_section(scan: Scan, start: int, turn: ParsedTurn) -> int:
    """Add the calls of a section to `turn`, and return the position after it."""
    text = scan.text
    position = skip_space(scan.text, start)
    while text.startswith(_CALL, position):
        position = skip_space(text, _read_deepseek_call(scan, position + len(_CALL), turn))
    if position > skip_space(text, start) and text.startswith(_SECTION_END, position):
        return position + len(_SECTION_END)
    ends = [at for mark in (_SECTION_END, _SECTION) if (at := scan.find(mark, position)) >= 0]
    end = min(ends, default=len(text))
    if raw := text[position:end].strip():
        add_invalid(None, raw, f"a call begins with {_CALL}", turn)
    elif position == skip_space(text, start):
        add_invalid(None, "", f"a call begins with {_CALL}", turn)
    return end + len(_SECTION_END) if text.startswith(_SECTION_END, end) else end


def _read_deepseek_call(scan: Scan, start: int, turn: ParsedTurn) -> int:
    """Add the call at `start` to `turn`, and return the position after it."""
    text = scan.text
    separator = scan.find(_SEPARATOR, start)
    ends = [
        at
        for mark in (_CALL_END, _CALL, _SECTION_END, _SECTION)
        if (at := scan.find(mark, start)) >= 0
    ]
    end = min(ends, default=len(text))
    if not start <= separator < end:
        return _undecodable(text, start, end, None, f"the call has no {_SEPARATOR}", turn)
    begin = separator + len(_SEPARATOR)
    fenced = _FENCED.match(text, begin)
    name = fenced.group(1) if fenced else text[start:separator].strip()
    try:
        value, after = decode_json(text, skip_space(text, fenced.end() if fenced else begin))
    except ValueError as error:
        return _undecodable(text, start, end, name, str(error), turn)
    closed = (_FENCE_END if fenced else _PLAIN_END).match(text, after)
    if closed is None:
        return _undecodable(text, start, end, name, "text stands after the arguments", turn)
    add_named_call({"name": name, "arguments": value}, text[start : closed.end()].strip(), turn)
    return closed.end()


def _undecodable(
    text: str, start: int, end: int, name: str | None, why: str, turn: ParsedTurn
) -> int:
    closed = text.startswith(_CALL_END, end)
    add_invalid(name or None, text[start:end].strip(), why if closed else unclosed(_CALL_END), turn)
    return end + len(_CALL_END) * closed


def _write_deepseek(calls: Sequence[Mapping[str, Any]]) -> str:
    written = (
        f"{_CALL}function{_SEPARATOR}{call['name']}\n```json\n{json_text(call['args'])}\n```{_CALL_END}"
        for call in calls
    )
    return f"{_SECTION}{chr(10).join(written)}{_SECTION_END}"


LLAMA = CallForm(
    "llama",
    (_PYTHON,),
    (_PYTHON,),
    _read_llama,
    _write_llama,
    ends=("<|eom_id|>",),
    words="",
    opening=("{",),
)
MISTRAL = CallForm(
    "mistral", (_CALLS,), (_CALLS, "[ARGS]", "[CALL_ID]"), _read_mistral, _write_mistral
)
GRANITE = CallForm("granite", (_ARRAY,), (_ARRAY, "<|/tool_call|>"), _read_granite, _write_granite)
DEEPSEEK = CallForm(
    "deepseek",
    (_SECTION,),
    (_SECTION, _SECTION_END, _CALL, _CALL_END, _SEPARATOR),
    _read_deepseek,
    _write_deepseek,
)
