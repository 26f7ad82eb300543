"""Comparison of two trajectories: their common part, and the differences of their items and states."""

from __future__ import annotations

import difflib
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

from hrm_agent.errors import StoreError
from hrm_agent.langgraph_format import is_internal
from hrm_agent.store import RunStore
from hrm_agent.store.browse.state import checkpoint_links, shown_channels
from hrm_agent.store.values.plain_reader import ShownMessage
from hrm_agent.viewer.json_text import cut_text, short
from hrm_agent.viewer.projections.groups import Damaged, overlay_data
from hrm_agent.viewer.projections.trajectory.items import item_rows
from hrm_agent.viewer.projections.trajectory.moments import plain
from hrm_agent.viewer.projections.trajectory.threads import overlays_on, transcript
from hrm_agent.viewer.projections.trajectory.trajectory import header_data

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["compare"]

_MOST_ITEMS, _MOST_LINES = 400, 2_000
"""Maximum items of each side, and maximum lines of a difference."""


def compare(place: Place, a: str, b: str) -> dict[str, Any]:
    """`GET compare`: two trajectories side by side."""
    store = place.store()
    damaged = Damaged()
    left = transcript(place, a)
    right = transcript(place, b)
    sides = [
        item_rows(store, side, range(min(len(side.items), _MOST_ITEMS))) for side in (left, right)
    ]
    lines = [_line(store, side.header.thread_id) for side in (left, right)]
    newest = {
        side.header.id: (
            overlay_data(overlays[-1])
            if (overlays := overlays_on(store, side.header, damaged))
            else None
        )
        for side in (left, right)
    }
    return {
        "a": header_data(left.header),
        "b": header_data(right.header),
        "overlays": newest,
        "shared": next((id_ for id_ in reversed(lines[0]) if id_ in set(lines[1])), None),
        "rows": _aligned(*sides),
        "left_out": [max(len(side.items) - _MOST_ITEMS, 0) for side in (left, right)],
        "states": _states(store, left.header.thread_id, right.header.thread_id, damaged),
        "damaged": [*left.damaged.data(), *right.damaged.data(), *damaged.data()],
    }


def _line(store: RunStore, thread_id: str) -> list[str]:
    """Ids of the newest checkpoint and its ancestors, oldest first."""
    parents = {link.id: link.parent for link in checkpoint_links(store, thread_id)}
    line: dict[str, None] = {}
    here: str | None = max(parents, default=None)
    while here is not None and here in parents and here not in line:
        line[here] = None
        here = parents[here]
    return list(line)[::-1]


def _aligned(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs of items. Equal items form a pair. Differing items between them are paired in order, or
    with null.
    """
    keys = [[_key(row) for row in side] for side in (a, b)]
    found: list[dict[str, Any]] = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        pairs = zip_longest(a[i1:i2], b[j1:j2])
        for left, right in pairs:
            shared = left is not None and right is not None and left["id"] == right["id"]
            found.append({"a": left, "b": right, "equal": tag == "equal", "shared": shared})
    return found


def _key(row: dict[str, Any]) -> str:
    """Text by which an item is compared: author and content, without times."""
    said = [
        row.get(name)
        for name in ("text", "reasoning", "code_calls", "arguments", "status", "content", "prompt")
    ]
    return repr([row["kind"], row["role"], row.get("name"), *map(_without_places, said)])


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return [table.get(name) for name in ("text", "chars", "name")] + [
            _without_places(table.get("arguments"))
        ]
    return (
        [_without_places(item) for item in cast("list[Any]", value)]
        if isinstance(value, list)
        else value
    )


def _states(store: RunStore, a: str, b: str, damaged: Damaged) -> list[dict[str, Any]]:
    from hrm_agent.runtime.time_travel.thread_diff import channel_changes  # LangChain's messages

    states: list[dict[str, Any]] = []
    for thread in (a, b):
        try:
            found = shown_channels(store, thread)
        except StoreError as error:
            damaged(thread, error)
            return []
        values = found.checkpoint["channel_values"] if found is not None else {}
        states.append(
            {name: _value(value) for name, value in values.items() if not is_internal(name)}
        )
    return [
        {
            "channel": short(change.channel),
            "part": change.part,
            "lines": [
                line["text"] if (line := cut_text(each, "", "")) else ""
                for each in change.lines[:_MOST_LINES]
            ],
            "left_out": max(len(change.lines) - _MOST_LINES, 0),
        }
        for change in channel_changes(states[0], states[1])
    ]


def _value(value: Any) -> Any:
    """Value in the form that `hrm-agent diff` compares, with LangChain's messages."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    if not items or not all(isinstance(item, ShownMessage) for item in items):
        return plain(value)
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
    )

    kinds: dict[str, type[BaseMessage]] = {
        "human": HumanMessage,
        "ai": AIMessage,
        "system": SystemMessage,
        "tool": ToolMessage,
    }
    found: list[Any] = []
    for message in cast("list[ShownMessage]", items):
        made: Any = plain(message)
        kind = kinds.get(str(message.fields.get("type")))
        with suppress(ValueError, TypeError):
            made = kind.model_validate(made) if kind is not None else made
        found.append(made)
    return found
