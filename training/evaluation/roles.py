"""Calls and failures of a trajectory by role.

A role is the node of the outermost graph in which a call was made: the first name of the call's
checkpoint namespace (`solve:ID|reason:ID` belongs to the role `solve`). One execution of that node
is a *run* of the role. A tool call counts for the role that asked for it. Most counts exist for the
roles of any graph. Failed runs are counted for the built-in hierarchical graph only, whose required
outputs are known: a plan and a verdict contain a JSON object, and a solver's last turn contains a
final answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.answers.json_repair import json_values
from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.training.evaluation.prices import usage
from hrm_agent.trajectory import Call, FinishReason, Trajectory
from hrm_agent.trajectory.words import text_of

__all__ = ["ROLE_COUNTS", "Roles", "role_counts"]

Roles = dict[str, Counter[str]]
"""Counts by role, in the order in which roles first appear. The names of counts are those of
`ROLE_COUNTS`.
"""

ROLE_COUNTS = {
    "runs": "executions of the node",
    "failed": (
        "runs that ended without what the role has to give: a readable plan or verdict, a solver's"
        " answer"
    ),
    "calls": "model calls",
    "asked_again": "calls after the first one of the same task: the role was asked once more",
    "truncated": "calls cut at their token limit",
    "control_token": "calls that ended at a control token other than the end of turn",
    "undecodable": "calls with a tool call that cannot be decoded",
    "tool_calls": "tool calls that were carried out or refused",
    "tool_errors": "tool calls that failed through the policy's fault",
    "read_tokens": "prompt tokens",
    "sampled_tokens": "completion tokens",
}


def role_counts(trajectory: Trajectory) -> Roles:
    """Counts by role of a trajectory's calls and tool calls, except inherited ones."""
    roles: Roles = {}
    last: dict[str, Call] = {}
    for call in trajectory.own_calls:
        identity = call.identity
        read, sampled = usage(call)
        roles.setdefault(identity.role, Counter()).update(
            {
                "calls": 1,
                "asked_again": int(call.call_index > 0),
                "truncated": int(call.finish_reason is FinishReason.LENGTH),
                "control_token": int(call.finish_reason is FinishReason.CONTROL_TOKEN),
                "undecodable": int(bool(call.response.get("invalid_tool_calls"))),
                "read_tokens": read,
                "sampled_tokens": sampled,
            }
        )
        run = next(
            (part.task_id for part in namespace_parts(identity.checkpoint_ns)), identity.task_id
        )
        last[run] = call
    # The node that executed a tool call may differ from the node that asked for it.
    asked_by = {
        str(asked.get("id")): call.identity.role
        for call in trajectory.own_calls
        for kind in ("tool_calls", "invalid_tool_calls")
        for asked in call.response.get(kind) or ()
    }
    for tool in trajectory.own_tool_calls:
        role = asked_by.get(tool.tool_call_id) or tool.identity.role
        roles.setdefault(role, Counter()).update(
            {
                "tool_calls": 1,
                "tool_errors": int(tool.status is not None and tool.status.is_policy_failure),
            }
        )
    for call in last.values():
        demanded = _DEMANDED.get(call.identity.role) if trajectory.graph == "reasoning" else None
        failed = demanded is not None and demanded(text_of(call.response)) is None
        roles[call.identity.role].update({"runs": 1, "failed": int(failed)})
    return roles


def _json_object(text: str) -> object:
    return next((value for value in json_values(text) if isinstance(value, dict)), None)


_DEMANDED: dict[str, Callable[[str], object]] = {
    "plan": _json_object,
    "critique": _json_object,
    "solve": final_answer,
}
