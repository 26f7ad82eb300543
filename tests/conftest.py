"""What all tests share: where the data sets are, and that nothing waits for a terminal or a network.

Tests that read the shared data sets are marked `shared_data`. Without the data they are deselected, and one line says
so; where `CI=true` they are demanded.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def shared_data_folder() -> Path | None:
    """The folder of the shared data sets, or None."""
    named = os.environ.get("HRM_SHARED_DATA")
    folder = Path(named) if named else PROJECT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture
def shared_data() -> Path:
    folder = shared_data_folder()
    assert folder is not None, "the data sets are demanded (CI=true): set HRM_SHARED_DATA to their folder"
    return folder


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if shared_data_folder() is not None or os.environ.get("CI") == "true":
        return
    without = [item for item in items if item.get_closest_marker("shared_data") is not None]
    if not without:
        return
    items[:] = [item for item in items if item.get_closest_marker("shared_data") is None]
    config.hook.pytest_deselected(items=without)
    config.stash[DESELECTED] = len(without)


DESELECTED = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(DESELECTED, 0)
    if count:
        terminalreporter.write_line(
            f"{count} tests of the shared data sets were left out: no data at HRM_SHARED_DATA or ../shared/data."
        )
