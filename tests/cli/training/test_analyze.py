"""`hrm-agent analyze` on runs that were made here: its numbers, its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import open_store
from hrm_agent.training.analysis import files
from hrm_agent.training.analysis.report import analyse
from hrm_agent.training.analysis.token_sample import TokenOptions
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.records.runs import opened_runs
from hrm_agent.trajectory import ToolStatus
from tests.cli.conftest import Command
from tests.support.training.builders import call, tool_call, trajectory

HOSTILE = (
    "</code><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.exe\x00\x1b[2J\u200b"
)


def read(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def test_a_small_training(hrm: Command, tmp_path: Path) -> None:
    small = ("--steps", "2", "--prompts-per-step", "3", "--group-size", "2", "--checkpoints", "1")
    assert hrm("train", "rl", *small, "--policy", "builtin:cold-start", "--out", "run").code == 0
    told = hrm("analyze", "run")
    assert told.code == 0 and "forking tokens, above" in told.out and "trained on" in told.out
    found, rows = read(Path("run/analysis")), read_metrics(Path("run/metrics.jsonl"))

    assert [each["step"] for each in found["tool_errors"]] == [1, 2]
    for each, row in zip(found["tool_errors"], rows, strict=True):
        assert each["correct_with_tool_error"] == row["rollout/correct_with_tool_error"]
        assert each["calls"] == row["rollout/tool_calls"] * row["rollout/count"]
        assert sum(each["errors"].values()) == each["statuses"].get("error", 0)
    tokens = found["tokens"]
    assert [each["part"] for each in tokens["parts"]] == ["step 1"], (
        "of step 2 the weights are gone"
    )
    assert [(u["version"], u["weights"], u["exact"]) for u in tokens["weights"]] == [
        (0, "builtin:cold-start", True)
    ]
    assert tokens["weights"][0]["mean_difference"] < 1e-5, "they are the weights that sampled"
    assert tokens["tokens"] == rows[0]["rollout/sampled_tokens"] * rows[0]["rollout/count"]

    with open_store("run", create=False) as store:
        for line in map(json.loads, Path("run/analysis/tokens.jsonl").read_text().splitlines()):
            call_ = store.journal.find_call(line["call"])
            assert call_ is not None and [each is not None for each in line["entropy"]] == list(
                call_.mask
            )
            assert set(line["reflection"]) <= set(line["forking"])
            assert all(line["entropy"][place] > tokens["threshold"] for place in line["forking"])
    assert {path.name for path in Path("run/analysis").iterdir()} == {"report.json", "tokens.jsonl"}

    with opened_runs(["run"]) as (runs,):
        report, _ = analyse(runs, TokenOptions(steps=("2",), limit=4))
    assert report.tokens is not None and report.tokens.rollouts == 4
    (use,) = report.tokens.weights
    assert (use.version, use.exact, use.weights_version) == (1, False, 0)
    assert use.mean_difference > 1e-4, "the log-probs tell it, too"
    other = hrm("analyze", "run", "--steps", "7")
    assert other.code == 2 and "It has steps 1 to 2." in other.err


def test_a_run_without_weights_or_selection(
    hrm: Command, scripted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--tasks", "word_problems", "--count", "1", "--policy", scripted, "--out", "made")
    assert hrm("collect", *asked).code == 0
    told = hrm("analyze", "made", "--json")
    found = read(Path("made/analysis"))
    assert told.json["rollouts"] == found["rollouts"] == 1 and found["tool_errors"][0][
        "statuses"
    ] == {"ok": 1}
    assert found["tokens"] is None and "its weights are not here" in found["missing"]["tokens"]
    assert found["missing"]["selection"] == "nothing was selected: this is no training"

    other = hrm("analyze", "made", "--policy", "builtin:cold-start")
    assert (
        other.code == 2
        and "The tokenizer of 'builtin:cold-start' is not that of this run's tokens" in other.err
    )

    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    before = {path: path.read_bytes() for path in Path("made/analysis").iterdir()}
    monkeypatch.setattr(files, "json_line", interrupted)
    assert hrm("analyze", "made").code == 130
    assert {path: path.read_bytes() for path in Path("made/analysis").iterdir()} == before
    assert not list(Path("made/analysis").glob("*.part"))


def test_hostile_texts_do_nothing_on_the_console(hrm: Command) -> None:
    hosted = call("a", text=HOSTILE, token_ids=(), mask=(), logprobs=(), model=f"openai:{HOSTILE}")
    failed = tool_call("x", ToolStatus.ERROR).model_copy(
        update={"stderr": f"ValueError: {HOSTILE}"}
    )
    one = trajectory(run_id=HOSTILE, policy=hosted.model, calls=(hosted,), tool_calls=(failed,))
    moved = {"identity": hosted.identity.model_copy(update={"thread_id": one.thread_id})}
    with open_store("store.db") as store:
        store.journal.write_trajectory(one)
        store.journal.write_call(hosted.model_copy(update=moved))
        store.journal.write_tool_call(failed.model_copy(update=moved))
    told = hrm("analyze", "store.db", "--out", "found")
    assert told.code == 0 and "\x1b" not in told.out and "\u202e" not in told.out
    found = read(Path("found"))
    assert found["error_classes"][0]["name"] == "ValueError"
    assert found["missing"]["tokens"] == "1 calls: no token ids are on record"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere", "--out", "x"), "nowhere"),
        (("store.db",), "Name a folder: --out"),
        (("nowhere",), "There is no run at nowhere."),
        (("store.db", "--out", "x"), "There is no ended run on record"),
        (("full", "--policy", "builtin:traind"), "There is no built-in policy 'traind'"),
        (("full", "--policy", "openai:gpt"), "The weights of 'openai:gpt' are not on this machine"),
        (("full", "--limit", "0"), "nothing can be analysed"),
        (("full", "--out", "other"), "other is not empty"),
        (("full", "--out", "store.db"), "store.db is a file"),
        (("full", "--out", "store.db/x"), "store.db/x cannot be made: Not a directory"),
        (("full", "--out", "/proc/x"), "/proc/x cannot be made"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str, hrm: Command) -> None:
    open_store("store.db").close()
    Path("other").mkdir()
    Path("other/mine.txt").write_text("kept")
    with open_store("full/store.db") as store:
        store.journal.write_trajectory(trajectory(calls=()))
    failed = hrm("analyze", *words)
    assert failed.code == 2 and said in failed.err and "Traceback" not in failed.err
    assert Path("other/mine.txt").read_text() == "kept" and not Path("x").exists()
