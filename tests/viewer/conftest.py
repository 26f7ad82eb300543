"""Fixtures shared by viewer tests: a browser, and a run that training has made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from hrm_agent.cli.main import main
from tests.support.browser import Browsing, open_browser

SMALL_TRAINING = (
    *("train", "rl", "--prompts-per-step", "2", "--group-size", "4"),
    *("--eval-every", "2", "--eval-problems", "8", "--seed", "3"),
)
"""Configuration of a training that takes a second or two per step."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def browsing(browser: Browser) -> Iterator[Browsing]:
    """Opens viewers and watched pages."""
    opened = Browsing(browser)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of three steps. Tests must not change it and copy it to write."""
    folder = tmp_path_factory.mktemp("trained") / "small"
    assert main([*SMALL_TRAINING, "--steps", "3", "--out", str(folder)]) == 0
    return folder
