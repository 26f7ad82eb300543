"""Classes of failures, in their order of precedence.

A run can match several classes. The first one in the order of `CLASSES` is its primary class, and
the others are secondary. Faults that are not the policy's come first, since they make the reward of
a run meaningless. Then come the classes that are read from the end of a run, since they alone
explain its reward, then those of its tools and roles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "CLASSES",
    "JUDGED",
    "NAMES",
    "UNEXPLAINED",
    "FailureClass",
    "class_named",
]

UNEXPLAINED = "unexplained"
"""Class of a run that no rule explains."""


@dataclass(frozen=True, slots=True)
class FailureClass:
    """Class of failures."""

    name: str
    """Name of the class."""
    rule: str
    """Rule, in words."""
    apart: bool = False
    """True for faults that are not the policy's."""


CLASSES = (
    FailureClass("stopped", "The run was stopped from outside, or waits for a person.", True),
    FailureClass("not_scored", "The verifier raised an error, or gave no number.", True),
    FailureClass("infrastructure", "A tool call was lost to a machine or a service.", True),
    FailureClass("provider", "The run ended with the error of a model call.", True),
    FailureClass(
        "graph_error", "The graph raised an error that does not follow from a reply.", True
    ),
    FailureClass(
        "wrong_form",
        "The final text states the reference answer, and the verifier did not accept its form.",
    ),
    FailureClass(
        "critic_rejected_right", "A critic that was shown the reference answer did not accept it."
    ),
    FailureClass(
        "loop",
        "One role made the same tool call with the same result, or gave the same reply, three times,"
        " or the end of its text repeats itself.",
    ),
    FailureClass("no_source", "Searches were made, and none of them returned anything."),
    FailureClass(
        "gave_up", "The final text is empty or a refusal, or the critic ended the run without one."
    ),
    FailureClass(
        "limit",
        "The run, or the call that gave its final text, reached a limit of tokens, turns,"
        " time, calls, cost, rounds or steps.",
    ),
    FailureClass("unreadable_reply", "The graph could not continue from a reply."),
    FailureClass(
        "no_final_answer", "The final request asks for a box or a tag, and the text has none."
    ),
    FailureClass(
        "lost_result",
        "A tool result or an earlier reply has the reference answer, and the final text another"
        " one.",
    ),
    FailureClass(
        "not_cited",
        "The final request asks for citations, searches returned something, and the text cites"
        " nothing.",
    ),
    FailureClass(
        "invalid_tool_call", "The last tool call, or one in the final text, could not be decoded."
    ),
    FailureClass("tool_timeout", "The last tool call of a role reached its time limit."),
    FailureClass("tool_memory", "The last tool call of a role reached its memory limit."),
    FailureClass("tool_output", "The last tool call of a role printed more than allowed."),
    FailureClass("tool_denied", "The last tool call of a role asked for what is not allowed."),
    FailureClass("tool_error", "The last tool call of a role raised an error."),
    FailureClass(
        "plan_not_followed",
        "Some subgoals of a plan were passed on word for word and others were not, or a subgoal has"
        " no value.",
    ),
    FailureClass(
        "critic_accepted_wrong", "A critic accepted results without the reference answer."
    ),
    FailureClass("no_tool", "Tools were offered, and no role called one."),
    FailureClass(UNEXPLAINED, "No rule matches."),
)
"""Classes that rules decide, in their order of precedence."""
JUDGED = {
    "wrong_plan": "The plan cannot solve the task, or leaves a needed part out.",
    "misread_task": "The run answers another question than the task asks.",
    "wrong_method": "The task is understood, and the formula or the approach is wrong.",
    "wrong_calculation": "The approach is right, and a step of the calculation is wrong.",
    "invented_fact": "The answer relies on a claim that no source or tool gave.",
    "wrong_reference": "The answer is right, and the reference answer is wrong.",
}
"""Classes among which a judge chooses: name -> meaning."""
NAMES = (*(each.name for each in CLASSES if each.name != UNEXPLAINED), *JUDGED, UNEXPLAINED)
"""Names of all classes, in the order in which they are listed."""
_BY_NAME = {each.name: each for each in CLASSES} | {
    name: FailureClass(name, rule) for name, rule in JUDGED.items()
}


def class_named(name: str) -> FailureClass:
    return _BY_NAME[name]


def in_precedence(names: Iterable[str]) -> list[str]:
    """Names sorted by precedence."""
    return sorted(names, key=NAMES.index)
