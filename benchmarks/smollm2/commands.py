"""Commands of the program, as the benchmarks run them: a cold start, a training, an evaluation."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.arguments import as_pairs
from hrm_agent.training.sft import Conversation
from hrm_agent.training.small_policy.format_lessons import write_lessons

__all__ = [
    "HELD_OUT_SEED",
    "POLICY",
    "cold_start",
    "cpu_seconds",
    "evaluated",
    "parser",
    "report",
    "run",
]

Row = dict[str, Any]
PROJECT = Path(__file__).parents[2]
POLICY = "smollm2-135m"
COLD_START = {
    "batch-size": "16",
    "learning-rate": "1e-4",
    "warmup-steps": "3",
    "cooldown": "0.5",
    "forward": "packed",
}
QUICK_STEPS = 2
HELD_OUT_SEED = 1_000
"""Seed of the held-out problems, which no training has."""
FACTS = {
    "accuracy": "pass_at_1",
    "interval": "interval",
    "tool_calls": "mean_tool_calls",
    "tool_errors": "tool_error_share",
    "errors_among_correct": "correct_with_tool_error",
    "without_call": "without_call",
    "tokens": "mean_sampled_tokens",
}
"""Fact of an evaluation -> its name in `results.json`."""


def parser(doc: str | None, *, folder: str, problems: int, counted: str) -> argparse.ArgumentParser:
    """Options of all benchmarks of this folder. `problems`: default number of held-out problems,
    `counted` as the help says.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--problems", type=int, default=problems, help=f"held-out problems {counted}")
    made.add_argument("--folder", type=Path, default=Path(folder))
    made.add_argument("--quick", action="store_true", help="a step each, which says nothing")
    made.add_argument("--json", type=Path, help="write the numbers to this file")
    return made


def report(table: str, record: Any, path: Path | None) -> None:
    """Print the table, and write the record if there is a file for it."""
    print(table)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def cold_start(
    place: Path, lessons: Iterable[Conversation], seed: int, *, steps: int, quick: bool
) -> Path:
    """Train the policy on lessons, unless this is done. Returns its weights' folder."""
    if not (place / "model").exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        written = place.parent / "lessons.jsonl"
        write_lessons(list(lessons), written)
        flags = _flags({"steps": str(QUICK_STEPS if quick else steps)} | COLD_START)
        common = ("--policy", POLICY, "--seed", str(seed), "--out", str(place))
        run(place.parent, "train", "sft", str(written), *common, *flags)
    return place / "model"


def evaluated(
    place: Path,
    policy: str | Path,
    *,
    cwd: Path,
    tasks: str,
    problems: int,
    context: Mapping[str, Any],
    flags: Mapping[str, str],
    seed: int = HELD_OUT_SEED,
    dtype: str = "bfloat16",
) -> Row:
    """Facts of an evaluation on held-out problems, which is made in `place` unless it is there. The
    most probable token is taken each time. Exits if another number of problems is there.
    """
    results = place / "results.json"
    if not results.exists():
        common = {
            "policy": f"{policy}?dtype={dtype}",
            "tasks": tasks,
            "count": str(problems),
            "seed": str(seed),
            "temperature": "0",
            "out": str(place),
        }
        given = [word for pair in as_pairs(context) for word in ("--context", pair)]
        run(cwd, "eval", *_flags(common | dict(flags)), *given)
    found = json.loads(results.read_text(encoding="utf-8"))
    if not found["config"]["policy"].endswith(f"?dtype={dtype}"):
        raise SystemExit(
            f"{place} has an evaluation of {found['config']['policy']}, not in {dtype}."
        )
    if found["problems"] != problems:
        raise SystemExit(
            f"{place} has an evaluation of {found['problems']} problems, not of {problems}."
            " Name another --folder, or delete it."
        )
    return {fact: found[key] for fact, key in FACTS.items()}


def cpu_seconds(place: Path) -> float:
    """CPU seconds of a training."""
    rows = map(json.loads, (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return sum(v for row in rows for k, v in row.items() if k.endswith("_cpu_seconds"))


def run(cwd: Path, *words: str) -> None:
    """Run a command of the program in a folder, and show what it reports."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "hrm_agent", *words]
    code = subprocess.run(command, env=environment, cwd=cwd, check=False).returncode
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}.")


def _flags(keys: Mapping[str, str]) -> Sequence[str]:
    return [word for key, value in keys.items() for word in (f"--{key}", value)]
