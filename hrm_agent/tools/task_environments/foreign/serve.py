"""Serves an environment on a socket of the parent process, in the environment's own interpreter.

    python serve.py openenv MODULE:ATTRIBUTE DESCRIPTOR
    python serve.py verifiers '{"taskset": NAME, "arguments": {...}}' DESCRIPTOR

It ends when the parent does, which it sees by the end of its standard input: first as by SIGTERM,
so that environments are closed, and after some seconds by SIGKILL. No process that it has started
outlives it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

SECONDS_TO_END = 3.0
"""Time in seconds that environments have to close."""


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    _kill_descendants()
    os.killpg(0, signal.SIGKILL)


def _kill_descendants() -> None:
    # tool servers of an environment are in sessions of their own
    for process in _descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def _end(*_: object) -> None:
    raise SystemExit(0)


def _descendants() -> list[int]:
    """Processes that this one has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    within = [os.getpid()]
    while within:
        known = children.get(within.pop(), [])
        found += known
        within += known
    return found


def main() -> None:
    """Serve until the parent ends."""
    kind, what, descriptor = sys.argv[1:4]
    os.set_inheritable(int(descriptor), False)
    listener = socket.socket(fileno=int(descriptor))
    atexit.register(_kill_descendants)  # registered first, so that it runs last
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if kind == "verifiers":
        import_module("verifiers_bridge").serve(what, listener)
        return
    sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = what.partition(":")
    app = getattr(import_module(module), attribute or "app")
    uvicorn: Any = import_module("uvicorn")
    # uvicorn's own threads and signals stay as they are in the main thread
    config = uvicorn.Config(
        app, log_level="warning", ws_max_size=4 * 1024 * 1024, timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
