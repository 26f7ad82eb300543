"""`kill -9` between two calls of a session: the state, report and record of the next call."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import open_store
from hrm_agent.tools.python_tool import DIFFERS
from hrm_agent.trajectory import SessionState, ToolStatus
from hrm_agent.trajectory.lint import lint
from tests.support.environment.served import TOKEN, served
from tests.support.tools import killed_session

pytestmark = pytest.mark.slow


def killed(folder: Path, url: str = "") -> None:
    words = [sys.executable, "-m", killed_session.__name__, str(folder), url, TOKEN]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


async def test_a_rebuilt_session_is_compared_with_the_record(tmp_path: Path) -> None:
    """The slot belonged to the process itself and is gone with it."""
    killed(tmp_path)
    environment = LocalEnvironment(slots=1)
    done = await killed_session.run(tmp_path, environment)
    await environment.close()
    first, second, third = done.tool_calls
    assert (first.session, second.session) == (SessionState.NEW, SessionState.KEPT)
    assert (third.status, third.session, third.changed_cells) == (
        ToolStatus.OK,
        SessionState.DIFFERS,
        (2,),
    )
    assert (
        third.value != second.value
        and third.content == f"{DIFFERS.format('call 2')}\n{third.value}"
    )
    assert lint(done) == []
    with open_store(tmp_path / "store.db") as store:
        assert (await replay_async(store, "t")).equal


async def test_a_session_on_a_server_outlives_its_client(tmp_path: Path) -> None:
    local, listener = LocalEnvironment(slots=1), listen_tcp("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with served(local, listener):
        killed(tmp_path, url)
        environment = killed_session.opened(url, TOKEN)
        done = await killed_session.run(tmp_path, environment)
        await environment.close()
    local.shutdown()
    _, second, third = done.tool_calls
    assert (third.session, third.changed_cells) == (SessionState.KEPT, ())
    assert third.value == third.content == second.value
