"""The study of GRPO-RoC compares arms within a seed, and its lessons are what a rollout meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from benchmarks.roc_study import trainings
from benchmarks.roc_study.figures import (
    against,
    as_markdown,
    contrasts,
    refuse_incomparable,
    summary,
)
from benchmarks.roc_study.lessons import CHAIN_SUM, LCM, lessons
from benchmarks.roc_study.trainings import (
    LONG,
    MEASURES,
    START,
    Form,
    Reading,
    keep_form,
    same_tokens,
    step_at,
)
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.training.small_policy.cold_start import answer_text
from hrm_agent.training.tasks import Task, load_tasks
from hrm_agent.trajectory import derive_seed

FORM = Form()
ARMS = ("grpo", "grpo-roc")


async def test_a_lesson_is_a_run(store: RunStore, environment: LocalEnvironment) -> None:
    """Answers of a lesson, played by a script, get the results that it shows. A lesson that uses
    the tool ends right, a guess ends wrong.
    """
    seed = derive_seed(3, "lessons")
    asked: dict[str, Task] = {
        task.prompt: task
        for spec in (CHAIN_SUM, LCM)
        for task in load_tasks(spec, split="train", seed=seed, count=8)
    }
    failed = 0
    for lesson in lessons(3, 24):
        if (task := asked.get(lesson.messages[1].text)) is None:  # a word problem
            continue
        said = [message for message in lesson.messages if isinstance(message, AIMessage)]
        with ScriptedEngine([answer_text(message) for message in said]) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            run = await runner.run(Episode(task.ref(), task.id, seed=0, verify=task.verify))
            met = engine.requests[-1].messages
        shown = [message.text for message in lesson.messages if isinstance(message, ToolMessage)]
        assert [each.text for each in met if isinstance(each, ToolMessage)] == shown
        assert [each.text for each in met if isinstance(each, HumanMessage)] == [task.prompt]
        assert run.outcome == float(bool(shown))
        failed += len(shown) > 1
    assert failed


def test_grpo_is_read_where_it_has_sampled_as_many_tokens() -> None:
    rows = [{"rollout/sampled_tokens": 10.0, "rollout/count": 2.0}] * 8
    assert [step_at(rows, tokens, 2) for tokens in (39, 40, 41, 1000)] == [2, 2, 4, 8]


def readings(seeds: range, effect: float) -> list[Reading]:
    """Readings in which `grpo-roc` is better by `effect`, give or take a hundredth, and seeds differ
    by much more. Tool errors stay level with `grpo` and fall with `grpo-roc`.
    """
    found: list[Reading] = []
    for seed in seeds:
        for arm in (START, *ARMS, LONG, same_tokens("grpo-roc")):
            roc = arm == "grpo-roc"
            value = 0.1 * seed + (effect + 0.01 * (-1) ** seed if roc else 0)
            errors = [0.2 - 0.01 * step * roc + 0.001 * (seed + step % 2) for step in range(20)]
            figures = dict.fromkeys(MEASURES, value) | {"errors": None}
            found.append(Reading(seed, arm, 20, 1e3, 1.0, figures, errors))
    return found


def test_all_arms_have_their_comparisons() -> None:
    found = contrasts(tuple(trainings.ARMS))
    assert len({(each.section, each.title) for each in found}) == len(found) == 17


def test_arms_are_compared_within_a_seed() -> None:
    record = summary(readings(range(4), 0.05), FORM, ARMS)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert {each["section"] for each in record["differences"]} == {
        "equal updates",
        "equal sampled tokens",
    }
    for each in record["differences"]:
        found = each["figures"]["correct"]
        assert found["value"] == pytest.approx(0.05) and 0.01 < found["half"] < 0.02
        assert each["figures"]["errors"]["value"] is None
    assert record["means"]["grpo"]["correct"]["half"] > 0.1
    table = as_markdown(record)
    assert "**+0.050 ± 0.018**" in table
    last = {name: line for line in table.splitlines() for name in ARMS if f"| {name} |" in line}
    assert last["grpo"].endswith("| level |") and last["grpo-roc"].endswith("| falls |")


def test_other_seeds_are_inside_or_outside() -> None:
    stored = summary(readings(range(4), 0.05), FORM, ARMS)
    for effect, counts in (
        (0.05, "12 inside, 0 in range, 0 outside"),
        (0.08, "0 inside, 12 in range, 0 outside"),
        (0.3, "0 inside, 0 in range, 12 outside"),
    ):
        said = against(summary(readings(range(4, 6), effect), FORM, ARMS), stored)
        assert f"Of 12 differences: {counts}." in said


def test_what_would_be_no_reproduction_is_refused(tmp_path: Path) -> None:
    stored: dict[str, Any] = summary(readings(range(4), 0.05), FORM, ARMS)
    refuse_incomparable(FORM, range(4, 6), stored)
    with pytest.raises(ConfigError, match="--first-seed 4"):
        refuse_incomparable(FORM, range(3, 5), stored)
    with pytest.raises(ConfigError, match="another form"):
        refuse_incomparable(Form(steps=10), range(4, 6), stored)
    keep_form(tmp_path, FORM)
    keep_form(tmp_path, FORM)
    with pytest.raises(ConfigError, match="another form"):
        keep_form(tmp_path, Form(steps=10))
