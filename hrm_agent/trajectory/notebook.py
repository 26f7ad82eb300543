"""A trajectory as a notebook shows it: what it came to, and its steps in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hrm_agent.markup import Html, cut, element, fragment, join, pairs, table
from hrm_agent.trajectory.shown import code_of, text_of, thoughts_of
from hrm_agent.trajectory.words import call_facts, header_facts, tool_call_facts

if TYPE_CHECKING:
    from hrm_agent.trajectory.schema import Call, Trajectory

__all__ = ["trajectory_html"]

_STEPS_SHOWN = 100


def trajectory_html(trajectory: Trajectory) -> str:
    """A fragment with styles of its own."""
    steps = [(turn.started_at, ("person", "turn", element("pre", cut(turn.prompt)))) for turn in trajectory.turns]
    steps += [
        (call.ended_at, (call.identity.role, ", ".join(call_facts(call)), _said(call)))
        for call in (*trajectory.calls, *trajectory.failed_calls)
    ]
    steps += [
        (t.started_at, (t.name, tool_call_facts(t), element("pre", cut(t.content)))) for t in trajectory.tool_calls
    ]
    rows = [row for _, row in sorted(steps, key=lambda step: step[0])]
    more = f", the first {_STEPS_SHOWN}" if len(rows) > _STEPS_SHOWN else ""
    shown = table(("who", "what", "text"), rows[:_STEPS_SHOWN])
    folded = element("details", element("summary", f"{len(rows)} steps{more}"), shown) if rows else None
    return fragment(element("b", f"Trajectory {trajectory.id}"), pairs(header_facts(trajectory)), folded)


def _said(call: Call) -> Html:
    text = text_of(call.response).strip()
    thoughts = (thoughts_of(call.response) or "").strip()
    thought = element("details", element("summary", "Thoughts"), element("pre", cut(thoughts))) if thoughts else None
    asked = [f"> {asked['name']}: {code_of(asked['args'])}" for asked in call.response.get("tool_calls", ())]
    return join(thought, *(element("pre", cut(part)) for part in (text, *asked) if part))
