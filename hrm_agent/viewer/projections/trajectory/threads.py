"""Lookup of a trajectory with all threads that it was forked from, and of its items in order of
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hrm_agent.store import RunStore
from hrm_agent.store.browse.lists import headers_page, overlays_of
from hrm_agent.store.browse.thread import CallMark, call_marks
from hrm_agent.trajectory import Overlay, Trajectory
from hrm_agent.viewer.json_text import NotThere
from hrm_agent.viewer.projections.groups import Damaged

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = [
    "Transcript",
    "TranscriptItem",
    "children_at",
    "forks_of",
    "header_of",
    "overlays_on",
    "siblings_of",
    "threads_of",
    "transcript",
]


class TranscriptItem(NamedTuple):
    """Turn, model call or tool call."""

    kind: str
    """Kind: `turn`, `call` or `tool`."""
    id: str
    """Id of the turn or call."""
    at: float
    """Unix time of the item in seconds."""
    mark: CallMark | None
    """Mark of the call (None for a turn)."""


class Transcript(NamedTuple):
    """Trajectory with its items."""

    header: Trajectory
    """Trajectory without its calls."""
    items: list[TranscriptItem]
    """Items in the order of `hrm-agent show`."""
    damaged: Damaged
    """Records that cannot be read."""

    @property
    def own(self) -> list[CallMark]:
        """Model calls and tool calls of the trajectory's own thread."""
        thread = self.header.thread_id
        return [
            item.mark
            for item in self.items
            if item.mark is not None and item.mark.thread_id == thread
        ]


def header_of(place: Place, id_: str) -> Trajectory:
    """Trajectory by its id, or by the id of its thread. Raises `NotThere` if it is missing, and
    `StoreError` if it is damaged.
    """
    store = place.store()
    found = store.journal.headers("id = ? OR thread_id = ?", (id_, id_))
    if not found:
        raise NotThere(
            f"There is no trajectory {id_[:200]!r} in {place.where}.", "It may have been deleted."
        )
    return next((each for each in found if each.id == id_), found[0])


def threads_of(store: RunStore, header: Trajectory) -> list[tuple[str, set[str] | None]]:
    """Threads of a trajectory's calls, oldest first. Each has the steps whose calls belong to the
    trajectory (None: all).
    """
    behind = store.journal.threads_behind(header) if header.forked_from is not None else []
    return [*behind, (header.thread_id, None)]


def transcript(place: Place, id_: str) -> Transcript:
    """Trajectory with all its items. Raises `NotThere` if it is missing."""
    store = place.store()
    header = header_of(place, id_)
    damaged = Damaged()
    items = [TranscriptItem("turn", turn.id, turn.started_at, None) for turn in header.turns]
    marks = call_marks(store, threads_of(store, header), damaged)
    items += [TranscriptItem(mark.kind, mark.id, mark.at, mark) for mark in marks]
    return Transcript(header, sorted(items, key=lambda item: item.at), damaged)


def overlays_on(store: RunStore, header: Trajectory, damaged: Damaged) -> list[Overlay]:
    """Judgements of a trajectory by the last 100 runs that judged it, newest last."""
    query = "SELECT run_id FROM overlays WHERE trajectory_id = ? ORDER BY seq"
    with store.database.read() as cursor:
        runs = [str(row[0]) for row in cursor.execute(query, (header.id,)).fetchall()]
    found = (
        overlays_of(store, run, damaged, ids=[header.id]).get(header.id) for run in runs[-100:]
    )
    return [overlay for overlay in found if overlay is not None]


def siblings_of(store: RunStore, header: Trajectory) -> list[str]:
    """Ids of all trajectories in the group of a trajectory, in order."""
    if not header.group_id:
        return [header.id]
    found = headers_page(
        store,
        "run_id = ? AND group_id = ?",
        (header.run_id, header.group_id),
        Damaged(),
        limit=2_000,
    )
    return [each.header.id for each in sorted(found, key=lambda each: each.header.sample_index)]


def forks_of(store: RunStore, header: Trajectory) -> list[Trajectory]:
    """Forks of a trajectory."""
    return [
        each.header
        for each in headers_page(store, "origin = ?", (header.id,), Damaged(), limit=1_000)
    ]


def children_at(store: RunStore, header: Trajectory) -> dict[str, list[Trajectory]]:
    """Forks of a trajectory, by the checkpoint at which they begin."""
    found: dict[str, list[Trajectory]] = {}
    for fork in forks_of(store, header):
        if fork.forked_from is not None:
            found.setdefault(fork.forked_from.checkpoint_id, []).append(fork)
    return found
