"""Rebuild the policies that the package ships: cold-start, trained, roles-cold-start.

    python -m hrm_agent.training.small_policy [--out FOLDER] [--runs FOLDER] [--seed N] [--only NAME]
    python -m hrm_agent.training.small_policy --check

They are a cold start, the result of GRPO-RoC on it, and a cold start of the roles. Each is measured
on held-out problems through the graphs, the engine and the sandbox, and its card gets the figures.
With `--check` nothing is built: it reports whether the policies in the folder equal those that
would be built now.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hrm_agent.models
from hrm_agent.training.config.fitted import decided
from hrm_agent.training.small_policy.cards import figures_text, roles_text, spread_text
from hrm_agent.training.small_policy.cold_start import COLD_START, build_cold_start
from hrm_agent.training.small_policy.figures import Figures, measure, measure_roles
from hrm_agent.training.small_policy.inputs import (
    Inputs,
    cold_start_inputs,
    roles_inputs,
    stale,
    trained_inputs,
)
from hrm_agent.training.small_policy.roles_cold_start import (
    ROLES_COLD_START,
    build_roles_cold_start,
)
from hrm_agent.training.small_policy.trained import REINFORCEMENT, build_trained

__all__ = ["main"]

NAMES = ("cold-start", "trained", "roles-cold-start")
"""Policies in the order in which they are built."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m hrm_agent.training.small_policy", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=Path(hrm_agent.models.__file__).parent / "builtin"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/small-policy"), help="where the runs are recorded"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=NAMES, help="build one of them")
    parser.add_argument(
        "--check", action="store_true", help="only say whether those in the folder are up to date"
    )
    options = parser.parse_args(arguments)
    if options.check:
        _check(options.out, options.seed)
        return
    build(options.out, options.runs, options.seed, options.only)


def build(out: Path, runs: Path, seed: int = 0, only: str | None = None) -> None:
    """Build the policies into `out`, measure them and write the cards. The figures are also written
    to `runs` as JSON.
    """
    cold, trained, roles = (out / name for name in NAMES)
    runs.mkdir(parents=True, exist_ok=True)
    inputs = cold_start_inputs(seed)
    if only in (None, "cold-start"):
        seconds = _timed(
            lambda: build_cold_start(
                cold, seed, _teller(decided(COLD_START.steps, "steps"), "loss")
            )
        )
        _finish(cold, runs, inputs, seconds)
    if only in (None, "trained"):
        tell = _teller(REINFORCEMENT.steps, "rollout/correct")
        seconds = _timed(lambda: build_trained(cold, trained, runs / "train", seed, tell))
        _finish(trained, runs, trained_inputs(cold, inputs, seed), seconds)
    if only in (None, "roles-cold-start"):
        tell = _teller(decided(ROLES_COLD_START.steps, "steps"), "loss")
        seconds = _timed(lambda: build_roles_cold_start(cold, roles, seed, tell))
        _finish(roles, runs, roles_inputs(cold, inputs, seed), seconds)


def _check(out: Path, seed: int) -> None:
    old = stale(out, seed)
    for name in NAMES:
        sys.stdout.write(
            f"{name}:"
            f" {'not what would be built now: run `make policy`' if name in old else 'up to date'}\n"
        )
    sys.exit(1 if old else 0)


def _finish(policy: Path, runs: Path, inputs: Inputs, seconds: float) -> None:
    """Measure a policy. Write its figures, those of other seeds and its inputs to its card."""
    began = time.perf_counter()
    found, text = _measured(policy, runs / f"eval-{policy.name}")
    measuring = time.perf_counter() - began
    told = {
        "figures": {name: figures.rounded() for name, figures in found.items()},
        "seconds": seconds,
    }
    (runs / f"{policy.name}.json").write_text(
        json.dumps({**told, "measuring_seconds": measuring}), encoding="utf-8"
    )
    with (policy / "README.md").open("a", encoding="utf-8") as card:
        card.write(f"{text}{spread_text(policy.name, inputs)}\n{inputs}\n")
    sys.stderr.write(text)


def _measured(policy: Path, run: Path) -> tuple[dict[str, Figures], str]:
    """Figures of a policy by graph, and the text of its card."""
    if policy.name == "roles-cold-start":
        found = measure_roles(policy, run)
        return found.by_graph, roles_text(found)
    figures = measure(policy, run)
    return figures, figures_text(figures)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _teller(steps: int, figure: str) -> Callable[[dict[str, float]], None]:
    """Return a function that reports progress on stderr about twenty times."""
    every = max(1, steps // 20)

    def tell(row: dict[str, float]) -> None:
        if int(row["step"]) % every == 0:
            sys.stderr.write(f"step {int(row['step'])} of {steps}: {figure} {row[figure]:.3f}\n")

    return tell


if __name__ == "__main__":
    main()
