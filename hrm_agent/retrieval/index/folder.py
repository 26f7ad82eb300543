"""Folders into an index, again and again: what is new or changed is indexed, what is gone is taken
out.

A file is known by the hash of its bytes, of how it was read and of how it was cut; nothing rests on
times of change. A file that has gone while the same bytes came under another name has been renamed,
and nothing is done but that. Every file has an outcome, and no file ends the work. What was a
document and is now broken, binary or too large is taken out, since its text is no longer that of
the file; what only could not be opened this time is kept.

A link to a file out of the folder, or to one that is left out for its name, is not read, unless
links are to be followed: whoever may write into a folder could make any file of the machine
searchable. Where a file lies is asked of the open descriptor, so that a link put in a file's place,
or in that of a folder above it, between the look at the folder and the reading makes no difference.

An index may hold several folders. The files of the first one go by their paths in it; those of a
further one begin with its label and two slashes (`manuals//setup.md`), which no path inside a
folder has.
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
from hrm_agent.retrieval.tokenizers.load import load_tokenizer
from hrm_agent.retrieval.tokenizers.monitor import RateMonitor

__all__ = ["Chunking", "Done", "FileOutcome", "FolderReport", "index_folder", "remove_folder"]

_SHARE_TO_TIDY = 0.1
"""An index of which so much is new is put in order at the end."""
_READS = 3
"""Times that a file is read which changes meanwhile."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""A pipe that takes the file's place before it is opened is not waited for."""


class Done(StrEnum):
    """What became of a file."""

    ADDED = "added"
    """It was not in the index."""
    UPDATED = "updated"
    """Its bytes, or how it is read or cut, have changed."""
    UNCHANGED = "unchanged"
    """It was in the index as it is."""
    RENAMED = "renamed"
    """Its bytes were there under another name, which is gone."""
    REMOVED = "removed"
    """It is no longer in the folder."""
    SKIPPED = "skipped"
    """It gives no text; the outcome says why."""


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """One file and its outcome."""

    file: str
    """The file's name in the index: its path in the folder,
    behind the label of a further folder.
    """
    done: Done
    """What became of it."""
    why: Why | None = None
    """Of a file that was skipped."""
    reason: str = ""
    """Why it was skipped, for people; of a file that was renamed, its old name."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """How documents are cut: by default Markdown, and HTML whose headings are marked alike, at its
    headings first.
    """

    strategy: str = DEFAULT_STRATEGY
    """Name of a chunking strategy."""
    tokenizer: str = DEFAULT_TOKENIZER
    """What `size` and `overlap` are counted with."""
    size: int = DEFAULT_SIZE
    """Most tokens of a chunk."""
    overlap: float = DEFAULT_OVERLAP
    """Share of `size` that neighbours have in common."""

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
        """Raises an `HrmError` for a setting that does not exist, before any file is touched."""
        self(Document("x", DocumentKind.TEXT))


@dataclass
class FolderReport:
    """What a run did."""

    outcomes: list[FileOutcome] = field(default_factory=list[FileOutcome])
    """One for each file, those that are gone included."""
    warnings: list[str] = field(default_factory=list[str])
    """What a person should look at, though everything was indexed: a tokenizer that does not suit,
    for one.
    """

    def add(self, other: FolderReport) -> None:
        """Take over what was done to another folder."""
        self.outcomes += other.outcomes
        self.warnings += [warning for warning in other.warnings if warning not in self.warnings]

    @property
    def counts(self) -> dict[str, int]:
        """Files by what became of them."""
        counted = Counter(str(outcome.done) for outcome in self.outcomes)
        return {str(done): counted[str(done)] for done in Done}

    @property
    def failed(self) -> list[FileOutcome]:
        """Files that should have given a text: all that were skipped, but the empty ones and those
        of other formats.
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
    """Bring an index to the state of a folder. `files` is what `files_in` found there, with the
    same `follow_links`.

    `hidden_text`: HTML with the text that a browser would not show. `follow_links`: files out of
    the folder are read where links in it lead to them.
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
    report.warnings = [*run.monitor.warnings(), *_lost(index)]
    fresh = report.counts[Done.ADDED] + report.counts[Done.UPDATED]
    index.optimize() if fresh > _SHARE_TO_TIDY * len(report.outcomes) else index.commit()
    return report


def _lost(index: DocumentIndex) -> list[str]:
    lost = [path for path in index.folders().values() if not Path(path).is_dir()]
    hint = f"`hrm-agent index --remove DIR --store {index.path}` takes its documents out"
    return [f"The folder {path} of this index does not exist any more: {hint}." for path in lost]


def remove_folder(index: DocumentIndex, folder: Path) -> FolderReport:
    """Take the documents of a folder out of an index; the folder need not exist any more."""
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
    """The folder that is indexed."""
    prefix: str
    """What the names of its files begin with in the index; empty for the first folder."""
    chunking: Chunking
    """How documents are cut."""
    max_bytes: int
    """A larger file is skipped."""
    hidden_text: bool
    """HTML is read with the text that a browser would not show."""
    follow_links: bool
    """Links may lead out of the folder."""
    known: dict[str, str]
    """File -> source, as it was at the beginning."""
    gone: dict[str, str]
    """Source -> file, of those that are no longer in the folder."""
    renamed: set[str] = field(default_factory=set[str])
    """Files of `gone` that have another name now."""

    @cached_property
    def monitor(self) -> RateMonitor:
        return RateMonitor(load_tokenizer(self.chunking.tokenizer))

    def update_file(self, path: str) -> FileOutcome:
        """Bring one file up to date, and say what was done."""
        file = self.prefix + path
        # a name of other bytes than UTF-8, or one that would break lines
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
            kept = "; what was indexed of it before is kept" if file in self.known else ""
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
                file, Done.SKIPPED, Why.LINK, "that folder was looked into by another path"
            )
        if place.is_symlink():
            reason = (
                "a link to a folder is not followed: index that folder beside this one, or give"
                " --follow-links"
            )
            return FileOutcome(file, Done.SKIPPED, Why.LINK, reason)
        kept = any(known.startswith(file) for known in self.known)
        reason = (
            "the folder may not be"
            f" listed{'; what was indexed of it before is kept' if kept else ''}"
        )
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
        self.monitor.see(file, document.text)
        self.index.put(file, source, document, self.chunking(document))
        return FileOutcome(file, Done.UPDATED if file in self.known else Done.ADDED)

    def _bytes(self, path: Path) -> bytes:
        """All of a file, as it was at one moment."""
        if path.is_symlink() and not path.exists():
            raise NotRead(Why.LINK, "a link that leads nowhere")
        for _ in range(_READS):
            # asked before it is opened: to open some devices is to act
            if not stat.S_ISREG(path.stat().st_mode):
                raise NotRead(Why.BINARY, "it is not a regular file")
            with os.fdopen(os.open(path, _FLAGS), "rb") as file:
                about = os.fstat(file.fileno())
                self._refuse(path, file.fileno(), about)
                data = file.read(self.max_bytes + 1)
                after = os.fstat(file.fileno())
            if len(data) == about.st_size and _moment(after) == _moment(about):
                return data
        raise OSError(f"it changed while it was read, {_READS} times")

    def _refuse(self, path: Path, descriptor: int, about: os.stat_result) -> None:
        """Raises `NotRead` for an open file that does not belong to the folder."""
        place = _place_of(path, descriptor, about)
        if not (self.follow_links or place.is_relative_to(self._root)):
            raise NotRead(
                Why.LINK, "a link out of the folder is not followed; --follow-links reads it"
            )
        if not self.follow_links and any(
            part.startswith(".") for part in place.relative_to(self._root).parts
        ):
            raise NotRead(
                Why.LINK,
                "a link to what begins with a dot is not followed; --follow-links reads it",
            )
        if not stat.S_ISREG(about.st_mode):
            raise NotRead(Why.BINARY, "it is not a regular file")
        if self._is_ours(place):
            raise NotRead(Why.BINARY, "it belongs to the index")
        if about.st_size > self.max_bytes:
            raise NotRead(
                Why.TOO_LARGE, f"{about.st_size:,} bytes; files up to {self.max_bytes:,} are read"
            )

    @cached_property
    def _root(self) -> Path:
        return self.folder.resolve()

    def _is_ours(self, path: Path) -> bool:
        """The index may lie in the folder that it indexes, with what SQLite and tantivy have beside
        it.
        """
        mine = self.index.path.resolve()
        folder = Path(f"{mine}.tantivy")
        return path in [
            Path(f"{mine}{suffix}") for suffix in ("", "-wal", "-shm")
        ] or path.is_relative_to(folder)


def _place_of(path: Path, descriptor: int, about: os.stat_result) -> Path:
    """Where an open file lies, with no link in its path."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:  # no /proc: then the path has to lead to the same file still
        place = path.resolve()
        if not os.path.samestat(place.lstat(), about):
            raise OSError("it was moved while it was read") from None
        return place


def _moment(about: os.stat_result) -> tuple[int, ...]:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
