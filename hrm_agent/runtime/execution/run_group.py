"""Parallel runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["run_group"]

Item = TypeVar("Item")
Result = TypeVar("Result")


async def run_group(
    items: Iterable[Item], run: Callable[[Item], Coroutine[Any, Any, Result]]
) -> list[Result]:
    """Run all items in parallel; return the results in the items' order.

    The first error cancels the rest, and is raised by itself rather than as a group.
    """
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(run(item)) for item in items]
    except* Exception as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in running]
