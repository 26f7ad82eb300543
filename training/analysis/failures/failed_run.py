"""Record of a failed run as the rules read it: bounded texts, reference answer, tool calls by role.

Texts of a record may have any size and come from a policy. Rules read at most their beginning and
their end (`LONGEST` characters), so that no text costs much time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

from hrm_agent.answers.exact import number
from hrm_agent.answers.final_answer import final_answer, own_text
from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.trajectory import NOT_RECORDED, Call, ToolCall, Trajectory
from hrm_agent.trajectory.words import text_of

__all__ = [
    "ANSWERS",
    "ARGUMENTS",
    "RESULTS",
    "FailedRun",
    "bounded",
    "last_message",
    "numbers_in",
    "request_text",
    "shown",
]

ANSWERS, ARGUMENTS, RESULTS = (
    "answers of calls",
    "arguments of tool calls",
    "results of tool calls",
)
"""Parts that a trace can lack, as an import names them."""
LONGEST = 4096
"""Maximum number of characters of a text that a rule reads."""
_SHOWN = 160
_NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d{1,40})(?:\.\d{1,40})?(?![\w])")
_FRACTION = re.compile(r"\\[dt]?frac\{[-\d]{1,20}\}\{\d{1,20}\}|(?<![\w./])-?\d{1,20}/\d{1,20}")


_LEAST_WORD, _LONGEST_WORDS, _MORE_WORDS = 4, 512, 25
"""Minimum and maximum characters of words that are searched for, and the number of words that a
statement may have beside them.
"""
_COMMON = frozenset({"true", "false", "none", "null", "unknown", "maybe"})
_NEGATION = re.compile(
    r"\b(?:not|no|nor|neither|never|isn't|aren't|wasn't|rather than)\b", re.IGNORECASE
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def _plain(text: str) -> str:
    """Text in small letters, without marks at its ends."""
    said = _TEXT.sub(r"\1", text)
    return " ".join(said.split()).casefold().strip(" .,;:!?\"'`*$()")


def bounded(text: str) -> str:
    """Beginning and end of a text."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}\n{text[-half:]}"


def shown(text: str) -> str:
    """Text in one line, cut to the length of an example."""
    line = " ".join(bounded(text).split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _has_number(text: str, wanted: Fraction) -> bool:
    """True if a text of any length has a number."""
    written = {each[0] for each in _FRACTION.finditer(text)}
    without = _FRACTION.sub(lambda each: " " * len(each[0]), text)
    written.update(each[0] for each in _NUMBER.finditer(without))
    return any(number(each) == wanted for each in written)


def numbers_in(text: str) -> list[Fraction]:
    """Numbers in a text, in their order."""
    whole = bounded(text)
    without = _FRACTION.sub(lambda each: " " * len(each[0]), whole)
    found = sorted(
        (each.start(), value)
        for each in (*_FRACTION.finditer(whole), *_NUMBER.finditer(without))
        if (value := number(each[0])) is not None
    )
    return [value for _, value in found]


class FailedRun:
    """Facts of a failed run."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.calls: Sequence[Call] = trajectory.own_calls
        """Model calls, in the order in which they ended."""
        self.tools: Sequence[ToolCall] = trajectory.own_tool_calls
        """Tool calls, in the order in which they began."""
        self.answer: str = trajectory.answer or ""
        """Final text."""

    def lacks(self, part: str) -> bool:
        """True if a part is missing in the trace that the run was imported from."""
        return part in str(self.trajectory.task.metadata.get(NOT_RECORDED, ""))

    @cached_property
    def visible(self) -> str:
        """Final text without reasoning and tool calls, bounded."""
        return bounded(own_text(self.answer)).strip()

    @cached_property
    def box(self) -> str | None:
        """Content of the final answer's box (None without one)."""
        return final_answer(self.answer)

    @cached_property
    def reference(self) -> str | None:
        """Reference answer (None if it is not on record, or empty)."""
        given = self.trajectory.task.answer
        return given.strip() if given and given.strip() else None

    @cached_property
    def _value(self) -> Fraction | None:
        return None if self.reference is None else number(self.reference)

    @cached_property
    def given_away(self) -> bool:
        """True if the task's text contains the reference answer, so that it proves nothing to find
        it in other texts. The whole text is read, since a middle that is not read may have it.
        """
        return self._contains(self.trajectory.task.prompt)

    @cached_property
    def _words(self) -> str:
        """Reference answer as words (empty if it is a number)."""
        return "" if self._value is not None else _plain(bounded(self.reference or ""))

    @cached_property
    def too_common(self) -> bool:
        """True if the reference answer is a word that many texts have, such as `yes` or a letter, so
        that it proves nothing to find it in a longer text.
        """
        words = self._words
        return self._value is None and (len(words) < _LEAST_WORD or words in _COMMON)

    def _contains(self, text: str) -> bool:
        """True if a text of any length has the reference answer."""
        if self._value is not None:
            return _has_number(text, self._value)
        if self.too_common or len(self._words) > _LONGEST_WORDS:
            return False
        return re.search(rf"(?<!\w){re.escape(self._words)}(?!\w)", _plain(text)) is not None

    def states(self, text: str) -> bool:
        """True if a text states the reference answer: a number as its last or its only one; words as
        the whole text, or in a short text without a negation.
        """
        if self.reference is None:
            return False
        if self._value is not None:
            found = numbers_in(text)
            return bool(found) and (found[-1] == self._value or {*found} == {self._value})
        text = bounded(text)
        if _plain(text) == self._words:
            return True
        short = len(text.split()) <= len(self._words.split()) + _MORE_WORDS
        return short and self._contains(text) and not _NEGATION.search(text)

    @cached_property
    def gives_reference(self) -> bool:
        """True if the final text, or its box, is the reference answer and nothing else. A number in
        a box may have a unit.
        """
        text = self.visible if self.box is None else bounded(self.box)
        if self.reference is None or self._value is None:
            return self.reference is not None and _plain(text) == self._words
        if self.box is not None:
            return {*numbers_in(text)} == {self._value}
        return number(text) == self._value

    def results_have(self, text: str) -> bool:
        """True if the result of a tool has the reference answer: a number as its last one, or as one
        of at most four; words anywhere.
        """
        if self._value is None:
            return self._contains(bounded(text))
        found = numbers_in(text)
        return self.states(text) or (len(found) <= 4 and self._value in found)

    @cached_property
    def asked_by(self) -> Mapping[str, Call]:
        """Model call by the id of the tool call that it asked for."""
        return {
            str(asked.get("id")): call
            for call in self.calls
            for kind in ("tool_calls", "invalid_tool_calls")
            for asked in call.response.get(kind) or ()
        }

    def place_of(self, call: Call) -> tuple[str, str]:
        """Role of a call, and the run of this role if it is a subgraph of its own."""
        return call.identity.role, _outermost_task(call.identity.checkpoint_ns)

    def role_of(self, tool: ToolCall) -> tuple[str, str]:
        """Role that asked for a tool call, and its run."""
        call = self.asked_by.get(tool.tool_call_id)
        if call is not None:
            return self.place_of(call)
        return tool.identity.role, _outermost_task(tool.identity.checkpoint_ns)

    @cached_property
    def last_call(self) -> Call | None:
        """Call that gave the final text (the last one if none did)."""
        said = self.answer.strip()
        gave = (c for c in reversed(self.calls) if said and text_of(c.response).strip() == said)
        return next(gave, self.calls[-1] if self.calls else None)


def _outermost_task(namespace: str) -> str:
    """Id of the outermost graph's task, if it is a subgraph (empty for other tasks)."""
    parts = namespace_parts(namespace)
    return parts[0].task_id if len(parts) > 1 else ""


def request_text(call: Call, *kinds: str) -> str | None:
    """Text of the messages of a request (None if it is not on record). `kinds`: types of messages
    that are read (all if none is named).
    """
    if call.request is None:
        return None
    return "\n".join(
        bounded(text_of(message))
        for message in call.request
        if not kinds or _type_of(message) in kinds
    )


def last_message(call: Call) -> str | None:
    """Text of the last message of a request (None if it is not on record)."""
    return text_of(call.request[-1]) if call.request else None


def _type_of(message: Mapping[str, Any]) -> str:
    named = str(message.get("type") or message.get("role") or "")
    return {"user": "human", "assistant": "ai"}.get(named, named)
