"""Fixtures shared by graph tests that compute nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hrm_agent.environment import LocalEnvironment


@pytest.fixture(scope="session")
def idle_environment() -> Iterator[LocalEnvironment]:
    """Environment that no test uses, so that one serves all."""
    opened = LocalEnvironment(slots=1)
    yield opened
    opened.shutdown()
