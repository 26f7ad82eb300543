"""Controlled study of GRPO against GRPO-RoC (rStar2-Agent, arXiv 2508.20722) on the small policy.

    python -m benchmarks.roc_study [--seeds 5] [--first-seed 0] [--jobs 2] [--folder F] [--json FILE]
                                   [--table FILE] [--picture FILE] [--against FILE]

For each seed the small policy learns three families of tasks from lessons with faults (a cold
start), and is then trained by each arm on a mixture of the families:

* `grpo`: G rollouts of a prompt, all trained on. It goes on until it has sampled as many tokens as
  the other arms.
* `grpo-2g`: 2G rollouts of a prompt, all trained on.
* `grpo-random`: 2G rollouts, a random G of them trained on.
* `grpo-roc-random`: 2G rollouts, the quotas of correct and wrong ones by GRPO-RoC, at random.
* `grpo-roc`: the same quotas, and correct ones drawn by their penalties (the paper).
* `grpo-roc-lowest`: the same quotas, and the correct ones with the lowest penalties (the code that
  the paper's authors released).

Arms of one seed have the same cold start, prompts and held-out problems, and are compared within
the seed. docs/study-roc.md has the method and the results. Each training is one process of one
thread, `--jobs` of them in parallel. With `--folder` runs are kept, and existing ones are not
repeated: an interrupted study is continued by the same command. `--against FILE` compares the
differences with those of a stored study of other seeds (its `--json`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.roc_study.figures import against, as_markdown, refuse_incomparable, summary
from benchmarks.roc_study.trainings import ARMS, QUICK, Form, all_readings, keep_form
from hrm_agent.errors import HrmError

DRAWN = ("rollout/correct_with_tool_error", "rollout/correct", "rollout/sampled_tokens")
"""Metrics in the picture."""


def study(folder: Path, options: argparse.Namespace) -> None:
    """Run the study in a folder, print its tables, and write what the options ask for."""
    first = options.first_seed
    seeds = range(first, first + (1 if options.quick else options.seeds))
    form = QUICK if options.quick else Form(steps=options.steps, problems=options.problems)
    arms = [arm for arm in ARMS if arm in {"grpo", *options.arms}]
    stored = json.loads(options.against.read_text("utf-8")) if options.against else None
    if stored:
        refuse_incomparable(form, seeds, stored)
    keep_form(folder, form)
    record = summary(all_readings(folder, form, seeds, arms, options.jobs), form, arms)
    tables = as_markdown(record)
    print(tables)
    if stored:
        print(against(record, stored))
    for path, text in (
        (options.json, json.dumps(record, indent=2) + "\n"),
        (options.table, tables),
    ):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if options.picture:
        draw(options.picture, {arm: [folder / f"{arm}-{seed}" for seed in seeds] for arm in arms})


def draw(path: Path, runs: Mapping[str, Sequence[Path]]) -> None:
    """Draw the metrics over the sampled tokens, a line for each arm, by `hrm-agent plot`."""
    words = [str(run) for each in runs.values() for run in each]
    words += [word for arm, each in runs.items() for _ in each for word in ("--label", arm)]
    words += ["--metrics", *DRAWN, "--x", "tokens", "--smooth", "5", "--band", "interval"]
    command = [sys.executable, "-m", "hrm_agent", "plot", *words, "--out", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_positive, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--steps", type=_positive, default=40, help="optimiser steps of each arm")
    parser.add_argument(
        "--problems", type=_positive, default=256, help="held-out problems of each family"
    )
    parser.add_argument("--jobs", type=_positive, default=2, help="processes side by side")
    parser.add_argument(
        "--quick", action="store_true", help="one seed and a step each, which says nothing"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the runs are kept; otherwise they are deleted"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--table", type=Path, help="write the tables to this file")
    parser.add_argument("--picture", type=Path, help="write the curves to this PNG file")
    parser.add_argument("--against", type=Path, help="numbers of a study to compare with")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.folder or Path(temporary)).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            study(folder, options)
    except HrmError as error:
        parser.error(str(error))


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


if __name__ == "__main__":
    main()
