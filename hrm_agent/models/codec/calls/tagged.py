"""Forms of tags: Qwen's coder models (3.5 to 3.8 and Nemotron 3, too), GLM, and Muse's ATEM.

Values stand between tags as they are, so that a type is the schema's to say. A value ends where its closing tag is
followed by what may follow it, since code may hold the tag itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hrm_agent.models.codec.calls.form import (
    CallForm,
    Schemas,
    add_call,
    add_invalid,
    as_declared,
    json_text,
    skip_space,
    unclosed,
)
from hrm_agent.models.engine import ParsedTurn

__all__ = ["ATEM", "GLM", "QWEN_XML", "read_atem"]


@dataclass(frozen=True, slots=True)
class _Tags:
    """Spellings of a form. Patterns have one group, a name."""

    block: str
    call: re.Pattern[str]
    argument: re.Pattern[str]
    argument_end: str
    call_end: str
    block_end: str
    lines: bool
    """A value stands on lines of its own."""
    example: str
    """How a call begins, for who wrote it otherwise."""

    def end_of_value(self, text: str, position: int) -> int:
        """Where the value at `position` ends, or -1."""
        end = text.find(self.argument_end, position)
        while end >= 0:
            after = skip_space(text, end + len(self.argument_end))
            if self.argument.match(text, after) or text.startswith(self.call_end or self.block_end, after):
                return end
            end = text.find(self.argument_end, end + 1)
        return -1


class _Unreadable(Exception):
    """Raised with the reason that the policy is shown."""


def _read(tags: _Tags, text: str, schemas: Schemas) -> ParsedTurn:
    turn, kept, position = ParsedTurn(""), list[str](), 0
    while (start := text.find(tags.block, position)) >= 0:
        kept.append(text[position:start])
        position = _read_block(tags, text, start, schemas, turn)
    if not kept:
        return ParsedTurn(text)
    kept.append(text[position:])
    return ParsedTurn("".join(kept).strip(), turn.tool_calls, turn.invalid_tool_calls)


def _read_block(tags: _Tags, text: str, start: int, schemas: Schemas, turn: ParsedTurn) -> int:
    """Add the calls of the block at `start` to `turn`; the position after the block."""
    found = ParsedTurn("")
    try:
        end = _calls(tags, text, start + len(tags.block), schemas, found)
    except _Unreadable as error:
        return _undecodable(tags, text, start, str(error), turn)
    turn.tool_calls.extend(found.tool_calls)
    turn.invalid_tool_calls.extend(found.invalid_tool_calls)
    return end


def _calls(tags: _Tags, text: str, position: int, schemas: Schemas, found: ParsedTurn) -> int:
    position = skip_space(text, position)
    begun = False
    while not text.startswith(tags.block_end, position) or not begun:
        start = position
        opened = tags.call.match(text, position)
        if opened is None:
            raise _Unreadable(f"a call begins with {tags.example}" if not begun else unclosed(tags.block_end))
        name = opened.group(1).strip()
        arguments, position = _arguments(tags, text, opened.end(), schemas.get(name, {}))
        if not text.startswith(tags.call_end, position):
            raise _Unreadable(unclosed(tags.call_end or tags.block_end))
        position = skip_space(text, position + len(tags.call_end))
        add_call(name, arguments, text[start:position].strip(), found)
        begun = True
        if not tags.call_end:
            break
    if not text.startswith(tags.block_end, position):
        raise _Unreadable(unclosed(tags.block_end))
    return position + len(tags.block_end)


def _arguments(tags: _Tags, text: str, position: int, schema: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    arguments: dict[str, Any] = {}
    position = skip_space(text, position)
    while opened := tags.argument.match(text, position):
        end = tags.end_of_value(text, opened.end())
        if end < 0:
            raise _Unreadable(f"the argument {opened.group(1)!r} is not closed by {tags.argument_end}")
        value = text[opened.end() : end]
        if tags.lines:
            value = value.removeprefix("\n").removesuffix("\n")
        arguments[opened.group(1)] = as_declared(value, schema, opened.group(1))
        position = skip_space(text, end + len(tags.argument_end))
    return arguments, position


def _undecodable(tags: _Tags, text: str, start: int, why: str, turn: ParsedTurn) -> int:
    end = text.find(tags.block_end, start)
    following = text.find(tags.block, start + 1)
    if end < 0 or 0 <= following < end:
        end = following if following >= 0 else len(text)
        why = unclosed(tags.block_end)
    else:
        end += len(tags.block_end)
    named = tags.call.search(text, start + len(tags.block), end)
    add_invalid(named.group(1).strip() if named else None, text[start:end].strip(), why, turn)
    return end


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _write_qwen(calls: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(_qwen_call(call["name"], call["args"]) for call in calls)


def _qwen_call(name: str, arguments: Mapping[str, Any]) -> str:
    values = "".join(f"<parameter={key}>\n{_plain(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _write_glm(calls: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_glm_call(call["name"], call["args"]) for call in calls)


def _glm_call(name: str, arguments: Mapping[str, Any]) -> str:
    values = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"\n<tool_call>{name}\n{values}</tool_call>"


def _write_atem(calls: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(_atem_call(call["name"], call["args"]) for call in calls)


def _atem_call(name: str, arguments: Mapping[str, Any]) -> str:
    values = "".join(
        f'<atem:parameter name="{key}">{_plain(value)}</atem:parameter>\n' for key, value in arguments.items()
    )
    return f'<atem:function_calls>\n<atem:invoke name="{name}">\n{values}</atem:invoke>\n</atem:function_calls>'


_QWEN = _Tags(
    block="<tool_call>",
    call=re.compile(r"<function=([^>\n]+)>"),
    argument=re.compile(r"<parameter=([^>\n]+)>"),
    argument_end="</parameter>",
    call_end="</function>",
    block_end="</tool_call>",
    lines=True,
    example="<function=NAME>",
)
_GLM = _Tags(
    block="<tool_call>",
    call=re.compile(r"([^<>\s{}]+)"),
    argument=re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>"),
    argument_end="</arg_value>",
    call_end="",
    block_end="</tool_call>",
    lines=False,
    example="the tool's name",
)
_ATEM = _Tags(
    block="<atem:function_calls>",
    call=re.compile(r'<atem:invoke name="([^"]+)">'),
    argument=re.compile(r'<atem:parameter name="([^"]+)">'),
    argument_end="</atem:parameter>",
    call_end="</atem:invoke>",
    block_end="</atem:function_calls>",
    lines=False,
    example='<atem:invoke name="NAME">',
)


def _read_qwen(text: str, schemas: Schemas) -> ParsedTurn:
    return _read(_QWEN, text, schemas)


def _read_glm(text: str, schemas: Schemas) -> ParsedTurn:
    return _read(_GLM, text, schemas)


def read_atem(text: str, schemas: Schemas) -> ParsedTurn:
    """Content and calls of a text in ATEM's form."""
    return _read(_ATEM, text, schemas)


_TAGS = ("<tool_call>", "</tool_call>")
QWEN_XML = CallForm("qwen_xml", ("<tool_call>",), _TAGS, _read_qwen, _write_qwen)
GLM = CallForm(
    "glm", ("<tool_call>",), (*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), _read_glm, _write_glm
)
ATEM = CallForm("atem", ("<atem:function_calls>",), (), read_atem, _write_atem)
