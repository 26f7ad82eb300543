"""How much the small policies hang on the seed and on the CPU's rounding: builds of both from several seeds, measured.

    python -m training.small_policy.spread [--seeds 5] [--at-once 2] [--runs runs/small-policy-spread] [--write]

Each seed is built twice, as a process of its own: with the instruction set that torch picks on this CPU and one thread,
and with `ATEN_CPU_CAPABILITY=avx2` and two threads. Built is what is not on record in `--runs` yet: some minutes each.

`--write` keeps the table for the cards of later builds (`training/small_policy/spread.json`), and ships the build of
seed 0 on the CPU's own instruction set.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import hrm_agent.models
from training.small_policy.cards import SPREAD, spread_text
from training.small_policy.inputs import Inputs, inputs_of_card

POLICIES = ("cold-start", "trained")
PATHS: Mapping[str, tuple[int, dict[str, str]]] = {
    "own": (1, {}),
    "avx2": (2, {"ATEN_CPU_CAPABILITY": "avx2"}),
}
"""Name -> (threads, variables)."""


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m training.small_policy.spread", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=2, help="builds side by side")
    parser.add_argument("--runs", type=Path, default=Path("runs/small-policy-spread"))
    parser.add_argument("--write", action="store_true", help="keep the table, and ship the first build")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    wanted = [(path, seed) for seed in range(options.seeds) for path in PATHS]
    with ThreadPoolExecutor(options.at_once) as pool:
        builds = list(pool.map(lambda build: _built(options.runs, *build), wanted))
    first = {name: _inputs(options.runs / "own-0" / "built" / name) for name in POLICIES}
    spread = {
        "builds": f"{len(builds)} builds: seeds 0 to {options.seeds - 1}, each by two paths of rounding ({_paths()})",
        "inputs": {name: inputs.digest for name, inputs in first.items()},
        "figures": {name: _table([build[name] for build in builds]) for name in POLICIES},
    }
    told = json.dumps(spread, indent=2) + "\n"
    sys.stdout.write(told)
    if options.json:
        options.json.write_text(told, encoding="utf-8")
    if options.write:
        SPREAD.write_text(told, encoding="utf-8")
        _ship(options.runs / "own-0" / "built", first)


def _paths() -> str:
    """The paths in words. `own` is what torch picks where this runs."""
    picked = torch.backends.cpu.get_cpu_capability()
    return "; ".join(
        f"{variables.get('ATEN_CPU_CAPABILITY', picked).upper()}, threads: {n}" for n, variables in PATHS.values()
    )


def _built(runs: Path, path: str, seed: int) -> dict[str, dict[str, float]]:
    """Figures of one build by policy, from the record if it is there."""
    folder, (threads, variables) = runs / f"{path}-{seed}", PATHS[path]
    told = {name: folder / "runs" / f"{name}.json" for name in POLICIES}
    if not all(file.exists() for file in told.values()):
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "training.small_policy", "--seed", str(seed)]
        command += ["--out", str(folder / "built"), "--runs", str(folder / "runs")]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **variables}
        subprocess.run(command, env=environment, check=True, capture_output=True)
    return {name: _figures(json.loads(file.read_text(encoding="utf-8"))) for name, file in told.items()}


def _figures(told: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{graph}, {what}": figures[key]
        for graph, figures in told["figures"].items()
        for key, what in (("correct", "correct"), ("tool_errors", "with a tool error"))
    }


def _table(builds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
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


def _inputs(policy: Path) -> Inputs:
    found = inputs_of_card((policy / "README.md").read_text(encoding="utf-8"))
    assert found is not None, policy
    return found


def _ship(built: Path, inputs: Mapping[str, Inputs]) -> None:
    """Copy the policies, with the table in their cards."""
    for name in POLICIES:
        target = Path(hrm_agent.models.__file__).parent / "builtin" / name
        shutil.copytree(built / name, target, dirs_exist_ok=True)
        card = (built / name / "README.md").read_text(encoding="utf-8")
        line = str(inputs[name])
        assert card.count(line) == 1, name
        before = card.partition("\n**Spread**")[0] if "\n**Spread**" in card else card.partition(f"\n{line}")[0]
        (target / "README.md").write_text(f"{before}{spread_text(name, inputs[name])}\n{line}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
