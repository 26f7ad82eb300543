"""Trainings of the study: for each seed a cold start, and from it one training for each arm.

Every arm but `grpo` samples twice as many rollouts for a step. So `grpo` goes on after the last step
of the others. Its checkpoint after the same number of steps has had as many optimiser updates as
they, and a later one has sampled as many tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learning.runs import cpu_seconds, evaluated, fine_tuned, rows_of, trained
from benchmarks.roc_study.lessons import FAMILIES, lessons
from hrm_agent.errors import ConfigError
from hrm_agent.training.small_policy.format_lessons import write_lessons

__all__ = [
    "ARMS",
    "LONG",
    "MEASURES",
    "QUICK",
    "START",
    "Form",
    "Reading",
    "all_readings",
    "keep_form",
    "same_tokens",
    "step_at",
]

Row = dict[str, Any]
ARMS: Mapping[str, Mapping[str, str]] = {
    "grpo": {"algorithm": "grpo"},
    "grpo-2g": {"algorithm": "grpo"},
    "grpo-random": {"algorithm": "grpo-random"},
    "grpo-roc-random": {"algorithm": "grpo-roc-random"},
    "grpo-roc": {"algorithm": "grpo-roc", "selection": "inverse"},
    "grpo-roc-lowest": {"algorithm": "grpo-roc", "selection": "lowest"},
}
"""Flags of each arm. `grpo-2g` has groups of twice the size and trains on all of each."""
COLD_START: Mapping[str, str] = {
    "optimizer": "muon",
    "learning-rate": "1e-3",
    "matrix-learning-rate": "0.01",
    "cooldown": "0.5",
    "average": "0.97",
}
"""Recipe of the cold starts."""
START = "cold start"
LONG = "grpo, to its end"
_NAMES = ("word_problems", "chain_sum", "lcm")
MEASURES: Mapping[str, str] = {
    "correct": "correct",
    **{name: f"correct, {name}" for name in _NAMES},
    "errors": "tool errors among the correct",
    "tokens": "tokens a rollout",
    "no_signal": "groups without a signal",
}
"""Measures with their titles. All but the last are those of an evaluation on held-out problems. The
last is the mean over the steps of the training.
"""
_EVALUATED = ("pass_at_1", "families", "correct_with_tool_error", "mean_sampled_tokens")


@dataclass(frozen=True, slots=True)
class Form:
    """Size of the study."""

    lessons: int = 6400
    """Lessons of a cold start, each taken once."""
    batch: int = 32
    """Lessons in a step of the cold start."""
    steps: int = 40
    """Optimiser steps of each arm."""
    prompts: int = 15
    """Prompts of a step."""
    group_size: int = 8
    """G, the rollouts of a prompt that are trained on."""
    learning_rate: float = 2e-4
    """Learning rate of the arms. With the policy's own rate, 5e-4, `grpo` was at 0.87 after 22 steps,
    which leaves little to compare after 40.
    """
    max_tokens: int = 96
    """Maximum number of tokens of one reply. A right reply takes at most half of that."""
    problems: int = 256
    """Held-out problems of each family in an evaluation."""

    @property
    def longest(self) -> int:
        """Steps of `grpo`: twice those of the other arms, and a tenth in reserve, since rollouts of
        the arms differ in length.
        """
        return self.steps * 11 // 5

    @property
    def every(self) -> int:
        """Steps from one checkpoint to the next. One is after the last step of the other arms."""
        return max(1, self.steps // 10) if self.steps % 10 == 0 else 1


QUICK = Form(lessons=12, batch=6, steps=1, prompts=3, group_size=2, problems=1)
"""Form that shows that the study runs, and nothing else."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Measured policy of one seed."""

    seed: int
    """Seed of its cold start, its training and its held-out problems."""
    arm: str
    """Name of the arm, or of another state of it (`START`, `LONG`, `same_tokens`)."""
    steps: int
    """Optimiser steps behind the policy."""
    sampled: float
    """Tokens that its training has sampled."""
    cpu_seconds: float
    """CPU seconds of these steps."""
    figures: dict[str, float | None]
    """Values of `MEASURES` (None: nothing to measure)."""
    errors: list[float | None]
    """Tool errors among the correct rollouts of each step of the training."""


def same_tokens(arm: str) -> str:
    """Name of the readings of `grpo` at as many sampled tokens as an arm."""
    return f"grpo, tokens of {arm}"


def keep_form(folder: Path, form: Form) -> None:
    """Write the form to the folder of the runs. Raises `ConfigError` if the folder has runs of
    another form.
    """
    kept = folder / "form.json"
    told = json.dumps(asdict(form), indent=2) + "\n"
    if kept.exists() and kept.read_text(encoding="utf-8") != told:
        raise ConfigError(
            f"{folder} has runs of another form of the study, see {kept}.",
            "Give each form its own --folder.",
        )
    kept.write_text(told, encoding="utf-8")


def all_readings(
    folder: Path, form: Form, seeds: Sequence[int], arms: Sequence[str], jobs: int
) -> list[Reading]:
    """Readings of all seeds and arms. Runs that `folder` has are not repeated. `arms` has `grpo`
    in it.
    """
    pairs = [(seed, arm) for seed in seeds for arm in arms]
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(partial(_start, folder, form), seeds))
        found += pool.map(lambda pair: _trained(folder, form, *pair), pairs)
        later: dict[tuple[int, str], int] = {(seed, LONG): form.longest for seed in seeds}
        for reading in found:
            if reading.arm not in (START, "grpo"):
                rows = rows_of(folder / f"grpo-{reading.seed}")
                step = step_at(rows, reading.sampled, form.every)
                later[reading.seed, same_tokens(reading.arm)] = step
        # several arms may lead to the same checkpoint, which is measured once
        places = sorted({(seed, step) for (seed, _), step in later.items()})
        measured = dict(
            zip(
                places,
                pool.map(lambda place: _reading(folder, form, place[0], "grpo", place[1]), places),
                strict=True,
            )
        )
    for (seed, name), step in later.items():
        found.append(replace(measured[seed, step], arm=name))
    return found


def step_at(rows: Sequence[Row], tokens: float, every: int) -> int:
    """Steps behind the first checkpoint by which a training has sampled `tokens` tokens (the last
    one if it has not sampled so many).
    """
    sums = list(accumulate(map(_sampled, rows)))
    steps = range(every, len(rows) + 1, every)
    return next((step for step in steps if sums[step - 1] >= tokens), len(rows))


def _sampled(row: Row) -> float:
    return row["rollout/sampled_tokens"] * row["rollout/count"]


def _start(folder: Path, form: Form, seed: int) -> Reading:
    """Train the cold start of a seed and measure it."""
    place = folder / f"start-{seed}"
    written = folder / f"lessons-{seed}.jsonl"
    if not written.exists():
        write_lessons(lessons(seed, form.lessons), written)
    steps = form.lessons // form.batch
    keys = {"steps": steps, "batch-size": form.batch, "seed": seed, **COLD_START}
    keys["warmup-steps"] = min(10, steps)
    model = fine_tuned(place, written, *_flags(keys))
    figures = _figures(folder / f"start-{seed}-after", model, form, seed)
    return Reading(seed, START, 0, 0.0, 0.0, figures | {"no_signal": None}, [])


def _trained(folder: Path, form: Form, seed: int, arm: str) -> Reading:
    """Train an arm and measure it after the steps of the study."""
    keys: Row = {
        "policy": folder / f"start-{seed}" / "model",
        "tasks": _tasks(),
        "prompts-per-step": form.prompts,
        "group-size": form.group_size * (2 if arm == "grpo-2g" else 1),
        "learning-rate": form.learning_rate,
        "max-tokens": form.max_tokens,
        "steps": form.longest if arm == "grpo" else form.steps,
        "checkpoint-every": form.every,
        "checkpoints": form.longest // form.every + 1 if arm == "grpo" else 2,
        "seed": seed,
    }
    trained(folder / f"{arm}-{seed}", *_flags({**keys, **ARMS[arm]}))
    return _reading(folder, form, seed, arm, form.steps)


def _reading(folder: Path, form: Form, seed: int, arm: str, step: int) -> Reading:
    """Measure the checkpoint of an arm after `step` steps."""
    place = folder / f"{arm}-{seed}"
    rows = rows_of(place)[:step]
    policy = place / "checkpoints" / f"step-{step:06}"
    figures = _figures(folder / f"{arm}-{seed}-{step:06}", policy, form, seed)
    figures["no_signal"] = fmean(row["select/groups_rejected"] for row in rows)
    return Reading(
        seed=seed,
        arm=arm,
        steps=step,
        sampled=sum(map(_sampled, rows)),
        cpu_seconds=cpu_seconds(rows),
        figures=figures,
        errors=[row["rollout/correct_with_tool_error"] for row in rows],
    )


def _figures(folder: Path, policy: Path, form: Form, seed: int) -> dict[str, float | None]:
    count = form.problems * len(FAMILIES)
    keys = {"tasks": _tasks(), "count": count, "max-tokens": form.max_tokens, "seed": seed}
    found = evaluated(folder, policy, *_flags(keys), keys=_EVALUATED)
    families = found["families"]
    return {
        "correct": found["pass_at_1"],
        **{
            name: families[family]["pass_at_1"]["value"]
            for name, family in zip(_NAMES, FAMILIES, strict=True)
        },
        "errors": found["correct_with_tool_error"],
        "tokens": found["mean_sampled_tokens"],
    }


def _tasks() -> str:
    return "mix:" + ",".join(f"1*{family}" for family in FAMILIES)


def _flags(keys: Mapping[str, Any]) -> list[str]:
    return [word for key, value in keys.items() for word in (f"--{key}", str(value))]
