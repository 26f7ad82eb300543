"""Where trajectories come from (a store, a run folder, or an exported file), and where new ones go."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hrm_agent.store import RunStore, open_store
from hrm_agent.store.damage import OnDamage
from hrm_agent.store.run_store import own_run
from hrm_agent.trajectory import Trajectory

__all__ = ["DEFAULT_STORE", "existing_store", "is_file", "run_folder", "stored_trajectories"]

DEFAULT_STORE = "runs/store.db"
"""Where `hrm-agent run` records, and where `show` and `history` look."""

_FILES = (".jsonl", ".parquet")


@contextmanager
def existing_store(where: str, allow: Sequence[str] = ()) -> Generator[RunStore]:
    """The store at `where`, a path, a folder or a URL. Raises `StoreError` if there is none.

    `allow`: types (`package.module:Type`) that its checkpoints may hold beside those that graphs declare.
    """
    with open_store(where, create=False, allow=allow) as store:
        yield store


def stored_trajectories(
    where: str, run_id: str | None = None, on_damage: OnDamage | None = None
) -> Iterator[Trajectory]:
    """The trajectories of a store or of an exported file, one at a time.

    `on_damage`: told of one that a store cannot read, and the others follow.
    """
    if is_file(where):
        yield from (t for t in _read_file(Path(where)) if run_id is None or t.run_id == run_id)
        return
    with existing_store(where) as store:
        yield from store.journal.trajectories(run_id=run_id or own_run(where), on_damage=on_damage)


def _read_file(path: Path) -> Iterator[Trajectory]:
    from hrm_agent.trajectory.formats import read_jsonl, read_parquet  # LangChain's messages, which no store needs

    return read_parquet(path) if path.suffix == ".parquet" else read_jsonl(path)


def is_file(where: str) -> bool:
    """True for a file of whole trajectories, which has no checkpoints."""
    return Path(where).suffix in _FILES


def run_folder(given: Path | None, command: str) -> Path:
    """The folder that was named, else a new one. Its name is the name of the run, which `.` has not."""
    folder = given or Path("runs") / time.strftime(f"{command}-%Y%m%d-%H%M%S")
    return folder if folder.name not in ("", "..") else folder.resolve()
