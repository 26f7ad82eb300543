"""Listing of a folder: names of its files, and of folders that were not listed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hrm_agent.errors import RetrievalError

__all__ = ["files_in", "inside", "no_document"]

_MADE = re.compile(r"__pycache__|build|dist|node_modules|runs|site-packages|venv")
"""Names of folders that programs write."""
_CODE = re.compile(
    r"bat|c|cc|cfg|cpp|cs|css|csv|go|h|hpp|ini|ipynb|java|js|json|jsonl|jsx|kt|lock|lua|mjs|php|pl|ps1|py|pyi|r|rb|rs"
    r"|scala|sh|sql|swift|toml|ts|tsv|tsx|vue|xml|yaml|yml"
)
_MADE_FILES = re.compile(
    r"7z|bin|bz2|db|db-shm|db-wal|gguf|gz|log|npy|npz|onnx|parquet|pickle|pkl|pt|pth|pyc|safetensors|so|sqlite|tar|tgz"
    r"|whl|xz|zip|zst"
)
"""Suffixes of files written by programs."""
_HINT = "Name a folder of text, Markdown, HTML or PDF files."


def files_in(folder: Path, *, follow_links: bool = False) -> list[str]:
    """Paths inside a folder, with forward slashes, in the order of their names.

    Names that begin with a dot are left out. A path that ends in a slash is a folder that was not
    listed, since there was no permission, or since it is a link, which could lead in a circle or to
    the whole disk. `follow_links`: list linked folders, too. If several paths lead to a folder, it
    is listed once.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise RetrievalError(f"The folder {folder} {what}; the index was left as it is.", _HINT)
    found = list[str]()
    closed = list[str]()
    followed = list[str]()
    seen = set(_real_folders(folder)) if follow_links else set[tuple[int, int]]()

    def unlisted(error: OSError) -> None:
        closed.append(_path(error.filename, folder))

    for place, folders, names in os.walk(folder, onerror=unlisted, followlinks=follow_links):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        elsewhere = inside(f"{place}/", followed)
        links = [name for name in folders if elsewhere or Path(place, name).is_symlink()]
        new = [name for name in links if follow_links and _is_new(Path(place, name), seen)]
        followed += [f"{Path(place, name)}/" for name in new]
        folders[:] = [name for name in folders if name not in links or name in new]
        found += [
            _path(Path(place, name), folder) for name in sorted(names) if not name.startswith(".")
        ]
        closed.extend(_path(Path(place, name), folder) for name in links if name not in new)
    if "." in closed:
        raise RetrievalError(
            f"The folder {folder} may not be listed: permission is missing. The index was not"
            " changed.",
            _HINT,
        )
    if not found and not closed:
        raise RetrievalError(f"There is no file in {folder}. The index was not changed.", _HINT)
    return [*found, *(f"{path}/" for path in closed)]


def no_document(path: str) -> str | None:
    """Reason for leaving a file out of an index, by its name alone (None if the file is indexed).

    The folder of an agent also has its code, runs and models, which are not documents.
    """
    *folders, name = path.rstrip("/").split("/")
    folders += [name] if path.endswith("/") else []
    for folder in filter(_MADE.fullmatch, folders):
        return f"in {folder}, made by programs"
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    if _CODE.fullmatch(suffix):
        return f".{suffix}, code or data"
    return f".{suffix}, made by programs" if _MADE_FILES.fullmatch(suffix) else None


def _real_folders(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the identities of `folder` and of the folders below it that are reached without a link,
    so that a link to one of them does not list it a second time.
    """
    for place, folders, _ in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield _identity(Path(place))


def _identity(folder: Path) -> tuple[int, int]:
    about = folder.stat()
    return about.st_dev, about.st_ino


def _is_new(folder: Path, seen: set[tuple[int, int]]) -> bool:
    """True if a folder was not listed yet by any path. The folder is added to `seen`."""
    try:
        identity = _identity(folder)
    except OSError:  # a link to a missing folder, or in a circle
        return False
    is_new = identity not in seen
    seen.add(identity)
    return is_new


def inside(file: str, folders: Sequence[str]) -> bool:
    """True if a file is in one of the folders."""
    return any(file.startswith(folder) for folder in folders)


def _path(path: Path | str, folder: Path) -> str:
    return Path(path).relative_to(folder).as_posix()
