"""What tests of both bodies share; a file that needs more ways of opening a store has fixtures of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.store import RunStore, open_store
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> Iterator[str]:
    """A new store on each body."""
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
