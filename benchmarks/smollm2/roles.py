"""SmolLM2-135M-Instruct learns the four roles of the reasoning graph: a cold start of form alone,
then GRPO-RoC (`configs/smollm2-135m-roles.toml`).

    python -m benchmarks.smollm2.roles [--seed 0] [--dtype float32] [--folder runs/smollm2-roles] [--json FILE]

The training is made with one adapter for all roles, and with one adapter a role. The better one of
both, by the rollouts of its last steps, is trained again with each role frozen in turn: its answers
are then context, and no token of them is trained on. Each is evaluated on the same held-out problems
of `basic_arithmetic` and of `decimal_chain_sum`, half of each. (After the cold start none of 64
problems of `gsm_symbolic` is right and all of `chain_sum` are, so that they teach nothing.) Up to
`--jobs` trainings run in parallel, of one thread each. What is in the folder is not repeated.
`--quick` takes a step each, in the folder's `quick`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.learning.runs import rows_of
from benchmarks.smollm2.commands import (
    POLICY,
    cold_start,
    cpu_seconds,
    evaluated,
    parser,
    report,
    run,
)
from benchmarks.smollm2.role_lessons import role_lessons

Row = dict[str, Any]
CONFIG = Path(__file__).parents[2] / "configs" / "smollm2-135m-roles.toml"
ROLES = ("plan", "solve", "critique", "synthesize")
"""Nodes of the graph that ask the model."""
SOURCES = {
    "basic_arithmetic": "reasoning_gym:basic_arithmetic",
    "decimal_chain_sum": "reasoning_gym:decimal_chain_sum",
}
LESSONS, LESSON_STEPS, QUICK_LESSONS = 640, 40, 32
QUICK = ("--steps", "1", "--prompts-per-step", "2", "--group-size", "2")
LAST_STEPS = 4
"""Steps at the end of a training whose rollouts choose the better one."""
ONE, OWN = "one adapter", "an adapter a role"


def compared(folder: Path, seed: int, problems: int, dtype: str, jobs: int, *, quick: bool) -> Row:
    """Facts of each point by source: the cold start, both trainings, and each frozen role.
    `problems`: held-out problems of all sources.
    """
    taught = role_lessons(seed, QUICK_LESSONS if quick else LESSONS)
    started = cold_start(folder / "cold-start", taught, seed, steps=LESSON_STEPS, quick=quick)
    own = [word for role in ROLES for word in ("--lora-roles", role)]

    def trained(point: str, *flags: str) -> Row:
        place = folder / point.replace(" ", "-")
        if not (place / "model").exists():
            common = ("--policy", str(started), "--seed", str(seed), "--out", str(place))
            reduced = (*common, "--dtype", dtype, *(QUICK if quick else ()))
            run(folder, "train", "rl", "--config", str(CONFIG), *flags, *reduced)
        last = rows_of(place)[-LAST_STEPS:]
        return {
            "cpu_seconds": cpu_seconds(place),
            "correct_at_the_end": sum(row["rollout/correct"] for row in last) / len(last),
            **_evaluated(place, place / "model", problems, dtype),
        }

    points: Row = {}
    with ThreadPoolExecutor(jobs) as pool:
        before = pool.submit(_evaluated, folder / "before", started, problems, dtype)
        shared = pool.submit(trained, ONE)
        separate = pool.submit(trained, OWN, *own)
        points |= {"cold start": before.result(), ONE: shared.result(), OWN: separate.result()}
        better = max((ONE, OWN), key=lambda point: points[point]["correct_at_the_end"])
        frozen: Row = {}
        for role in ROLES:
            others = [word for other in ROLES if other != role for word in ("--lora-roles", other)]
            kept = others if better == OWN else []
            point = f"{role} frozen"
            frozen[point] = pool.submit(trained, point, *kept, "--frozen-roles", role)
        points |= {point: made.result() for point, made in frozen.items()}
    return {"seed": seed, "dtype": dtype, "better": better, "points": points}


def _evaluated(place: Path, policy: Path, problems: int, dtype: str) -> Row:
    settings = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    return {
        source: evaluated(
            place / "held-out" / source,
            policy,
            cwd=place.parent,
            tasks=spec,
            problems=problems // len(SOURCES),
            context=settings["context"],
            flags={
                "graph": settings["graph"],
                "rewards": settings["rewards"],
                "max-tokens": str(settings["max_tokens"]),
            },
            dtype=dtype,
        )
        for source, spec in SOURCES.items()
    }


def _accuracy(facts: Mapping[str, Any]) -> float:
    return sum(facts[source]["accuracy"] for source in SOURCES) / len(SOURCES)


def table(record: Row) -> str:
    """Markdown table: accuracy by source with its 95 % interval, calls of the tool, tokens."""
    lines = [
        "| point | all | " + " | ".join(SOURCES) + " | tool calls | tokens |",
        "|---|---|" + "---|" * len(SOURCES) + "---|---|",
    ]
    for point, facts in record["points"].items():
        by_source = [
            f"{facts[s]['accuracy']:.3f} ({facts[s]['interval'][0]:.3f} to {facts[s]['interval'][1]:.3f})"
            for s in SOURCES
        ]
        means = [
            sum(facts[s][key] for s in SOURCES) / len(SOURCES) for key in ("tool_calls", "tokens")
        ]
        cells = (point, f"{_accuracy(facts):.3f}", *by_source, f"{means[0]:.2f}", f"{means[1]:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    asked = parser(__doc__, folder="runs/smollm2-roles", problems=128, counted="in all")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--jobs", type=int, default=2, help="trainings in parallel")
    asked.add_argument(
        "--dtype", default="bfloat16", help="number format of weights: bfloat16 or float32"
    )
    options = asked.parse_args()
    folder: Path = options.folder.absolute()
    folder = folder / "quick" if options.quick else folder
    folder.mkdir(parents=True, exist_ok=True)
    run(folder, "models", "get", POLICY)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    record = compared(
        folder,
        options.seed,
        options.problems,
        options.dtype,
        options.jobs,
        quick=options.quick,
    )
    report(table(record), record, options.json)


if __name__ == "__main__":
    main()
