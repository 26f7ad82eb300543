"""Chunks ranked by the words of a question: what an engine does, and SQLite's FTS5, the one that is
always there.

FTS5 reads, for every chunk that has one of the words, its places and its length: a long question
meets half of all chunks, and a tenth of a second is gone at 50,000 of them. Most of that is spent
on words that decide nothing. So the words of a question are taken from the rarest on until the
chunks to be read are 20,000, three words at least: the time has a bound whatever the size of the
index, and small indexes are ranked in full. At 50,000 chunks, asked with 300 half-forgotten
sentences out of them, 88.0 % were among the first five instead of 88.3 %, in a third of the time.

The table is contentless: it keeps no copy of the texts, and what is taken out of it is handed in
once more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Protocol

from hrm_agent.retrieval.terms import Phrase, phrases_of, terms_of

__all__ = ["Fts5", "Ranked", "Words", "languages_in"]

Ranked = list[tuple[int, float]]
"""Chunks and their scores, best first."""

_MOST_READ = 20_000
"""Chunks that one question may make FTS5 read, a chunk counted once for each of its words."""
_FEWEST_WORDS = 3


class Words(Protocol):
    """An engine. What it knows of a chunk can be made again from the index, so it may be lost."""

    name: str
    """What the engine is on record as: `fts5` or `tantivy`."""

    def add(self, cursor: sqlite3.Cursor, chunks: Sequence[tuple[int, str]], language: str) -> None:
        """Take in chunks of a document in this language, in the transaction in which they are
        stored.
        """
        ...

    def remove(
        self, cursor: sqlite3.Cursor, chunks: Sequence[tuple[int, str]], language: str
    ) -> None:
        """Take out chunks with the texts and the language that they were taken in with."""
        ...

    def commit(self) -> None:
        """Bring in what transactions of this process have left; outside of any."""
        ...

    def commit_if_large(self) -> None:
        """The same where it has become much: after each of many documents."""
        ...

    def optimize(self, cursor: sqlite3.Cursor) -> None:
        """Merge the pieces that many transactions left. Queries are faster after it; nothing else
        changes.
        """
        ...

    def best(self, cursor: sqlite3.Cursor, question: str, k: int) -> Ranked:
        """The `k` best chunks by BM25. Chunks that have been removed may be among them."""
        ...

    def problems(self, cursor: sqlite3.Cursor) -> list[str]:
        """Where it and the chunks disagree."""
        ...


class Fts5:
    """A table of the index file: always of one mind with the chunks."""

    name = "fts5"

    def __init__(self) -> None:
        self._counts = dict[str, int]()
        self._counted_at = 0

    def add(self, cursor: sqlite3.Cursor, chunks: Sequence[tuple[int, str]], language: str) -> None:
        for chunk, text in chunks:
            terms = " ".join(terms_of(text, language))
            cursor.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (chunk, terms))

    def remove(
        self, cursor: sqlite3.Cursor, chunks: Sequence[tuple[int, str]], language: str
    ) -> None:
        for chunk, text in chunks:
            terms = " ".join(terms_of(text, language))
            cursor.execute(
                "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (chunk, terms)
            )

    def clear(self, cursor: sqlite3.Cursor) -> None:
        """Forget everything."""
        cursor.execute("INSERT INTO words (words) VALUES ('delete-all')")

    def commit(self) -> None:
        """Nothing is ever left."""

    def commit_if_large(self) -> None:
        """Nothing is ever left."""

    def optimize(self, cursor: sqlite3.Cursor) -> None:
        cursor.execute("INSERT INTO words (words) VALUES ('optimize')")

    def best(self, cursor: sqlite3.Cursor, question: str, k: int) -> Ranked:
        phrases = self._telling(cursor, phrases_of(question, languages_in(cursor)))
        if not phrases:
            return []
        query = " OR ".join(f'"{" ".join(phrase)}"' for phrase in phrases)
        best = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
        return cursor.execute(best, (query, k)).fetchall()

    def problems(self, cursor: sqlite3.Cursor) -> list[str]:
        lost = "SELECT count(*) FROM (SELECT id FROM chunks EXCEPT SELECT id FROM words_docsize)"
        left = "SELECT count(*) FROM (SELECT id FROM words_docsize EXCEPT SELECT id FROM chunks)"
        found = list[str]()
        for query, what in (
            (lost, "chunks without their words"),
            (left, "words without their chunks"),
        ):
            count = cursor.execute(query).fetchone()[0]
            found += [f"{count} {what}"] if count else []
        return found

    def _telling(self, cursor: sqlite3.Cursor, phrases: list[Phrase]) -> list[Phrase]:
        """The phrases that are asked for, where all of them would be too many."""
        newest = cursor.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()[0]
        if newest * len(phrases) <= _MOST_READ:
            return phrases
        counts = self._held(cursor, phrases, newest)
        kept, read = list[Phrase](), 0
        for phrase in sorted(phrases, key=counts.__getitem__):
            read += counts[phrase]
            if read > _MOST_READ and sum(counts[one] > 0 for one in kept) >= _FEWEST_WORDS:
                break
            kept.append(phrase)
        return kept

    def _held(
        self, cursor: sqlite3.Cursor, phrases: list[Phrase], newest: int
    ) -> dict[Phrase, int]:
        """In how many chunks each phrase is, about: counts are kept until the index has grown by a
        tenth.
        """
        if newest > 1.1 * self._counted_at:
            self._counts.clear()
            self._counted_at = newest
        missing = {term for phrase in phrases for term in phrase if term not in self._counts}
        if missing:
            cursor.execute(
                "CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab(main, words,"
                " row)"
            )
        for term in missing:
            row = cursor.execute(
                "SELECT doc FROM temp.vocabulary WHERE term = ?", (term,)
            ).fetchone()
            self._counts[term] = row[0] if row else 0
        return {phrase: min(self._counts[term] for term in phrase) for phrase in phrases}


def languages_in(cursor: sqlite3.Cursor) -> list[str]:
    """Those of the documents: a question is asked in each of them."""
    rows = cursor.execute(
        "SELECT DISTINCT language FROM documents WHERE language IS NOT NULL ORDER BY language"
    )
    return [row[0] for row in rows]
