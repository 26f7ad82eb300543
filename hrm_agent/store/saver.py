"""LangGraph's checkpoints in the run store.

The tables and the queries are LangGraph's own (`SqliteSaver`). What differs: the connection is the store's, so that a
checkpoint and its journal lie in one file; deserialisation is strict; and the async methods call the sync ones in
place. A commit takes less time than handing it to another thread would.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph._internal._serde import build_serde_allowlist  # pyright: ignore[reportPrivateImportUsage]
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.pregel import Pregel

from hrm_agent.store.database import Database

__all__ = ["StoreSaver"]


class StoreSaver(SqliteSaver):
    """A LangGraph checkpointer over the store's connection, for sync and async graphs."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
        self._database = database
        self.setup()

    def allowing(self, graph: Pregel[Any, Any, Any, Any]) -> StoreSaver:
        """The same checkpointer, reading besides LangGraph's own types those that the state of `graph` declares.

        LangGraph collects them itself, but only under an environment variable that is read at its import, and a copied
        graph loses them.
        """
        return cast("StoreSaver", self.with_allowlist(_declared_types(graph)))

    @contextmanager
    def cursor(self, transaction: bool = True) -> Generator[sqlite3.Cursor]:
        with self._database.cursor(transaction) as cursor:
            yield cursor

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for checkpoint in list(self.list(config, filter=filter, before=before, limit=limit)):
            yield checkpoint

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)


@lru_cache(maxsize=32)
def _declared_types(graph: Pregel[Any, Any, Any, Any]) -> frozenset[tuple[str, ...]]:
    """(module, name) of the types in the state of a graph and of its subgraphs."""
    subgraphs = [subgraph for _, subgraph in graph.get_subgraphs(recurse=True) if isinstance(subgraph, Pregel)]
    return frozenset().union(*(build_serde_allowlist(channels=dict(g.channels)) for g in (graph, *subgraphs)))
