"""Calls on a policy's text: failures caused by the text are distinguished from failures of their
process.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from hrm_agent.rewards import (
    Reward,
    Rollout,
    Rubric,
    answer_is,
    comparison_of,
    opened_scorer,
    reader_of,
)
from hrm_agent.rewards.bounded_call import CallRaisedError, ExceededError, bounded_call
from hrm_agent.trajectory import RewardScore, TaskRef
from tests.support.trajectory.samples import make_trajectory

DOES = "tests.support.rewards.bounded_calls:does"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("loop", r"it took more than 2 s of CPU time"),
        ("exit", "it ended its process with 3"),
        ("crash", "it ended its process with -11"),
        ("memory", "MiB of memory"),
        ("deep", "nested too deeply"),
    ],
)
def test_what_the_text_causes_is_said_and_the_next_call_is_answered(what: str, said: str) -> None:
    with pytest.raises(ExceededError, match=said):
        bounded_call(DOES, what)
    assert bounded_call(DOES, "right") == 1.0


def test_an_error_of_the_function_is_told_with_its_words() -> None:
    with pytest.raises(CallRaisedError, match="ValueError: of no use"):
        bounded_call(DOES, "raise")


def test_a_process_that_is_gone_is_made_anew_and_one_that_is_killed_is_no_text_s_doing() -> None:
    os.kill(bounded_call(DOES, "parent"), signal.SIGKILL)
    assert bounded_call(DOES, "right") == 1.0
    with pytest.raises(RuntimeError, match="was lost"):
        bounded_call(DOES, "killed")
    with pytest.raises(RuntimeError, match="does not import: ModuleNotFoundError"):
        bounded_call("hrm_agent.no_such_module:f", "x")
    assert bounded_call(DOES, "right") == 1.0


async def scored(reward: Reward, text: str, answer: str) -> RewardScore:
    ref = TaskRef(id="t", family="mine", prompt="p", answer=answer)
    async with opened_scorer(Rubric([reward])) as scorer:
        (found,) = await scorer.score([Rollout(make_trajectory(answer=text, task=ref))])
    return found.scores[0]


@pytest.mark.parametrize(
    "answer",
    ["10^{10^{10}}", r"\sum_{k=1}^{10^9} k^k", r"\frac{", "\0\ud800"],
)
async def test_algebra_that_has_no_end_is_a_wrong_answer_and_no_fault(answer: str) -> None:
    found = await scored(answer_is("text", "symbolic"), answer, "5")
    assert (found.value, found.fault) == (0.0, None)
    assert found.reason.startswith("read ")
    assert comparison_of("symbolic")("x(x+1)", "x^2+x")


NUMBERS = ", ".join(f"{number}.0" for number in range(4000))


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        (NUMBERS, "1, 2, 3", False),
        (NUMBERS, ", ".join(map(str, range(4000))), True),
        (NUMBERS, ", ".join(map(str, range(1, 4001))), False),
        (", ".join(rf"5\text{{{n}}}" for n in range(4000)), "5", False),
        ("5, " * 300_000, "5", False),
        (r"50\%, 50", "50", True),
        (r"5\text{m}, 5\text{s}", r"5\text{s}, 5\text{m}", True),
        (r"5\text{m}", r"5\text{s}", False),
        ("a, b, a", "b; a", True),
    ],
)
def test_sets_are_compared_in_one_pass(answer: str, reference: str, equal: bool) -> None:
    began = time.thread_time()
    assert comparison_of("set")(answer, reference) is equal
    assert time.thread_time() - began < 5.0


async def test_a_pattern_that_backtracks_without_end_finds_no_answer() -> None:
    found: Any = await scored(answer_is(r"regex:(\w+\s?)+$", "text"), "a" * 60 + "!", "a")
    assert (found.value, found.fault, found.reason) == (
        0.0,
        None,
        "no answer was found in the final text",
    )
    assert reader_of(r"regex:(\w+\s?)+$")("it is 5") == "5"
