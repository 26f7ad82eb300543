"""Commands that read what is on record: history, show, lint, export."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from hrm_agent.store import open_store
from hrm_agent.trajectory import Overlay, RolePenalty, Trajectory, Verdict
from hrm_agent.trajectory.formats import read_jsonl, read_parquet
from tests.cli.conftest import Command
from tests.support.trajectory.samples import make_call, make_trajectory

Read = Callable[[Path], Iterator[Trajectory]]


def test_lint_of_a_sound_store(store: str, hrm: Command) -> None:
    done = hrm("lint", store)
    assert done.code == 0
    assert "1 trajectories, " in done.out
    assert hrm("lint", store, "--json").json["findings"] == []


def test_a_terminal_obeys_nothing_of_what_it_is_shown(hrm: Command, tmp_path: Path) -> None:
    hostile = "a\x1b[2J\x1b]52;c;eA==\x07b\x9b1m\u202ec\r\nd\te"
    sample = make_trajectory(graph=hostile, answer=hostile, error=hostile, calls=(), tool_calls=())
    call = make_call("task-a", response={"type": "ai", "content": hostile})
    with open_store(tmp_path / "s.db") as opened:
        opened.journal.write_trajectory(sample)
        opened.journal.write_call(call)
    where = ("--store", "s.db")
    shown = (
        hrm("show", sample.id, *where),
        hrm("history", *where),
        hrm("history", "--store", "\x1b[2J"),
    )
    for done in shown:
        assert "\ufffd[2J" in done.out + done.err
        assert not set(done.out + done.err) & set("\x1b\x07\x9b\u202e\r")
    assert "c\n    d " in shown[0].out
    assert hrm("show", sample.id, "--store", "s.db", "--json").json["answer"] == hostile


def test_history_has_a_line_for_each_run_at_80_columns(
    hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [f"run-20261127-19011{n}-720d" for n in range(3)]
    with open_store(tmp_path / "s.db") as opened:
        for thread in threads:
            opened.journal.write_trajectory(
                make_trajectory(id=thread[::-1], thread_id=thread, calls=(), tool_calls=())
            )
    monkeypatch.setenv("COLUMNS", "80")
    lines = hrm("history", "--store", "s.db").out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert lines[0].split()[0] == "thread" and {line.split()[0] for line in lines[1:4]} == {
        *threads
    }
    assert lines[5].startswith("3 trajectories in ")
    assert {row["trajectory"] for row in hrm("history", "--store", "s.db", "--json").json} == {
        t[::-1] for t in threads
    }


def corrupt(store: str) -> str:
    """Add a call whose log-probs are positive."""
    bad = make_call("task-bad", logprobs=(0.0, 0.0, 1.5, -0.25))
    with open_store(store) as opened:
        opened.journal.write_call(bad)
    return bad.id


def test_lint_of_a_run_that_is_not_there_is_not_passed(store: str, hrm: Command) -> None:
    done = hrm("lint", store, "--run", "typo")
    assert done.code == 2 and "There is no run 'typo'" in done.err


def test_lint_tells_of_rollouts_that_asked_no_model(hrm: Command, tmp_path: Path) -> None:
    sample = make_trajectory(calls=(), tool_calls=(), run_id="run", group_id="run/0")
    with open_store(tmp_path / "s.db") as opened:
        opened.journal.write_trajectory(sample)
    done = hrm("lint", str(tmp_path / "s.db"))
    assert done.code == 0 and "1 completed rollouts asked no model" in done.out


def test_lint_names_what_it_finds_and_fails(store: str, hrm: Command) -> None:
    bad = corrupt(store)
    done = hrm("lint", store)
    assert done.code == 1
    assert "logprob-nonpositive" in done.out
    (finding,) = hrm("lint", store, "--json").json["findings"]
    assert (finding["trajectory"], finding["name"], finding["where"]) == (
        "trajectory-1",
        "logprob-nonpositive",
        bad,
    )


def test_lint_as_a_module(store: str) -> None:
    command = [sys.executable, "-m", "hrm_agent.trajectory.lint", store]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    corrupt(store)
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 1
    assert "logprob-nonpositive" in found.stdout


@pytest.mark.parametrize(("suffix", "read"), [("jsonl", read_jsonl), ("parquet", read_parquet)])
def test_export_and_the_export_again(
    suffix: str, read: Read, store: str, hrm: Command, tmp_path: Path
) -> None:
    done = hrm("export", store, "--out", f"x.{suffix}", "--json")
    assert done.json == {"file": f"x.{suffix}", "format": suffix, "trajectories": 1}
    assert list(read(tmp_path / f"x.{suffix}")) == [make_trajectory()]
    assert hrm("lint", f"x.{suffix}").code == 0
    assert (
        "1 trajectories" in hrm("export", f"x.{suffix}", "--out", "again", "--format", "jsonl").out
    )
    assert list(read_jsonl(tmp_path / "again")) == [make_trajectory()]


def test_export_of_one_run(store: str, hrm: Command) -> None:
    assert (
        hrm("export", store, "--out", "x.jsonl", "--run", "run-1", "--json").json["trajectories"]
        == 1
    )
    assert (
        hrm("export", store, "--out", "x.jsonl", "--run", "other", "--json").json["trajectories"]
        == 0
    )


def test_export_says_what_it_needs(store: str, hrm: Command) -> None:
    assert "Write `hrm-agent export STORE --out FILE.jsonl`." in hrm("export", store).err
    assert "names no format" in hrm("export", store, "--out", "x.csv").err


def test_export_of_the_schema(hrm: Command) -> None:
    jsonschema.validate(make_trajectory().model_dump(mode="json"), hrm("export", "--schema").json)


def test_history_lists_the_runs(store: str, hrm: Command) -> None:
    (row,) = hrm("history", "--store", store, "--json").json
    assert (row["trajectory"], row["thread"], row["status"], row["reward"]) == (
        "trajectory-1",
        "thread-1",
        "answer",
        1.0,
    )
    shown = hrm("history", "--store", store).out
    assert "thread-1" in shown
    assert hrm("history", "--store", store, "--run", "other", "--json").json == []


def test_history_lists_the_newest_and_says_what_it_leaves_out(tmp_path: Path, hrm: Command) -> None:
    """JSON output is complete, or a message on stderr reports that it is not."""
    path = str(tmp_path / "many.db")
    with open_store(path) as opened:
        for number in range(60):
            opened.journal.write_trajectory(
                make_trajectory(
                    id=f"id-{number}", thread_id=f"thread-{number}", calls=(), tool_calls=()
                )
            )
    whole = hrm("history", "--store", path, "--json")
    newest_first = [f"thread-{number}" for number in reversed(range(60))]
    assert [row["thread"] for row in whole.json] == newest_first[::-1] and whole.err == ""
    shown = hrm("history", "--store", path).out
    assert "thread-59" in shown and "thread-10" in shown and "thread-9 " not in shown
    assert "50 of 60 trajectories in" in shown and "--limit 60 lists them all" in shown
    cut = hrm("history", "--store", path, "--json", "--limit", "3")
    assert [row["thread"] for row in cut.json] == newest_first[
        2::-1
    ] and "3 of 60 trajectories" in cut.err
    every = hrm("history", "--store", path, "--limit", "60").out
    assert "thread-0 " in every and "60 trajectories in" in every and "--limit" not in every
    refused = hrm("history", "--store", path, "--limit", "-1")
    assert refused.code == 2 and "--limit -1 is not a number of rows" in refused.err


def test_show(store: str, hrm: Command) -> None:
    with open_store(store) as opened:
        opened.journal.write_overlays(
            [
                Overlay(
                    run_id="run-1",
                    step=4,
                    trajectory_id="trajectory-1",
                    group_id="group-1",
                    reward=1.0,
                    verdict=Verdict.DROPPED,
                    reason="more positives than the quota of 4",
                    penalty_error=0.5,
                    penalty_format=0.0,
                )
            ]
        )
    shown = hrm("show", "trajectory-1", "--store", store).out
    for part in (
        "What is 17 + 25?",
        "> python: 17 + 25",
        r"<answer>\boxed{42}</answer>",
        "2 prompt tokens, 2 completion tokens, mean log-prob -0.375",
        "python  ",
        "ok, 0.010 s",
        "step 5 of run-1: dropped: more positives than the quota of 4",
    ):
        assert part in shown
    assert (
        shown.index("> python: 17 + 25") < shown.index("ok, 0.010 s") < shown.rindex(r"\boxed{42}")
    )
    whole = hrm("show", "thread-1", "--store", store, "--json").json
    assert whole["overlays"][0]["verdict"] == "dropped"
    assert whole["calls"] == json.loads(make_trajectory().model_dump_json())["calls"]


def test_show_prints_what_a_training_credited_to_each_call(store: str, hrm: Command) -> None:
    asked, *others = make_trajectory().calls
    verdict = Overlay(
        run_id="run-1",
        step=0,
        trajectory_id="trajectory-1",
        group_id="group-1",
        reward=1.0,
        verdict=Verdict.KEPT,
        reason="one of 2 of 3 positives",
        penalty_error=0.25,
        penalty_format=0.0,
        advantage=0.5,
    )
    by_role = {
        "plan": RolePenalty(failed=0, effective=0),
        "solve": RolePenalty(failed=1, effective=3, error=0.25, format=0.0),
    }
    credited = verdict.model_copy(update={"credit": {asked.id: -0.25}, "penalty_by_role": by_role})

    def shown(overlay: Overlay) -> list[str]:
        with open_store(store) as opened:
            opened.journal.write_overlays([overlay])
        return hrm("show", "trajectory-1", "--store", store).out.splitlines()

    assert not any("credit" in line for line in shown(verdict)), (
        "the advantage says it, of all calls"
    )
    lines = shown(credited)
    beside = [line for line in lines if "credit" in line]
    beside_each = ["credit -0.250", *["no credit"] * len(others)]
    assert [(line.split()[1], line.rpartition(", ")[2]) for line in beside] == [
        (each.id[:8], credit) for each, credit in zip([asked, *others], beside_each, strict=True)
    ]
    assert lines[-3:] == [
        "step 1 of run-1: kept, advantage +0.500: one of 2 of 3 positives",
        "  plan: no tools",
        "  solve: p_err 0.250 (1 of 4 counted tool calls failed), p_format 0.000",
    ]
    (found,) = hrm("show", "trajectory-1", "--store", store, "--json").json["overlays"]
    assert Overlay.model_validate(found) == credited


def test_show_of_nothing(store: str, hrm: Command) -> None:
    done = hrm("show", "absent", "--store", store)
    assert done.code == 2
    assert "There is no trajectory 'absent'" in done.err
