"""Fixtures for tests of both store backends. Files that need more ways to open a store have their
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.store import RunStore, open_store
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> Iterator[str]:
    """URL of a new store on each backend."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/store.db"
        return
    database = postgres.create_database()
    yield database
    postgres.drop_database(database)


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with open_store(url) as opened:
        yield opened
