"""Locations of trajectories (a store, a run folder or an exported file), and of new runs."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hrm_agent.config import COMMAND_KEY, CONFIG_FILE
from hrm_agent.errors import ConfigError
from hrm_agent.store import STORE_POINTER, RunStore, open_store
from hrm_agent.store.database.sqlite_read_only import ReadOnlySqlite
from hrm_agent.store.run_store import own_run
from hrm_agent.store.values.damage import OnDamage
from hrm_agent.trajectory import Trajectory

__all__ = [
    "DEFAULT_STORE",
    "existing_store",
    "is_file",
    "refuse_without_rollouts",
    "run_folder",
    "stored_trajectories",
    "thread_name",
]

DEFAULT_STORE = "runs/store.db"
"""Default store: `hrm-agent run` records in it, `show` and `history` read it."""

_FILES = (".jsonl", ".parquet")


def thread_name(name: str) -> str:
    """Check an argument that names a thread. Raises `ConfigError` if it is a store, with a hint how
    to name a thread in it.
    """
    path = Path(name)
    if (path.is_file() and path.suffix in (".db", *_FILES)) or (path / "store.db").is_file():
        raise ConfigError(
            f"{name} is a store, not a thread.",
            f"`hrm-agent history --store {name}` lists its threads; name one of them, with --store"
            f" {name}.",
        )
    return name


@contextmanager
def existing_store(
    where: str, allow: Sequence[str] = (), *, writes: bool = False
) -> Generator[RunStore]:
    """Open the store at `where`, a path, a folder or a URL. Raises `StoreError` if it is missing.

    `allow`: types (`package.module:Type`) that checkpoints may hold in addition to those that
    graphs declare. `writes`: False to open the store read-only, which does not migrate a store of
    an earlier version.
    """
    refuse_without_rollouts(where)
    with open_store(where, create=False, allow=allow, read_only=not writes) as store:
        if isinstance(store.database, ReadOnlySqlite):
            store.database.keeps_connections = True
        yield store


def refuse_without_rollouts(where: str) -> None:
    """Raise `ConfigError` for the folder of a `train sft`, which has no rollouts."""
    folder = Path(where)
    if not (folder / CONFIG_FILE).is_file() or any(
        (folder / name).exists() for name in ("store.db", STORE_POINTER)
    ):
        return
    try:
        command = tomllib.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get(COMMAND_KEY)
    except (OSError, ValueError, RecursionError):
        return  # the error of opening the folder is clearer
    if command == "train sft":
        raise ConfigError(
            f"{where} is the folder of a `train sft`: it learned from conversations, and has no"
            " rollouts of its own.",
            f"`hrm-agent view {where}` and `hrm-agent plot {where}` show its curves; `hrm-agent"
            " eval --policy` makes rollouts of the policy that it trained.",
        )


def stored_trajectories(
    where: str, run_id: str | None = None, on_damage: OnDamage | None = None
) -> Iterator[Trajectory]:
    """Trajectories of a store or of an exported file, one at a time.

    `on_damage`: called for each trajectory that a store cannot read. It is then skipped.
    """
    if is_file(where):
        # this imports LangChain's messages, which a store does not need
        from hrm_agent.trajectory.formats import read_jsonl, read_parquet

        path = Path(where)
        found = read_parquet(path) if path.suffix == ".parquet" else read_jsonl(path)
        yield from (t for t in found if run_id is None or t.run_id == run_id)
        return
    with existing_store(where) as store:
        yield from store.journal.trajectories(run_id=run_id or own_run(where), on_damage=on_damage)


def is_file(where: str) -> bool:
    """True if the path is a file of whole trajectories, which has no checkpoints."""
    return Path(where).suffix in _FILES


def run_folder(given: Path | None, command: str) -> Path:
    """Folder of a run: `given`, or else a new name in `runs`. The name of the folder is the run's
    name, so `.` and `..` are resolved.
    """
    folder = given or Path("runs") / time.strftime(f"{command}-%Y%m%d-%H%M%S")
    return folder if folder.name not in ("", "..") else folder.resolve()
