"""Files of a run's folder besides its store: configuration, metrics, results.

Only files with known names are opened. Names in their contents are never opened. Metrics are read
as the file grows: the numbers of each row are kept by column, with the row's place in the file.
"""

from __future__ import annotations

import copy
import json
import math
import os
import threading
import tomllib
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard, cast

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.training.analysis.saved import MOST_BYTES
from hrm_agent.viewer.json_text import foreign

__all__ = ["MetricsTail", "config_of", "json_file", "metrics_of", "own_run_id"]

_PIECE = 1 << 22
_MOST_COLUMNS = 1_000
_tails: BoundedMap[str, MetricsTail] = BoundedMap(64)
_lock = threading.Lock()


def own_run_id(folder: Path) -> str:
    """Id of the run in a folder: the content of the file `run_id`, or else the folder's name."""
    try:
        return _text(folder / "run_id").strip("\0 \r\n\t") or folder.resolve().name
    except (OSError, ValueError):
        return folder.resolve().name


def config_of(folder: Path | None) -> dict[str, Any]:
    """Values of `config.toml` with flat keys, such as `train.loss.objective` (empty if the file is
    missing or invalid).
    """
    if folder is None:
        return {}
    with suppress(OSError, ValueError, RecursionError):
        return _flat(tomllib.loads(_text(folder / "config.toml")))
    return {}


def json_file(folder: Path | None, name: str) -> dict[str, Any]:
    """JSON object in a file of the folder (empty if the file is missing or invalid)."""
    if folder is None:
        return {}
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(_text(folder / name))
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return {}


def _text(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise ValueError(path)
    return path.read_text(encoding="utf-8")


def _flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(cast("dict[str, Any]", value), f"{before}{name}.")
        else:
            found[before + name] = foreign(value)
    return found


def metrics_of(folder: Path | None) -> MetricsTail | None:
    """Metrics of the run in a folder, up to now (None without metrics)."""
    if folder is None or not (folder / "metrics.jsonl").is_file():
        return None
    path = str(folder / "metrics.jsonl")
    with _lock:
        tail = _tails.get(path)
        if tail is None:
            tail = _tails[path] = MetricsTail(Path(path))
    return tail.refresh()


class MetricsTail:
    """Columns of `metrics.jsonl`. Reading starts over if the file was rewritten, as a resumed run
    does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._begin(("", 0))

    def _begin(self, identity: tuple[str, int]) -> None:
        self._identity = identity
        self._end = 0
        self._stopped = False
        self.generation = f"{identity[0]}"
        """Identity of the file. When it changes, rows read before are no longer valid."""
        self.steps = array("q")
        """Step of each row, as in the file."""
        self.columns: dict[str, array[float]] = {}
        """Columns by key (`roles/ROLE/KEY` for a key of a role). If a row has no number for a key,
        the value is NaN.
        """
        self._starts = array("q")

    def refresh(self) -> MetricsTail:
        """Read the rows that were added. Returns a snapshot, which does not change. Thread-safe."""
        with self._lock:
            with suppress(OSError):
                self._read_on()
            found = copy.copy(self)
            # columns need no copy, since they only grow beyond these rows
            found.steps = self.steps[:]
            found.columns = dict(self.columns)
            return found

    def _read_on(self) -> None:
        with self._path.open("rb") as file:
            facts = os.fstat(file.fileno())
            identity = (f"{facts.st_dev:x}-{facts.st_ino:x}", facts.st_ino)
            if identity != self._identity or facts.st_size < self._end:
                self._begin(identity)
            file.seek(self._end)
            rest = b""
            while not self._stopped and (piece := file.read(_PIECE)):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._take(line)
                if len(rest) > MOST_BYTES:
                    self._stopped = True

    def _take(self, line: bytes) -> None:
        """Add a row. From the first invalid row on, all rows are ignored, as in `read_metrics`."""
        if self._stopped:
            return
        try:
            row: Any = json.loads(line)
            step = int(row["step"])
            self.steps.append(step)
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            self._stopped = True
            return
        self._starts.append(self._end)
        self._end += len(line) + 1
        number = len(self.steps) - 1
        for key, value in _numbers(cast("dict[str, Any]", row)):
            column = self.columns.get(key)
            if column is None:
                if len(self.columns) >= _MOST_COLUMNS:
                    continue
                column = self.columns[key] = array("d")
            if len(column) > number:
                continue  # the row also has the key `roles/a/b` of its own
            column.extend([math.nan] * (number - len(column)))
            column.append(value)

    def __len__(self) -> int:
        return len(self.steps)

    def series(self, key: str, after: int = 0) -> list[float | None]:
        """Column from row `after` on (None where there is no finite number)."""
        column = self.columns.get(key, array("d"))
        values = [value if math.isfinite(value) else None for value in column[after : len(self)]]
        return values + [None] * (len(self) - after - len(values))

    def last(self, key: str) -> float | None:
        """Newest finite number of a column (None without one)."""
        values = self.columns.get(key, array("d"))[: len(self)]
        return next((value for value in reversed(values) if math.isfinite(value)), None)

    def row(self, number: int) -> dict[str, Any]:
        """Whole row as in the file (empty if it cannot be read)."""
        with suppress(OSError, ValueError), self._path.open("rb") as file:
            file.seek(self._starts[number])
            return cast("dict[str, Any]", foreign(json.loads(file.readline(MOST_BYTES))))
        return {}


def _numbers(row: dict[str, Any]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for key, value in row.items():
        if isinstance(value, dict) and key == "roles":
            for role, facts in cast("dict[str, Any]", value).items():
                inner = cast("dict[str, Any]", facts).items() if isinstance(facts, dict) else ()
                found += [(f"roles/{role}/{name}", float(v)) for name, v in inner if _is_number(v)]
        elif _is_number(value):
            found.append((key, float(value)))
    return found


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, float) or (type(value) is int and -(2**1000) < value < 2**1000)
