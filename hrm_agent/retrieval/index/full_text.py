"""Ranking of chunks by the words of a question, by SQLite's FTS5.

FTS5 reads the positions and the length of every chunk that has one of the question's words. A long
question matches half of all chunks, which takes a tenth of a second at 50,000 chunks. Most of this
time is spent on frequent words, which hardly change the ranking. So only the rarest words of a
question are used: as many as need no more than 20,000 chunks to be read, but at least three. This
bounds the time for any size of the index. Small indexes are ranked in full. In a test with 50,000
chunks and 300 questions, each an altered sentence of a chunk, that chunk was among the first five
hits for 88.0 % of the questions instead of 88.3 %, in a third of the time.

The table is contentless: it has no copy of the texts, so removing a chunk needs its text again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from hrm_agent.retrieval.terms import Phrase, phrases_of, terms_of

__all__ = ["Fts5", "Ranked"]

Ranked = list[tuple[int, float]]
"""Chunks and their scores, best first."""

_MOST_READ = 20_000
"""Maximum number of chunks that FTS5 reads for one question. A chunk counts once for each word of
the question that it has.
"""
_FEWEST_WORDS = 3


class Fts5:
    """Words of the chunks, in a table of the index file."""

    def __init__(self) -> None:
        self._counts = dict[str, int]()
        self._counted_at = 0

    def add(self, cursor: sqlite3.Cursor, chunks: Sequence[tuple[int, str]], language: str) -> None:
        """Add chunks of a document in this language, in the transaction that stores them."""
        for chunk, text in chunks:
            terms = " ".join(terms_of(text, language))
            cursor.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (chunk, terms))

    def remove(
        self, cursor: sqlite3.Cursor, chunks: Sequence[tuple[int, str]], language: str
    ) -> None:
        """Remove chunks. Texts and language have to be those with which they were added."""
        for chunk, text in chunks:
            terms = " ".join(terms_of(text, language))
            cursor.execute(
                "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (chunk, terms)
            )

    def clear(self, cursor: sqlite3.Cursor) -> None:
        """Delete all words."""
        cursor.execute("INSERT INTO words (words) VALUES ('delete-all')")

    def optimize(self, cursor: sqlite3.Cursor) -> None:
        """Merge the segments that many transactions left, for faster queries."""
        cursor.execute("INSERT INTO words (words) VALUES ('optimize')")

    def best(self, cursor: sqlite3.Cursor, question: str, k: int) -> Ranked:
        """Return the `k` best chunks by BM25. The words of the question are stemmed in each
        language of the documents.
        """
        languages = cursor.execute(
            "SELECT DISTINCT language FROM documents WHERE language IS NOT NULL ORDER BY language"
        ).fetchall()
        phrases = self._telling(cursor, phrases_of(question, [row[0] for row in languages]))
        if not phrases:
            return []
        query = " OR ".join(f'"{" ".join(phrase)}"' for phrase in phrases)
        best = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
        return cursor.execute(best, (query, k)).fetchall()

    def problems(self, cursor: sqlite3.Cursor) -> list[str]:
        """Differences between the words and the chunks."""
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
        """Phrases of a question, but only the rarest if all together would match too many chunks."""
        newest = cursor.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()[0]
        if newest * len(phrases) <= _MOST_READ:
            return phrases
        counts = self._held(cursor, phrases, newest)
        kept = list[Phrase]()
        read = 0
        for phrase in sorted(phrases, key=counts.__getitem__):
            read += counts[phrase]
            if read > _MOST_READ and sum(counts[one] > 0 for one in kept) >= _FEWEST_WORDS:
                break
            kept.append(phrase)
        return kept

    def _held(
        self, cursor: sqlite3.Cursor, phrases: list[Phrase], newest: int
    ) -> dict[Phrase, int]:
        """Approximate number of chunks with each phrase. Counts are cached until the index has
        grown by a tenth.
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
