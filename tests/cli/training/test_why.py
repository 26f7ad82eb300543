"""`hrm-agent why`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_a_small_training(hrm: Command) -> None:
    small = ("--steps", "3", "--prompts-per-step", "3", "--group-size", "4", "--seed", "3")
    assert hrm("train", "rl", *small, "--keep-versions", "1", "--out", "run").code == 0
    told = hrm("why", "run", "--thread", "run/step-1/0/0", "--turn", "1", "--then", "1")
    assert "taught by the step" in told.out and "strongest tokens" in told.out
    assert re.search(r"The versions take \d+\.\d MB", told.out)
    assert "Proof: P is " in told.out and "Next:\n  hrm-agent show run/step-" in told.out
    assert told.out.endswith("\n  hrm-agent view run\n")
    (path,) = Path("run/analyses").iterdir()
    saved = json.loads(path.read_text())
    assert saved["title"] == "call 1 of run/step-1/0/0" and "--turn 1" in saved["command"]
    assert saved["result"]["behaviour"]["texts"][0].startswith("<reason>")
    first = saved["result"]["rollouts"][0]
    assert len(first["texts"]) == len(first["pushes"]) == first["tokens"] > 0
    assert math.fsum(first["pushes"]) == pytest.approx(first["push"], rel=0.02, abs=1e-6)

    found = hrm("why", "run", "What is 3 * 4?", "--says", "<reason>", "--json").json
    assert [each["version"] for each in found["versions"]] == [0, 1, 2, 3]
    taught = {each["version"]: each["taught"] for each in found["versions"][1:]}
    assert found["step"] == max(taught, key=lambda version: taught[version])
    pushes = math.fsum(each["push"] for each in found["rollouts"])
    assert pushes == pytest.approx(taught[found["step"]], rel=0.05, abs=1e-6)
    assert found["removed"] == [each["trajectory_id"] for each in found["rollouts"][:3]]
    assert found["proof"]["steps"] <= 3 and "others" not in found["behaviour"]

    named = hrm("why", "run", "What is 3 * 4?", "--says", "x", "--step", "2", "--remove", "0")
    assert "Step 2: " in named.out and "Proof" not in named.out


@pytest.mark.slow
def test_versions_that_were_not_kept_are_made_where_they_are_needed(hrm: Command) -> None:
    small = ("--steps", "3", "--prompts-per-step", "3", "--group-size", "4", "--seed", "3")
    small = (*small, "--checkpoints", "1", "--out", "a run")
    assert hrm("train", "rl", *small).code == 0
    asked = ("why", "a run", "--thread", "a run/step-1/0/0", "--turn", "1", "--remove", "0")
    found = hrm(*asked, "--json").json
    assert [each["version"] for each in found["versions"]] == [0, 1, 2, 3]
    taught = {each["version"]: each["taught"] for each in found["versions"][1:]}
    assert found["step"] == max(taught, key=lambda version: taught[version])
    named = hrm(*asked, "--step", "2")
    assert (
        "Some versions are missing. Train with --keep-versions 1." in named.out
        and "Step 2: " in named.out
    )
    assert "--store 'a run'" in named.out
    assert not (Path("a run") / "versions").exists()
    # the option may be given when a run goes on
    assert hrm("train", "rl", *small, "--steps", "4", "--keep-versions", "1").code == 0
    assert [each.name for each in Path("a run/versions").glob("*.zip")] != []


def test_a_run_without_its_id_is_refused_and_nothing_is_written(hrm: Command) -> None:
    small = ("--steps", "1", "--prompts-per-step", "2", "--group-size", "2", "--seed", "3")
    assert hrm("train", "rl", *small, "--out", "run").code == 0
    Path("run/run_id").unlink()
    before = sorted(Path("run").rglob("*"))
    told = hrm("why", "run", "--thread", "run/step-0/0/0")
    assert told.code == 2 and "run_id is missing or empty" in " ".join(told.err.split())
    assert sorted(Path("run").rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run",), "Name either a task or a recorded run"),
        (("run", "2 + 2?", "--thread", "t"), "Name either a task or a recorded run"),
        (("run", "2 + 2?"), "--says is missing"),
        (("run", "2 + 2?", "--says", "4", "--turn", "1"), "--turn is without --thread"),
        (("run", "--thread", "t", "--calls-tool", "python"), "--calls-tool is for a task"),
        (("run", "2 + 2?", "--says", "4", "--top", "0"), "--top 0 is below 1"),
        (("run", "2 + 2?", "--says", "4"), "is not the folder of a `train rl`"),
    ],
)
def test_a_mistake_is_told(words: tuple[str, ...], said: str, hrm: Command) -> None:
    Path("run").mkdir()
    told = hrm("why", *words)
    assert told.code == 2 and said in " ".join(told.err.split())
