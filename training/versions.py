"""Versions of the weights that a training keeps: each as its difference from the one before.

    RUN/versions/step-000012.zip    the files of a checkpoint, as differences
    RUN/versions/newest/            the files of the newest version, by hard links

A difference is the exclusive or of two files of one length. Its bytes are sorted, in pieces, by
their place in a number of four bytes, so that signs and exponents, which rarely change, lie
together, and then compressed. A file of another length than before is kept whole, and so is each
file of every `_WHOLE_EVERY`-th version, so that few versions have to be read for one. Each file has
its SHA-256 on record.
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
"""Bytes that are held in memory at once, a multiple of `_WIDTH`."""
_LEVEL = 1
"""Level of compression. Higher ones take several times as long for a few percent."""
_DAMAGE = (
    *(OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Errors that a damaged archive may raise."""


class _File(BaseModel):
    sha256: str
    """Hash of the file's content, in hexadecimal digits."""
    whole: bool
    """True if the archive has the content, False if it has the difference from the file before."""


class _Index(BaseModel):
    before: int | None
    """Version from which this one differs (None for one that is kept whole)."""
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
        """Kept versions, in order: numbers of steps behind the weights."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.zip"))
        return sorted(int(name[1]) for name in names if name)

    @property
    def size(self) -> int:
        """Bytes of all kept versions, without the newest one's links."""
        return sum(self._path(number).stat().st_size for number in self.numbers)

    def keep(self, number: int, files: Path) -> None:
        """Keep the files of a folder as version `number`. If it is kept already with other files,
        it is replaced, and later versions, whose steps are taken again, are removed.
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
            path = self._path(wanted)
            before = _index(path).before
            if before is not None and before >= wanted:
                raise _damaged(path, f"it is said to follow version {before}")
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
        """Version from which `number` may be kept as a difference (None: it is kept whole). It is
        the one before, if `newest` has its files.
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
    """Link a file that nothing changes, or copy it where links are impossible."""
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
    """Make the files in `place`, those of the version before, into those of the version at `path`."""
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
    """Pieces of the exclusive or of two files of one length (of `content` alone without a base).
    `read` is called with each piece of `content`.
    """
    while piece := _read(content):
        own = read(piece)
        if base is None:
            yield own
            continue
        other = np.frombuffer(base.read(len(own)), np.uint8)
        yield np.bitwise_xor(np.frombuffer(own, np.uint8), other).tobytes()


def _read(file: IO[bytes]) -> bytes:
    """Next piece, shorter only at the end of the file."""
    pieces: list[bytes] = []
    missing = _PIECE
    while missing and (found := file.read(missing)):
        pieces.append(found)
        missing -= len(found)
    return b"".join(pieces)


def _sorted(piece: bytes) -> bytes:
    """Bytes by their place in a number, then the rest."""
    whole = len(piece) // _WIDTH * _WIDTH
    numbers = np.frombuffer(piece[:whole], np.uint8).reshape(-1, _WIDTH)
    return numbers.T.tobytes() + piece[whole:]


def _unsorted(piece: bytes) -> bytes:
    whole = len(piece) // _WIDTH * _WIDTH
    numbers = np.frombuffer(piece[:whole], np.uint8).reshape(_WIDTH, -1)
    return numbers.T.tobytes() + piece[whole:]
