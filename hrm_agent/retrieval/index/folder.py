"""Incremental indexing of folders: new and changed files are indexed, missing ones are removed.

A file is identified by the hash of its bytes and of the settings with which it was read and cut.
Modification times are not used. If a file is missing, but a new file has the same bytes, the
document is only renamed. Every file has an outcome, and no file aborts the run. If a file is now
broken, binary or too large, its document is removed, since the indexed text no longer matches the
file. If a file could not be opened, its document is kept.

A link to a file outside of the folder, or to a file whose name begins with a dot, is only read with
`follow_links`. Otherwise, anyone with write access to the folder could make any file of the machine
searchable. The location of a file is taken from the open descriptor. So it has no effect if someone
replaces a file or a parent folder by a link between listing and reading.

An index may hold several folders. Files of the first folder are named by their paths in it. Names
of files in other folders begin with the folder's label and two slashes (`manuals//setup.md`), which
no path inside a folder has.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from hrm_agent.errors import RetrievalError
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.chunker import (
    DEFAULT_OVERLAP,
    DEFAULT_SIZE,
    DEFAULT_STRATEGY,
    chunk_text,
)
from hrm_agent.retrieval.index.database import DocumentIndex
from hrm_agent.retrieval.index.folder_labels import is_of, labelled
from hrm_agent.retrieval.index.reading import (
    MAX_BYTES,
    READER,
    Document,
    DocumentKind,
    NotRead,
    Why,
    is_html,
    read_document,
)
from hrm_agent.retrieval.index.walk import inside
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER

__all__ = ["Chunking", "Done", "FileOutcome", "FolderReport", "index_folder", "remove_folder"]

_SHARE_TO_TIDY = 0.1
"""Share of new and updated files above which the index is optimized at the end."""
_READS = 3
"""Maximum number of attempts to read a file that changes while it is read."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Flags for opening a file. Opening a pipe that has replaced the file does not block."""


class Done(StrEnum):
    """Outcome of a file."""

    ADDED = "added"
    """File that was not in the index."""
    UPDATED = "updated"
    """File whose bytes, or settings of reading or cutting, have changed."""
    UNCHANGED = "unchanged"
    """File that is already in the index."""
    RENAMED = "renamed"
    """File with the bytes of an indexed file that is missing now."""
    REMOVED = "removed"
    """File that is no longer in the folder."""
    SKIPPED = "skipped"
    """File without a text. `why` and `reason` of the outcome explain it."""


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """File with its outcome."""

    file: str
    """Name in the index: path in the folder, with the label of a further folder before it."""
    done: Done
    """Outcome of the file."""
    why: Why | None = None
    """Kind of reason why a file was skipped (None for other outcomes)."""
    reason: str = ""
    """Reason why a file was skipped, as text for users, or the old name of a renamed file (empty
    otherwise).
    """


@dataclass(frozen=True, slots=True)
class Chunking:
    """Settings for cutting documents. With the default strategy, Markdown and HTML are cut at
    headings first. In the text of HTML, headings are marked as in Markdown.
    """

    strategy: str = DEFAULT_STRATEGY
    """Name of the chunking strategy."""
    tokenizer: str = DEFAULT_TOKENIZER
    """Tokenizer in whose tokens `size` and `overlap` count."""
    size: int = DEFAULT_SIZE
    """Maximum tokens of a chunk."""
    overlap: float = DEFAULT_OVERLAP
    """Overlap of neighbouring chunks, as a share of `size`."""

    def __call__(self, document: Document) -> Sequence[Chunk]:
        has_headings = document.kind in (DocumentKind.MARKDOWN, DocumentKind.HTML)
        strategy = (
            "markdown" if has_headings and self.strategy == DEFAULT_STRATEGY else self.strategy
        )
        chunks = chunk_text(
            document.text, strategy, self.tokenizer, size=self.size, overlap=self.overlap
        )
        return [chunk for chunk in chunks if not chunk.text.isspace()]

    def check(self) -> None:
        """Raise an `HrmError` for an invalid setting, before any file is read."""
        self(Document("x", DocumentKind.TEXT))


@dataclass
class FolderReport:
    """Outcomes of a run."""

    outcomes: list[FileOutcome] = field(default_factory=list[FileOutcome])
    """Outcome of each file, including removed ones."""
    warnings: list[str] = field(default_factory=list[str])
    """Warnings that do not prevent indexing, e.g. about a folder that no longer exists."""

    def add(self, other: FolderReport) -> None:
        """Add the outcomes and warnings of another folder."""
        self.outcomes += other.outcomes
        self.warnings += [warning for warning in other.warnings if warning not in self.warnings]

    @property
    def counts(self) -> dict[str, int]:
        """Number of files by outcome."""
        counted = Counter(str(outcome.done) for outcome in self.outcomes)
        return {str(done): counted[str(done)] for done in Done}

    @property
    def failed(self) -> list[FileOutcome]:
        """Files that were skipped although text was expected: unreadable and too large files. Empty
        files and files of other formats are not included.
        """
        return [
            outcome for outcome in self.outcomes if outcome.why in (Why.UNREADABLE, Why.TOO_LARGE)
        ]


def index_folder(
    index: DocumentIndex,
    folder: Path,
    files: Sequence[str],
    *,
    chunking: Chunking | None = None,
    max_bytes: int = MAX_BYTES,
    hidden_text: bool = False,
    follow_links: bool = False,
    on_file: Callable[[FileOutcome], None] = lambda outcome: None,
) -> FolderReport:
    """Update an index to the state of a folder. `files` is the result of `files_in` for it, with
    the same `follow_links`.

    `hidden_text`: index HTML with the text that a browser would hide. `follow_links`: read files
    outside of the folder if links in it lead to them.
    """
    (chunking := chunking or Chunking()).check()
    label = index.label_of(folder.resolve())
    prefix = labelled(label)
    known = {file: source for file, source in index.sources().items() if is_of(file, label)}
    closed = [
        prefix + file
        for file in files
        if file.endswith("/") and (follow_links or not (folder / file).is_symlink())
    ]
    gone = sorted(
        file
        for file in known.keys() - {prefix + file for file in files}
        if not inside(file, closed)
    )
    by_source = {known[file]: file for file in gone}
    run = _IndexRun(
        index, folder, prefix, chunking, max_bytes, hidden_text, follow_links, known, by_source
    )
    report = FolderReport()
    for file in files:
        report.outcomes.append(run.update_file(file))
        on_file(report.outcomes[-1])
    for file in gone:
        if file not in run.renamed:
            index.remove(file)
            report.outcomes.append(FileOutcome(file, Done.REMOVED))
            on_file(report.outcomes[-1])
    lost = [path for path in index.folders().values() if not Path(path).is_dir()]
    hint = f"`hrm-agent index --remove DIR --store {index.path}` removes its documents"
    report.warnings = [
        f"The folder {path} of this index does not exist any more: {hint}." for path in lost
    ]
    fresh = report.counts[Done.ADDED] + report.counts[Done.UPDATED]
    if fresh > _SHARE_TO_TIDY * len(report.outcomes):
        index.optimize()
    return report


def remove_folder(index: DocumentIndex, folder: Path) -> FolderReport:
    """Remove the documents of a folder from an index. The folder may be missing on disk."""
    paths = {path: label for label, path in index.folders().items()}
    path = str(folder.resolve())
    if path not in paths:
        known = ", ".join(paths) or "none"
        raise RetrievalError(
            f"{path} is not a folder of the index {index.path}.", f"Its folders: {known}."
        )
    report = FolderReport()
    for file in sorted(file for file in index.sources() if is_of(file, paths[path])):
        index.remove(file)
        report.outcomes.append(FileOutcome(file, Done.REMOVED))
    index.remove_folder(paths[path])
    index.optimize()
    return report


@dataclass(frozen=True)
class _IndexRun:
    index: DocumentIndex
    folder: Path
    """Folder that is indexed."""
    prefix: str
    """Prefix of the folder's file names in the index (empty for the first folder)."""
    chunking: Chunking
    """Settings for cutting documents."""
    max_bytes: int
    """Maximum size of a file in bytes. Larger files are skipped."""
    hidden_text: bool
    """True if HTML is read with the text that a browser would hide."""
    follow_links: bool
    """True if links may lead out of the folder."""
    known: dict[str, str]
    """Indexed files with their sources, at the start of the run."""
    gone: dict[str, str]
    """Files that are no longer in the folder, by source."""
    renamed: set[str] = field(default_factory=set[str])
    """Files of `gone` that turned out to be renamed."""

    def update_file(self, path: str) -> FileOutcome:
        """Update one file and return its outcome."""
        file = self.prefix + path
        # the name is not UTF-8, or would break lines of the output
        if not file.isprintable():
            return FileOutcome(
                ascii(file), Done.SKIPPED, Why.UNREADABLE, "its name cannot be shown as it is"
            )
        try:
            return (
                self._index(file, self.folder / path)
                if not path.endswith("/")
                else self._closed(file, path)
            )
        except FileNotFoundError:
            self.index.remove(file)
            return FileOutcome(file, Done.REMOVED)
        except OSError as error:
            kept = "; text indexed before is kept" if file in self.known else ""
            return FileOutcome(
                file, Done.SKIPPED, Why.UNREADABLE, f"{error.strerror or error}{kept}"
            )
        except NotRead as error:
            self.index.remove(file)
            return FileOutcome(file, Done.SKIPPED, error.why, str(error))

    def _closed(self, file: str, path: str) -> FileOutcome:
        place = self.folder / path
        if self.follow_links and os.access(place, os.R_OK | os.X_OK):
            return FileOutcome(
                file, Done.SKIPPED, Why.LINK, "the folder was listed already, by another path"
            )
        if place.is_symlink():
            reason = (
                "a link to a folder is not followed: index that folder beside this one, or give"
                " --follow-links"
            )
            return FileOutcome(file, Done.SKIPPED, Why.LINK, reason)
        kept = any(known.startswith(file) for known in self.known)
        reason = f"the folder may not be listed{'; text indexed before is kept' if kept else ''}"
        return FileOutcome(file, Done.SKIPPED, Why.UNREADABLE, reason)

    def _index(self, file: str, path: Path) -> FileOutcome:
        data = self._bytes(path)
        hidden = " hidden" if self.hidden_text and is_html(path.name) else ""
        settings = f"{READER} {self.chunking} {self.max_bytes} {path.suffix}{hidden}"
        source = hashlib.sha256(settings.encode() + b"\0" + data).hexdigest()
        if self.known.get(file) == source:
            return FileOutcome(file, Done.UNCHANGED)
        if file not in self.known and (old := self.gone.pop(source, None)):
            self.index.rename(old, file)
            self.renamed.add(old)
            return FileOutcome(file, Done.RENAMED, reason=f"was {old}")
        document = read_document(file, data, self.max_bytes, hidden_text=self.hidden_text)
        try:
            chunks = self.chunking(document)
        except RetrievalError as error:
            raise NotRead(Why.UNREADABLE, error.message) from error
        self.index.put(file, source, document, chunks)
        return FileOutcome(file, Done.UPDATED if file in self.known else Done.ADDED)

    def _bytes(self, path: Path) -> bytes:
        """Return all bytes of a file. If the file changes while it is read, it is read again.
        Raises `NotRead` and `OSError`.
        """
        if path.is_symlink() and not path.exists():
            raise NotRead(Why.LINK, "the link leads to a missing file")
        for _ in range(_READS):
            # the type is checked before opening, since opening some devices has effects
            if not stat.S_ISREG(path.stat().st_mode):
                raise NotRead(Why.BINARY, "it is not a regular file")
            with os.fdopen(os.open(path, _FLAGS), "rb") as file:
                about = os.fstat(file.fileno())
                self._refuse(path, file.fileno(), about)
                data = file.read(self.max_bytes + 1)
                after = os.fstat(file.fileno())
            if len(data) == about.st_size and _moment(after) == _moment(about):
                return data
        raise OSError(f"the file changed while it was read, {_READS} times")

    def _refuse(self, path: Path, descriptor: int, about: os.stat_result) -> None:
        """Raise `NotRead` for an open file that does not belong to the folder."""
        place = _place_of(path, descriptor, about)
        if not (self.follow_links or place.is_relative_to(self._root)):
            raise NotRead(
                Why.LINK, "a link out of the folder is not followed (--follow-links reads it)"
            )
        if not self.follow_links and any(
            part.startswith(".") for part in place.relative_to(self._root).parts
        ):
            raise NotRead(
                Why.LINK,
                "a link to a name that begins with a dot is not followed (--follow-links reads it)",
            )
        if not stat.S_ISREG(about.st_mode):
            raise NotRead(Why.BINARY, "it is not a regular file")
        if self._is_ours(place):
            raise NotRead(Why.BINARY, "it belongs to the index")
        if about.st_size > self.max_bytes:
            raise NotRead(
                Why.TOO_LARGE,
                f"the file has {about.st_size:,} bytes, more than the limit of {self.max_bytes:,}",
            )

    @cached_property
    def _root(self) -> Path:
        return self.folder.resolve()

    def _is_ours(self, path: Path) -> bool:
        """True if a file is the index itself or a file of SQLite beside it, since the index may be
        in the folder that is indexed.
        """
        mine = self.index.path.resolve()
        return path in [Path(f"{mine}{suffix}") for suffix in ("", "-wal", "-shm")]


def _place_of(path: Path, descriptor: int, about: os.stat_result) -> Path:
    """Return the path of an open file, without links."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:  # without /proc, check that the path still leads to the open file
        place = path.resolve()
        if not os.path.samestat(place.lstat(), about):
            raise OSError("the file was moved while it was read") from None
        return place


def _moment(about: os.stat_result) -> tuple[int, ...]:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
