"""Commands that only read the record import neither the code that runs agents nor the code that
trains them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command

PROJECT = Path(__file__).parents[2]
HEAVY = {
    "torch",
    "transformers",
    "numpy",
    "langgraph",
    "langchain_core",
    "langchain",
    "langsmith",
    "httpx",
}
FEW, SOME = 150, 500
"""Upper bounds for the number of modules of a command that reads no store, and of one that does.
Python itself starts with some ninety.
"""
THREAD = "runs/collect/0/0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imports")


@pytest.fixture
def run(folder: Path, hrm: Command, scripted: str) -> Path:
    """A run of one task, made once."""
    where = folder / "runs"
    if not where.exists():
        assert hrm("collect", "--count", "1", "--policy", scripted, "--out", str(where)).code == 0
    return where


def imported(*words: str) -> set[str]:
    """The modules that Python names as imported while a program runs."""
    program = [sys.executable, "-X", "importtime", *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines[1:]}


@pytest.mark.parametrize("words", [["-c", "import hrm_agent"], ["-m", "hrm_agent", "--help"]])
def test_the_package_itself_imports_next_to_nothing(words: list[str]) -> None:
    found = imported(*words)
    assert found & (HEAVY | {"pydantic", "asyncio", "rich"}) == set()
    assert len(found) < FEW


@pytest.mark.parametrize(
    "words",
    [
        lambda run: ["history", "--store", run],
        lambda run: ["history", THREAD, "--store", run],
        lambda run: ["history", THREAD, "--flat", "--store", run],
        lambda run: ["show", THREAD, "--store", run],
        lambda run: ["show", THREAD, "--json", "--store", run],
        lambda run: ["show", THREAD, "--sources", "--store", run],
        lambda run: ["lint", run],
    ],
    ids=[
        "history",
        "history of a thread",
        "history --flat",
        "show",
        "show --json",
        "show --sources",
        "lint",
    ],
)
def test_who_looks_at_a_store_waits_for_no_framework(
    words: Callable[[str], list[str]], run: Path
) -> None:
    found = imported("-m", "hrm_agent", *words(str(run)))
    assert found & HEAVY == set()
    assert len(found) < SOME
