"""Result of a replay, and its first difference from the recorded run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hrm_agent.runtime.replay.checkpoint_diff import Change
from hrm_agent.runtime.replay.effects import Effect
from hrm_agent.runtime.replay.recorded_answers import UnrecordedRequest
from hrm_agent.trajectory import Call, ToolCall, Trajectory

__all__ = ["Divergence", "Replay", "ReplayVerdict"]


class ReplayVerdict(StrEnum):
    """Verdict on a replay."""

    EQUAL = "equal"
    """All requests are recorded, and all compared states, tasks and writes are equal."""
    ASKS = "asks"
    """The graph asks a model or a tool something that is not recorded."""
    DIFFERS = "differs"
    """All requests are recorded; a state, a task, a write or the end differs."""
    REFUSED = "refused"
    """A node was about to have an effect outside of the record, and the replay refuses effects."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """First request that is not recorded, and the recorded call at its place."""

    asked: UnrecordedRequest
    """Request of the replayed graph."""
    nearest: Call | ToolCall | None
    """Recorded call of the same node to compare with (None if the node never made one of this
    kind).
    """
    step: int
    """LangGraph's number of the outermost graph's step that made the request."""

    @property
    def node(self) -> str:
        return self.asked.identity.node


@dataclass(frozen=True, slots=True)
class Replay:
    """Replay and its verdict."""

    trajectory: Trajectory
    """Run that was replayed."""
    graph: str
    """Name of the graph that replayed it."""
    verdict: ReplayVerdict
    """Verdict: the graph behaves as recorded, or not."""
    checkpoints: int = 0
    """Number of checkpoints compared, including those of subgraphs and those that its turns begin
    with.
    """
    tasks: int = 0
    """Number of tasks whose writes were compared."""
    writes: int = 0
    """Number of writes compared, including questions to a person."""
    not_compared: tuple[str, ...] = ()
    """Recorded parts that were not compared, in words."""
    renamed_ids: int = 0
    """Number of generated ids that differ from the recorded ones, one to one
    (`hrm_agent.runtime.replay.renaming`).
    """
    ignored: tuple[str, ...] = ()
    """Differences at ignored paths, in words."""
    unmatched: tuple[str, ...] = ()
    """Ignored paths that matched nothing."""
    unused: int = 0
    """Number of recorded answers that were not used."""
    divergence: Divergence | None = None
    """First request that is not recorded (None if all are)."""
    step: int | None = None
    """First step of the outermost graph with a different state, task or write (None if there is
    none).
    """
    changes: tuple[Change, ...] = ()
    """Differences between the last states, from the recorded to the replayed one; if these are
    equal, the first difference before them.
    """
    on_the_way: bool = False
    """True if `changes` is a difference before the last state."""
    ended: str = ""
    """Difference between the ends, in words: the error that was raised, or the one that was
    expected.
    """
    effects: tuple[Effect, ...] = ()
    """Detected effects of nodes outside of the record, which happened again; under `REFUSED` those
    that were refused.
    """
    drawn: bool = False
    """True if a node drew a time, an id or a random number that is not recorded."""
    live: Trajectory | None = None
    """Run that continued from here with a policy (None if none did)."""

    @property
    def equal(self) -> bool:
        return self.verdict is ReplayVerdict.EQUAL
