"""Recording of a foreign program, which continues after any failure of the record.

An `Episode` stops at a gap in its record. A foreign program has its own purpose: a full disk or a
state that cannot be stored is logged once, and the rest is not recorded. If the record can be
written again at its end, it notes the gap.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from hrm_agent.basics.async_bridge import may_block
from hrm_agent.basics.unicode import text_of
from hrm_agent.errors import StoreError, UnstorableError
from hrm_agent.store.checkpoints.saver import StoreSaver
from hrm_agent.trajectory import Call, Journal, MemoryJournal, Recording

__all__ = ["Losses", "MirroredSaver", "Observation", "ObservedThread"]


class Losses:
    """Losses of one invocation: errors of parts that could not be recorded."""

    def __init__(self, tell: Callable[[BaseException], None]) -> None:
        self._tell = tell
        self.first: str | None = None
        """First loss in words."""
        self.store_is_away = False
        """True if the store could not be written. The store is not tried again before the end,
        since each try may wait for a lock.
        """

    def __call__(self, error: BaseException) -> None:
        self.first = self.first or f"{type(error).__name__}: {text_of(error)}"
        self.store_is_away |= isinstance(error, StoreError) and not isinstance(
            error, UnstorableError
        )
        self._tell(error)


class Observation(Recording):
    """Calls of one invocation, all of them on one thread."""

    def __init__(
        self, journal: Journal, thread_id: str, on_loss: Losses, on_model: Callable[[str], None]
    ) -> None:
        super().__init__(cast(Journal, _ForgivingJournal(journal, on_loss)))
        self.thread_id = self.run_id = thread_id
        self.models = Counter[str]()
        """Number of answers by model."""
        self._on_model = on_model
        self._on_loss = on_loss

    def lose(self, error: Exception) -> None:
        """Report the loss; the program continues."""
        self._on_loss(error)

    def write_call(self, call: Call, sent: Sequence[Any] = ()) -> Call:
        written = super().write_call(call, sent)
        if call.error is not None:
            return written
        self.models[written.model] += 1
        if self.models.total() == 1:
            self._on_model(written.model)
        return written


class _ForgivingJournal:
    """Journal that is replaced by one in memory after its first failure, so that later calls do not
    fail.
    """

    def __init__(self, journal: Journal, on_loss: Losses) -> None:
        self._journal = journal
        self._on_loss = on_loss

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._journal, name)
        if not callable(found):
            return found

        def call(*values: Any, **named: Any) -> Any:
            if self._on_loss.store_is_away and not isinstance(self._journal, MemoryJournal):
                self._journal = MemoryJournal()
            with may_block():
                try:
                    return getattr(self._journal, name)(*values, **named)
                except Exception as error:
                    if isinstance(self._journal, MemoryJournal):
                        raise
                    self._journal = MemoryJournal()
                    self._on_loss(error)
                    return getattr(self._journal, name)(*values, **named)

        return call


class ObservedThread(StoreSaver):
    """Checkpointer of the store for one invocation of a program's graph, all on one thread.

    The program still sees its own name of the thread. Without a checkpointer LangGraph begins each
    invocation afresh, so that each invocation of the program's thread is another thread in the
    store.
    """

    @classmethod
    def of(cls, saver: StoreSaver, thread_id: str, on_loss: Losses) -> ObservedThread:
        clone: Any = copy.copy(saver)
        clone.__class__ = cls
        clone._thread_id = thread_id
        clone._on_loss = on_loss
        clone._lost = []
        return clone

    _thread_id: str
    _on_loss: Losses
    _lost: list[BaseException]
    """Errors, shared by the copies that LangGraph makes. If not empty, no further checkpoint is
    written.
    """

    def _here(self, config: RunnableConfig) -> RunnableConfig:
        return {
            **config,
            "configurable": {**config.get("configurable", {}), "thread_id": self._thread_id},
        }

    def _is_lost(self) -> bool:
        return bool(self._lost) or self._on_loss.store_is_away

    def choose(self, config: RunnableConfig) -> None:
        super().choose(self._here(config))

    def _lose(self, error: Exception) -> None:
        if not self._lost:
            self._lost.append(error)
            self._on_loss(error)

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        *,
        waits: bool = False,
    ) -> Future[RunnableConfig]:
        with may_block():
            return super()._put(self._here(config), checkpoint, metadata, new_versions, waits=waits)

    def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Future[None] | None:
        with may_block():
            return super()._put_writes(self._here(config), writes, task_id, task_path)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        if not self._is_lost():
            try:
                return super().put(config, checkpoint, metadata, new_versions)
            except Exception as error:
                self._lose(error)
        return _config_of(config, checkpoint)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        if not self._is_lost():
            try:
                return await super().aput(config, checkpoint, metadata, new_versions)
            except Exception as error:
                self._lose(error)
        return _config_of(config, checkpoint)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        if not self._is_lost():
            try:
                super().put_writes(config, writes, task_id, task_path)
            except Exception as error:
                self._lose(error)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        if not self._is_lost():
            try:
                await super().aput_writes(config, writes, task_id, task_path)
            except Exception as error:
                self._lose(error)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        try:
            with may_block():
                return None if self._is_lost() else super().get_tuple(self._here(config))
        except Exception as error:
            return self._lose(error)


class MirroredSaver(BaseCheckpointSaver[Any]):
    """Checkpointer of a program, whose writes are also recorded.

    The program's checkpointer comes first: a write that it refuses is not recorded.
    """

    def __init__(self, own: BaseCheckpointSaver[Any], thread: ObservedThread) -> None:
        self._own = own
        self._thread = thread
        self._begun = set[str]()

    def __getattribute__(self, name: str) -> Any:
        if name in _MIRRORED or name.startswith("__"):
            return super().__getattribute__(name)
        return getattr(super().__getattribute__("_own"), name)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> MirroredSaver:
        clone = MirroredSaver(self._own.with_allowlist(extra_allowlist), self._thread)
        clone._begun = self._begun
        return clone

    def _changed(
        self, config: RunnableConfig, checkpoint: Checkpoint, new_versions: ChannelVersions
    ) -> ChannelVersions:
        """Versions of the channels to record. At the first checkpoint of a namespace these are all
        channels, as the program's checkpointer returned them.

        It may have returned a value in another type, such as a tuple as a list.
        """
        namespace = str(config.get("configurable", {}).get("checkpoint_ns", ""))
        if namespace in self._begun:
            return new_versions
        self._begun.add(namespace)
        held = checkpoint["channel_values"]
        return {
            **{k: version for k, version in checkpoint["channel_versions"].items() if k in held},
            **new_versions,
        }

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        kept = self._own.put(config, checkpoint, metadata, new_versions)
        self._thread.choose(config)
        self._thread.put(
            config, checkpoint, metadata, self._changed(config, checkpoint, new_versions)
        )
        return kept

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        kept = await self._own.aput(config, checkpoint, metadata, new_versions)
        self._thread.choose(config)
        await self._thread.aput(
            config, checkpoint, metadata, self._changed(config, checkpoint, new_versions)
        )
        return kept

    @property
    def put_writes(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Method with the parameters of the program's own: LangGraph passes the path of a task only
        to methods that accept it.
        """

        @functools.wraps(self._own.put_writes)
        def put_writes(*given: Any, **named: Any) -> None:
            self._own.put_writes(*given, **named)
            self._thread.put_writes(*given, **named)

        return put_writes

    @property
    def aput_writes(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]

        @functools.wraps(self._own.aput_writes)
        async def aput_writes(*given: Any, **named: Any) -> None:
            await self._own.aput_writes(*given, **named)
            await self._thread.aput_writes(*given, **named)

        return aput_writes


_MIRRORED = {
    "_own",
    "_thread",
    "_begun",
    "_changed",
    "with_allowlist",
    "put",
    "aput",
    "put_writes",
    "aput_writes",
}


def _config_of(config: RunnableConfig, checkpoint: Checkpoint) -> RunnableConfig:
    place = config.get("configurable", {})
    kept = {name: place.get(name, "") for name in ("thread_id", "checkpoint_ns")}
    return {"configurable": {**kept, "checkpoint_id": checkpoint["id"]}}
