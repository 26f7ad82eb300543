"""A function for `hrm_agent.rewards.bounded_call` that does what its text says."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any


def does(text: str) -> Any:
    match text:
        case "loop":
            while True:
                pass
        case "exit":
            os._exit(3)
        case "crash":
            ctypes.string_at(0)
        case "memory":
            return len(bytearray(64 * 1024**3))
        case "deep":
            return does_deeply(0)
        case "raise":
            raise ValueError("of no use")
        case "parent":
            return os.getppid()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            pass
    return 1.0


def does_deeply(depth: int) -> int:
    return does_deeply(depth + 1)
