"""Document index: texts, chunks as spans of them, and the rankings that answer a question.

A text is stored once, and hits are cut from it. A document, its chunks, and their words and vectors
are written in one transaction of the file (`hrm_agent.retrieval.index.file`), so the index is
consistent whenever the process dies. The words are ranked by SQLite's FTS5. The file records the
name of the embeddings, the language in which each document's words are stemmed, and the version of
the analysis that made the terms. If the rules of the analysis or the version of the stemmers have
changed, the terms are made again from the stored texts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hrm_agent.errors import ConfigError, RetrievalError, nearest
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.index import folder_labels
from hrm_agent.retrieval.index.file import IndexFile, about, set_about
from hrm_agent.retrieval.index.full_text import Fts5, Ranked
from hrm_agent.retrieval.index.fusion import MODES, Hit, Mode, Placed, fused
from hrm_agent.retrieval.index.reading import Document, DocumentKind
from hrm_agent.retrieval.index.vectors import VectorTable
from hrm_agent.retrieval.languages import AUTO, NO_LANGUAGE, check_language, guess_language
from hrm_agent.retrieval.terms import analysis_version

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

__all__ = ["DocumentIndex", "Hit", "Stored"]

_DEPTH = 100
"""Number of chunks of each ranking that are fused."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Snapshot of an indexed document."""

    text: str
    """Whole text, in whose characters spans count."""
    revision: str
    """Hash of the text. Spans hold for this text only."""
    kind: DocumentKind
    """Format as which the file was read."""
    language: str
    """Code of the language in which the words are stemmed (empty if they are not stemmed)."""


class DocumentIndex:
    """Documents, searchable by words and by vectors. Threads may share an index object. Each
    process has to open the index itself.

    `language` and `embeddings` are settings of a new index, or change an existing index (None: the
    recorded setting). `language` is that of all documents; `auto` guesses it for each document.
    `embeddings` are LangChain's, or a string that names some (`hrm_agent.retrieval.embeddings`). A
    caller that searches by vectors has to pass them each time the index is opened, except for
    static embeddings.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        create: bool = False,
        language: str | None = None,
        embeddings: Embeddings | str | None = None,
    ) -> None:
        language = None if language is None else check_language(language)
        vectors = None if embeddings is None else VectorTable.of(embeddings)
        self._file = IndexFile(path, create=create)
        self.path = self._file.path
        self._words = Fts5()
        self.renewed = 0
        """Number of documents whose words were indexed again on opening, since the recorded
        analysis or language differed.
        """
        try:
            self._vectors = vectors
            self.language = self._analyse(language)
            if vectors:
                with self._file.transaction() as cursor:
                    vectors.claim(cursor)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def embeddings(self) -> str | None:
        """Name of the embeddings that made the vectors (None without vectors)."""
        with self._file.reading() as cursor:
            return about(cursor, "embeddings")

    def folders(self) -> dict[str, str]:
        """Folders as label -> absolute path. The label of the first folder is empty. File names in
        other folders begin with `LABEL//`.
        """
        with self._file.reading() as cursor:
            return folder_labels.folders(cursor)

    def label_of(self, folder: Path) -> str:
        """Label of a folder (an absolute path). A new folder is recorded."""
        with self._file.transaction() as cursor:
            return folder_labels.label_of(cursor, folder)

    def remove_folder(self, label: str) -> None:
        """Delete a folder's record. The folder's documents have to be removed first."""
        with self._file.transaction() as cursor:
            cursor.execute("DELETE FROM folders WHERE label = ?", (label,))

    def sources(self) -> dict[str, str]:
        """Files with the hashes of their sources."""
        with self._file.reading() as cursor:
            return dict(cursor.execute("SELECT file, source FROM documents").fetchall())

    def size(self) -> tuple[int, int]:
        """Numbers of documents and of chunks."""
        with self._file.reading() as cursor:
            counts = "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM chunks)"
            documents, chunks = cursor.execute(counts).fetchone()
        return documents, chunks

    def put(self, file: str, source: str, document: Document, chunks: Sequence[Chunk]) -> None:
        """Index a document, replacing the previous version of the file, in one transaction."""
        text = document.text
        texts = [text[chunk.start : chunk.end] for chunk in chunks]
        vectors = self._writing_vectors()
        rows = vectors.of_texts(texts) if vectors else None
        offsets = _byte_offsets(text, chunks)
        language = self._language_of(text)
        insert = (
            "INSERT INTO documents (file, source, revision, kind, text, language) VALUES (?, ?, ?,"
            " ?, ?, ?)"
        )
        with self._file.transaction() as cursor:
            self._remove(cursor, file)
            cursor.execute(
                insert,
                (file, source, document.revision, str(document.kind), text.encode(), language),
            )
            ids = _insert(cursor, cursor.lastrowid, chunks, offsets)
            self._words.add(cursor, list(zip(ids, texts, strict=True)), language)
            if vectors and rows is not None:
                vectors.add(cursor, ids[0] if ids else 0, rows)

    def rename(self, old: str, new: str) -> None:
        """Rename a document. Nothing else changes."""
        with self._file.transaction() as cursor:
            self._remove(cursor, new)
            cursor.execute("UPDATE documents SET file = ? WHERE file = ?", (new, old))

    def remove(self, file: str) -> None:
        with self._file.transaction() as cursor:
            self._remove(cursor, file)

    def without_vectors(self) -> list[str]:
        """Files whose chunks have no vectors, since they were indexed before the index had
        embeddings.
        """
        with self._file.reading() as cursor:
            rows = cursor.execute(
                "SELECT file FROM documents d JOIN (SELECT document, min(id) first FROM chunks"
                " GROUP BY document) c ON c.document = d.id WHERE first NOT IN (SELECT first FROM"
                " vectors) ORDER BY file"
            ).fetchall()
        return [row[0] for row in rows]

    def add_vectors(self, file: str) -> None:
        """Add the vectors of a document that is already indexed."""
        with self._file.reading() as cursor:
            ids, texts = _chunks_of(cursor, file)
        vectors = self._writing_vectors()
        if not (vectors and ids):
            return
        rows = vectors.of_texts(texts)
        with self._file.transaction() as cursor:
            # if the ids differ, the document was indexed again meanwhile, with its vectors
            if _chunks_of(cursor, file)[0] == ids:
                cursor.execute("DELETE FROM vectors WHERE first = ?", (ids[0],))
                vectors.add(cursor, ids[0], rows, late=True)

    def drop_vectors(self) -> None:
        """Delete all vectors. Afterwards, the index can be searched by words only."""
        with self._file.transaction() as cursor:
            VectorTable.clear(cursor)
        self._vectors = None

    def optimize(self) -> None:
        """Merge the segments that many transactions left, for faster queries. Nothing else
        changes.
        """
        with self._file.transaction() as cursor:
            self._words.optimize(cursor)

    def search(self, question: str, k: int = 5, mode: Mode = "words") -> list[Hit]:
        """Return the `k` best chunks for a question in plain words, best first. Fewer are returned
        if fewer match.
        """
        if mode not in MODES:
            raise ConfigError(
                f"There is no mode {mode!r}.", f"{nearest(mode, MODES)} Known: {MODES}.".strip()
            )
        if k < 1 or not question.strip():
            return []
        vectors = self._reading_vectors() if mode != "words" else None
        wanted = k if mode != "hybrid" else max(k, _DEPTH)
        with self._file.reading() as cursor:
            self._same_terms(cursor)
            while True:
                words = self._words.best(cursor, question, wanted) if mode != "vectors" else None
                alike = vectors.best(cursor, question, wanted) if vectors else None
                placed = fused(words, _living(cursor, alike))[:k]
                if len(placed) == k or max(len(words or ()), len(alike or ())) < wanted:
                    return [self._hit(cursor, one) for one in placed]
                wanted *= 4  # some chunks that were found have been removed meanwhile

    def document(self, file: str) -> Stored | None:
        """Return the text of a file as it was indexed (None if it is not in the index)."""
        with self._file.reading() as cursor:
            asked = "SELECT text, revision, kind, language FROM documents WHERE file = ?"
            row = cursor.execute(asked, (file,)).fetchone()
        return Stored(row[0].decode(), row[1], DocumentKind(row[2]), row[3]) if row else None

    def problems(self) -> list[str]:
        """Errors found in the index (empty if it is consistent)."""
        with self._file.reading() as cursor:
            found = [row[0] for row in cursor.execute("PRAGMA integrity_check") if row[0] != "ok"]
            found += self._words.problems(cursor)
            found += VectorTable.problems(cursor)
        if self.embeddings and (bare := self.without_vectors()):
            found.append(f"{len(bare)} documents without vectors")
        return found

    def _analyse(self, wanted: str | None) -> str:
        """Return the recorded language (if `wanted` is None), or record the wanted language. Words
        are indexed again if the language or the analysis has changed, or if an engine other than
        FTS5 indexed them.
        """
        version = analysis_version()
        with self._file.reading() as cursor:
            found = about(cursor, "analysis")
            recorded = about(cursor, "language")
            elsewhere = about(cursor, "engine") not in (None, "fts5")
        language = AUTO if recorded is None else recorded
        wanted = language if wanted is None else wanted
        if (found, recorded) == (version, wanted) and not elsewhere:
            return wanted
        with self._file.transaction() as cursor:
            self.language = wanted
            known = (
                {}
                if language != wanted
                else dict(cursor.execute("SELECT file, language FROM documents").fetchall())
            )
            for (file,) in cursor.execute("SELECT file FROM documents").fetchall():
                if known.get(file) is None:
                    text = (
                        cursor.execute("SELECT text FROM documents WHERE file = ?", (file,))
                        .fetchone()[0]
                        .decode()
                    )
                    cursor.execute(
                        "UPDATE documents SET language = ? WHERE file = ?",
                        (self._language_of(text), file),
                    )
                self.renewed += 1
            set_about(cursor, "analysis", version)
            set_about(cursor, "language", wanted)
            set_about(cursor, "engine", None)
            self._words.clear(cursor)
            every = cursor.execute("SELECT file, language FROM documents").fetchall()
            for file, of_file in every:
                self._words.add(cursor, list(zip(*_chunks_of(cursor, file), strict=True)), of_file)
        return wanted

    def _language_of(self, text: str) -> str:
        return guess_language(text) if self.language == AUTO else self.language

    def _same_terms(self, cursor: sqlite3.Cursor) -> None:
        """Raise `RetrievalError` if another process has changed the terms."""
        now = about(cursor, "analysis"), about(cursor, "language")
        if now != (analysis_version(), self.language):
            raise RetrievalError(
                f"Another process has changed the language of {self.path}.",
                "Open the index again.",
            )

    def _writing_vectors(self) -> VectorTable | None:
        """Vectors for writing (None if the index has no embeddings)."""
        return self._reading_vectors() if self.embeddings else None

    def _reading_vectors(self) -> VectorTable:
        name = self.embeddings
        if name is None:
            hint = "Run `hrm-agent index DIR --vectors static` to add them, or search by `words`."
            raise RetrievalError(f"The index {self.path} has no vectors.", hint)
        if self._vectors is None:
            # The file is not trusted, so the name in it must not decide what is imported.
            if not name.startswith("static:"):
                hint = (
                    "Name them: `--vectors package.module:attribute`, or DocumentIndex(path,"
                    " embeddings=...)."
                )
                raise RetrievalError(f"The vectors of {self.path} were made with {name!r}.", hint)
            self._vectors = VectorTable.of(name)
        return self._vectors

    def _remove(self, cursor: sqlite3.Cursor, file: str) -> None:
        self._same_terms(cursor)
        ids, texts = _chunks_of(cursor, file)
        if ids:
            query = "SELECT coalesce(language, ?) FROM documents WHERE file = ?"
            (language,) = cursor.execute(query, (NO_LANGUAGE, file)).fetchone()
            self._words.remove(cursor, list(zip(ids, texts, strict=True)), language)
            cursor.execute("DELETE FROM vectors WHERE first = ?", (ids[0],))
        cursor.execute(
            "DELETE FROM chunks WHERE document = (SELECT id FROM documents WHERE file = ?)", (file,)
        )
        cursor.execute("DELETE FROM documents WHERE file = ?", (file,))

    def _hit(self, cursor: sqlite3.Cursor, placed: Placed) -> Hit:
        file, revision, kind, language, document, start, end, first, count = cursor.execute(
            "SELECT file, revision, kind, language, d.id, start, stop, first_byte, bytes FROM"
            " chunks c JOIN documents d ON d.id = c.document WHERE c.id = ?",
            (placed.chunk,),
        ).fetchone()
        is_paged = kind == DocumentKind.PDF
        with self._file.connection.blobopen("documents", "text", document, readonly=True) as blob:
            before = blob.read(first) if is_paged else b""
            blob.seek(first)
            text = blob.read(count).decode()
        blank = text[: len(text) - len(text.lstrip())]
        page = 1 + before.count(b"\f") + blank.count("\f") if is_paged else None
        ranks = placed.words_rank, placed.vectors_rank
        return Hit(
            file, start, end, text, placed.score, revision, *ranks, page=page, language=language
        )


def _living(cursor: sqlite3.Cursor, ranked: Ranked | None) -> Ranked | None:
    """Ranking without chunks that have been removed from the index."""
    if not ranked:
        return ranked
    alive = "SELECT EXISTS (SELECT 1 FROM chunks WHERE id = ?)"
    return [one for one in ranked if cursor.execute(alive, (one[0],)).fetchone()[0]]


def _insert(
    cursor: sqlite3.Cursor, document: int | None, chunks: Sequence[Chunk], offsets: dict[int, int]
) -> list[int]:
    """Insert chunks and return their ids, which are consecutive."""
    ids = list[int]()
    insert = (
        "INSERT INTO chunks (document, start, stop, first_byte, bytes, tokens) VALUES (?, ?, ?, ?,"
        " ?, ?)"
    )
    for chunk in chunks:
        first = offsets[chunk.start]
        cursor.execute(
            insert,
            (document, chunk.start, chunk.end, first, offsets[chunk.end] - first, chunk.tokens),
        )
        ids.append(cursor.lastrowid or 0)
    return ids


def _chunks_of(cursor: sqlite3.Cursor, file: str) -> tuple[list[int], list[str]]:
    """Ids and texts of a file's chunks, in order."""
    row = cursor.execute("SELECT id, text FROM documents WHERE file = ?", (file,)).fetchone()
    if row is None:
        return [], []
    spans = cursor.execute(
        "SELECT id, first_byte, bytes FROM chunks WHERE document = ? ORDER BY id", (row[0],)
    )
    found = [
        (chunk, row[1][first : first + count].decode()) for chunk, first, count in spans.fetchall()
    ]
    return [chunk for chunk, _ in found], [text for _, text in found]


def _byte_offsets(text: str, chunks: Sequence[Chunk]) -> dict[int, int]:
    """Byte offsets of the chunks' ends by character offset, in one pass over the text."""
    offsets = dict[int, int]()
    at = 0
    size = 0
    for place in sorted({place for chunk in chunks for place in (chunk.start, chunk.end)}):
        size += len(text[at:place].encode())
        offsets[place] = size
        at = place
    return offsets
