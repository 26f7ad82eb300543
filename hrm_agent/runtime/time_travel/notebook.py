"""A history as a notebook shows it: a row for each moment."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hrm_agent.markup import element, fragment, pairs, table

if TYPE_CHECKING:
    from hrm_agent.runtime.time_travel.history import History, Moment

__all__ = ["history_html"]

_SHOWN = 200
_COLUMNS = ("moment", "checkpoint", "from", "ran", "model calls", "tool calls", "tokens", "seconds", "next")


def history_html(found: History) -> str:
    """A fragment with styles of its own."""
    trajectory = found.trajectory
    facts = [
        ("status", trajectory.status.value if trajectory else "checkpoints only, no recorded run"),
        ("answer", trajectory.answer if trajectory else None),
        ("forks", ", ".join(branch.history.thread_id for branch in found.branches)),
    ]
    indices = {moment.checkpoint_id: moment.index for moment in found.moments}
    rows = [_row(moment, indices.get(moment.parent or "")) for moment in found.moments[:_SHOWN]]
    more = len(found.moments) - _SHOWN
    left_out = element("p", f"and {more} more moments", class_="quiet") if more > 0 else None
    return fragment(element("b", f"Thread {found.thread_id}"), pairs(facts), table(_COLUMNS, rows), left_out)


def _row(moment: Moment, parent: str | None) -> tuple[object, ...]:
    ran = moment.ran
    counts = (len(ran.calls), len(ran.tool_calls), ran.used.output_tokens)
    asks = [f"asks: {question.value}" for question in moment.questions]
    then = ", ".join([_counted(moment.next) or "end", *asks])
    return moment.index, moment.checkpoint_id, parent, _counted(ran.nodes) or moment.source, *counts, ran.seconds, then


def _counted(names: tuple[str, ...]) -> str:
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in Counter(names).items())
