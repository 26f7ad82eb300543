"""Order of calls that share a resource: one at a time, first come, first served.

The order holds across event loops and threads. LangGraph runs the calls of a message in parallel,
in tasks of one loop or in threads, so they arrive in any order. To keep their order in the message,
a call waits briefly until the calls before it have arrived.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, cast

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.langgraph_format import READ

__all__ = ["OrderedAccess", "calls_before"]

SECONDS_TO_COME = 0.25
"""Longest wait in seconds for earlier calls. The wait is limited because an earlier call may never
arrive: it was refused, or it ended before a crash.
"""
SECONDS_BETWEEN_LOOKS = 0.002
_REMEMBERED = 1024
"""Number of steps whose arrived calls are remembered."""


class OrderedAccess:
    """Queues of calls by shared resource."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, ...], deque[Future[None]]] = {}
        self._came = BoundedMap[tuple[str, ...], set[str]](_REMEMBERED)

    @asynccontextmanager
    async def turn(
        self, shared: tuple[str, ...], step: tuple[str, ...], call_id: str, before: Collection[str]
    ) -> AsyncGenerator[None]:
        """Hold the resource `shared` inside the block. `before`: ids of the calls of the same
        `step` that get the resource first.
        """
        for _ in range(int(SECONDS_TO_COME / SECONDS_BETWEEN_LOOKS)):
            with self._lock:
                if self._came.get((*shared, *step), set()) >= set(before):
                    break
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        ticket: Future[None] = Future()
        with self._lock:
            queue = self._queues.setdefault(shared, deque())
            queue.append(ticket)
            _admit(queue)
            self._came.setdefault((*shared, *step), set()).add(call_id)
        try:
            await asyncio.wrap_future(ticket)
            yield
        finally:
            with self._lock:
                queue.remove(ticket)
                _admit(queue)
                if not queue:
                    del self._queues[shared]


def _admit(queue: deque[Future[None]]) -> None:
    """Admit the first call of a queue. A cancelled call is not admitted: it leaves the queue by
    itself, and then admits the next.
    """
    if queue and not queue[0].done() and queue[0].set_running_or_notify_cancel():
        queue[0].set_result(None)


def calls_before(tool_call_id: str, name: str, config: RunnableConfig) -> Sequence[str]:
    """Ids of the calls of the tool `name` that come before a call in its message (empty if the
    message is not available).

    The message is in the graph's state, which LangGraph lets every node read for conditional edges.
    """
    read: Any = config.get("configurable", {}).get(READ)
    try:
        messages = cast("list[Any]", read("messages")) if read is not None else []
    except Exception:  # a state without messages
        return ()
    for message in reversed(messages):
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        ids = [str(call["id"]) for call in calls if call["name"] == name]
        if tool_call_id in ids:
            return ids[: ids.index(tool_call_id)]
    return ()
