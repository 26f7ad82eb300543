"""Records as text for people: one line for a run, a few for a call."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from hrm_agent.answers.final_answer import own_text
from hrm_agent.trajectory import Call, CallUsage, LogprobKind, RunStatus, SentSampling, ToolCall, Trajectory, TurnEnd
from hrm_agent.trajectory.shown import code_of, text_of

__all__ = [
    "call_lines",
    "ends_of",
    "models_of",
    "sentence",
    "summary_row",
    "tool_call_lines",
    "turn_lines",
    "usage_text",
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
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(trajectory.started_at)),
    )


def models_of(trajectory: Trajectory) -> str:
    """The models that answered; before any has, the policy that is to."""
    return ", ".join(trajectory.models) or trajectory.policy


def usage_text(used: CallUsage) -> str:
    """Tokens and cost as far as they are known: `12 prompt tokens (4 cached), 3 completion tokens, cost 0.0021`."""
    cached = f" ({used.cached_tokens} cached)" if used.cached_tokens else ""
    reasoning = f" ({used.reasoning_tokens} of reasoning)" if used.reasoning_tokens else ""
    facts = [f"{used.input_tokens} prompt tokens{cached}"] if used.input_tokens is not None else []
    facts += [f"{used.output_tokens} completion tokens{reasoning}"] if used.output_tokens is not None else []
    facts += [f"cost {used.cost:g}"] if used.cost is not None else []
    return ", ".join(facts) or "tokens not reported"


def call_lines(call: Call) -> Iterator[str]:
    """A model call: where, how many tokens, and what it answered."""
    facts = [
        *(_sampled(call) if call.token_ids else _reported(call)),
        call.finish_reason.value,
        f"{call.seconds:.2f} s",
    ]
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


def _sampled(call: Call) -> Iterator[str]:
    """What an engine's call added, and how probable it was."""
    sampled = call.sampled_tokens
    yield f"{len(call.mask) - sampled} prompt tokens"
    yield f"{sampled} completion tokens"
    if sampled:
        tempered = call.logprob_kind is LogprobKind.TEMPERED
        at = f" at temperature {call.sampled_with.temperature:g}" if tempered else ""
        yield f"mean log-prob {sum(call.logprobs) / sampled:.3f}{at}"


def _reported(call: Call) -> Iterator[str]:
    """What a provider says of a call, and what it was sent."""
    answered = call.answered_by not in (None, call.model)
    yield f"{call.answered_by} (asked for {call.model})" if answered else call.model
    yield usage_text(call.used or CallUsage())
    if call.sampling_sent is not None:
        yield _sent(call.sampling_sent)


def _sent(sent: SentSampling) -> str:
    values = {name: value for name, value in sent if name != "other" and value not in (None, ())} | sent.other
    told = ", ".join(f"{name} {list(value) if isinstance(value, tuple) else value}" for name, value in values.items())
    return told or "no sampling parameters sent"


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


def _indented(text: str) -> Iterator[str]:
    yield from (f"    {line}" for line in text.strip().splitlines())
