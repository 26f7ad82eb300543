"""Descriptions of a record in words, and its readable parts: the text of an answer, its thoughts,
the code of a tool call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hrm_agent.trajectory.call_facts import CallUsage
from hrm_agent.trajectory.enums import LogprobKind
from hrm_agent.trajectory.ids import NOT_RECORDED

if TYPE_CHECKING:
    from hrm_agent.trajectory.judgements import Overlay, RewardScore, Scoring
    from hrm_agent.trajectory.schema import Call, ToolCall, Trajectory, Turn

__all__ = [
    "REASONING",
    "SaidParts",
    "answer_thoughts",
    "call_facts",
    "code_of",
    "credited",
    "failed_text",
    "header_facts",
    "in_order",
    "judged",
    "models_of",
    "parts_of",
    "penalty_lines",
    "rewarded",
    "score_text",
    "scoring_text",
    "text_of",
    "thoughts_of",
    "tool_call_facts",
    "usage_text",
]

REASONING = "reasoning_content"
"""Key of a message's `additional_kwargs` for thoughts. Chat rows and a server's messages have a
field of this name.
"""
_FIELDS = (REASONING, "reasoning")
_BLOCKS = ("thinking", "reasoning", REASONING)
"""Types of content blocks that hold thoughts."""
_TEXTS = (*_BLOCKS, "summary", "text")
"""Keys of a block of thoughts, or of its parts, that hold the text."""
_OPENED = re.compile(r"\s*<(reason|think)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_CLOSING = ("</reason>", "</think>")


class SaidParts(NamedTuple):
    """Answer split into reasoning and text."""

    reasoning: str | None
    """Thoughts of the model before the answer (None if none are marked)."""
    text: str
    """Rest of the answer."""


def text_of(response: dict[str, Any]) -> str:
    """Text of a stored answer, whether its content is a string or a list of blocks."""
    content = response.get("content", "")
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return "".join(
        block
        if isinstance(block, str)
        else (str(cast("dict[str, Any]", block).get("text", "")) if isinstance(block, dict) else "")
        for block in blocks
    )


def failed_text(call: Call) -> str:
    """Error of a failed call, with the text that it had streamed before."""
    said = text_of(call.response)
    return f"Failed: {call.error}" + (f"\n{said}" if said else "")


def code_of(arguments: dict[str, Any] | str) -> str:
    """Code of a call of the Python tool, or the arguments of another tool."""
    if isinstance(arguments, dict) and isinstance(arguments.get("code"), str):
        return str(arguments["code"])
    return str(arguments)


def thoughts_of(message: Mapping[str, Any]) -> str | None:
    """Thoughts that are stored apart from an answer's content (None if there are none).

    `message`: fields of a message, of which `additional_kwargs` and `content` are read. Providers
    store thoughts in a field, as a text or as a summary in parts, or in content blocks.
    """
    extra = _table(message.get("additional_kwargs"))
    for field in _FIELDS:
        if found := _thought(extra.get(field)):
            return found
    content = message.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    found = (_thought(block) for block in blocks if _table(block).get("type") in _BLOCKS)
    return "\n\n".join(filter(None, found)) or None


def _thought(value: Any, levels: int = 4) -> str:
    """Text of a block of thoughts, which may consist of parts."""
    if isinstance(value, str) or levels == 0:
        return value if isinstance(value, str) else ""
    if isinstance(value, list):
        return "\n\n".join(
            filter(None, (_thought(part, levels - 1) for part in cast("list[Any]", value)))
        )
    block = _table(value)
    parts = (block[key] for key in _TEXTS if key in block)
    return next((text for part in parts if (text := _thought(part, levels - 1))), "")


def _table(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def answer_thoughts(trajectory: Trajectory) -> str | None:
    """Thoughts of the model call that gave the run's answer (None if it has none, or if no call's
    text equals the answer).
    """
    said = (trajectory.answer or "").strip()
    gave = next(
        (
            call
            for call in reversed(trajectory.calls)
            if said and text_of(call.response).strip() == said
        ),
        None,
    )
    return thoughts_of(gave.response) if gave is not None else None


def parts_of(response: dict[str, Any]) -> SaidParts:
    """Thoughts and text of an answer. Thoughts are stored apart, or in `<think>` or `<reason>` at
    its start.
    """
    text = text_of(response)
    apart = thoughts_of(response)
    if apart:
        return SaidParts(apart, text)
    if (opened := _OPENED.match(text)) is not None:
        return SaidParts(opened[2], text[opened.end() :])
    ends = [(place, tag) for tag in _CLOSING if (place := text.find(tag)) >= 0]
    if ends and f"<{min(ends)[1][2:]}" not in text[: min(ends)[0]]:  # the template opened the block
        place, tag = min(ends)
        return SaidParts(text[:place], text[place + len(tag) :])
    return SaidParts(None, text)


def in_order(trajectory: Trajectory) -> list[Turn | Call | ToolCall]:
    """Turns, model calls and tool calls in order of time: model calls by their end, others by their
    start.
    """
    began = [(each.started_at, each) for each in trajectory.turns]
    ended = [(call.ended_at, call) for call in (*trajectory.calls, *trajectory.failed_calls)]
    tools = [(call.started_at, call) for call in trajectory.tool_calls]
    return [record for _, record in sorted([*began, *ended, *tools], key=lambda pair: pair[0])]


def header_facts(trajectory: Trajectory) -> Iterator[tuple[str, object]]:
    """Facts of the whole run as (name, value)."""
    reason = f" ({trajectory.stop_reason.value})" if trajectory.stop_reason else ""
    yield "thread", trajectory.thread_id
    yield "task", f"{trajectory.task.family} {trajectory.task.id}"
    yield "prompt", trajectory.task.prompt
    if trajectory.turns:
        yield "turns", f"{len(trajectory.prompts)}, of which the newest: {trajectory.prompts[-1]}"
    yield "graph", trajectory.graph
    asked = {call.model for call in trajectory.own_calls}
    if not asked or trajectory.policy in asked:
        yield (
            "policy",
            f"{trajectory.policy or 'no model has answered'}, version {trajectory.policy_version}",
        )
    if asked - {trajectory.policy}:
        yield "answered by", models_of(trajectory)
    yield "status", trajectory.status.value + reason
    if trajectory.error:
        yield (
            "error",
            trajectory.error + (f" ({trajectory.error_at})" if trajectory.error_at else ""),
        )
    if NOT_RECORDED in trajectory.task.metadata:
        yield "not all recorded", trajectory.task.metadata[NOT_RECORDED]
    yield "answer", trajectory.answer
    yield (
        "rewards",
        ", ".join(f"{name} {value:g}" for name, value in trajectory.rewards.items())
        or "not verified",
    )
    inherited = len(trajectory.calls) - len(trajectory.own_calls)
    before = f", after {inherited} model of the run that it was forked from" if inherited else ""
    failed = f", {len(trajectory.failed_calls)} failed model" if trajectory.failed_calls else ""
    yield (
        "calls",
        f"{len(trajectory.own_calls)} model, {len(trajectory.own_tool_calls)} tool{failed}{before}",
    )
    yield "used", usage_text(trajectory.used)
    if trajectory.forked_from:
        yield (
            "forked from",
            f"{trajectory.forked_from.trajectory_id} at {trajectory.forked_from.checkpoint_id}",
        )


def models_of(trajectory: Trajectory) -> str:
    """Models that answered (the policy if none has answered yet)."""
    return ", ".join(trajectory.models) or trajectory.policy


def usage_text(used: CallUsage) -> str:
    """Tokens and cost as far as known: `12 prompt tokens (4 cached), 3 completion tokens, cost
    0.0021`.
    """
    cached = f" ({used.cached_tokens} cached)" if used.cached_tokens else ""
    facts = [f"{used.input_tokens} prompt tokens{cached}"] if used.input_tokens is not None else []
    facts += [_completion(used.output_tokens, used)] if used.output_tokens is not None else []
    facts += [f"cost {used.cost:g}"] if used.cost is not None else []
    return ", ".join(facts) or "tokens not reported"


def _completion(tokens: int, used: CallUsage | None) -> str:
    reasoning = (
        f" ({used.reasoning_tokens} of reasoning)"
        if used is not None and used.reasoning_tokens
        else ""
    )
    return f"{tokens} completion tokens{reasoning}"


def call_facts(call: Call) -> list[str]:
    """Facts of a model call: tokens, mean log-prob, finish reason, duration."""
    if call.error is not None:
        return [call.model, f"failed: {call.error}", f"{call.seconds:.2f} s"]
    facts = [
        *(_sampled(call) if call.token_ids else _reported(call)),
        call.finish_reason.value,
        f"{call.seconds:.2f} s",
    ]
    if call.branch_reason is not None:
        facts.append(f"new root: {call.branch_reason.value}")
    if call.why_untrainable is not None:
        facts.append(f"not trainable: {call.why_untrainable}")
    if call.lost:
        facts.append(f"not stored: {', '.join(call.lost)}")
    return facts


def _sampled(call: Call) -> Iterator[str]:
    """Facts of an engine's call: its tokens and their mean log-prob."""
    sampled = call.sampled_tokens
    yield f"{len(call.mask) - sampled} prompt tokens"
    yield _completion(sampled, call.used)
    if sampled:
        tempered = call.logprob_kind is LogprobKind.TEMPERED
        at = f" at temperature {call.sampled_with.temperature:g}" if tempered else ""
        yield f"mean log-prob {sum(call.logprobs) / sampled:.3f}{at}"


def _reported(call: Call) -> Iterator[str]:
    """Facts of a provider's call: models, reported usage, sampling parameters sent."""
    answered = call.answered_by not in (None, call.model)
    yield f"{call.answered_by} (asked for {call.model})" if answered else call.model
    yield usage_text(call.used or CallUsage())
    if call.sampling_sent is not None:
        values = {
            name: value
            for name, value in call.sampling_sent
            if name not in ("other", "hashes") and value not in (None, ())
        } | call.sampling_sent.other
        told = ", ".join(
            f"{name} {list(value) if isinstance(value, tuple) else value}"
            for name, value in values.items()
        )
        yield told or "no sampling parameters sent"


def tool_call_facts(tool_call: ToolCall) -> str:
    """Status, duration and refused system calls of a tool call, as one line."""
    status = tool_call.status.value if tool_call.status else "under way"
    repeated = f", repeats {tool_call.repeated_of[:8]}" if tool_call.repeated_of else ""
    refused = ", ".join(f"{name} x{count}" for name, count in tool_call.refused.items())
    return (
        f"{status}, {tool_call.duration_seconds:.3f}"
        f" s{repeated}{refused and f', refused: {refused}'}"
    )


def judged(overlay: Overlay) -> str:
    """Verdict and advantage of an overlay: `kept, advantage +0.500`."""
    credit = "" if overlay.advantage is None else f", advantage {overlay.advantage:+.3f}"
    return f"{overlay.verdict.value}{credit}"


def penalty_lines(overlay: Overlay) -> Iterator[str]:
    """Penalties by role, one line each; empty if they are not counted by role."""
    for role, penalty in (overlay.penalty_by_role or {}).items():
        total = penalty.failed + penalty.effective
        counted = f"{penalty.failed} of {total} counted tool calls failed"
        error = "no tools" if penalty.error is None else f"p_err {penalty.error:.3f} ({counted})"
        form = "" if penalty.format is None else f", p_format {penalty.format:.3f}"
        yield f"{role}: {error}{form}"


def rewarded(trajectory: Trajectory) -> dict[str, str]:
    """Rewards of single calls in words, by the call's id: `tool_outcomes -1`."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, by_call in trajectory.rewards_by_call.items():
        for id_, value in by_call.items() if name != "reward" else ():
            found[id_].append(f"{name} {value:g}")
    return {id_: ", ".join(each) for id_, each in found.items()}


def credited(trajectory: Trajectory, overlays: Iterable[Overlay]) -> dict[str, str]:
    """Credit of each call in words, by id; empty if its run gave all calls the same credit."""
    return {
        call.id: f"credit {given[call.id]:+.3f}" if call.id in given else "no credit"
        for given in (overlay.credit for overlay in overlays)
        if given is not None
        for call in trajectory.own_calls
    }


def scoring_text(scoring: Scoring) -> str:
    """Total of a rubric's scoring."""
    total = (
        "no reward"
        if scoring.total is None or scoring.outcome is None
        else f"reward {scoring.total:g}"
    )
    return f"scored by {scoring.rubric}: {total}"


def score_text(score: RewardScore) -> str:
    """Score of one reward with its reason."""
    value = "no opinion" if score.value is None else f"{score.value:g}"
    if score.by_call:
        of_calls = f"{sum(score.by_call.values()):g} over {len(score.by_call)} calls"
        value = of_calls if score.value is None else f"{value}, {of_calls}"
    said = value if score.fault is None else f"fault ({score.fault.value})"
    weight = "" if score.weight == 1 else f", weight {score.weight:g}"
    return f"{score.name} {said}{weight}" + (f": {score.reason}" if score.reason else "")
