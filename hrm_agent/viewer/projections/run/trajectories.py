"""Trajectories of a run as a long, compact list, and search of trajectories by their id, the text
of their task, and their answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hrm_agent.store.browse.lists import headers_page, overlays_of, uses_of_threads
from hrm_agent.store.database.cursors import placeholders
from hrm_agent.trajectory import Trajectory
from hrm_agent.viewer.json_text import foreign, short
from hrm_agent.viewer.projections.groups import Damaged, step_begun_for

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["COLUMNS", "search", "trajectories"]

COLUMNS = (
    "seq",
    "trajectory",
    "thread",
    "group",
    "step",
    "task",
    "status",
    "stop_reason",
    "reward",
    "verdict",
    "advantage",
    "tokens",
    "tool_calls",
    "started_at",
)


def trajectories(place: Place, run: str, after: int = 0, limit: int = 2_000) -> dict[str, Any]:
    """`GET trajectories`: trajectories that the run made, and others that it judged."""
    store = place.store()
    damaged = Damaged()
    judged = "SELECT trajectory_id FROM overlays WHERE run_id = ?"
    where = f"(run_id = ? OR id IN ({judged}))"
    values = [run, run]
    with store.database.read() as cursor:
        total = int(
            cursor.execute(f"SELECT count(*) FROM trajectories WHERE {where}", values).fetchone()[0]
        )
    found = headers_page(store, f"{where} AND seq > ?", [*values, after], damaged, limit=limit)
    headers = [each.header for each in found]
    overlays = overlays_of(store, run, damaged, ids=[each.id for each in headers])
    threads = [each.thread_id for each in headers]
    uses = uses_of_threads(store, threads)
    tool_calls: dict[str, int] = {}
    with store.database.read() as cursor:
        for start in range(0, len(threads), 500):
            some = threads[start : start + 500]
            query = (
                "SELECT thread_id, count(*) FROM tool_calls WHERE thread_id IN"
                f" ({placeholders(len(some))}) GROUP BY thread_id"
            )
            tool_calls |= dict(cursor.execute(query, some).fetchall())
    rows: list[list[Any]] = []
    for seq, header in found:
        overlay = overlays.get(header.id)
        use = uses.get(header.thread_id)
        reward = overlay.reward if overlay else header.reward if header.rewards else None
        rows.append(
            [
                seq,
                header.id,
                header.thread_id,
                header.group_id,
                overlay.step + 1 if overlay else step_begun_for(header.run_id, header.group_id),
                short(f"{header.task.family} {header.task.id}"),
                header.status.value,
                header.stop_reason.value if header.stop_reason else None,
                foreign(reward),
                overlay.verdict.value if overlay else None,
                foreign(overlay.advantage) if overlay else None,
                use.output_tokens if use else None,
                tool_calls.get(header.thread_id, 0),
                foreign(header.started_at),
            ]
        )
    read = len(found) + len(damaged.rows)
    return {
        "columns": COLUMNS,
        "rows": rows,
        "next": found[-1].seq if found and read >= limit else None,
        "total": total,
        "damaged": damaged.data(),
    }


_PAGE, _SECONDS = 500, 3.0
_BEFORE, _AFTER = 60, 140
"""Number of characters that are shown before and after a hit."""


def search(place: Place, q: str, run: str = "", limit: int = 50) -> dict[str, Any]:
    """`GET search`. `complete` is false if not all trajectories were searched."""
    wanted = q.casefold()
    store = place.store()
    damaged = Damaged()
    rows: list[dict[str, Any]] = []
    after = 0
    ends = time.monotonic() + _SECONDS
    complete = True
    while wanted.strip():
        where, values = (
            ("seq > ?", [after]) if not run else ("seq > ? AND run_id = ?", [after, run])
        )
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
    """First hit of `wanted` in a trajectory (None without a hit)."""
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
            return {
                "trajectory": header.id,
                "run": header.run_id,
                "where": where,
                "snippet": short(snippet),
            }
    return None
