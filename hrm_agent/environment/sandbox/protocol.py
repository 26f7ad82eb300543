"""Messages between the host and a slot: fixed-size structs, one per packet of a socket.

Data of variable length and data written by a snippet are not in these messages: code, output and
value are in memory files that host and slot share. Every child inherits the memory of zygote and
slot, and this memory never holds data of one call that another call could read. There is also no
message that a snippet could forge.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "MEMORY_ERROR",
    "NEW_SLOT",
    "READY_BYTES",
    "REFUSED",
    "REFUSED_KINDS",
    "REPLY",
    "REQUEST",
    "SLOT_NUMBERS",
    "SNIPPET",
    "Ended",
    "Handed",
    "Operation",
    "Reply",
    "Request",
]

SLOT_NUMBERS = 1 << 28
"""Upper bound of slot numbers, exclusive."""
NEW_SLOT = struct.Struct("=I")
"""Message from host to zygote: the number of a slot. Five descriptors come with it: its socket,
code, stdout, stderr, value.
"""
REQUEST = struct.Struct("=BQ??ddqqqQ?")
REPLY = struct.Struct("=QBiddq?")
REFUSED_KINDS = 16
REFUSED = struct.Struct("=" + "HI" * REFUSED_KINDS)
"""Message before a reply if system calls were refused: their numbers and counts, the most frequent
first, then zeros.
"""
READY_BYTES = 2048
"""Size of a slot's first packet: JSON, {layer: reason why it is missing}, padded with spaces. The
zygote's first packet has the same size.
"""
SNIPPET = "<snippet>"
"""File name of model-written code in tracebacks."""
MEMORY_ERROR = b"MemoryError"
"""Content of the value file if a snippet ended with a MemoryError. Like a value, it is only the
snippet's claim. An exit code would be ambiguous, since programs use exit codes for other purposes.
"""


class Operation(IntEnum):
    """Operations that the host requests."""

    RUN = 1
    """Run the code in the slot's memory file."""
    KILL = 2
    """Kill the call with the number in the request, if the call is still running."""
    END_SESSION = 3
    """End the session. The slot answers once the session's processes are gone, even if they were
    gone before.
    """


class Request(NamedTuple):
    """Request to a slot."""

    operation: int
    """Value of `Operation`."""
    call: int
    """Number of the call given by the host, repeated in the reply."""
    session: bool = False
    """True if the call runs in a session's process, which is kept; false if it runs in a process of
    its own.
    """
    fresh: bool = False
    """True to start a new process for the session, false to use the existing one. If the existing
    process is gone, the call is not started.
    """
    wall_seconds: float = 0.0
    """Wall-clock limit in seconds."""
    cpu_seconds: float = 0.0
    """CPU time limit in seconds of the whole process tree."""
    memory_bytes: int = 0
    """Memory limit of the whole process tree, beyond the warm interpreter."""
    file_bytes: int = 0
    """Size limit of files, including stdout and stderr."""
    value_bytes: int = 0
    """Size limit of the value's repr, and of its JSON, in bytes."""
    seed: int = 0
    """Seed of the snippet's random generators."""
    crowded: bool = False
    """True if many slots are busy. The slot then waits longer before it makes, in advance, the
    child of its next call.
    """


class Ended(IntEnum):
    """Ends of a call, as seen by the slot."""

    EXITED = 1
    """The process exited; `status` is the result of wait4."""
    TIMEOUT = 2
    """The call was killed because it exceeded its limit of wall-clock or CPU time."""
    KILLED = 3
    """The call or session was killed on request of the host."""
    ANSWERED = 4
    """The process of a session finished the call and is alive. `status` is the status that an exit
    would have had.
    """
    OUT_OF_MEMORY = 5
    """The call was killed because its process tree used too much memory: by the slot, or by the
    kernel in the call's cgroup.
    """
    BROKEN = 6
    """The process of a session sent data without a request, and was killed."""
    NOT_STARTED = 7
    """Starting a process failed."""
    GONE = 8
    """The process of the session had ended by itself before the call, and the host did not know
    yet.
    """
    TOO_MANY = 9
    """The call was killed because its processes had too many threads."""
    DENIED = 10
    """The call was killed because it made a system call of another architecture."""
    UNWATCHED = 11
    """The call was killed because the slot could no longer inspect its processes."""


class Handed(IntEnum):
    """State of a call's process at the moment when the compiled body (`_serve.c`) hands it over to
    `slot.py`.
    """

    AT_WORK = 0
    """The call has not ended."""
    IDLE = 1
    """Session's process. Its call has ended and was answered."""
    RESTLESS = 2
    """Session's process that `slot.py` has to stop."""
    STOPPED = 3
    """Session's process that is stopped."""


class Reply(NamedTuple):
    """Reply of a slot: one per RUN and END_SESSION, and one with call 0 when the process of an idle
    session is gone.
    """

    call: int
    """Number of the call, from the request."""
    ended: int
    """Value of `Ended`."""
    status: int = 0
    """Result of wait4 (0 if no process was waited for)."""
    duration_seconds: float = 0.0
    """Time from the request to the death of the process, by the slot's clock."""
    cpu_seconds: float = 0.0
    """CPU time, by the kernel's accounting."""
    peak_bytes: int = 0
    """Largest resident memory."""
    last: bool = False
    """True if the slot ends after this reply, because it could not be cleaned up."""
