"""`hrm-agent store`: every action, as text and as JSON, and the messages for mistakes."""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.cli.records.store import ACTIONS
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, StopReason
from tests.cli.conftest import Command
from tests.support.store.bodies import execute
from tests.support.trajectory.samples import make_trajectory

KEY, OTHER_KEY = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))


def talk(saver: Any, thread: str) -> None:
    graph = StateGraph(MessagesState).add_node(
        "n", lambda _: {"messages": [AIMessage("answer " * 20)]}
    )
    config: Any = {"configurable": {"thread_id": thread}}
    compiled = graph.add_edge(START, "n").compile(checkpointer=saver)
    for _ in range(2):
        compiled.invoke({"messages": [HumanMessage(f"{thread} " * 20)]}, config)


@pytest.fixture
def kept(store: str) -> str:
    """The sample's store with a failed run besides, and checkpoints on three threads."""
    with open_store(store) as opened:
        failed: dict[str, Any] = {
            "status": RunStatus.FAILED,
            "stop_reason": StopReason.ERROR,
            "error": "e",
            "answer": None,
        }
        opened.journal.write_trajectory(
            make_trajectory(
                id="trajectory-2", thread_id="thread-2", calls=(), tool_calls=(), **failed
            )
        )
        for thread in ("thread-1", "thread-2", "bare"):
            talk(opened.checkpointer, thread)
    return store


def listed(hrm: Command, store: str) -> set[str]:
    return {row["thread"] for row in hrm("history", "--store", store, "--json").json}


def test_stats(kept: str, hrm: Command) -> None:
    found = hrm("store", "stats", kept, "--json").json
    assert (
        found["rows"]["trajectories"] == 2
        and found["rows"]["model calls"] == 3
        and found["threads"] == 3
    )
    assert found["by_status"] == {"completed": 1, "failed": 1}
    assert found["size"] >= sum(found["bytes"].values()) > 0
    shown = hrm("store", "stats", kept)
    assert shown.code == 0 and "model calls" in shown.out
    assert "3 threads (1 completed, 1 failed)" in shown.out


def test_verify(kept: str, hrm: Command) -> None:
    done = hrm("store", "verify", kept)
    told = hrm("store", "verify", kept, "--json").json
    read = told.pop("values")
    assert told == {"sound": True, "findings": []} and read["read"] > 0 and read["refused"] == 0
    assert done.code == 0 and done.out.startswith("sound: hashes, references and invariants hold")
    assert f"({read['read']} values read, 0 could not be read)" in done.out
    gone = hrm("store", "verify", kept, "--allow", "gone.module:Type")
    assert gone.code == 2 and "'gone.module:Type' does not import" in gone.err
    execute(f"sqlite:///{kept}", "DELETE FROM tokens")
    done = hrm("store", "verify", kept)
    assert (
        done.code == 1 and "has neither tokens nor a request" in done.out and "findings" in done.out
    )
    found = hrm("store", "verify", kept, "--json")
    assert found.code == 1 and not found.json["sound"] and len(found.json["findings"]) >= 3


TABLES = (
    "blobs",
    "calls",
    "trajectories",
    "checkpoints",
    "threads",
    "writes",
    "tool_calls",
    "meta",
    "overlays",
)


@pytest.mark.parametrize("table", TABLES)
def test_a_page_that_is_damaged_is_a_finding_and_no_failure(
    table: str, kept: str, hrm: Command
) -> None:
    """Any table may be unreadable. A copy reports which of the two files is damaged."""
    spoil(kept, table)
    done = hrm("store", "verify", kept, "--json")
    assert (done.code, done.json["sound"]) == (1, False), done.err
    assert any("malformed" in finding for finding in done.json["findings"]), done.out
    done = hrm("store", "copy", kept, "new.db")
    assert (
        done.code == 2
        and "sample.db" in done.err
        and "malformed" in done.err
        and "new.db" not in done.err
    )


def spoil(file: str, table: str) -> None:
    """Overwrite the first page of a table."""
    with closing(sqlite3.connect(file)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with Path(file).open("r+b") as opened:
        opened.seek((root - 1) * size)
        opened.write(b"\xfe" * size)


def test_prune(kept: str, hrm: Command) -> None:
    would = hrm("store", "prune", kept, "--status", "failed", "--dry-run")
    assert would.code == 0 and "1 runs would be deleted" in would.out
    assert hrm("store", "stats", kept, "--json").json["rows"]["trajectories"] == 2
    done = hrm("store", "prune", kept, "--status", "failed", "--older-than", "1h", "--json").json
    assert done["thread_ids"] == ["thread-2"] and done["freed"] > 0 and done["kept"] == {}
    assert "1 runs deleted" in hrm("store", "prune", kept, "--older-than", "0s").out
    assert hrm("store", "stats", kept, "--json").json["by_status"] == {}
    assert hrm("store", "verify", kept).code == 0


def test_prune_keeps_what_was_judged(kept: str, hrm: Command) -> None:
    execute(
        f"sqlite:///{kept}",
        "INSERT INTO overlays (run_id, step, trajectory_id, record) VALUES ('r', 0,"
        " 'trajectory-1', ?)",
        (b"{}",),
    )
    done = hrm("store", "prune", kept, "--older-than", "1m")
    assert "1 runs deleted" in done.out and "1 kept: judged by a training run" in done.out
    assert hrm("store", "prune", kept, "--older-than", "1m", "--trained", "--json").json[
        "thread_ids"
    ] == ["thread-1"]


def test_delete(kept: str, hrm: Command) -> None:
    done = hrm("store", "delete", "trajectory-2", "bare", "--store", kept)
    assert done.code == 0 and "2 deleted" in done.out and "hrm-agent store vacuum" in done.out
    assert hrm("store", "delete", "thread-1", "--store", kept, "--json").json["deleted"] == [
        "thread-1"
    ]
    assert set(hrm("store", "stats", kept, "--json").json["rows"].values()) == {0}


def test_vacuum(kept: str, hrm: Command) -> None:
    hrm("store", "delete", "thread-1", "thread-2", "bare", "--store", kept)
    sizes = hrm("store", "vacuum", kept, "--json").json
    assert sizes["after"] <= sizes["before"]
    assert " before, " in hrm("store", "vacuum", kept).out


def test_copy_under_a_key_and_back(
    kept: str, hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    counts = hrm("store", "copy", kept, "sealed.db", "--key-file", "key", "--json").json
    assert (counts["trajectories"], counts["calls"], counts["threads"]) == (2, 3, 3)
    done = hrm("store", "stats", "sealed.db")
    assert done.code == 2 and "is encrypted" in done.err and "HRM_AGENT_STORE_KEY" in done.err
    monkeypatch.setenv("HRM_AGENT_STORE_KEY", OTHER_KEY)
    done = hrm("store", "stats", "sealed.db")
    assert done.code == 2 and "key does not fit" in done.err
    monkeypatch.setenv("HRM_AGENT_STORE_KEY", KEY)
    assert hrm("store", "verify", "sealed.db").code == 0
    assert hrm("store", "copy", "sealed.db", "again.db").code == 0, "under the same key"
    done = hrm("store", "copy", "sealed.db", "clear.db", "--decrypt")
    assert done.code == 0 and "2 trajectories" in done.out
    done = hrm("store", "stats", "clear.db")
    assert done.code == 2 and "is not encrypted, but a key was given" in done.err
    monkeypatch.delenv("HRM_AGENT_STORE_KEY")
    assert hrm("store", "stats", "again.db").code == 2
    rows = [hrm("store", "stats", where, "--json").json["rows"] for where in (kept, "clear.db")]
    assert rows[0] == rows[1]


def test_copy_to_a_server_and_back(kept: str, hrm: Command, fresh_database: str) -> None:
    assert hrm("store", "copy", kept, fresh_database).code == 0
    assert hrm("store", "verify", fresh_database, "--json").json["sound"]
    assert hrm("store", "copy", fresh_database, "back.db").code == 0
    assert (
        hrm("store", "stats", "back.db", "--json").json["rows"]
        == hrm("store", "stats", kept, "--json").json["rows"]
    )
    assert hrm("store", "delete", "thread-1", "--store", fresh_database).code == 0
    assert hrm("store", "vacuum", fresh_database).code == 0
    done = hrm("store", "copy", kept, fresh_database)
    assert done.code == 2 and "is not empty" in done.err
    assert fresh_database.partition("@")[0].rpartition(":")[2] not in done.err, (
        "the password is not told"
    )


def test_migrate(hrm: Command, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "stock.db", check_same_thread=False)) as connection:
        talk(SqliteSaver(connection), "mine")
    done = hrm("store", "stats", "stock.db")
    assert done.code == 2 and "hrm-agent store migrate stock.db NEW.db" in done.err
    taken = hrm("store", "migrate", "stock.db", "new.db", "--json").json
    assert taken == {"threads": 1, "checkpoints": 6}
    said = hrm("store", "migrate", "stock.db", "new2.db").out
    assert "1 threads, 6 checkpoints migrated" in said
    assert hrm("store", "verify", "new.db").code == 0


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "no such action": (("stat",), "Did you mean 'stats'?"),
    "nothing like an action": (("xyzzy",), "Actions: stats, verify"),
    "no store": (("stats", "absent.db"), "There is no store at absent.db"),
    "no store to verify": (("verify", "absent.db"), "There is no store at absent.db"),
    "steps and ages": (
        ("prune", "absent.db", "--keep-steps", "1", "--older-than", "1d"),
        "--keep-steps deletes no runs.",
    ),
    "steps and judged runs": (
        ("prune", "absent.db", "--keep-steps", "1", "--trained"),
        "cannot be combined with --trained",
    ),
    "no number of steps": (
        ("prune", "absent.db", "--keep-steps", "-1"),
        "--keep-steps -1 is not a number of steps",
    ),
    "no store to prune": (
        ("prune", "absent.db", "--status", "failed"),
        "There is no store at absent.db",
    ),
    "no store to vacuum": (("vacuum", "absent.db"), "There is no store at absent.db"),
    "no store to copy": (("copy", "absent.db", "new.db"), "There is no store at absent.db"),
    "nothing to migrate": (("migrate", "absent.db", "new.db"), "There is no file absent.db"),
    "not said what": (("prune", "sample.db"), "No flag says which runs to delete"),
    "no age": (("prune", "sample.db", "--older-than", "soon"), "'soon' is not an age"),
    "an age without a unit": (("prune", "sample.db", "--older-than", "30"), "'30' is not an age"),
    "an empty age": (("prune", "sample.db", "--older-than", ""), "'' is not an age"),
    "a negative age": (("prune", "sample.db", "--older-than=-1d"), "'-1d' is not an age"),
    "no status": (("prune", "sample.db", "--status", "faild"), "Did you mean 'failed'?"),
    "no thread": (("delete", "nobody", "--store", "sample.db"), "There is no thread 'nobody'"),
    "a copy onto itself": (("copy", "sample.db", "sample.db"), "is not empty"),
    "no key file": (
        ("copy", "sample.db", "new.db", "--key-file", "absent"),
        "The key file cannot be read",
    ),
    "a key file of something else": (
        ("copy", "sample.db", "new.db", "--key-file", "short"),
        "has 3 bytes, not 32",
    ),
    "a key file that is empty": (("copy", "sample.db", "new.db", "--key-file", "empty"), "key"),
    "a migration of a store of today": (
        ("migrate", "sample.db", "new.db"),
        "has nothing to migrate",
    ),
    "an argument too many": (("stats", "sample.db", "another"), "another"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told(mistake: str, kept: str, hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "short").write_text(base64.b64encode(b"abc").decode())
    (tmp_path / "empty").write_text("")
    before = hrm("store", "stats", kept, "--json").json["rows"]
    words, said = MISTAKES[mistake]
    done = hrm("store", *words)
    assert (done.code, said in done.err) == (2, True), done.err
    assert "Traceback" not in done.err and done.out == ""
    assert hrm("store", "stats", kept, "--json").json["rows"] == before
    assert not (tmp_path / "absent.db").exists() and not (tmp_path / "new.db").exists()


def test_a_mistake_as_json(hrm: Command) -> None:
    done = hrm("store", "stats", "absent.db", "--json")
    assert done.code == 2 and set(json.loads(done.err)) == {"error", "hint"}


def test_help_lists_the_actions(hrm: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        hrm("store")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {action}" in shown for action in ACTIONS)
