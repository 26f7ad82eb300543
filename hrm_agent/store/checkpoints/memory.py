"""Items that the steps of a thread put into a LangGraph store, kept beside its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6

from hrm_agent.store.checkpoints.reader import MEMORY
from hrm_agent.store.checkpoints.saver import StoreSaver
from hrm_agent.store.checkpoints.threads import lineage
from hrm_agent.store.database.cursors import Cursor

__all__ = ["StoredItem", "put_memory", "read_memory"]


class StoredItem(NamedTuple):
    """Item that a step put into a LangGraph store."""

    namespace: tuple[str, ...]
    """Namespace in the store."""
    key: str
    """Key in the namespace."""
    value: dict[str, Any] | None
    """Value (None if the item was deleted)."""
    searched: Literal[False] | list[str] | None
    """`index` argument of `put`: the fields that can be searched."""
    updated_at: float
    """Unix time in seconds."""


def put_memory(
    saver: StoreSaver, thread_id: str, checkpoint_id: str, items: Sequence[StoredItem]
) -> None:
    """Record items that the step after a checkpoint of the outermost graph puts into a
    LangGraph store.

    They are committed with the step's checkpoint or earlier. Raises `StoreError` for a value
    that could not be read back.
    """
    config: RunnableConfig = {
        "configurable": {"thread_id": thread_id, "checkpoint_id": checkpoint_id}
    }
    plain = [[list(item.namespace), *item[1:]] for item in items]
    saver.put_writes(config, [(MEMORY, plain)], f"{MEMORY}{uuid6()}")


def read_memory(
    saver: StoreSaver, thread_id: str, checkpoint_id: str | None = None
) -> list[StoredItem]:
    """Items that the steps before a checkpoint have put into a LangGraph store, oldest first.

    `checkpoint_id` is the thread's newest checkpoint by default. The step after it, which may
    have been interrupted, is then included.
    """

    def read(cursor: Cursor) -> list[StoredItem]:
        query = (
            "SELECT checkpoint_id, task_id, slot, data FROM writes WHERE thread_id = ? AND ns ="
            " '' AND "
        )
        query += "task_id >= ? AND task_id < ? ORDER BY task_id"
        rows = cursor.execute(query, (thread_id, MEMORY, f"{MEMORY}~")).fetchall()
        if not rows:
            return []
        query = "SELECT max(id) FROM checkpoints WHERE thread_id = ? AND ns = ''"
        end = checkpoint_id or str(cursor.execute(query, (thread_id,)).fetchone()[0])
        line = set(lineage(cursor, thread_id, end)) - {checkpoint_id}
        reader = saver.blobs.reader(cursor, saver.serializer, shared=False)
        opened = [
            reference
            for step, task_id, slot, data in rows
            if step in line
            for _, _, reference in ormsgpack.unpackb(
                saver.blobs.cipher.open(data, thread_id, "", step, task_id, str(slot))
            )
        ]
        reader.load(opened)
        found = [
            item
            for reference in opened
            for item in cast("list[list[Any]]", reader.value(reference))
        ]
        return [StoredItem(tuple(namespace), *rest) for namespace, *rest in found]

    return saver.database.read_once(read)
