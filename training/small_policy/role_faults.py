"""Demonstrations of the four roles with faults. Each fault has a configured frequency.

Faults and their effect in the hierarchical graph:

| share | the fault | effect if not corrected |
|---|---|---|
| `plan_cut` | the planner leaves out the last subgoal; a plan of one is empty | the answer is a part's value |
| `solve_guess` | a solver gives a number as long as the value, without the tool | a wrong number that no role detects |
| `solve_formula` | a solver gives the formula in place of its value | the answer is no number |
| `solve_bad_call` | a solver's first call fails | nothing: the next one is good |
| `critique_accept` | the critic accepts a missing value, a formula, or the results of a cut plan | that of the fault |
| `critique_reject` | the critic gives up on results without a flaw, or has one redone | the run ends or loses a round |
| `synthesize_form` | the synthesizer gives `412 coins`, not the required form | nothing that a verifier reads |

So the roles interact: a cut plan or a formula does no harm if the critic detects it. Whether a
fault is made is decided within a few tokens, and the policy also knows the right continuation. At
temperature 0 it makes almost no faults, and at temperature 1 about as many as its demonstrations,
which reinforcement learning can reduce. A policy is first shown the roles without faults
(`NO_FAULTS`, `CRITIC_KINDS`): if a critic's verdicts are noisy from the start, it learns how often
to accept, but not when.

A critic can see that a result is missing or is not a number. It cannot see whether a number is
right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts.prompts import CRITIC_PROMPT, critic_request
from hrm_agent.training.sft import Conversation
from hrm_agent.training.small_policy.traces import (
    FAILED,
    GUESS_SHARE,
    GUESS_THOUGHTS,
    REPAIR_THOUGHTS,
    SOLVER_THOUGHT,
    answer_turn,
    broken,
    draw_form,
    evenly,
    missing_hint,
    plan_results,
    planner_trace,
    solver_trace,
    synthesizer_trace,
    tool_loop_trace,
    tool_turns,
    wrong_number,
)
from hrm_agent.training.tasks.word_problems import Split, WordProblem, sample_problems
from hrm_agent.trajectory import derive_seed

__all__ = [
    "CRITIC_KINDS",
    "FORMULA_THOUGHT",
    "NO_FAULTS",
    "ROLE_KINDS",
    "RoleFaults",
    "faulty_demonstrations",
]

ROLE_KINDS = {"tool_loop": 22, "solver": 32, "synthesizer": 12, "planner": 16, "critic": 18}
"""Number of demonstrations of each kind in a hundred. The tool loop is included so that the policy
does not unlearn it.
"""
CRITIC_KINDS = {"tool_loop": 12, "solver": 18, "synthesizer": 5, "planner": 5, "critic": 60}
"""Number of demonstrations of each kind in a hundred, while the critic learns to detect flaws."""
CRITIC_SIGHTS = {"whole": 55, "failed": 10, "formula": 15, "cut": 20}
"""Number of the critic's inputs of each kind in a hundred. `cut`: the last subgoal is left out."""
FORMULA_THOUGHT = "The formula says it."
"""Thought that a solver writes before a formula in place of a value."""


@dataclass(frozen=True, slots=True)
class RoleFaults:
    """Share of demonstrations with each fault. Raises `ConfigError` for an invalid share."""

    plan_cut: float = 0.2
    """Share of plans without their last subgoal."""
    solve_guess: float = 0.07
    """Share of solvers that guess."""
    solve_formula: float = 0.08
    """Share of the solvers that do not guess, but give the formula in place of its value."""
    solve_bad_call: float = 0.25
    """Share of the solvers that use the tool whose first call fails."""
    critique_accept: float = 0.35
    """Share of verdicts on flawed results that accept them."""
    critique_reject: float = 0.08
    """Share of verdicts on results without a flaw that do not accept them."""
    synthesize_form: float = 0.1
    """Share of final texts that are not in the required form."""

    def __post_init__(self) -> None:
        for field in fields(self):
            share = getattr(self, field.name)
            if not 0 <= share < 1:
                raise ConfigError(
                    f"{field.name} = {share} is no share of demonstrations.",
                    "Take a number from 0 to below 1.",
                )


NO_FAULTS = RoleFaults(0, 0, 0, 0, 0, 0, 0)
"""Roles without faults."""


def faulty_demonstrations(
    split: Split,
    seed: int,
    count: int,
    faults: RoleFaults | None = None,
    kinds: Mapping[str, int] = ROLE_KINDS,
) -> Iterator[Conversation]:
    """Yield `count` conversations, mixed by `kinds`, each about a different problem."""
    rng = random.Random(derive_seed(seed, "faulty_demonstrations", split))
    traces = _Traces(rng, faults or RoleFaults()).by_kind()
    for problem in sample_problems(split, derive_seed(seed, "role_faults"), count):
        yield traces[rng.choices(list(kinds), list(kinds.values()))[0]](problem)


class _Traces:
    """Makes conversations of each kind, one at a time. Each fault occurs evenly, at its share."""

    def __init__(self, rng: random.Random, faults: RoleFaults) -> None:
        self._rng = rng
        self._due = {field.name: evenly(getattr(faults, field.name)) for field in fields(faults)}
        self._tool_loop_guesses = evenly(GUESS_SHARE)

    def by_kind(self) -> dict[str, Callable[[WordProblem], Conversation]]:
        return {
            "tool_loop": lambda problem: tool_loop_trace(
                problem, self._rng, next(self._tool_loop_guesses)
            ),
            "solver": self._solver,
            "synthesizer": self._synthesizer,
            "planner": self._planner,
            "critic": self._critic,
        }

    def _planner(self, problem: WordProblem) -> Conversation:
        lesson = planner_trace(problem, self._rng)
        if not next(self._due["plan_cut"]):
            return lesson
        return _answered(
            lesson, json.dumps({"subgoals": json.loads(lesson.messages[-1].text)["subgoals"][:-1]})
        )

    def _solver(self, problem: WordProblem) -> Conversation:
        lesson = solver_trace(problem, self._rng)
        *asked, call, _, answer = lesson.messages
        assert isinstance(call, AIMessage)
        code = call.tool_calls[0]["args"]["code"]
        value = final_answer(answer.text) or ""
        if next(self._due["solve_guess"]):
            guess = answer_turn(self._rng.choice(GUESS_THOUGHTS), wrong_number(value, self._rng))
            return Conversation((*asked, guess), lesson.tools)
        if next(self._due["solve_formula"]):
            return Conversation(
                (*asked, answer_turn(FORMULA_THOUGHT, formula_of(code))), lesson.tools
            )
        if next(self._due["solve_bad_call"]):
            calls = (
                *tool_turns(SOLVER_THOUGHT, broken(code, self._rng)),
                *tool_turns(self._rng.choice(REPAIR_THOUGHTS), code),
            )
            return Conversation((*asked, *calls, answer), lesson.tools)
        return lesson

    def _critic(self, problem: WordProblem) -> Conversation:
        results = plan_results(problem)
        step = self._rng.choice(problem.plan)
        sight = self._rng.choices(list(CRITIC_SIGHTS), list(CRITIC_SIGHTS.values()))[0]
        if sight == "cut" and len(results) == 1:
            sight = "failed"  # a plan of one subgoal would be empty
        verdict: dict[str, str] = {
            "action": "revise",
            "subgoal": step.name,
            "hint": missing_hint(step),
        }
        match sight:
            case "whole":
                if not next(self._due["critique_reject"]):
                    verdict = {"action": "accept"}
                elif self._rng.random() < 0.5:
                    verdict = {"action": "give_up"}
            case "cut":
                last = problem.plan[-1]
                del results[last.name]
                verdict = {"action": "replan", "hint": missing_hint(last)}
            case _:
                results[step.name] = FAILED if sight == "failed" else formula_of(step.code)
        if sight != "whole" and next(self._due["critique_accept"]):
            verdict = {"action": "accept"}
        request = critic_request(problem.prompt(draw_form(self._rng)), results)
        return Conversation(
            (SystemMessage(CRITIC_PROMPT), HumanMessage(request), AIMessage(json.dumps(verdict)))
        )

    def _synthesizer(self, problem: WordProblem) -> Conversation:
        lesson = synthesizer_trace(problem, self._rng)
        return (
            _answered(lesson, f"{problem.answer} {problem.unit}")
            if next(self._due["synthesize_form"])
            else lesson
        )


def formula_of(code: str) -> str:
    """Last line of a subgoal's code, which is its formula in names and numbers."""
    return code.rpartition("\n")[2]


def _answered(lesson: Conversation, text: str) -> Conversation:
    """Copy of a demonstration with another answer."""
    return Conversation((*lesson.messages[:-1], AIMessage(text)), lesson.tools)
