"""History as a tree of lines, and as data. The path to the newest moment is a straight line, from
which other paths branch off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hrm_agent.basics.files import json_line
from hrm_agent.runtime.time_travel.history import Branch, History, Moment, Step
from hrm_agent.runtime.time_travel.moment_data import moment_data
from hrm_agent.trajectory import Trajectory

__all__ = ["ended_as", "facts_of", "outcome_of", "tree_data", "tree_lines"]

StyledLine = tuple[str, str]
"""Text and style."""


def tree_lines(found: History) -> Iterator[StyledLine]:
    """Lines of the whole tree of a thread, with its forks."""
    yield f"Thread {found.thread_id}: {outcome_of(found)}", "bold"
    if found.trajectory is not None and found.trajectory.forked_from is not None:
        origin = found.trajectory.forked_from
        yield f"forked from trajectory {origin.trajectory_id} at {origin.checkpoint_id}", "dim"
    line = _line(found)
    for root in found.children(None):
        yield from _way(found, root, line, "")


def outcome_of(found: History) -> str:
    """Short status of a thread."""
    return (
        ended_as(found.trajectory)
        if found.trajectory is not None
        else "checkpoints only, no recorded run"
    )


def ended_as(trajectory: Trajectory) -> str:
    """Status of a run in one line, with the first line of its error or the last line of its answer."""
    reason = f" ({trajectory.stop_reason.value})" if trajectory.stop_reason else ""
    reward = "".join(f", {name} {value:g}" for name, value in trajectory.rewards.items())
    error, answer = (
        text.strip().splitlines() for text in (trajectory.error or "", trajectory.answer or "")
    )
    said = error[:1] or answer[-1:]
    return f"{trajectory.status.value}{reason}{reward}{': ' + said[0] if said else ''}"


def _line(found: History) -> frozenset[str]:
    """Ids of the newest moment and its ancestors."""
    return frozenset(moment.checkpoint_id for moment in found.lineage())


def _way(found: History, here: Moment, line: frozenset[str], bars: str) -> Iterator[StyledLine]:
    """Lines from one moment to the end of its path. Branches and forks are indented."""
    # turns of a conversation, from the second on, by the id of the moment with which they begin
    inputs = [moment.checkpoint_id for moment in found.lineage() if moment.source == "input"]
    turns = found.trajectory.turns if found.trajectory is not None else ()
    later = zip(inputs[1:], turns, strict=False)
    shown = _id_length(found)
    said = {
        id_: f"turn {n}: {' '.join(turn.prompt.split())[:100]}"
        for n, (id_, turn) in enumerate(later, start=2)
    }
    while True:
        if here.checkpoint_id in said:
            yield f"{bars}       {said[here.checkpoint_id]}", "bold"
        yield bars + _text(here, shown), ""
        yield from _beneath(here.ran, bars, shown)
        if here.under_way is not None:
            yield (
                (
                    f"{bars}       unfinished: {_counted(here.under_way.nodes)} "
                    f" {facts_of(here.under_way)}"
                ),
                "yellow",
            )
            yield from _beneath(here.under_way, bars, shown)
        for question in here.questions:
            value = question.value if isinstance(question.value, str) else json_line(question.value)
            asked = f"{value}  (id {question.id})"
            yield f"{bars}       asks: {asked}", "yellow"
        main, aside = _parting(found, here, line)
        for other in aside:
            yield f"{bars}  ├─ another branch", "cyan"
            yield from _way(found, other, line, f"{bars}  │  ")
        for branch in found.branches:
            if branch.at == here.checkpoint_id:
                yield from _fork(branch, bars)
        if main is None:
            return
        here = main


def _parting(
    found: History, moment: Moment, line: frozenset[str]
) -> tuple[Moment | None, list[Moment]]:
    """Child that leads to the newest moment (or else the newest child), and the other children."""
    children = found.children(moment)
    if not children:
        return None, []
    main = next((child for child in children if child.checkpoint_id in line), children[-1])
    return main, [child for child in children if child is not main]


def _fork(branch: Branch, bars: str) -> Iterator[StyledLine]:
    found = branch.history
    yield f"{bars}  ├─ {found.thread_id}: {outcome_of(found)}", "cyan"
    # the first moments of the fork itself (none if it has not run yet)
    for start in [moment for moment in branch.history.moments if moment.parent == branch.at]:
        yield from _way(found, start, _line(found), f"{bars}  │  ")


def _text(moment: Moment, shown: int) -> str:
    origin = _counted(moment.ran.nodes) or moment.source
    columns = (
        f"{moment.index:>3}",
        f"{moment.checkpoint_id[:shown]}",
        f"{origin:16}",
        facts_of(moment.ran),
    )
    then = f"-> {_counted(moment.next)}" if moment.next else "end"
    return "  ".join(column for column in (*columns, then) if column)


def _counted(names: tuple[str, ...]) -> str:
    return ", ".join(
        name if number == 1 else f"{name} x{number}" for name, number in Counter(names).items()
    )


def facts_of(step: Step) -> str:
    """Cost of a step as text (empty if it called neither model nor tool)."""
    calls = len(step.calls)
    tools = len(step.tool_calls)
    facts = [f"{calls} call{'s' * (calls != 1)}"] if calls else []
    facts += [f"{tools} tool call{'s' * (tools != 1)}"] if tools else []
    used = step.used
    facts += [f"{used.output_tokens} tokens"] if used.output_tokens else []
    facts += [f"{step.seconds:.2f} s"] if step.seconds is not None and facts else []
    facts += [f"cost {used.cost:g}"] if used.cost is not None else []
    return ", ".join(facts)


def _beneath(step: Step, bars: str, shown: int) -> Iterator[StyledLine]:
    for subgraph in step.inside:
        yield f"{bars}       {subgraph.node} {subgraph.task_id[:8]}", "dim"
        for moment in subgraph.moments:
            yield f"{bars}         {_text(moment, shown)}", "dim"
            yield from _beneath(moment.ran, bars + "    ", shown)


def _id_length(found: History) -> int:
    """Number of first characters by which the ids of all moments differ. A fixed short prefix is
    not enough, since ids that were created together begin alike.
    """
    ids = [moment.checkpoint_id for moment in found.walk()]
    return next((n for n in range(13, 36) if len({id_[:n] for id_ in ids}) == len(ids)), 36)


def tree_data(found: History, own: frozenset[str] | None = None) -> dict[str, Any]:
    """Tree as JSON. `own`: ids of the moments to include (None: all). Moments that a fork shares
    with its source are left out of the fork.
    """
    trajectory = found.trajectory
    moments = [moment for moment in found.moments if own is None or moment.checkpoint_id in own]
    return {
        "thread": found.thread_id,
        "trajectory": trajectory.id if trajectory else None,
        "group": trajectory.group_id if trajectory else None,
        "status": trajectory.status.value if trajectory else None,
        "stop_reason": (
            trajectory.stop_reason.value if trajectory and trajectory.stop_reason else None
        ),
        "answer": trajectory.answer if trajectory else None,
        "rewards": trajectory.rewards if trajectory else {},
        "forked_from": (
            trajectory.forked_from.model_dump() if trajectory and trajectory.forked_from else None
        ),
        "moments": [moment_data(moment) for moment in moments],
        "branches": [
            {"at": branch.at, **tree_data(branch.history, _own(branch))}
            for branch in found.branches
        ],
    }


def _own(branch: Branch) -> frozenset[str]:
    shared = next((m for m in branch.history.moments if m.checkpoint_id == branch.at), None)
    line = (
        {moment.checkpoint_id for moment in branch.history.lineage(shared)}
        if shared
        else set[str]()
    )
    return frozenset(moment.checkpoint_id for moment in branch.history.moments) - line
