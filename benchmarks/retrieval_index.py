"""Index of 50,000 chunks: build time, size, time of a question, time to add one document, compared
with floors.

    python -m benchmarks.retrieval_index [--chunks N] [--questions N] [--json FILE]

The corpus is on every machine: the READMEs and docstrings of Python's library and of the installed
packages, in the order of their paths, cut at the default size until there are enough chunks. The
same packages give the same corpus. Questions are sentences of the corpus, of which six words in ten
are kept, so that the chunk that should be found is known. A fixed seed draws the questions. The
texts are cut once, and the time for this is reported separately.

There are two floors: the same rows inserted into SQLite and nothing else, and a matrix product
alone, without our index. bm25s is compared too if it is installed
(`pip install --target DIR bm25s`, PYTHONPATH=DIR).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import random
import re
import shutil
import sqlite3
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.embeddings import StaticEmbeddings
from hrm_agent.retrieval.index import Chunking, DocumentIndex
from hrm_agent.retrieval.index.fusion import Mode
from hrm_agent.retrieval.index.reading import Document, DocumentKind

DOCSTRING = re.compile(r'"""(.{200,}?)"""', re.DOTALL)
Corpus = list[tuple[str, Document, Sequence[Chunk]]]
Question = tuple[str, str, int]
"""Text, file and first character of the chunk from which it was taken."""


@dataclass
class Row:
    name: str
    build_s: float | None = None
    megabytes: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_ms: float | None = None
    """Median CPU time over all threads, which stays comparable on a loaded machine."""
    hit_at_5: float | None = None
    """Share of the questions whose chunk is among the first five."""
    add_ms: float | None = None
    """Median time to add a small document and find it."""


def texts() -> Iterator[tuple[str, str]]:
    library, packages = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    for root in (library, packages):
        for path in sorted(root.rglob("*")):
            if root is library and "site-packages" in path.parts:
                continue
            text = ""
            if path.suffix in (".md", ".rst") or path.name == "METADATA":
                text = path.read_text(errors="replace")
            elif path.suffix == ".py":
                text = "\n\n".join(DOCSTRING.findall(path.read_text(errors="replace")))
            if len(text) > 400:
                yield path.relative_to(root).as_posix(), text


def corpus(chunks: int) -> tuple[Corpus, float]:
    found, total, seconds, cut = list[tuple[str, Document, Sequence[Chunk]]](), 0, 0.0, Chunking()
    for name, text in texts():
        document = Document(text, DocumentKind.TEXT)
        clock = time.process_time()
        pieces = cut(document)[: chunks - total]
        seconds += time.process_time() - clock
        found.append((name, document, pieces))
        total += len(pieces)
        if total == chunks:
            break
    return found, seconds


def questions(documents: Corpus, count: int) -> list[Question]:
    rng, drawn = random.Random(7), list[Question]()
    every = [(name, chunk) for name, _, chunks in documents for chunk in chunks]
    while len(drawn) < count:
        name, chunk = rng.choice(every)
        sentences = [
            one
            for one in re.split(r"(?<=[.:])\s+", chunk.text)
            if 8 <= len(re.findall("[a-z]{3,}", one)) < 31
        ]
        words = [
            word
            for word in re.findall("[A-Za-z]+", rng.choice(sentences or [""]))
            if rng.random() < 0.6
        ]
        if len(words) >= 5:
            drawn.append((" ".join(words), name, chunk.start))
    return drawn


def size_of(path: Path) -> float:
    files = [one for one in path.parent.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files) / 1e6


def asked(row: Row, ask: Callable[[str], list[tuple[str, int]]], drawn: list[Question]) -> None:
    """Measure the time of each question, after some questions for warm-up, and the share of
    questions whose chunk was found.
    """
    for question, _, _ in drawn[:20]:
        ask(question)
    times, works, hits = list[float](), list[float](), 0
    for question, name, start in drawn:
        clock, work = time.perf_counter(), time.process_time()
        found = ask(question)
        works.append((time.process_time() - work) * 1000)
        times.append((time.perf_counter() - clock) * 1000)
        hits += (name, start) in found
    row.p50_ms, row.p99_ms = (float(np.percentile(times, share)) for share in (50, 99))
    row.cpu_ms, row.hit_at_5 = statistics.median(works), hits / len(drawn)


def ours(
    documents: Corpus,
    drawn: list[Question],
    place: Path,
    static: StaticEmbeddings | None = None,
) -> list[Row]:
    """Rows of one index: by words, or by vectors and hybrid, with build time and size of words and
    vectors.
    """
    modes: tuple[Mode, ...] = ("vectors", "hybrid") if static else ("words",)
    rows = [Row(f"fts5, {mode}") for mode in modes]
    path = place / modes[0] / "index.db"
    path.parent.mkdir()
    with DocumentIndex(path, create=True, embeddings=static) as index:
        clock = time.process_time()
        for name, document, chunks in documents:
            index.put(name, "", document, chunks)
        index.optimize()
        rows[0].build_s, rows[0].megabytes = time.process_time() - clock, size_of(path)
        for row, mode in zip(rows, modes, strict=True):
            asked(
                row,
                lambda text, mode=mode: [(h.file, h.start) for h in index.search(text, 5, mode)],
                drawn,
            )
            row.add_ms = statistics.median(add_one(index, number, mode) for number in range(15))
        assert index.problems() == []
    return rows


def add_one(index: DocumentIndex, number: int, mode: Mode) -> float:
    document = Document(
        f"A note on zebra{number}x{mode}, striped like none before it.", DocumentKind.TEXT
    )
    chunks = Chunking()(document)
    clock = time.perf_counter()
    index.put(f"added-{mode}-{number}.txt", "", document, chunks)
    hits = index.search(f"zebra{number}x{mode} striped note", 5, mode)
    seconds = time.perf_counter() - clock
    assert any(hit.file == f"added-{mode}-{number}.txt" for hit in hits)
    return seconds * 1000


def bare_inserts(documents: Corpus, place: Path) -> Row:
    path = place / "bare" / "rows.db"
    path.parent.mkdir()
    clock = time.process_time()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE chunks (file TEXT, start INTEGER, stop INTEGER, text TEXT)"
        )
        rows = (
            (name, one.start, one.end, one.text) for name, _, chunks in documents for one in chunks
        )
        connection.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?)", rows)
    return Row("floor: rows inserted", time.process_time() - clock, size_of(path))


def bare_matrix(documents: Corpus, drawn: list[Question], static: StaticEmbeddings) -> Row:
    every = [(name, one.start) for name, _, chunks in documents for one in chunks]
    clock = time.process_time()
    matrix = static.vectors([one.text for _, _, chunks in documents for one in chunks])
    row = Row("floor: vectors and matrix product", time.process_time() - clock, matrix.nbytes / 2e6)

    def ask(question: str) -> list[tuple[str, int]]:
        scores = matrix @ static.vectors([question])[0]
        return [every[place] for place in np.argpartition(-scores, 4)[:5]]

    asked(row, ask, drawn)
    return row


def bm25s_row(documents: Corpus, drawn: list[Question]) -> Row:
    import bm25s

    every = [(name, one.start) for name, _, chunks in documents for one in chunks]
    clock = time.process_time()
    retriever = bm25s.BM25()
    tokens = bm25s.tokenize(
        [one.text for _, _, chunks in documents for one in chunks], show_progress=False
    )
    retriever.index(tokens, show_progress=False)
    row = Row("bm25s (no stems, in memory)", time.process_time() - clock)

    def ask(question: str) -> list[tuple[str, int]]:
        found, _ = retriever.retrieve(
            bm25s.tokenize([question], show_progress=False), k=5, show_progress=False
        )
        return [every[place] for place in found[0]]

    asked(row, ask, drawn)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=50_000)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    documents, cutting = corpus(arguments.chunks)
    drawn, static = questions(documents, arguments.questions), StaticEmbeddings()
    characters = sum(len(document.text) for _, document, _ in documents)
    chunks = sum(len(pieces) for _, _, pieces in documents)
    print(
        f"{len(documents):,} documents, {characters:,} characters, {chunks:,} chunks; cut in"
        f" {cutting:.1f} s"
    )
    place = Path(tempfile.mkdtemp(prefix="retrieval-index-"))
    try:
        rows = [bare_inserts(documents, place)]
        rows += ours(documents, drawn, place)
        rows += ours(documents, drawn, place, static)
        rows.append(bare_matrix(documents, drawn, static))
        if importlib.util.find_spec("bm25s"):
            rows.append(bm25s_row(documents, drawn))
    finally:
        shutil.rmtree(place)
    columns = ("build s", "MB", "p50 ms", "p99 ms", "cpu ms", "hit@5", "add ms")
    print(f"{'':36}" + "".join(f"{column:>9}" for column in columns))
    for row in rows:
        cells = [
            f"{value:9.3g}" if value is not None else f"{'':9}"
            for value in list(asdict(row).values())[1:]
        ]
        print(f"{row.name:36}" + "".join(cells))
    if arguments.json:
        about = {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "cutting_s": cutting,
        }
        sizes = {"documents": len(documents), "characters": characters, "chunks": chunks}
        arguments.json.write_text(
            json.dumps({**about, **sizes, "rows": [asdict(row) for row in rows]}, indent=1)
        )


if __name__ == "__main__":
    main()
