"""Items of a trajectory, a page at a time: turns, model calls and tool calls, with their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hrm_agent.store import RunStore
from hrm_agent.store.browse.messages import NewMessages, new_messages
from hrm_agent.trajectory import Call, Overlay, ToolCall, Trajectory, Turn, Verdict
from hrm_agent.trajectory.words import failed_text, parts_of, rewarded, text_of, thoughts_of
from hrm_agent.viewer.json_text import cut_text, foreign, json_lines, short
from hrm_agent.viewer.projections.groups import Damaged
from hrm_agent.viewer.projections.trajectory.threads import (
    Transcript,
    overlays_on,
    transcript,
)

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = [
    "ROLES",
    "arguments_text",
    "asked_calls",
    "bases_of",
    "calls_asked",
    "item_rows",
    "items",
    "program_of",
]

_MOST_MESSAGES = 200
"""Maximum number of new messages of a request that are shown. The last are preferred."""
ROLES = {"human": "user", "ai": "assistant"}
"""LangChain's types of messages -> common names of their roles."""
_PROGRAMS = ("code", "program", "script", "source")


def items(place: Place, id: str, after: int = 0, limit: int = 200) -> dict[str, Any]:  # noqa: A002  query value
    """`GET items`. `after`: number of items to skip."""
    found = transcript(place, id)
    total = len(found.items)
    chosen = list(range(min(after, total), min(after + limit, total)))
    rows = item_rows(place.store(), found, chosen)
    following = after + limit
    return {
        "items": rows,
        "next": following if following < total else None,
        "total": total,
        "damaged": found.damaged.data(),
    }


def item_rows(store: RunStore, found: Transcript, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Items with these numbers, as JSON. An unreadable item has `problem`."""
    header = found.header
    chosen = [(n, found.items[n]) for n in numbers]
    journal, apart = store.journal, Damaged()  # the rows report these errors
    of_calls = [item.id for _, item in chosen if item.kind == "call"]
    of_tools = [item.id for _, item in chosen if item.kind == "tool"]
    calls = {each.id: each for each in apart.readable(journal.calls_among, of_calls)}
    tools = {each.id: each for each in apart.readable(journal.tool_calls_among, of_tools)}
    bases = bases_of(found)
    sent = new_messages(store, {id_: bases.get(id_) for id_ in calls}, _MOST_MESSAGES)
    overlays = overlays_on(store, header, found.damaged)
    asked = calls_asked(found)
    turns = {turn.id: turn for turn in header.turns}
    rewards = rewarded(header)
    rows: list[dict[str, Any]] = []
    for number, item in chosen:
        mark = item.mark
        row: dict[str, Any] = {
            "index": number,
            "kind": item.kind,
            "id": item.id,
            "role": short(mark.role) if mark else None,
            "node": None,
            "namespace": None,
            "checkpoint": None,
            "step": None,
            "started_at": foreign(item.at),
            "seconds": None,
            "inherited": bool(mark and mark.thread_id != header.thread_id),
            "rewards": short(rewards[item.id]) if item.id in rewards else None,
        }
        if item.id in turns and item.kind == "turn":
            row |= _turn(turns[item.id], header)
        elif item.kind == "call" and item.id in calls:
            row |= _call(
                calls[item.id],
                bases.get(item.id),
                sent.get(item.id),
                None if row["inherited"] or not overlays else overlays[-1],
            )
        elif item.kind == "tool" and item.id in tools:
            row |= _tool(tools[item.id]) | {"call": asked.get(item.id)}
        else:
            row["problem"] = "This record cannot be read."
        rows.append(row)
    return rows


def bases_of(found: Transcript) -> dict[str, str | None]:
    """Previous call of each call, as whose continuation it is shown.

    This is the parent, or else the previous call of the same role. Messages that were sent in both
    calls are not shown again.
    """
    bases: dict[str, str | None] = {}
    newest: dict[tuple[str, str], str] = {}
    for item in found.items:
        if item.kind == "call" and item.mark is not None and item.mark.status is None:
            bases[item.id] = item.mark.parent or newest.get((item.mark.thread_id, item.mark.role))
            newest[item.mark.thread_id, item.mark.role] = item.id
    return bases


def calls_asked(found: Transcript) -> dict[str, str]:
    """Newest model call before each tool call whose message requested the tool call."""
    asked: dict[str, str] = {}
    by_id: dict[str, str] = {}
    for item in sorted(found.items, key=lambda item: (item.at, item.kind)):
        for name in item.mark.asked if item.mark is not None else ():
            if item.kind == "call":
                by_id[name] = item.id
            elif name in by_id:
                asked[item.id] = by_id[name]
    return asked


def _identity(call: Call | ToolCall) -> dict[str, Any]:
    identity = call.identity
    return {
        "role": short(identity.role),
        "node": short(identity.node),
        "namespace": identity.checkpoint_ns,
        "checkpoint": identity.checkpoint_id,
        "step": identity.step,
        "thread": identity.thread_id,
        "started_at": foreign(call.started_at),
    }


def _turn(turn: Turn, header: Trajectory) -> dict[str, Any]:
    before = turn.before
    item = f"turn:{header.id}:{turn.id}"
    return {
        "prompt": cut_text(turn.prompt, item, "prompt"),
        "before": {
            "status": before.status.value,
            "stop_reason": before.stop_reason.value if before.stop_reason else None,
            "error": cut_text(before.error, item, "error"),
            "answer": cut_text(before.answer, item, "answer"),
        },
    }


def _call(
    call: Call, base: str | None, sent: NewMessages | None, overlay: Overlay | None
) -> dict[str, Any]:
    item = f"call:{call.id}"
    said = parts_of(call.response)
    sampling = call.sampling or call.sampling_sent
    used = call.used
    own_request = call.request or ()
    messages = sent.messages if sent is not None else own_request[-_MOST_MESSAGES:]
    earlier = sent.earlier if sent is not None else len(own_request) - len(messages)
    credit = None
    if overlay is not None and overlay.verdict is Verdict.KEPT:
        of_calls = overlay.credit
        credit = of_calls.get(call.id) if of_calls is not None else overlay.advantage
    return {
        **_identity(call),
        "seconds": foreign(call.seconds),
        "model": short(call.answered_by or call.model),
        "asked_model": short(call.model),
        "policy_version": call.policy_version,
        "parent": call.parent,
        "continues": base,
        "branch_reason": call.branch_reason.value if call.branch_reason else None,
        "prompt_messages": _messages(messages, base, item, earlier),
        "messages_before": earlier,
        "problem": sent.problem if sent is not None else None,
        "request_known": sent is not None or call.request is not None,
        "reasoning": cut_text(said.reasoning, item, "reasoning"),
        "text": cut_text(said.text if call.error is None else failed_text(call), item, "text"),
        "code_calls": [
            {
                "id": str(asked.get("id")),
                "name": short(str(asked.get("name"))),
                "arguments": cut_text(
                    arguments_text(asked.get("args")), item, f"arguments/{number}"
                ),
                "error": short(str(asked["error"])) if asked.get("error") else None,
            }
            for number, asked in enumerate(asked_calls(call.response))
        ],
        "finish_reason": call.finish_reason.value,
        "sampled_tokens": (
            call.sampled_tokens if call.token_ids else used.output_tokens if used else None
        ),
        "prompt_tokens": (
            len(call.mask) - call.sampled_tokens
            if call.token_ids
            else used.input_tokens
            if used
            else None
        ),
        "reasoning_tokens": used.reasoning_tokens if used else None,
        "has_tokens": bool(call.token_ids),
        "trainable": call.trainable,
        "why_untrainable": call.why_untrainable,
        "constrained": call.constrained,
        "credit": foreign(credit),
        "cost": foreign(used.cost) if used else None,
        "sampling": foreign(sampling.model_dump(mode="json")) if sampling else {},
        "queue_seconds": foreign(call.queue_seconds),
    }


def _messages(
    messages: Sequence[Mapping[str, Any]], base: str | None, item: str, earlier: int
) -> list[dict[str, Any]]:
    """New messages of a request. The answer of the previous call is left out, since that call shows
    it.
    """
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages, start=earlier):
        facts = message.get("response_metadata")
        said = cast("dict[str, Any]", facts).get("call_id") if isinstance(facts, dict) else None
        of_base = base is not None and base in (said, message.get("id"))
        if of_base and message.get("type") == "ai":
            continue
        kind = str(message.get("type") or message.get("role") or "unread")
        named = {"name": short(str(message["name"]))} if message.get("name") else {}
        text = str(message["unread"]) if message.get("unread") else text_of(dict(message))
        field = f"prompt/{number}"
        row = {"role": ROLES.get(kind, short(kind)), "text": cut_text(text, item, field), **named}
        if thoughts := thoughts_of(message):
            row["reasoning"] = cut_text(thoughts, item, f"{field}/reasoning")
        found.append(row)
    return found


def asked_calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Tool calls that an answer requests. Undecodable calls come last."""
    found: list[dict[str, Any]] = []
    for field in ("tool_calls", "invalid_tool_calls"):
        listed: Any = response.get(field)
        calls = cast("list[Any]", listed) if isinstance(listed, list) else []
        found += [cast("dict[str, Any]", call) for call in calls if isinstance(call, dict)]
    return found


def arguments_text(arguments: Any) -> str:
    """Arguments as JSON, or the text that could not be decoded."""
    return arguments if isinstance(arguments, str) else json_lines(arguments)


def program_of(arguments: Any) -> str | None:
    """Program among a tool's arguments (None if there is none)."""
    given = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
    return next((given[name] for name in _PROGRAMS if isinstance(given.get(name), str)), None)


def _tool(call: ToolCall) -> dict[str, Any]:
    item = f"tool:{call.id}"
    return {
        **_identity(call),
        "seconds": foreign(call.duration_seconds),
        "tool_call_id": call.tool_call_id,
        "name": short(call.name),
        "arguments": cut_text(arguments_text(call.arguments), item, "arguments"),
        "code": cut_text(program_of(call.arguments), item, "code"),
        "status": call.status.value if call.status else None,
        "content": cut_text(call.content, item, "content"),
        "stdout": cut_text(call.stdout, item, "stdout"),
        "stderr": cut_text(call.stderr, item, "stderr"),
        "value": cut_text(call.value, item, "value"),
        "duration_seconds": foreign(call.duration_seconds),
        "queued_seconds": foreign(call.queued_seconds),
        "isolation": call.isolation or None,
        "session": call.session.value if call.session else None,
        "changed_cells": list(call.changed_cells),
        "cpu_seconds": foreign(call.cpu_seconds),
        "peak_memory_bytes": foreign(call.peak_memory_bytes),
        "refused": foreign(call.refused),
        "attempt": call.attempt,
        "repeated_of": call.repeated_of,
    }
