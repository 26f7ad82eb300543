"""Rebuild the policies that the package ships: cold-start, trained, roles-cold-start.

    python -m benchmarks.small_policy.build [--out FOLDER] [--runs FOLDER] [--seed N] [--only NAME]
    python -m benchmarks.small_policy.build --check

`cold-start` is trained by demonstrations, `trained` by GRPO-RoC from there, `roles-cold-start` by
demonstrations of the roles. Each policy is measured on held-out problems through the graphs, the
engine and the sandbox, and its card gets the figures. With `--check` nothing is built: the command
reports whether the policies in the folder equal those that would be built now.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import hrm_agent.models
from benchmarks.small_policy.cards import figures_text, roles_text, spread_text
from benchmarks.small_policy.figures import Figures, measure, measure_roles
from benchmarks.small_policy.inputs import (
    Inputs,
    cold_start_inputs,
    roles_inputs,
    stale,
    trained_inputs,
)
from hrm_agent.training.small_policy.__main__ import NAMES, build, parser

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command: build the policies, measure them and write the cards. The figures are also
    written to the folder of the runs as JSON.
    """
    asked = parser("benchmarks.small_policy.build", (__doc__ or "").split("\n")[0])
    asked.set_defaults(out=Path(hrm_agent.models.__file__).parent / "builtin")
    asked.add_argument(
        "--check",
        action="store_true",
        help="only report whether the policies in the folder are up to date",
    )
    options = asked.parse_args(arguments)
    out: Path = options.out
    runs: Path = options.runs
    seed: int = options.seed
    if options.check:
        _check(out, seed)
        return
    runs.mkdir(parents=True, exist_ok=True)
    inputs = cold_start_inputs(seed)
    for name in (options.only,) if options.only else NAMES:
        began = time.perf_counter()
        build(name, out, runs, seed)
        seconds = time.perf_counter() - began
        match name:
            case "trained":
                made_from = trained_inputs(out / "cold-start", inputs, seed)
            case "roles-cold-start":
                made_from = roles_inputs(out / "cold-start", inputs, seed)
            case _:
                made_from = inputs
        _finish(out / name, runs, made_from, seconds)


def _check(out: Path, seed: int) -> None:
    old = stale(out, seed)
    for name in NAMES:
        sys.stdout.write(
            f"{name}:"
            f" {'not what would be built now: run `make policy`' if name in old else 'up to date'}\n"
        )
    sys.exit(1 if old else 0)


def _finish(policy: Path, runs: Path, inputs: Inputs, seconds: float) -> None:
    """Measure a policy. Write its figures, the spread over other builds and its inputs to its
    card.
    """
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


if __name__ == "__main__":
    main()
