"""Messages between the host and a slot: fixed-size structs, one per packet of a socket of their
own.

Nothing of variable length and nothing that a snippet wrote passes here: code, output and value
travel in memory files that host and slot share. So zygote and slots, whose memory every child
inherits, never hold anything of one call that another could read, and there is no format that a
snippet could forge.
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
"""A slot's number is below it."""
NEW_SLOT = struct.Struct("=I")
"""Host to zygote: the number of a slot. Five descriptors come with it: its socket, code, stdout,
stderr, value.
"""
REQUEST = struct.Struct("=BQ??ddqqqQ?")
REPLY = struct.Struct("=QBiddq?")
REFUSED_KINDS = 16
REFUSED = struct.Struct("=" + "HI" * REFUSED_KINDS)
"""Before a reply, where system calls were refused: their numbers and how often, the most frequent
first, then zeros.
"""
READY_BYTES = 2048
"""A slot's first packet is JSON, {layer: why it is missing}, padded with spaces to this size. So is
the zygote's.
"""
SNIPPET = "<snippet>"
"""File name of model-written code in tracebacks."""
MEMORY_ERROR = b"MemoryError"
"""Stands in the file of the value where a snippet ended with that. Like a value it is the snippet's
own claim; an exit code, which programs use for ends of their own, says nothing of it.
"""


class Operation(IntEnum):
    """What the host asks for."""

    RUN = 1
    """Run the code that stands in the slot's memory file."""
    KILL = 2
    """The call of that number, if it is still under way."""
    END_SESSION = 3
    """Answered once its processes are gone, also where they were before."""


class Request(NamedTuple):
    """To a slot."""

    operation: int
    """An `Operation`."""
    call: int
    """The host's number of the call, repeated in the reply."""
    session: bool = False
    """Run in a process that lives on; else in one of the call's own."""
    fresh: bool = False
    """Of a session: in a new process; else in the one that lives. Where that is gone, the call is
    not started.
    """
    wall_seconds: float = 0.0
    """Limit of wall-clock time."""
    cpu_seconds: float = 0.0
    """Limit of CPU time, of the whole tree of processes."""
    memory_bytes: int = 0
    """Limit of memory beyond the warm interpreter, of the whole tree of processes."""
    file_bytes: int = 0
    """Largest file, stdout and stderr among them."""
    value_bytes: int = 0
    """Most bytes of the value's repr, and of its JSON."""
    seed: int = 0
    """Of the snippet's random generators."""
    crowded: bool = False
    """Many slots are at work: this one waits longer before it makes the child of its next call
    ahead.
    """


class Ended(IntEnum):
    """How the slot saw a call end."""

    EXITED = 1
    """The process is gone; `status` is what wait4 gave."""
    TIMEOUT = 2
    """Killed for its wall-clock or CPU time."""
    KILLED = 3
    """Killed because the host asked: a call, or what there was of a session."""
    ANSWERED = 4
    """A session's process finished the call and lives on; `status` is what an exit would have
    given.
    """
    OUT_OF_MEMORY = 5
    """Killed because its tree of processes held too much: by the slot, or by the kernel in its
    cgroup.
    """
    BROKEN = 6
    """A session's process spoke without being asked, and was killed."""
    NOT_STARTED = 7
    """No process could be made."""
    GONE = 8
    """The session's process ended by itself before the call, which the host had not heard."""
    TOO_MANY = 9
    """Killed because its processes had too many threads."""
    DENIED = 10
    """Killed because it made system calls of another architecture."""
    UNWATCHED = 11
    """Killed because the slot could not make out any more what its processes do."""


class Handed(IntEnum):
    """How the compiled body leaves the process of a call to the slot."""

    AT_WORK = 0
    """Its call has not ended."""
    IDLE = 1
    """A session's; the call has ended, and was answered."""
    RESTLESS = 2
    """A session's, which has to be stopped."""
    STOPPED = 3
    """A session's, which is stopped."""


class Reply(NamedTuple):
    """One per RUN and END_SESSION; one with call 0 when the process of an idle session is gone."""

    call: int
    """Number of the request that it answers."""
    ended: int
    """An `Ended`."""
    status: int = 0
    """As wait4 gave it; 0 where no process was waited for."""
    duration_seconds: float = 0.0
    """By the slot's clock, from the request to the death of the process."""
    cpu_seconds: float = 0.0
    """By the kernel's account."""
    peak_bytes: int = 0
    """Largest resident memory."""
    last: bool = False
    """The slot ends here: it could not be made clean."""
