"""A real environment, a recording around each test, and patience with wikis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hrm_agent.environment import LocalEnvironment, using_environment
from hrm_agent.tools.mediawiki import MediaWiki
from hrm_agent.trajectory import MemoryJournal, Recording, recording


@pytest.fixture(scope="session")
def environment() -> Iterator[LocalEnvironment]:
    environment = LocalEnvironment(slots=4)
    yield environment
    environment.shutdown()


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Patience for wikis that are slow on a slow machine, which is not tested here. Tests of
    time-outs use their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in (("timeout", 60.0), ("patience", 300.0)):
            patch.setitem(MediaWiki.__init__.__kwdefaults__ or {}, name, seconds)
        yield


@pytest.fixture
def journal(environment: LocalEnvironment) -> Iterator[MemoryJournal]:
    journal = MemoryJournal()
    with using_environment(environment), recording(Recording(journal)):
        yield journal
