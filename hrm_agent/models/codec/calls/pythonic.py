"""Forms of Python: calls in a list, between marks as LFM2 writes them, or bare as Llama 4 does.

`<|tool_call_start|>[search(query='x'), python(code='print(1)')]<|tool_call_end|>`. Arguments are literals; JSON's
`true`, `false` and `null` are taken, too, for templates write those. Nothing is evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hrm_agent.models.codec.calls.form import CallForm, Schemas, add_call, add_invalid, unclosed
from hrm_agent.models.engine import ParsedTurn

__all__ = ["PYTHONIC", "PYTHONIC_BARE"]

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_NAMES = {"true": True, "false": False, "null": None}
_LONGEST = 1 << 20
"""Characters of calls; a parser of Python takes some hundred bytes for each."""
_LOOSE_CALL = re.compile(r"\s*([A-Za-z_][\w.\-]*)\(")
_LOOSE_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)=")
_AFTER_STRING = re.compile(r"\s*(?:,\s*[A-Za-z_]\w*=|\)\s*(?:,\s*[A-Za-z_][\w.\-]*\(|\]\s*$))")
_AFTER_VALUE = re.compile(r"\s*(?:,\s*[A-Za-z_]\w*=|\))")


class _Unreadable(Exception):
    """Raised with the reason that the policy is shown."""


def _read(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    kept, turn, position = list[str](), ParsedTurn(""), 0
    while (start := text.find(_OPEN, position)) >= 0:
        kept.append(text[position:start])
        position = _read_block(text, start, turn)
    if not kept:
        return ParsedTurn(text)
    kept.append(text[position:])
    return ParsedTurn("".join(kept).strip(), turn.tool_calls, turn.invalid_tool_calls)


def _read_block(text: str, start: int, turn: ParsedTurn) -> int:
    """Add the calls of the block at `start` to `turn`; the position after the block.

    A string may hold the closing mark: the block ends with the first one before which the calls can be read.
    """
    first = end = text.find(_CLOSE, start)
    while end >= 0 and end - start < _LONGEST:
        try:
            calls = _calls(text[start + len(_OPEN) : end].strip())
        except _Unreadable:
            end = text.find(_CLOSE, end + 1)
            continue
        for name, arguments in calls:
            add_call(name, arguments, text[start : end + len(_CLOSE)], turn)
        return end + len(_CLOSE)
    following = text.find(_OPEN, start + 1)
    if first < 0 or 0 <= following < first:
        first = following if following >= 0 else len(text)
        add_invalid(None, text[start:first].strip(), unclosed(_CLOSE), turn)
        return first
    _read_list(text[start + len(_OPEN) : first].strip(), text[start : first + len(_CLOSE)], turn)
    return first + len(_CLOSE)


def _read_bare(text: str, schemas: Schemas) -> ParsedTurn:
    del schemas
    stripped = text.strip()
    if not (re.match(r"\[\s*[A-Za-z_][\w.\-]*\(", stripped) and stripped.endswith("]")):
        return ParsedTurn(text)
    turn = ParsedTurn("")
    _read_list(stripped, stripped, turn)
    return turn


def _read_list(text: str, raw: str, turn: ParsedTurn) -> None:
    try:
        calls = _calls(text)
    except _Unreadable as error:
        try:
            calls = _loose_calls(text)
        except _Unreadable:
            return add_invalid(None, raw, str(error), turn)
    for name, arguments in calls:
        add_call(name, arguments, raw, turn)
    return None


def _calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    if len(text) > _LONGEST:
        raise _Unreadable(f"the calls have more than {_LONGEST} characters")
    try:
        tree = ast.parse(text if text.startswith("[") else f"[{text}]", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _Unreadable(f"the calls are no list of Python calls: {said}") from None
    if not isinstance(tree, ast.List) or not tree.elts:
        raise _Unreadable("the calls are no list of Python calls")
    return [_call(each) for each in tree.elts]


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call):
        raise _Unreadable("the list holds something other than a call")
    name = ast.unparse(node.func)
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        raise _Unreadable("a call has no name")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise _Unreadable(f"{name}: arguments are given by name")
    return name, {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}


def _value(node: ast.expr, depth: int = 0) -> Any:
    if depth > 100:
        raise _Unreadable("the arguments are nested too deeply")
    match node:
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {
                str(_value(key, depth + 1)): _value(v, depth + 1) for key, v in zip(keys, values, strict=True) if key
            }
        case _:
            raise _Unreadable("an argument is no literal")


def _loose_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Calls whose strings are not escaped, as some templates write them: a quote ends one where something follows that
    may follow.
    """
    text = text if text.startswith("[") else f"[{text}]"
    calls: list[tuple[str, dict[str, Any]]] = []
    position = 1
    while opened := _LOOSE_CALL.match(text, position):
        arguments, position = _loose_arguments(text, opened.end())
        calls.append((opened.group(1), arguments))
        position += text.startswith(",", position)
    if not calls or text[position:].strip() != "]":
        raise _Unreadable("no list of calls")
    return calls


def _loose_arguments(text: str, position: int) -> tuple[dict[str, Any], int]:
    arguments: dict[str, Any] = {}
    while named := _LOOSE_ARGUMENT.match(text, position):
        start = named.end()
        quote = text[start : start + 1]
        if quote in ("'", '"'):
            end = _next(text, quote, start + 1, _AFTER_STRING)
            arguments[named.group(1)] = text[start + 1 : end]
            position = end + 1
        else:
            end = _end_of_value(text, start)
            arguments[named.group(1)] = _value(_literal(text[start:end]))
            position = end
        position += text.startswith(",", position)
    if not text.startswith(")", position):
        raise _Unreadable("no list of calls")
    return arguments, position + 1


def _next(text: str, quote: str, position: int, follows: re.Pattern[str]) -> int:
    while (end := text.find(quote, position)) >= 0:
        if follows.match(text, end + 1):
            return end
        position = end + 1
    raise _Unreadable("a string has no end")


def _end_of_value(text: str, position: int) -> int:
    for end in range(position + 1, min(len(text), position + _LONGEST)):
        if text[end] in ",)" and _AFTER_VALUE.match(text, end):
            return end
    raise _Unreadable("a value has no end")


def _literal(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _Unreadable("an argument is no literal") from None


def _write_list(calls: Sequence[Mapping[str, Any]]) -> str:
    written = (f"{call['name']}({', '.join(f'{k}={_written(v)}' for k, v in call['args'].items())})" for call in calls)
    return f"[{', '.join(written)}]"


def _written(value: Any) -> str:
    """A literal; of a string, only what could end it is escaped."""
    match value:
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
            return f"'{escaped}'"
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return "{" + ", ".join(f"{_written(key)}: {_written(item)}" for key, item in items) + "}"
        case list() | tuple():
            return f"[{', '.join(map(_written, cast('Sequence[Any]', value)))}]"
        case _:
            return repr(value)


def _write(calls: Sequence[Mapping[str, Any]]) -> str:
    return f"{_OPEN}{_write_list(calls)}{_CLOSE}"


PYTHONIC = CallForm("pythonic", (_OPEN,), (_OPEN, _CLOSE), _read, _write)
PYTHONIC_BARE = CallForm("pythonic_bare", (), (), _read_bare, _write_list, opening=("[",))
