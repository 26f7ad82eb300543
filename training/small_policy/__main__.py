"""Rebuild the policies that the package ships: the cold start, then what GRPO-RoC makes of it.

    python -m training.small_policy [--out FOLDER] [--runs FOLDER] [--seed N] [--only cold-start|trained]

Each is measured on held-out problems through the graphs, the engine and the sandbox, and the figures go to its card.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import hrm_agent.models
from training.collect import collect
from training.configs import CollectConfig, GrpoConfig
from training.evaluate import Evaluation, evaluate
from training.grpo import train
from training.small_policy.cold_start import COLD_START, build_cold_start

__all__ = ["main"]

EVAL_SEED = 1
LOOP_PROBLEMS = 256
ROLE_PROBLEMS = 100
TRAINED_CARD = Path(__file__).with_name("trained_card.md")


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m training.small_policy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(hrm_agent.models.__file__).parent / "builtin")
    parser.add_argument("--runs", type=Path, default=Path("runs/small-policy"), help="where the runs are recorded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["cold-start", "trained"], help="build one of the two")
    options = parser.parse_args(arguments)
    cold, trained = options.out / "cold-start", options.out / "trained"
    if options.only != "trained":
        build_cold_start(cold, options.seed, _teller(COLD_START.steps, "loss"))
        _measure(cold, options.runs / "eval-cold-start")
    if options.only != "cold-start":
        _train(cold, trained, options.runs / "train", options.seed)
        _measure(trained, options.runs / "eval-trained")


def _train(start: Path, out: Path, run: Path, seed: int) -> None:
    config = GrpoConfig(policy=str(start), seed=seed)
    model = asyncio.run(train(config, run, on_step=_teller(config.steps, "rollout/correct")))
    shutil.copytree(model, out, dirs_exist_ok=True)
    (out / "README.md").write_text(TRAINED_CARD.read_text(encoding="utf-8").format(config=config), encoding="utf-8")


def _measure(policy: Path, run: Path) -> None:
    """Append the policy's figures to its card."""
    loop = CollectConfig(policy=str(policy), count=LOOP_PROBLEMS, context=GrpoConfig().context, seed=EVAL_SEED)
    roles = CollectConfig(policy=str(policy), count=ROLE_PROBLEMS, graph="reasoning", temperature=0, seed=EVAL_SEED)
    in_loop = evaluate(asyncio.run(collect(loop, run / "tool_loop")))
    in_roles = evaluate(asyncio.run(collect(roles, run / "reasoning")))
    figures = [
        "",
        f"**Figures** on held-out problems (seed {EVAL_SEED}), through the graphs of this package.",
        "",
        "| graph | temperature | problems | correct (95 % interval) | of these with a tool error |",
        "|---|---|---|---|---|",
        _row("tool_loop", loop, in_loop),
        _row("reasoning", roles, in_roles),
    ]
    with (policy / "README.md").open("a", encoding="utf-8") as card:
        card.write("\n".join(figures) + "\n")
    sys.stderr.write("\n".join(figures) + "\n")


def _row(graph: str, asked: CollectConfig, found: Evaluation) -> str:
    low, high = found.interval
    share = f"{found.pass_at_1:.3f} ({low:.3f} to {high:.3f})"
    return f"| {graph} | {asked.temperature} | {found.problems} | {share} | {found.correct_with_tool_error:.3f} |"


def _teller(steps: int, figure: str) -> Callable[[dict[str, float]], None]:
    """Says every so often how far it is."""
    every = max(1, steps // 20)

    def tell(row: dict[str, float]) -> None:
        if int(row["step"]) % every == 0:
            sys.stderr.write(f"step {int(row['step'])} of {steps}: {figure} {row[figure]:.3f}\n")

    return tell


if __name__ == "__main__":
    main()
