"""Forms of tool calls of model families, and the conversion of their text to calls with checked
arguments.

Readers share four rules. An argument may hold the closing tag. An unreadable call raises no
exception: the policy gets the reason, and the record keeps the raw text. The text around calls is
the content. Reading takes time proportional to the answer's length (`Scan`), since a policy in a
loop may write tags up to its token limit.

Forms without escapes cannot hold every text. If an argument holds the whole end of a call, the call
ends there. Its real end is then left over, which makes the call undecodable. This is not detected
if the argument also holds the beginning of a call, or if the answer stops before the real end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn, cast

from hrm_agent.basics.unicode import without_surrogates
from hrm_agent.models.engine import ParsedTurn

__all__ = [
    "CONSTANTS",
    "MAX_DEPTH",
    "TOO_DEEP",
    "CallForm",
    "Scan",
    "Schemas",
    "Unreadable",
    "add_call",
    "add_invalid",
    "add_named_call",
    "as_declared",
    "decode_json",
    "json_text",
    "read_blocks",
    "schemas_of",
    "skip_space",
    "unclosed",
]

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the offered tools' parameters, by the tool's name."""

CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
"""Values by their names in Python and JSON."""
MAX_DEPTH = 64
"""Maximum nesting depth of arguments. msgpack allows a little more, but the message that holds the
arguments adds levels.
"""
TOO_DEEP = f"'arguments' are nested more than {MAX_DEPTH} levels deep"
_WINDOW = 4096
"""Number of characters in which the end of a JSON value is first searched."""
_LONGEST_WORD = 16
"""Number of characters of the longest JSON escape, a pair of surrogates."""
_AGAIN = 1 << 18
"""Number of characters that may be read again, in addition to twice the answer's length."""
_CUT = "the end of the call stands there twice: an argument must not hold it as it is"
_LOWER_CONSTANTS = {word.lower(): value for word, value in CONSTANTS.items()}


@dataclass(frozen=True, slots=True)
class CallForm:
    """Form of tool calls."""

    name: str
    """Name for `?tools=`."""
    marks: tuple[str, ...]
    """Spellings with which a call begins. An answer is shown up to the first one."""
    inside: tuple[str, ...]
    """Spellings that may occur inside an answer although a vocabulary may have them as control
    tokens.
    """
    read: Callable[[str, Schemas], ParsedTurn]
    """Function that parses an answer's text."""
    write: Callable[[Sequence[Mapping[str, Any]]], str]
    """Function that writes calls `{"name": str, "args": dict}` as text, for templates that have no
    place for them.
    """
    ends: tuple[str, ...] = ()
    """Spellings of tokens that end an answer with a call, in addition to those of the template."""
    around: tuple[str, str] = ("", "")
    """Text before and after an undecodable call, if the record has only the text between these two.
    """
    words: str = "{}"
    """Format of words before calls (empty for forms in which an answer has either words or calls).
    """
    header: str = ""
    """Spelling with which a message begins, in forms with channels. The prompt ends with it."""
    shown_after: tuple[str, ...] = ()
    """Spellings after a header, before words that are shown."""
    thought_spans: Callable[[str], list[tuple[int, int]]] | None = None
    """Function that returns the spans of thoughts in an answer's text, with their frames, for forms
    with channels.
    """
    opening: tuple[str, ...] = ()
    """Spellings that make an answer a call if it begins with one of them and tools are offered.
    Elsewhere, they are ordinary text.
    """


class Unreadable(Exception):
    """A call cannot be read. The message is the reason that the policy gets."""

    def __init__(self, why: str, *, name: str | None = None, reached: int = 0) -> None:
        """`name`: name of the tool, if known. `reached`: position up to which the text was read."""
        super().__init__(why)
        self.name = name
        self.reached = reached


class Scan:
    """Search in one answer from front to back. Results are remembered, so that repeated searches
    for an end that is far away or missing cost nothing.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._again = 2 * len(text) + _AGAIN
        self._known: dict[str | re.Pattern[str], tuple[int, int]] = {}
        """Results by pattern: start of the search, and position of the match (-1 if none)."""

    def find(self, wanted: str | re.Pattern[str], position: int) -> int:
        """Position of the first match of a spelling or a pattern from `position` on (-1 if
        none).
        """
        began, found = self._known.get(wanted, (len(self.text) + 1, -1))
        if began <= position and (found < 0 or position <= found):
            return found
        if isinstance(wanted, str):
            found = self.text.find(wanted, position)
        else:
            match = wanted.search(self.text, position)
            found = match.start() if match is not None else -1
        self._known[wanted] = position, found
        return found

    def spend(self, start: int, reached: int) -> None:
        """Count the characters from `start` to `reached`, which were read before a call was given
        up.
        """
        self._again -= max(reached - start, 0)

    @property
    def exhausted(self) -> bool:
        """True if more text has been read again than `_again` allowed.

        Text inside an unreadable call is read again, as it may hold other calls. With nested tags,
        that would take quadratic time.
        """
        return self._again < 0


def read_blocks(
    text: str,
    tags: tuple[str, str],
    read: Callable[[Scan, int, ParsedTurn], int],
    *,
    explain: Callable[[str], str] | None = None,
    whole_end: re.Pattern[str] | None = None,
) -> ParsedTurn:
    """Content and calls of an answer whose calls are between two tags.

    `read(scan, position, turn)` adds the calls after an opening tag to `turn` and returns the
    position after the closing tag. It raises `Unreadable` for a block that it cannot read. Such a
    block ends at its closing tag, or before the next opening tag.

    `explain`: function that returns the reason for the text between the tags; the record then has
    this text without its tags (None: the reason is that of `Unreadable`, and the record has the
    tags, too). `whole_end`: end of a call with its closing tag, in forms without escapes (None: the
    form has escapes). If a second such end follows a block, the first end was part of an argument,
    and the block is undecodable.
    """
    begin = tags[0]
    scan = Scan(text)
    turn = ParsedTurn("")
    content = list[str]()
    position = 0
    while (start := scan.find(begin, position)) >= 0:
        content.append(text[position:start])
        found = ParsedTurn("")
        try:
            position = read(scan, start + len(begin), found)
        except Unreadable as error:
            position = _give_up(scan, tags, start, error, explain, turn)
            continue
        again = scan.find(whole_end, position) if whole_end is not None else -1
        if again >= 0 and not 0 <= scan.find(begin, position) < again:
            position = scan.find(tags[1], again) + len(tags[1])
            name = (found.tool_calls or found.invalid_tool_calls)[-1]["name"]
            add_invalid(name, text[start:position].strip(), _CUT, turn)
        else:
            turn.tool_calls.extend(found.tool_calls)
            turn.invalid_tool_calls.extend(found.invalid_tool_calls)
    if not content:
        return ParsedTurn(text)
    content.append(text[position:])
    return ParsedTurn("".join(content).strip(), turn.tool_calls, turn.invalid_tool_calls)


def _give_up(
    scan: Scan,
    tags: tuple[str, str],
    start: int,
    error: Unreadable,
    explain: Callable[[str], str] | None,
    turn: ParsedTurn,
) -> int:
    """Add the undecodable block at `start` to `turn`, and return the position after it."""
    begin, close = tags
    inner = start + len(begin)
    end = scan.find(close, inner)
    following = scan.find(begin, inner)
    closed = end >= 0 and not 0 <= following < end
    if not closed:
        end = following
    scan.spend(start, error.reached)
    if scan.exhausted:
        closed = False
        end = scan.find(begin, max(inner, end, error.reached))
    end = len(scan.text) if end < 0 else end
    why = str(error) if closed else unclosed(close)
    if explain is not None:
        raw = scan.text[inner:end].strip()
        add_invalid(error.name, raw, explain(raw) if closed else why, turn)
        return end + len(close) * closed
    end += len(close) * closed
    add_invalid(error.name, scan.text[start:end].strip(), why, turn)
    return end


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """Schemas of the parameters by tool name. Tools that are not in OpenAI's form are omitted."""
    functions = (tool.get("function") for tool in tools)
    return {
        str(each.get("name")): cast("Mapping[str, Any]", each.get("parameters") or {})
        for each in cast("Iterable[Any]", functions)
        if isinstance(each, Mapping)
    }


def add_named_call(
    value: Any, raw: str, turn: ParsedTurn, *, keys: Sequence[str] = ("arguments",)
) -> None:
    """Add a call to `turn`. `value`: decoded JSON with a `name`, and arguments under one of `keys`."""
    if not isinstance(value, dict):
        return add_invalid(None, raw, f"a call must be a JSON object, not {_kind(value)}", turn)
    call = cast("dict[str, Any]", value)
    name = call.get("name")
    if not isinstance(name, str) or not name:
        return add_invalid(None, raw, "the call has no 'name'", turn)
    key = next((key for key in keys if key in call), keys[0])
    arguments = call.get(key)
    if not isinstance(arguments, dict):
        said = _kind(arguments) if key in call else "missing"
        return add_invalid(name, raw, f"'{key}' must be a JSON object, but is {said}", turn)
    return add_call(name, cast("dict[str, Any]", arguments), raw, turn)


def add_call(name: str, arguments: dict[str, Any], raw: str, turn: ParsedTurn) -> None:
    """Add a call whose parts are known, if it has a name and the record can hold its arguments."""
    if not name:
        return add_invalid(None, raw, "the call has no name", turn)
    if why := _unstorable(arguments):
        return add_invalid(name, raw, why, turn)
    turn.tool_calls.append({"name": without_surrogates(name), "args": _clean(arguments)})
    return None


def add_invalid(name: str | None, raw: str, error: str, turn: ParsedTurn) -> None:
    """Add an unreadable call, with the reason that the policy gets."""
    turn.invalid_tool_calls.append({"name": name, "args": raw, "error": error})


def unclosed(close: str) -> str:
    """Reason for a call without an end."""
    return f"the call is not closed by {close}"


def decode_json(text: str, position: int = 0) -> tuple[Any, int]:
    """JSON value at `position`, and the position after it.

    Raises `ValueError` with the decoder's message, whose positions count from `position`. The
    decoder gets a window of the text, which grows as long as it cuts the value. A larger window
    would cost time at each error, since the decoder then counts the lines of its whole input.
    """
    size = _WINDOW
    while True:
        window = text if position == 0 and size >= len(text) else text[position : position + size]
        whole = position + size >= len(text)
        try:
            value, end = _DECODER.raw_decode(window)
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None
        except json.JSONDecodeError as error:
            cut = error.pos >= len(window) - _LONGEST_WORD or error.msg.startswith(
                "Unterminated string"
            )
            if whole or not cut:
                raise
        else:
            if whole or end < len(window):
                return value, position + end
        size *= 4


def as_declared(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """Value of an argument that was written as bare text.

    Unless its schema only allows a string, the text is read as JSON, or as a constant of JSON or
    Python in any letter case. If the schema allows strings among others, and the value read has a
    type that the schema does not allow, the text itself is the value.
    """
    properties: Any = schema.get("properties")
    declared: Any = cast("Any", properties).get(name) if isinstance(properties, Mapping) else None
    kinds = _declared_kinds(declared, schema, set())
    if kinds == {"string"}:
        return text
    try:
        value, end = decode_json(text, skip_space(text, 0))
        if skip_space(text, end) < len(text):
            return text
    except ValueError:
        word = text.strip() if len(text) < _LONGEST_WORD else ""
        if word.lower() not in _LOWER_CONSTANTS:
            return text
        value = _LOWER_CONSTANTS[word.lower()]
    return text if "string" in kinds and not kinds & _json_kinds(value) else value


def _declared_kinds(schema: Any, root: Mapping[str, Any], followed: set[str]) -> set[str]:
    """JSON types that a schema names (empty if none). `followed`: references already resolved."""
    if not isinstance(schema, Mapping):
        return set()
    schema = cast("Mapping[str, Any]", schema)
    kinds = {each for each in _several(schema.get("type")) if isinstance(each, str)}
    if not kinds:
        values = [*_several(schema.get("enum")), *([schema["const"]] if "const" in schema else ())]
        kinds.update(*map(_json_kinds, values))
    for key in ("anyOf", "oneOf", "allOf"):
        for each in _several(schema.get(key)):
            kinds |= _declared_kinds(each, root, followed)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        target: Any = root
        for part in reference.removeprefix("#/").split("/"):
            target = cast("Any", target).get(part) if isinstance(target, Mapping) else None
        kinds |= _declared_kinds(target, root, followed)
    return kinds


def _several(value: Any) -> list[Any]:
    """List of values from one value or several, as schemas have them."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    return [] if value is None else [value]


def _json_kinds(value: object) -> set[str]:
    """JSON schema names for the type of a value."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}


def json_text(value: Any) -> str:
    """Format a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def skip_space(text: str, position: int) -> int:
    """Position after white space."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _unstorable(arguments: dict[str, Any]) -> str | None:
    """Reason why the record cannot hold the arguments (None if it can).

    The policy gets this reason, since what it writes must not make a run fail.
    """
    level = [cast("Any", arguments)]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return TOO_DEEP
        if any(isinstance(value, int) and not -(2**63) <= value < 2**64 for value in level):
            return "'arguments' hold a whole number of more than 64 bits: pass it as a string"
        if any(isinstance(value, float) and not isfinite(value) for value in level):
            return "'arguments' hold a number that is not finite: pass it as a string"
        level = [item for value in level for item in _items(value)]
    return None


def _items(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return cast("dict[str, Any]", value).values()
        case list():
            return cast("list[Any]", value)
        case _:
            return ()


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "a number"


def _clean(value: Any) -> Any:
    """Copy of `value` without lone surrogates, which JSON can spell but which can be neither stored
    nor shown.
    """
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, list):
        return [_clean(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            without_surrogates(key): _clean(item)
            for key, item in cast("dict[str, Any]", value).items()
        }
    return value


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
