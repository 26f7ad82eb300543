"""Lessons that teach only form, like the cold start of rStar2-Agent: no lesson contains reasoning
about the later tasks.

    python -m hrm_agent.training.small_policy.format_lessons LESSONS.jsonl [--count 8000] [--seed 0] [--fresh FOLDER]
    hrm-agent train sft LESSONS.jsonl --config configs/format-cold-start.toml --policy FOLDER --out runs/forms

The mixture follows the paper (arXiv 2508.20722, section 5): general instructions, tool calls, and
conversations in the form of the later tasks. In these lessons, instructions are about words, the
tool runs an expression that the request contains, and the roles of the hierarchical graph split,
compute, accept and report what the request lists. No lesson shows how a word problem becomes an
expression; reinforcement learning has to find this, or a pretrained model knows it. To start from
scratch, `--fresh` writes a policy with fresh weights and a tokenizer trained on these lessons.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    convert_to_openai_messages,
)

from hrm_agent.graphs.parts.prompts import (
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    SOLVER_PROMPT,
    SYNTHESIZER_PROMPT,
    TOOL_LOOP_PROMPT,
    critic_request,
    planner_request,
    solver_request,
    synthesizer_request,
)
from hrm_agent.training.checkpoints import save_policy
from hrm_agent.training.sft import Conversation
from hrm_agent.training.small_policy.architecture import new_model
from hrm_agent.training.small_policy.cold_start import build_tokenizer
from hrm_agent.training.small_policy.snippets import tool_text
from hrm_agent.training.small_policy.traces import (
    FAILED,
    PYTHON_TOOL,
    answer_turn,
    missing_hint,
    tool_turns,
)
from hrm_agent.training.tasks.word_problems import PlanStep
from hrm_agent.trajectory import derive_seed

__all__ = ["KINDS", "format_lessons", "write_lessons"]

KINDS = {"instruction": 20, "tool": 44, "planner": 6, "solver": 16, "critic": 6, "synthesizer": 8}
"""Number of lessons of each kind in a hundred. The mix is close to the paper's, in which three
quarters of 222K lessons call tools.
"""
LOST_SHARE = 0.2
"""Share of the critic's lessons with a missing result."""
WORDS = (
    "apple", "boat", "cloud", "door", "east", "fish", "garden", "hill", "island", "jar", "king", "lamp",
    "moon", "north", "oak", "paper", "quiet", "river", "stone", "tree", "under", "violet", "wind", "yard",
)  # fmt: skip


def format_lessons(seed: int, count: int) -> Iterator[Conversation]:
    """Yield `count` conversations, mixed by `KINDS`."""
    rng = random.Random(derive_seed(seed, "format lessons"))
    for _ in range(count):
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "instruction":
            words = rng.sample(WORDS, rng.randint(2, 4))
            listed = " ".join(words)
            asked, answer = rng.choice(
                (
                    (f"Repeat these words: {listed}", listed),
                    (f"Write these words in capital letters: {listed}", listed.upper()),
                    (
                        f"Write these words in reverse order: {listed}",
                        " ".join(reversed(words)),
                    ),
                    (f"Which is the first of these words? {listed}", words[0]),
                    (f"Which is the last of these words? {listed}", words[-1]),
                    (f"Put commas between these words: {listed}", ", ".join(words)),
                )
            )
            yield Conversation((HumanMessage(asked), AIMessage(answer)))
        elif kind == "tool":
            code = _expression(rng)
            asked = rng.choice(
                (f"Run this with python: {code}", f"What does python say to {code} ?")
            )
            turns = [
                *tool_turns("I run it.", code),
                answer_turn("That is what it says.", tool_text(code).strip()),
            ]
            yield _with_tool(TOOL_LOOP_PROMPT, asked, turns)
        else:
            yield _role(kind, rng)


def write_lessons(lessons: Sequence[Conversation], path: Path) -> None:
    """Write lessons to a file that `hrm_agent.training.sft.read_chats` reads."""
    with path.open("w", encoding="utf-8") as file:
        for lesson in lessons:
            row: dict[str, Any] = {"messages": convert_to_openai_messages(list(lesson.messages))}
            file.write(
                json.dumps(row | ({"tools": list(lesson.tools)} if lesson.tools else {})) + "\n"
            )


def _role(kind: str, rng: random.Random) -> Conversation:
    """Lesson of a role. The request already lists the subgoals."""
    first, second = (_expression(rng) for _ in range(2))
    listed = f"first: run {first}\nsecond: run {second}\nThe answer is second."
    values = {"first": tool_text(first).strip(), "second": tool_text(second).strip()}
    if kind == "planner":
        goals = [{"name": "first", "goal": f"run {first}", "needs": list[str]()}]
        goals.append({"name": "second", "goal": f"run {second}", "needs": []})
        return _told(PLANNER_PROMPT, planner_request(listed, ""), json.dumps({"subgoals": goals}))
    if kind == "solver":
        name, code = rng.choice((("first", first), ("second", second)))
        turns = [*tool_turns("I run it.", code), answer_turn("That is what it says.", values[name])]
        return _with_tool(SOLVER_PROMPT, solver_request(listed, f"run {code}", {}, ""), turns)
    if kind == "critic":
        verdict: dict[str, str] = {"action": "accept"}
        if rng.random() < LOST_SHARE:
            lost = rng.choice(list(values))
            values[lost] = FAILED
            hint = missing_hint(PlanStep(lost, "", (), "", ""))
            verdict = {"action": "revise", "subgoal": lost, "hint": hint}
        return _told(CRITIC_PROMPT, critic_request(listed, values), json.dumps(verdict))
    answer = f"<answer>\\boxed{{{values['second']}}}</answer>"
    return _told(SYNTHESIZER_PROMPT, synthesizer_request(listed, values, ""), answer)


def _expression(rng: random.Random) -> str:
    a, b, c = (rng.randint(2, 99) for _ in range(3))
    return rng.choice(
        (f"{a} + {b}", f"{a} * {b}", f"{a} - {b}", f"({a} + {b}) * {c}", f"{a} * {b} - {c}")
    )


def _told(prompt: str, request: str, answer: str) -> Conversation:
    return Conversation((SystemMessage(prompt), HumanMessage(request), AIMessage(answer)))


def _with_tool(prompt: str, request: str, turns: Sequence[BaseMessage]) -> Conversation:
    return Conversation((SystemMessage(prompt), HumanMessage(request), *turns), (PYTHON_TOOL,))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="JSONL file to write")
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fresh", type=Path, metavar="FOLDER", help="write a policy with fresh weights here"
    )
    options = parser.parse_args()
    lessons = list(format_lessons(options.seed, options.count))
    write_lessons(lessons, options.out)
    if options.fresh:
        with_head = [lesson for lesson in lessons if isinstance(lesson.messages[0], SystemMessage)]
        tokenizer = build_tokenizer(with_head[:3000])
        card = "# Fresh weights\n\nWith the tokenizer of lessons in form alone.\n"
        save_policy(new_model(tokenizer, options.seed), tokenizer, options.fresh, card)


if __name__ == "__main__":
    main()
