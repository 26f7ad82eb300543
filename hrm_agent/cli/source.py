"""Where trajectories come from: a store, a run's folder, or a file that `hrm-agent export` wrote."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.export import read_jsonl, read_parquet

__all__ = ["DEFAULT_STORE", "existing_store", "stored_trajectories"]

DEFAULT_STORE = "runs/store.db"
"""Where `hrm-agent run` records, and where `show` and `history` look."""

_READERS = {".jsonl": read_jsonl, ".parquet": read_parquet}


@contextmanager
def existing_store(where: str) -> Generator[RunStore]:
    """The store at `where`, a path, a folder or a URL. Raises `StoreError` if there is none."""
    with open_store(where, create=False) as store:
        yield store


def stored_trajectories(where: str, run_id: str | None = None) -> Iterator[Trajectory]:
    """The trajectories of a store or of an exported file, one at a time."""
    reader = _READERS.get(Path(where).suffix)
    if reader is not None:
        yield from (t for t in reader(Path(where)) if run_id is None or t.run_id == run_id)
        return
    with existing_store(where) as store:
        yield from store.journal.trajectories(run_id=run_id)
