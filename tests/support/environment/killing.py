"""Kills of slots and fork servers at chosen points, so that a test decides which call a kill
hits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.testing import block_until
from tests.environment.attacks.host import descendants, is_running
from tests.support.environment.contract import IDLE

__all__ = ["SLOT", "ChosenKills", "at_depth"]

SLOT, FORK_SERVER = 3, 2
"""Depths below this process: depths 1 and 2 are a fork server, depth 3 its slots, depth 4 the
calls.
"""
_NOTICED_WITHIN_SECONDS = 2.0
"""Time in which the death of a slot is noticed. If none is noticed, the slot did not exist yet at
the kill.
"""
_T = TypeVar("_T")


def at_depth(depth: int, top: int | None = None) -> Iterator[int]:
    """Process ids at that depth below `top` (None: below this process)."""
    top = os.getpid() if top is None else top
    for pid in descendants(top):
        steps, parent = 0, pid
        while parent not in (top, 0):
            steps, parent = steps + 1, _parent(parent)
        if steps == depth and parent == top:
            yield pid


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class ChosenKills:
    """Kills of chosen work in an environment that only this process uses.

    The chosen work is held once it has begun, until every slot, or every fork server, is killed.
    The work is lost with them, and so are all calls that run at this moment. The second attempt
    runs the work as it was submitted.
    """

    def __init__(self, environment: LocalEnvironment) -> None:
        self.began: list[str] = []
        """Codes, in the order in which they were given to slots."""
        self.killed: Counter[str] = Counter()
        self._workers = environment._workers  # pyright: ignore[reportPrivateUsage]
        self._start = self._workers.start
        self._workers.start = self._began
        self._lock = threading.Lock()
        self._chosen = 0
        self._victim: Future[Work] = Future()

    async def during(self, calls: Awaitable[_T], *, nth: int, fork_server: bool = False) -> _T:
        """Results of `calls`. The `nth` work that they begin, from 1, is killed."""
        self._victim = Future()
        self._chosen = len(self.began) + nth
        killing = asyncio.create_task(asyncio.to_thread(self._kill, fork_server))
        answers = await calls
        await killing
        return answers

    def _began(self, work: Work) -> None:
        with self._lock:
            self.began.append(work.code)
            chosen = len(self.began) == self._chosen
            if chosen:
                work.code = IDLE
        self._start(work)
        if chosen:
            self._victim.set_result(work)

    def _kill(self, fork_server: bool) -> None:
        work = self._victim.result(60)
        block_until(lambda: self._is_with_a_slot(work, begun=not work.session))
        # nothing shows that a session's work has begun, so its slot may not exist at the first kill
        while self._is_with_a_slot(work):
            with self._workers._lock:  # pyright: ignore[reportPrivateUsage] - nothing is given to a slot that is to die
                dying = [*at_depth(SLOT), *(at_depth(FORK_SERVER) if fork_server else ())]
                for pid in list(at_depth(FORK_SERVER if fork_server else SLOT)):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                block_until(lambda: not any(map(is_running, dying)))
            # Wait until the death is noticed. A kill before that would hit calls in their second
            # attempt.
            end = time.monotonic() + _NOTICED_WITHIN_SECONDS
            while self._is_with_a_slot(work) and time.monotonic() < end:
                time.sleep(0.01)
        self.killed["fork server" if fork_server else "slot"] += 1

    def _is_with_a_slot(self, work: Work, *, begun: bool = False) -> bool:
        slots = list(self._workers._by_line.values())  # pyright: ignore[reportPrivateUsage]
        return any(slot.work is work and (not begun or slot.files.started) for slot in slots)
