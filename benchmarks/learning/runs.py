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

__all__ = ["evaluated", "rollouts_of", "rows_of", "share_trained", "trained"]

Row = dict[str, Any]


def trained(folder: Path, *flags: str) -> Path:
    """Train a model in `folder` by `hrm-agent train rl` with these flags and return its path."""
    if not (folder / "model").exists():
        _run(folder, "train", "rl", *flags)
    return folder / "model"


def evaluated(folder: Path, policy: str | Path, *flags: str) -> Row:
    """Evaluate a policy: `problems`, `pass_at_1` and its 95 % `interval` on held-out problems, at
    the temperature of training.
    """
    kept = folder / "evaluation.json"
    if not kept.exists():
        found = _run(folder, "eval", "--policy", str(policy), "--temperature", "1", *flags)
        kept.write_text(
            json.dumps({key: found[key] for key in ("problems", "pass_at_1", "interval")})
        )
    return json.loads(kept.read_text())


def rows_of(folder: Path) -> list[Row]:
    return read_metrics(folder / "metrics.jsonl")


def rollouts_of(rows: Sequence[Row]) -> int:
    """Number of sampled rollouts."""
    return sum(int(row["rollout/count"]) for row in rows)


def share_trained(rows: Sequence[Row]) -> float:
    """Share of the sampled rollouts that contribute to the gradient."""
    return sum(row["select/kept"] for row in rows) / max(1, rollouts_of(rows))


def _run(folder: Path, *words: str) -> Row:
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
