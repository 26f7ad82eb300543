"""`hrm-agent roles` against faults of known size, and against trainings.

    python -m benchmarks.role_swaps [--only order training] [--draws 10] [--tasks 128]
        [--held-out 192] [--steps 12] [--folder F] [--json FILE] [--quick]

* `order`: the hierarchical graph with a small policy, in which each role makes faults at a rate of its
  own (`benchmarks.role_swaps.faults`). The policy to try is the same one without faults. Rates are
  drawn at random, such that the expected gains of any two roles are at least `APART` standard errors
  of their difference apart. A draw is right if all four measured gains have the order of the
  expected ones. The sampled tokens, recorded runs included, are compared with those of five whole
  evaluations.
* `training`: the role that is named for `builtin:roles-cold-start` is trained alone, and all roles are
  trained, with equal options. Measured is the share of the gain that the former has on held-out
  problems.

Expected gains follow from the rates. A run is right if its plan is whole or the critic sends the cut
plan back and the next one is whole, no solver errs, and the synthesizer does not err. The share of
cut plans that the critic detects without faults is measured first, on other tasks. With `--folder`
an interrupted benchmark is resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Mapping
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.algorithms.__main__ import ROLES as TRAINING
from benchmarks.learning.runs import cpu_seconds, evaluated, rows_of, run_command, trained
from benchmarks.role_swaps.faults import ROLES, FaultyEngine, Rates
from hrm_agent.models import ActivePolicy, load_policy
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.runtime.settings import RolloutSettings
from hrm_agent.store import open_store
from hrm_agent.training.analysis.role_swaps import RoleSwap, SwappedRun, role_swaps
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.evaluation.budget import Meter
from hrm_agent.training.evaluation.prices import Prices
from hrm_agent.training.rollout.rollout import group_episodes, open_run
from hrm_agent.training.rollout.scoring import scoring_by
from hrm_agent.training.small_policy.role_faults import NO_FAULTS
from hrm_agent.training.small_policy.roles_cold_start import (
    LOOKING,
    ROLES_COLD_START,
    build_roles_cold_start,
)
from hrm_agent.training.tasks import load_tasks
from hrm_agent.training.tasks.word_problems import TEMPLATES
from hrm_agent.trajectory import Trajectory, derive_seed

Row = dict[str, Any]
APART = 2.0
"""Minimum difference between the expected gains of two roles, in standard errors at the number of
tasks. A task changes by at most one swap or the other, so that its variance is the gains' sum.
"""
MOST: Rates = {"plan": 0.6, "solve": 0.35, "critique": 0.98, "synthesize": 0.5}
"""Largest rates of the draws."""
SUBGOALS = {1: 0.1, 2: 0.6, 3: 0.3}
"""Share of the problems by their number of subgoals."""
SETTINGS = RolloutSettings(temperature=1.0)


def policy_without_faults(folder: Path, quick: bool) -> str:
    """Small policy whose four roles were taught without faults."""
    out = folder / "policy"
    if quick:
        return "builtin:trained"
    if not (out / "README.md").exists():
        start = Path(model_folder("builtin:cold-start"))
        build_roles_cold_start(
            start, out, seed=0, configs=(LOOKING, ROLES_COLD_START), faults=NO_FAULTS
        )
    return str(out)


async def sampled(
    folder: Path, engine: Any, tasks: int, seed: int
) -> tuple[list[Trajectory], list[SwappedRun]]:
    """Recorded runs of an engine on held-out problems."""
    async with open_run(folder, engine.name, SETTINGS, backend=engine) as runner:
        drawn = load_tasks("word_problems", split="eval", seed=seed, count=tasks)
        episodes = group_episodes(
            drawn, 1, run_id=folder.name, stage="base", seed=seed, graph="reasoning"
        )
        ended = await runner.run_all(episodes)
        runs = [
            SwappedRun(
                runner.store.journal.headers("id = ?", (each.id,))[0],
                frozenset(call.identity.role for call in each.calls),
                {},
                episode.seed or 0,
                episode.verify,
                episode.verify_run,
            )
            for each, episode in zip(ended, episodes, strict=True)
        ]
        return ended, runs


async def measured(
    folder: Path, policy: str, rates: Rates, tasks: int, seed: int
) -> tuple[list[RoleSwap], Row]:
    """Swaps of each role of the policy with faults by the one without, and the sampled tokens."""
    engine: Any = load_policy(policy)
    faulty: Any = FaultyEngine(engine, rates)
    base = folder / "base"
    ended, runs = await sampled(base, faulty, tasks, seed)
    out = folder / "swaps"
    with open_store(base / "store.db", read_only=True) as source:
        async with open_run(out, faulty.name, SETTINGS, backend=faulty) as runner:
            meter = Meter(out / "asked.jsonl", Prices({}), None, runner.store.journal.calls_among)
            async with scoring_by(CollectConfig(), runner.store) as score:
                swaps = await role_swaps(
                    runner, source, runs, ROLES, ActivePolicy(engine, SETTINGS.sampling()), score,
                    meter, run_id="swaps",
                )  # fmt: skip
            # the copies of recorded answers are what whole evaluations would sample, too
            whole = sum(each.sampled_tokens for each in runner.store.journal.trajectories())
            missing = sum(
                each.sampled_tokens
                for each, run in zip(ended, runs, strict=True)
                for role in ROLES
                if role not in run.roles
            )
    recorded = sum(each.sampled_tokens for each in ended)
    asked = recorded + meter.total.sampled
    return swaps, {
        "sampled_tokens": asked,
        "five_evaluations": recorded + whole + missing,
        "share": asked / (recorded + whole + missing),
    }


def expected(rates: Rates, detected: float, right: float) -> dict[str, float]:
    """Expected gain of each role, from the accuracy without faults."""
    before = _right(rates, detected)
    return {role: right * (_right({**rates, role: 0.0}, detected) - before) for role in ROLES}


def _right(rates: Rates, detected: float) -> float:
    """Expected share of right runs, relative to that without faults."""
    cut = rates["plan"]
    sent_back = detected * (1 - rates["critique"])
    total = 0.0
    for subgoals, share in SUBGOALS.items():
        plan = 1 - cut + cut * sent_back * (1 - cut) if subgoals > 1 else 1.0
        total += share * plan * (1 - rates["solve"]) ** subgoals
    return total * (1 - rates["synthesize"])


def drawn_rates(number: int, detected: float, right: float, tasks: int) -> dict[str, float]:
    """Rates of a draw whose expected gains are apart."""
    rng = random.Random(derive_seed(number, "rates"))
    while True:
        rates = {role: round(rng.uniform(0, MOST[role]), 3) for role in ROLES}
        gains = expected(rates, detected, right).values()
        pairs = combinations(gains, 2)
        if all(abs(a - b) > APART * sqrt((a + b) / tasks) for a, b in pairs):
            return rates


def calibrated(folder: Path, policy: str, tasks: int) -> Row:
    """Accuracy without faults, and the share of cut plans that the critic sends back."""
    kept = folder / "calibration.json"
    if not kept.exists():
        engine: Any = load_policy(policy)
        plain, _ = asyncio.run(
            sampled(folder / "plain", FaultyEngine(engine, {}), tasks, derive_seed(0, "plain"))
        )
        cut, _ = asyncio.run(
            sampled(
                folder / "cut", FaultyEngine(engine, {"plan": 1.0}), tasks, derive_seed(0, "cut")
            )
        )
        flawed = [each for each in cut if _first(each, "plan").count('"name"') < _subgoals(each)]
        back = ["replan" in _first(each, "critique") for each in flawed]
        found = {
            "right": fmean(each.outcome for each in plain),
            "detected": fmean(back) if back else 0.0,
        }
        kept.write_text(json.dumps(found))
    return json.loads(kept.read_text())


def _first(each: Trajectory, role: str) -> str:
    return next(
        (str(call.response["content"]) for call in each.calls if call.identity.role == role), ""
    )


def _subgoals(each: Trajectory) -> int:
    name = each.task.metadata["template"]
    return next(len(template.plan) for template in TEMPLATES if template.name == name)


def order(folder: Path, draws: int, tasks: int, quick: bool) -> Row:
    """Draws whose roles have the expected order."""
    policy = policy_without_faults(folder, quick)
    known = calibrated(folder, policy, 8 if quick else 96)
    rows: list[Row] = []
    for number in range(draws):
        place = folder / f"draw-{number}"
        kept = place / "row.json"
        if not kept.exists():
            began = time.process_time()
            detected = max(0.8, known["detected"]) if quick else known["detected"]
            rates = drawn_rates(number, detected, known["right"], max(tasks, 96))
            gains = expected(rates, detected, known["right"])
            place.mkdir(parents=True, exist_ok=True)
            swaps, tokens = asyncio.run(measured(place, policy, rates, tasks, 1000 + number))
            found = {each.role: each.gain for each in swaps}
            row = {
                "rates": rates,
                "expected": gains,
                "measured": found,
                "intervals": {
                    each.role: (each.comparison.difference.low, each.comparison.difference.high)
                    for each in swaps
                },
                "order": _ranking(found) == _ranking(gains),
                "first": _ranking(found)[0] == _ranking(gains)[0],
                **tokens,
                "cpu_seconds": round(time.process_time() - began),
            }
            kept.write_text(json.dumps(row))
        rows.append(json.loads(kept.read_text()))
    return {
        **known,
        "tasks": tasks,
        "draws": draws,
        "right_orders": sum(row["order"] for row in rows),
        "right_first": sum(row["first"] for row in rows),
        "tokens": sum(row["sampled_tokens"] for row in rows)
        / sum(row["five_evaluations"] for row in rows),
        "by_draw": rows,
    }


def _ranking(gains: Mapping[str, float]) -> list[str]:
    return sorted(gains, key=lambda role: -gains[role])


def training(folder: Path, steps: int, tasks: int, quick: bool) -> Row:
    """Gain of training the named role alone, relative to that of training all roles."""
    graph = ("--graph", "reasoning")
    start = TRAINING["policy"]
    # the swaps are on problems of another draw than the evaluations
    base = folder / "training-base"
    evaluated(base, start, *graph, "--count", str(tasks), "--seed", "7")
    named = _named(folder, base)
    flags = {**TRAINING, "steps": str(steps)}
    if quick:
        flags |= {"steps": "1", "prompts-per-step": "2", "group-size": "4"}
    words = [word for key, value in flags.items() for word in (f"--{key}", value)]
    frozen = [w for role in ROLES if role != named["best"] for w in ("--frozen-roles", role)]
    arms = {"all": words, "alone": [*words, *frozen]}
    found: Row = {"named": named["best"], "swaps": named["gains"]}
    before = evaluated(folder / "training-before", start, *graph, "--count", str(tasks))
    found["before"] = before
    for arm, given in arms.items():
        place = folder / f"training-{arm}"
        model = trained(place, *given)
        after = evaluated(folder / f"training-{arm}-after", model, *graph, "--count", str(tasks))
        found[arm] = {**after, "cpu_seconds": round(cpu_seconds(rows_of(place)))}
    gains = {arm: found[arm]["pass_at_1"] - before["pass_at_1"] for arm in arms}
    share = gains["alone"] / gains["all"] if gains["all"] > 0 else None
    return {**found, "gains": gains, "share": share}


def _named(folder: Path, base: Path) -> Row:
    """Role that the swaps by the trained policy name."""
    kept = folder / "training-roles.json"
    if not kept.exists():
        out = folder / "training-roles"
        found = run_command(out, "roles", str(base), "--try", "builtin:trained")
        kept.write_text(
            json.dumps(
                {
                    "best": found["best"],
                    "gains": {
                        row["role"]: row["comparison"]["difference"] for row in found["roles"]
                    },
                    "asked": found["asked"],
                }
            )
        )
    return json.loads(kept.read_text())


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=["order", "training"], default=["order", "training"]
    )
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=128, help="problems of a draw")
    parser.add_argument("--held-out", type=int, default=192, help="problems of an evaluation")
    parser.add_argument("--steps", type=int, default=12, help="steps of a training")
    parser.add_argument("--quick", action="store_true", help="a few tasks, which say nothing")
    parser.add_argument("--folder", type=Path, help="where the runs are kept [deleted]")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    draws = 1 if options.quick else options.draws
    tasks = 4 if options.quick else options.tasks
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        record: Row = {}
        if "order" in options.only:
            record["order"] = order(folder, draws, tasks, options.quick)
        if "training" in options.only:
            record["training"] = training(
                folder, options.steps, 4 if options.quick else options.held_out, options.quick
            )
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
