"""Spread of the small policies' figures over seeds and CPU rounding.

    python -m benchmarks.small_policy.spread [--seeds 5] [--at-once 2] [--runs runs/small-policy-spread]
                                           [--on-record] [--write]

Each seed is built twice, in separate processes: with the instruction set that torch picks on this
CPU and one thread, and with `ATEN_CPU_CAPABILITY=avx2` and two threads, some minutes each. Builds
in `--runs` that the current recipe made are not repeated. With `--on-record` nothing is built, and
the table covers the builds that exist.

`--write` stores the table for the cards of later builds (`benchmarks/small_policy/spread.json`), and
ships the build of seed 0 on the CPU's own instruction set.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import hrm_agent.models
from benchmarks.small_policy.cards import SPREAD, spread_text
from benchmarks.small_policy.inputs import inputs_of_card, stale

__all__ = ["main", "table"]

POLICIES = ("cold-start", "trained")
PATHS: Mapping[str, tuple[int, dict[str, str]]] = {
    "own": (1, {}),
    "avx2": (2, {"ATEN_CPU_CAPABILITY": "avx2"}),
}
"""Ways of building, by name: threads, environment variables."""
Build = tuple[str, int]
"""Build as (path, seed)."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.small_policy.spread",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=2, help="builds side by side")
    parser.add_argument("--runs", type=Path, default=Path("runs/small-policy-spread"))
    parser.add_argument("--on-record", action="store_true", help="build nothing")
    parser.add_argument(
        "--write", action="store_true", help="keep the table, and ship the first build"
    )
    options = parser.parse_args(arguments)
    runs: Path = options.runs
    builds = [(path, seed) for path in PATHS for seed in range(options.seeds)]
    if not options.on_record:
        with ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(lambda build: _build(runs, *build), builds))
    spread = {name: found for name in POLICIES if (found := _spread(runs, name, builds))}
    told = json.dumps(spread, indent=2) + "\n"
    sys.stdout.write(told)
    if options.write:
        if not spread:
            parser.error(f"{runs} has fewer than two builds of the current recipe")
        SPREAD.write_text(told, encoding="utf-8")
        _ship(runs / "own-0" / "built")


def _build(runs: Path, path: str, seed: int) -> None:
    folder, (threads, variables) = runs / f"{path}-{seed}", PATHS[path]
    if all(_on_record(runs, name, (path, seed)) for name in POLICIES):
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.small_policy.build", "--seed", str(seed)]
    command += ["--out", str(folder / "built"), "--runs", str(folder / "runs")]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **variables}
    done = subprocess.run(
        command, env=environment, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if done.returncode:
        sys.exit(
            f"{done.stderr.decode(errors='replace')}\nThe build of seed {seed} ({path}) failed."
        )
    _stale.cache_clear()


def _on_record(runs: Path, name: str, build: Build) -> bool:
    """True if a policy was built and measured from the current inputs."""
    folder = runs / f"{build[0]}-{build[1]}"
    return (folder / "runs" / f"{name}.json").exists() and name not in _stale(
        folder / "built", build[1]
    )


@cache
def _stale(built: Path, seed: int) -> list[str]:
    return stale(built, seed)


def _spread(runs: Path, name: str, builds: Sequence[Build]) -> dict[str, Any] | None:
    """Spread of one policy over the builds on record (None for fewer than two)."""
    found = {
        (path, seed): json.loads(
            (runs / f"{path}-{seed}" / "runs" / f"{name}.json").read_text(encoding="utf-8")
        )
        for path, seed in builds
        if _on_record(runs, name, (path, seed))
    }
    if len(found) < 2:
        return None
    card = inputs_of_card(
        (runs / "own-0" / "built" / name / "README.md").read_text(encoding="utf-8")
    )
    assert card is not None, name
    return {
        "builds": f"{len(found)} builds ({_in_words(list(found))})",
        "inputs": str(card),
        "figures": table([_figures(told) for told in found.values()]),
    }


def _in_words(builds: Sequence[Build]) -> str:
    picked = torch.backends.cpu.get_cpu_capability()
    parts: list[str] = []
    for path, (threads, variables) in PATHS.items():
        seeds = [str(seed) for of, seed in builds if of == path]
        name = variables.get("ATEN_CPU_CAPABILITY", picked).upper()
        parts += [f"{name}, threads: {threads}, seeds: {', '.join(seeds)}"] if seeds else []
    return "; ".join(parts)


def _figures(told: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{graph}, {what}": figures[key]
        for graph, figures in told["figures"].items()
        for key, what in (("correct", "correct"), ("tool_errors", "of these with a tool error"))
    }


def table(builds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Statistics of each figure over the builds, which have the same kinds of figures."""
    columns = {name: [build[name] for build in builds] for name in builds[0]}
    return {
        name: {
            "mean": round(fmean(values), 4),
            "deviation": round(stdev(values), 4) if len(values) > 1 else 0.0,
            "smallest": min(values),
            "largest": max(values),
        }
        for name, values in columns.items()
    }


def _ship(built: Path) -> None:
    """Copy the policies, with the table in their cards, into the package."""
    for name in POLICIES:
        target = Path(hrm_agent.models.__file__).parent / "builtin" / name
        shutil.copytree(built / name, target, dirs_exist_ok=True)
        card = (built / name / "README.md").read_text(encoding="utf-8")
        inputs = inputs_of_card(card)
        assert inputs is not None, name
        before = (
            card.replace(f"\n{inputs}\n", "")
            .partition("\n**Spread**")[0]
            .partition("\nThis is one")[0]
        )
        (target / "README.md").write_text(
            f"{before}{spread_text(name, inputs)}\n{inputs}\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
