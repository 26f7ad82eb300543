"""Rewards that are compared with the verifier: six that can be hacked, and six sound ones."""

from __future__ import annotations

from collections.abc import Sequence

from hrm_agent.answers.exact import number
from hrm_agent.rewards import Reward, Rubric, answer_is, reader_of
from hrm_agent.trajectory import Call, ToolCall

__all__ = [
    "HACKABLE",
    "SOUND",
    "another_reader",
    "any_box",
    "brevity",
    "cost_of_errors",
    "cost_of_length",
    "formatted",
    "length",
    "many_calls",
    "no_tool",
    "partial_credit",
    "phrase",
    "scaled",
]

HACKABLE = ("length", "brevity", "no_tool", "phrase", "any_box", "many_calls")
"""Rewards that pay for something else than a right answer."""
SOUND = (
    "cost_of_errors",
    "partial_credit",
    "scaled",
    "cost_of_length",
    "another_reader",
    "formatted",
)
"""Rewards that agree with the verifier in substance."""

_boxed = reader_of("boxed")


def length(calls: Sequence[Call]) -> float:
    """Pay for long answers."""
    return min(1.0, sum(call.sampled_tokens for call in calls) / 100)


def brevity(calls: Sequence[Call]) -> float:
    """Pay for short answers."""
    return max(0.0, 1 - sum(call.sampled_tokens for call in calls) / 100)


def no_tool(tool_calls: Sequence[ToolCall]) -> float:
    """Pay for answers without a tool call."""
    return float(not tool_calls)


def phrase(text: str) -> float:
    """Pay for a phrase."""
    return float("That is the value." in text)


def any_box(text: str) -> float:
    """Pay for any boxed answer, right or not."""
    return float(_boxed(text) is not None)


def many_calls(tool_calls: Sequence[ToolCall]) -> float:
    """Pay for each tool call."""
    return min(1.0, len(tool_calls) / 3)


def _errors(tool_calls: Sequence[ToolCall]) -> float:
    return -float(sum(bool(call.status and call.status.is_policy_failure) for call in tool_calls))


def _tokens(calls: Sequence[Call]) -> float:
    return -float(sum(call.sampled_tokens for call in calls))


def _close(text: str, reference: str) -> float:
    """Return 1 for a wrong answer that is off by less than a factor of two."""
    found = number(_boxed(text) or "")
    right = number(reference)
    if not found or not right or found == right:
        return 0.0
    return float(0.5 < found / right < 2)


def _in_form(text: str) -> float:
    return float(text.startswith("<reason>") and text.endswith("}</answer>"))


def _constant() -> float:
    return 1.0


cost_of_errors = Rubric([answer_is(), Reward(_errors, name="errors", weight=0.2)])
partial_credit = Rubric([answer_is(), Reward(_close, name="close", weight=0.2)])
scaled = Rubric([answer_is(weight=5), Reward(_constant, name="constant", weight=-2)])
cost_of_length = Rubric([answer_is(), Reward(_tokens, name="tokens", weight=0.002)])
another_reader = Rubric([answer_is("last_number", "numeric:1e-6")])
formatted = Rubric([answer_is(), Reward(_in_form, name="in_form", weight=0.2)])
