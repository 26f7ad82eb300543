"""Build the policies that the package ships: cold-start, trained, roles-cold-start.

    python -m hrm_agent.training.small_policy [--out FOLDER] [--runs FOLDER] [--seed N] [--only NAME]

`trained` is the result of GRPO-RoC on `cold-start`, and `roles-cold-start` is a cold start for the
roles of the hierarchical graph. `make policy` also measures the policies, and writes the figures to
their cards.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from hrm_agent.training.config.fitted import decided
from hrm_agent.training.small_policy.cold_start import COLD_START, build_cold_start
from hrm_agent.training.small_policy.roles_cold_start import (
    ROLES_COLD_START,
    build_roles_cold_start,
)
from hrm_agent.training.small_policy.trained import REINFORCEMENT, build_trained

__all__ = ["NAMES", "build", "parser"]

NAMES = ("cold-start", "trained", "roles-cold-start")
"""Policies in the order in which they are built."""


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """Parser of the command line of a build."""
    options = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    options.add_argument("--out", type=Path, default=Path("runs/small-policy/built"))
    options.add_argument(
        "--runs", type=Path, default=Path("runs/small-policy"), help="where the runs are recorded"
    )
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=NAMES, help="build one of them")
    return options


def build(name: str, out: Path, runs: Path, seed: int = 0) -> None:
    """Build the policy `name` into a subfolder of `out`. The cold start, from which the other two
    begin, must be there.
    """
    cold = out / "cold-start"
    match name:
        case "cold-start":
            build_cold_start(cold, seed, _teller(decided(COLD_START.steps, "steps"), "loss"))
        case "trained":
            tell = _teller(REINFORCEMENT.steps, "rollout/correct")
            build_trained(cold, out / name, runs / "train", seed, tell)
        case _:
            tell = _teller(decided(ROLES_COLD_START.steps, "steps"), "loss")
            build_roles_cold_start(cold, out / name, seed, tell)


def _teller(steps: int, figure: str) -> Callable[[dict[str, float]], None]:
    """Return a function that reports progress on stderr about twenty times."""
    every = max(1, steps // 20)

    def tell(row: dict[str, float]) -> None:
        if int(row["step"]) % every == 0:
            sys.stderr.write(f"step {int(row['step'])} of {steps}: {figure} {row[figure]:.3f}\n")

    return tell


if __name__ == "__main__":
    given = parser("hrm_agent.training.small_policy", (__doc__ or "").split("\n")[0]).parse_args()
    for each in (given.only,) if given.only else NAMES:
        build(each, given.out, given.runs, given.seed)
