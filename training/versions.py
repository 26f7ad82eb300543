"""Versions of the weights that a training keeps: each as its difference from the one before.

    RUN/versions/step-000012.zip    the files of a checkpoint, as differences
    RUN/versions/newest/            the files of the newest version, by hard links

A difference is the exclusive or of two files of one length. Its bytes are sorted by their place in
a number of four bytes, so that signs and exponents, which rarely change, lie together, and then
compressed. A file of another length than before is kept whole, and so is each file of every
`_WHOLE_EVERY`-th version, so that few versions have to be read for one. Each file has its SHA-256
on record.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hrm_agent.basics.files import replacing
from hrm_agent.errors import RunError

__all__ = ["Versions"]

_WHOLE_EVERY = 32
_INDEX = "index.json"
_NUMBER = "number"
_NAME = re.compile(r"step-(\d{6,})\.zip")
_WIDTH = 4
"""Bytes of a number. Weights in 16 bits are two of them."""
_LEVEL = 1
"""Level of compression. Higher ones take several times as long for a few percent."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Kept versions of the training in a run folder."""

    run: Path
    """Folder of the run."""

    @property
    def folder(self) -> Path:
        """Folder of the versions."""
        return self.run / "versions"

    @property
    def numbers(self) -> list[int]:
        """Kept versions, in order: numbers of steps behind the weights."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.zip"))
        return sorted(int(name[1]) for name in names if name)

    @property
    def size(self) -> int:
        """Bytes of all kept versions, without the newest one's links."""
        return sum(self._path(number).stat().st_size for number in self.numbers)

    def keep(self, number: int, files: Path) -> None:
        """Keep the files of a folder as version `number`. A version that is kept already is left as
        it is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._path(number).exists():
            before = self._newest_below(number)
            with replacing(self._path(number)) as part:
                _write(part, files, before, self._newest if before is not None else None)
        fresh = self._newest.with_name("newest.part")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(files, fresh, copy_function=_linked)
        (fresh / _NUMBER).write_text(str(number), encoding="utf-8")
        shutil.rmtree(self._newest, ignore_errors=True)
        fresh.rename(self._newest)

    @contextmanager
    def opened(self, numbers: Iterable[int]) -> Generator[Generator[tuple[int, Path]]]:
        """Yield an iterator of versions, in ascending order, with a folder of each one's files. A
        folder is valid until the next step of the iterator. Raises `RunError` for a damaged one.
        """
        with tempfile.TemporaryDirectory() as temporary:
            yield self._each(sorted(numbers), Path(temporary))

    def _each(self, numbers: list[int], place: Path) -> Generator[tuple[int, Path]]:
        held: int | None = None
        for number in numbers:
            for each in self._chain(number, held):
                _apply(self._path(each), place)
            held = number
            yield number, place

    def _chain(self, number: int, held: int | None) -> list[int]:
        """Versions to read for `number`, in order, if the files of `held` are there."""
        chain: list[int] = []
        wanted: int | None = number
        while wanted is not None and wanted != held:
            chain.append(wanted)
            wanted = _index(self._path(wanted))["before"]
        return chain[::-1]

    @property
    def _newest(self) -> Path:
        return self.folder / "newest"

    def _path(self, number: int) -> Path:
        return self.folder / f"step-{number:06}.zip"

    def _newest_below(self, number: int) -> int | None:
        """Version whose files are in `newest`, if `number` may be kept as a difference from it."""
        try:
            found = int((self._newest / _NUMBER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        earlier = [each for each in self.numbers if each < number]
        whole = len(earlier) % _WHOLE_EVERY == 0
        return None if whole or not earlier or found != earlier[-1] else found


def _linked(source: str, target: str) -> None:
    """Link a file that nothing changes, or copy it where links are impossible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write(path: Path, files: Path, before: int | None, old: Path | None) -> None:
    listed: dict[str, Any] = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for file in sorted(each for each in files.rglob("*") if each.is_file()):
            name = file.relative_to(files).as_posix()
            content = file.read_bytes()
            earlier = old / name if old is not None else None
            differs = (
                earlier is not None and earlier.is_file() and earlier.stat().st_size == len(content)
            )
            listed[name] = {
                "sha256": hashlib.sha256(content).hexdigest(),
                "whole": not differs,
            }
            base = earlier.read_bytes() if differs and earlier is not None else None
            archive.writestr(name, _sorted(_combined(content, base)))
        archive.writestr(_INDEX, json.dumps({"before": before, "files": listed}))


def _apply(path: Path, place: Path) -> None:
    """Make the files in `place`, those of the version before, into those of the version at `path`."""
    try:
        with zipfile.ZipFile(path) as archive:
            index = json.loads(archive.read(_INDEX))
            for name, entry in index["files"].items():
                file = place / name
                if not file.resolve().is_relative_to(place.resolve()):
                    raise _damaged(path, f"{name!r} leads out of its folder")
                base = None if entry["whole"] else file.read_bytes()
                content = _combined(_unsorted(archive.read(name)), base)
                if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                    raise _damaged(path, f"{name} has other contents than it was written with")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from error
    for file in [each for each in place.rglob("*") if each.is_file()]:
        if file.relative_to(place).as_posix() not in index["files"]:
            file.unlink()


def _index(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(_INDEX))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"The version {path} is damaged: {why}.", "Restore it from a copy.")


def _combined(content: bytes, base: bytes | None) -> bytes:
    if base is None:
        return content
    return np.bitwise_xor(np.frombuffer(content, np.uint8), np.frombuffer(base, np.uint8)).tobytes()


def _sorted(content: bytes) -> bytes:
    """Bytes by their place in a number, then the rest."""
    whole = len(content) // _WIDTH * _WIDTH
    numbers = np.frombuffer(content[:whole], np.uint8).reshape(-1, _WIDTH)
    return numbers.T.tobytes() + content[whole:]


def _unsorted(content: bytes) -> bytes:
    whole = len(content) // _WIDTH * _WIDTH
    numbers = np.frombuffer(content[:whole], np.uint8).reshape(_WIDTH, -1)
    return numbers.T.tobytes() + content[whole:]
