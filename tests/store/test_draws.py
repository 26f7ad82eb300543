"""Draws of nodes in a store: committed with the next write, copied, sealed, deleted, and reported
if damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import RunStore, open_store
from hrm_agent.store.upkeep.copying import copy_store
from hrm_agent.store.upkeep.maintenance import delete_runs, stats, verify
from hrm_agent.trajectory import GraphIdentity, RunStatus, TaskDraws
from tests.support.store.bodies import execute, stored_bytes
from tests.support.store.writer import call, trajectory


def draws(task: str = "a", thread: str = "t", **kinds: Any) -> TaskDraws:
    return TaskDraws(identity=GraphIdentity(thread_id=thread, task_id=task), **kinds)


def write(store: RunStore, *records: TaskDraws) -> None:
    for record in records:
        store.journal.write_draws(
            record.identity.thread_id, record.key, lambda record=record: record
        )


@pytest.fixture
def file(tmp_path: Path) -> Any:
    with open_store(tmp_path / "store.db") as opened:
        opened.journal.write_trajectory(trajectory("t", RunStatus.COMPLETED))
        yield opened


def test_the_newest_record_of_a_task_stands(store: RunStore) -> None:
    other = draws("b", values=("text", 1.5, {"a": [None, 2**70]}))
    write(store, draws(times=(1,)), other, draws(times=(1, 2), seeds=(2**63,)))
    assert sorted(store.journal.draws_of_thread("t"), key=lambda one: one.key) == [
        draws(times=(1, 2), seeds=(2**63,)),
        other,
    ]
    assert store.journal.draws_of_thread("elsewhere") == []


def test_they_are_committed_with_what_is_written_after_them(file: RunStore) -> None:
    """An answer on record thus never lacks the draws that its request was made from."""
    write(file, draws(times=(1,)))
    file.journal.write_call(call("t", 0))
    assert execute(file.url, "SELECT count(*) FROM draws") == [(1,)]


def test_a_sealed_copy_has_them_and_keeps_nothing_readable(file: RunStore, tmp_path: Path) -> None:
    write(file, draws(values=("a secret word",)))
    with open_store(tmp_path / "sealed.db", key=bytes(32)) as sealed:
        assert copy_store(file, sealed)["draws"] == 1
        assert sealed.journal.draws_of_thread("t") == [draws(values=("a secret word",))]
        assert b"secret word" not in stored_bytes(sealed.url)


def test_they_go_with_their_run(file: RunStore) -> None:
    write(file, draws(times=(1,)))
    assert stats(file).rows["draws"] == 1
    delete_runs(file, ["t"])
    assert execute(file.url, "SELECT count(*) FROM draws") == [(0,)]


def test_damage_is_told(file: RunStore) -> None:
    write(file, draws(times=(1,)))
    assert list(verify(file)) == []
    execute(file.url, "UPDATE draws SET record = ?", (b"{",))
    (found,) = verify(file)
    assert "draws of task" in found


def test_a_store_that_was_made_without_them_gets_their_table(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as opened:
        execute(opened.url, "DROP TABLE draws")
    with open_store(tmp_path / "store.db") as opened:
        write(opened, draws(times=(1,)))
        assert opened.journal.draws_of_thread("t") == [draws(times=(1,))]
