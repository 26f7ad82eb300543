"""Snippets that wait for a signal from the test, so that the test decides what runs at which
moment.

`HOLD`, put before a snippet's code, makes the snippet wait for a signal. `held` finds the processes
that wait, and `let_go` sends them the signal. A signal is the only message that reaches code in a
sandbox, and no length of a sleep would be right on every machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.environment.attacks.host import descendants

__all__ = ["HOLD", "PATIENCE_SECONDS", "Releasing", "held", "let_go", "until_held"]

HOLD = """\
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
signal.sigwait([signal.SIGUSR1])
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGUSR2])
"""
"""Code before a snippet. It blocks SIGUSR2 as a visible mark, since the kernel does not list the
signal that a process waits for. Once the code has gone on, another SIGUSR1 has no effect.
"""
PATIENCE_SECONDS = 60.0
"""Longest wait in seconds. Only a process that hangs exceeds it."""
_BIT, _OTHER = 1 << (signal.SIGUSR2 - 1), 1 << (signal.SIGTERM - 1)
"""Bits of SIGUSR2 and SIGTERM in a mask of blocked signals. A process that is just being spawned
has all signals blocked for a moment; a held process does not block SIGTERM.
"""


def held(below: int | None = None) -> set[int]:
    """Processes below `below` (None: below this one) that wait to be let go."""
    return {pid for pid in descendants(os.getpid() if below is None else below) if _waits(pid)}


def _waits(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    blocked = next((line.split()[1] for line in lines if line.startswith("SigBlk:")), "0")
    return int(blocked, 16) & (_BIT | _OTHER) == _BIT


async def until_held(
    count: int = 1, *, below: int | None = None, known: set[int] | None = None
) -> set[int]:
    """Wait for at least `count` held processes besides the `known` ones, and return these
    processes.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found := held(below) - (known or set())) < count:
            await asyncio.sleep(0.01)
    return found


def let_go(pids: set[int]) -> None:
    """Let held processes go on with their code."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)


class Releasing:
    """Context in which every held process is let go."""

    def __init__(self, below: int | None = None) -> None:
        self._below = below

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._release())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _release(self) -> None:
        while True:
            let_go(held(self._below))
            await asyncio.sleep(0.01)
