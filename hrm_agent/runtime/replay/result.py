"""What a replay came to, and the first thing in which it is not the recorded run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hrm_agent.runtime.replay.checkpoint_diff import Change
from hrm_agent.runtime.replay.effects import Effect
from hrm_agent.runtime.replay.recorded_answers import UnrecordedRequest
from hrm_agent.trajectory import Call, ToolCall, Trajectory

__all__ = ["Divergence", "Replay", "ReplayVerdict"]


class ReplayVerdict(StrEnum):
    """What a replay came to."""

    EQUAL = "equal"
    """All requests are on record, and all compared states, tasks and writes are equal."""
    ASKS = "asks"
    """The graph asks a model or a tool something that is not on record."""
    DIFFERS = "differs"
    """All requests are on record; a state, a task, a write or the end differs."""
    REFUSED = "refused"
    """A node was about to do something outside of the record, and the replay was to refuse that."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first thing that is not on record, and what was asked at that place then."""

    asked: UnrecordedRequest
    """What the replayed graph asked."""
    nearest: Call | ToolCall | None
    """The recorded call of the same node to compare with; None where the node never asked anything
    of the kind.
    """
    step: int
    """LangGraph's number of the outermost graph's step in which it asked."""

    @property
    def node(self) -> str:
        return self.asked.identity.node


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay and its verdict."""

    trajectory: Trajectory
    """The run that was replayed."""
    graph: str
    """The graph that replayed it, by name."""
    verdict: ReplayVerdict
    """Whether the graph still does what it did."""
    checkpoints: int = 0
    """Number of checkpoints compared, those of subgraphs and those that its turns begin with among
    them.
    """
    tasks: int = 0
    """Number of tasks whose writes were compared."""
    writes: int = 0
    """Number of writes compared, questions to a person among them."""
    not_compared: tuple[str, ...] = ()
    """Recorded things that were not compared, in words."""
    renamed_ids: int = 0
    """Generated ids that are others than they were, one to one
    (`hrm_agent.runtime.replay.renaming`).
    """
    ignored: tuple[str, ...] = ()
    """Differences at paths that were to be ignored, in words."""
    unmatched: tuple[str, ...] = ()
    """Paths that were to be ignored, and that led nowhere."""
    unused: int = 0
    """Recorded answers that were not asked for."""
    divergence: Divergence | None = None
    """The first request that is not on record; None if all are."""
    step: int | None = None
    """The first step of the outermost graph in which a state, a task or a write differs; None if
    none does.
    """
    changes: tuple[Change, ...] = ()
    """How the last states differ: the recorded one, then the replayed one. Where they are equal,
    the first difference on the way there.
    """
    on_the_way: bool = False
    """Whether `changes` is a difference on the way."""
    ended: str = ""
    """How it ended, where that differs: what it raised, or what was expected of it."""
    effects: tuple[Effect, ...] = ()
    """What nodes did again outside of the record, as far as it was seen; what was refused, under
    `REFUSED`.
    """
    drawn: bool = False
    """Whether a node drew a time, an id or a random number that is not on record."""
    live: Trajectory | None = None
    """The run that went on from here with a policy."""

    @property
    def equal(self) -> bool:
        return self.verdict is ReplayVerdict.EQUAL
