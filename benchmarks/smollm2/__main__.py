"""SmolLM2-135M-Instruct learns to solve arithmetic problems with the Python tool: a cold start of
form alone, then GRPO-RoC in stages (`configs/smollm2-135m.toml`).

    python -m benchmarks.smollm2 --gsm8k FOLDER [--seeds 0 1] [--folder runs/smollm2] [--json FILE]

FOLDER has GSM8K's `train.jsonl` and `test.jsonl`. For each seed the lessons are written, the cold
start and the stages are trained, and the model before, after the cold start and after each stage is
evaluated on held-out problems: all test rows of GSM8K, and `gsm_symbolic`, `chain_sum` and
`basic_arithmetic` of reasoning-gym. The templates of `gsm_symbolic`, with which the training works,
were made from 85 test rows of GSM8K, so that these are counted apart. Each answer token is the most
probable one. A second table has the differences between the cold start and the end, problem by
problem.

Everything is kept in the folder, and what is there is not repeated: an interrupted benchmark is
resumed by the same command. `--algorithm grpo` in the same folder is the comparison, from the same
cold starts; with both done the second table compares their ends. `transcripts.md` has the same
three problems of GSM8K's test rows before and after, `failures.md` the first fifty that are wrong
in the end. `--quick` takes a few steps and problems, which say nothing about the model, in the
folder's `quick`.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.smollm2.commands import (
    POLICY,
    cold_start,
    cpu_seconds,
    evaluated,
    parser,
    report,
    run,
)
from benchmarks.smollm2.lessons import lessons
from hrm_agent.store import open_store
from hrm_agent.training.evaluation.compare import compare
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.select.roc import is_positive
from hrm_agent.trajectory import Trajectory

Row = dict[str, Any]
CONFIG = Path(__file__).parents[2] / "configs" / "smollm2-135m.toml"
GSM8K, TEMPLATE_ROWS = "GSM8K test", "GSM8K test, templates"
SOURCES = {
    GSM8K: "benchmarks.smollm2.problems:gsm8k",
    TEMPLATE_ROWS: "benchmarks.smollm2.problems:gsm8k?templates=true",
    "gsm_symbolic": "benchmarks.smollm2.problems:symbolic",
    "chain_sum": "reasoning_gym:chain_sum",
    "basic_arithmetic": "reasoning_gym:basic_arithmetic",
}
"""Source of held-out problems -> its `--tasks`."""
ROWS = {GSM8K: 1234, TEMPLATE_ROWS: 85}
"""Number of test rows. So few are right that a sample of them would tell nothing."""
LESSONS, LESSON_STEPS = 384, 24
QUICK_LESSONS, QUICK_PROBLEMS = 32, 8
BEFORE, STARTED = "before", "cold start"
QUICK_TRAINING = ("--prompts-per-step", "2", "--group-size", "2")

ALGORITHMS = {
    "grpo-roc": (),
    # trains on as many rollouts, and samples no more than these (2: the option's default)
    "grpo": ("--algorithm", "grpo", "--oversampling", "2"),
}
"""Flags of `train rl` by the name of `--algorithm`."""


def of_seed(folder: Path, seed: int, problems: int, algorithm: str, quick: bool) -> Row:
    """Train with one seed and evaluate each point. Returns the facts by point and source."""
    taught = lessons(seed, QUICK_LESSONS if quick else LESSONS)
    started = cold_start(folder / "cold-start", taught, seed, steps=LESSON_STEPS, quick=quick)
    stages = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["stages"]
    trained = folder / algorithm
    if not (trained / "model").exists():
        _train(trained, started, seed, stages, algorithm, quick)
    after = {
        stage["name"]: trained / "stages" / str(number)
        for number, stage in enumerate(stages[:-1], start=1)
    }
    last = stages[-1]["name"]
    points = {
        BEFORE: POLICY,
        STARTED: started,
        **after,
        last: trained / "model",
    }
    shared = {BEFORE: folder.parent, STARTED: folder}  # by all seeds, and by all algorithms
    places = {point: shared.get(point, trained) / "held-out" / _folder(point) for point in points}
    counts = dict.fromkeys(SOURCES, problems) | ({} if quick else ROWS)
    found: Row = {
        point: {
            source: _evaluated(
                folder.parent, places[point] / _folder(source), policy, spec, counts[source]
            )
            for source, spec in SOURCES.items()
        }
        for point, policy in points.items()
    }
    _write_transcripts(trained, places)
    others = {
        name: folder / name / "held-out" / _folder(last) for name in ALGORITHMS if name != algorithm
    }
    compared = {STARTED: places[STARTED]} | others
    return {
        "seed": seed,
        "points": found,
        "differences": {
            name: {
                source: _difference(place / _folder(source), places[last] / _folder(source))
                for source in SOURCES
            }
            for name, place in compared.items()
            if all((place / _folder(source)).exists() for source in SOURCES)
        },
        "cpu_seconds": cpu_seconds(trained),
    }


def _folder(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def _difference(first: Path, second: Path) -> Row:
    """Change of the accuracy between two evaluations of the same problems."""
    one, other = (samples_of(_runs_of(place)) for place in (first, second))
    found = compare(one, other, (first.name, second.name))
    change = found.difference
    return {
        "problems": found.problems,
        "change": change.value,
        "interval": [change.low, change.high],
        "p": found.p_value,
        "better": len(found.better),
        "worse": len(found.worse),
    }


def _train(
    place: Path, policy: Path, seed: int, stages: Sequence[Row], algorithm: str, quick: bool
) -> None:
    config = CONFIG
    if quick:
        config = place.parent / "quick.toml"
        text = CONFIG.read_text(encoding="utf-8")
        for stage in stages:
            text = text.replace(f"steps = {stage['steps']}\n", "steps = 1\n")
        config.write_text(text, encoding="utf-8")
    flags = ("--policy", str(policy), "--seed", str(seed), "--out", str(place))
    flags += ALGORITHMS[algorithm]
    reduced = QUICK_TRAINING if quick else ()
    run(place.parents[1], "train", "rl", "--config", str(config), *flags, *reduced)


def _evaluated(folder: Path, place: Path, policy: str | Path, spec: str, problems: int) -> Row:
    """Facts of an evaluation with the limits of the last stage. `folder`: with GSM8K, `place`: of
    the evaluation.
    """
    settings = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    last = settings["stages"][-1]
    limits = {"max_turns": last["turns"], "max_tokens": last["rollout_tokens"]}
    return evaluated(
        place,
        policy,
        cwd=folder,
        tasks=spec,
        problems=problems,
        context={**settings["context"], **limits},
        flags={"max-tokens": str(settings["max_tokens"])},
    )


def _write_transcripts(folder: Path, places: dict[str, Path]) -> None:
    """Write the runs of the first three test rows before and after, and the first fifty wrong ones.
    `places`: folder of the evaluations of each point, in order.
    """
    points = list(places)
    first, last = (_runs_of(places[point] / _folder(GSM8K)) for point in (points[0], points[-1]))
    shown = [
        f"## {point}\n\n{_as_text(one)}"
        for runs, point in ((first, points[0]), (last, points[-1]))
        for one in runs[:3]
    ]
    (folder / "transcripts.md").write_text("\n".join(shown), encoding="utf-8")
    wrong = [one for one in last if not is_positive(one.outcome)][:50]
    (folder / "failures.md").write_text("\n".join(map(_as_text, wrong)), encoding="utf-8")


def _runs_of(place: Path) -> list[Trajectory]:
    """Runs of an evaluation in the order of their problems' ids."""
    with open_store(place) as store:
        return sorted(store.journal.trajectories(), key=lambda run: run.task.id)


def _as_text(one: Trajectory) -> str:
    lines = [f"**{one.task.id}** {one.task.prompt}\n\nReference: {one.task.answer}\n"]
    tools = iter(one.tool_calls)
    for call in one.calls:
        lines.append(f"    {str(call.response['content']).strip()}".replace("\n", "\n    "))
        if call is not one.calls[-1] and (tool := next(tools, None)) is not None:
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


def differences(record: Sequence[Row]) -> str:
    """Markdown table of the differences between the end and the cold start, and between the ends of
    two algorithms where the folder has both.
    """
    lines = [
        "| seed | from | source | problems | change of accuracy | now right | now wrong | p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record:
        for name, by_source in row["differences"].items():
            for source, one in by_source.items():
                low, high = one["interval"]
                change = f"{one['change']:+.3f} ({low:+.3f} to {high:+.3f})"
                facts = (one["problems"], change, one["better"], one["worse"])
                cells = (row["seed"], name, source, *facts)
                lines.append(f"| {' | '.join(map(str, cells))} | {one['p']:.2g} |")
    return "\n".join(lines)


def _copy_gsm8k(folder: Path, gsm8k: Path) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        if not (gsm8k / name).is_file():
            raise SystemExit(f"{gsm8k} has no {name} of GSM8K. Name its folder: --gsm8k FOLDER")
        copy = folder / "gsm8k" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            shutil.copyfile(gsm8k / name, copy)


def main() -> None:
    """Run the benchmark."""
    asked = parser(__doc__, folder="runs/smollm2", problems=256, counted="of each source but GSM8K")
    asked.add_argument(
        "--gsm8k", type=Path, required=True, help="folder with train.jsonl and test.jsonl"
    )
    asked.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    asked.add_argument("--algorithm", choices=ALGORITHMS, default="grpo-roc")
    options = asked.parse_args()
    folder: Path = options.folder.absolute()
    if options.quick:
        folder, options.problems = folder / "quick", QUICK_PROBLEMS
    _copy_gsm8k(folder, options.gsm8k)
    run(folder, "models", "get", POLICY)
    record: list[Row] = []
    for seed in options.seeds:
        place = folder / f"seed-{seed}"
        place.mkdir(exist_ok=True)
        record.append(of_seed(place, seed, options.problems, options.algorithm, options.quick))
    report(f"{table(record)}\n\n{differences(record)}", record, options.json)


if __name__ == "__main__":
    main()
