"""Servers for tests: one in this process, on a separate event loop, and one as a process that can
be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hrm_agent.basics.async_bridge import BackgroundLoop
from hrm_agent.environment.base import Environment
from hrm_agent.environment.remote.address import TOKEN_VARIABLE
from hrm_agent.environment.remote.clients import Clients
from hrm_agent.environment.remote.server import Service, serving

__all__ = ["TOKEN", "ServerProcess", "served"]

TOKEN = "a token for tests"


@contextmanager
def served(
    environment: Environment,
    listener: socket.socket,
    clients: Clients | None = None,
    **options: Any,
) -> Iterator[Service]:
    """Serve an environment inside the block."""
    loop, stop = BackgroundLoop("served"), asyncio.Event()
    started: list[Service] = []
    up = threading.Event()

    async def serve() -> None:
        async with serving(
            environment,
            clients or Clients.of_token(TOKEN),
            listener,
            **{"drain_seconds": 0.0, **options},
        ) as service:
            started.append(service)
            up.set()
            await stop.wait()

    serving_it = loop.submit(serve())
    assert up.wait(60), "the server does not start"
    try:
        yield started[0]
    finally:
        loop.loop.call_soon_threadsafe(stop.set)
        serving_it.result(60)
        loop.close()


class ServerProcess:
    """`hrm-agent environment serve` as a process. It has the same address each time it is
    started.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        self.url = f"unix:{folder / 'server'}"
        self._flags = ("--socket", str(folder / "server"), "--slots", "2", *flags)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = (
            sys.executable,
            "-m",
            "hrm_agent.cli.main",
            "environment",
            "serve",
            "--json",
            *self._flags,
        )
        variables = os.environ | {TOKEN_VARIABLE: TOKEN}
        self._process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["url"] == self.url

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(60)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()
        assert self._process is not None and self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self.start()
