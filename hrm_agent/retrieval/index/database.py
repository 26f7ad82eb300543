"""The index in one SQLite file: documents with their texts, chunks as spans of them, and an FTS5 table of their words.

A text is stored once. The FTS5 table keeps no copy (it is contentless): what is taken out of it is cut from the stored
text again. A document with its chunks and words is one transaction in WAL, so that the index is whole whenever the
process dies; a power failure can take the newest documents, which the next run indexes again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hrm_agent.errors import RetrievalError
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.index.reading import Document, Kind
from hrm_agent.retrieval.index.terms import query_of, searchable

__all__ = ["DocumentIndex", "Hit", "Stored"]

_APPLICATION = 0x68726D69
_VERSION = 1
_BUSY_SECONDS = 60.0
_TABLES = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # `source` is the hash of what the document was made from: the same source is not indexed twice.
    """CREATE TABLE documents (id INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
    revision TEXT NOT NULL, kind TEXT NOT NULL, text BLOB NOT NULL)""",
    # Characters for people and citations, bytes for reading a span without the rest of the text.
    """CREATE TABLE chunks (id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents(id),
    start INTEGER NOT NULL, stop INTEGER NOT NULL, first_byte INTEGER NOT NULL, bytes INTEGER NOT NULL,
    tokens INTEGER NOT NULL)""",
    "CREATE INDEX chunks_of ON chunks (document)",
    "CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='porter unicode61 remove_diacritics 2')",
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a question found."""

    file: str
    """Path inside the indexed folder, with forward slashes."""
    start: int
    """First character in the document's text."""
    end: int
    """One past the last character."""
    text: str
    """`document[start:end]`, to the character."""
    score: float
    """BM25, larger is better; comparable within one answer only."""
    revision: str
    """Hash of the document's text: the span holds in this text."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as it is in the index."""

    text: str
    revision: str
    kind: Kind


class DocumentIndex:
    """The documents of one folder, found by their words. Threads may share it; processes open it each by themselves."""

    def __init__(self, path: Path | str, *, create: bool = False) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        if not create and not self.path.is_file():
            raise RetrievalError(f"There is no index at {path}.", f"`hrm-agent index DIR --store {path}` makes one.")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._look(create)
            self._connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @property
    def folder(self) -> str:
        """The folder that was indexed, absolute; empty in an index that is new."""
        with self._transaction("BEGIN") as cursor:
            row = cursor.execute("SELECT value FROM about WHERE name = 'folder'").fetchone()
        return row[0] if row else ""

    @folder.setter
    def folder(self, folder: str) -> None:
        with self._transaction() as cursor:
            cursor.execute("INSERT OR REPLACE INTO about VALUES ('folder', ?)", (folder,))

    def sources(self) -> dict[str, str]:
        """File -> hash of what it was indexed from."""
        with self._transaction("BEGIN") as cursor:
            return dict(cursor.execute("SELECT file, source FROM documents").fetchall())

    def size(self) -> tuple[int, int]:
        """Documents and chunks."""
        with self._transaction("BEGIN") as cursor:
            counts = "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM chunks)"
            documents, chunks = cursor.execute(counts).fetchone()
        return documents, chunks

    def put(self, file: str, source: str, document: Document, chunks: Sequence[Chunk]) -> None:
        """Index a document in the place of what the file was before. All of it is there, or nothing."""
        text = document.text
        with self._transaction() as cursor:
            _remove(cursor, file)
            row = (file, source, document.revision, str(document.kind), text.encode())
            cursor.execute("INSERT INTO documents (file, source, revision, kind, text) VALUES (?, ?, ?, ?, ?)", row)
            number = cursor.lastrowid
            offsets = _byte_offsets(text, chunks)
            for chunk in chunks:
                first = offsets[chunk.start]
                place = (number, chunk.start, chunk.end, first, offsets[chunk.end] - first, chunk.tokens)
                cursor.execute(
                    "INSERT INTO chunks (document, start, stop, first_byte, bytes, tokens) VALUES (?, ?, ?, ?, ?, ?)",
                    place,
                )
                words = searchable(text[chunk.start : chunk.end])
                cursor.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (cursor.lastrowid, words))

    def remove(self, file: str) -> None:
        with self._transaction() as cursor:
            _remove(cursor, file)

    def tidy(self) -> None:
        """Merge the pieces that many transactions left. Queries are faster after it; nothing else changes."""
        with self._transaction() as cursor:
            cursor.execute("INSERT INTO words (words) VALUES ('optimize')")

    def search(self, question: str, k: int = 5) -> list[Hit]:
        """The `k` best chunks for a question in plain words, best first; fewer where fewer have a word of it."""
        query = query_of(question)
        if not query or k < 1:
            return []
        with self._transaction("BEGIN") as cursor:
            best = "SELECT rowid, rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
            return [self._hit(cursor, *row) for row in cursor.execute(best, (query, k)).fetchall()]

    def _hit(self, cursor: sqlite3.Cursor, chunk: int, rank: float) -> Hit:
        file, revision, document, start, end, first, count = cursor.execute(
            "SELECT file, revision, d.id, start, stop, first_byte, bytes FROM chunks c JOIN documents d"
            " ON d.id = c.document WHERE c.id = ?",
            (chunk,),
        ).fetchone()
        with self._connection.blobopen("documents", "text", document, readonly=True) as blob:
            blob.seek(first)
            return Hit(file, start, end, blob.read(count).decode(), -rank, revision)

    def document(self, file: str) -> Stored | None:
        """The text of a file as it was indexed; None if it is not in the index."""
        with self._transaction("BEGIN") as cursor:
            row = cursor.execute("SELECT text, revision, kind FROM documents WHERE file = ?", (file,)).fetchone()
        return Stored(row[0].decode(), row[1], Kind(row[2])) if row else None

    def problems(self) -> list[str]:
        """What is broken in the index; empty if it is whole."""
        with self._transaction("BEGIN") as cursor:
            found = [row[0] for row in cursor.execute("PRAGMA integrity_check") if row[0] != "ok"]
            lost = "SELECT count(*) FROM (SELECT id FROM chunks EXCEPT SELECT id FROM words_docsize)"
            left = "SELECT count(*) FROM (SELECT id FROM words_docsize EXCEPT SELECT id FROM chunks)"
            for query, what in ((lost, "chunks without their words"), (left, "words without their chunks")):
                count = cursor.execute(query).fetchone()[0]
                found += [f"{count} {what}"] if count else []
        return found

    def _look(self, create: bool) -> None:
        """Refuse a file of another program, or of another version, before anything that may write to it is done."""
        with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and create:
            return
        if application != _APPLICATION:
            raise RetrievalError(f"{self.path} is no index of documents.", "Name another file with --store.")
        if version != _VERSION:
            raise RetrievalError(
                f"The index {self.path} has version {version}; this program knows version {_VERSION}.",
                "Name another file with --store, and index the folder into it.",
            )

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        with self._transaction() as cursor:
            if cursor.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION:
                return
            for statement in _TABLES:
                cursor.execute(statement)
            cursor.execute(f"PRAGMA application_id={_APPLICATION}")
            cursor.execute(f"PRAGMA user_version={_VERSION}")

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Generator[sqlite3.Cursor]:
        with self._lock:
            try:
                with closing(self._connection.cursor()) as cursor:
                    cursor.execute(begin)
                    yield cursor
                    cursor.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise self._error(error) from error
                raise

    def _error(self, error: Exception) -> RetrievalError:
        if "is full" in str(error):
            hint = "What was indexed is intact: free some space and index again."
            return RetrievalError(f"The disk that holds {self.path} is full.", hint)
        if "not a database" in str(error):
            return RetrievalError(f"{self.path} is no index of documents.", "Name another file with --store.")
        return RetrievalError(
            f"The index {self.path} cannot be used: {error}.", "See that its folder exists and is writable."
        )


def _remove(cursor: sqlite3.Cursor, file: str) -> None:
    row = cursor.execute("SELECT id, text FROM documents WHERE file = ?", (file,)).fetchone()
    if row is None:
        return
    spans = cursor.execute("SELECT id, first_byte, bytes FROM chunks WHERE document = ?", (row[0],)).fetchall()
    for chunk, first, count in spans:
        words = searchable(row[1][first : first + count].decode())
        cursor.execute("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (chunk, words))
    cursor.execute("DELETE FROM chunks WHERE document = ?", (row[0],))
    cursor.execute("DELETE FROM documents WHERE id = ?", (row[0],))


def _byte_offsets(text: str, chunks: Sequence[Chunk]) -> dict[int, int]:
    """Character -> byte, for the ends of the chunks, in one pass over the text."""
    offsets, at, size = dict[int, int](), 0, 0
    for place in sorted({place for chunk in chunks for place in (chunk.start, chunk.end)}):
        size += len(text[at:place].encode())
        offsets[place] = size
        at = place
    return offsets
