"""Repetition: the same tool call with the same result, the same reply, a text that repeats itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable

from hrm_agent.training.analysis.failures.failed_run import FailedRun
from hrm_agent.training.select.code_facts import code_facts
from hrm_agent.trajectory import Call, ToolCall
from hrm_agent.trajectory.words import code_of, text_of

__all__ = ["LEAST", "repeated_call", "repeated_end", "repeated_reply"]

LEAST = 3
"""Number of times from which on a call or a reply counts as repeated."""
_TAIL, _LEAST_CHARACTERS, _PERIODS = 2000, 200, 5
"""Characters of a text's end that are read, and the least length and number of its repetitions."""


def repeated_call(run: FailedRun) -> tuple[ToolCall, int] | None:
    """Tool call that one role made most often, with equal result, and how often (None if fewer than
    `LEAST` times).
    """
    counts: Counter[Hashable] = Counter()
    newest: dict[Hashable, ToolCall] = {}
    for tool in run.tools:
        if tool.status is None:
            continue
        key = (run.role_of(tool), tool.name, _form(tool), tool.status, tool.content or tool.value)
        counts[key] += 1
        newest[key] = tool
    most = max(counts, key=lambda key: counts[key], default=None)
    return (newest[most], counts[most]) if most is not None and counts[most] >= LEAST else None


def repeated_reply(run: FailedRun) -> tuple[Call, int] | None:
    """Reply that one role gave most often to one request, and how often (None if fewer than `LEAST`
    times). Calls without a request on record are left out.
    """
    counts: Counter[Hashable] = Counter()
    newest: dict[Hashable, Call] = {}
    for call in run.calls:
        if call.request is None:
            continue
        asked = [
            (each.get("name"), json.dumps(each.get("args"), sort_keys=True, default=str))
            for each in call.response.get("tool_calls") or ()
        ]
        text = text_of(call.response).strip()
        if not text and not asked:
            continue
        key = (run.place_of(call), _asked(call), text, str(asked))
        counts[key] += 1
        newest[key] = call
    most = max(counts, key=lambda key: counts[key], default=None)
    return (newest[most], counts[most]) if most is not None and counts[most] >= LEAST else None


def _asked(call: Call) -> str:
    """Newest human message of a request, so that equal replies to different requests (as of
    subgoals, of steps of a plan, of turns) are no repetition.
    """
    for message in reversed(call.request or ()):
        if message.get("type") == "human" or message.get("role") == "user":
            return text_of(message)[:_TAIL]
    return ""


def _form(tool: ToolCall) -> str:
    """Tool call without the wording of its code."""
    code = code_of(tool.arguments)
    if isinstance(tool.arguments, dict) and len(tool.arguments) == 1 and "code" in tool.arguments:
        facts = code_facts(code)
        return facts.form if facts is not None else code
    return json.dumps(tool.arguments, sort_keys=True, default=str)


def repeated_end(text: str) -> str | None:
    """Part that the end of a text repeats (None if it repeats none).

    The end is at least 200 characters that consist of five or more equal parts. The parts are found
    by the prefix function of the reversed end, in linear time.
    """
    tail = text[-_TAIL:][::-1]
    if len(tail) < _LEAST_CHARACTERS:
        return None
    border = [0] * len(tail)
    for end in range(1, len(tail)):
        length = border[end - 1]
        while length and tail[end] != tail[length]:
            length = border[length - 1]
        border[end] = length + (tail[end] == tail[length])
    for end in range(len(tail) - 1, _LEAST_CHARACTERS - 2, -1):
        period = end + 1 - border[end]
        part = tail[:period][::-1]
        # a rule of dashes is no repetition
        if (end + 1) >= _PERIODS * period and any(each.isalnum() for each in part):
            return part
    return None
