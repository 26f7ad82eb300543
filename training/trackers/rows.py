"""Rows of metrics.jsonl as trackers take them: read as they are appended, and flat."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, cast

__all__ = ["AppendedRows", "flattened"]


class AppendedRows:
    """Called again and again, gives the rows that the file got since the last call; all of them where it was replaced.

    A run that goes on from a checkpoint replaces its file by one without the steps that are taken again.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._at = path, -1, 0

    def __call__(self) -> list[Mapping[str, Any]]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._file:
                self._file, self._at = inode, 0
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return [json.loads(line) for line in whole.split(b"\n") if line.strip()]


def flattened(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row of metrics: `roles: {solve: {tokens}}` is `role/solve/tokens`. Text and nan are left out."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if name != "step":
            found |= _numbers("role" if name == "roles" else name, value)
    return found


def _numbers(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        inner = cast("Mapping[Any, Any]", value)
        return {key: number for part, each in inner.items() for key, number in _numbers(f"{name}/{part}", each).items()}
    return {name: float(value)} if isinstance(value, (int, float)) and isfinite(value) else {}
