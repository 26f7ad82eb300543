"""Rewards of single calls: tool outcomes, answers that can be read, and the judgement of a later call.

A fault is worth -1 and everything else 0, so that an additional call never raises the return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import BaseModel

from hrm_agent.answers.typed_reply import UnparsableAnswer, read_as
from hrm_agent.trajectory import Call, FinishReason, ToolCall
from hrm_agent.trajectory.words import parts_of

__all__ = ["judged_by", "readable", "tool_outcomes"]


def tool_outcomes(tool_calls: Sequence[ToolCall]) -> dict[str, float]:
    """Reward function: -1 for each tool call that failed through a fault of the policy."""
    return {
        call.id: -float(call.status.is_policy_failure)
        for call in tool_calls
        if call.status is not None
    }


def readable(
    types: Mapping[str, type[BaseModel]] | None = None,
) -> Callable[[Sequence[Call]], dict[str, float]]:
    """Reward function: -1 for each answer that cannot be read.

    An answer cannot be read if it met its token limit, if a tool call in it cannot be decoded, or if it
    has no JSON object of its role's type. `types`: type by role (node that asked the model), such
    as `{"plan": PlannerAnswer}`.
    """
    by_role = types or {}

    def readable(calls: Sequence[Call]) -> dict[str, float]:
        return {call.id: -float(not _is_readable(call, by_role)) for call in calls}

    return readable


def _is_readable(call: Call, types: Mapping[str, type[BaseModel]]) -> bool:
    if call.finish_reason is FinishReason.LENGTH or call.response.get("invalid_tool_calls"):
        return False
    expected = types.get(call.identity.role)
    if expected is None:
        return True
    try:
        read_as(expected, parts_of(call.response).text)
    except UnparsableAnswer:
        return False
    return True


def judged_by(
    judge: str, of: str, worth: Callable[[str], float | None]
) -> Callable[[Sequence[Call]], dict[str, float]]:
    """Reward function: the judgement of a later call, such as a critic's.

    Each call of the role `judge` gives its judgement to the calls of the role `of` since the
    previous one. `worth` reads the judgement from the text of the judge's answer (None: no
    opinion). A judge that is trained on the same rewards learns to please: freeze its role.
    """

    def judged_by(calls: Sequence[Call]) -> dict[str, float]:
        found: dict[str, float] = {}
        since: list[str] = []
        for call in calls:
            if call.identity.role == of:
                since.append(call.id)
            elif call.identity.role == judge:
                value = worth(parts_of(call.response).text)
                if value is not None:
                    found |= dict.fromkeys(since, value)
                since = []
        return found

    return judged_by
