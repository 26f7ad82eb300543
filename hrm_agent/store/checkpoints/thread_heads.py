"""Newest checkpoints of threads, and the runs that may continue them.

A run may continue from a checkpoint that is no longer the newest of its thread only if it asked for
it by id. Otherwise it is a second run on the same thread: LangGraph would fork the thread silently,
the store refuses.

LangGraph takes the highest id for the newest checkpoint, and ids begin with the time. A process
that reads a thread makes higher ids from then on (`langgraph_format.continue_ids_after`), whatever
its own clock shows. A checkpoint whose id is still lower than the newest one's would be lost, so it
is refused with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hrm_agent.basics.bounded import remember
from hrm_agent.errors import RunError
from hrm_agent.langgraph_format import continue_ids_after, ticks_of
from hrm_agent.store.checkpoints.reader import CheckpointKey
from hrm_agent.store.database.cursors import Cursor, answered
from hrm_agent.store.database.database import Database

__all__ = ["ThreadHeads", "touch_thread"]

_TICKS = 10_000_000
"""Ticks of a UUID's time per second."""
_EPOCH_TICKS = 0x01B21DD213814000
"""Ticks from a UUID's epoch in 1582 to 1970."""


class ThreadHeads:
    """Newest checkpoints of threads, as one process knows them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.chosen: dict[tuple[str, str], None] = {}
        """Threads and checkpoints that were asked for by id. A run may branch off there."""
        self.empty: dict[str, None] = {}
        """Threads that were found empty. The process that asked is about to start them."""
        self._highest = ""
        """Highest id that was read. LangGraph makes higher ones from then on."""

    def choose(self, thread_id: str, checkpoint_id: str) -> None:
        """Allow a branch from a checkpoint."""
        remember(self.chosen, (thread_id, checkpoint_id), None)

    def may_follow(self, place: CheckpointKey, facts: Mapping[str, Any], new: str) -> None:
        """Allow a branch after an edit or LangGraph's own fork, as both are made on request.

        Raise `RunError` early for a subgraph if the clock was set back: it writes before the graph
        around it does.
        """
        outermost = (facts.get("parents") or {}).get("")
        if place.ns and isinstance(outermost, str) and outermost > new:
            _refuse_set_back_clock(place.thread_id, outermost)
        if facts.get("source") in ("update", "fork") and place.checkpoint_id:
            self.choose(place.thread_id, place.checkpoint_id)

    def refuse_second_run(self, cursor: Cursor, place: CheckpointKey, new: str) -> None:
        """Raise `RunError` if a checkpoint of the outermost graph does not follow the newest one."""
        thread_id = place.thread_id
        if place.ns or (place.checkpoint_id is None and thread_id not in self.empty):
            return
        newest = self._newest(cursor, thread_id)
        if newest > new:
            _refuse_set_back_clock(thread_id, newest)
        chosen = (thread_id, place.checkpoint_id) in self.chosen
        if chosen or newest in ("", new, place.checkpoint_id):
            return
        raise RunError(
            f"Thread {thread_id!r} was continued by another run: its newest checkpoint is"
            f" {newest}, but this run started from {place.checkpoint_id or 'no checkpoint'}. Its"
            " checkpoint was not written.",
            "Run one at a time on a thread, or fork it: `hrm-agent fork --help`.",
        )

    def _newest(self, cursor: Cursor, thread_id: str) -> str:
        """Newest checkpoint of a thread (empty if it has none). It is still the newest when this
        transaction commits.
        """
        database = self._database
        if thread_id not in database.heads:
            database.lock_thread(cursor, thread_id)
            query = "SELECT max(id) FROM checkpoints WHERE thread_id = ? AND ns = ''"
            likely = database.likely_heads.get(thread_id)
            expected = None if likely is None else (likely or None,)
            found = answered(cursor, query, (thread_id,), expected)
            database.heads[thread_id] = found[0] or ""
        return database.heads[thread_id]

    def written(self, place: CheckpointKey, new: str) -> None:
        """Note a checkpoint as it is written."""
        heads = self._database.heads
        if not place.ns and (head := heads.get(place.thread_id)) is not None:
            heads[place.thread_id] = max(head, new)

    def go_on_after(self, checkpoint_id: str) -> None:
        """Make higher ids than that of a checkpoint which was read."""
        if checkpoint_id > self._highest:
            self._highest = checkpoint_id
            continue_ids_after(checkpoint_id)


def touch_thread(cursor: Cursor, thread_id: str, now: float) -> None:
    """Note that a thread was written to."""
    cursor.execute(
        "INSERT INTO threads (id, run_id, group_id, status, created_at, updated_at) VALUES (?, '',"
        " '', '', ?, ?) ON CONFLICT (id) DO UPDATE SET updated_at = excluded.updated_at",
        (thread_id, now, now),
    )


def _refuse_set_back_clock(thread_id: str, newest: str) -> None:
    """Raise `RunError` if this machine's clock is behind the checkpoint `newest`."""
    made_at = (ticks_of(newest) - _EPOCH_TICKS) / _TICKS
    ahead = made_at - time.time()
    if ahead > 0:
        raise RunError(
            f"The clock of this machine stands {ahead:,.1f} seconds before the newest checkpoint of"
            f" thread {thread_id!r} ({newest}, made at"
            f" {datetime.fromtimestamp(made_at):%Y-%m-%d %H:%M:%S}), so that the next one would be"
            " taken for an older one. It was not written.",
            "Resume the run: a new process reads the thread first, and goes on after its ids.",
        )
