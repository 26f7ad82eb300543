"""Effect of reinforcement learning on the small policies, over several seeds, by claim.

    python -m benchmarks.learning [--only CLAIM ...] [--seeds 3] [--jobs 2] [--folder F] [--json FILE]

* `demo`: the training of `make demo`, and a training with 0.7 of its rollouts: accuracy on held-out
  problems, share of the rollouts that are trained on.
* `roles`: the four-role agent from a start that errs in each role, by each way to credit its calls,
  at equal rollouts.
* `together`: one policy trained on the tool loop and on the four roles at once, measured on each.
* `stages`: `configs/laptop.toml`, stage by stage.
* `behind`: the tool loop, sampled by weights at most 0, 1 and 2 versions behind the trainer's, at
  equal rollouts.
* `waiting`: as `behind`, with few rollouts that each wait ten seconds. Wall clocks are compared,
  with `--jobs 1`.

Accuracies are on held-out problems at the temperature of training, with 95 % intervals. Each
training is one process of one thread, `--jobs` of them in parallel. With `--folder` runs are kept,
and existing ones are not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learning.runs import (
    cpu_seconds,
    evaluated,
    rollouts_of,
    rows_of,
    share_trained,
    trained,
)

Row = dict[str, Any]
Job = Callable[[], Row]
PROJECT = Path(__file__).parents[2]
ROLES_POLICY = "builtin:roles-cold-start"
CREDITS = ("whole_trajectory", "per_role", "even")
DEMO: dict[str, dict[str, str]] = {
    "as make demo": {"steps": "30"},
    "0.7 of its rollouts": {
        "steps": "21",
        "group-size": "13",
        "oversampling": "1.231",
        "learning-rate": "8e-4",
    },
}
BOUNDS = (0, 1, 2)
"""Values of `versions_behind`."""
QUICK = {"steps": "1", "prompts-per-step": "2", "group-size": "2"}


def demo(folder: Path, seed: int, problems: int, quick: bool) -> list[Job]:
    """Jobs of the two trainings of `demo`."""

    def job(name: str, keys: dict[str, str]) -> Row:
        place = folder / f"demo-{keys['steps']}-{seed}"
        model = trained(place, *_flags(keys | (QUICK if quick else {}), seed))
        found = evaluated(Path(f"{place}-after"), model, *_held_out(problems))
        rows = rows_of(place)
        return {
            "way": name,
            "rollouts": rollouts_of(rows),
            "share_trained": share_trained(rows),
            "after": found,
        }

    return [lambda name=name, keys=keys: job(name, keys) for name, keys in DEMO.items()]


def roles(folder: Path, seed: int, problems: int, quick: bool) -> list[Job]:
    """Jobs for each way to credit."""
    keys = {
        "policy": ROLES_POLICY,
        "graph": "reasoning",
        "steps": "16",
        "prompts-per-step": "8",
        "group-size": "8",
    }
    keys |= {"learning-rate": "2e-4", "forward": "tree"}

    def job(credit: str) -> Row:
        place = folder / f"roles-{credit}-{seed}"
        model = trained(place, *_flags(keys | {"credit": credit} | (QUICK if quick else {}), seed))
        found = evaluated(
            Path(f"{place}-after"), model, "--graph", "reasoning", *_held_out(problems)
        )
        rows = rows_of(place)
        last = {role: facts["weight_share"] for role, facts in rows[0]["roles"].items()}
        return {
            "way": credit,
            "rollouts": rollouts_of(rows),
            "weight_share_of_step_0": last,
            "after": found,
        }

    return [lambda credit=credit: job(credit) for credit in CREDITS]


def together(folder: Path, seed: int, problems: int, quick: bool) -> list[Job]:
    """Job of the joint training."""
    graph = f"{Path(__file__).with_name('both.py')}:graph"
    keys = {
        "policy": ROLES_POLICY,
        "graph": graph,
        "steps": "24",
        "prompts-per-step": "16",
        "group-size": "8",
    }
    keys |= {"learning-rate": "2e-4", "forward": "tree"}

    def job() -> Row:
        place = folder / f"together-{seed}"
        model = trained(place, *_flags(keys | (QUICK if quick else {}), seed))
        after = {
            name: evaluated(Path(f"{place}-{name}"), model, "--graph", name, *_held_out(problems))
            for name in ("tool_loop", "reasoning")
        }
        return {"way": "together", "rollouts": rollouts_of(rows_of(place)), "after": after}

    return [job]


def stages(folder: Path, seed: int, problems: int, quick: bool) -> list[Job]:
    """Job of the stages. The configuration has the number of held-out problems."""

    def job() -> Row:
        place = folder / f"stages-{seed}"
        few = [
            "--prompts-per-step",
            "2",
            "--group-size",
            "2",
            "--eval-problems",
            "2",
            "--problems",
            "4",
        ]
        trained(
            place,
            "--config",
            str(PROJECT / "configs" / "laptop.toml"),
            "--seed",
            str(seed),
            *(few if quick else []),
        )
        rows = rows_of(place)
        found: list[Row] = []
        for stage in sorted({row["stage"] for row in rows}):
            own = [row for row in rows if row["stage"] == stage]
            held_out = [row["eval/correct"] for row in own if row["eval/correct"] is not None]
            found.append(
                {
                    "steps": len(own),
                    "held_out": held_out[-1] if held_out else None,
                    "correct": fmean(row["rollout/correct"] for row in own[-5:]),
                    "tokens": fmean(row["rollout/sampled_tokens"] for row in own[-5:]),
                    "mastered": own[-1]["select/mastered"],
                    "truncated": fmean(row["rollout/truncated"] for row in own[-5:]),
                }
            )
        return {
            "way": "stages",
            "rollouts": rollouts_of(rows),
            "stages": found,
            "cpu_seconds": cpu_seconds(rows),
        }

    return [job]


def behind(folder: Path, seed: int, problems: int, quick: bool) -> list[Job]:
    """Jobs for each bound on the versions behind."""
    return [
        partial(_behind, folder / f"behind-{k}-{seed}", k, {"steps": "20"}, seed, problems, quick)
        for k in BOUNDS
    ]


def waiting(folder: Path, seed: int, problems: int, quick: bool) -> list[Job]:
    """Jobs for each bound on the versions behind, with waiting rollouts."""
    keys = {
        "steps": "8",
        "prompts-per-step": "4",
        "group-size": "4",
        "graph": f"{Path(__file__).with_name('waiting.py')}:graph",
    }
    return [
        partial(_behind, folder / f"waiting-{k}-{seed}", k, keys, seed, problems, quick)
        for k in BOUNDS
    ]


def _behind(
    place: Path, versions: int, keys: dict[str, str], seed: int, problems: int, quick: bool
) -> Row:
    keys = keys | {"versions-behind": str(versions), "correction": "token" if versions else "none"}
    model = trained(place, *_flags(keys | (QUICK if quick else {}), seed))
    found = evaluated(Path(f"{place}-after"), model, *_held_out(problems))
    rows = rows_of(place)
    known = [row for row in rows if row["staleness_max"] is not None]
    timed = [name for name in rows[0] if name.endswith("_seconds")]
    cpu = cpu_seconds(rows)
    return {
        "way": f"{versions} versions behind",
        "rollouts": rollouts_of(rows),
        "staleness_mean": fmean(row["staleness_mean"] for row in known),
        "staleness_max": max(row["staleness_max"] for row in known),
        "importance_cut": max(row["importance_cut"] for row in known),
        "effective_sample_size": min(row["effective_sample_size"] for row in known),
        "update_overlap": fmean(row["update_overlap"] for row in rows),
        "cpu_seconds": cpu,
        "seconds": sum(row[name] for row in rows for name in timed) - cpu,
        "after": found,
    }


CLAIMS = {
    "demo": demo,
    "roles": roles,
    "together": together,
    "stages": stages,
    "behind": behind,
    "waiting": waiting,
}


def starts(folder: Path, problems: int) -> list[Job]:
    """Jobs that measure the accuracies before the trainings."""

    def job(policy: str, graph: str) -> Row:
        place = folder / f"before-{policy.partition(':')[2]}-{graph}"
        return {
            "policy": policy,
            "graph": graph,
            **evaluated(place, policy, "--graph", graph, *_held_out(problems)),
        }

    wanted = [
        ("builtin:cold-start", "tool_loop"),
        (ROLES_POLICY, "tool_loop"),
        (ROLES_POLICY, "reasoning"),
    ]
    return [lambda policy=policy, graph=graph: job(policy, graph) for policy, graph in wanted]


def _flags(keys: dict[str, str], seed: int) -> list[str]:
    return [
        word for key, value in {**keys, "seed": str(seed)}.items() for word in (f"--{key}", value)
    ]


def _held_out(problems: int) -> tuple[str, ...]:
    return ("--count", str(problems))


def _all(jobs: Sequence[Job], side_by_side: int) -> list[Row]:
    with ThreadPoolExecutor(side_by_side) as pool:
        return list(pool.map(lambda job: job(), jobs))


def main() -> None:
    """Run the selected claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*CLAIMS], default=[*CLAIMS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument(
        "--problems", type=int, default=256, help="held-out problems of an evaluation"
    )
    parser.add_argument("--quick", action="store_true", help="a step each, which says nothing")
    parser.add_argument(
        "--folder", type=Path, help="where the runs are kept; otherwise they are deleted"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        record: Row = {
            "problems": options.problems,
            "starts": _all(starts(folder, options.problems), options.jobs),
        }
        for name in options.only:
            jobs = [
                (seed, job)
                for seed in range(options.seeds)
                for job in CLAIMS[name](folder, seed, options.problems, options.quick)
            ]
            found = _all([job for _, job in jobs], options.jobs)
            record[name] = [
                {"seed": seed, **row} for (seed, _), row in zip(jobs, found, strict=True)
            ]
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
