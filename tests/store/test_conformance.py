"""LangGraph's own conformance suite on the store's checkpointer: both backends, encrypted and not,
async and sync. The suite calls asynchronous methods only, and `Synchronous` answers each of them
with the synchronous one.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from hrm_agent.store import RunStore, open_store
from tests.support.postgres import PostgresServer

KEY = base64.b64encode(bytes(range(32))).decode()
OpenNew = Callable[[], AbstractContextManager[RunStore]]


class Synchronous(BaseCheckpointSaver[Any]):
    """Checkpointer whose asynchronous methods call the synchronous ones."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    async def aput(self, *given: Any) -> Any:
        return self._saver.put(*given)

    async def aput_writes(self, *given: Any, **named: Any) -> None:
        self._saver.put_writes(*given, **named)

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self._saver.get_tuple(config)

    async def alist(self, config: Any, **named: Any) -> AsyncIterator[CheckpointTuple]:
        for found in self._saver.list(config, **named):
            yield found

    async def adelete_thread(self, thread_id: str) -> None:
        self._saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._saver.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], **named: Any) -> None:
        self._saver.prune(thread_ids, **named)


DEFAULT = {
    "asynchronous": ("sqlite", "sqlite power", "postgresql encrypted"),
    "synchronous": ("sqlite encrypted", "postgresql"),
}
"""Combinations of the default tests: each backend and variant once, and both ways on each backend.
Other combinations are in the slow set.
"""


@pytest.fixture
def open_new(body: str, tmp_path: Path, postgres: PostgresServer) -> OpenNew:
    """Opens a new, empty store at every call, as the suite wants one for each capability."""
    kind, _, variant = body.partition(" ")
    key = KEY if variant == "encrypted" else None
    numbers = iter(range(100))

    @contextmanager
    def opened() -> Iterator[RunStore]:
        if kind == "postgresql":
            url = postgres.create_database()
            with open_store(url, key=key) as store:
                yield store
            postgres.drop_database(url)
            return
        url = f"sqlite:///{tmp_path}/{next(numbers)}.db" + (
            "?level=power" if variant == "power" else ""
        )
        with open_store(url, key=key) as store:
            yield store

    return opened


def combinations() -> Iterator[Any]:
    for body in (
        "sqlite",
        "sqlite power",
        "sqlite encrypted",
        "postgresql",
        "postgresql encrypted",
    ):
        for way, bodies in DEFAULT.items():
            yield pytest.param(body, way, marks=() if body in bodies else pytest.mark.slow)


@pytest.mark.parametrize(("body", "way"), [*combinations()])
async def test_langgraphs_conformance_suite(body: str, way: str, open_new: OpenNew) -> None:
    del body

    @checkpointer_test(name=way)
    async def fresh() -> AsyncGenerator[BaseCheckpointSaver[Any]]:
        with open_new() as store:
            yield store.checkpointer if way == "asynchronous" else Synchronous(store.checkpointer)

    report = await validate(fresh)
    assert {
        name: result.failures for name, result in report.results.items() if result.failures
    } == {}
    assert set(report.results) == {capability.value for capability in Capability}
    assert all(
        result.detected and result.passed and not result.tests_skipped
        for result in report.results.values()
    )
    assert sum(result.tests_passed for result in report.results.values()) >= 81
