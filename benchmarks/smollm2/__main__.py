"""SmolLM2-135M-Instruct learns to solve arithmetic problems with the Python tool: a cold start of
form alone, then GRPO-RoC in stages (`configs/smollm2-135m.toml`).

    python -m benchmarks.smollm2 --gsm8k FOLDER [--seeds 0 1] [--folder runs/smollm2] [--json FILE]

FOLDER has GSM8K's `train.jsonl` and `test.jsonl`. For each seed the lessons are written, the cold
start and the stages are trained, and the model before, after the cold start and after each stage is
evaluated on held-out problems of four sources: GSM8K's test rows, and `gsm_symbolic`, `chain_sum`
and `basic_arithmetic` of reasoning-gym. Each answer token is the most probable one. Everything is
kept in the folder, and what is there is not repeated: an interrupted benchmark is resumed by the
same command.

`transcripts.md` has the first three problems of GSM8K's test rows before and after, `failures.md`
the first fifty that are wrong in the end. `--quick` takes a few steps and problems, which say
nothing about the model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.smollm2.lessons import lessons
from hrm_agent.store import open_store
from hrm_agent.training.select.roc import is_positive
from hrm_agent.training.small_policy.format_lessons import write_lessons
from hrm_agent.trajectory import Trajectory

Row = dict[str, Any]
PROJECT = Path(__file__).parents[2]
CONFIG = PROJECT / "configs" / "smollm2-135m.toml"
POLICY = "smollm2-135m"
SOURCES = {
    "GSM8K test": "benchmarks.smollm2.problems:gsm8k",
    "gsm_symbolic": "benchmarks.smollm2.problems:symbolic",
    "chain_sum": "reasoning_gym:chain_sum",
    "basic_arithmetic": "reasoning_gym:basic_arithmetic",
}
"""Source of held-out problems -> its `--tasks`."""
COLD_START = {
    "steps": "40",
    "batch-size": "16",
    "learning-rate": "1e-4",
    "warmup-steps": "3",
    "cooldown": "0.5",
    "forward": "packed",
}
LESSONS = 640
HELD_OUT_SEED = 1_000
"""Seed of the held-out problems, which no training has."""
QUICK_LESSONS = 32
QUICK_COLD_START = {"steps": "2"}
QUICK_TRAINING = ("--prompts-per-step", "2", "--group-size", "2")
FACTS = {
    "accuracy": "pass_at_1",
    "interval": "interval",
    "tool_calls": "mean_tool_calls",
    "tool_errors": "tool_error_share",
    "errors_among_correct": "correct_with_tool_error",
    "without_call": "without_call",
    "tokens": "mean_sampled_tokens",
}
"""Fact of an evaluation in the table -> its name in `results.json`."""


def of_seed(folder: Path, seed: int, problems: int, quick: bool) -> Row:
    """Train with one seed and evaluate each point. Returns the facts by point and source."""
    started = _cold_start(folder, seed, quick)
    points: dict[str, str | Path] = {"before": POLICY, "cold start": started}
    stages = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["stages"]
    run = folder / "rl"
    if not (run / "model").exists():
        _train(run, started, seed, stages, quick)
    for number, stage in enumerate(stages, start=1):
        last = number == len(stages)
        points[stage["name"]] = run / "model" if last else run / "stages" / str(number)
    found: Row = {
        point: {
            source: _evaluated(
                folder, f"{point}-{source}".replace(" ", "-"), policy, spec, problems
            )
            for source, spec in SOURCES.items()
        }
        for point, policy in points.items()
    }
    _write_transcripts(folder, list(points))
    return {"seed": seed, "points": found, "cpu_seconds": _cpu_seconds(run)}


def _cold_start(folder: Path, seed: int, quick: bool) -> Path:
    written = folder / "lessons.jsonl"
    if not written.exists():
        write_lessons(list(lessons(seed, QUICK_LESSONS if quick else LESSONS)), written)
    place = folder / "cold-start"
    if not (place / "model").exists():
        flags = _flags(COLD_START | (QUICK_COLD_START if quick else {}))
        common = ("--policy", POLICY, "--seed", str(seed), "--out", str(place))
        _run(folder, "train", "sft", str(written), *common, *flags)
    return place / "model"


def _train(run: Path, policy: Path, seed: int, stages: Sequence[Row], quick: bool) -> None:
    config = CONFIG
    if quick:
        config = run.parent / "quick.toml"
        text = CONFIG.read_text(encoding="utf-8")
        for stage in stages:
            text = text.replace(f"steps = {stage['steps']}\n", "steps = 1\n")
        config.write_text(text, encoding="utf-8")
    flags = ("--policy", str(policy), "--seed", str(seed), "--out", str(run))
    _run(
        run.parent,
        "train",
        "rl",
        "--config",
        str(config),
        *flags,
        *(QUICK_TRAINING if quick else ()),
    )


def _evaluated(folder: Path, name: str, policy: str | Path, spec: str, problems: int) -> Row:
    """Facts of an evaluation on held-out problems. `folder`: folder of the seed."""
    place = folder / "held-out" / name
    results = place / "results.json"
    if not results.exists():
        settings = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
        context = {**settings["context"], "max_turns": settings["stages"][-1]["turns"]}
        context["max_tokens"] = settings["stages"][-1]["rollout_tokens"]
        flags = {
            "policy": f"{policy}?dtype=bfloat16",
            "tasks": spec,
            "count": str(problems),
            "seed": str(HELD_OUT_SEED),
            "temperature": "0",
            "max-tokens": str(settings["max_tokens"]),
            "out": str(place),
        }
        given = [word for key, value in context.items() for word in ("--context", f"{key}={value}")]
        _run(folder, "eval", *_flags(flags), *given)
    found = json.loads(results.read_text(encoding="utf-8"))
    return {fact: found[key] for fact, key in FACTS.items()}


def _write_transcripts(folder: Path, points: Sequence[str]) -> None:
    """Write the runs of the first three test rows before and after, and the first fifty wrong ones."""
    ends = {
        point: _runs_of(folder / "held-out" / f"{point}-GSM8K-test".replace(" ", "-"))
        for point in points
    }
    first, last = ends[points[0]], ends[points[-1]]
    shown = [
        f"## {point}\n\n{_as_text(run)}"
        for runs, point in ((first, points[0]), (last, points[-1]))
        for run in runs[:3]
    ]
    (folder / "transcripts.md").write_text("\n".join(shown), encoding="utf-8")
    wrong = [run for run in last if not is_positive(run.outcome)][:50]
    (folder / "failures.md").write_text("\n".join(map(_as_text, wrong)), encoding="utf-8")


def _runs_of(place: Path) -> list[Trajectory]:
    """Runs of an evaluation in the order of their problems' ids."""
    with open_store(place) as store:
        return sorted(store.journal.trajectories(), key=lambda run: run.task.id)


def _as_text(run: Trajectory) -> str:
    lines = [f"**{run.task.id}** {run.task.prompt}\n\nReference: {run.task.answer}\n"]
    tools = iter(run.tool_calls)
    for call in run.calls:
        lines.append(f"    {str(call.response['content']).strip()}".replace("\n", "\n    "))
        if call is not run.calls[-1] and (tool := next(tools, None)) is not None:
            lines.append(f"    -> {tool.content.strip()}".replace("\n", "\n       "))
    return "\n".join(lines) + "\n"


def table(record: Sequence[Row]) -> str:
    """Markdown table of all seeds: accuracy with its 95 % interval, and facts of the runs."""
    lines = [
        "| seed | source | point | accuracy | tool calls | errors among the correct | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record:
        for source in SOURCES:
            for point, facts in row["points"].items():
                one = facts[source]
                low, high = one["interval"]
                errors = one["errors_among_correct"]
                cells = (
                    str(row["seed"]),
                    source,
                    point,
                    f"{one['accuracy']:.3f} ({low:.3f} to {high:.3f})",
                    f"{one['tool_calls']:.2f}",
                    "" if errors is None else f"{errors:.3f}",
                    f"{one['tokens']:.0f}",
                )
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cpu_seconds(run: Path) -> float:
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return sum(v for row in rows for k, v in row.items() if k.endswith("_cpu_seconds"))


def _flags(keys: dict[str, str]) -> list[str]:
    return [word for key, value in keys.items() for word in (f"--{key}", value)]


def _run(folder: Path, *words: str) -> None:
    """Run a command in the folder that has `gsm8k`, and show what it reports."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "hrm_agent", *words]
    code = subprocess.run(command, env=environment, cwd=folder.parent, check=False).returncode
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}.")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gsm8k", type=Path, required=True, help="folder with train.jsonl and test.jsonl"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--problems", type=int, default=256, help="held-out problems of a source")
    parser.add_argument("--folder", type=Path, default=Path("runs/smollm2"))
    parser.add_argument("--quick", action="store_true", help="a step each, which says nothing")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    for name in ("train.jsonl", "test.jsonl"):
        if not (options.gsm8k / name).is_file():
            raise SystemExit(
                f"{options.gsm8k} has no {name} of GSM8K. Name its folder: --gsm8k FOLDER"
            )
        (folder / "gsm8k").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(options.gsm8k / name, folder / "gsm8k" / name)
    _run(folder / "gsm8k", "models", "get", POLICY)
    record: list[Row] = []
    for seed in options.seeds:
        place = folder / f"seed-{seed}"
        place.mkdir(exist_ok=True)
        record.append(of_seed(place, seed, options.problems, options.quick))
    print(table(record))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
