"""`make bench` runs every benchmark, in a form that each of them takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
FOLDER = PROJECT / "benchmarks"
BENCHMARKS = sorted(
    [path.stem for path in FOLDER.glob("*.py")] + [path.parent.name for path in FOLDER.glob("*/__main__.py")]
)


def test_make_bench_leaves_none_out() -> None:
    lines = (PROJECT / "Makefile").read_text().splitlines()
    (listed,) = (line.partition(":=")[2] for line in lines if line.startswith("BENCHMARKS :="))
    assert sorted(listed.split()) == BENCHMARKS
    done = subprocess.run(["make", "-n", "bench"], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "-m benchmarks.$name --json benchmarks/results/$name.json" in done.stdout


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_writes_its_numbers_where_it_is_told(name: str) -> None:
    words = [sys.executable, "-m", f"benchmarks.{name}", "--json", "numbers.json", "--help"]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "--json" in done.stdout
