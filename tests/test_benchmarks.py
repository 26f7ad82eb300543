"""`make bench` runs every benchmark, in a form that each of them takes;
their quick forms run here.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole

PROJECT = Path(__file__).parents[1]
FOLDER = PROJECT / "benchmarks"
BENCHMARKS = sorted(
    {
        *(path.stem for path in FOLDER.glob("*.py")),
        *(path.parent.name for path in FOLDER.glob("*/__main__.py")),
    }
    # viewer_picture makes the picture of the README; smollm2 takes hours and GSM8K's files
    - {"viewer_picture", "smollm2"}
)
QUICK = {
    "algorithms": "--quick --seeds 1 --problems 2 --jobs 1 --only learnability",
    "anyones_agents": "--quick",
    "arc_policy": "--lessons 2 --steps 1 --count 2",
    "blame": "--runs 2 --forks 1",
    "chunking": "--quick --megabytes 0.1 --fuzz 100",
    "demo": "--problems 8 --repeats 1",
    "distillation": "--runs 2 --problems 2 --student-steps 2 --steps 1",
    "engine": "--requests 16",
    "engine_share": "--quick",
    "environment": "--quick --clients 8",
    "environment.load": "--quick",
    "environment.queue": "--quick",
    "failures": "--quick",
    "film": "--quick",
    "gate": "--quick",
    "gpu_training": "--quick --device cpu --dtype float32",
    "learning": "--quick --seeds 1 --problems 2 --only together",
    "on_gpu": "--quick",
    "orchestration": "--conversations 2 --repeats 1",
    "others_environments": "--quick",
    "processes": "--problems 8 --repeats 1",
    "prompts": "--quick --only learning",
    "ray_workers": "--nodes 1 --rollouts 8 --burn 1 --wait 10",
    "real_size": "--quick",
    "rescoring": "--quick",
    "retrieval_index": "--chunks 500 --questions 20",
    "retrieval_quality": "--quick --strategy default semantic --size 256 --resamples 200",
    "retrieval_shown": "--quick",
    "reward_diff": "--quick",
    "roc_study": "--quick --arms grpo-roc",
    "role_swaps": "--quick --only order",
    "rollout_profile": "--rollouts 8 --repeats 1",
    "simulate": "--quick",
    "simulate.break_even": "--quick --seeds 1",
    "store": "--quick --repeats 1",
    "traces_in": "--quick",
    "training_step": "--quick --repeats 1",
    "viewer": "--quick",
    "why": "--quick",
}
"""Options that make each benchmark short. Its figures are not checked."""
LONGEST = {
    "algorithms",
    "distillation",
    "engine_share",
    "environment",
    "environment.queue",
    "film",
    "gate",
    "learning",
    "orchestration",
    "processes",
    "prompts",
    "ray_workers",
    "real_size",
    "reward_diff",
    "role_swaps",
    "rollout_profile",
    "store",
    "training_step",
    "viewer",
    "why",
}
"""Quick forms that take long: `make bench` runs these benchmarks, and here they are asked for their
options.
"""


def test_make_bench_leaves_none_out() -> None:
    lines = (PROJECT / "Makefile").read_text().splitlines()
    (listed,) = (line.partition(":=")[2] for line in lines if line.startswith("BENCHMARKS :="))
    assert sorted(listed.split()) == BENCHMARKS
    assert set(BENCHMARKS) <= QUICK.keys()
    done = subprocess.run(
        ["make", "-n", "bench"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert "-m benchmarks.$name --json benchmarks/results/$name.json" in done.stdout


def run(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks.NAME WORDS...` in this process: to import torch takes longer than most
    quick forms.
    """
    monkeypatch.setattr(sys, "argv", [f"benchmarks.{name}", *words])
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(QUICK.keys() - LONGEST))
def test_a_benchmark_runs_in_its_quick_form(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(name, [*QUICK[name].split(), "--json", str(tmp_path / "numbers.json")], monkeypatch)
    assert json.loads((tmp_path / "numbers.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONGEST))
def test_the_longest_begin(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, ["--help"], monkeypatch)
    told = capsys.readouterr()
    assert told.err == ""
    options = {word for word in QUICK[name].split() if word.startswith("--")}
    assert {option for option in options if option not in told.out} == set()
