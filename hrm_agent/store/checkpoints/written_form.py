"""Stored form of a checkpoint and of its pending writes.

A manifest has a checkpoint's own fields and one reference for each channel. A channel with its
parent's version has its parent's reference: its value is neither serialised nor stored again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    EXCLUDED_METADATA_KEYS,
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
)

from hrm_agent.errors import StoreError, UnstorableError
from hrm_agent.langgraph_format import ERROR, ERROR_SOURCE
from hrm_agent.store.checkpoints.reader import Channels
from hrm_agent.store.values.content_addressed import CHANNEL_BYTES, ValueWriter
from hrm_agent.store.values.refusals import RefusedValue, Unstorable
from hrm_agent.store.values.value_reader import Reference

__all__ = [
    "REGULAR",
    "manifest_of",
    "merged_writes",
    "public_metadata",
    "refusing",
    "slots_of",
]

_EXCLUDED = frozenset(EXCLUDED_METADATA_KEYS)
REGULAR = 0
"""Slot of a task's ordinary writes. Special ones (an error, an interrupt, its answer) have one slot
each, below 0.
"""


def public_metadata(config: RunnableConfig, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a checkpoint to store: LangGraph's own, and the run-level values in
    `config["metadata"]`.

    LangChain copies any scalars in `configurable` into that metadata. Callers keep keys and user
    names there, so none of them is stored.
    """
    configurable: Mapping[str, Any] = config.get("configurable", {})
    kept: dict[str, Any] = {
        name: value
        for name, value in (config.get("metadata") or {}).items()
        if isinstance(value, (str, int, float, bool))
        and name not in configurable
        and name not in _EXCLUDED
        and not name.startswith("__")
    }
    kept.update(metadata)
    kept.pop("writes", None)
    return kept


_HINT = (
    "Declare the type in the graph's state, or name it: --allow package.module:Type, in a program"
    " open_store(..., allow=['package.module:Type']). A graph that was compiled before its store"
    " was opened takes store.checkpointer.allowing(graph)."
)


@contextmanager
def refusing(thread_id: str) -> Generator[None]:
    """Raise `StoreError` for a type that is not allowed, `UnstorableError` for a value that would
    change.
    """
    try:
        yield
    except RefusedValue as error:
        message = f"Thread {thread_id!r} holds {error}. Nothing was written."
        if isinstance(error, Unstorable):
            raise UnstorableError(
                message,
                "Keep it out of the graph's state, or in a plainer form (a text, a list, a dict, a"
                " model of pydantic).",
            ) from error
        raise StoreError(message, _HINT) from error


def manifest_of(
    checkpoint: Checkpoint, writer: ValueWriter, new_versions: ChannelVersions, parent: Channels
) -> tuple[bytes, Channels]:
    """Stored form of a checkpoint, and the references of its channels."""
    channels: Channels = {}
    values = checkpoint["channel_values"]
    versions = checkpoint["channel_versions"]
    for name in {**versions, **values}:
        version = versions.get(name)
        before = parent.get(name)
        if name not in values:
            channels[name] = (version, None)
        elif before and before[0] == version and before[1] and name not in new_versions:
            channels[name] = (version, before[1])
        else:
            channels[name] = (version, _reference(name, values[name], writer))
    rest = {
        name: value
        for name, value in checkpoint.items()
        if name not in ("channel_values", "channel_versions")
    }
    packed = ormsgpack.packb([rest, [[name, *entry] for name, entry in channels.items()]])
    return packed, channels


def slots_of(writes: Sequence[tuple[str, Any]], writer: ValueWriter) -> dict[int, list[list[Any]]]:
    """Writes as `[index, channel, reference]`, by slot.

    Ordinary writes of a task that failed or was cancelled are left out. A node writes to the state
    before its conditional edges run, and LangGraph considers a task with any recorded ordinary
    write as ended. A run that was cancelled in between, and resumed, would stop there without an
    error. So the task runs again. If a node of the graph handles the error, it continues from the
    writes, and they are kept.
    """
    slots: dict[int, list[list[Any]]] = {}
    channels = {channel for channel, _ in writes}
    again = ERROR in channels and ERROR_SOURCE not in channels
    for position, (channel, value) in enumerate(writes):
        index = WRITES_IDX_MAP.get(channel, position)
        if again and index >= REGULAR:
            continue
        if channel == ERROR and isinstance(value, BaseException):
            value = repr(value)  # as in LangGraph's savers
        slots.setdefault(min(index, REGULAR), []).append(
            [index, channel, _reference(channel, value, writer)]
        )
    return slots


def _reference(channel: str, value: Any, writer: ValueWriter) -> Reference:
    try:
        return writer.reference(value, CHANNEL_BYTES)
    except RefusedValue as error:
        error.within(channel)
        raise


def merged_writes(stored: bytes, given: list[list[Any]]) -> bytes:
    """Merge the ordinary writes of a task with those stored before. Stored ones are kept for their
    index.
    """
    held: list[list[Any]] = ormsgpack.unpackb(stored)
    taken = {index for index, *_ in held}
    return ormsgpack.packb(
        sorted(held + [write for write in given if write[0] not in taken], key=lambda w: w[0])
    )
