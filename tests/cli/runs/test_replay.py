"""`hrm-agent replay`: one run, all runs of a store, and what stays out of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import SCRIPT, Command


def script(path: Path, *answers: str) -> str:
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"scripted:{path}"


def test_a_run_comes_to_the_same(hrm: Command, scripted: str) -> None:
    assert hrm("run", "What is 6 * 7?", "--policy", scripted, "--thread", "t", "--seed", "1").code == 0
    done = hrm("replay", "t")
    assert done.code == 0 and "equal, byte for byte" in done.out
    row = hrm("replay", "t", "--json").json
    assert (row["verdict"], row["random_ids"], row["unused"], row["difference"]) == ("equal", 0, 0, [])


def test_a_store_is_checked_run_by_run(hrm: Command, tmp_path: Path) -> None:
    for thread in ("a", "b"):
        policy = script(tmp_path / thread, *SCRIPT)
        assert hrm("run", "What is 6 * 7?", "--policy", policy, "--thread", thread, "--seed", "1").code == 0
    assert "2 runs replayed, 2 equal, 0 not" in hrm("replay", "--check", "runs/store.db").out
    done = hrm("replay", "--check", "runs", "--graph", "reasoning", "--json")
    assert done.code == 1
    assert [(row["thread"], row["verdict"]) for row in done.json["differ"]] == [("a", "asks"), ("b", "asks")]
    nothing = hrm("replay", "--check", "runs", "--run", "other")
    assert nothing.code == 2 and "no trajectory of the run 'other' that has ended" in nothing.err


def test_what_it_asks_now_is_shown_and_gone_on_with(hrm: Command, scripted: str, tmp_path: Path) -> None:
    hrm("run", "What is 6 * 7?", "--policy", scripted, "--thread", "t", "--seed", "1")
    graph = "tests.support.graphs.replayed_agents:hinted_loop"
    done = hrm("replay", "t", "--graph", graph)
    assert done.code == 1
    assert "node reason: it asks the model differently than recorded" in done.out
    assert "+<|im_start|>system" in done.out and "+Check it.<|im_end|>" in done.out
    policy = script(tmp_path / "other", SCRIPT[1])
    live = hrm("replay", "t", "--graph", graph, "--live-after", "--policy", policy, "--thread", "u", "--json")
    assert live.code == 0 and live.json["live"]
    assert hrm("replay", "u").code == 0
    assert hrm("lint", "runs/store.db").code == 0


def test_which_run(hrm: Command) -> None:
    assert "hrm-agent replay TRAJECTORY" in hrm("replay").err
    assert hrm("replay", "t", "--check", "runs").code == 2
    assert "There is no store" in hrm("replay", "t").err
    assert "--policy needs --live-after" in hrm("replay", "t", "--policy", "x").err
    assert "--run needs --check" in hrm("replay", "t", "--run", "x").err
    assert "--check cannot be combined with --live-after" in hrm("replay", "--check", "runs", "--live-after").err


def test_no_model_is_loaded(hrm: Command, scripted: str, tmp_path: Path) -> None:
    hrm("run", "What is 6 * 7?", "--policy", scripted, "--thread", "t", "--seed", "1")
    program = (
        "import sys; from hrm_agent.cli.main import main; assert main(['replay', '--check', 'runs']) == 0;"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"
