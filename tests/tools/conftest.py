"""A real environment, and a recording around each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hrm_agent.environment import LocalEnvironment, using_environment
from hrm_agent.trajectory import MemoryJournal, Recording, recording


@pytest.fixture(scope="session")
def environment() -> Iterator[LocalEnvironment]:
    environment = LocalEnvironment(slots=4)
    yield environment
    environment.shutdown()


@pytest.fixture
def journal(environment: LocalEnvironment) -> Iterator[MemoryJournal]:
    journal = MemoryJournal()
    with using_environment(environment), recording(Recording(journal)):
        yield journal
