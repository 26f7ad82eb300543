"""One environment for all tests of a module, used from each test's own event loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hrm_agent.environment import LocalEnvironment


@pytest.fixture(scope="module")
def environment() -> Iterator[LocalEnvironment]:
    environment = LocalEnvironment(slots=4)
    yield environment
    environment.shutdown()
