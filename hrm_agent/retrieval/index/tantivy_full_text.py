"""Ranking by tantivy, for indexes that are too large for FTS5. Its data are in a folder beside the
index file, `FILE.tantivy`.

SQLite stays the source of truth. A transaction that stores or removes chunks also adds their ids to
a table, `unwritten`. Later they are written to tantivy in one commit, and then deleted from the
table. Each id is written as *remove it, then add it if the index has it*, so writing it twice
changes nothing. If a process dies, the table still has every unwritten id, and the next process
that opens the index writes them.

A mark, a document with a random word, shows that tantivy's folder belongs to this state of the
file. The word is recorded in the file as the next mark before tantivy commits it, and as the last
mark afterwards. A folder with another mark is foreign, e.g. from a backup of only one of the two.
It is filled again from the file, like one that is missing or unreadable.

A process sees its own writes at once. Writes of another process become visible in whole batches.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hrm_agent.errors import ConfigError, RetrievalError, to_install
from hrm_agent.retrieval.index.file import IndexFile, about, set_about
from hrm_agent.retrieval.index.full_text import Ranked, languages_in
from hrm_agent.retrieval.terms import phrases_of, terms_of

__all__ = ["Tantivy", "delete_folder", "folder_of", "forget", "library"]

_LAYOUT = "2"
"""Layout version, the first character of a mark. Raised when the layout of the folder changes."""
_MARK = 0
"""Id of the document with the mark, in the field of a chunk's id."""
_BATCH = 4_000
"""Number of unwritten chunks from which on they are written."""
_HEAP = 64 * 2**20


class Tantivy:
    """Engine in tantivy's folder, consistent with the chunks whenever `commit` returns."""

    name = "tantivy"

    def __init__(self, file: IndexFile) -> None:
        self._file = file
        self._unwritten = 0
        self.folder = folder_of(file.path)
        self._library = library()
        self._index = self._open()
        with file.reading() as cursor:
            agreed = self._is_marked(about(cursor, "tantivy"))
            unwritten = cursor.execute("SELECT EXISTS (SELECT 1 FROM unwritten)").fetchone()[0]
        if unwritten or not agreed:
            self._write()

    def add(self, cursor: sqlite3.Cursor, chunks: Sequence[tuple[int, str]], language: str) -> None:
        del language  # it is on record, and the words are read from there
        cursor.executemany(
            "INSERT OR IGNORE INTO unwritten VALUES (?)", [(chunk,) for chunk, _ in chunks]
        )
        self._unwritten += len(chunks)

    def remove(
        self, cursor: sqlite3.Cursor, chunks: Sequence[tuple[int, str]], language: str
    ) -> None:
        self.add(cursor, chunks, language)

    def commit(self) -> None:
        if self._unwritten:
            self._write()

    def commit_if_large(self) -> None:
        if self._unwritten >= _BATCH:
            self._write()

    def optimize(self, cursor: sqlite3.Cursor) -> None:
        """Do nothing, since tantivy merges by itself while it is written."""

    def best(self, cursor: sqlite3.Cursor, question: str, k: int) -> Ranked:
        query = self._query(question, languages_in(cursor))
        if query is None:
            return []
        try:
            self._index.reload()
            searcher = self._index.searcher()
            found = [
                (searcher.doc(place)["chunk"][0], score)
                for score, place in searcher.search(query, k).hits
            ]
        except (ValueError, OSError) as error:
            raise self._broken(error) from error
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def problems(self, cursor: sqlite3.Cursor) -> list[str]:
        chunks = {row[0] for row in cursor.execute("SELECT id FROM chunks")}
        searcher = self._index.searcher()
        every = searcher.search(self._library.Query.all_query(), max(searcher.num_docs, 1)).hits
        held = [searcher.doc(place)["chunk"][0] for _, place in every]
        written = set(held) - {_MARK}
        counts = {
            "chunks without their words": len(chunks - written),
            "words without their chunks": len(written - chunks),
            "chunks twice": len(held) - len(set(held)),
        }
        return [f"{count} {what}" for what, count in counts.items() if count]

    def _query(self, question: str, languages: Sequence[str]) -> Any:
        """BM25 query for any of the phrases (None if the question has no word)."""
        query, schema = self._library.Query, self._index.schema
        parts = [
            (
                query.phrase_query(schema, "text", list(terms))
                if len(terms) > 1
                else query.term_query(schema, "text", "".join(terms))
            )
            for terms in phrases_of(question, languages)
        ]
        return (
            query.boolean_query([(self._library.Occur.Should, part) for part in parts])
            if parts
            else None
        )

    def _write(self) -> None:
        """Write the unwritten chunks. Fill the folder again if it does not belong to the file."""
        try:
            self._until_written()
        except (ValueError, OSError):  # the library raises ValueError for what the disk says, too
            try:
                self._index = self._open(fresh=True)
                self._until_written()
            except (ValueError, OSError) as error:
                raise self._broken(error) from error
        self._unwritten = 0

    def _until_written(self) -> None:
        while not self._written():
            pass

    def _written(self) -> bool:
        """Write one batch. False if another process wrote meanwhile."""
        mark = _LAYOUT + secrets.token_hex(8)
        with self._file.transaction() as cursor:
            self._index.reload()
            held = next(
                filter(self._is_marked, (about(cursor, "tantivy"), about(cursor, "tantivy next"))),
                None,
            )
            set_about(cursor, "tantivy", held)
            set_about(cursor, "tantivy next", mark)
        with self._file.transaction() as cursor:
            if about(cursor, "tantivy next") != mark:
                return False
            self._commit(mark, _texts(cursor, everything=held is None), fresh=held is None)
            cursor.execute("DELETE FROM unwritten")
            set_about(cursor, "tantivy", mark)
        self._index.reload()
        return True

    def _commit(
        self, mark: str, texts: Iterable[tuple[int, str | None, str]], *, fresh: bool
    ) -> None:
        writer = self._index.writer(_HEAP, 1)
        # files left by a process that died would block the next commit
        writer.garbage_collect_files()
        if fresh:
            writer.delete_all_documents()
        for chunk, text, language in texts:
            if not fresh:
                writer.delete_documents_by_term("chunk", chunk)
            if text is not None:
                writer.add_document(self._document(chunk, text=" ".join(terms_of(text, language))))
        writer.delete_documents_by_term("chunk", _MARK)
        writer.add_document(self._document(_MARK, mark=mark))
        writer.commit()
        writer.wait_merging_threads()

    def _broken(self, error: Exception) -> RetrievalError:
        hint = (
            "If there is space on the disk, delete that folder: it is filled again from the index."
        )
        return RetrievalError(f"tantivy cannot use {self.folder}: {error}.", hint)

    def _document(self, chunk: int, **values: str) -> Any:
        document = self._library.Document()
        document.add_integer("chunk", chunk)
        for name, value in values.items():
            document.add_text(name, value)
        return document

    def _is_marked(self, mark: str | None) -> bool:
        if mark is None:
            return False
        searcher = self._index.searcher()
        query = self._library.Query.term_query(self._index.schema, "mark", mark)
        return bool(searcher.search(query, 1).hits)

    def _open(self, *, fresh: bool = False) -> Any:
        """Open the folder, or replace it by an empty one if it is unusable or `fresh`."""
        try:
            with self._file.reading() as cursor:
                last = about(cursor, "tantivy") or ""
            if (
                not fresh
                and last.startswith(_LAYOUT)
                and self._library.Index.exists(str(self.folder))
            ):
                return self._ready(self._library.Index.open(str(self.folder)))
        except ValueError:  # what tantivy raises for a folder that it cannot read
            pass
        delete_folder(self.folder)
        self.folder.mkdir()
        schema = self._library.SchemaBuilder()
        # Signed: the library silently deletes nothing by a term of an unsigned field.
        schema.add_integer_field("chunk", stored=True, indexed=True)
        schema.add_text_field("text", tokenizer_name="words")
        schema.add_text_field("mark", tokenizer_name="raw", index_option="basic")
        return self._ready(self._library.Index(schema.build(), str(self.folder)))

    def _ready(self, index: Any) -> Any:
        terms = self._library.TextAnalyzerBuilder(self._library.Tokenizer.whitespace()).build()
        index.register_tokenizer("words", terms)
        index.config_reader("manual")
        return index


def _texts(cursor: sqlite3.Cursor, *, everything: bool) -> Iterator[tuple[int, str | None, str]]:
    """Chunks to write with their texts and languages (text None if the chunk was removed)."""
    of = "chunks c" if everything else "unwritten u LEFT JOIN chunks c ON c.id = u.chunk"
    chunk = "c.id" if everything else "u.chunk"
    rows = cursor.execute(
        f"SELECT {chunk}, document, first_byte, bytes FROM {of} ORDER BY document, 1"
    ).fetchall()
    text, language, of_document = b"", "", None
    for number, document, first, count in rows:
        if document is None:
            yield number, None, ""
            continue
        if document != of_document:
            of_document = document
            asked = "SELECT text, language FROM documents WHERE id = ?"
            text, language = cursor.execute(asked, (document,)).fetchone()
        yield number, text[first : first + count].decode(), language or ""


def folder_of(path: Path) -> Path:
    """Path of the tantivy folder of an index file."""
    return Path(f"{path}.tantivy")


def delete_folder(folder: Path) -> None:
    """Delete a folder if it is tantivy's. Raise `RetrievalError` if it is not."""
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / "meta.json").exists()):
        raise RetrievalError(
            f"{folder} is not a tantivy folder.", "Move it away, or name another --store."
        )
    shutil.rmtree(folder)


def forget(cursor: sqlite3.Cursor) -> None:
    """Delete the records of marks and unwritten chunks, so that no folder belongs to the file."""
    cursor.execute("DELETE FROM unwritten")
    for name in ("tantivy", "tantivy next"):
        set_about(cursor, name, None)


def library() -> Any:
    """Import tantivy. Raise `ConfigError` if it is not installed."""
    try:
        import tantivy
    except ImportError as error:
        hint = f"Run `{to_install('tantivy')}`, or index with `--engine fts5`."
        raise ConfigError(
            "This index is ranked by tantivy, which is not installed.", hint
        ) from error
    return tantivy
