"""Moments of a thread, a page at a time, and the state at one moment.

The state is shown as far as possible without the graph's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from hrm_agent.errors import StoreError
from hrm_agent.langgraph_format import is_internal
from hrm_agent.runtime.time_travel.history import Moment
from hrm_agent.runtime.time_travel.moment_data import moment_data
from hrm_agent.runtime.time_travel.read_history import HistoryReader
from hrm_agent.store import RunStore
from hrm_agent.store.browse.state import (
    CheckpointLink,
    Written,
    checkpoint_links,
    outlines_of,
    rows_around,
    shown_channels,
)
from hrm_agent.store.values.damage import DAMAGED, in_a_line
from hrm_agent.store.values.plain_reader import SentTask, ShownMessage, StoredQuestion, Unread
from hrm_agent.trajectory import Call, RunStatus, ToolCall, Trajectory
from hrm_agent.trajectory.decisions import made_by_blame
from hrm_agent.trajectory.words import text_of, thoughts_of
from hrm_agent.viewer.json_text import (
    SHOWN,
    NotThere,
    cut_text,
    foreign,
    json_lines,
    json_text,
    short,
)
from hrm_agent.viewer.projections.groups import Damaged
from hrm_agent.viewer.projections.trajectory.items import arguments_text
from hrm_agent.viewer.projections.trajectory.threads import children_at, threads_of

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["moment", "moment_json", "moments", "moments_at", "plain", "thread_named"]


def moments(
    place: Place, thread: str, after: int = 0, limit: int = 50, checkpoint: str = ""
) -> dict[str, Any]:
    """`GET moments`. `after`: number of moments to skip. `checkpoint`: return the page that
    contains this checkpoint.
    """
    store = place.store()
    damaged = Damaged()
    header, thread_id = thread_named(store, thread)
    links = checkpoint_links(store, thread_id)
    if not links and header is None:
        raise NotThere(
            f"There is no thread {thread[:200]!r} in {place.where}.", "It may have been deleted."
        )
    if checkpoint:
        at = next((n for n, link in enumerate(links) if link.id == checkpoint), None)
        if at is None:
            raise NotThere(
                f"Thread {thread_id!r} has no checkpoint {checkpoint[:80]!r}.",
                "It may have been deleted.",
            )
        after = at - at % limit
    chosen = range(min(after, len(links)), min(after + limit, len(links)))
    read = {
        moment.checkpoint_id: moment
        for moment in moments_at(store, thread_id, header, links, chosen, damaged)
    }
    hanging = children_at(store, header) if header is not None else {}
    rows: list[dict[str, Any]] = []
    for number in chosen:
        link = links[number]
        if (found := read.get(link.id)) is not None:
            row = moment_json(found)
        else:
            row = {
                "index": str(number),
                "checkpoint": link.id,
                "parent": link.parent,
                "problem": "It cannot be read.",
            }
        forks = hanging.get(link.id, ())
        branches = [
            {"trajectory": fork.id, "thread": fork.thread_id, "status": fork.status.value}
            for fork in forks
        ]
        rows.append({**row, "position": number, "branches": branches, "value": _value(forks)})
    following = after + limit
    return {
        "thread": thread_id,
        "trajectory": header.id if header else None,
        "moments": rows,
        "after": after,
        "next": following if following < len(links) else None,
        "total": len(links),
        "damaged": damaged.data(),
    }


def _value(forks: Sequence[Trajectory]) -> dict[str, Any] | None:
    """Value of a moment by its newest group of forks that `hrm-agent blame` made, with Wilson's 95 %
    interval (None without such forks, or if none was judged).
    """
    made = [fork for fork in forks if made_by_blame(fork)]
    newest = max(made, key=lambda fork: fork.started_at, default=None)
    ended = (RunStatus.COMPLETED, RunStatus.TRUNCATED)
    outcomes = [
        0.0 if fork.status is RunStatus.TRUNCATED else fork.outcome
        for fork in made
        if newest is not None
        and fork.group_id == newest.group_id
        and fork.status in ended
        and "correct" in fork.rewards
    ]
    if newest is None or not outcomes:
        return None
    from hrm_agent.basics.intervals import wilson_interval

    low, high = wilson_interval(sum(outcomes), len(outcomes))
    told = {"mean": fmean(outcomes), "low": low, "high": high, "forks": len(outcomes)}
    return {**told, "policy": newest.policy}


def moments_at(
    store: RunStore,
    thread_id: str,
    header: Trajectory | None,
    links: Sequence[CheckpointLink],
    chosen: Sequence[int],
    damaged: Damaged,
) -> list[Moment]:
    """Selected moments of a thread. Others are not read."""
    ids = [links[number].id for number in chosen]
    before = {parent for number in chosen if (parent := links[number].parent) is not None}
    wanted = {*ids, *before}
    following = {link.id for link in links if link.parent in wanted}
    rows = rows_around(store, thread_id, wanted | following, wanted)
    outlines = damaged.readable(partial(outlines_of, store), rows, lambda row: row.id)
    listed = sorted(outlines, key=lambda outline: str(outline.checkpoint["id"]))
    whole = _with_calls(store, header, wanted) if header is not None else None
    numbers = {link.id: number for number, link in enumerate(links)}
    with suppress(*DAMAGED):
        return HistoryReader(thread_id, whole, listed, {}).some(numbers, ids)
    # a forged checkpoint (with an invalid time or step) made all of them fail, so build each
    # separately
    found: list[Moment] = []
    for id_ in ids:
        try:
            found += HistoryReader(thread_id, whole, listed, {}).some(numbers, [id_])
        except DAMAGED as error:
            damaged(id_, StoreError(f"Checkpoint {id_} cannot be read: {in_a_line(error)}."))
    return found


def thread_named(store: RunStore, name: str) -> tuple[Trajectory | None, str]:
    """Trajectory (None if it is missing or cannot be read) and id of a thread. `name`: id of the
    thread or of the trajectory.
    """
    found: list[Trajectory] = []
    with suppress(StoreError):  # checkpoints are shown even if the header is damaged
        found = store.journal.headers("thread_id = ? OR id = ?", (name, name))
    header = next((each for each in found if each.thread_id == name), found[0] if found else None)
    return header, header.thread_id if header else name


def _with_calls(store: RunStore, header: Trajectory, steps: set[str]) -> Trajectory:
    """Trajectory with the calls of some steps, including inherited calls."""
    calls: list[Call] = []
    tools: list[ToolCall] = []
    for thread, shared in threads_of(store, header):
        here = sorted(steps if shared is None else steps & shared)
        with suppress(StoreError):  # the items of the trajectory show which call is damaged
            calls += (
                call
                for call in store.journal.calls_among(here, steps_of=thread)
                if call.error is None
            )
        with suppress(StoreError):
            tools += store.journal.tool_calls_among(here, steps_of=thread)
    return header.model_copy(update={"calls": tuple(calls), "tool_calls": tuple(tools)})


def moment_json(moment: Moment) -> dict[str, Any]:
    """Moment as in `hrm-agent history --json`, but with long questions of interrupts cut."""
    told = cast("dict[str, Any]", foreign(moment_data(moment)))
    for asked in told["interrupts"]:
        text = asked["value"] if isinstance(asked["value"], str) else json_text(asked["value"])
        asked["value"] = asked["value"] if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return told


_MOST_MESSAGES = 500
"""Maximum number of messages of a channel that are shown. The last are preferred."""


def moment(place: Place, thread: str, checkpoint: str) -> dict[str, Any]:
    """`GET moment`. `checkpoint`: id in the graph itself, or `CHECKPOINT|NAMESPACE` in a
    subgraph.
    """
    store = place.store()
    damaged = Damaged()
    header, thread_id = thread_named(store, thread)
    id_, _, namespace = checkpoint.partition("|")
    found = shown_channels(store, thread_id, id_, namespace)
    if found is None:
        raise NotThere(
            f"Thread {thread[:200]!r} has no checkpoint {id_[:80]!r}.", "It may have been deleted."
        )
    item = f"state:{checkpoint}:{thread_id}"
    values = found.checkpoint["channel_values"]
    links = checkpoint_links(store, thread_id)
    at = [number for number, link in enumerate(links) if link.id == id_]
    read = moments_at(store, thread_id, header, links, at, damaged)
    told = moment_json(read[0]) if read else None
    return {
        "moment": told,
        "trajectory": header.id if header else None,
        "channels": [
            _channel(name, value, item) for name, value in values.items() if not is_internal(name)
        ],
        "next": told["next"] if told else [],
        "interrupts": told["interrupts"] if told else [],
        "damaged": damaged.data(),
    }


def _channel(name: str, value: Any, item: str) -> dict[str, Any]:
    messages = cast("list[Any]", value) if isinstance(value, list) else []
    if messages and all(isinstance(message, ShownMessage) for message in messages):
        first = max(len(messages) - _MOST_MESSAGES, 0)
        shown = [
            _message(message, f"{name}/{first + n}", item)
            for n, message in enumerate(messages[first:])
        ]
        chars = sum(len(text_of(message.fields)) for message in messages)
        return {
            "name": short(name),
            "kind": "messages",
            "messages": shown,
            "messages_before": first,
            "chars": chars,
        }
    if isinstance(value, ShownMessage):
        return {
            "name": short(name),
            "kind": "messages",
            "messages": [_message(value, f"{name}/0", item)],
            "messages_before": 0,
            "chars": len(text_of(value.fields)),
        }
    if isinstance(value, str):
        return {
            "name": short(name),
            "kind": "text",
            "text": cut_text(value, item, name),
            "chars": len(value),
        }
    if isinstance(value, Unread):
        text = json_lines(plain(value.made_of))
        why = f"a value of the type {short(value.type)}, which is not loaded here"
        cut = cut_text(text, item, name)
        return {"name": short(name), "kind": "unread", "why": why, "text": cut, "chars": len(text)}
    shown = plain(value)
    text = json_lines(shown)
    if isinstance(value, Written):
        why = (
            "not known without the graph, which makes it of the newest value on record and what was"
            " written since"
        )
        return {
            "name": short(name),
            "kind": "unread",
            "why": why,
            "text": cut_text(text, item, name),
            "chars": len(text),
        }
    whole = {"value": foreign(shown)} if len(text) <= SHOWN else {}
    return {
        "name": short(name),
        "kind": "json",
        "text": cut_text(text, item, name),
        "chars": len(text),
        **whole,
    }


def _message(message: ShownMessage, field: str, item: str) -> dict[str, Any]:
    fields = message.fields
    asked: Any = fields.get("tool_calls")
    calls = [
        cast("dict[str, Any]", call)
        for call in cast("Sequence[Any]", asked or ())
        if isinstance(call, dict)
    ]
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
                "arguments": cut_text(
                    arguments_text(plain(call.get("args"))), item, f"{field}/arguments/{number}"
                ),
            }
            for number, call in enumerate(calls)
        ],
        "tool_call_id": str(fields["tool_call_id"]) if fields.get("tool_call_id") else None,
        "status": str(fields["status"]) if fields.get("status") else None,
    }


def plain(value: Any) -> Any:
    """Value as JSON. If its type is not loaded, the JSON has the name of the type."""
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
            return sorted(cast("set[Any]", value), key=str)
        case list() | tuple():
            return [plain(item) for item in cast("list[Any]", value)]
        case _:
            return value
