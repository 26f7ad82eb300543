"""Caches and LangGraph stores of a graph, as one run sees them.

LangGraph has one cache and one store of a graph for all runs of a process. Rollouts are independent
samples, so each has an empty cache of its own, and a copy of every in-memory LangGraph store that
it uses. Other runs share cache and stores.

Items that a run puts into the graph's in-memory store are recorded with their step, so that a later
process resumes the thread with them. A store on a database keeps its items itself.
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy, deepcopy
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.memory import InMemoryStore

from hrm_agent.errors import ConfigError, StoreError
from hrm_agent.langgraph_format import substitute_caches
from hrm_agent.store import StoreSaver
from hrm_agent.store.checkpoints.memory import StoredItem, put_memory
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.trajectory.identity import graph_identity

__all__ = ["RunMemory", "refuse_shared_store"]

Graph = Pregel[Any, Any, Any, Any]
_log = logging.getLogger("hrm_agent.runtime")
_current: ContextVar[RunMemory | None] = ContextVar("hrm_agent_run_memory", default=None)
_restored: WeakKeyDictionary[BaseStore, set[tuple[str, str]]] = WeakKeyDictionary()
"""Shared stores -> threads (with the owner of their run store) whose items were restored."""
_batch = InMemoryStore.batch
_abatch = InMemoryStore.abatch


class RunMemory:
    """Caches and stores of one run."""

    def __init__(self, graph: Graph, saver: StoreSaver | None, *, alone: bool) -> None:
        """`saver`: recorder of the items (None: they are not recorded). `alone`: the run shares
        nothing with others.
        """
        self.store: BaseStore = InMemoryStore() if graph.store is None else graph.store
        """LangGraph store of the graph. A graph without one gets an empty store in memory, since
        agents that are written for LangGraph's platform are given a store there.
        """
        self._main = self.store if isinstance(self.store, InMemoryStore) else None
        self._saver = saver
        self._alone = alone
        self._shares_main = graph.store is not None and not alone
        self._copies: dict[int, tuple[InMemoryStore, InMemoryStore]] = {}
        self._caches: dict[int, tuple[BaseCache[Any], BaseCache[Any]]] = {}

    @contextmanager
    def in_force(self) -> Generator[None]:
        """Use the caches and stores for everything inside the block."""
        _install()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def store_of(self, store: InMemoryStore) -> InMemoryStore:
        """Store that replaces `store` in this run."""
        if not self._alone:
            return store
        if id(store) not in self._copies:
            self._copies[id(store)] = store, _copied(store)
        return self._copies[id(store)][1]

    def cache_of(self, cache: BaseCache[Any]) -> BaseCache[Any]:
        """Cache that replaces `cache` in this run."""
        if not self._alone:
            return cache
        if id(cache) not in self._caches:
            self._caches[id(cache)] = cache, InMemoryCache[Any](serde=cache.serde)
        return self._caches[id(cache)][1]

    # recording

    def note(self, store: InMemoryStore, ops: Sequence[Op]) -> None:
        """Record items that a node put into the graph's own store, and deletions."""
        puts = [op for op in ops if isinstance(op, PutOp)]
        if not puts or self._saver is None or store is not self._main:
            return
        config: Any = var_child_runnable_config.get() or {}
        identity = graph_identity(config.get("metadata"), "")
        if not identity.root_checkpoint_id:
            return
        try:
            items = [
                StoredItem(
                    op.namespace,
                    op.key,
                    None if op.value is None else dict(op.value),
                    op.index,
                    datetime.now(UTC).timestamp(),
                )
                for op in puts
            ]
            put_memory(self._saver, identity.thread_id, identity.root_checkpoint_id, items)
        except StoreError as error:
            if not isinstance(error.__cause__, RefusedValue):
                raise
            _log.warning(
                "An item of the LangGraph store cannot be recorded, so that a later process will"
                " not find it. %s",
                error,
            )

    async def begin_with(self, items: Iterable[StoredItem]) -> None:
        """Drop the copies, and begin with `items`."""
        self._copies.clear()
        await self.restore(items)

    async def restore(
        self, items: Iterable[StoredItem], thread: tuple[str, str] = ("", "")
    ) -> None:
        """Restore the recorded items of a thread; in a shared store, only once per process.

        Newer items of other runs are kept.
        """
        if self._main is None:
            return
        if self._shares_main:
            known = _restored.setdefault(self._main, set())
            if thread in known:
                return
            known.add(thread)
        store = self.store_of(self._main)
        newest = {(item.namespace, item.key): item for item in items}
        held = {place: store._data.get(place[0], {}).get(place[1]) for place in newest}  # pyright: ignore[reportPrivateUsage]
        older = [
            item
            for place, item in newest.items()
            if (there := held[place]) is None or there.updated_at.timestamp() < item.updated_at
        ]
        await _abatch(
            store, [PutOp(item.namespace, item.key, item.value, item.searched) for item in older]
        )
        for item in older:
            if item.value is not None:
                put = store._data[item.namespace][item.key]  # pyright: ignore[reportPrivateUsage]
                put.created_at = put.updated_at = datetime.fromtimestamp(item.updated_at, UTC)


def refuse_shared_store(graph: Graph, name: str) -> None:
    """Raise `ConfigError` if rollouts would share a store, since it cannot be copied for each."""
    if graph.store is not None and not isinstance(graph.store, InMemoryStore):
        raise ConfigError(
            f"The graph {name} is compiled with a LangGraph store that cannot be copied,"
            f" {type(graph.store).__name__}. All rollouts would find what one rollout puts there,"
            " so that they would not be independent samples.",
            "Compile the graph with InMemoryStore, of which each rollout gets a copy, or let the"
            " rollouts share its store: --share-memory.",
        )


def _copied(store: InMemoryStore) -> InMemoryStore:
    """Copy of a store. Vectors are shared, since they are never changed in place."""
    made: Any = copy(store)
    data = made._data
    made._data = defaultdict(dict, {namespace: deepcopy(held) for namespace, held in data.items()})
    vectors: Any = defaultdict(functools.partial(defaultdict, dict))
    for namespace, by_key in made._vectors.items():
        for key, by_path in by_key.items():
            vectors[namespace][key] = dict(by_path)
    made._vectors = vectors
    return made


@functools.cache
def _install() -> None:
    """Wrap stores and caches, once per process. Outside of a run they behave as before."""
    substitute_caches(_cache_in_force)
    InMemoryStore.batch, InMemoryStore.abatch = _noted(_batch), _noted_async(_abatch)


def _cache_in_force(cache: BaseCache[Any]) -> BaseCache[Any]:
    memory = _current.get()
    return cache if memory is None else memory.cache_of(cache)


def _noted(entry: Callable[[InMemoryStore, Iterable[Op]], list[Result]]) -> Any:
    @functools.wraps(entry)
    def batch(self: InMemoryStore, ops: Iterable[Op]) -> list[Result]:
        memory = _current.get()
        if memory is None:
            return entry(self, ops)
        found = entry(memory.store_of(self), ops := list(ops))
        memory.note(self, ops)
        return found

    return batch


def _noted_async(entry: Any) -> Any:
    @functools.wraps(entry)
    async def abatch(self: InMemoryStore, ops: Iterable[Op]) -> list[Result]:
        memory = _current.get()
        if memory is None:
            return await entry(self, ops)
        found = await entry(memory.store_of(self), ops := list(ops))
        memory.note(self, ops)
        return found

    return abatch
