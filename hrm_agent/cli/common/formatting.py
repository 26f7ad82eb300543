"""Records as text for people: one line for a run, a few for a call."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from hrm_agent.answers.final_answer import own_text
from hrm_agent.trajectory import Call, RunStatus, ToolCall, Trajectory, TurnEnd
from hrm_agent.trajectory.shown import code_of, text_of
from hrm_agent.trajectory.words import call_facts, models_of, tool_call_facts

__all__ = [
    "call_lines",
    "ends_of",
    "sentence",
    "summary_row",
    "tool_call_lines",
    "turn_lines",
]

_TAG = re.compile(r"</?answer>")
SUMMARY_COLUMNS = ("trajectory", "thread", "graph", "model", "status", "reward", "calls", "tools", "tokens", "started")


def sentence(text: str) -> str:
    """`rows and bytes by kind` -> `Rows and bytes by kind.`; names within it stay as they are."""
    return f"{text[:1].upper()}{text[1:]}."


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


def call_lines(call: Call) -> Iterator[str]:
    """A model call: where, how many tokens, and what it answered."""
    yield f"{call.identity.node or 'call'}  {call.id[:8]}  {', '.join(call_facts(call))}"
    yield from _indented(text_of(call.response))
    for asked in call.response.get("tool_calls", ()):
        yield from _indented(f"> {asked['name']}: {code_of(asked['args'])}")
    for asked in call.response.get("invalid_tool_calls", ()):
        yield from _indented(f"> undecodable call: {asked.get('error')}")


def tool_call_lines(tool_call: ToolCall) -> Iterator[str]:
    """A tool call: its outcome, and what the model was shown."""
    yield f"{tool_call.name}  {tool_call.id[:8]}  {tool_call_facts(tool_call)}"
    yield from _indented(tool_call.content)


def ends_of(trajectory: Trajectory) -> list[Trajectory | TurnEnd]:
    """How each turn of a conversation ended, the newest at the end."""
    return [*(turn.before for turn in trajectory.turns), trajectory]


def turn_lines(prompt: str | None, end: Trajectory | TurnEnd) -> Iterator[tuple[str, str]]:
    """A turn as people read it, each line with its style: what was said, and what came of it."""
    if prompt is not None:
        yield f"> {prompt}", "bold"
    answer = _TAG.sub("", own_text(end.answer or "")).strip()
    if answer:
        yield answer, ""
    if end.status is not RunStatus.COMPLETED:
        reason = end.error or (end.stop_reason.value if end.stop_reason else "")
        yield f"({end.status.value}{f': {reason}' if reason not in ('', end.status.value) else ''})", "yellow"
    elif not answer:
        yield "(no answer)", "yellow"


def _indented(text: str) -> Iterator[str]:
    yield from (f"    {line}" for line in text.strip().splitlines())
