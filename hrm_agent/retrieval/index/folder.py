"""A folder into an index, again and again: what is new or changed is indexed, what is gone is taken out.

A file is known by the hash of its bytes, of how it was read and of how it was cut; nothing rests on times of change.
Every file has an outcome, and no file ends the work. What was a document and is now broken, binary or too large is
taken out, since its text is no longer that of the file; what only could not be opened this time is kept.

Files and folders whose names begin with a dot are left out, and links to folders are not followed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from hrm_agent.errors import RetrievalError
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.chunker import DEFAULT_OVERLAP, DEFAULT_SIZE, chunk_text
from hrm_agent.retrieval.index.database import DocumentIndex
from hrm_agent.retrieval.index.reading import MAX_BYTES, READER, Document, Kind, NotRead, Why, read_document
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER

__all__ = ["Chunking", "Done", "FileOutcome", "FolderReport", "files_in", "index_folder"]

_SHARE_TO_TIDY = 0.1
"""An index of which so much is new is put in order at the end."""


class Done(StrEnum):
    """What became of a file."""

    ADDED = "added"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    """It is no longer in the folder."""
    SKIPPED = "skipped"
    """It gives no text; the outcome says why."""


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """One file and what became of it."""

    file: str
    done: Done
    why: Why | None = None
    """Of a file that was skipped."""
    reason: str = ""
    """The same for people."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """How documents are cut. Markdown is cut as Markdown where the strategy is the default."""

    strategy: str = "recursive"
    tokenizer: str = DEFAULT_TOKENIZER
    size: int = DEFAULT_SIZE
    """Most tokens of a chunk."""
    overlap: float = DEFAULT_OVERLAP
    """Share of `size` that neighbours have in common."""

    def __call__(self, document: Document) -> Sequence[Chunk]:
        markdown = document.kind is Kind.MARKDOWN and self.strategy == "recursive"
        strategy = "markdown" if markdown else self.strategy
        chunks = chunk_text(document.text, strategy, self.tokenizer, size=self.size, overlap=self.overlap)
        return [chunk for chunk in chunks if not chunk.text.isspace()]

    def check(self) -> None:
        """Raises an `HrmError` for a setting that does not exist, before any file is touched."""
        self(Document("x", Kind.TEXT))


@dataclass
class FolderReport:
    """What a run did."""

    outcomes: list[FileOutcome] = field(default_factory=list[FileOutcome])

    @property
    def counts(self) -> dict[str, int]:
        """Files by what became of them."""
        counted = Counter(str(outcome.done) for outcome in self.outcomes)
        return {str(done): counted[str(done)] for done in Done}

    @property
    def failed(self) -> list[FileOutcome]:
        """Files that should have given a text: all that were skipped, but the empty ones and those of other formats."""
        return [outcome for outcome in self.outcomes if outcome.why in (Why.UNREADABLE, Why.TOO_LARGE)]


def index_folder(
    index: DocumentIndex,
    folder: Path,
    files: Sequence[str],
    *,
    chunking: Chunking | None = None,
    max_bytes: int = MAX_BYTES,
    on_file: Callable[[FileOutcome], None] = lambda outcome: None,
) -> FolderReport:
    """Bring an index to the state of a folder. `files` is what `files_in` found there."""
    root = str(folder.resolve())
    if index.folder not in ("", root):
        raise RetrievalError(
            f"{index.path} is the index of {index.folder}, not of {root}.", "Name another file with --store."
        )
    (chunking := chunking or Chunking()).check()
    index.folder = root
    report, known = FolderReport(), index.sources()
    run = _Run(index, folder, chunking, max_bytes, known)
    for file in [*files, *sorted(known.keys() - set(files))]:
        report.outcomes.append(run.settle(file))
        on_file(report.outcomes[-1])
    fresh = report.counts[Done.ADDED] + report.counts[Done.UPDATED]
    if fresh > _SHARE_TO_TIDY * len(report.outcomes):
        index.tidy()
    return report


def files_in(folder: Path) -> list[str]:
    """Paths of the files in a folder, inside it and with forward slashes, in the order of their names."""
    hint = "Name a folder of text, Markdown, HTML or PDF files."
    if not folder.is_dir():
        raise RetrievalError(f"There is no folder {folder}.", hint)
    found: list[str] = []
    for place, folders, names in os.walk(folder, onerror=_unlisted):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inside = Path(place).relative_to(folder)
        found += [(inside / name).as_posix() for name in sorted(names) if not name.startswith(".")]
    if not found:
        raise RetrievalError(f"There is no file in {folder}; the index was left as it is.", hint)
    return found


def _unlisted(error: OSError) -> None:
    """A folder that cannot be listed looks empty, and its documents gone: nothing is done."""
    raise RetrievalError(
        f"The folder {error.filename} cannot be listed: {error.strerror}; the index was left as it is.",
        "See that it may be read, or move it elsewhere.",
    ) from error


@dataclass(frozen=True, slots=True)
class _Run:
    index: DocumentIndex
    folder: Path
    chunking: Chunking
    max_bytes: int
    known: dict[str, str]
    """File -> source, as it was at the beginning."""

    def settle(self, file: str) -> FileOutcome:
        """Bring one file up to date, and say what was done."""
        if not file.isprintable():  # a name of other bytes than UTF-8, or one that would break lines
            return FileOutcome(ascii(file), Done.SKIPPED, Why.UNREADABLE, "its name cannot be shown as it is")
        try:
            return self._index(file)
        except FileNotFoundError:
            self.index.remove(file)
            return FileOutcome(file, Done.REMOVED)
        except OSError as error:
            kept = "; what was indexed of it before is kept" if file in self.known else ""
            return FileOutcome(file, Done.SKIPPED, Why.UNREADABLE, f"{error.strerror or error}{kept}")
        except NotRead as error:
            self.index.remove(file)
            return FileOutcome(file, Done.SKIPPED, error.why, str(error))

    def _index(self, file: str) -> FileOutcome:
        data = self._bytes(file)
        settings = f"{READER} {self.chunking} {self.max_bytes} {Path(file).suffix}"
        source = hashlib.sha256(settings.encode() + b"\0" + data).hexdigest()
        if self.known.get(file) == source:
            return FileOutcome(file, Done.UNCHANGED)
        document = read_document(file, data, self.max_bytes)
        self.index.put(file, source, document, self.chunking(document))
        return FileOutcome(file, Done.UPDATED if file in self.known else Done.ADDED)

    def _bytes(self, file: str) -> bytes:
        path = self.folder / file
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise NotRead(Why.BINARY, "it is no regular file")
        if self._is_ours(path):
            raise NotRead(Why.BINARY, "it belongs to the index")
        if about.st_size > self.max_bytes:
            raise NotRead(Why.TOO_LARGE, f"{about.st_size:,} bytes; files up to {self.max_bytes:,} are read")
        return path.read_bytes()

    def _is_ours(self, path: Path) -> bool:
        """The index may lie in the folder that it indexes, with the two files that SQLite has beside it."""
        return path.resolve() in [Path(f"{self.index.path.resolve()}{suffix}") for suffix in ("", "-wal", "-shm")]
