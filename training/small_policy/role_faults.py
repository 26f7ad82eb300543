"""Demonstrations of the four roles with faults in them, each as often as a named share says.

What a fault looks like, and what becomes of it in the hierarchical graph:

| share | the fault | if nobody puts it right |
|---|---|---|
| `plan_cut` | the planner leaves out the last subgoal; a plan of one is empty | the answer is a part's value |
| `solve_guess` | a solver gives a number as long as the value, without the tool | a wrong number that no role sees |
| `solve_formula` | a solver gives the formula in place of its value | the answer is no number |
| `solve_bad_call` | a solver's first call fails | nothing: the next one is good |
| `critique_accept` | the critic accepts a missing value, a formula, or the results of a cut plan | as of that fault |
| `critique_reject` | the critic gives up on results without a flaw, or has one redone | the run ends or loses a round |
| `synthesize_form` | the synthesizer gives `412 coins`, not the form asked for | nothing that a verifier reads |

So the roles have to do with each other: a cut plan and a formula do no harm under a critic that
looks. Each fault is a decision within a few tokens, against an answer that the policy knows as
well: at temperature 0 it hardly errs, at temperature 1 about as often as it was shown, and
reinforcement learning can lower that. A policy is first shown the roles without a fault
(`NO_FAULTS`, `CRITIC_KINDS`): a critic whose verdicts are noisy from the start learns how often to
accept, and not when.

What a critic can see is what is missing and what is no number. Whether a number is right it cannot
know.
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
"""Parts of a hundred demonstrations. Those of the tool loop keep it as it was."""
CRITIC_KINDS = {"tool_loop": 12, "solver": 18, "synthesizer": 5, "planner": 5, "critic": 60}
"""The same where the critic is to learn what a flaw looks like."""
CRITIC_SIGHTS = {"whole": 55, "failed": 10, "formula": 15, "cut": 20}
"""Parts of a hundred of the critic's: what it is shown. `cut`: the last subgoal is left out."""
FORMULA_THOUGHT = "The formula says it."
"""Before a formula in place of a value."""


@dataclass(frozen=True, slots=True)
class RoleFaults:
    """How often each fault is shown. Raises `ConfigError` for what is no share."""

    plan_cut: float = 0.2
    """Of plans: the last subgoal is left out."""
    solve_guess: float = 0.07
    """Of solvers: a guess."""
    solve_formula: float = 0.08
    """Of the other solvers: the formula in place of its value."""
    solve_bad_call: float = 0.25
    """Of solvers that use the tool: a first call that fails."""
    critique_accept: float = 0.35
    """Of verdicts on flawed results: consent."""
    critique_reject: float = 0.08
    """Of verdicts on results without a flaw: anything but consent."""
    synthesize_form: float = 0.1
    """Of final texts: not in the form that was asked for."""

    def __post_init__(self) -> None:
        for field in fields(self):
            share = getattr(self, field.name)
            if not 0 <= share < 1:
                raise ConfigError(
                    f"{field.name} = {share} is no share of demonstrations.",
                    "It is from 0 to below 1.",
                )


NO_FAULTS = RoleFaults(0, 0, 0, 0, 0, 0, 0)
"""The roles as they should be."""


def faulty_demonstrations(
    split: Split,
    seed: int,
    count: int,
    faults: RoleFaults | None = None,
    kinds: Mapping[str, int] = ROLE_KINDS,
) -> Iterator[Conversation]:
    """`count` conversations of all kinds, mixed as `kinds` says,
    each about a problem of its own.
    """
    rng = random.Random(derive_seed(seed, "faulty_demonstrations", split))
    traces = _Traces(rng, faults or RoleFaults()).by_kind()
    for problem in sample_problems(split, derive_seed(seed, "role_faults"), count):
        yield traces[rng.choices(list(kinds), list(kinds.values()))[0]](problem)


class _Traces:
    """One conversation of each kind at a time; each fault comes evenly,
    as often as its share says.
    """

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
        code, value = call.tool_calls[0]["args"]["code"], final_answer(answer.text) or ""
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
        results, step = plan_results(problem), self._rng.choice(problem.plan)
        sight = self._rng.choices(list(CRITIC_SIGHTS), list(CRITIC_SIGHTS.values()))[0]
        if sight == "cut" and len(results) == 1:
            sight = "failed"  # nothing is left of such a plan
        verdict: dict[str, str] = {
            "action": "revise",
            "subgoal": step.name,
            "hint": missing_hint(step),
        }
        match sight:
            case "whole":
                verdict = self._verdict_on_whole(verdict)
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

    def _verdict_on_whole(self, revision: dict[str, str]) -> dict[str, str]:
        if not next(self._due["critique_reject"]):
            return {"action": "accept"}
        return {"action": "give_up"} if self._rng.random() < 0.5 else revision

    def _synthesizer(self, problem: WordProblem) -> Conversation:
        lesson = synthesizer_trace(problem, self._rng)
        return (
            _answered(lesson, f"{problem.answer} {problem.unit}")
            if next(self._due["synthesize_form"])
            else lesson
        )


def formula_of(code: str) -> str:
    """The last line of a subgoal's code: what is computed, in the names and numbers that it is
    computed from.
    """
    return code.rpartition("\n")[2]


def _answered(lesson: Conversation, text: str) -> Conversation:
    """The same request with another answer."""
    return Conversation((*lesson.messages[:-1], AIMessage(text)), lesson.tools)
