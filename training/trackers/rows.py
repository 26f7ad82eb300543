"""Rows of metrics.jsonl as trackers take them: read as they are appended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hrm_agent.training.metrics import parse_row

__all__ = ["AppendedRows"]


class AppendedRows:
    """Called again and again, gives the rows that the file got since the last call; all of them
    where it was replaced.

    A run that goes on from a checkpoint replaces its file by one without the steps that are taken
    again.
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
        return [row for row in map(parse_row, whole.split(b"\n")) if row is not None]
