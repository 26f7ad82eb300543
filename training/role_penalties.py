"""The penalties of GRPO-RoC role by role, for graphs with several of them.

Over the whole rollout a role with many calls drowns one with few: a solver's one failed call of twenty is hardly seen
where it was the only call of another one. Here each role, the node that asked, has penalties of its own, and those of
the rollout are the means over the roles that have them:

* p_err has each role with tools: one of its calls was offered some, or asked for one. A planner without tools has none,
  so that the 0.5 of a rollout without a tool call is not held against it. A tool call is the role's that asked for it,
  whichever node carried it out; one that no call asked for is the role's in whose node it ran.
* p_format has each role that wrote an answer tag. Which roles are to is not known of a graph: a synthesizer whose
  problem asks for another format writes none, and rightly, while the solvers before it do. (Where it should have, the
  answer is not read, and the rollout is a negative, whose penalty nobody looks at.) Where no role wrote one, the tag is
  asked of the role that ended the rollout, the one of its last call: 1, as over the whole.

What counts is decided over the whole rollout (`count_calls`), for roles may share a session: a variable that one sets
and another takes was of use, and the same failure counts once, for the role that made it first. So the counts of the
roles add up to those of the whole.

A rollout in which the policy answers in one role only (the tool loop, a graph whose nodes are not on record) has the
penalties over the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean

from hrm_agent.training.penalties import (
    CountedCalls,
    answer_tags,
    asked_ids,
    count_calls,
    error_share,
    penalty_format,
    policy_tool_calls,
)
from hrm_agent.trajectory import Call, RolePenalty, ToolCall, Trajectory, content_hash

__all__ = ["mean_penalties", "role_penalties"]

_NO_TOOLS = ("", content_hash(()))
"""Of `Call.tools_hash`: not on record, and none offered."""


def role_penalties(trajectory: Trajectory, counted: CountedCalls | None = None) -> dict[str, RolePenalty]:
    """By role, in the order of first appearance; empty where the policy answered in fewer than two.

    `counted`: the rollout's tool calls, where they have been counted.
    """
    calls = [call for call in trajectory.own_calls if call.model == trajectory.policy]
    roles = list(dict.fromkeys(call.identity.role for call in calls))
    if len(roles) < 2:
        return {}
    tools = policy_tool_calls(trajectory)
    problem = trajectory.task.prompt if trajectory.task else ""
    counted = count_calls(tools, problem) if counted is None else counted
    asked_by = {id_: call.identity.role for call in calls for id_ in asked_ids(call)}

    def by_role(made: Iterable[ToolCall]) -> Counter[str]:
        return Counter(asked_by.get(tool.tool_call_id) or tool.identity.role for tool in made)

    failed, effective, made = by_role(counted.failed_calls), by_role(counted.effective_calls), by_role(tools)
    equipped = {call.identity.role for call in calls if _has_tools(call)} | made.keys()
    answering = {call.identity.role for call in calls if answer_tags(call)} or {calls[-1].identity.role}
    return {
        role: RolePenalty(
            failed=failed[role],
            effective=effective[role],
            error=error_share(failed[role], effective[role]) if role in equipped else None,
            format=penalty_format(trajectory.own_calls, counted, trajectory.policy, role)
            if role in answering
            else None,
        )
        for role in dict.fromkeys([*roles, *made])
    }


def mean_penalties(roles: Iterable[RolePenalty]) -> tuple[float, float]:
    """(p_err, p_format) of a rollout: the means over the roles that have them; without one, as without a call."""
    each = list(roles)
    errors = [role.error for role in each if role.error is not None]
    formats = [role.format for role in each if role.format is not None]
    return fmean(errors) if errors else error_share(0, 0), fmean(formats) if formats else 1.0


def _has_tools(call: Call) -> bool:
    return bool(call.tools) if call.tools is not None else call.tools_hash not in _NO_TOOLS
