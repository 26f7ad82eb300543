"""CPU profile of a rollout: this tree, an earlier commit, and the bare engine, in one run.

    python -m benchmarks.rollout_profile [--against COMMIT] [--graph tool_loop] [--rollouts 256] [--repeats 3]
                                         [--options JSON] [--json FILE]

Each measurement is a separate process: a warm-up, then a `collect` of word problems with the
shipped small policy. `engine`, `loop` and `other threads` are CPU milliseconds by the clocks of the
threads, `children` those of the sandbox. `bare` is the engine alone, given the same prompts and
seeds turn by turn in a closed loop. The counts come from another run, since counting costs time.
COMMIT is checked out separately (`git worktree`) and measured in turn with this tree. The median of
the repeats counts. OPTIONS are further fields of `CollectConfig`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parents[2]
PARTS = ("engine", "loop", "other threads", "children", "CPU", "wall")
Row = dict[str, Any]


@contextmanager
def checked_out(commit: str) -> Generator[Path]:
    """Tree of a commit, with its compiled part built."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        subprocess.run(
            ["git", "-C", HERE, "worktree", "add", "--detach", "-q", tree, commit], check=True
        )
        try:
            build = "import hatch_build as h; print(h.build(h.Path(h.FOLDER, '_serve.c')), end='')"
            done = subprocess.run(
                [sys.executable, "-c", build], cwd=tree, capture_output=True, text=True, check=True
            )
            if done.stdout:
                raise SystemExit(
                    f"The compiled part of the sandbox could not be built: {done.stdout}"
                )
            yield tree
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", tree], check=True)


def measured(tree: Path, options: argparse.Namespace, *, counts: bool) -> Row:
    command = [
        sys.executable,
        str(Path(__file__).with_name("measured.py")),
        "--graph",
        options.graph,
    ]
    command += [
        "--rollouts",
        str(options.rollouts),
        "--options",
        options.options if tree == HERE else "{}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command += ["--counts"] if counts else []
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def per_rollout(found: list[Row]) -> Row:
    """Medians in milliseconds per rollout."""

    def median(kind: str, part: str) -> float:
        return statistics.median(row[kind][part] / row["rollouts"] * 1e3 for row in found)

    counted = next(row for row in found if "counts" in row)
    rollouts, calls = counted["rollouts"], counted["calls"]
    return {
        **{f"{part} ms": median("seconds", part) for part in PARTS},
        "bare engine CPU ms": median("bare", "CPU"),
        "CPU ms a model call": statistics.median(
            row["seconds"]["CPU"] / row["calls"] * 1e3 for row in found
        ),
        "share of the bare engine, CPU": statistics.median(
            row["bare"]["CPU"] / row["seconds"]["CPU"] for row in found
        ),
        "model calls": calls / rollouts,
        "store bytes": counted["store bytes"] / rollouts,
        **{
            name: count / rollouts
            for name, count in sorted(counted["counts"].items())
            if name != "engine steps"
        },
        "transactions a model call": counted["counts"]["transactions"] / calls,
        "engine steps, all": counted["counts"]["engine steps"],
        "engine steps of the bare engine": counted["bare engine steps"],
    }


def compare(options: argparse.Namespace) -> dict[str, Row]:
    trees = {"this tree": HERE}
    if options.against is None:
        return summed(trees, options)
    with checked_out(options.against) as tree:
        return summed({"this tree": HERE, options.against: tree}, options)


def summed(trees: dict[str, Path], options: argparse.Namespace) -> dict[str, Row]:
    found: dict[str, list[Row]] = {name: [] for name in trees}
    for repeat in range(options.repeats):
        for name, tree in trees.items():
            found[name].append(measured(tree, options, counts=repeat == 0))
    return {name: per_rollout(rows) for name, rows in found.items()}


def show(rows: dict[str, Row]) -> None:
    names = list(rows)
    table = Table("a rollout", *names, *(["ratio"] if len(names) > 1 else []))
    for what in rows[names[0]]:
        values = [rows[name].get(what, 0.0) for name in names]
        ratio = [f"{values[0] / values[1]:.2f}" if values[1] else ""] if len(names) > 1 else []
        table.add_row(what, *(f"{value:,.2f}" for value in values), *ratio)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--graph", default="tool_loop", help="tool_loop or reasoning")
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--options", default="{}", help="fields of CollectConfig for this tree, as JSON"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    rows = compare(options)
    show(rows)
    if options.json is not None:
        settings = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": os.getloadavg(),
            "graph": options.graph,
            "rollouts": options.rollouts,
            "repeats": options.repeats,
        }
        options.json.write_text(
            json.dumps({"settings": settings, "rollout": rows}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
