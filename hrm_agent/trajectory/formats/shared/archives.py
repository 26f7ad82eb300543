"""Reader of untrusted zip archives, member by member in memory. Nothing is unpacked to a disk, and
zip bombs are refused.

Members may be compressed by zstandard, which the standard library of this Python does not read,
besides the usual methods.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import zstandard

from hrm_agent.errors import StoreError
from hrm_agent.trajectory.formats.shared.json_documents import MOST_BYTES, printable, refused

__all__ = ["Archive", "is_archive", "open_archive"]

MOST_MEMBERS = 200_000
"""Maximum number of members of an archive."""
MOST_TOTAL = 16 * 2**30
"""Maximum unpacked bytes of all members read from an archive."""
_ZSTANDARD = 93
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_FAULTS = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    zstandard.ZstdError,
)


class Archive:
    """Open archive."""

    def __init__(self, path: Path, zipped: zipfile.ZipFile, file: io.BufferedReader) -> None:
        self.path = path
        self._zip, self._file = zipped, file
        self._left = MOST_TOTAL

    def names(self) -> Iterator[str]:
        """Names of the members, in the archive's order."""
        return iter(self._zip.namelist())

    def read(self, name: str) -> bytes:
        """Content of a member. Raises `StoreError` if it is missing, damaged, or too large."""
        try:
            info = self._zip.getinfo(name)
            data = self._zstandard(info) if info.compress_type == _ZSTANDARD else self._plain(info)
        except KeyError:
            refused(f"{self.path}", "", f"the archive has no member {name!r}")
        except _FAULTS as error:
            place = printable(f"{self.path}: {name[:200]}")
            raise StoreError(
                f"{place} cannot be unpacked: {error}.", "Copy the file again."
            ) from error
        self._left -= len(data)
        if len(data) > MOST_BYTES or self._left < 0:
            refused(
                f"{self.path}: {name[:200]}",
                "",
                f"it unpacks to more than {MOST_BYTES // 2**20} MiB",
            )
        return data

    def _plain(self, info: zipfile.ZipInfo) -> bytes:
        with self._zip.open(info) as member:
            return member.read(MOST_BYTES + 1)

    def _zstandard(self, info: zipfile.ZipInfo) -> bytes:
        """Content of a zstandard member. Its place is found by its local header, whose names may be
        longer than the directory's.
        """
        self._file.seek(info.header_offset)
        header = _LOCAL_HEADER.unpack(self._file.read(_LOCAL_HEADER.size))
        if header[0] != b"PK\x03\x04" or info.flag_bits & 0x1:
            raise ValueError("it is encrypted, or not where the directory says")
        self._file.seek(header[-2] + header[-1], io.SEEK_CUR)
        packed = self._file.read(min(info.compress_size, MOST_BYTES + 1))
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
            data = reader.read(MOST_BYTES + 1)
        if len(data) <= MOST_BYTES and zlib.crc32(data) != info.CRC:
            raise ValueError("its checksum does not fit")
        return data


def is_archive(path: Path) -> bool:
    """True for a file that begins like a zip archive."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


@contextmanager
def open_archive(path: Path) -> Generator[Archive]:
    """Open a zip archive. Raises `StoreError` for any other file, or too many members."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(path) as zipped:
            if len(zipped.infolist()) > MOST_MEMBERS:
                refused(str(path), "", f"the archive has more than {MOST_MEMBERS} members")
            yield Archive(path, zipped, file)
    except _FAULTS as error:
        raise StoreError(f"{path} cannot be read: {error}.", "Copy the file again.") from error
