"""Servers of environments that this process starts, each in the interpreter that has it installed.

A server listens on loopback only. Its socket is made here, so that no port is guessed. It ends with
this process, even if this process is killed: it watches its standard input, which this process
holds open. It gets SIGTERM first, and some seconds to close its environments. Its output goes to a
file, whose end is shown if it does not start.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from hrm_agent.basics.worker_process import signal_group
from hrm_agent.errors import RunError, TaskError
from hrm_agent.tools.task_environments.source import EnvironmentSource

__all__ = ["last_words", "served", "server_url", "settle"]

_SCRIPT = Path(__file__).parent / "foreign" / "serve.py"
_MOST_STARTS = 4
"""Maximum number of times in a row that a server is started without an answered act."""
SECONDS_TO_END = 5.0
"""Time limit of the end of a server: longer than its own of `foreign/serve.py`."""
_SECONDS_TO_SETTLE = 0.5
_SHOWN = 400
_PRIVATE = "HRM_AGENT_"
"""Prefix of environment variables that a server does not get: tokens and keys of this project."""
_OF_PYTHON = ("PYTHONHOME", "PYTHONPATH")
"""Variables by which another interpreter would import this one's packages."""
_servers: dict[tuple[int, str], _Server] = {}
_lock = threading.Lock()


class _Server:
    """Running server of one environment."""

    def __init__(self, source: EnvironmentSource) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the server
        self._arguments = _arguments(source)
        self._folder = _folder(source)
        self._is_another = bool(source.python)
        self._place = source.place
        self.starts = 0
        """Number of starts since the last act that the server answered."""
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def ready(self) -> str:
        """URL of the server, which is started if it does not run."""
        if self.process is None or self.process.poll() is not None:
            if self.starts == _MOST_STARTS:
                raise RunError(
                    f"The server of {self._place} ended {_MOST_STARTS} times in a row: "
                    f"{self.said()}.",
                    "Mend the environment, then resume the run: what is missing is run.",
                )
            self._start()
        return self.url

    def _start(self) -> None:
        self.starts += 1
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            left_out = _OF_PYTHON if self._is_another else ()
            kept = {
                name: value
                for name, value in os.environ.items()
                if not name.startswith(_PRIVATE) and name not in left_out
            }
            self.process = subprocess.Popen(
                [*self._arguments, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                cwd=self._folder,
                env={**kept, "PYTHONUNBUFFERED": "1"},
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )

    def said(self) -> str:
        """End of the server's output, in one line."""
        with contextlib.suppress(OSError):
            size = os.fstat(self._log.fileno()).st_size
            data = os.pread(self._log.fileno(), 4096, max(0, size - 4096))
            lines = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
            return " ".join(" ".join(lines[-3:]).split())[-_SHOWN:].rstrip(".") or "it said nothing"
        return "it said nothing"

    def close(self) -> None:
        process = self.process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()  # it then ends with all processes that it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
            signal_group(process.pid)
            process.wait()
        self._log.close()


def server_url(source: EnvironmentSource) -> str:
    """URL of an environment's server, which is started if this process has to. Blocks while it
    starts a process.

    Raises `TaskError` if there is nothing to start, and `RunError` if the server ended too often.
    """
    if source.url:
        return source.url
    with _lock:
        server = _find(source)
        return server.ready()


def served(source: EnvironmentSource) -> None:
    """Note that an environment has answered an act, so that its server may be started again."""
    server = _servers.get(_key(source))
    if server is not None:
        server.starts = 0


def settle(source: EnvironmentSource) -> None:
    """Wait a moment for the end of a server that has closed its connections, so that the next
    session starts it again. Blocks.
    """
    server = _servers.get(_key(source))
    if server is not None and server.process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(_SECONDS_TO_SETTLE)


def last_words(source: EnvironmentSource) -> str:
    """End of the output of a server that this process started (empty if it did not)."""
    with _lock:
        server = _servers.get(_key(source))
        return server.said() if server is not None else ""


def _key(source: EnvironmentSource) -> tuple[int, str]:
    known = [source.kind, source.place, source.python, source.app, source.arguments]
    return os.getpid(), json.dumps(known, sort_keys=True)


def _find(source: EnvironmentSource) -> _Server:
    key = _key(source)
    if key not in _servers:
        _servers[key] = _Server(source)
        atexit.register(_close, key)
    return _servers[key]


def _close(key: tuple[int, str]) -> None:
    server = _servers.pop(key, None) if key[0] == os.getpid() else None
    if server is not None:
        server.close()


def _arguments(source: EnvironmentSource) -> list[str]:
    """Command that starts the server, without the descriptor of its socket."""
    named = source.python or sys.executable
    if "/" in named:  # else it is looked up on PATH
        named = str(Path(named).expanduser().absolute())
    python = shutil.which(named)
    if python is None:
        raise TaskError(
            f"The interpreter {source.python!r} does not exist.",
            "python=PATH names the python of the environment's own virtual environment.",
        )
    # the path is not resolved, since the link's place is what makes it a virtual environment
    command = [str(Path(python).absolute()), str(_SCRIPT), source.kind]
    if source.kind == "verifiers":
        return [*command, json.dumps({"taskset": source.place, "arguments": source.arguments})]
    folder = _folder(source)
    if folder is None and any(sign in source.place for sign in "./\\"):
        raise TaskError(
            f"openenv:{source.place} is neither a folder nor a package.",
            "Name a folder with server/app.py, an installed package, or the URL of a server.",
        )
    package = "" if folder else f"{source.place.replace('-', '_')}."
    return [*command, source.app or f"{package}server.app:app"]


def _folder(source: EnvironmentSource) -> Path | None:
    """Folder of an OpenEnv environment (None if it is a package)."""
    named = Path(source.place).expanduser()
    is_folder = source.kind == "openenv" and ("/" in source.place or source.place.startswith("."))
    return named.absolute() if is_folder and named.is_dir() else None
