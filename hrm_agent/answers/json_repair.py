"""JSON in a model's text, repaired if possible.

A model is asked for JSON and nothing else. Small models put prose around it or a code fence, use
single quotes or Python literals, add commas, or are cut off by a token limit. `json_values` yields
every value that can be read from such a text, best reading first: values of strict JSON, then those
of `_Lenient`. The caller's validation selects among them.

Libraries that repair JSON look back and ahead without bounds: 8 KB of braces kept json-repair busy
for over a minute. A model's text is hostile input, and parsing it blocks an event loop. So the
lenient reader makes one pass without backtracking, and bounds limit the depth of nesting and the
length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hrm_agent.answers.final_answer import own_text
from hrm_agent.basics.unicode import without_surrogates

__all__ = ["json_values"]

MAX_CHARACTERS = 2**16
"""Maximum number of characters of a text that are read."""
MAX_DEPTH = 32
"""Maximum depth of nesting. A deeper value is read as text."""
MAX_STARTS = 16
"""Maximum number of positions at which a value is looked for."""
MAX_STEPS = 2**14
"""Maximum number of steps of the lenient reader over one text. A plan of fifty subgoals takes a
thousand.
"""

_OPENING = re.compile(r"[{\[]")
_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_BARE = re.compile(r"[^,:{}\[\]()\n\"]*")
_BARE_KEY = re.compile(r"[^\s,:={}\[\]()\"']*")
_PART = re.compile(r"[^\\\"'”’]+")
_AFTER_STRING = re.compile(r"""\s*(?:[,:}\])]|\Z|["'][\w ]{1,40}["']\s*:)""")
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’"}
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""Escape that may stand for a lone surrogate, which can be neither stored nor shown."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_DECODER = json.JSONDecoder(strict=False)


def json_values(text: str) -> Iterator[Any]:
    """Objects and arrays in the model's own text: values of valid JSON in reverse order, then
    lenient readings.

    The last value comes first because a model that weighs several options ends with its choice.
    """
    text = without_surrogates(own_text(text[: 16 * MAX_CHARACTERS]))[:MAX_CHARACTERS]
    # a text with a lone surrogate is left to the lenient reader, which removes surrogates
    if not _HALF.search(text):
        values = list[Any]()
        after = 0
        for start in _starts(text):
            if start >= after:
                with suppress(ValueError, RecursionError):
                    value, after = _DECODER.raw_decode(text, start)
                    values.append(value)
        yield from reversed(values)
    lenient = _Lenient(text)
    for start in _starts(text):
        yield lenient.value_at(start)


def _starts(text: str) -> Iterator[int]:
    for _, found in zip(range(MAX_STARTS), _OPENING.finditer(text), strict=False):
        yield found.start()


class _Lenient:
    """Lenient reader of values in one pass over a text. Every method leaves the position behind the
    text that it has read. The end of the text closes all open values.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._left = MAX_STEPS

    def value_at(self, start: int) -> Any:
        self._at = start
        return self._value(0)

    def _value(self, depth: int) -> Any:
        mark = self._peek()
        if depth < MAX_DEPTH and mark == "{":
            return self._object(depth + 1)
        if depth < MAX_DEPTH and mark and mark in "[(":
            return self._array(_CLOSING[mark], depth + 1)
        if mark in _QUOTES:
            return self._string()
        word = self._take(_BARE).strip()
        if word.lower() in _WORDS:
            return _WORDS[word.lower()]
        try:
            return int(word) if len(word) < 20 else word  # a longer number takes too much time
        except ValueError:
            return word

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._at += 1
        while (mark := self._peek()) and mark != "}":
            if mark in ",:;=])([{":  # surplus punctuation
                self._at += 1
                continue
            key = self._string() if mark in _QUOTES else self._take(_BARE_KEY)
            if self._peek() in (":", "="):
                self._at += 1
                found[str(key)] = self._value(depth)
            elif not key:
                self._at += 1
        self._at += 1
        return found

    def _array(self, closing: str, depth: int) -> list[Any]:
        found: list[Any] = []
        self._at += 1
        while (mark := self._peek()) and mark != closing:
            if mark in ",:;}])":
                if mark == "}":  # end of the object around an array that was never closed
                    return found
                self._at += 1
                continue
            before = self._at
            found.append(self._value(depth))
            self._at += self._at == before
        self._at += 1
        return found

    def _string(self) -> str:
        """Read a string. A quote ends the string only if the text after the quote could follow a
        string. So `"he said "no" to it"` and `'it's'` are each read as one string.
        """
        closing = _QUOTES[self._text[self._at]]
        parts = list[str]()
        self._at += 1
        while self._at < len(self._text):
            mark = self._text[self._at]
            if mark == "\\":
                parts.append(self._escape())
            elif mark == closing and _AFTER_STRING.match(self._text, self._at + 1):
                self._at += 1
                break
            else:
                part = self._take(_PART)
                if not part:
                    part = mark
                    self._at += 1
                parts.append(part)
        return without_surrogates("".join(parts))

    def _escape(self) -> str:
        mark = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if mark == "u" and (code := re.compile("[0-9a-fA-F]{4}").match(self._text, self._at)):
            self._at += 4
            return chr(int(code[0], 16))
        return _ESCAPES.get(mark, mark)

    def _peek(self) -> str:
        self._left -= 1
        if self._left < 0:
            self._at = len(self._text)
        self._take(_SPACE)
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""
