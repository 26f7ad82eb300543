"""What the nodes of a recorded program draw: given back by a replay where it was asked to be recorded."""

from __future__ import annotations

from pathlib import Path

from hrm_agent import record
from hrm_agent.runtime.replay.player import replay
from hrm_agent.store import open_store
from tests.support.graphs.drawing_agent import graph


def test_draws_of_a_program_are_given_back(tmp_path: Path) -> None:
    with record(tmp_path / "x.db", draws=True):
        first, second = graph.invoke({"input": "a"}), graph.invoke({"input": "b"})
    assert first["output"] != second["output"]
    with open_store(tmp_path / "x.db") as store:
        assert [replay(store, header.id).equal for header in store.journal.headers()] == [True, True]
