"""The contract, held by each body that needs nothing but this machine; Ray's is in
on_ray/test_environment.

A server at a socket file is one at a port but for the first line of its client; remote/test_server
has it killed and cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hrm_agent.environment.base import Environment
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.sockets import listen_tcp, listen_unix
from tests.support.environment.contract import SLOTS, EnvironmentContract
from tests.support.environment.served import TOKEN, served

BODIES = ("local", "tcp", pytest.param("unix", marks=pytest.mark.slow))


def opened(body: str, folder: Path, stack: ExitStack) -> Environment:
    local = LocalEnvironment(slots=SLOTS)
    stack.callback(local.shutdown)
    if body == "local":
        return local
    listener = listen_tcp("127.0.0.1", 0) if body == "tcp" else listen_unix(str(folder / "socket"))
    url = (
        f"http://127.0.0.1:{listener.getsockname()[1]}"
        if body == "tcp"
        else f"unix:{folder / 'socket'}"
    )
    stack.enter_context(served(local, listener))
    return RemoteEnvironment(url, token=TOKEN)


@pytest.fixture(scope="module", params=BODIES)
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Environment]:
    with ExitStack() as stack:
        yield opened(request.param, tmp_path_factory.mktemp("served"), stack)


@pytest.fixture(params=BODIES)
def closing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    with ExitStack() as stack:
        yield opened(request.param, tmp_path, stack)


class TestContract(EnvironmentContract):
    pass
