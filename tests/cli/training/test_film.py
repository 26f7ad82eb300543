"""`hrm-agent film`: what it prints and saves, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_a_small_training(hrm: Command) -> None:
    small = ("--steps", "1", "--prompts-per-step", "2", "--group-size", "4", "--seed", "3")
    small = (*small, "--learning-rate", "0.005", "--keep-versions", "1", "--out", "a run")
    assert hrm("train", "rl", *small).code == 0
    shown = hrm("film", "a run", "--tasks", "3", "--thread", "a run/step-0/0/1")
    assert shown.code == 0
    assert len(re.findall(r"[01] of 1 versions change the run", shown.out)) == 4
    assert "Next:\n  hrm-agent view 'a run'" in shown.out
    (saved,) = Path("a run/analyses").glob("film-*.json")
    found = json.loads(saved.read_text())
    assert found["kind"] == "film" and found["title"] == "4 tasks over 1 step"
    result = found["result"]
    assert result["versions"] == [0, 1]
    assert result["tasks"][3]["why"].endswith("why 'a run' --thread 'a run/step-0/0/1'")

    changed = next(task for task in result["tasks"] if len(task["scenes"]) > 1)
    (flip, *_) = changed["scenes"][1]["flips"]
    words = shlex.split(changed["why"])[1:]
    why = hrm(*words, "--flip", "1", "--step", "1", "--remove", "0", "--json").json
    assert len(why["behaviour"]["token_ids"]) == why["behaviour"]["start"] + 1
    again = hrm("film", "a run", changed["prompt"], "--json").json
    # a batch of another size rounds probabilities differently
    shown_again = [(each["calls"], each["caption"]) for each in again["tasks"][0]["scenes"]]
    assert shown_again == [(each["calls"], each["caption"]) for each in changed["scenes"]]
    assert flip["new"] and flip["old"] != flip["new"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("film", "run", "--tasks", "0"), "--tasks 0 is below 1"),
        (("film", "run"), "is not the folder of a `train rl`"),
        (("why", "run", "2 + 2?", "--flip", "1", "--says", "4"), "--flip names the text by itself"),
        (("film", "run", "caf\udcff"), "The task is not UTF-8"),
        (("film", "run", "--thread", "caf\udcff"), "--thread is not UTF-8"),
        (
            ("film", "run", "--thread", "t", "a task after a flag"),
            "is not the folder of a `train rl`",
        ),
        (("why", "run", "caf\udcff", "--flip", "1"), "The task is not UTF-8"),
        (("why", "run", "2 + 2?", "--says", "caf\udcff"), "--says is not UTF-8"),
        (("why", "run", "--flip", "0", "2 + 2?"), "--flip 0 is below 1"),
        (("why", "run", "2 + 2?", "--flip", "0"), "--flip 0 is below 1"),
        (("why", "run", "--thread", "t", "--seed", "1"), "--seed is without --flip"),
    ],
)
def test_a_mistake_is_reported(words: tuple[str, ...], message: str, hrm: Command) -> None:
    Path("run").mkdir()
    found = hrm(*words)
    assert found.code == 2 and message in " ".join(found.err.split())
