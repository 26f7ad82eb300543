"""Calls of libraries and patterns on a policy's text within limits of the kernel, since neither are
made for hostile texts.

The calls run in a separate process: a grandchild of this one, outside of the environment for
model-written code, connected by a private socket. It receives a function's name and arguments, and
returns JSON. It ends when this process does.

Each call runs in a fork of that process, which the kernel kills at a limit. Then the text is the
cause, and `ExceededError` names the limit. The limit of time is one of CPU time, so that a busy
machine changes nothing. Any other failure (a process that cannot be started or is gone, a call that
got no processor) is a `RuntimeError`, which is not the text's fault.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from hrm_agent.basics.worker_process import FrameSocket, parent_socket, start_module

__all__ = ["MAX_CPU_SECONDS", "CallRaisedError", "ExceededError", "bounded_call"]

MAX_CPU_SECONDS = 2.0
"""Maximum CPU time of one call, in seconds. Right answers take some tenths of a second."""
MAX_WALL_SECONDS = 60
"""Maximum wall-clock time of one call, in seconds. It ends calls that get too little CPU time."""
MAX_MEMORY_BYTES = 2 * 1024**3


class ExceededError(Exception):
    """A call exceeded its limits or ended its process."""


class CallRaisedError(Exception):
    """A call raised. The text has the error's type and message."""


def bounded_call(function: str, *arguments: Any, imports: Sequence[str] = ()) -> Any:
    """Call `function`, given as `module:name`. Its result has to be JSON. `imports`: modules to
    import before, if they are installed.

    Raises `ExceededError`, `CallRaisedError`, and RuntimeError if the process was lost twice.
    """
    asked = pickle.dumps((function, tuple(imports), pickle.dumps(arguments)))
    answer = _servers.setdefault(os.getpid(), _Server()).ask(asked)
    match answer:
        case {"value": value}:
            return value
        case {"raised": str(words)}:
            raise CallRaisedError(words)
        case {"exceeded": str(words)}:
            raise ExceededError(words)
        case {"lost": str(words)}:
            raise RuntimeError(words)
        case _:
            raise RuntimeError(
                "a call on a policy's text was lost: its process was killed, or got no processor"
            )


class _Server:
    """Process for bounded calls, started on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: FrameSocket | None = None

    def ask(self, asked: bytes) -> Any:
        """Send a request and return the answer (None if the process was lost twice)."""
        with self._lock:
            for _ in range(2):
                if self._connection is None:
                    # The process is in a group of its own, so that Ctrl+C does not end it: this
                    # process may still make calls.
                    process, line = start_module(
                        "hrm_agent.rewards.bounded_call",
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                    # The started process forks the server and ends. So the server is no child of
                    # this process, which may be checked for children that a function left behind.
                    process.wait()
                    self._connection = FrameSocket(line)
                connection = self._connection
                connection.send(asked)
                if answer := connection.receive():
                    found = json.loads(answer)
                    if found is not None:
                        return found
                else:
                    self._connection = None
                    connection.close()
            return None


_servers: dict[int, _Server] = {}
"""Servers by process id, since a forked process must not use its parent's server."""


def _serve(connection: FrameSocket) -> None:
    """Answer requests until the other side has closed the connection."""
    while question := connection.receive():
        function, imports, arguments = pickle.loads(question)  # noqa: S301 - only the other side can write it
        if problem := _import(function.partition(":")[0], imports):
            connection.send(json.dumps({"lost": problem}).encode())
            continue
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _call(function, arguments, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        connection.send(said if status == 0 and said else json.dumps(_ending(status)).encode())


def _import(module: str, others: Sequence[str]) -> str:
    """Import modules before the first fork, so that slow imports do not count as a call's time.
    Return the reason why `module` does not import (empty if it does).
    """
    for name in others:
        with suppress(ImportError):
            import_module(name)
    try:
        import_module(module)
    except Exception as error:  # raised by a library
        return f"{module} does not import: {type(error).__name__}: {error}"[:1000]
    return ""


def _ending(status: int) -> dict[str, str] | None:
    """Error of a call that ended its process (None if it was killed from outside or by the wall
    clock).
    """
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGKILL, -signal.SIGALRM, -signal.SIGTERM):
        return None
    if code == -signal.SIGPROF:
        return {"exceeded": f"it took more than {MAX_CPU_SECONDS:g} s of CPU time"}
    return {"exceeded": f"it ended its process with {code}"}


def _call(function: str, arguments: bytes, writing: int) -> NoReturn:
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    signal.alarm(MAX_WALL_SECONDS)
    module, _, name = function.partition(":")
    try:
        value = getattr(import_module(module), name)(*pickle.loads(arguments))  # noqa: S301 - as above
        said = {"value": value}
    except MemoryError:
        said = {"exceeded": f"it took more than {MAX_MEMORY_BYTES // 1024**2} MiB of memory"}
    except RecursionError:
        said = {"exceeded": "it is nested too deeply"}
    except Exception as error:
        said = {"raised": f"{type(error).__name__}: {error}"[:1000]}
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(json.dumps(said).encode())
    os._exit(0)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _serve(parent_socket())
