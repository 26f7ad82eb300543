"""Checks on a checkpoint that follows the newest one of a thread.

LangGraph takes the highest id for the newest, and ids begin with the time. A process that reads a thread goes on after
its ids (`langgraph_format.continue_ids_after`), whatever its own clock says. A checkpoint whose id is still lower than
the newest one's would be lost, so it is refused, with the writer's reason.
"""

from __future__ import annotations

import time
from datetime import datetime

from hrm_agent.errors import RunError
from hrm_agent.langgraph_format import ticks_of
from hrm_agent.store.cursors import Cursor
from hrm_agent.store.database import Database
from hrm_agent.store.manifests import CheckpointKey
from hrm_agent.store.threads import head_of

__all__ = ["refuse_set_back_clock", "refuse_stranger"]

_TICKS, _EPOCH_TICKS = 10_000_000, 0x01B21DD213814000
"""Of a UUID's time: per second, and from its beginning in 1582 to 1970."""


def refuse_stranger(database: Database, cursor: Cursor, place: CheckpointKey, new: str, *, chosen: bool) -> None:
    """Raises `RunError` where a checkpoint of the outermost graph does not follow the newest one.

    `chosen`: its parent was asked for by id, so that a branch may begin there.
    """
    newest = head_of(database, cursor, place.thread_id)
    if newest > new:
        refuse_set_back_clock(place.thread_id, newest)
    if chosen or newest in ("", new, place.checkpoint_id):
        return
    raise RunError(
        f"Thread {place.thread_id!r} was continued by another run: its newest checkpoint is {newest}, "
        f"but this run started from {place.checkpoint_id or 'no checkpoint'}. Its checkpoint was not written.",
        "Run one at a time on a thread, or fork it: `hrm-agent fork --help`.",
    )


def refuse_set_back_clock(thread_id: str, newest: str) -> None:
    """Raises `RunError` where this machine's clock stands before the checkpoint `newest`."""
    made_at = _time_of(newest)
    ahead = made_at - time.time()
    if ahead > 0:
        raise RunError(
            f"The clock of this machine stands {ahead:,.1f} seconds before the newest checkpoint of thread "
            f"{thread_id!r} ({newest}, made at {datetime.fromtimestamp(made_at):%Y-%m-%d %H:%M:%S}), so that the next "
            "one would be taken for an older one. It was not written.",
            "Resume the run: a new process reads the thread first, and goes on after its ids.",
        )


def _time_of(checkpoint_id: str) -> float:
    """Unix time in seconds at which LangGraph made an id; negative for one in another form."""
    return (ticks_of(checkpoint_id) - _EPOCH_TICKS) / _TICKS
