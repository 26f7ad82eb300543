"""Feedback on a prompt: recorded runs, as seen from the calls that had it.

For each run, the calls whose requests contain the prompt are shown with their replies and the
outcomes of the tool calls in them. Beside them are the last words of each other role (the critic's
among them), and the judgement: the expected and the given answer, rewards of the run and of the
shown calls, limits that were reached, and failed tool calls with their typed outcome. Runs with
lower rewards come first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hrm_agent.prompts import PromptTexts
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.select.roc import is_positive, outcome_of, reward_of
from hrm_agent.trajectory import Call, RunStatus, ToolCall, ToolStatus, Trajectory
from hrm_agent.trajectory.words import text_of

__all__ = ["feedback_on"]

_MOST_CALLS = 3
"""Maximum number of calls that are shown of a run: the first and the last ones."""
_LONGEST = 1500
"""Maximum number of characters of a shown text."""


def feedback_on(name: str, runs: Iterable[Trajectory], texts: PromptTexts) -> list[dict[str, Any]]:
    """Entries for the reflection, one for each run that used the prompt `name`. `texts`: texts that
    the runs had.
    """
    entries = list[dict[str, Any]]()
    for run in sorted(runs, key=reward_of):
        calls = [
            call
            for call in run.own_calls
            if call.request is not None and name in texts.names_in(call.request)
        ]
        if calls:
            entries.append(_entry(run, calls))
    return entries


def _entry(run: Trajectory, calls: Sequence[Call]) -> dict[str, Any]:
    shown = [*calls[: _MOST_CALLS - 1], calls[-1]] if len(calls) > _MOST_CALLS else calls
    used = {each["id"]: each for call in calls for each in call.response.get("tool_calls", ())}
    tools = {tool.tool_call_id: tool for tool in run.own_tool_calls}
    ids = {call.id for call in calls}
    others = {
        call.identity.role: _cut(text_of(call.response))
        for call in run.own_calls
        if call.id not in ids
    }
    entry: dict[str, Any] = {
        "Task": _cut(run.task.prompt),
        "Calls": [_call(call, tools) for call in shown],
    }
    entry |= {"Last words of other roles": others} if others else {}
    failed = [tool for tool in run.own_tool_calls if tool.tool_call_id in used]
    return entry | {"Feedback": _judgement(run, calls, failed)}


def _call(call: Call, tools: Mapping[str, ToolCall]) -> dict[str, Any]:
    asked = [each for each in call.request or () if each.get("type") != "system"]
    found: dict[str, Any] = {
        "Request": _cut(text_of(asked[-1])) if asked else "",
        "Reply": _cut(text_of(call.response)),
    }
    called = list[str]()
    for each in call.response.get("tool_calls", ()):
        tool = tools.get(str(each.get("id")))
        arguments = _cut(json.dumps(each.get("args"), ensure_ascii=False, default=str))
        outcome = "was not run" if tool is None else _outcome(tool)
        called.append(f"{each.get('name')} {arguments}: {outcome}")
    return found | ({"Tool calls": called} if called else {})


def _outcome(tool: ToolCall) -> str:
    status = "unknown" if tool.status is None else tool.status.value
    return f"{status}: {_cut(tool.content or tool.stderr or tool.stdout)}"


def _judgement(run: Trajectory, calls: Sequence[Call], tools: Sequence[ToolCall]) -> str:
    fault = fault_of(run)
    right = is_positive(outcome_of(run))
    lines = [f"The run was {'right' if right else 'wrong'}. Its reward is {reward_of(run):g}."]
    if fault is not None:
        lines = [f"The run could not be judged, and counts as 0: {_cut(fault[1])}."]
    if run.task.answer is not None:
        lines.append(f"Expected answer: {_cut(run.task.answer)}")
    lines.append(f"Given answer: {_cut(run.answer or 'none')}")
    more = {name: value for name, value in run.rewards.items() if name not in ("correct", "reward")}
    lines += [f"Reward {name}: {value:g}" for name, value in more.items()]
    for name, values in run.rewards_by_call.items():
        mine = [values[call.id] for call in calls if call.id in values]
        lines += [f"Reward {name} of these calls: {sum(mine):g}"] if mine else []
    if run.status is not RunStatus.COMPLETED:
        why = run.stop_reason.value if run.stop_reason else "no reason"
        lines.append(
            f"The run ended as {run.status.value} ({why}). {_cut(run.error or '')}".strip()
        )
    lines += [
        f"Tool {tool.name} failed. {_outcome(tool)}"
        for tool in tools
        if tool.status not in (ToolStatus.OK, None)
    ]
    return "\n".join(lines)


def _cut(text: str) -> str:
    """Text that is cut in the middle if it is long."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
