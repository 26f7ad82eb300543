"""Folders of converted GGUF files, for model strings `gguf:FILE`.

The weights are unpacked and the tokenizer is rebuilt once. The result is in the user's cache under
the hash of the file's content. A note beside it has the hash with the file's size, inode and times,
so that an unchanged file is not read again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

from hrm_agent.errors import ModelError
from hrm_agent.models.cached.folders import (
    Card,
    check_sizes,
    fill_folder,
    models_cache,
    read_card,
    sha256_of,
)
from hrm_agent.models.cached.gguf_head import check_is_gguf, need_to_convert, read_facts
from hrm_agent.models.slow_start import told_if_slow

__all__ = ["converted_folder", "folder_of_gguf"]

_FORMAT = 1
"""Version of the conversion. If it changes, a file is converted again."""


def converted_folder(file: Path) -> Path | None:
    """Folder that the file was converted into (None if it was not converted or has changed since).
    Raises `ModelError`.
    """
    check_is_gguf(file)
    note = _note_of(file)
    now = _state_of(file)
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["file"] != now:
            return None
        folder = _folder_of(str(known["sha256"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return folder if _whole(folder) else None


def folder_of_gguf(file: Path) -> Path:
    """Folder in Hugging Face's layout with the weights and the tokenizer of a GGUF file, converted
    if necessary.

    Raises `ModelError` if the file cannot be converted faithfully.
    """
    if (found := converted_folder(file)) is not None:
        return found
    need_to_convert(f"The GGUF file {file}")
    facts = read_facts(file)
    state = _state_of(file)
    digest = sha256_of(file)
    folder = _folder_of(digest)

    def fill(part: Path) -> Card:
        from hrm_agent.models.cached.gguf_conversion import convert_gguf

        made_with = convert_gguf(file, facts, part)
        if not file.is_file() or _state_of(file) != state:
            raise ModelError(
                f"The GGUF file {file} was changed or removed while it was converted.",
                "Run the command again.",
            )
        return Card(
            facts.title or file.stem,
            "gguf",
            f"{file.name}, {facts}",
            facts.license,
            made_with,
            digest,
        )

    with told_if_slow(f"converting {file}, once; this takes up to a minute"):
        fill_folder(folder, fill, lambda: _whole(folder))
    with suppress(OSError):  # without the note the file is only read again
        _write_note(
            _note_of(file),
            json.dumps({"file": state, "sha256": digest, "path": str(file.resolve())}),
        )
    return folder


def _write_note(note: Path, text: str) -> None:
    """Write a note atomically, since several processes that waited for one conversion may each
    write it.
    """
    with NamedTemporaryFile(
        "w", dir=note.parent, prefix=".", suffix=".part", delete=False, encoding="utf-8"
    ) as part:
        part.write(text)
    Path(part.name).replace(note)


def _whole(folder: Path) -> bool:
    card = read_card(folder)
    if card is None:
        return False
    try:
        check_sizes(folder, card, "")
    except ModelError:
        return False
    return True


def _state_of(file: Path) -> list[int]:
    """State of a file. It changes whenever the file is written or replaced, since ctime cannot be
    set back.
    """
    found = file.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _note_of(file: Path) -> Path:
    return models_cache() / "gguf" / f"{sha256(str(file.resolve()).encode()).hexdigest()[:24]}.json"


def _folder_of(digest: str) -> Path:
    return models_cache() / "gguf" / f"{digest[:24]}-{_FORMAT}"
