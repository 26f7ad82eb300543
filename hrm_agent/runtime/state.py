"""The state of a graph at a checkpoint, read through the graph's channels, as LangGraph does.

A checkpoint need not hold the value of each channel. For a `DeltaChannel` LangGraph stores the
writes and, now and then, a snapshot, and folds them with the graph's reducer. Without the graph
such a value is unknown and reported as `Unbuilt`, since an empty state would be wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.pregel import Pregel

from hrm_agent.langgraph_format import (
    built_values,
    is_delta,
    named_nodes,
    snapshot_of,
    snapshot_value,
    subgraphs_of,
    unstored_channels,
)

__all__ = ["StateReader", "Unbuilt"]

AnyGraph = Pregel[Any, Any, Any, Any]
Saver = BaseCheckpointSaver[Any]


class Unbuilt(NamedTuple):
    """Parts of a channel's value that LangGraph folds from writes. They stand for the value if the
    graph is not available.
    """

    snapshot: Any
    """The newest recorded value (None: no value is recorded)."""
    writes: tuple[Any, ...]
    """Later writes, in order."""

    def __str__(self) -> str:
        return (
            f"not known without the graph: {len(self.writes)} writes since the last snapshot on"
            " record"
        )


class StateReader:
    """Reader of the states of one thread."""

    def __init__(
        self, saver: Saver, graph: AnyGraph | None, listed: Iterable[CheckpointTuple] = ()
    ) -> None:
        """`graph`: the outermost graph (None if it is not available). `listed`: checkpoints of the
        thread, with all their ancestors, that need not be read again.
        """
        self.listed = tuple(listed)
        self._saver: Saver = _Listed(self.listed) if self.listed else saver
        self._graph = graph
        self._graphs: list[tuple[str, AnyGraph]] | None = None

    def values(self, found: CheckpointTuple) -> dict[str, Any]:
        """Values of all channels at a checkpoint, LangGraph's own included."""
        held = found.checkpoint["channel_values"]
        values = {name: snapshot_value(value) for name, value in held.items()}
        absent = unstored_channels(found)
        if not absent:
            return values
        specs = self._channels_at(found)
        known = {name: specs[name] for name in absent if is_delta(specs.get(name))}
        values |= built_values(known, found, self._saver) if known else {}
        unknown = [name for name in absent if name not in known]
        histories = (
            self._saver.get_delta_channel_history(config=found.config, channels=unknown)
            if unknown
            else {}
        )
        for name, history in histories.items():
            writes = tuple(value for _, _, value in history["writes"])
            values[name] = Unbuilt(snapshot_value(history.get("seed")), writes)
        return values

    def complete(self, found: CheckpointTuple) -> CheckpointTuple:
        """Checkpoint with the values of all its channels."""
        values = self.values(found)
        return found._replace(
            checkpoint=cast("Checkpoint", {**found.checkpoint, "channel_values": values})
        )

    def alone(self, found: CheckpointTuple) -> CheckpointTuple:
        """Checkpoint with a snapshot of each channel without a value, so that it needs no
        ancestors.
        """
        absent = unstored_channels(found)
        values = self.values(found) if absent else {}
        held = {
            name: snapshot_of(values[name])
            for name in absent
            if not isinstance(values[name], Unbuilt)
        }
        values = {**found.checkpoint["channel_values"], **held}
        return found._replace(
            checkpoint=cast("Checkpoint", {**found.checkpoint, "channel_values": values})
        )

    def _channels_at(self, found: CheckpointTuple) -> Mapping[str, Any]:
        """Channels of the graph that made a checkpoint.

        A subgraph is found by the nodes that lead to it and by the channels that the checkpoint
        names, since a node may hold several.
        """
        namespace = str(found.config.get("configurable", {}).get("checkpoint_ns") or "")
        if not namespace:
            return {} if self._graph is None else self._graph.channels
        names = set(found.checkpoint["channel_versions"])
        wanted = named_nodes(namespace)
        # Subgraphs, each with the nodes that lead to it.
        if self._graphs is None:
            self._graphs = [] if self._graph is None else list(subgraphs_of(self._graph))
        fits = {
            (nodes == wanted, names <= set(graph.channels)): graph.channels
            for nodes, graph in reversed(self._graphs)
        }
        return fits.get((True, True)) or fits.get((False, True)) or fits.get((True, False)) or {}


class _Listed(BaseCheckpointSaver[Any]):
    """Saver of checkpoints that were read already."""

    def __init__(self, listed: Iterable[CheckpointTuple]) -> None:
        super().__init__()
        self._found = {_place(found.config): found for found in listed}

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._found.get(_place(config))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Copy the seeds, since reducers may change them and several checkpoints share one."""
        histories = super().get_delta_channel_history(config=config, channels=channels)
        for history in histories.values():
            if "seed" in history:
                history["seed"] = snapshot_of(copy.copy(snapshot_value(history["seed"])))
        return histories


def _place(config: RunnableConfig) -> tuple[str, str]:
    named: Mapping[str, Any] = config.get("configurable", {})
    return str(named.get("checkpoint_ns") or ""), str(named.get("checkpoint_id") or "")
