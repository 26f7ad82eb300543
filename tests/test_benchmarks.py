"""`make bench` runs every benchmark, in a form that each of them takes; their quick forms run here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole

PROJECT = Path(__file__).parents[1]
FOLDER = PROJECT / "benchmarks"
BENCHMARKS = sorted(
    [path.stem for path in FOLDER.glob("*.py")] + [path.parent.name for path in FOLDER.glob("*/__main__.py")]
)
QUICK = {
    "anyones_agents": "--quick",
    "arc_policy": "--lessons 2 --steps 1 --count 2",
    "chunking": "--quick --megabytes 0.1 --fuzz 100",
    "demo": "--problems 8 --repeats 1",
    "distillation": "--runs 2 --problems 2 --student-steps 2 --steps 1",
    "engine": "--requests 16",
    "environment": "--quick --clients 1 8",
    "environment.load": "--quick",
    "environment.queue": "--quick",
    "orchestration": "--conversations 2 --repeats 1",
    "rescoring": "--quick",
    "retrieval_index": "--chunks 500 --questions 20",
    "retrieval_shown": "--quick",
    "store": "--quick --repeats 1",
    "training_step": "--quick --repeats 1",
}
"""What makes each short: its figures are not looked at."""
ASK_ALL = """
import contextlib, io, json, runpy, sys
said = {}
for name in sys.argv[1:]:
    sys.argv, text, code = [name, "--json", "numbers.json", "--help"], io.StringIO(), None
    with contextlib.redirect_stdout(text):
        try:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        except SystemExit as left:
            code = left.code
    said[name] = [code, text.getvalue()]
print(json.dumps(said))
"""
"""One process for all: most of a benchmark's start is the packages that others need too."""


def test_make_bench_leaves_none_out() -> None:
    lines = (PROJECT / "Makefile").read_text().splitlines()
    (listed,) = (line.partition(":=")[2] for line in lines if line.startswith("BENCHMARKS :="))
    assert sorted(listed.split()) == BENCHMARKS
    done = subprocess.run(["make", "-n", "bench"], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "-m benchmarks.$name --json benchmarks/results/$name.json" in done.stdout


@pytest.fixture(scope="module")
def said() -> dict[str, tuple[int | None, str]]:
    """Benchmark -> exit status and output, asked for its help."""
    words = [sys.executable, "-c", ASK_ALL, *BENCHMARKS]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_writes_its_numbers_where_it_is_told(name: str, said: dict[str, tuple[int | None, str]]) -> None:
    assert name in QUICK
    code, text = said[name]
    assert code in (0, None)
    assert "--json" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(QUICK.keys() - {"store"}))
def test_a_benchmark_runs_in_its_quick_form(name: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", f"benchmarks.{name}", *QUICK[name].split(), "--json", str(tmp_path / "numbers.json")]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "numbers.json").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("postgres")
def test_the_stores_benchmark_runs_in_its_quick_form(tmp_path: Path) -> None:
    test_a_benchmark_runs_in_its_quick_form("store", tmp_path)
