"""Vectors of the chunks, and exact search in one matrix.

The rows of a document are one blob of float16, written in the same transaction as its chunks. For a
search, all rows are held in memory as float32 (50,000 rows of 256 numbers are 51 MB) and multiplied
with the question's vector. An approximate index (a graph) is not needed, since a search takes some
milliseconds at this size. Rows added since the last question are appended. If a chunk was removed,
its row stays in the matrix, and hits on this row are dropped.

Vectors of different embeddings cannot be compared. So the name of the embeddings and the length of
their vectors are recorded.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hrm_agent.errors import RetrievalError
from hrm_agent.retrieval.index.file import about, set_about
from hrm_agent.retrieval.index.full_text import Ranked

if TYPE_CHECKING:  # LangChain takes half a second to import, and most searches are by words
    from langchain_core.embeddings import Embeddings

__all__ = ["VectorTable"]

Rows = NDArray[np.float32]
"""Vectors of unit length, one row per chunk."""
_MOST_BLOCKS = 32
"""Maximum number of blocks. Beyond it, all rows are read again into one block, without those of
removed chunks.
"""


@dataclass
class VectorTable:
    """Vectors of one index."""

    embeddings: Embeddings
    """Embeddings that turn a text into a vector."""
    name: str
    """Recorded name of the embeddings."""
    _ids: list[NDArray[np.int64]] = field(default_factory=list[NDArray[np.int64]], init=False)
    """Chunk ids, by block."""
    _blocks: list[Rows] = field(default_factory=list[Rows], init=False)
    """Vectors by block, one row per chunk."""
    _seen: tuple[str | None, int] = field(default=("", 0), init=False)
    """Epoch of the matrix, and the largest `first` id of a document in it."""

    @classmethod
    def of(cls, embeddings: Embeddings | str) -> VectorTable:
        from hrm_agent.retrieval.embeddings import load_embeddings, name_of

        loaded = load_embeddings(embeddings) if isinstance(embeddings, str) else embeddings
        return cls(loaded, name_of(loaded))

    def claim(self, cursor: sqlite3.Cursor) -> None:
        """Record the embeddings. Raises `RetrievalError` if the index has vectors of other
        embeddings.
        """
        recorded = about(cursor, "embeddings")
        if recorded is None:
            set_about(cursor, "embeddings", self.name)
        elif recorded != self.name:
            raise RetrievalError(
                f"The vectors of this index were made with {recorded!r}, not with {self.name!r}.",
                "Use the same embeddings; `hrm-agent index DIR --vectors none` removes the vectors,"
                " for new ones.",
            )

    @staticmethod
    def clear(cursor: sqlite3.Cursor) -> None:
        """Delete all vectors and the record of their embeddings."""
        cursor.execute("DELETE FROM vectors")
        for name in ("embeddings", "dimension"):
            set_about(cursor, name, None)
        set_about(cursor, "epoch", secrets.token_hex(8))

    def of_texts(self, texts: Sequence[str]) -> Rows:
        """Vectors of the texts, one row each. Call it outside of a transaction, since it may take
        long.
        """
        from hrm_agent.retrieval.embeddings import vectors_of

        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        return vectors_of(self.embeddings, texts)

    def add(self, cursor: sqlite3.Cursor, first: int, rows: Rows, *, late: bool = False) -> None:
        """Store the rows of the chunks from id `first` on. `late`: True if the chunks were indexed
        before, without vectors.
        """
        # the vectors were removed meanwhile
        if not len(rows) or about(cursor, "embeddings") != self.name:
            return
        self._check(cursor, rows.shape[1])
        cursor.execute(
            "INSERT INTO vectors (first, data) VALUES (?, ?)",
            (first, rows.astype(np.float16).tobytes()),
        )
        if late:
            set_about(cursor, "epoch", secrets.token_hex(8))

    def best(self, cursor: sqlite3.Cursor, question: str, k: int) -> Ranked:
        """Return the `k` most similar chunks by cosine. Removed chunks may be among them."""
        self._refresh(cursor)
        if not self._ids:
            return []
        from hrm_agent.retrieval.embeddings import unit

        try:  # embeddings may treat a question differently from a text
            row = np.asarray([self.embeddings.embed_query(question)], dtype=np.float32)
        except Exception as error:  # the embeddings, or the service behind them, may raise anything
            hint = "Fix the embeddings, or search by words."
            raise RetrievalError(
                f"{self.name} failed: {type(error).__name__}: {error}.", hint
            ) from error
        asked = unit(row)[0]
        self._check(cursor, len(asked))
        if not asked.any():
            return []
        scores = np.concatenate([block @ asked for block in self._blocks])
        ids = np.concatenate(self._ids)
        first = np.argpartition(-scores, k - 1)[:k] if k < len(scores) else np.arange(len(scores))
        first = first[np.lexsort((ids[first], -scores[first]))]
        return list(zip(ids[first].tolist(), scores[first].tolist(), strict=True))

    @staticmethod
    def problems(cursor: sqlite3.Cursor) -> list[str]:
        left = cursor.execute(
            "SELECT count(*) FROM vectors WHERE first NOT IN (SELECT id FROM chunks)"
        ).fetchone()[0]
        return [f"vectors of {left} documents that are gone"] if left else []

    def _check(self, cursor: sqlite3.Cursor, length: int) -> None:
        recorded = about(cursor, "dimension")
        if recorded is None:
            set_about(cursor, "dimension", str(length))
        elif int(recorded) != length:
            raise RetrievalError(
                f"{self.name!r} gives vectors of {length} numbers, but the vectors of the index"
                f" have {recorded}.",
                "Use the embeddings that the index was made with.",
            )

    def _refresh(self, cursor: sqlite3.Cursor) -> None:
        epoch = about(cursor, "epoch")
        if epoch != self._seen[0] or len(self._blocks) > _MOST_BLOCKS:
            self._ids = []
            self._blocks = []
            self._seen = (epoch, 0)
        after = "SELECT first, data FROM vectors WHERE first > ? ORDER BY first"
        new = cursor.execute(after, (self._seen[1],)).fetchall()
        if not new:
            return
        length = int(about(cursor, "dimension") or 0)
        rows = [np.frombuffer(data, dtype=np.float16).reshape(-1, length) for _, data in new]
        self._blocks.append(np.concatenate(rows).astype(np.float32))
        places = [
            np.arange(first, first + len(row)) for (first, _), row in zip(new, rows, strict=True)
        ]
        self._ids.append(np.concatenate(places))
        self._seen = (epoch, new[-1][0])
