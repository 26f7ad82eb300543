from __future__ import annotations

from collections.abc import Iterator

import pytest

from hrm_agent.environment.scheduler.scheduler import Scheduler
from tests.support.environment.scheduler_workers import ThreadWorkers


@pytest.fixture
def scheduler(workers: ThreadWorkers) -> Iterator[Scheduler]:
    """Over the `workers` of the test's own file, which says how many slots they have."""
    scheduler = Scheduler(workers)
    yield scheduler
    scheduler.close()
