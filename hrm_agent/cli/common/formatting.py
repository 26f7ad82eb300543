"""Records as text for people: one line for a run, a few for a call."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from hrm_agent.answers.final_answer import own_text
from hrm_agent.trajectory import Call, RunStatus, ToolCall, Trajectory, TurnEnd
from hrm_agent.trajectory.words import (
    call_facts,
    code_of,
    models_of,
    text_of,
    thoughts_of,
    tool_call_facts,
)

__all__ = [
    "call_lines",
    "counted",
    "ends_of",
    "sentence",
    "summary_row",
    "thought_lines",
    "tool_call_lines",
    "turn_lines",
]

StyledLine = tuple[str, str]
"""Text and style."""
_TAG = re.compile(r"</?answer>")
SUMMARY_COLUMNS = (
    "trajectory",
    "thread",
    "graph",
    "model",
    "status",
    "reward",
    "calls",
    "tools",
    "tokens",
    "started",
)


def sentence(text: str) -> str:
    """Format a phrase as a sentence: `rows and bytes by kind` -> `Rows and bytes by kind.` All
    letters but the first are unchanged.
    """
    return f"{text[:1].upper()}{text[1:]}."


def counted(count: int, noun: str) -> str:
    """Number with its noun: `1 run`, `2 runs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def summary_row(trajectory: Trajectory) -> tuple[object, ...]:
    """Values of `SUMMARY_COLUMNS`."""
    return (
        trajectory.id,
        trajectory.thread_id,
        trajectory.graph,
        models_of(trajectory) or None,
        trajectory.stop_reason.value if trajectory.stop_reason else trajectory.status.value,
        trajectory.rewards.get("correct"),
        len(trajectory.own_calls),
        len(trajectory.own_tool_calls),
        trajectory.used.output_tokens,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(trajectory.started_at)),
    )


def call_lines(call: Call) -> Iterator[StyledLine]:
    """Lines of a model call: place, number of tokens, thoughts and answer."""
    yield f"{call.identity.node or 'call'}  {call.id[:8]}  {', '.join(call_facts(call))}", "bold"
    yield from ((f"    {line}", "dim") for line in thought_lines(thoughts_of(call.response)))
    yield from _indented(text_of(call.response))
    for asked in call.response.get("tool_calls", ()):
        yield from _indented(f"> {asked['name']}: {code_of(asked['args'])}")
    for asked in call.response.get("invalid_tool_calls", ()):
        yield from _indented(f"> undecodable call: {asked.get('error')}")


def thought_lines(thoughts: str | None, most: int | None = None) -> Iterator[str]:
    """Lines of thoughts for people. Each line has a mark, so that it does not look like the answer,
    even without colours.

    `most`: maximum number of lines (None: all).
    """
    lines = (thoughts or "").strip().splitlines()
    if lines:
        yield "thoughts:"
        yield from (f"| {line}".rstrip() for line in lines[:most])
    if most is not None and len(lines) > most:
        yield f"| ... {len(lines) - most} more lines"


def tool_call_lines(tool_call: ToolCall) -> Iterator[StyledLine]:
    """Lines of a tool call: its outcome, and the result shown to the model."""
    yield f"{tool_call.name}  {tool_call.id[:8]}  {tool_call_facts(tool_call)}", "cyan"
    yield from _indented(tool_call.content)


def ends_of(trajectory: Trajectory) -> list[Trajectory | TurnEnd]:
    """Results at the end of each turn of a conversation, newest last."""
    return [*(turn.before for turn in trajectory.turns), trajectory]


def turn_lines(prompt: str | None, end: Trajectory | TurnEnd) -> Iterator[StyledLine]:
    """Lines of a turn with their styles: the message, and the outcome."""
    if prompt is not None:
        yield f"> {prompt}", "bold"
    answer = _TAG.sub("", own_text(end.answer or "")).strip()
    if answer:
        yield answer, ""
    if end.status is not RunStatus.COMPLETED:
        reason = end.error or (end.stop_reason.value if end.stop_reason else "")
        yield (
            f"({end.status.value}{f': {reason}' if reason not in ('', end.status.value) else ''})",
            "yellow",
        )
    elif not answer:
        yield "(no answer)", "yellow"


def _indented(text: str) -> Iterator[StyledLine]:
    yield from ((f"    {line}", "") for line in text.strip().splitlines())
