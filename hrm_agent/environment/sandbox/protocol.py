"""Messages between the host and the zygote: fixed-size structs over one stream socket, descriptors beside them.

Nothing of variable length and nothing that a snippet wrote passes here: code, output and value travel in memory files
whose descriptors go straight from the host to the child. So the zygote, whose memory every child inherits, never holds
anything of one call that another could read, and there is no format that a snippet could forge.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "HANDSHAKE_BYTES",
    "OUT_OF_MEMORY_EXIT",
    "REPLY",
    "REQUEST",
    "SNIPPET",
    "Ended",
    "Operation",
    "Reply",
    "Request",
]

REQUEST = struct.Struct("=BQQddqqq")
REPLY = struct.Struct("=QBidd")
HANDSHAKE_BYTES = 512
"""The zygote's first message: empty if all layers are in force, else what is missing; padded with zeros."""
SNIPPET = "<snippet>"
"""File name of model-written code in tracebacks."""
OUT_OF_MEMORY_EXIT = 91
"""Exit code of a snippet that ended with MemoryError. A snippet may claim it; it is charged as for any failure."""


class Operation(IntEnum):
    """What the host asks for."""

    RUN = 1
    KILL_CALL = 2
    END_SESSION = 3


class Request(NamedTuple):
    """Four descriptors come with RUN: code, stdout, stderr, value."""

    operation: int
    call: int
    session: int = 0
    """0: a process of its own for this call."""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    file_bytes: int = 0
    """Largest file, stdout and stderr among them."""
    value_bytes: int = 0


class Ended(IntEnum):
    """How the zygote saw a call end."""

    EXITED = 1
    """The process is gone; `status` is what wait4 gave."""
    TIMEOUT = 2
    """Killed for its wall-clock or CPU time."""
    KILLED = 3
    """Killed because the host asked."""
    ANSWERED = 4
    """A session's process finished the call and lives on; `status` is what an exit would have given."""


class Reply(NamedTuple):
    """One per RUN."""

    call: int
    ended: int
    status: int
    duration_seconds: float
    """By the zygote's clock, from fork to death."""
    cpu_seconds: float
    """Of the process, by the kernel's account; 0 where the process lives on."""
