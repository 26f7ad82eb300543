"""Trainings and evaluations by the command line, each in a process of one thread, some in parallel.

A run whose folder exists is continued, or only read: `--folder` resumes an interrupted benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hrm_agent.training.metrics import read_metrics

__all__ = [
    "continued",
    "cpu_seconds",
    "evaluated",
    "fine_tuned",
    "rollouts_of",
    "rows_of",
    "run_command",
    "share_trained",
    "trained",
]

Row = dict[str, Any]


def trained(folder: Path, *flags: str) -> Path:
    """Train a model in `folder` by `hrm-agent train rl` with these flags and return its path."""
    if not (folder / "model").exists():
        run_command(folder, "train", "rl", *flags)
    return folder / "model"


def continued(folder: Path, steps: int, *flags: str) -> Path:
    """Train as `trained` does, or go on with the run in `folder` to `steps` steps."""
    if not (folder / "model").exists() or len(rows_of(folder)) < steps:
        run_command(folder, "train", "rl", *flags)
    return folder / "model"


def fine_tuned(folder: Path, lessons: Path, *flags: str) -> Path:
    """Fine-tune a model on `lessons` by `hrm-agent train sft` and return its path."""
    if not (folder / "model").exists():
        run_command(folder, "train", "sft", str(lessons), *flags)
    return folder / "model"


def evaluated(
    folder: Path,
    policy: str | Path,
    *flags: str,
    keys: Sequence[str] = ("problems", "pass_at_1", "interval"),
) -> Row:
    """Evaluate a policy on held-out problems at the temperature of training, and return the `keys`
    of its results. By default these are the share of correct answers and its 95 % interval.
    """
    kept = folder / "evaluation.json"
    if not kept.exists():
        found = run_command(folder, "eval", "--policy", str(policy), "--temperature", "1", *flags)
        kept.write_text(json.dumps({key: found[key] for key in keys}))
    return json.loads(kept.read_text())


def rows_of(folder: Path) -> list[Row]:
    return read_metrics(folder / "metrics.jsonl")


def rollouts_of(rows: Sequence[Row]) -> int:
    """Number of sampled rollouts."""
    return sum(int(row["rollout/count"]) for row in rows)


def share_trained(rows: Sequence[Row]) -> float:
    """Share of the sampled rollouts that contribute to the gradient."""
    return sum(row["select/kept"] for row in rows) / max(1, rollouts_of(rows))


def cpu_seconds(rows: Sequence[Row]) -> float:
    """CPU seconds of all phases of the steps."""
    return sum(
        value for row in rows for name, value in row.items() if name.endswith("_cpu_seconds")
    )


def run_command(folder: Path, *words: str) -> Row:
    """Run a command and return the last JSON line that it prints with `--json`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "hrm_agent", *words, "--out", str(folder), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}
