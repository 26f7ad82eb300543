"""Reads the rows of metrics.jsonl for trackers, as they are appended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hrm_agent.training.metrics import parse_row

__all__ = ["AppendedRows"]


class AppendedRows:
    """Reader whose calls return the rows appended since the last call, or all rows if the file was
    replaced.

    A run that resumes from a checkpoint replaces its file by one without the steps to be repeated.
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
