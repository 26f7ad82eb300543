"""Finds trajectories by id, by the text of their task, and by their answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hrm_agent.store.summaries import headers_page
from hrm_agent.trajectory import Trajectory
from hrm_agent.viewer.json_text import short
from hrm_agent.viewer.projections.groups import Damaged

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["search"]

_PAGE, _SECONDS = 500, 3.0
_BEFORE, _AFTER = 60, 140
"""Characters of a text that are shown around a hit."""


def search(place: Place, q: str, run: str = "", limit: int = 50) -> dict[str, Any]:
    """`GET search`: `complete` is false where it ended before all were looked at."""
    wanted, store, damaged = q.casefold(), place.store(), Damaged()
    rows: list[dict[str, Any]] = []
    after, ends, complete = 0, time.monotonic() + _SECONDS, True
    while wanted.strip():
        where, values = ("seq > ?", [after]) if not run else ("seq > ? AND run_id = ?", [after, run])
        found = headers_page(store, where, values, damaged, limit=_PAGE)
        for _, header in found:
            if (hit := _hit(header, wanted)) is not None and len(rows) < limit:
                rows.append(hit)
        if len(found) + len(damaged.rows) < _PAGE or not found:
            break
        after = found[-1].seq
        if len(rows) >= limit or time.monotonic() > ends:
            complete = False
            break
    return {"rows": rows, "complete": complete, "damaged": damaged.data()}


def _hit(header: Trajectory, wanted: str) -> dict[str, Any] | None:
    """Where a trajectory has the text first."""
    texts = {
        "id": header.id,
        "thread": header.thread_id,
        "group": header.group_id,
        "task": header.task.id,
        "prompt": header.task.prompt,
        "answer": header.answer or "",
        "error": header.error or "",
    }
    for where, text in texts.items():
        at = text.casefold().find(wanted)
        if at >= 0:
            snippet = text[max(at - _BEFORE, 0) : at + _AFTER]
            return {"trajectory": header.id, "run": header.run_id, "where": where, "snippet": short(snippet)}
    return None
