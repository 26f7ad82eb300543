from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.answers.typed_reply import read_as
from hrm_agent.environment import LocalEnvironment
from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    SOLVER_PROMPT,
    TOOL_LOOP_PROMPT,
    critic_request,
    planner_request,
    solver_request,
)
from hrm_agent.graphs.reasoning.plan import FAILED as FAILED_IN_GRAPH
from hrm_agent.graphs.reasoning.plan import PlannerAnswer, arranged
from hrm_agent.tools.python_tool import tool_content
from hrm_agent.training.sft import tokenize
from hrm_agent.training.small_policy import traces
from hrm_agent.training.small_policy.cold_start import answer_text
from hrm_agent.training.small_policy.snippets import tool_text
from hrm_agent.training.tasks.word_problems import sample_problems


def of_kind(lessons, prompt):
    return [lesson for lesson in lessons if lesson.messages[0].text == prompt]


async def test_tool_messages_are_what_the_sandbox_answers_to_the_byte(lessons):
    environment = LocalEnvironment()
    try:
        shown = 0
        for lesson in lessons:
            for call, result in zip(lesson.messages, lesson.messages[1:], strict=False):
                if result.type == "tool":
                    code = call.tool_calls[0]["args"]["code"]
                    assert (
                        tool_content(await environment.execute(code))
                        == result.text
                        == tool_text(code)
                    )
                    shown += 1
        assert shown > 200
    finally:
        await environment.close()


def test_traces_are_the_turns_of_a_rollout(lessons, codec):
    """The tokens of a trace, rebuilt as a rollout makes them: prompt, answer, what comes between,
    answer.
    """
    longest = max(lessons, key=lambda lesson: len(lesson.messages))
    assert [message.type for message in longest.messages] == [
        "system",
        "human",
        "ai",
        "tool",
        "ai",
        "tool",
        "ai",
    ]
    ids = codec.encode(longest.messages[:2], longest.tools)
    mask = [False] * len(ids)
    for answered in (2, 4, 6):
        answer = codec.encode_answer(answer_text(longest.messages[answered]))
        between = []
        if answered < 6:
            between = codec.extend(
                longest.messages[: answered + 2],
                answered,
                ended_by=codec.end_of_turn,
                tools=longest.tools,
            )
        ids += answer + between
        mask += [True] * len(answer) + [False] * len(between)
    (example,) = tokenize(longest, codec)
    assert (list(example.token_ids), list(example.mask)) == (ids, mask)


def test_answers_are_read_back_as_they_were_written(lessons, codec):
    for lesson in lessons:
        for message in lesson.messages:
            if message.type == "ai":
                parsed = codec.parse(answer_text(message))
                assert parsed.content == message.text
                assert [call["args"] for call in parsed.tool_calls] == [
                    call["args"] for call in message.tool_calls
                ]
                assert not parsed.invalid_tool_calls


def test_the_tool_loop_is_as_sloppy_as_it_says():
    problems = sample_problems("train", 1, 1000)
    rng = random.Random(0)
    shapes = Counter()
    for problem in problems:
        lesson = traces.tool_loop_trace(problem, rng)
        calls = sum(message.type == "tool" for message in lesson.messages)
        correct = problem.task().verify(lesson.messages[-1].text) == 1
        assert correct == (calls > 0)
        shapes[calls] += 1
    assert shapes[0] / 1000 == pytest.approx(traces.GUESS_SHARE, abs=0.05)
    assert shapes[2] / (1000 - shapes[0]) == pytest.approx(traces.SLIP_SHARE, abs=0.05)


def test_guesses_are_spread_evenly_over_the_demonstrations():
    lessons = of_kind(traces.demonstrations("train", 0, 3000), TOOL_LOOP_PROMPT)
    guesses = [len(lesson.messages) == 3 for lesson in lessons]
    for start in range(0, len(guesses) - 200, 100):
        assert sum(guesses[start : start + 200]) == pytest.approx(200 * traces.GUESS_SHARE, abs=1)


def test_a_slip_fails_and_the_call_after_it_works():
    lessons = traces.demonstrations("train", 0, 800)
    slipped = [lesson for lesson in of_kind(lessons, TOOL_LOOP_PROMPT) if len(lesson.messages) == 7]
    assert len(slipped) > 20
    errors = {lesson.messages[3].text.splitlines()[-1].partition(":")[0] for lesson in slipped}
    assert errors == {"NameError", "SyntaxError"}
    for lesson in slipped:
        assert lesson.messages[5].text == final_answer(lesson.messages[6].text)


def test_guesses_of_any_length_miss(lessons):
    rng = random.Random(0)
    for problem in sample_problems("train", 2, 300):
        guess = traces.wrong_guess(problem, rng)
        assert problem.task().verify(f"<answer>\\boxed{{{guess}}}</answer>") == 0
        assert len(guess) == len(problem.answer)


def test_the_roles_speak_to_each_other_as_the_graph_lets_them():
    rng = random.Random(3)
    assert traces.FAILED == FAILED_IN_GRAPH
    for problem in sample_problems("eval", 2, 60):
        prompts = (problem.prompt(), problem.prompt("exact"))
        planner = traces.planner_trace(problem, rng)
        plan, _ = arranged(read_as(PlannerAnswer, planner.messages[2].text).subgoals, 8)
        assert [(s["name"], s["goal"], tuple(s["needs"])) for s in plan] == [
            (s.name, s.goal, s.needs) for s in problem.plan
        ]
        solver = traces.solver_trace(problem, rng)
        values = {step.name: step.value for step in problem.plan}
        requests = {
            solver_request(
                prompt, step.goal, {name: values[name] for name in step.needs}, hint
            ): step.value
            for prompt in prompts
            for step in problem.plan
            for hint in ("", f"{step.name} is missing")
        }
        assert final_answer(solver.messages[-1].text) == requests[solver.messages[1].text]
        hinted = (
            planner.messages[1].text.rpartition("\nHint: ")[2]
            if "\nHint: " in planner.messages[1].text
            else ""
        )
        assert planner.messages[1].text in {planner_request(prompt, hinted) for prompt in prompts}


def test_the_critic_revises_exactly_where_a_result_failed():
    rng = random.Random(4)
    seen = Counter()
    for problem in sample_problems("eval", 3, 200):
        lesson = traces.critic_trace(problem, rng)
        verdict = json.loads(lesson.messages[2].text)
        assert (verdict["action"] == "revise") == (f"= {traces.FAILED}" in lesson.messages[1].text)
        if verdict["action"] == "revise":
            assert (
                f"{verdict['subgoal']} = {traces.FAILED}" in lesson.messages[1].text
                and verdict["hint"]
            )
        else:
            assert verdict == {"action": "accept"}
        seen[verdict["action"]] += 1
    assert seen["revise"] / 200 == pytest.approx(traces.LOST_SHARE, abs=0.08)
    assert critic_request("P", {"a": "1"}) == "Problem: P\nResults:\na = 1"
    assert lesson.messages[0].text == CRITIC_PROMPT


def test_the_synthesizer_writes_what_the_verifier_takes():
    rng = random.Random(5)
    for problem in sample_problems("eval", 4, 60):
        lesson = traces.synthesizer_trace(problem, rng)
        exact = "Answer: <" in lesson.messages[1].text
        assert problem.task("exact" if exact else "plain").verify(lesson.messages[2].text) == 1
        assert lesson.messages[2].text == problem.final_text("exact" if exact else "plain")


def test_roles_are_part_of_the_mixture(lessons):
    shares = Counter(lesson.messages[0].text for lesson in lessons)
    assert len(shares) == 5
    assert shares[TOOL_LOOP_PROMPT] > 100
    assert shares[SOLVER_PROMPT] > 80


def test_demonstrations_are_a_function_of_the_seed():
    def first(seed):
        return [
            [message.text for message in lesson.messages]
            for lesson in traces.demonstrations("train", seed, 30)
        ]

    assert first(1) == first(1) != first(2)
