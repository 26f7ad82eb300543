"""Traces on the command line: import, what they lack, and what is done with them."""

from __future__ import annotations

from pathlib import Path

from hrm_agent.store import open_store
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.formats.shared.messages import answer_of
from tests.cli.conftest import Command
from tests.trajectory.formats.traces.test_exporters import DATA, files


def stored(store: str) -> list[Trajectory]:
    with open_store(store, create=False) as opened:
        return list(opened.journal.trajectories())


def test_a_trace_is_imported_shown_and_exported(hrm: Command, tmp_path: Path) -> None:
    names = [str(path) for path in files("otel-openai")]
    done = hrm("import", *names, "--store", "new.db", "--json")
    assert (done.code, done.json["imported"]) == (0, 1)
    assert done.json["missing"] == {
        "tools that calls were offered": 2,
        "nodes or agents that made calls": 2,
        "costs of calls": 2,
        "outcomes of tool calls that have no span, which are taken as ok": 1,
        "token ids and log-probs of calls": 2,
        "states of graphs (checkpoints) of runs": 1,
    }
    again = hrm("import", *names, "--store", "new.db")
    assert "0 trajectories imported into new.db, 1 were there already" in again.out
    assert "not in the files: token ids and log-probs of calls (2)" in again.out
    assert hrm("lint", "new.db").code == 0
    (run,) = stored("new.db")
    shown = hrm("show", run.id, "--store", "new.db").out
    assert "not all recorded" in shown
    assert "multiply" in shown
    assert hrm("export", "new.db", "--format", "chat", "--out", "x.jsonl", "--json").json["rows"]


def test_own_spans_come_back(scripted: str, hrm: Command) -> None:
    assert hrm("run", "What is 6 * 7?", "--policy", scripted).code == 0
    hrm("export", "runs", "--format", "otel", "--otel-content", "--out", "spans.jsonl")
    assert hrm("import", "spans.jsonl", "--store", "new.db").code == 0
    for original, found in zip(stored("runs/store.db"), stored("new.db"), strict=True):
        for name in ("text", "tool_calls"):
            assert [getattr(answer_of(call), name) for call in found.calls] == [
                getattr(answer_of(call), name) for call in original.calls
            ]
        assert [call.identity.role for call in found.calls] == [
            call.identity.role for call in original.calls
        ]
        for name in ("arguments", "content", "status", "tool_call_id"):
            assert [getattr(call, name) for call in found.tool_calls] == [
                getattr(call, name) for call in original.tool_calls
            ]
        assert (found.task.prompt, found.answer) == (original.task.prompt, original.answer)


def test_nothing_is_imported_if_one_file_is_broken(hrm: Command, tmp_path: Path) -> None:
    rows = (DATA / "langsmith.jsonl").read_text()
    (tmp_path / "bad.jsonl").write_text(rows[:-40])
    done = hrm("import", str(DATA / "langfuse.pb"), "bad.jsonl", "--store", "new.db")
    assert (done.code, "bad.jsonl:" in done.err, "Traceback" in done.err) == (2, True, False)
    assert not (tmp_path / "new.db").exists()
    (tmp_path / "empty.jsonl").write_text('{"resourceSpans": []}')
    done = hrm("import", "empty.jsonl", "--store", "new.db")
    assert (done.code, "no trace with a model call" in done.err) == (2, True)
    done = hrm("import", str(DATA / "langsmith.jsonl"), "--format", "langfuse")
    assert (done.code, "Add --format langsmith." in done.err) == (2, True)
    done = hrm("import", "gone.jsonl", "--format", "otel")
    assert (done.code, "gone.jsonl cannot be read" in done.err) == (2, True)
