"""Shared parts of all tests: the data sets, two servers, a browser, and a guard against waiting for
a terminal or a network.

Tests that read the shared data sets are marked `shared_data`, those on published tokenizers
`real_tokenizers`, those that need a delegated cgroup `cgroup`. Tests on PostgreSQL or MediaWiki are
recognised by their fixtures and parameters, and marked `server`. Tests in a browser are recognised
by the fixture `browser`, those that ask a real model by the fixture `real_model`. Tests whose data,
tokenizers, server, browser, model or cgroup is missing are deselected, and one line reports how
many and what to do. With `CI=true` all parts but the cgroup are required.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import signal
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import RunStore, open_store
from hrm_agent.testing import loopback_only
from tests.support import postgres as postgresql
from tests.support import real_model as smollm2
from tests.support import real_tokenizers
from tests.support.browser import MISSING as NO_BROWSER
from tests.support.browser import find_browser
from tests.support.cgroups import missing_cgroup
from tests.support.postgres import PostgresServer
from tests.support.ray_cluster import running_cluster
from tests.support.wiki import server as mediawiki
from tests.support.wiki.server import WikiServer

PROJECT = Path(__file__).resolve().parent.parent
SHELLS = {"zsh", "fish"}
"""Shells whose completion is tried in the shell itself."""

gc.disable()  # until all is collected: importing makes millions of objects, and no garbage
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# pytest's workers are given one: what is printed into a pipe has no width
os.environ.pop("COLUMNS", None)
# An example takes longer on a machine that does other work: no test is of that.
settings.register_profile("unhurried", parent=settings.default, deadline=None)
settings.load_profile("unhurried")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell: the commands that tests interrupt would inherit that, and
    # wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def shared_data_folder() -> Path | None:
    """Folder of the shared data sets (None if it is missing)."""
    named = os.environ.get("HRM_SHARED_DATA")
    folder = Path(named) if named else PROJECT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture
def shared_data() -> Path:
    folder = shared_data_folder()
    assert folder is not None, (
        "the data sets are demanded (CI=true): set HRM_SHARED_DATA to their folder"
    )
    return folder


@pytest.fixture(autouse=True)
def no_network() -> Iterator[None]:
    """Assert that no test reaches for another machine from this process."""
    with loopback_only() as tried:
        yield
    assert tried == []


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def environment() -> Iterator[LocalEnvironment]:
    """Environment for all tests of a process: a call leaves nothing behind. Tests that close or
    kill it open their own.
    """
    opened = LocalEnvironment()
    yield opened
    opened.shutdown()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this session."""
    server = PostgresServer()
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
def ray_cluster() -> Iterator[Any]:
    """The Ray cluster of this session, with as many nodes as the last test has left
    (`with_nodes`).
    """
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_model() -> str:
    """Model string of SmolLM2-135M-Instruct, which is in the user's cache."""
    return smollm2.NAME


@pytest.fixture(scope="session")
def wiki_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WikiServer]:
    """A MediaWiki of this process, with the pages of `tests.support.wiki.pages`."""
    own = tmp_path_factory.mktemp("wiki") / "served"
    several = "PYTEST_XDIST_WORKER" in os.environ
    server = WikiServer(own, common=own.parents[2] if several else own.parents[1])
    yield server
    server.stop()


def parts_of(item: pytest.Item) -> set[str]:
    """Parts that a test needs and a machine may lack. A test with a parameter for its database
    needs the one named there.
    """
    fixtures: Sequence[str] = getattr(item, "fixturenames", ())
    callspec = getattr(item, "callspec", None)
    given = (
        [value for value in callspec.params.values() if isinstance(value, str)] if callspec else []
    )
    parts = {"data"} if item.get_closest_marker("shared_data") else set[str]()
    parts.update(
        marker for marker in ("cgroup", "real_tokenizers") if item.get_closest_marker(marker)
    )
    elsewhere = any(value.startswith("sqlite") for value in given)
    if any(value.startswith("postgres") for value in given) or (
        "postgres" in fixtures and not elsewhere
    ):
        parts.add("postgres")
    if "mediawiki" in given or "wiki_server" in fixtures:
        parts.add("wiki")
    parts |= {"browser", "real_model"} & set(fixtures)
    return parts | (SHELLS & set(given))


def missing(part: str) -> str:
    """Advice if this machine lacks a part (empty if it exists)."""
    match part:
        case "data":
            return (
                ""
                if shared_data_folder()
                else "There is no data at HRM_SHARED_DATA or ../shared/data."
            )
        case "cgroup":
            return missing_cgroup()
        case "real_tokenizers":
            return real_tokenizers.missing()
        case "browser":
            return "" if find_browser() else NO_BROWSER
        case "real_model":
            return smollm2.missing()
        case "postgres":
            return "" if postgresql.find_server() else postgresql.MISSING
        case "zsh" | "fish":
            return "" if shutil.which(part) else f"There is no {part}: run `tests/install tests`."
        case _:
            return "" if mediawiki.find_wiki() else mediawiki.MISSING


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if parts_of(item) & {"postgres", "wiki"}:
        item.add_marker("server")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long tests first, and deselect those that lack a part here. Runs after `-m` and `-k` have
    selected.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    wanted = {part for item in items for part in parts_of(item)}
    lacking = {part: advice for part in sorted(wanted) if (advice := missing(part))}
    if not lacking or config.option.collectonly:
        return
    if os.environ.get("CI") == "true" and lacking.keys() - {"cgroup"}:
        if hasattr(config, "workerinput"):  # the tests themselves fail, and say why
            return
        raise pytest.UsageError(*(advice for part, advice in lacking.items() if part != "cgroup"))
    without = [item for item in items if parts_of(item) & lacking.keys()]
    items[:] = [item for item in items if not parts_of(item) & lacking.keys()]
    config.hook.pytest_deselected(items=without)
    config.stash[LEFT_OUT] = {
        advice: sum(part in parts_of(item) for item in without) for part, advice in lacking.items()
    }


def pytest_collection_finish() -> None:
    """Freeze what collection made. It lives until the end, so the garbage collector need not visit
    it again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, *gc.get_threshold()[1:])
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process with a traceback, a minute after a test's time limit.

    pytest-timeout ends a test by a thread of Python, which never runs where the interpreter's lock
    is never given back.
    """
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else item.config.getini("timeout"))
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(seconds + 60, file=stderr, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.freeze()  # the process ends: nothing needs to be looked at once more
    if hasattr(session.config, "workerinput"):  # one of several processes: the first one tells
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for advice, count in config.stash.get(LEFT_OUT, {}).items():
        terminalreporter.write_line(f"{count} tests were left out. {advice}")
