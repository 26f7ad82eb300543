"""Text of files that are named on the command line, in pieces, so that files may have any size.

Plain text in UTF-8 is read from the file piece by piece, at each iteration again. Other files
(HTML, PDF, other encodings) go through the index's reader and are held in memory, up to the index's
size limit.

If possible, a piece ends before a space that has a letter or digit before it and a letter after it.
No token of a `local` tokenizer reaches over such a space, so the counts of the pieces add up to the
count of the whole text. Other tokenizers may count a token or two more in each piece.
"""

from __future__ import annotations

import codecs
import io
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hrm_agent.errors import RetrievalError
from hrm_agent.retrieval.index.reading import MAX_BYTES, Document, NotRead, read_document

__all__ = ["HeldOut", "Texts", "read_whole"]

_BLOCK = 2**20
_NEAR = 4_096
"""Number of characters at the end of a piece that are searched for a place to end it."""
_JOINT = re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z])")
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"%PDF-")
_CONVERTED = {".html", ".htm", ".xhtml", ".pdf"}
_ANOTHER = "Name a file of text."


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    bytes: int
    """Size of the file in bytes."""
    text: str | None
    """Converted text of the file (None: the file is read as UTF-8)."""


class Texts:
    """Text of several files, one after the other."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises `RetrievalError` for the first file that is not text, or if no file has text."""
        self._files = [_opened(path) for path in paths]
        self.bytes = sum(file.bytes for file in self._files)
        if not any(piece.strip() for piece in self.pieces()):
            names = ", ".join(str(path) for path in paths)
            raise RetrievalError(f"There is no text in {names}.", "Name files that are not empty.")

    def pieces(self, size: int = _BLOCK) -> Iterator[str]:
        """Pieces of about `size` characters. Joined, they are the whole text."""
        for file in self._files:
            if file.text is not None:
                yield from _cut(io.StringIO(file.text, newline=""), size)
            else:
                with file.path.open(encoding="utf-8-sig", newline="") as reader:
                    yield from _cut(reader, size)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Texts split into blocks. Every nth block is held out for measuring, and the others are for
    training.

    Both kinds of blocks come from the same files, so the held-out text is new, but similar. If
    texts repeat themselves, the measured result is better than on unseen files.
    """

    texts: Texts
    """Texts to split into blocks."""
    every: int
    """Every nth block is held out (the last block if there are fewer than n)."""
    most: int
    """Maximum number of bytes to train on. If the text is larger, training blocks are taken evenly
    from the whole.
    """
    size: int
    """Approximate number of characters of a block."""
    blocks: int
    """Number of all blocks."""

    @classmethod
    def of(cls, texts: Texts, every: int = 10, most: int = 10_000_000) -> HeldOut:
        """Split texts into blocks of a hundredth of the whole, but of at least 1,000 and at most
        65,536 characters. Raises `RetrievalError` if that gives only one block.
        """
        size = min(max(texts.bytes // 100, 1_000), 2**16)
        blocks = sum(1 for _ in texts.pieces(size))
        if blocks < 2:
            raise RetrievalError(
                f"A text of {texts.bytes:,} bytes is too short to learn from one part and measure"
                " on another.",
                "Give more text: a useful vocabulary needs some hundred thousand characters.",
            )
        return cls(texts, every, most, size, blocks)

    def held(self) -> Iterator[str]:
        """Held-out text. Blocks are joined to pieces that are long enough to measure speed."""
        held: list[str] = []
        for number, piece in enumerate(self.texts.pieces(self.size)):
            if self._is_held(number):
                held.append(piece)
            if len(held) * self.size >= _BLOCK:
                yield "".join(held)
                held = []
        yield "".join(held)

    def learnt(self) -> Iterator[str]:
        """Training text."""
        share = min(1.0, self.most / self.texts.bytes)
        taken = 0.0
        for number, piece in enumerate(self.texts.pieces(self.size)):
            if not self._is_held(number):
                taken += share
                if taken >= 1.0 - 1e-9:
                    taken -= 1.0
                    yield piece

    def _is_held(self, number: int) -> bool:
        return number % self.every == self.every - 1 or (
            self.blocks < self.every and number == self.blocks - 1
        )


def read_whole(path: Path, max_bytes: int) -> Document:
    """Read one file as one text. Raises a `RetrievalError`."""
    size = _size(path)
    if size > max_bytes:
        raise RetrievalError(
            f"{path} has {size:,} bytes, but only files of up to {max_bytes:,} bytes can be read"
            " as a whole.",
            "Use a part of it (`head -c 30M`), or allow more with --max-mb.",
        )
    try:
        return read_document(path.name, path.read_bytes(), max_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error
    except NotRead as error:
        raise RetrievalError(f"No text can be read from {path}: {error}.", _ANOTHER) from error


def _opened(path: Path) -> _File:
    size = _size(path)
    try:
        with path.open("rb") as reader:
            as_it_is = _is_utf8(reader, path)
    except OSError as error:
        raise _unreadable(path, error) from error
    if as_it_is:
        return _File(path, size, None)
    if size > MAX_BYTES:
        raise RetrievalError(
            f"{path} is not in UTF-8, and {size:,} bytes are too many to convert (at most"
            f" {MAX_BYTES:,}).",
            f"Convert it first, for example by `iconv -f latin1 -t utf-8 {path}`.",
        )
    text = read_whole(path, MAX_BYTES).text
    return _File(path, len(text.encode()), text)


def _size(path: Path) -> int:
    try:
        about = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(about.st_mode):
        raise RetrievalError(f"{path} is a folder.", f"Name its files: `{path}/*`.")
    if not stat.S_ISREG(about.st_mode):
        raise RetrievalError(
            f"{path} is not a regular file, so it cannot be read more than once.",
            "Save it to a file first.",
        )
    return about.st_size


def _is_utf8(reader: BinaryIO, path: Path) -> bool:
    """True if a file is plain UTF-8, False if a library has to convert it. Raises `RetrievalError`
    for a binary file.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    block = reader.read(_BLOCK)
    if path.suffix.lower() in _CONVERTED or block.startswith(_MARKS):
        return False
    while block:
        if b"\0" in block:
            raise RetrievalError(f"{path} is not text: it has NUL bytes.", _ANOTHER)
        try:
            decoder.decode(block)
        except UnicodeDecodeError:
            return False
        block = reader.read(_BLOCK)
    return not decoder.getstate()[0]


def _unreadable(path: Path, error: OSError) -> RetrievalError:
    missing = isinstance(error, FileNotFoundError)
    message = (
        f"There is no file {path}."
        if missing
        else f"{path} cannot be read: {error.strerror or error}."
    )
    return RetrievalError(message, _ANOTHER)


def _cut(reader: io.TextIOBase, size: int) -> Iterator[str]:
    rest = ""
    while block := reader.read(size):
        rest += block
        if len(rest) < size:
            continue
        # A piece ends at one of the `_JOINT` spaces if possible, or else at white space.
        first = max(len(rest) - _NEAR, len(rest) // 2)
        places = [match.start() for match in _JOINT.finditer(rest, first)]
        space = max(rest.rfind("\n", first), rest.rfind(" ", first))
        end = places[-1] if places else space if space > 0 else len(rest)
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest
