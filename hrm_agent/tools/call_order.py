"""Whose turn it is: calls that share something run one at a time, first come, first served.

Across event loops and threads: LangGraph runs the calls of a message side by side, in tasks of one
loop or in threads, which come in any order. So a call waits a moment for those that stand before it
in its message.
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
"""So long a call waits for those before it: one that was refused, or had ended before a crash,
never comes.
"""
SECONDS_BETWEEN_LOOKS = 0.002
_REMEMBERED = 1024
"""Steps of which it is known which calls have come."""


class OrderedAccess:
    """Queues, by what is shared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, ...], deque[Future[None]]] = {}
        self._came = BoundedMap[tuple[str, ...], set[str]](_REMEMBERED)

    @asynccontextmanager
    async def turn(
        self, shared: tuple[str, ...], step: tuple[str, ...], call_id: str, before: Collection[str]
    ) -> AsyncGenerator[None]:
        """Hold what is `shared`. `before`: ids of the calls of the same `step` that are to have it
        first.
        """
        await self._wait_for(before, (*shared, *step))
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

    async def _wait_for(self, before: Collection[str], step: tuple[str, ...]) -> None:
        for _ in range(int(SECONDS_TO_COME / SECONDS_BETWEEN_LOOKS)):
            with self._lock:
                if self._came.get(step, set()) >= set(before):
                    return
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


def _admit(queue: deque[Future[None]]) -> None:
    """Let the first one in. Who was cancelled leaves the queue by himself, and lets the next one
    in.
    """
    if queue and not queue[0].done() and queue[0].set_running_or_notify_cancel():
        queue[0].set_result(None)


def calls_before(tool_call_id: str, name: str, config: RunnableConfig) -> Sequence[str]:
    """Ids of the calls of the tool `name` that stand before one in its message; none where the
    message is not seen.

    LangGraph gives every node a way to read its graph's state, which is meant for conditional
    edges.
    """
    read: Any = config.get("configurable", {}).get(READ)
    try:
        messages = cast("list[Any]", read("messages")) if read is not None else []
    except Exception:  # a state that has none
        return ()
    for message in reversed(messages):
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        ids = [str(call["id"]) for call in calls if call["name"] == name]
        if tool_call_id in ids:
            return ids[: ids.index(tool_call_id)]
    return ()
