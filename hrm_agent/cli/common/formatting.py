"""Records as text for people: one line for a run, a few for a call."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from hrm_agent.answers.final_answer import own_text
from hrm_agent.trajectory import Call, LogprobKind, RunStatus, ToolCall, Trajectory, TurnEnd

__all__ = ["call_lines", "code_of", "ends_of", "sentence", "summary_row", "tool_call_lines", "turn_lines"]

_TAG = re.compile(r"</?answer>")
SUMMARY_COLUMNS = ("trajectory", "thread", "graph", "policy", "status", "reward", "calls", "tools", "tokens", "started")


def sentence(text: str) -> str:
    """`rows and bytes by kind` -> `Rows and bytes by kind.`; names within it stay as they are."""
    return f"{text[:1].upper()}{text[1:]}."


def summary_row(trajectory: Trajectory) -> tuple[object, ...]:
    """Values of `SUMMARY_COLUMNS`."""
    return (
        trajectory.id,
        trajectory.thread_id,
        trajectory.graph,
        trajectory.policy,
        trajectory.stop_reason.value if trajectory.stop_reason else trajectory.status.value,
        trajectory.rewards.get("correct"),
        len(trajectory.own_calls),
        len(trajectory.own_tool_calls),
        trajectory.sampled_tokens,
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(trajectory.started_at)),
    )


def call_lines(call: Call) -> Iterator[str]:
    """A model call: where, how many tokens, and what it answered."""
    prompt, sampled = len(call.mask) - call.sampled_tokens, call.sampled_tokens
    facts = [f"{prompt} prompt tokens", f"{sampled} completion tokens"]
    facts += [call.finish_reason.value, f"{call.seconds:.2f} s"]
    if sampled:
        at = f" at temperature {call.sampling.temperature:g}" if call.logprob_kind is LogprobKind.TEMPERED else ""
        facts.insert(2, f"mean log-prob {sum(call.logprobs) / sampled:.3f}{at}")
    if call.branch_reason is not None:
        facts.append(f"new root: {call.branch_reason.value}")
    if call.why_untrainable is not None:
        facts.append(f"not trainable: {call.why_untrainable}")
    yield f"{call.identity.node or 'call'}  {call.id[:8]}  {', '.join(facts)}"
    yield from _indented(text_of(call.response))
    for asked in call.response.get("tool_calls", ()):
        yield from _indented(f"> {asked['name']}: {code_of(asked['args'])}")
    for asked in call.response.get("invalid_tool_calls", ()):
        yield from _indented(f"> undecodable call: {asked.get('error')}")


def tool_call_lines(tool_call: ToolCall) -> Iterator[str]:
    """A tool call: its outcome, and what the model was shown."""
    status = tool_call.status.value if tool_call.status else "under way"
    repeated = f", repeats {tool_call.repeated_of[:8]}" if tool_call.repeated_of else ""
    refused = ", ".join(f"{name} x{count}" for name, count in tool_call.refused.items())
    told = f"{status}, {tool_call.duration_seconds:.3f} s{repeated}{refused and f', refused: {refused}'}"
    yield f"{tool_call.name}  {tool_call.id[:8]}  {told}"
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


def text_of(response: dict[str, Any]) -> str:
    """Text of a stored answer, whether its content is a string or a list of blocks."""
    content = response.get("content", "")
    if isinstance(content, str):
        return content
    return "".join(block if isinstance(block, str) else str(block.get("text", "")) for block in content)


def code_of(arguments: dict[str, Any] | str) -> str:
    """The code of a call of the Python tool, or the arguments of any other."""
    if isinstance(arguments, dict) and isinstance(arguments.get("code"), str):
        return str(arguments["code"])
    return str(arguments)


def _indented(text: str) -> Iterator[str]:
    yield from (f"    {line}" for line in text.strip().splitlines())
