"""Checks of answers: the format of the final text, and the critic's asserts on the results.

A *format* is a line with places to fill in (`Answer: <number>`). It is given as the final format,
or quoted in the problem (`Return exactly: 'Answer: <fruit>'`). A format that is
uncertain is not checked: otherwise a right answer could fail.

A critic's *check* is a few Python asserts on the results, in which each subgoal's name is a
variable with its result. Like all model-written code, a check runs through the tool layer, in a
separate interpreter. So it is recorded, and cannot change anything else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage
from langgraph.config import get_config

from hrm_agent.answers.final_answer import own_text
from hrm_agent.answers.typed_reply import UnparsableAnswer
from hrm_agent.tools import python_stateless, run_tool_calls
from hrm_agent.trajectory import ToolStatus

__all__ = ["AnswerFormat", "format_of", "names_in", "run_check"]

MAX_FORMAT, MAX_ANSWER = 200, 2000
"""Maximum number of characters of a template, and of an answer that is compared with it."""
MAX_CHECK = 4000
"""Maximum number of characters of a check. A longer check is ignored."""
MAX_PLACES, MAX_FREE = 4, 2
"""Maximum number of places in a template, and of places that take any text. With more of the
latter, a search would take too long.
"""
MAX_LINES = 50
"""Number of lines at the end of an answer that are searched for a line in the format."""

_PLACE = re.compile(r"<([^<>\n/]{1,40})>")
_QUOTED = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|`([^`\n]+)`|“([^”\n]+)”")
_ASKS = re.compile(
    r"\b(exactly|format|form|answer with|reply with|respond with|as)\b[^.\n]{0,40}$", re.IGNORECASE
)
# The quantifiers are possessive. Without that, a search would try every way to split a thousand
# digits, which takes minutes.
_DIGITS = r"\d++(?:,\d{2,3}(?!\d)){0,6}"
_NUMBER = rf"[-+]?(?:{_DIGITS}(?:\.\d++)?|\.\d++)(?:[eE][-+]?\d++)?(?:/\d++)?"
_INTEGER = rf"[-+]?{_DIGITS}"
_KINDS = {
    "number": _NUMBER,
    "float": _NUMBER,
    "decimal": _NUMBER,
    "integer": _INTEGER,
    "int": _INTEGER,
}
_FREE = r"[^\n]+"


@dataclass(frozen=True)
class AnswerFormat:
    """Format of a final text: a line with places to fill in."""

    template: str
    """Line as requested: `Answer: <number>`."""
    pattern: re.Pattern[str]
    """Pattern of a whole line in the format."""

    def read(self, text: str) -> str:
        """Return the answer in `text`. Raises `UnparsableAnswer` if it is not in the format."""
        own = own_text(text).strip()
        if not self.kept_by(own):
            raise UnparsableAnswer(f"it has to be exactly of the form {self.template}")
        return own

    def kept_by(self, text: str) -> bool:
        return (
            len(text) <= MAX_ANSWER
            and "\n" not in text
            and self.pattern.fullmatch(text) is not None
        )

    def found_in(self, text: str) -> str | None:
        """Last line of `text` that is in the format, without quotes or stars around it (None if
        there is none).
        """
        last = own_text(text).splitlines()[-MAX_LINES:]
        lines = (line.strip().strip("'\"`*“”").strip() for line in reversed(last))
        return next((line for line in lines if self.kept_by(line)), None)

    def filled(self, value: str) -> str:
        """Template with a value in its places (only the value if the result would not be in the
        format).
        """
        line = _PLACE.sub(lambda _: value, self.template)
        return line if self.kept_by(line) else value


def format_of(final_format: str, problem: str) -> AnswerFormat | None:
    """Format that is requested by `final_format` or in `problem` (None if none can be found with
    certainty).
    """
    quoted = [next(filter(None, found.groups())) for found in _QUOTED.finditer(final_format)]
    plain = final_format.strip()
    asked = [
        next(filter(None, found.groups()))
        for found in _QUOTED.finditer(problem)
        if _ASKS.search(problem[max(found.start() - 60, 0) : found.start()])
    ]
    templates = [
        *quoted,
        *([plain] if len(_PLACE.sub("", plain).split()) <= 3 else []),
        *asked,
    ]
    return next((found for found in map(_format, templates) if found is not None), None)


def _format(template: str) -> AnswerFormat | None:
    places = [found for found in _PLACE.finditer(template) if f"</{found[1]}>" not in template]
    if not places or len(template) > MAX_FORMAT or "\n" in template:
        return None
    kinds = list[str]()
    for found in places:
        if "|" in found[1]:
            choices = (re.escape(choice.strip()) for choice in found[1].split("|"))
            kinds.append(f"(?:{'|'.join(choices)})")
        else:
            kinds.append(_KINDS.get(found[1].strip().lower(), _FREE))
    between = [
        template[a:b]
        for a, b in zip(
            [0, *(p.end() for p in places)], [*(p.start() for p in places), None], strict=True
        )
    ]
    if len(kinds) > MAX_PLACES or kinds.count(_FREE) > MAX_FREE or "" in between[1:-1]:
        return None
    parts = [re.escape(text) + kind for text, kind in zip(between, [*kinds, ""], strict=True)]
    return AnswerFormat(template, re.compile("".join(parts)))


async def run_check(check: str, results: Mapping[str, str]) -> str:
    """Output of a failed check (empty if the check passes, or is not Python)."""
    if not _is_python(check):
        return ""
    call = {
        "name": python_stateless.name,
        "args": {"code": _bound(results) + check},
        "id": "check",
        "type": "tool_call",
    }
    (message,) = await run_tool_calls(
        AIMessage("", tool_calls=[call]), [python_stateless], get_config()
    )
    passed = message.artifact["status"] in (ToolStatus.OK, ToolStatus.INFRASTRUCTURE)
    return "" if passed and message.text.strip() != "False" else message.text


def _is_python(check: str) -> bool:
    if not check.strip() or len(check) > MAX_CHECK:
        return False
    try:
        ast.parse(check)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _bound(results: Mapping[str, str]) -> str:
    """Code that assigns each result to its name: its value if the text is a Python literal, else
    the text.
    """
    lines = [f"    {name}=_value({value!r})," for name, value in results.items()]
    return "\n".join(
        [
            "from ast import literal_eval",
            "def _value(text):",
            "    try:",
            "        return literal_eval(text.strip())",
            "    except Exception:",
            "        return text",
            "globals().update(",
            *lines,
            ")",
            "",
        ]
    )


def names_in(check: str, names: Sequence[str]) -> list[str]:
    """Members of `names` that a check reads."""
    read = {node.id for node in ast.walk(ast.parse(check)) if isinstance(node, ast.Name)}
    return [name for name in names if name in read]
