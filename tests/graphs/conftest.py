"""A store and a real sandbox for graph tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import RunStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
async def environment() -> AsyncIterator[LocalEnvironment]:
    opened = LocalEnvironment()
    yield opened
    await opened.close()
