"""Real runs exported to ATIF and imported again, and imports of other agents' runs, on the command
line.
"""

from __future__ import annotations

import json
from pathlib import Path

import atif
import pytest

from hrm_agent.store import open_store
from hrm_agent.trajectory import Trajectory
from tests.cli.conftest import Command
from tests.trajectory.formats.inspect.test_logs import LOG

TASK = "What is 6 * 7?"


def stored(store: str) -> list[Trajectory]:
    with open_store(store, create=False) as opened:
        return list(opened.journal.trajectories())


def test_real_runs_and_a_fork_come_back(scripted: str, hrm: Command, tmp_path: Path) -> None:
    assert hrm("run", TASK, "--policy", scripted, "--thread", "t1").code == 0
    assert (
        hrm(
            "run", TASK, "--policy", scripted, "--graph", "tests.support.graphs.own_agent:graph"
        ).code
        == 0
    )
    hrm("fork", "t1", "--at", "before:agent", "--run")
    assert hrm("export", "runs", "--out", "x.atif", "--json").json["left_out"] == {}
    for line in (tmp_path / "x.atif").read_text().splitlines():
        atif.Trajectory.model_validate(json.loads(line))
    assert hrm("import", "x.atif", "--store", "new.db").code == 0
    assert hrm("import", "x.atif", "--store", "new.db", "--json").json["imported"] == 0
    assert hrm("lint", "new.db").code == 0
    for original, found in zip(stored("runs/store.db"), stored("new.db"), strict=True):
        bare = [one.model_copy(update={"calls": one.own_calls}) for one in (original, found)]
        calls = [[call.model_copy(update={"request": None}) for call in one.calls] for one in bare]
        assert calls[0] == calls[1]
        assert bare[0].model_copy(update={"calls": ()}) == bare[1].model_copy(update={"calls": ()})


def test_a_document_of_a_run_has_the_turns_that_the_policy_saw(
    scripted: str, hrm: Command, tmp_path: Path
) -> None:
    assert hrm("run", TASK, "--policy", scripted).code == 0
    hrm("export", "runs", "--out", "x.atif")
    document = json.loads((tmp_path / "x.atif").read_text())
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent"]
    assert document["steps"][2]["observation"]["results"][0]["content"].strip() == "42"
    assert document["agent"]["tool_definitions"][0]["function"]["name"] == "python"


def test_a_log_of_inspect_is_shown_and_linted_and_exported(hrm: Command) -> None:
    done = hrm("import", str(LOG), "--store", "new.db", "--json")
    assert (done.json["imported"], done.json["untrainable"]) == (2, 2)
    first = min(stored("new.db"), key=lambda one: one.sample_index)
    shown = hrm("show", first.id, "--store", "new.db").out
    assert "Let me add." in shown
    assert "rewards match 0" in " ".join(shown.split())
    assert hrm("lint", "new.db").code == 0
    assert (
        hrm("export", "new.db", "--format", "atif", "--out", "x.json", "--json").json["rows"] == 2
    )
    assert (
        hrm("export", "new.db", "--format", "verl", "--out", "x.parquet", "--json").json["rows"]
        == 1
    )


@pytest.mark.parametrize(
    "text", ['{"schema_version": "ATIF-v1.8", "steps": []}', '{"eval": 3, "status": ""}', "{", "[]"]
)
def test_what_cannot_be_read_is_told_in_one_paragraph(
    text: str, hrm: Command, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text(text)
    done = hrm("import", "bad.json", "--store", "new.db")
    assert done.code == 2
    assert "bad.json" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "new.db").exists()


def test_a_format_that_is_read_only(hrm: Command) -> None:
    hrm("import", str(LOG), "--store", "new.db")
    done = hrm("export", "new.db", "--format", "inspect", "--out", "x.eval")
    assert (done.code, "inspect can be read, but not written" in done.err) == (2, True)
