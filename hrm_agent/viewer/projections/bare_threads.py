"""Threads with checkpoints but no trajectory. A program that only uses a store's checkpointer
writes such threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hrm_agent.errors import ConfigError
from hrm_agent.store.database.cursors import placeholders
from hrm_agent.viewer.json_text import foreign, short

if TYPE_CHECKING:
    from hrm_agent.store import RunStore
    from hrm_agent.viewer.places import Place

__all__ = ["bare_threads", "count_bare_threads"]

_BARE = (
    "threads t WHERE t.trajectory_id IS NULL "
    "AND EXISTS (SELECT 1 FROM checkpoints c WHERE c.thread_id = t.id AND c.ns = '')"
)
_AT, _ID = "COALESCE(CAST(t.updated_at AS DOUBLE PRECISION), 0)", "CAST(t.id AS TEXT)"
"""Sort keys of threads. They are cast, since a forged row may have a text instead of a number.
Texts sort above all numbers, so every page would begin with such rows.
"""


def bare_threads(place: Place, after: str = "", limit: int = 200) -> dict[str, Any]:
    """`GET threads`: threads without a trajectory, newest first. `after`: value of `next` in the
    previous page.
    """
    store = place.store()
    where = ""
    values = list[Any]()
    if after:
        written, _, id_ = after.partition(" ")
        try:
            at = float(written)
        except ValueError:
            raise ConfigError(
                f"after={after[:80]!r} is not the end of a page.",
                "Leave it out for the first page.",
            ) from None
        where = f"AND ({_AT} < ? OR ({_AT} = ? AND {_ID} < ?))"
        values = [at, at, id_]
    query = (
        f"SELECT {_ID}, t.created_at, {_AT} FROM {_BARE} {where} ORDER BY {_AT} DESC, {_ID} DESC"
        " LIMIT ?"
    )
    with store.database.read() as cursor:
        rows = [
            (str(id_), begun, at)
            for id_, begun, at in cursor.execute(query, [*values, limit]).fetchall()
        ]
        ids = [id_ for id_, *_ in rows]
        counted = (
            "SELECT thread_id, count(*) FROM checkpoints WHERE ns = '' AND thread_id IN"
            f" ({placeholders(len(ids))})"
        )
        counts = (
            dict(cursor.execute(f"{counted} GROUP BY thread_id", ids).fetchall()) if ids else {}
        )
    return {
        "threads": [
            {
                "thread": id_,
                "name": short(id_),
                "moments": counts.get(id_, 0),
                "started_at": foreign(begun),
                "updated_at": foreign(at),
            }
            for id_, begun, at in rows
        ],
        "next": f"{rows[-1][2]!r} {rows[-1][0]}" if len(rows) >= limit else None,
        "total": count_bare_threads(store),
    }


def count_bare_threads(store: RunStore) -> int:
    """Number of threads without a trajectory."""
    with store.database.read() as cursor:
        return int(cursor.execute(f"SELECT count(*) FROM {_BARE}").fetchone()[0])
