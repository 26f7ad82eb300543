"""Commits: the thread that makes them, the work they include, and PostgreSQL answers that are not
waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from hrm_agent.errors import RunError, StoreError
from hrm_agent.store import open_store
from hrm_agent.store.database.committer import Committer
from hrm_agent.store.database.postgres_cursors import PostgresCursor
from tests.support.postgres import PostgresServer

MINUTE = 60


class Commits:
    """Commit function that records which thread committed which jobs together. It waits until
    `open` is set.
    """

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Semaphore(0)
        self.made: list[tuple[str, list[Any]]] = []

    def __call__(self, works: Sequence[Any]) -> list[Any]:
        self.entered.release()
        assert self.open.wait(MINUTE)
        results = [work(None) for work in works]
        self.made.append((threading.current_thread().name, results))
        return results


def job(number: int) -> Any:
    return lambda _: number


def test_who_waits_commits_itself_while_nobody_else_does() -> None:
    commits = Commits()
    committer = Committer(commits)
    with ThreadPoolExecutor(1, thread_name_prefix="waiting") as pool:
        waiting = pool.submit(committer.submit, job(1), waits=True)
        assert commits.entered.acquire(timeout=MINUTE)
        # while that one is at it
        later = [committer.submit(job(number), waits=number == 2) for number in (2, 3)]
        commits.open.set()
        assert waiting.result(MINUTE).result(0) == 1
        assert [each.result(MINUTE) for each in later] == [2, 3]
    (who, what), (other, rest) = commits.made
    assert (who.startswith("waiting"), what) == (True, [1])
    assert (other, rest) == ("store-commits", [2, 3])
    committer.close()


def test_the_main_thread_is_never_in_the_middle_of_a_commit() -> None:
    """An interrupt would be raised there."""
    commits = Commits()
    commits.open.set()
    committer = Committer(commits)
    assert committer.submit(job(1), waits=True).result(MINUTE) == 1
    assert commits.made == [("store-commits", [1])]
    committer.close()
    with pytest.raises(StoreError, match="closed"):
        committer.submit(job(2), waits=True)


def test_closing_waits_for_whoever_commits_and_commits_what_was_handed_in() -> None:
    commits = Commits()
    committer = Committer(commits)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(committer.submit, job(1), waits=True)
        assert commits.entered.acquire(timeout=MINUTE)
        later = committer.submit(job(2))
        closing = pool.submit(committer.close)
        commits.open.set()
        closing.result(MINUTE)
        assert waiting.result(0).result(0) == 1 and later.result(0) == 2


def test_a_failure_in_the_thread_that_waits_is_its_own() -> None:
    def fail(_: Any) -> None:
        raise ZeroDivisionError

    committer = Committer(lambda works: [work(None) for work in works])
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError):
            pool.submit(committer.submit, fail, waits=True).result(MINUTE).result(0)
        assert pool.submit(committer.submit, job(3), waits=True).result(MINUTE).result(0) == 3
    committer.close()


# --- answers that are assumed
# -----------------------------------------------------------------------------------------


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    made = postgres.create_database()
    yield made
    postgres.drop_database(made)


def put(store: Any, number: int, parent: str | None, thread: str = "t") -> str:
    id_ = f"1f1{number:05}-0000-6000-8000-000000000000"
    named = {
        "thread_id": thread,
        "checkpoint_ns": "",
        **({"checkpoint_id": parent} if parent else {}),
    }
    given = {**empty_checkpoint(), "id": id_}
    store.checkpointer.put(
        {"configurable": named}, given, {"source": "loop", "step": number, "parents": {}}, {}
    )
    return id_


def test_a_step_waits_for_nothing_but_its_commit(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    execute, fetchone = PostgresCursor.execute, PostgresCursor.fetchone

    def noted(self: PostgresCursor, query: str, values: Sequence[Any] = (), /) -> PostgresCursor:
        asked.append(query)
        return execute(self, query, values)

    def refused(self: PostgresCursor) -> Any:
        raise AssertionError(f"the server was waited for: {asked[-1]}")

    with open_store(database) as store:
        parent = put(store, 1, put(store, 0, None))
        monkeypatch.setattr(PostgresCursor, "execute", noted)
        monkeypatch.setattr(PostgresCursor, "fetchone", refused)
        for number in range(2, 6):
            config: Any = {
                "configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": parent}
            }
            store.checkpointer.put_writes(config, [("n", number)], f"task-{number}")
            parent = put(store, number, parent)
        monkeypatch.setattr(PostgresCursor, "fetchone", fetchone)
        found = list(store.checkpointer.list({"configurable": {"thread_id": "t"}}))
    assert [len(each.pending_writes or ()) for each in found] == [0, 1, 1, 1, 1, 0]
    assert any("INSERT INTO checkpoints" in query for query in asked)


def test_another_answer_than_expected_does_the_work_again_with_it(database: str) -> None:
    """Another process has collected garbage, inserted the same row, or appended a checkpoint to the
    thread.
    """
    with open_store(database) as store, psycopg.connect(database, autocommit=True) as other:
        first = put(store, 0, None)
        second = put(store, 1, first)
        other.execute("UPDATE meta SET value = 'another' WHERE key = 'epoch'")
        third = put(store, 2, second)
        assert store.database.epoch == "another"
        config: Any = {
            "configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": third}
        }
        for value in (1, 2):
            store.checkpointer.put_writes(config, [("n", value)], "task")
            store.database.flush()
        with open_store(database) as second_store:
            put(second_store, 3, third)
        with pytest.raises(RunError, match="continued by another run"):
            put(store, 4, third)
        found = list(store.checkpointer.list({"configurable": {"thread_id": "t"}}))
    assert [each.config["configurable"]["checkpoint_id"][3:8] for each in found] == [
        "00003",
        "00002",
        "00001",
        "00000",
    ]
    assert found[1].pending_writes == [("task", "n", 1)], "the first of a task stands"
