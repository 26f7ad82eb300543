"""Folders of an index and the labels that begin their file names.

The label of the first folder is empty, and its files are named by their paths in it. Names of files
in other folders begin with the folder's label and two slashes, which no path inside a folder has.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hrm_agent.errors import RetrievalError

__all__ = ["folders", "is_of", "label_of", "labelled"]


def folders(cursor: sqlite3.Cursor) -> dict[str, str]:
    """Folders as label -> absolute path."""
    return dict(cursor.execute("SELECT label, path FROM folders ORDER BY label").fetchall())


def label_of(cursor: sqlite3.Cursor, folder: Path) -> str:
    """Label of a folder. A new folder is recorded."""
    known = folders(cursor)
    for label, path in known.items():
        if path == str(folder):
            return label
        if folder.is_relative_to(path) or Path(path).is_relative_to(folder):
            raise RetrievalError(
                f"{folder} and {path}, which is in this index already, have files in common.",
                "Index the outer folder alone: --remove takes a folder out of an index. --store"
                " names another index.",
            )
    name = folder.name or "root"
    names = ["", name, *(f"{name}-{number}" for number in range(2, len(known) + 3))]
    label = next(name for name in names if name not in known)
    cursor.execute("INSERT INTO folders VALUES (?, ?)", (label, str(folder)))
    return label


def labelled(label: str) -> str:
    """Prefix of the file names of a folder with this label."""
    return f"{label}//" if label else ""


def is_of(file: str, label: str) -> bool:
    """True if a file belongs to the folder with this label."""
    return file.startswith(labelled(label)) if label else "//" not in file
