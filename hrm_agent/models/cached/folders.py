"""Folders of the user's cache: each is complete or missing, and has a card with the sizes and
hashes of its files.

A folder is filled at a temporary place under a lock, synced to the disk, then renamed. A killed
process leaves the old folder unchanged, unless it ends between the two renames of a replacement.
Then the next process that fills the folder restores the previous content. It also removes temporary
folders. Sizes are compared with the card at every load, since that costs nothing. Hashes are
compared when a model is requested again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import locked_folder
from hrm_agent.errors import ModelError
from hrm_agent.models.slow_start import told_if_slow

__all__ = [
    "CARD_FILE",
    "Card",
    "FileFacts",
    "check_sizes",
    "differing_file",
    "fill_folder",
    "models_cache",
    "read_card",
    "sha256_of",
]

CARD_FILE = "card.json"
"""Name of the card in a model's folder."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Size and content of one file."""

    bytes: int
    """Size in bytes."""
    sha256: str
    """Hexadecimal digest of the content."""


@dataclass(frozen=True, slots=True)
class Card:
    """Card of a cached model: source and hashes of its files."""

    title: str
    """Name of the model, such as `SmolLM2-135M-Instruct`."""
    source: str
    """Kind of source: `hub`, `wheel` or `gguf`."""
    origin: str
    """Description of the source, with its revision or version."""
    license: str | None
    """SPDX identifier (None if the source names none)."""
    made_with: dict[str, str] = field(default_factory=dict[str, str])
    """Versions of the packages that wrote the files (empty for files downloaded unchanged)."""
    source_sha256: str | None = None
    """Digest of the wheel or the GGUF file that the files were made from (None for downloaded
    files).
    """
    files: dict[str, FileFacts] = field(default_factory=dict[str, FileFacts])
    """Facts of each file by name, except the card."""


def models_cache() -> Path:
    """Cache folder: `hrm-agent/models` in `XDG_CACHE_HOME`, or in `~/.cache` if that is unset or
    relative.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "hrm-agent" / "models"


def read_card(folder: Path) -> Card | None:
    """Card of a model's folder (None if the folder or a readable card is missing)."""
    try:
        read: dict[str, Any] = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
        files = {name: FileFacts(**facts) for name, facts in read.pop("files").items()}
        return Card(**read, files=files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def check_sizes(folder: Path, card: Card, remedy: str) -> None:
    """Raise `ModelError`, with `remedy`, if a file is missing or its size has changed."""
    for name, facts in card.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            raise ModelError(
                f"The file {name} of the model in {folder} is missing.", remedy
            ) from None
        if size != facts.bytes:
            raise ModelError(
                f"The file {name} of the model in {folder} was changed: it has {size:,} bytes"
                f" instead of {facts.bytes:,}.",
                remedy,
            )


def differing_file(folder: Path, card: Card) -> str | None:
    """Name of a file whose content differs from the card (None if all are unchanged)."""
    for name, facts in card.files.items():
        path = folder / name
        if (
            not path.is_file()
            or path.stat().st_size != facts.bytes
            or sha256_of(path) != facts.sha256
        ):
            return name
    return None


def sha256_of(path: Path) -> str:
    """Hexadecimal digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fill_folder(folder: Path, fill: Callable[[Path], Card], ready: Callable[[], bool]) -> bool:
    """Create `folder`: `fill` writes the files into an empty temporary folder and returns the card,
    still without facts of the files.

    Waits until no other process is creating a folder. Returns False if `ready` is true then, since
    another process has created this folder. Raises `ModelError` if the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent):
            _mend(folder)
            if ready():
                return False
            with _empty_beside(folder) as part:
                card = fill(part)
                _finish(part, card)
                _put(part, folder)
            return True
    except OSError as error:
        raise ModelError(
            f"The model's folder {folder} cannot be written: {error}.",
            "Make room, or set XDG_CACHE_HOME to a folder that can be written.",
        ) from error


@contextmanager
def _alone(cache: Path) -> Generator[None]:
    """Lock under which only one process at a time creates folders in the cache. If the process
    ends, the lock is released, even after a kill.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked_folder(cache, fcntl.LOCK_NB))
        except BlockingIOError:
            with told_if_slow(f"another process prepares a model in {cache}; waiting for it", 1.0):
                held.enter_context(locked_folder(cache))
        yield


@contextmanager
def _empty_beside(folder: Path) -> Generator[Path]:
    """Empty temporary folder, removed at the end. If it exists already, a killed process left it,
    and it is removed first.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _finish(part: Path, card: Card) -> None:
    """Write the card and sync all files to the disk. Without the sync, a power cut after the rename
    could leave empty files.
    """
    paths = sorted(path for path in part.iterdir() if path.is_file())
    files = {path.name: FileFacts(path.stat().st_size, sha256_of(path)) for path in paths}
    told = json.dumps(
        asdict(card) | {"files": {name: asdict(facts) for name, facts in files.items()}}, indent=1
    )
    (part / CARD_FILE).write_text(told + "\n", encoding="utf-8")
    for path in (*paths, part / CARD_FILE):
        with path.open("rb") as written:
            os.fsync(written.fileno())


def _mend(folder: Path) -> None:
    """Undo a replacement that a process has left incomplete."""
    old = _old(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(folder)


def _put(part: Path, folder: Path) -> None:
    if folder.exists():
        folder.rename(_old(folder))
    part.rename(folder)
    shutil.rmtree(_old(folder), ignore_errors=True)
    opened = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _old(folder: Path) -> Path:
    """Temporary place of a folder that is being replaced."""
    return folder.with_name(f".{folder.name}.old")
