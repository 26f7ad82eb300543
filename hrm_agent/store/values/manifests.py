"""Reading of checkpoint manifests, which `hrm_agent.store.values.checkpoint_codec` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import ormsgpack

from hrm_agent.store.values.value_reader import Reference, ValueReader

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import Checkpoint

__all__ = ["Channels", "CheckpointKey", "read_checkpoint", "read_manifest"]

Channels = dict[str, tuple[Any, Reference]]
"""Version and reference by channel. The reference is None if the channel has no value."""


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """Thread, namespace and checkpoint of a config."""

    thread_id: str
    """LangGraph's thread id."""
    ns: str
    """Namespace of the subgraph. Empty for the outermost graph."""
    checkpoint_id: str | None
    """LangGraph's id of the checkpoint (None for the newest one)."""

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """Config of another checkpoint in the same thread and namespace."""
        named = {
            "thread_id": self.thread_id,
            "checkpoint_ns": self.ns,
            "checkpoint_id": checkpoint_id,
        }
        return {"configurable": named}


def read_manifest(data: bytes) -> tuple[dict[str, Any], Channels]:
    """Own fields of a checkpoint, and its channels."""
    rest, channels = ormsgpack.unpackb(data)
    return rest, {name: (version, reference) for name, version, reference in channels}


def read_checkpoint(rest: dict[str, Any], channels: Channels, reader: ValueReader) -> Checkpoint:
    """Checkpoint whose references are loaded. A channel without a version was stored with a value
    only.
    """
    checkpoint: dict[str, Any] = {
        **rest,
        "channel_values": {
            name: reader.value(ref) for name, (_, ref) in channels.items() if ref is not None
        },
        "channel_versions": {
            name: version for name, (version, _) in channels.items() if version is not None
        },
    }
    return cast("Checkpoint", checkpoint)
