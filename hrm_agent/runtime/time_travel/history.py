"""Moments of a thread: its checkpoints as a tree, with the steps between them.

LangGraph lists the checkpoints of a thread newest first, on all branches, and numbers their steps
anew on each branch. `parent_config` connects them, so a `History` is a tree. Branches that
LangGraph made in place are in the thread itself, and a fork into a thread of its own is attached to
the checkpoint that both share.

`hrm_agent.runtime.time_travel.read_history` reads it from a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from hrm_agent.errors import RunError, nearest
from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.trajectory import Call, CallUsage, ToolCall, Trajectory
from hrm_agent.trajectory.call_facts import total_usage

__all__ = [
    "Branch",
    "History",
    "Moment",
    "PendingInterrupt",
    "Selector",
    "Step",
    "Subgraph",
    "role_of",
]


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """Question (`interrupt()`) that waits for its answer."""

    id: str
    """LangGraph's id, by which several questions are answered."""
    value: Any
    """Value of the question."""
    node: str
    """Node that asked; empty if the record does not show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Tasks and calls between a checkpoint and its child."""

    nodes: tuple[str, ...] = ()
    """Names of the nodes, one for each task. Several sends to one node repeat its name."""
    calls: tuple[Call, ...] = ()
    """Model calls, including those in subgraphs."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls, including those in subgraphs."""
    seconds: float | None = None
    """Wall-clock time from the first call's start to the last one's end; without calls, between the
    checkpoints.
    """
    inside: tuple[Subgraph, ...] = ()
    """Runs of subgraphs within the step."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that asked or acted, each once: the nodes from the outermost graph inwards, as in
        `solve/reason`.
        """
        return tuple(
            dict.fromkeys(
                role_of(call.identity.checkpoint_ns) for call in (*self.calls, *self.tool_calls)
            )
        )

    @property
    def sampled_tokens(self) -> int:
        return sum(call.sampled_tokens for call in self.calls)

    @property
    def used(self) -> CallUsage:
        """Tokens and cost of the step's calls together, as far as they are known."""
        return total_usage(call.used for call in self.calls)

    @property
    def models(self) -> tuple[str, ...]:
        """Models that answered the step's calls, each once."""
        return tuple(dict.fromkeys(call.answered_by or call.model for call in self.calls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Checkpoint, with the step that led to it and the next nodes."""

    index: str
    """Index in the order of creation in its thread, which does not change: `4`. `4.0.2` is the
    third moment of the first subgraph that ran in the step from moment 4.
    """
    thread_id: str
    """Thread that the checkpoint was made on."""
    checkpoint_id: str
    """LangGraph's id of the checkpoint."""
    namespace: str
    """Namespace of the subgraph; empty for the graph itself."""
    parent: str | None
    """Id of the checkpoint before it (None for the first)."""
    step: int
    """LangGraph's number of the step, from -1. It repeats across branches."""
    source: str
    """Source: `input`, `loop`, `update` (the state was edited) or `fork` (LangGraph branched from
    the parent).
    """
    created_at: str
    """Time of the checkpoint in ISO 8601, as LangGraph wrote it."""
    ran: Step
    """Step that led to the checkpoint."""
    next: tuple[str, ...]
    """Names of the nodes to run from here, one for each task."""
    questions: tuple[PendingInterrupt, ...]
    """Interrupts that wait at the checkpoint for a person's answer."""
    under_way: Step | None
    """Tasks and calls that start from the checkpoint, in a step that is not over (None if there are
    none).
    """
    values: Mapping[str, Any] = field(repr=False)
    """Channels of the state, without LangGraph's own."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which `History.select` finds the moment, beside index and id."""
        place = role_of(self.namespace)
        before = [f"before:{_joined(place, name)}" for name in dict.fromkeys(self.next)]
        return *before, *(f"after:{_joined(place, name)}" for name in dict.fromkeys(self.ran.nodes))


@dataclass(frozen=True, slots=True)
class Subgraph:
    """One run of a subgraph within a step."""

    node: str
    """Node of the graph around it."""
    task_id: str
    """Id that distinguishes the siblings of a `Send`; empty for a subgraph that keeps its state
    between runs.
    """
    moments: tuple[Moment, ...]
    """Checkpoints of the run in the order of creation."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Fork into a thread of its own."""

    at: str
    """Id of the checkpoint that both threads share."""
    history: History
    """Tree of the forked thread itself."""


Selector = str | int | Moment | Callable[[Moment], bool]
"""Selector of a moment: index, (beginning of an) id, `before:NODE`, `after:NODE` (`#2`: the second
time), `last`, or a predicate.
"""


@dataclass(frozen=True, slots=True)
class History:
    """Tree of a thread's moments."""

    thread_id: str
    """Thread of the moments."""
    trajectory: Trajectory | None
    """Recorded run (None for a thread that was made without an `EpisodeRunner`)."""
    moments: tuple[Moment, ...]
    """Moments of the graph itself, in the order of creation. Those of subgraphs are in
    `Step.inside`.
    """
    branches: tuple[Branch, ...] = ()
    """Threads that were forked from this one, each with its own moments and those it inherited."""

    @property
    def last(self) -> Moment:
        """Newest moment, from which LangGraph continues."""
        return self.moments[-1]

    def children(self, moment: Moment | None) -> list[Moment]:
        """Moments of this thread that follow `moment` (None: its roots)."""
        if moment is not None:
            return [found for found in self.moments if found.parent == moment.checkpoint_id]
        known = {found.checkpoint_id for found in self.moments}
        return [found for found in self.moments if found.parent not in known]

    def lineage(self, moment: Moment | None = None) -> list[Moment]:
        """Moments from the root to `moment`, that one included (None: to the newest one)."""
        by_id = {found.checkpoint_id: found for found in self.moments}
        here = moment or self.last
        line = dict[str, Moment]()
        while here is not None and here.checkpoint_id not in line:
            line[here.checkpoint_id] = here
            here = by_id.get(here.parent or "")
        return list(line.values())[::-1]

    def walk(self) -> Iterator[Moment]:
        """Yield every moment; those of subgraphs follow the moment that their step led to."""
        yield from _walk(self.moments)

    def select(self, selector: Selector) -> Moment:
        """Return the selected moment. Raises `RunError` with the existing names."""
        if isinstance(selector, Moment):
            return selector
        if callable(selector):
            found = next((moment for moment in self._in_order() if selector(moment)), None)
            return found or self._nothing("that the predicate holds for", "")
        name = str(selector).strip()
        by_index = {moment.index: moment for moment in self.walk()}
        if name == "last":
            return self.last
        if name in by_index:
            return by_index[name]
        kind, colon, _ = name.partition(":")
        if colon and kind in ("before", "after"):
            return self._at_node(name)
        starting = [
            moment for moment in self.walk() if name and moment.checkpoint_id.startswith(name)
        ]
        if len(starting) > 1:
            raise RunError(
                f"{len(starting)} moments of thread {self.thread_id!r} have an id that begins with"
                f" {name!r}.",
                f"Write more of the id: {', '.join(moment.checkpoint_id for moment in starting[:4])}.",
            )
        return starting[0] if starting else self._nothing(repr(name), name)

    def _at_node(self, name: str) -> Moment:
        wanted, _, number = name.partition("#")
        found = [moment for moment in self._in_order() if wanted in moment.names]
        if not found:
            self._nothing(repr(name), wanted)
        place = int(number) if number.isdecimal() else 0 if number else 1
        if not 1 <= place <= len(found):
            raise RunError(
                f"{name!r} names no moment of thread {self.thread_id!r}: {wanted!r} is there"
                f" {len(found)} times.",
                f"Write {wanted}#1 to {wanted}#{len(found)}, counted from the start.",
            )
        return found[place - 1]

    def _in_order(self) -> list[Moment]:
        """Moments on the way to the newest one, then all others."""
        line = self.lineage()
        known = {moment.checkpoint_id for moment in line}
        return [
            *_walk(line),
            *_walk(moment for moment in self.moments if moment.checkpoint_id not in known),
        ]

    def _nothing(self, what: str, name: str) -> NoReturn:
        names = list(dict.fromkeys(name for moment in self.walk() for name in moment.names))
        raise RunError(
            f"Thread {self.thread_id!r} has no moment {what}. {nearest(name, names)}".strip(),
            f"It has 0 to {self.last.index}, {', '.join(names)} and last: see `hrm-agent history"
            f" {self.thread_id}`.",
        )


def _walk(moments: Iterable[Moment]) -> Iterator[Moment]:
    for moment in moments:
        yield moment
        for step in (moment.ran, moment.under_way):
            for subgraph in step.inside if step else ():
                yield from _walk(subgraph.moments)


def role_of(namespace: str) -> str:
    """Nodes that a namespace leads through: `solve:ID|reason:ID` -> `solve/reason`."""
    return "/".join(part.node for part in namespace_parts(namespace) if not part.is_number)


def _joined(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name
