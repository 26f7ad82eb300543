"""Trainings and evaluations by the command line, each in a process of one thread, some side by
side.

A run whose folder is there already goes on, or is only read: an interrupted benchmark is taken up
by `--folder`.
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
    """The model that `hrm-agent train rl` with these flags makes in `folder`."""
    if not (folder / "model").exists():
        _run(folder, "train", "rl", *flags)
    return folder / "model"


def evaluated(folder: Path, policy: str | Path, *flags: str) -> Row:
    """`problems`, `pass_at_1` and its 95 % `interval` on held-out problems, at the temperature of
    training.
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
    """Rollouts that were sampled."""
    return sum(int(row["rollout/count"]) for row in rows)


def share_trained(rows: Sequence[Row]) -> float:
    """Of the rollouts that were sampled, those that had a say in the gradient."""
    return sum(row["select/kept"] for row in rows) / max(1, rollouts_of(rows))


def _run(folder: Path, *words: str) -> Row:
    """What the command prints with --json."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "hrm_agent", *words, "--out", str(folder), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}
