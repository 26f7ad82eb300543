"""SmolLM2's lessons are what a rollout meets, and its problems and rewards are read from the
published files.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from benchmarks.smollm2 import problems
from benchmarks.smollm2.__main__ import ALGORITHMS
from benchmarks.smollm2.__main__ import CONFIG as LOOP
from benchmarks.smollm2.lessons import lessons
from benchmarks.smollm2.rewards import steps_found
from benchmarks.smollm2.role_lessons import FINAL_FORMAT, role_lessons
from benchmarks.smollm2.roles import CONFIG
from hrm_agent.answers.typed_reply import read_as
from hrm_agent.cli.main import main
from hrm_agent.environment import LocalEnvironment
from hrm_agent.graphs.parts.prompts import SOLVER_PROMPT, loop_system_turn
from hrm_agent.graphs.reasoning import CRITIC, PLANNER, SYNTHESIZER
from hrm_agent.graphs.reasoning.answer_checks import format_of
from hrm_agent.graphs.reasoning.critique import CriticAnswer
from hrm_agent.graphs.reasoning.plan import FAILED, PlannerAnswer, arranged
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.training.sft import Conversation
from hrm_agent.trajectory import TaskRef
from tests.support.training.builders import tool_call

FENCED = {"tool_format": "fenced"}
ROLES = tomllib.loads(CONFIG.read_text(encoding="utf-8"))


def words_of(text: str) -> set[str]:
    return set(re.findall("[a-z]+", text.lower()))


def said(lesson: Conversation) -> list[str]:
    return [message.text for message in lesson.messages if isinstance(message, AIMessage)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_trains_on_as_many_rollouts(
    algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ALGORITHMS[algorithm]
    assert main(["train", "rl", "--config", str(LOOP), *flags, "--dry-run"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert (shown["select"]["algorithm"], shown["rollout"]["group_size"]) == (algorithm, 16)


async def test_a_lesson_is_a_run(store: RunStore, environment: LocalEnvironment) -> None:
    """Answers of a lesson, played by a script, get the results that it shows."""
    calls: list[int] = []
    for number, lesson in enumerate(lessons(3, 40)):
        if isinstance(lesson.messages[0], HumanMessage):  # a general instruction
            continue
        with ScriptedEngine(said(lesson)) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            task = TaskRef(prompt=lesson.messages[1].text, id=str(number), family="lesson")
            await runner.run(Episode(task, task.id, seed=0, context=FENCED))
            met = engine.requests[-1].messages
        assert [each.text for each in met] == [each.text for each in lesson.messages[:-1]]
        calls.append(len(said(lesson)) - 1)
    assert {1, 2} <= set(calls)


async def test_lessons_of_the_roles_play_the_whole_graph(
    store: RunStore, environment: LocalEnvironment
) -> None:
    """The graph asks planner and solver as their lessons do, and the answers lead to the end."""
    told = {
        (lesson.messages[0].text, lesson.messages[1].text): lesson
        for lesson in role_lessons(5, 4000)
    }
    solving = loop_system_turn(SOLVER_PROMPT, fenced=True)
    played = 0
    for (system, request), lesson in told.items():
        problem = request.removeprefix("Problem: ")
        if system != PLANNER.prompt or len(plan := read_plan(lesson)) != 1:
            continue
        solved = told.get((solving, f"{request}\nSubgoal: {plan[0]}"))
        if solved is None:
            continue
        value = said(solved)[-1].removeprefix("<answer>\\boxed{").removesuffix("}</answer>")
        script = [*said(lesson), *said(solved), '{"action": "accept"}', f"Answer: {value}"]
        with ScriptedEngine(script) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            task = TaskRef(prompt=problem, id=str(played), family="lesson")
            run = await runner.run(
                Episode(task, f"r{played}", "reasoning", seed=0, context=ROLES["context"])
            )
            turns = [tuple(m.text for m in asked.messages) for asked in engine.requests]
        assert run.stop_reason == "answer" and turns[0] == (system, request)
        assert turns[len(said(solved))] == tuple(m.text for m in solved.messages[:-1])
        assert [asked[0] for asked in turns[-2:]] == [CRITIC.prompt, SYNTHESIZER.prompt]
        played += 1
        if played == 5:
            break
    assert played


def read_plan(lesson: Conversation) -> list[str]:
    return [each.goal for each in read_as(PlannerAnswer, said(lesson)[0]).subgoals]


def test_answers_of_the_roles_can_be_parsed() -> None:
    """Plans keep the order of the request's sentences. Only a missing result is sent back."""
    seen: list[str] = []
    for lesson in role_lessons(1, 600):
        system, request = lesson.messages[0].text, lesson.messages[1].text
        if system == PLANNER.prompt:
            plan, remarks = arranged(read_as(PlannerAnswer, said(lesson)[0]).subgoals, 3)
            assert all(each["goal"] in request for each in plan) and remarks == []
            seen.append(f"plan of {len(plan)}")
        elif system == CRITIC.prompt:
            verdict = read_as(CriticAnswer, said(lesson)[0])
            assert (verdict.action == "revise") == (f"{verdict.subgoal} = {FAILED}" in request)
            seen.append(verdict.action)
        elif system == SYNTHESIZER.prompt:
            wanted = format_of(FINAL_FORMAT, "")
            assert wanted is not None and wanted.read(said(lesson)[0])
            seen.append("final")
    assert set(seen) == {"plan of 1", "plan of 2", "plan of 3", "accept", "revise", "final"}


def test_gsm8k_has_the_results_of_its_solutions(tmp_path: Path) -> None:
    rows = [
        {"question": "2 bags of 3?", "answer": "2 * 3 = <<2*3=6>>6\n#### 6"},
        {"question": "long", "answer": "<<1+1=2>> <<2+1,000=1,002>> <<1002-2=1000>>\n#### 1,000"},
        {"question": "none", "answer": "so\n#### 4"},
    ]
    for name in ("train", "test"):
        text = "\n".join(map(json.dumps, rows))
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    found = {t.id: t for t in problems.gsm8k("eval", 0, folder=str(tmp_path))}
    assert len(found) == 3 and found["eval-1"].answer == "1000"
    assert found["eval-1"].metadata["steps"] == [2.0, 1002.0, 1000.0, 1000.0]
    assert not problems.gsm8k("eval", 0, folder=str(tmp_path), templates=True)
    short = problems.gsm8k("train", 0, folder=str(tmp_path), most_steps=2)
    assert [task.id for task in short] == ["train-0"]


def test_training_problems_can_have_few_steps() -> None:
    few = problems.symbolic("train", 4, 30, most_steps=2)
    assert len(few) == 30 and all(len(task.metadata["steps"]) <= 3 for task in few)
    assert any(len(task.metadata["steps"]) > 3 for task in problems.symbolic("eval", 4, 30))


@pytest.mark.shared_data
def test_templates_were_made_of_the_test_rows_that_are_counted_apart(shared_data: Path) -> None:
    """A row has nearly all words that are common to all problems of a template."""
    import reasoning_gym
    from reasoning_gym.arithmetic.gsm_symbolic.gsm_symbolic import tasks_ok

    folder = str(shared_data / "gsm8k")
    apart = problems.gsm8k("eval", 0, folder=folder, templates=True)
    others = problems.gsm8k("eval", 0, folder=folder)
    assert (len(apart), len(others)) == (85, 1234)
    generators: Any = reasoning_gym.create_dataset("gsm_symbolic", seed=0, size=1)
    for template in tasks_ok:
        made = [
            words_of(generators.generators[template](random.Random(i), 1.0)["question"])
            for i in range(12)
        ]
        common = set.intersection(*made)
        of_rows, of_others = (
            max(len(common & words_of(task.prompt)) / len(common) for task in tasks)
            for tasks in (apart, others)
        )
        assert of_rows > 0.7 and of_rows > of_others


@pytest.mark.parametrize(
    ("results", "share"),
    [(["6", "11"], 1.0), (["6"], 0.5), (["5"], 0.0), (["11.0"], 1.0), ([], 0.0), (["2"], 0.0)],
)
def test_steps_found(results: list[str], share: float) -> None:
    """The share counts results that the problem does not give, and the answer counts as all."""
    task = TaskRef(
        prompt="2 bags of 3, and 5", id="t", family="f", metadata={"steps": [6.0, 2.0, 11.0]}
    )
    calls = [tool_call(text).model_copy(update={"content": text}) for text in results]
    assert steps_found(calls, task) == share
    assert steps_found(calls, TaskRef(prompt="p", id="u", family="f")) is None
