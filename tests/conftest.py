"""What all tests share: the data sets, two servers, and that nothing waits for a terminal or a network.

Tests that read the shared data sets are marked `shared_data`. Without the data they are deselected, and one line says
so; where `CI=true` they are demanded. Tests on PostgreSQL or MediaWiki are never left out: where one is missing the
session ends before its first test, with the command that installs it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import RunStore, open_store
from tests import postgres as postgresql
from tests.postgres import PostgresServer
from tests.wiki import server as mediawiki
from tests.wiki.server import WikiServer

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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
async def environment() -> AsyncIterator[LocalEnvironment]:
    opened = LocalEnvironment()
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this session."""
    try:
        server = PostgresServer()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    """The URL of the server's own database."""
    return postgres.url()


@pytest.fixture
def fresh_database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database that only this test uses."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def wiki_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WikiServer]:
    """A MediaWiki of this process, with the pages of `tests.wiki.pages`."""
    own = tmp_path_factory.mktemp("wiki") / "served"
    several = "PYTEST_XDIST_WORKER" in os.environ
    server = WikiServer(own, common=own.parents[2] if several else own.parents[1])
    yield server
    server.stop()


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly or hasattr(session.config, "workerinput"):
        return
    asked_for = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "postgres" in asked_for and postgresql.find_server() is None:
        raise pytest.UsageError(postgresql.MISSING)
    if "wiki_server" in asked_for and not mediawiki.find_wiki():
        raise pytest.UsageError(mediawiki.MISSING)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    if shared_data_folder() is not None or os.environ.get("CI") == "true":
        return
    without = [item for item in items if item.get_closest_marker("shared_data") is not None]
    if not without:
        return
    items[:] = [item for item in items if item.get_closest_marker("shared_data") is None]
    config.hook.pytest_deselected(items=without)
    config.stash[DESELECTED] = len(without)


DESELECTED = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):  # one of several processes: the first one tells
        session.config.workeroutput["left_out"] = session.config.stash.get(DESELECTED, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[DESELECTED] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(DESELECTED, 0)
    if count:
        terminalreporter.write_line(
            f"{count} tests of the shared data sets were left out: no data at HRM_SHARED_DATA or ../shared/data."
        )
