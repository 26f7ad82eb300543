"""Threads with checkpoints alone: listed a page at a time,
and looked at checkpoint by checkpoint.
"""

from __future__ import annotations

import sqlite3
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from playwright.sync_api import expect

from hrm_agent.errors import ConfigError
from hrm_agent.store import open_store
from hrm_agent.viewer.export import export
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections import ENDPOINTS
from hrm_agent.viewer.projections.bare_threads import bare_threads
from tests.support.browser import Browsing
from tests.support.trajectory.samples import make_trajectory


def record(where: str, names: list[str]) -> None:
    """Run a user's program with the store's checkpointer, and write a trajectory beside it."""
    with open_store(where) as store:
        builder = StateGraph(MessagesState)
        builder.add_node(
            "answer", lambda state: {"messages": [AIMessage(f"{len(state['messages'])} said")]}
        )
        graph: Any = builder.add_edge(START, "answer").compile(checkpointer=store.checkpointer)
        for name in names:
            graph.invoke(
                {"messages": [HumanMessage(f"hello of {name}")]},
                {"configurable": {"thread_id": name}},
            )
        store.journal.write_trajectory(make_trajectory())


@pytest.mark.parametrize("body", ["sqlite", "postgresql"])
def test_they_are_listed_newest_first_page_by_page(
    body: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"{tmp_path}/store.db" if body == "sqlite" else request.getfixturevalue("fresh_database")
    names = ["a thread", "b", "ü/1", "d"]
    record(url, names)
    place = Place("p", url, None)
    found, after = list[str](), ""
    for _ in range(2):
        page = bare_threads(place, after, limit=2)
        assert page["total"] == 4 and [row["moments"] for row in page["threads"]] == [3, 3]
        found += [row["thread"] for row in page["threads"]]
        after = page["next"]
    assert found == names[::-1]
    assert (
        bare_threads(place, after, limit=2)["threads"] == []
        and bare_threads(place, after, limit=2)["next"] is None
    )
    with pytest.raises(ConfigError, match="not the end of a page"):
        bare_threads(place, "x")
    assert ENDPOINTS["runs"].function([place])["bare_threads"] == [{"place": "p", "threads": 4}]
    place.close()


def test_forged_times_hide_nothing_and_a_copy_says_that_they_are_left_out(tmp_path: Path) -> None:
    record(str(tmp_path / "store.db"), ["a", "b", "c"])
    with sqlite3.connect(tmp_path / "store.db") as forged:
        forged.execute(
            "UPDATE threads SET updated_at = 'never', created_at = x'00ff' WHERE id = 'b'"
        )
        forged.execute("UPDATE threads SET updated_at = 9e999 WHERE id = 'c'")
    place = Place("p", str(tmp_path / "store.db"), None)
    found, after = list[str](), ""
    for _ in range(3):
        page = bare_threads(place, after, limit=1)
        found, after = [*found, page["threads"][0]["thread"]], page["next"]
    assert found == ["c", "a", "b"]
    assert export([place], StringIO())["threads without a trajectory"] == 3
    place.close()


def test_ids_of_other_types_are_read_to_the_end(tmp_path: Path) -> None:
    """Tables without column types sort a number below every text, including the text that the
    number is reported as.
    """
    record(str(tmp_path / "store.db"), ["a"])
    with sqlite3.connect(tmp_path / "store.db") as forged:
        for table in ("threads", "checkpoints"):
            forged.execute(f"CREATE TABLE forged AS SELECT * FROM {table}")
            forged.execute(f"DROP TABLE {table}")
            columns = ", ".join(row[1] for row in forged.execute("PRAGMA table_info(forged)"))
            forged.execute(f"CREATE TABLE {table} ({columns})")
            forged.execute(f"INSERT INTO {table} SELECT * FROM forged")
            forged.execute("DROP TABLE forged")
        for id_, at in ((5, 1.0), (16, 1.0), ("7", 1.0), (b"x", 1.0), ("z", None), ("y", None)):
            forged.execute("INSERT INTO threads (id, updated_at) VALUES (?, ?)", (id_, at))
            forged.execute("INSERT INTO checkpoints (thread_id, ns) VALUES (?, '')", (id_,))
    place = Place("p", str(tmp_path / "store.db"), None)
    found, after = list[str](), ""
    while after is not None and len(found) < 20:
        page = bare_threads(place, after, limit=1)
        found, after = [*found, *(row["thread"] for row in page["threads"])], page["next"]
    assert found == ["a", "x", "7", "5", "16", "z", "y"]
    place.close()


@pytest.mark.whole
def test_one_is_found_from_the_first_page_and_read_checkpoint_by_checkpoint(
    tmp_path: Path, browsing: Browsing
) -> None:
    record(str(tmp_path / "store.db"), ["first", "\u202esecond <b>"])
    site = browsing.serve(tmp_path / "store.db")
    page = site.open("runs")
    page.get_by_role("link", name="2 threads without a trajectory").click()
    expect(
        page.get_by_role("table", name="Threads without a trajectory").get_by_role("link")
    ).to_have_count(2)
    browsing.check(page, "threads")
    page.get_by_role("link", name="first").click()
    expect(page.get_by_text("1 said")).to_be_visible()
    page.get_by_role("button", name="Checkpoint before").click()
    expect(page.get_by_role("heading", name="As of checkpoint 2")).to_be_visible()
    expect(page.get_by_text("hello of first")).to_be_visible()
    expect(page.get_by_text("1 said")).to_have_count(0)
    page.get_by_role("tab", name="State").click()
    browsing.check(page, "thread")
    page.reload()
    expect(page.get_by_role("heading", name="As of checkpoint 2")).to_be_visible()
    page.get_by_role("link", name="Threads without a trajectory").click()
    page.get_by_role("link", name="second").click()
    expect(page.get_by_text("1 said")).to_be_visible()
