"""The state of a graph at one moment, as far as it can be shown without the graph's code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from hrm_agent.langgraph_format import is_internal
from hrm_agent.store.outlines import SentTask, StoredQuestion
from hrm_agent.store.shown_values import ShownMessage, Unread, Written, checkpoint_links, shown_channels
from hrm_agent.trajectory.shown import text_of, thoughts_of
from hrm_agent.viewer.json_text import SHOWN, NotThere, cut_text, foreign, json_lines, short
from hrm_agent.viewer.projections.groups import Damaged
from hrm_agent.viewer.projections.items import arguments_text
from hrm_agent.viewer.projections.moments import moment_json, moments_at, thread_named

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["moment", "plain"]

_MOST_MESSAGES = 500
"""Messages of a channel that are shown; of more, the last."""


def moment(place: Place, thread: str, checkpoint: str) -> dict[str, Any]:
    """`GET moment`. `checkpoint`: of the graph itself, or of a subgraph as `CHECKPOINT|NAMESPACE`."""
    store, damaged = place.store(), Damaged()
    header, thread_id = thread_named(store, thread)
    id_, _, namespace = checkpoint.partition("|")
    found = shown_channels(store, thread_id, id_, namespace)
    if found is None:
        raise NotThere(f"Thread {thread[:200]!r} has no checkpoint {id_[:80]!r}.", "It may have been deleted.")
    item = f"state:{checkpoint}:{thread_id}"
    values = found.checkpoint["channel_values"]
    links = checkpoint_links(store, thread_id)
    at = [number for number, link in enumerate(links) if link.id == id_]
    read = moments_at(store, thread_id, header, links, at, damaged)
    told = moment_json(read[0]) if read else None
    return {
        "moment": told,
        "trajectory": header.id if header else None,
        "channels": [_channel(name, value, item) for name, value in values.items() if not is_internal(name)],
        "next": told["next"] if told else [],
        "interrupts": told["interrupts"] if told else [],
        "damaged": damaged.data(),
    }


def _channel(name: str, value: Any, item: str) -> dict[str, Any]:
    messages = cast("list[Any]", value) if isinstance(value, list) else []
    if messages and all(isinstance(message, ShownMessage) for message in messages):
        first = max(len(messages) - _MOST_MESSAGES, 0)
        shown = [_message(message, f"{name}/{first + n}", item) for n, message in enumerate(messages[first:])]
        chars = sum(len(text_of(message.fields)) for message in messages)
        return {"name": short(name), "kind": "messages", "messages": shown, "messages_before": first, "chars": chars}
    if isinstance(value, ShownMessage):
        return {
            "name": short(name),
            "kind": "messages",
            "messages": [_message(value, f"{name}/0", item)],
            "messages_before": 0,
            "chars": len(text_of(value.fields)),
        }
    if isinstance(value, str):
        return {"name": short(name), "kind": "text", "text": cut_text(value, item, name), "chars": len(value)}
    if isinstance(value, Unread):
        text = json_lines(plain(value.made_of))
        why = f"a value of the type {short(value.type)}, which is not loaded here"
        cut = cut_text(text, item, name)
        return {"name": short(name), "kind": "unread", "why": why, "text": cut, "chars": len(text)}
    shown = plain(value)
    text = json_lines(shown)
    if isinstance(value, Written):
        why = "not known without the graph, which makes it of the newest value on record and what was written since"
        return {
            "name": short(name),
            "kind": "unread",
            "why": why,
            "text": cut_text(text, item, name),
            "chars": len(text),
        }
    whole = {"value": foreign(shown)} if len(text) <= SHOWN else {}
    return {"name": short(name), "kind": "json", "text": cut_text(text, item, name), "chars": len(text), **whole}


def _message(message: ShownMessage, field: str, item: str) -> dict[str, Any]:
    fields = message.fields
    asked: Any = fields.get("tool_calls")
    calls = [cast("dict[str, Any]", call) for call in cast("Sequence[Any]", asked or ()) if isinstance(call, dict)]
    return {
        "id": fields.get("id") if isinstance(fields.get("id"), str) else None,
        "type": short(str(fields.get("type", ""))),
        "name": short(str(fields["name"])) if fields.get("name") else None,
        "text": cut_text(text_of(fields), item, field),
        "reasoning": cut_text(thoughts_of(fields) or None, item, f"{field}/reasoning"),
        "tool_calls": [
            {
                "id": str(call.get("id")),
                "name": short(str(call.get("name"))),
                "arguments": cut_text(arguments_text(plain(call.get("args"))), item, f"{field}/arguments/{number}"),
            }
            for number, call in enumerate(calls)
        ],
        "tool_call_id": str(fields["tool_call_id"]) if fields.get("tool_call_id") else None,
        "status": str(fields["status"]) if fields.get("status") else None,
    }


def plain(value: Any) -> Any:
    """A shown value as JSON: what is not loaded is named by its type."""
    match value:
        case Unread(type=type_, made_of=made_of):
            return {"type": type_, "made_of": plain(made_of)}
        case ShownMessage(fields=fields):
            return {str(name): plain(item) for name, item in fields.items()}
        case Written(snapshot=snapshot, writes=writes):
            return {"snapshot": plain(snapshot), "writes": plain(writes)}
        case SentTask(node=node):
            return {"send": node}
        case StoredQuestion(id=id_, value=asked):
            return {"interrupt": id_, "value": plain(asked)}
        case dict():
            return {str(name): plain(item) for name, item in cast("dict[Any, Any]", value).items()}
        case set():
            return sorted(cast("set[str]", value))
        case list():
            return [plain(item) for item in cast("list[Any]", value)]
        case _:
            return value
