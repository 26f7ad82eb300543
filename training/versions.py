"""Archive of the versions of a training's weights, each as its difference from the previous one.

    RUN/versions/step-000012.zip    the files of a checkpoint, as differences
    RUN/versions/newest/            the files of the newest version, by hard links

A difference is the XOR of two files of equal length. Its bytes are grouped, chunk by chunk, by their
position within a four-byte number, and then compressed. Signs and exponents rarely change, so their
bytes are mostly 0. A file is kept whole if its length has changed. Every `_WHOLE_EVERY`-th version
is kept whole, which bounds the number of archives read for one version. The SHA-256 of each file is
stored and checked.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from pydantic import BaseModel

from hrm_agent.basics.files import replacing
from hrm_agent.errors import RunError

__all__ = ["Versions"]

_WHOLE_EVERY = 32
_INDEX = "index.json"
_NUMBER = "number"
_NAME = re.compile(r"step-(\d{6,})\.zip")
_WIDTH = 4
"""Bytes of a number. Weights in 16 bits are two of them."""
_PIECE = 16 << 20
"""Size of a chunk in bytes, a multiple of `_WIDTH`."""
_LEVEL = 1
"""Level of compression. Higher ones take several times as long for a few percent."""
_DAMAGE = (
    *(OSError, ValueError, KeyError, EOFError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Errors that a damaged archive may raise."""


class _File(BaseModel):
    sha256: str
    """Hash of the file's content, in hexadecimal digits."""
    whole: bool
    """True if the archive has the whole content, False if it has the difference."""


class _Index(BaseModel):
    before: int | None
    """Number of the previous version (None if this one is kept whole)."""
    files: dict[str, _File]
    """Files by their names in the checkpoint."""


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
        """Numbers of the kept versions, ascending: optimiser steps behind the weights."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.zip"))
        return sorted(int(name[1]) for name in names if name)

    @property
    def size(self) -> int:
        """Total size of the archives in bytes."""
        return sum(self._path(number).stat().st_size for number in self.numbers)

    def keep(self, number: int, files: Path) -> None:
        """Keep the files of a folder as version `number`.

        If the version is already kept with other contents, it is replaced. Later versions depend on
        it, so they are removed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._has(number, files):
            for later in reversed([each for each in self.numbers if each >= number]):
                self._path(later).unlink()
            before = self._before(number)
            with replacing(self._path(number)) as part:
                _write(part, files, before, self._newest)
        fresh = self._newest.with_name("newest.part")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(files, fresh, copy_function=_linked)
        (fresh / _NUMBER).write_text(str(number), encoding="utf-8")
        shutil.rmtree(self._newest, ignore_errors=True)
        fresh.rename(self._newest)

    @contextmanager
    def opened(self, numbers: Iterable[int]) -> Generator[Generator[tuple[int, Path]]]:
        """Yield an iterator of (number, folder with the version's files), in ascending order. A
        folder is valid until the next iteration, which raises `RunError` for a damaged archive.
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
        """Versions to apply, in order, to get `number` from the files of `held`."""
        chain: list[int] = []
        wanted: int | None = number
        while wanted is not None and wanted != held:
            chain.append(wanted)
            path = self._path(wanted)
            before = _index(path).before
            if before is not None and before >= wanted:
                raise _damaged(path, f"it names version {before} as the previous one")
            wanted = before
        return chain[::-1]

    @property
    def _newest(self) -> Path:
        return self.folder / "newest"

    def _path(self, number: int) -> Path:
        return self.folder / f"step-{number:06}.zip"

    def _has(self, number: int, files: Path) -> bool:
        """True if version `number` is kept with the contents of these files."""
        try:
            return _hashes(_index(self._path(number))) == _hashes_of(files)
        except RunError:
            return False

    def _before(self, number: int) -> int | None:
        """Version relative to which `number` is kept (None: keep it whole). The files of this
        version must be in `newest`.
        """
        earlier = [each for each in self.numbers if each < number]
        if len(earlier) % _WHOLE_EVERY == 0 or not (self._newest / _NUMBER).is_file():
            return None
        return earlier[-1] if self._has(earlier[-1], self._newest) else None


def _hashes(index: _Index) -> dict[str, str]:
    return {name: entry.sha256 for name, entry in index.files.items()}


def _hashes_of(folder: Path) -> dict[str, str]:
    return {name: _hash(folder / name) for name in _names(folder)}


def _names(folder: Path) -> list[str]:
    """Names of a checkpoint's files."""
    files = (each for each in folder.rglob("*") if each.is_file())
    return sorted({each.relative_to(folder).as_posix() for each in files} - {_NUMBER})


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _linked(source: str, target: str) -> None:
    """Hard-link a file, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write(path: Path, files: Path, before: int | None, old: Path) -> None:
    listed: dict[str, _File] = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name in _names(files):
            file = files / name
            earlier = old / name
            differs = (
                before is not None
                and earlier.is_file()
                and earlier.stat().st_size == file.stat().st_size
            )
            listed[name] = _File(sha256=_hash(file), whole=not differs)
            with archive.open(name, "w", force_zip64=True) as written, file.open("rb") as content:
                base = earlier.open("rb") if differs else None
                for piece in _combined(content, base):
                    written.write(_sorted(piece))
                if base is not None:
                    base.close()
        archive.writestr(_INDEX, _Index(before=before, files=listed).model_dump_json())


def _apply(path: Path, place: Path) -> None:
    """Apply an archive to the files of its previous version in `place`."""
    index = _index(path)
    made = place / "next"
    try:
        with zipfile.ZipFile(path) as archive:
            for name, entry in index.files.items():
                file = place / name
                if not file.resolve().is_relative_to(place.resolve()):
                    raise _damaged(path, f"{name!r} leads out of its folder")
                file.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as kept, made.open("wb") as written:
                    base = None if entry.whole else file.open("rb")
                    for piece in _combined(kept, base, _unsorted):
                        written.write(piece)
                    if base is not None:
                        base.close()
                if _hash(made) != entry.sha256:
                    raise _damaged(path, f"{name} has other contents than it was written with")
                made.replace(file)
    except _DAMAGE as error:
        raise _damaged(path, str(error)) from error
    for name in [each for each in _names(place) if each not in index.files]:
        (place / name).unlink()


def _index(path: Path) -> _Index:
    try:
        with zipfile.ZipFile(path) as archive:
            return _Index.model_validate_json(archive.read(_INDEX))
    except _DAMAGE as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> RunError:
    first = " ".join(why.split())[:200]
    return RunError(f"The version {path} is damaged: {first}.", "Restore it from a copy.")


def _plain(piece: bytes) -> bytes:
    return piece


def _combined(
    content: IO[bytes], base: IO[bytes] | None, read: Callable[[bytes], bytes] = _plain
) -> Iterator[bytes]:
    """Chunks of the XOR of two files of equal length (without a base: of `content`). `read` is
    applied to each chunk of `content` first.
    """
    while piece := _read(content):
        own = read(piece)
        if base is None:
            yield own
            continue
        other = np.frombuffer(base.read(len(own)), np.uint8)
        yield np.bitwise_xor(np.frombuffer(own, np.uint8), other).tobytes()


def _read(file: IO[bytes]) -> bytes:
    """Read one chunk. Only the last one of a file is shorter."""
    pieces: list[bytes] = []
    missing = _PIECE
    while missing and (found := file.read(missing)):
        pieces.append(found)
        missing -= len(found)
    return b"".join(pieces)


def _sorted(piece: bytes) -> bytes:
    """Group the bytes by their position within a number. Incomplete numbers stay at the end."""
    whole = len(piece) // _WIDTH * _WIDTH
    numbers = np.frombuffer(piece[:whole], np.uint8).reshape(-1, _WIDTH)
    return numbers.T.tobytes() + piece[whole:]


def _unsorted(piece: bytes) -> bytes:
    whole = len(piece) // _WIDTH * _WIDTH
    numbers = np.frombuffer(piece[:whole], np.uint8).reshape(_WIDTH, -1)
    return numbers.T.tobytes() + piece[whole:]
