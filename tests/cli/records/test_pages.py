"""`show --html` and `plot` on the command line."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from hrm_agent.store import open_store
from hrm_agent.trajectory import Overlay, Verdict
from tests.cli.conftest import Command


@pytest.fixture
def judged(store: str) -> str:
    """The sample's store as a training run's folder, whose step 3 has judged it."""
    where = Path(store).parent / "run"
    where.mkdir()
    (where / "run_id").write_text("run-1")
    (where / "store.url").write_text(f"sqlite:///{store}")
    facts = {
        "run_id": "run-1",
        "step": 3,
        "trajectory_id": "trajectory-1",
        "group_id": "group-1",
        "reward": 1.0,
    }
    rest = {
        "verdict": Verdict.KEPT,
        "reason": "of 2",
        "penalty_error": 0.0,
        "penalty_format": 0.0,
        "advantage": 0.5,
    }
    with open_store(store) as opened:
        opened.journal.write_overlays([Overlay(**facts, **rest)])
    return str(where)


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["trajectory-1"], "#/trajectory?place=run&amp;id=trajectory-1"),
        (["--group", "group-1"], "#/groups?place=run&amp;run=run-1"),
        (["--step", "4"], "#/step?place=run&amp;run=run-1&amp;step=4"),
    ],
)
def test_a_page_is_the_viewer_s_copy(
    words: list[str], start: str, hrm: Command, judged: str
) -> None:
    done = hrm("show", *words, "--store", judged, "--html", "page.html")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Written: page.html (")
    page = Path("page.html").read_text(encoding="utf-8")
    assert f'<meta name="start" content="{start}">' in page
    answers = {
        html.unescape(key): json.loads(text)
        for key, text in re.findall(r'data-key="([^"]+)">(.*)</script>', page)
    }
    found = hrm("show", "trajectory-1", "--store", judged, "--json").json
    items = answers["items?id=trajectory-1&place=run"]["items"]
    assert {item["id"] for item in items} >= {call["id"] for call in found["calls"]}
    assert "trajectory?id=trajectory-1&place=run" in answers
    rollouts = [
        rollout
        for key, answer in answers.items()
        if key.startswith("step?")
        for group in answer["groups"]
        for rollout in group["rollouts"]
    ]
    (overlay,) = found["overlays"]
    (rollout,) = rollouts
    assert (rollout["verdict"], rollout["advantage"]) == (overlay["verdict"], overlay["advantage"])
    assert hrm("show", *words, "--store", judged, "--html", "-").out.startswith("<!doctype html>")


def test_what_is_not_clear_is_refused(hrm: Command, judged: str) -> None:
    for words, said in (
        ([], "Nothing was named"),
        (["trajectory-1", "--step", "1"], "an id and --step were given"),
        (["--group", "group-1"], "--group is shown as a page"),
        (["trajectory-1", "--html", "x.html", "--json"], "--html only writes a page"),
        (["--step", "0", "--html", "x.html"], "steps count from 1"),
        (["--step", "1", "--html", "x.html"], "Step 1 of run 'run-1' has no rollout on record"),
        (["--group", "other", "--html", "x.html"], "There is no group 'other'"),
        (["trajectory-1", "--html", "."], "cannot be written"),
    ):
        done = hrm("show", *words, "--store", judged)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    assert not Path("x.html").exists()


def test_plot_counts_steps_as_the_console_of_the_training(hrm: Command) -> None:
    sizes = ["--prompts-per-step", "2", "--group-size", "2", "--steps", "2", "--max-tokens", "40"]
    trained = hrm(
        "train", "rl", *sizes, "--eval-every", "2", "--eval-problems", "2", "--out", "run"
    )
    assert trained.code == 0
    assert "grpo-roc 2/2 " in trained.err
    done = hrm("plot", "run", "--out", "picture.svg", "--json")
    assert done.json["lines"] == [{"label": "run", "runs": ["run"], "steps": 2}]
    assert Path("picture.svg").read_text(encoding="utf-8").startswith("<?xml")
    with Path("run/metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write("{broken\n" + json.dumps({"step": 2, "loss": 1.0}) + "\n")
    again = hrm("plot", "run", "--metrics", "loss", "eval/correct", "--x", "tokens")
    assert "line 3 cannot be read and was left out" in again.err
    assert again.out == "run: 3 steps\nDrawn: plot.png\n"
    refused = hrm("plot", "run", "--out", "picture.gif")
    assert (refused.code, "is not a known format" in refused.err) == (2, True)
    for words, said in (
        (["run", "./run"], "run was named twice"),
        (["run", "--out", "run", "--format", "svg"], "run cannot be written: Is a directory"),
        (["run", "--out", "/proc/x.png"], "/proc/x.png cannot be written"),
    ):
        refused = hrm("plot", *words)
        assert (refused.code, said in refused.err) == (2, True)
    assert not list(Path().glob("*.part"))
