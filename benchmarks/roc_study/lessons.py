"""Lessons of the study's cold start: the tool loop on three families of tasks, with faults.

    python -m benchmarks.roc_study.lessons LESSONS.jsonl [--count 6400] [--seed 0]

`builtin:cold-start` knows the word problems and solves nothing else. These lessons teach it the form
of two families of reasoning-gym. As in its own demonstrations, some traces guess a number without
the tool, and some make a call that fails before a call that works, since a study of tool errors
needs a start that makes them. The shares are those of the word problems' demonstrations.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from langchain_core.messages import HumanMessage, SystemMessage

from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.training.sft import Conversation
from hrm_agent.training.small_policy.format_lessons import write_lessons
from hrm_agent.training.small_policy.traces import (
    FIRST_THOUGHTS,
    GUESS_SHARE,
    GUESS_THOUGHTS,
    LAST_THOUGHTS,
    PYTHON_TOOL,
    REPAIR_THOUGHTS,
    SLIP_SHARE,
    answer_turn,
    broken,
    evenly,
    tool_loop_trace,
    tool_turns,
    wrong_number,
)
from hrm_agent.training.tasks import Task, load_tasks
from hrm_agent.training.tasks.word_problems import sample_problems
from hrm_agent.trajectory import derive_seed

__all__ = ["CHAIN_SUM", "FAMILIES", "LCM", "lessons"]

CHAIN_SUM = "reasoning_gym:chain_sum?min_digits=3&max_digits=3&min_terms=2&max_terms=4"
LCM = "reasoning_gym:lcm?min_numbers=2&max_numbers=2&min_value=101&max_value=999"
FAMILIES = ("word_problems", CHAIN_SUM, LCM)
"""Families of the study, in equal shares. Their numbers have three digits or more, so that problems
of the two splits hardly ever coincide.
"""


def lessons(seed: int, count: int) -> list[Conversation]:
    """Lessons of all families in equal shares, in random order."""
    rng = random.Random(derive_seed(seed, "lessons of the study"))
    each = count // len(FAMILIES)
    guesses = evenly(GUESS_SHARE)
    found = [
        tool_loop_trace(problem, rng, next(guesses))
        for problem in sample_problems("train", derive_seed(seed, "lessons"), each)
    ]
    for spec, write in CODE.items():
        tasks = load_tasks(spec, split="train", seed=derive_seed(seed, "lessons"), count=each)
        found += [_trace(task, write(task.prompt), rng, next(guesses)) for task in tasks]
    rng.shuffle(found)
    return found


def _sum_code(prompt: str) -> str:
    return prompt.partition(":")[2].strip(" =")


def _multiple_code(prompt: str) -> str:
    first, second = re.findall(r"\d+", prompt)
    return f"import math\nmath.lcm({first}, {second})"


CODE: Mapping[str, Callable[[str], str]] = {CHAIN_SUM: _sum_code, LCM: _multiple_code}
"""Code that solves a problem, by family and from its prompt."""


def _trace(task: Task, code: str, rng: random.Random, guess: bool) -> Conversation:
    """Trace like those of the word problems."""
    head = [SystemMessage(TOOL_LOOP_PROMPT), HumanMessage(task.prompt)]
    answer = str(task.answer)
    if guess:
        return Conversation(
            (*head, answer_turn(rng.choice(GUESS_THOUGHTS), wrong_number(answer, rng))),
            (PYTHON_TOOL,),
        )
    slip = rng.random() < SLIP_SHARE
    slips = tool_turns(rng.choice(FIRST_THOUGHTS), _slip(code, rng)) if slip else []
    thought = rng.choice(REPAIR_THOUGHTS if slip else FIRST_THOUGHTS)
    last = answer_turn(rng.choice(LAST_THOUGHTS), answer)
    return Conversation((*head, *slips, *tool_turns(thought, code), last), (PYTHON_TOOL,))


def _slip(code: str, rng: random.Random) -> str:
    """Code with an error: the import is forgotten, or an expression is broken."""
    _, _, after_import = code.partition("\n")
    return after_import or broken(code, rng)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=6400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_lessons(lessons(options.seed, options.count), options.out)


if __name__ == "__main__":
    main()
