"""What is in a folder: names of files, and of folders that were not looked into."""

from __future__ import annotations

import os
from pathlib import Path

from hrm_agent.errors import RetrievalError

__all__ = ["files_in", "inside"]

_HINT = "Name a folder of text, Markdown, HTML or PDF files."


def files_in(folder: Path) -> list[str]:
    """Paths inside a folder, with forward slashes, in the order of their names.

    What begins with a dot is left out. A path that ends in a slash is a folder that was not looked into: one that may
    not be listed, or a link, which could lead in a circle or to the whole disk. What is known of the files in it stays
    known.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise RetrievalError(f"The folder {folder} {what}; the index was left as it is.", _HINT)
    found, closed = list[str](), list[str]()

    def unlisted(error: OSError) -> None:
        closed.append(_path(error.filename, folder))

    for place, folders, names in os.walk(folder, onerror=unlisted):
        links = [name for name in folders if Path(place, name).is_symlink()]
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in links)
        found += [_path(Path(place, name), folder) for name in sorted(names) if not name.startswith(".")]
        links = [name for name in links if not name.startswith(".")]
        closed.extend(_path(Path(place, name), folder) for name in links)
    if "." in closed:
        raise RetrievalError(f"The folder {folder} may not be listed; the index was left as it is.", _HINT)
    if not found and not closed:
        raise RetrievalError(f"There is no file in {folder}; the index was left as it is.", _HINT)
    return [*found, *(f"{path}/" for path in closed)]


def inside(file: str, folders: list[str]) -> bool:
    """Whether a file lies in one of the folders that were not looked into."""
    return any(file.startswith(folder) for folder in folders)


def _path(path: Path | str, folder: Path) -> str:
    return Path(path).relative_to(folder).as_posix()
