"""Calls of libraries and patterns on a policy's text, which nobody made for hostile texts, within
bounds of the kernel.

They run in a process that does nothing else: a child of a child of this one, outside of the
environment that model-written code runs in, tied to it by two pipes that nobody else has. It is
sent a function's name and its arguments, and what it sends back is JSON. It ends when this process
does.

Each call is a fork's, which the kernel ends when it takes more than the bounds: then the text had
it do that, and `ExceededError` says what. CPU time is what counts, so that a busy machine changes
nothing. What this side has seen go wrong otherwise (a process that cannot be started or is gone, a
call that got no processor) is a `RuntimeError`: no text is to blame for it.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import IO, Any, NoReturn

__all__ = ["MAX_CPU_SECONDS", "CallRaisedError", "ExceededError", "bounded_call"]

MAX_CPU_SECONDS = 2.0
"""CPU seconds of one call; right answers take some tenths."""
MAX_WALL_SECONDS = 60
"""Wall-clock seconds of one call, which has had less CPU time until then."""
MAX_MEMORY_BYTES = 2 * 1024**3
_LENGTH = struct.Struct("<Q")


class ExceededError(Exception):
    """A call took more than the bounds, or ended its process."""


class CallRaisedError(Exception):
    """A call raised; the text is the error's kind and words."""


def bounded_call(function: str, *arguments: Any, imports: Sequence[str] = ()) -> Any:
    """Call `function`, as `module:name`; its result has to be JSON. `imports`: modules that it
    needs, if installed.

    Raises `ExceededError`, `CallRaisedError`, and RuntimeError where the process was lost twice.
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
    """The process, made when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, asked: bytes) -> Any:
        """None where it was lost."""
        with self._lock:
            for _ in range(2):
                process = self._process = self._process or _start()
                assert process.stdin is not None
                assert process.stdout is not None
                with suppress(BrokenPipeError):
                    _write(process.stdin, asked)
                if (answer := _read(process.stdout)) is not None:
                    found = json.loads(answer)
                    if found is not None:
                        return found
                else:
                    self._process = None
                    with suppress(BrokenPipeError):
                        process.stdin.close()
                    process.stdout.close()
            return None


_servers: dict[int, _Server] = {}
"""By process id: a fork may not use its parent's."""


def _start() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "hrm_agent.rewards.bounded_call"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,  # Ctrl+C is for this process, which may still have calls to make
    )
    # the one that serves is its child: a process of rewards is asked whether it has left children
    process.wait()
    return process


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes | None:
    """None at the end."""
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    data = pipe.read(length)
    return data if len(data) == length else None


def _serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Until the one who asks is gone."""
    while (question := _read(asked)) is not None:
        function, imports, arguments = pickle.loads(question)  # noqa: S301 - only the other side can write it
        if problem := _import(function.partition(":")[0], imports):
            _write(answers, json.dumps({"lost": problem}).encode())
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
        _write(answers, said if status == 0 and said else json.dumps(_ending(status)).encode())


def _import(module: str, others: Sequence[str]) -> str:
    """Before the first fork: what takes seconds is not a call's time. Empty, or why `module` does
    not import.
    """
    for name in others:
        with suppress(ImportError):
            import_module(name)
    try:
        import_module(module)
    except Exception as error:  # of a library
        return f"{module} does not import: {type(error).__name__}: {error}"[:1000]
    return ""


def _ending(status: int) -> dict[str, str] | None:
    """None where it was nobody's doing here: killed from outside, or by the clock on the wall."""
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
    with os.fdopen(os.dup(1), "wb") as own:
        os.dup2(2, 1)  # what a library prints is no answer
        _serve(sys.stdin.buffer, own)
