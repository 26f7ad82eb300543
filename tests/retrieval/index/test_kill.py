"""kill -9 during indexing, with vectors: no data is lost or duplicated.

A forked process indexes and is killed: at chosen moments (within a document's transaction, before
its vectors) and, in the slow set, at random ones.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from hrm_agent.retrieval.index import Chunking, DocumentIndex, files_in, index_folder
from hrm_agent.retrieval.index.folder import FolderReport
from hrm_agent.retrieval.index.full_text import Fts5
from hrm_agent.retrieval.index.vectors import VectorTable
from tests.support.retrieval.documents import write_texts

pytestmark = pytest.mark.whole

FILES = 12
Contents = list[tuple[object, ...]]


class Hashed(Embeddings):
    """Embeddings from hashes of the text, without training."""

    def embed_query(self, text: str) -> list[float]:
        digest = hashlib.sha256(text.encode()).digest()
        return (np.frombuffer(digest, dtype=np.uint8) - 127.5).tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


def opened(path: Path) -> DocumentIndex:
    return DocumentIndex(path, create=True, embeddings=Hashed())


def update(index: DocumentIndex, folder: Path) -> FolderReport:
    return index_folder(index, folder, files_in(folder), chunking=Chunking(size=64))


def contents(path: Path) -> Contents:
    """Full content of an index, without its IDs."""
    with sqlite3.connect(path) as connection:
        return connection.execute(
            "SELECT file, source, revision, text, start, stop, first_byte, bytes, tokens, v.data"
            " FROM documents d LEFT JOIN chunks c ON c.document = d.id LEFT JOIN vectors v ON"
            " v.first = c.id ORDER BY file, start, stop"
        ).fetchall()


def check(index: DocumentIndex) -> None:
    """Check that words and vectors hold exactly the chunks."""
    assert index.problems() == []
    chunks = index.size()[1]
    for mode in ("words", "vectors"):
        hits = index.search("Sentence of the text or story", 10_000, mode)
        assert len(hits) == len({(hit.file, hit.start) for hit in hits}) == chunks
        for hit in hits[::25]:
            stored = index.document(hit.file)
            assert stored and stored.text[hit.start : hit.end] == hit.text


def in_a_process(action: Callable[[], None]) -> bool:
    """Run an action in a forked process. Return True if the process was killed by SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def steps_of(action: Callable[[], None]) -> int:
    """Number of profile events (calls and returns, in Python and C) of an action, counted in a
    separate process.
    """
    reading, writing = os.pipe()

    def counted() -> None:
        steps = 0

        def step(*_: object) -> None:
            nonlocal steps
            steps += 1

        sys.setprofile(step)
        action()
        sys.setprofile(None)
        os.write(writing, str(steps).encode())

    assert not in_a_process(counted)
    os.close(writing)
    with os.fdopen(reading) as told:
        return int(told.read())


def dies_at(action: Callable[[], None], step: int) -> bool:
    """Run an action in a separate process that kills itself at a profile event. Return True if it
    did.
    """

    def mortal() -> None:
        left = step

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        action()

    return in_a_process(mortal)


def index_and_die(
    folder: Path, path: Path, of: type, name: str, left: int, *, before: bool
) -> None:
    """Die where a method is called for the `left`-th time."""
    method = getattr(of, name)

    def dying(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments, **named)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(of, name, dying)
    with opened(path) as index:
        update(index, folder)


@pytest.fixture
def changed(tmp_path: Path) -> tuple[Path, Contents]:
    """Folder, and the content of an index of it that was made without interruption."""
    folder = tmp_path / "docs"
    write_texts(folder, FILES)
    with opened(tmp_path / "whole.db") as index:
        update(index, folder)
    return folder, contents(tmp_path / "whole.db")


def older(folder: Path, path: Path) -> None:
    """Index of the folder's earlier state: some files had another text, and one has since been
    removed.
    """
    old = folder.parent / "old"
    shutil.copytree(folder, old)
    for file in files_in(old)[::2]:
        (old / file).write_text((old / file).read_text().replace("text", "story"))
    (old / "gone.txt").write_text("A Sentence that has gone since.")
    folder.rename(folder.parent / "new")
    old.rename(folder)
    with opened(path) as index:
        update(index, folder)
    shutil.rmtree(folder)
    (folder.parent / "new").rename(folder)


def test_killed_at_chosen_moments(changed: tuple[Path, Contents], tmp_path: Path) -> None:
    """One death after another, while an index of an older state is brought up to date."""
    folder, expected = changed
    path = tmp_path / "index.db"
    older(folder, path)
    moments: list[tuple[type, str, int, bool]] = [
        (Fts5, "add", 1, False),
        (VectorTable, "add", 2, True),
    ]
    moments += [(DocumentIndex, "put", 1, False), (DocumentIndex, "remove", 1, True)]
    updated = 0
    for of, name, left, before in moments:
        assert in_a_process(lambda: index_and_die(folder, path, of, name, left, before=before)), (
            name
        )
        with opened(path) as index:
            check(index)
            assert index.size()[0] == FILES + 1
        now = len(set(contents(path)) & set(expected))
        assert now >= updated
        updated = now
    with opened(path) as index:
        assert update(index, folder).counts["removed"] == 1
        assert contents(path) == expected
        check(index)


@pytest.mark.slow
def test_killed_at_moments_that_nobody_chose(
    changed: tuple[Path, Contents], tmp_path: Path
) -> None:
    """The kill may come anywhere: in the middle of a transaction, between two, or within the
    libraries' Python code.
    """
    folder, expected = changed
    path, rng = tmp_path / "index.db", random.Random(6)
    older(folder, path)

    def work_on(path: Path) -> Callable[[], None]:
        def work() -> None:
            with opened(path) as index:
                update(index, folder)

        return work

    for _ in range(25):
        for part in tmp_path.glob("index.db*"):
            whole = tmp_path / part.name.replace("index", "tried")
            (
                shutil.copytree(part, whole, dirs_exist_ok=True)
                if part.is_dir()
                else shutil.copy(part, whole)
            )
        steps = steps_of(work_on(tmp_path / "tried.db"))
        for part in tmp_path.glob("tried.db*"):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        assert dies_at(work_on(path), rng.randint(1, steps * 9 // 10)), (
            "no count is the same twice, but nearly so"
        )
        with opened(path) as index:
            check(index)
            for file in rng.sample(files_in(folder), 6 if contents(path) == expected else 0):
                index.remove(file)
    with opened(path) as index:
        update(index, folder)
        assert contents(path) == expected
        check(index)
