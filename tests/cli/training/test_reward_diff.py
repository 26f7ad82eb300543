"""`hrm-agent reward-diff`: what it prints and saves, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

REWARDS = "tests.support.training.compared_rewards"


def test_a_small_training(hrm: Command) -> None:
    small = ("--steps", "2", "--prompts-per-step", "3", "--group-size", "4", "--seed", "3")
    assert hrm("train", "rl", *small, "--keep-versions", "1", "--out", "run").code == 0
    shown = hrm("reward-diff", "run", "--new", f"{REWARDS}:no_tool", "--step", "2")
    assert shown.code == 0
    for text in (
        "against recorded (old)",
        "Largest differences",
        "Cosine of the two updates",
        "answers with a tool call",
        "Pushed up by the new reward, down by the old one",
        "Warning (no_tool): the new reward puts 100% of its push upwards on answers without",
        "hrm-agent view run",
    ):
        assert text in " ".join(shown.out.split()), text

    same = hrm(
        "reward-diff", "run", "--old", "verifier", "--new", "recorded", "--steps", "1", "--json"
    )
    assert same.code == 0
    assert same.json["steps"] == [2] and same.json["warnings"] == []
    assert same.json["flips"]["rewards"] == 0 and same.json["cosine"] == pytest.approx(1)
    assert same.json["changes"]["length"]["difference"] == pytest.approx(0, abs=1e-6)

    saved = [json.loads(path.read_text()) for path in Path("run/analyses").iterdir()]
    titles = {each["title"]: each["result"] for each in saved}
    assert {each["kind"] for each in saved} == {"reward-diff"}
    first = titles[f"{REWARDS}:no_tool in place of recorded"]["rollouts"][0]
    assert len(first["texts"]) == first["tokens"] == len(first["pushes"][0]) > 0

    missing = hrm("reward-diff", "run", "--new", "no.such.module:rubric")
    assert missing.code == 2 and "does not import" in missing.err
    late = hrm("reward-diff", "run", "--new", "verifier", "--step", "3")
    assert late.code == 2 and "has 2 steps, and no step 3" in " ".join(late.err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run",), "--new"),
        (("run", "--new", "verifier"), "is not the folder of a `train rl`"),
        (("run", "--new", "verifier", "--steps", "0"), "--steps 0 is below 1"),
    ],
)
def test_a_mistake_is_told(words: tuple[str, ...], said: str, hrm: Command) -> None:
    Path("run").mkdir()
    told = hrm("reward-diff", *words)
    assert told.code == 2 and said in " ".join(told.err.split())
