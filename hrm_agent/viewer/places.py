"""Places that are shown: stores and run folders, which are named, or are found in a named folder.

Stores are opened read-only. A store that cannot be opened is listed with its problem, and opening
it is tried again later.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.errors import HrmError, StoreChangedError, StoreError, nearest
from hrm_agent.store import STORE_POINTER, RunStore, open_store
from hrm_agent.store.database.read_only import ReadOnlyDatabase
from hrm_agent.store.database.sqlite_read_only import change_mark_of, is_run_store
from hrm_agent.store.run_store import file_of, shown_url
from hrm_agent.training.analysis.saved import ANALYSES
from hrm_agent.training.datasets import FOLDER
from hrm_agent.viewer.json_text import NotThere
from hrm_agent.viewer.run_files import config_of

__all__ = ["NoPlaceError", "Place", "Places", "is_run_folder"]

T = TypeVar("T")
_OF_TRAINING = ("config.toml", "metrics.jsonl", STORE_POINTER)
_STORE = "store.db"
_NO_STORE = "train sft"
"""Command whose runs have metrics and no store."""
_WATCHED = (*_OF_TRAINING, "run_id", "report.json", "analysis/tokens.jsonl", ANALYSES)
_SECONDS_BETWEEN_SCANS = 0.5
_SECONDS_BETWEEN_TRIES = 2.0
"""Minimum seconds until opening a place is tried again after a failure, unless its file changes
before.
"""
_READS = 6
"""Maximum reads of an answer while other processes write to the place."""


class NoPlaceError(StoreError):
    """A place with the requested id is missing."""


class Place:
    """Store, with the folder of its run. Thread-safe."""

    def __init__(self, id_: str, address: str, folder: Path | None) -> None:
        """`address`: address to open, which may contain a password."""
        self.id = id_
        self.address = address
        self.folder = folder
        self._store: RunStore | None = None
        self._failed: tuple[float, Hashable, HrmError] | None = None
        self._empty: TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    @property
    def where(self) -> str:
        """Value for a command's `--store`, without a password."""
        return shown_url(self.address)

    def store(self) -> RunStore:
        """Store, opened for reading only. Raises `HrmError` while it cannot be opened."""
        with self._lock:
            known = self._store
            if known is not None and not (
                isinstance(known.database, ReadOnlyDatabase) and known.database.is_gone()
            ):
                return known
            self._forget()
            mark = self._mark(None)
            began = time.monotonic()
            if self._failed is not None and began < self._failed[0] and self._failed[1] == mark:
                raise self._failed[2].with_traceback(None)
            try:
                self._store = self._opened()
            except StoreChangedError:
                raise
            except HrmError as error:
                # an unreachable server must not delay every request
                now = time.monotonic()
                self._failed = (now + max(_SECONDS_BETWEEN_TRIES, 3 * (now - began)), mark, error)
                raise
            except (OSError, UnicodeError) as error:
                raise StoreError(
                    f"{self.where} cannot be read: {error}.", "Check who may read it."
                ) from error
            self._failed = None
            return self._store

    @property
    def problem(self) -> dict[str, str] | None:
        """Reason why the place cannot be opened, as `message` and `hint` (None if it can be
        opened).
        """
        try:
            self.store()
        except HrmError as error:
            return {"message": error.message, "hint": error.hint}
        return None

    @contextmanager
    def moment(self) -> Generator[None]:
        """Read from one snapshot inside the block, in this thread through one connection."""
        try:
            database = self.store().database
        # the error is reported where the store is used, and the run's folder can be read without it
        except HrmError:
            yield
            return
        with database.read():
            yield

    def read(self, make: Callable[[], T]) -> T:
        """Result of `make`, computed from one snapshot of the place. It is computed again while
        another process interferes, and once more after any other failure of the store.
        """
        for left in reversed(range(_READS)):
            try:
                with self.moment():
                    return make()
            except (NotThere, NoPlaceError):
                raise
            except StoreChangedError:
                if not left:
                    raise
            except StoreError:
                break
        with self.moment():
            return make()

    def mark(self) -> Hashable:
        """Value that changes whenever the place has changed, or may have changed."""
        with self._lock:
            store = self._store
        return self._mark(store)  # outside of the lock, since a server may be slow to answer

    def _mark(self, store: RunStore | None) -> Hashable:
        return self._store_mark(store), (
            tuple(_stamp(self.folder / name) for name in _WATCHED) if self.folder else ()
        )

    def _store_mark(self, store: RunStore | None) -> Hashable:
        try:
            if store is not None and isinstance(store.database, ReadOnlyDatabase):
                return store.database.change_mark()
            path = file_of(self.address)
        except (HrmError, OSError) as error:
            return str(error)
        return change_mark_of(path) if path is not None else None

    def close(self) -> None:
        with self._lock:
            self._forget()
            if self._empty is not None:
                self._empty.cleanup()
                self._empty = None

    def _opened(self) -> RunStore:
        """Open the store. For a run that has no store, such as fine-tuning, create an empty store
        in a temporary folder.
        """
        file = file_of(self.address)
        if (
            self.folder is None
            or file is None
            or file.exists()
            or config_of(self.folder).get("command") != _NO_STORE
        ):
            return open_store(self.address, read_only=True)
        if self._empty is None:
            self._empty = TemporaryDirectory(prefix="hrm-agent-view-")
            open_store(Path(self._empty.name)).close()
        return open_store(Path(self._empty.name), read_only=True)

    def _forget(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


class Places:
    """All places that are shown. Thread-safe."""

    def __init__(self, named: Sequence[str], datasets: Path = Path(FOLDER)) -> None:
        """`named`: run folders, folders of run folders, store files, URLs. `datasets`: folder of
        data sets.
        """
        self._named = list(named)
        self.datasets = datasets
        self._known: dict[str, Place] = {}
        """Places by address."""
        self._ids: dict[str, str] = {}
        """Ids by address. Missing places stay in it, so that a place that appears again keeps its
        id.
        """
        self._marks: dict[str, Hashable] = {}
        self._scanned = -_SECONDS_BETWEEN_SCANS
        self._lock = threading.Lock()

    def all(self) -> list[Place]:
        """Current places, in the order in which they were named."""
        with self._lock:
            if time.monotonic() - self._scanned >= _SECONDS_BETWEEN_SCANS:
                self._scan()
                self._scanned = time.monotonic()
            return list(self._known.values())

    def get(self, id_: str) -> Place:
        """Place by id. Raises `NoPlaceError` if it is missing."""
        places = {place.id: place for place in self.all()}
        if id_ not in places:
            raise NoPlaceError(
                f"There is no place {id_[:200]!r}, or it no longer exists.",
                nearest(id_[:200], places),
            )
        return places[id_]

    def changed(self) -> list[str]:
        """Ids of the places that appeared, disappeared or changed since the previous call."""
        marks = {place.id: place.mark() for place in self.all()}
        with self._lock:
            before = self._marks
            self._marks = marks
        ids = marks.keys() | before.keys()
        return sorted(
            id_
            for id_ in ids
            if marks.get(id_) != before.get(id_) or (id_ in marks) != (id_ in before)
        )

    def close(self) -> None:
        with self._lock:
            for place in self._known.values():
                place.close()

    def _scan(self) -> None:
        found: dict[str, Place] = {}
        for name, address, folder in (each for named in self._named for each in _found_in(named)):
            if address not in found:
                found[address] = self._known.get(address) or Place(
                    self._id(address, name), address, folder
                )
        for address, place in self._known.items():
            if address not in found:
                place.close()
        self._known = found

    def _id(self, address: str, name: str) -> str:
        if address not in self._ids:
            name = replace_surrogates(name)
            taken = set(self._ids.values())
            number = 1
            while (id_ := name if number == 1 else f"{name}-{number}") in taken:
                number += 1
            self._ids[address] = id_
        return self._ids[address]


def is_run_folder(folder: Path) -> bool:
    """True if a run keeps its files in the folder."""
    return any((folder / name).exists() for name in (*_OF_TRAINING, _STORE))


def _found_in(named: str) -> Iterable[tuple[str, str, Path | None]]:
    """Places of one argument as (name, address, folder)."""
    if "://" in named and not named.startswith("sqlite:///"):
        shown = shown_url(named).partition("?")[0]
        yield shown.rpartition("/")[2] or shown.partition("://")[0], named, None
        return
    path = Path(named)
    if not path.is_dir():
        file = file_of(named) or path
        yield file.name, named, file.parent if _is_of_training(file.parent) else None
        return
    if _is_of_training(path):
        yield path.resolve().name, named, path
    elif (path / _STORE).exists():
        yield _STORE, str(path / _STORE), None
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(path))  # noqa: PTH208 - names, of which there may be many
    for name in names:
        child = path / name
        with suppress(OSError):  # skip an unreadable folder, and list the others
            if name.startswith("."):
                continue
            if child.is_dir():
                if is_run_folder(child):
                    yield name, str(child), child
            elif child.suffix == ".db" and name != _STORE and is_run_store(child):
                yield name, str(child), None


def _is_of_training(folder: Path) -> bool:
    return any((folder / name).exists() for name in _OF_TRAINING)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
