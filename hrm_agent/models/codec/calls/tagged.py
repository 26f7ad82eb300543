"""Forms with tags: Qwen's coder models (also 3.5 to 3.8 and Nemotron 3), GLM, and Muse's ATEM.

Values are raw text between tags, and the schema gives their types. A value ends at a closing tag
with a valid continuation, since a value, such as code, may hold the closing tag itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hrm_agent.models.codec.calls.form import (
    CallForm,
    Scan,
    Schemas,
    Unreadable,
    add_call,
    as_declared,
    json_text,
    read_blocks,
    skip_space,
    unclosed,
)
from hrm_agent.models.engine import ParsedTurn

__all__ = ["ATEM", "GLM", "QWEN_XML", "after_atem"]

_SHOWN = 40
"""Number of characters of an answer that a reason shows."""


@dataclass(frozen=True, slots=True)
class _Tags:
    """Spellings of a form. Patterns have one group, a name."""

    block: tuple[str, str]
    """Spellings before and after calls."""
    call: re.Pattern[str]
    argument: re.Pattern[str]
    argument_end: str
    call_end: str
    """Spelling after a call (empty if each block holds only one call)."""
    lines: bool
    """True if a value and its tags are on separate lines."""
    example: str
    """Example of a call's beginning, for a policy that wrote it differently."""
    value_end: re.Pattern[str]
    """Closing tag of a value with a valid continuation."""
    next_call: re.Pattern[str]
    """End of a call followed by the next call. If a value contains this pattern, the value was not
    closed.
    """
    written_call: str
    """Template of a block with one call: its name and its arguments."""
    written_argument: str
    """Template of an argument: its key and its value."""
    between: str
    """Spelling between two blocks."""

    @property
    def whole_end(self) -> re.Pattern[str]:
        """End of a value, with the ends of its call and of its block."""
        ends = filter(None, (self.argument_end, self.call_end, self.block[1]))
        return re.compile(r"[ \t\r\n]*+".join(map(re.escape, ends)))


def _value_end(argument_end: str, argument: str, call_end: str) -> re.Pattern[str]:
    return re.compile(
        rf"{re.escape(argument_end)}(?=[ \t\r\n]*+(?:{argument}|{re.escape(call_end)}))"
    )


def _read(tags: _Tags, text: str, schemas: Schemas) -> ParsedTurn:
    def read(scan: Scan, position: int, turn: ParsedTurn) -> int:
        return _calls(tags, scan, position, schemas, turn)

    return read_blocks(text, tags.block, read, whole_end=tags.whole_end)


def _calls(tags: _Tags, scan: Scan, position: int, schemas: Schemas, turn: ParsedTurn) -> int:
    """Add the calls of the block at `position` to `turn`, and return the position after the
    block.
    """
    text = scan.text
    close = tags.block[1]
    name = None
    position = skip_space(text, position)
    while name is None or not text.startswith(close, position):
        start = position
        opened = tags.call.match(text, position)
        if opened is None:
            why = f"a call begins with {tags.example}" if name is None else unclosed(close)
            raise Unreadable(why, name=name, reached=position)
        name = opened.group(1).strip()
        spans, position = _arguments(tags, scan, opened.end(), name)
        end = tags.call_end or close
        if not text.startswith(end, position):
            found = text[position : position + _SHOWN]
            why = f"an argument or {end} must follow, and not {found!r}" if found else unclosed(end)
            raise Unreadable(why, name=name, reached=position)
        position = skip_space(text, position + len(tags.call_end))
        schema = schemas.get(name, {})
        arguments = {
            key: as_declared(_value(tags, text[begin:end]), schema, key)
            for key, begin, end in spans
        }
        add_call(name, arguments, text[start:position].strip(), turn)
    return position + len(close)


def _arguments(
    tags: _Tags, scan: Scan, position: int, name: str
) -> tuple[list[tuple[str, int, int]], int]:
    """Key, begin and end of each argument, and the position after them."""
    text = scan.text
    found = list[tuple[str, int, int]]()
    position = skip_space(text, position)
    while opened := tags.argument.match(text, position):
        key = opened.group(1).strip()
        begin = opened.end()
        end = scan.find(tags.value_end, begin)
        following = scan.find(tags.next_call, begin)
        if end < 0 or 0 <= following < end:
            raise Unreadable(
                f"the argument {key!r} is not closed by {tags.argument_end}",
                name=name,
                reached=begin,
            )
        found.append((key, begin, end))
        position = skip_space(text, end + len(tags.argument_end))
    return found, position


def _value(tags: _Tags, text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n") if tags.lines else text


def _write(tags: _Tags, calls: Sequence[Mapping[str, Any]]) -> str:
    written = list[str]()
    for call in calls:
        arguments = ""
        for key, value in call["args"].items():
            shown = value if isinstance(value, str) else json_text(value)
            arguments += tags.written_argument.format(key=key, value=shown)
        written.append(tags.written_call.format(name=call["name"], arguments=arguments))
    return tags.between.join(written)


_PARAMETER = r"<parameter=([^<>\n]+)>"
_KEY = r"<arg_key>([^<]*)</arg_key>[ \t\r\n]*+<arg_value>"
_ATEM_PARAMETER = r'<atem:parameter name="([^"<>]+)">'
_QWEN = _Tags(
    block=("<tool_call>", "</tool_call>"),
    call=re.compile(r"<function=([^<>\n]+)>"),
    argument=re.compile(_PARAMETER),
    argument_end="</parameter>",
    call_end="</function>",
    lines=True,
    example="<function=NAME>",
    value_end=_value_end("</parameter>", _PARAMETER, "</function>"),
    next_call=re.compile(
        r"</function>\s*+(?:</tool_call>\s*+)?(?:<tool_call>\s*+)?<function=[^<>\n]+>"
    ),
    written_call="<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
    written_argument="<parameter={key}>\n{value}\n</parameter>\n",
    between="\n",
)
_GLM = _Tags(
    block=("<tool_call>", "</tool_call>"),
    call=re.compile(r"([^<>\s{}\[\]\"]+)"),
    argument=re.compile(_KEY),
    argument_end="</arg_value>",
    call_end="",
    lines=False,
    example="the tool's name",
    value_end=_value_end("</arg_value>", _KEY, "</tool_call>"),
    next_call=re.compile(r"</tool_call>\s*+<tool_call>[^<>\s]+\s*+<arg_key>"),
    written_call="\n<tool_call>{name}\n{arguments}</tool_call>",
    written_argument="<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    between="",
)
_ATEM = _Tags(
    block=("<atem:function_calls>", "</atem:function_calls>"),
    call=re.compile(r'<atem:invoke name="([^"<>]+)">'),
    argument=re.compile(_ATEM_PARAMETER),
    argument_end="</atem:parameter>",
    call_end="</atem:invoke>",
    lines=False,
    example='<atem:invoke name="NAME">',
    value_end=_value_end("</atem:parameter>", _ATEM_PARAMETER, "</atem:invoke>"),
    next_call=re.compile(
        r"</atem:invoke>\s*+(?:</atem:function_calls>\s*+)?(?:<\|eom\|><\|start\|>assistant"
        r" to=[^\s<]++<\|message\|>)?"
        r'(?:<atem:function_calls>\s*+)?<atem:invoke name="'
    ),
    written_call=(
        '<atem:function_calls>\n<atem:invoke name="{name}">\n{arguments}</atem:invoke>\n'
        "</atem:function_calls>"
    ),
    written_argument='<atem:parameter name="{key}">{value}</atem:parameter>\n',
    between="\n",
)


def after_atem(scan: Scan, position: int) -> int:
    """Position after the readable blocks of calls in ATEM's form that begin at `position`."""
    text = scan.text
    begin, _ = _ATEM.block
    while text.startswith(begin, start := skip_space(text, position)) and not scan.exhausted:
        try:
            position = _calls(_ATEM, scan, start + len(begin), {}, ParsedTurn(""))
        except Unreadable as error:
            scan.spend(start, error.reached)
            break
    return position


QWEN_XML = CallForm(
    "qwen_xml", ("<tool_call>",), _QWEN.block, partial(_read, _QWEN), partial(_write, _QWEN)
)
GLM = CallForm(
    "glm",
    marks=("<tool_call>",),
    inside=(*_GLM.block, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    read=partial(_read, _GLM),
    write=partial(_write, _GLM),
)
ATEM = CallForm(
    "atem", ("<atem:function_calls>",), (), partial(_read, _ATEM), partial(_write, _ATEM)
)
