"""Lessons of the start of `learnability`: one family that it masters, and one with faults."""

from __future__ import annotations

import random

from langchain_core.messages import HumanMessage, SystemMessage

from benchmarks.roc_study.lessons import CHAIN_SUM, CODE, LCM
from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.training.sft import Conversation
from hrm_agent.training.small_policy.traces import (
    FIRST_THOUGHTS,
    GUESS_SHARE,
    LAST_THOUGHTS,
    PYTHON_TOOL,
    answer_turn,
    evenly,
    tool_loop_trace,
    tool_turns,
)
from hrm_agent.training.tasks import load_tasks
from hrm_agent.training.tasks.word_problems import sample_problems
from hrm_agent.trajectory import derive_seed

__all__ = ["FAMILIES", "lessons"]

FAMILIES = (LCM, "word_problems", CHAIN_SUM)
"""Families of the pool: mastered, to be learnt, and never seen in a lesson."""


def lessons(seed: int, count: int) -> list[Conversation]:
    """Lessons of the first two families in equal shares, in random order. Those of the second guess
    and slip as in the policy's own demonstrations.
    """
    rng = random.Random(derive_seed(seed, "lessons of the pool"))
    lesson_seed = derive_seed(seed, "lessons")
    guesses = evenly(GUESS_SHARE)
    found = [
        tool_loop_trace(problem, rng, next(guesses))
        for problem in sample_problems("train", lesson_seed, count // 2)
    ]
    for task in load_tasks(LCM, split="train", seed=lesson_seed, count=count // 2):
        turns = tool_turns(rng.choice(FIRST_THOUGHTS), CODE[LCM](task.prompt))
        last = answer_turn(rng.choice(LAST_THOUGHTS), str(task.answer))
        head = (SystemMessage(TOOL_LOOP_PROMPT), HumanMessage(task.prompt))
        found.append(Conversation((*head, *turns, last), (PYTHON_TOOL,)))
    rng.shuffle(found)
    return found
