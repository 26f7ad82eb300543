"""Parts of the trainer against their absence, on the small policies, over several seeds.

    python -m benchmarks.algorithms [--only CLAIM ...] [--seeds 5] [--jobs 2] [--folder F] [--json FILE]

* `credit`: the four-role agent from a start that errs in each role, by the credit of whole rollouts,
  with rewards of single calls, and by forks, at equal sampled tokens.
* `teacher`: the cold start with the trained policy as teacher and no outcome, against reinforcement
  learning as in `make demo`.
* `format`: reinforcement learning as in `make demo` in bfloat16, against float32.
* `learnability`: tasks drawn by their success rates against tasks in order, from a pool of 120 of
  which a third is mastered and a third is never solved. Measured are the steps until the held-out problems
  of the pool are as often right as `GOAL`.

Accuracies are on held-out problems at the temperature of training. Each training is one process of
one thread, `--jobs` seeds in parallel. Differences from the first way are paired by seed, with
Student's 95 % interval. With `--folder` runs are kept, and existing ones are not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from benchmarks.algorithms.lessons import lessons
from benchmarks.learning.runs import continued, cpu_seconds, evaluated, fine_tuned, rows_of, trained
from hrm_agent.basics.intervals import Estimate, mean_interval
from hrm_agent.training.small_policy.format_lessons import write_lessons

Row = dict[str, Any]
Flags = Mapping[str, str]
ROLES: Flags = {
    "policy": "builtin:roles-cold-start",
    "graph": "reasoning",
    "algorithm": "grpo",
    "steps": "16",
    "prompts-per-step": "8",
    "group-size": "8",
    "learning-rate": "2e-4",
    "forward": "tree",
}
TURNS = "benchmarks.algorithms.turns:rubric"
CREDITS: Mapping[str, Flags] = {
    "whole_trajectory": {},
    "per_turn": {"credit": "per_turn", "turn-weight": "0.5", "rewards": TURNS},
    "forks": {"credit": "forks"},
}
DEMO: Flags = {"policy": "builtin:cold-start", "steps": "30"}
TEACHERS: Mapping[str, Flags] = {
    "outcome": {},
    "teacher": {
        "algorithm": "grpo",
        "teacher": "builtin:trained",
        "outcome-coef": "0",
        "group-size": "4",
    },
}
FORMATS: Mapping[str, Flags] = {"outcome": {}, "bfloat16": {"dtype": "bfloat16"}}
"""The first way trains in float32, as in `TEACHERS`."""
POOL: Flags = {
    "tasks": "benchmarks.algorithms.pool:tasks",
    "problems": "120",
    "algorithm": "grpo",
    "steps": "40",
    "prompts-per-step": "12",
    "group-size": "8",
    "learning-rate": "2e-4",
    "max-tokens": "96",
    "eval-every": "4",
    "eval-problems": "192",
}
START: Flags = {
    "optimizer": "muon",
    "learning-rate": "1e-3",
    "matrix-learning-rate": "0.01",
    "cooldown": "0.5",
    "average": "0.97",
    "steps": "100",
    "batch-size": "32",
}
GOAL = 0.58
"""Share of right held-out problems of the pool. The mastered third and nine tenths of the third that
can be learnt would be 0.63.
"""
QUICK: Flags = {"steps": "1", "prompts-per-step": "2", "group-size": "4"}


def credit(folder: Path, seed: int, problems: int, quick: bool) -> list[Row]:
    """Rows of the ways to credit. All but the first go on until they have sampled as many tokens."""
    found: list[Row] = []
    budget = 0.0
    for way, flags in CREDITS.items():
        place = folder / f"credit-{way}-{seed}"
        keys = {**ROLES, **flags, **(QUICK if quick else {}), "seed": str(seed)}
        model = _trained_to(place, keys, budget)
        rows = rows_of(place)
        budget = budget or _sampled(rows)
        after = evaluated(
            folder / f"credit-{way}-{seed}-after",
            model,
            "--graph",
            "reasoning",
            "--count",
            str(problems),
        )
        shares = {
            role: [
                row["roles"].get(role, {}).get("weight_share", 0.0) for row in (rows[0], rows[-1])
            ]
            for role in rows[0]["roles"]
        }
        found.append(
            {"way": way, **_cost(rows), "correct": after["pass_at_1"], "weight_shares": shares}
        )
    return found


def _trained_to(place: Path, keys: dict[str, str], tokens: float) -> Path:
    """Train in `place`, and go on until `tokens` are sampled. The model is that of the last step."""
    while True:
        model = continued(place, int(keys["steps"]), *_flags(keys))
        rows = rows_of(place)
        missing = tokens - _sampled(rows)
        if missing <= 0:
            return model
        a_step = _sampled(rows) / len(rows)
        keys = keys | {"steps": str(len(rows) + max(1, round(missing / a_step)))}


def as_the_demo(
    ways: Mapping[str, Flags], folder: Path, seed: int, problems: int, quick: bool
) -> list[Row]:
    """Rows of ways to train the cold start of `make demo`."""
    found: list[Row] = []
    for way, flags in ways.items():
        place = folder / f"demo-{way}-{seed}"
        keys = {**DEMO, **flags, **(QUICK if quick else {}), "seed": str(seed)}
        model = trained(place, *_flags(keys))
        after = evaluated(folder / f"demo-{way}-{seed}-after", model, "--count", str(problems))
        found.append({"way": way, **_cost(rows_of(place)), "correct": after["pass_at_1"]})
    return found


def learnability(folder: Path, seed: int, problems: int, quick: bool) -> list[Row]:
    """Rows of both ways to draw tasks, from one start."""
    del problems
    written = folder / f"pool-lessons-{seed}.jsonl"
    if not written.exists():
        write_lessons(lessons(seed, 8 if quick else 3200), written)
    fitting = {**START, **({"steps": "1", "batch-size": "4"} if quick else {}), "seed": str(seed)}
    start = fine_tuned(folder / f"pool-start-{seed}", written, *_flags(fitting))
    found: list[Row] = []
    for way in ("order", "learnability"):
        place = folder / f"pool-{way}-{seed}"
        fewer = {**QUICK, "eval-every": "1", "eval-problems": "3", "problems": "6"} if quick else {}
        keys = {**POOL, **fewer, "policy": str(start), "draw": way, "seed": str(seed)}
        trained(place, *_flags(keys))
        rows = rows_of(place)
        curve = {
            int(row["step"]) + 1: row["eval/correct"]
            for row in rows
            if row["eval/correct"] is not None
        }
        reached = next((step for step, share in curve.items() if share >= GOAL), None)
        last = [share for _, share in list(curve.items())[-3:]]
        found.append(
            {
                "way": way,
                **_cost(rows),
                "correct": sum(last) / len(last),
                "steps_to_goal": reached,
                "no_signal": sum(row["select/groups_rejected"] for row in rows) / len(rows),
                "curve": curve,
            }
        )
    return found


CLAIMS: Mapping[str, Callable[[Path, int, int, bool], list[Row]]] = {
    "credit": credit,
    "teacher": partial(as_the_demo, TEACHERS),
    "format": partial(as_the_demo, FORMATS),
    "learnability": learnability,
}


def _flags(keys: Flags) -> list[str]:
    return [word for key, value in keys.items() for word in (f"--{key}", value)]


def _sampled(rows: Sequence[Row]) -> float:
    """Tokens that a training has sampled, those of its forks included."""
    return sum(
        row["rollout/sampled_tokens"] * row["rollout/count"]
        + (row.get("forks/sampled_tokens") or 0.0) * (row.get("forks/count") or 0.0)
        for row in rows
    )


def _cost(rows: Sequence[Row]) -> Row:
    return {
        "steps": len(rows),
        "sampled_tokens": round(_sampled(rows)),
        "cpu_seconds": round(cpu_seconds(rows)),
    }


def differences(by_seed: Sequence[Sequence[Row]]) -> list[Row]:
    """Mean of each way over the seeds, and its paired difference from the first way."""
    found: list[Row] = []
    for number, row in enumerate(by_seed[0]):
        ways = [rows[number]["correct"] for rows in by_seed]
        apart = [rows[number]["correct"] - rows[0]["correct"] for rows in by_seed]
        mean = mean_interval(ways)
        difference = mean_interval(apart)
        found.append(
            {
                "way": row["way"],
                "sampled_tokens": sum(rows[number]["sampled_tokens"] for rows in by_seed)
                // len(by_seed),
                "correct": _interval(mean),
                "difference": _interval(difference),
            }
        )
    return found


def _interval(found: Estimate) -> list[float | None]:
    """Mean, lower and upper end (None for an end that a single seed leaves open)."""
    return [None if isnan(each) else each for each in (found.value, found.low, found.high)]


def main() -> None:
    """Run the selected claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*CLAIMS], default=[*CLAIMS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="seeds in parallel")
    parser.add_argument("--problems", type=int, default=256, help="held-out problems")
    parser.add_argument("--quick", action="store_true", help="a step each, which says nothing")
    parser.add_argument(
        "--folder", type=Path, help="where the runs are kept; otherwise they are deleted"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        record: Row = {"problems": options.problems, "seeds": options.seeds}
        for name in options.only:
            claim = CLAIMS[name]
            with ThreadPoolExecutor(options.jobs) as pool:
                by_seed = list(
                    pool.map(
                        lambda seed, claim=claim: claim(
                            folder, seed, options.problems, options.quick
                        ),
                        range(options.seeds),
                    )
                )
            record[name] = {"differences": differences(by_seed), "by_seed": by_seed}
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
