"""The folders of an index, and what begins the names of their files.

The first folder has an empty label, and its files go by their paths in it. Those of a further one
begin with its label and two slashes, which no path inside a folder has.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hrm_agent.errors import RetrievalError

__all__ = ["folders", "is_of", "label_of", "labelled"]


def folders(cursor: sqlite3.Cursor) -> dict[str, str]:
    """Label -> absolute path."""
    return dict(cursor.execute("SELECT label, path FROM folders ORDER BY label").fetchall())


def label_of(cursor: sqlite3.Cursor, folder: Path) -> str:
    """The label of a folder; one that is new is put on record."""
    known = folders(cursor)
    for label, path in known.items():
        if path == str(folder):
            return label
        if folder.is_relative_to(path) or Path(path).is_relative_to(folder):
            raise RetrievalError(
                f"{folder} and {path}, which is in this index already, have files in common.",
                "Index the outer one alone: --remove takes a folder out of an index; --store names"
                " another index.",
            )
    name = folder.name or "root"
    names = ["", name, *(f"{name}-{number}" for number in range(2, len(known) + 3))]
    label = next(name for name in names if name not in known)
    cursor.execute("INSERT INTO folders VALUES (?, ?)", (label, str(folder)))
    return label


def labelled(label: str) -> str:
    """What the names of its files begin with."""
    return f"{label}//" if label else ""


def is_of(file: str, label: str) -> bool:
    """Whether a file is of the folder with this label."""
    return file.startswith(labelled(label)) if label else "//" not in file
