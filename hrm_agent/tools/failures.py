"""Typed failures and time limits for custom tools.

    @limited(seconds=5)
    @tool
    def look_up(name: str) -> str:
        if name in SECRET:
            raise ToolFailure("That name is not for you.", "denied")
        return TABLE[name]

A `ToolFailure` is an outcome, not a crash. In a recorded run, and always under `run_tool_calls`,
the model is shown its message, and the record has its status. Elsewhere it is an ordinary
exception, which ToolNode's `handle_tool_errors` handles.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from langchain_core.tools import BaseTool, StructuredTool, Tool

from hrm_agent.basics.async_bridge import call_in_thread
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.trajectory import ToolStatus

__all__ = ["ToolFailure", "limited"]

_Tool = TypeVar("_Tool", bound=BaseTool)
_Result = TypeVar("_Result")


class ToolFailure(Exception):
    """Exception raised by a tool: its call ends with `status`, and the model is shown `message`."""

    def __init__(self, message: str, status: ToolStatus | str = ToolStatus.ERROR) -> None:
        super().__init__(message)
        failures = [str(known) for known in ToolStatus if known is not ToolStatus.OK]
        if status not in failures:
            hint = f"{nearest(str(status), failures)} Known: {', '.join(failures)}.".strip()
            raise ConfigError(f"There is no failure status {str(status)!r}.", hint)
        self.status = ToolStatus(status)


def limited(*, seconds: float) -> Callable[[_Tool], _Tool]:
    """Limit the time of each call of a tool. A call that exceeds it ends as `timeout`.

    A late async tool is cancelled. A late sync tool cannot be cancelled, since it runs in a thread:
    its result is dropped, and its late effects are not on record. A sync tool should limit its own
    waits as well.
    """

    def declare(tool: _Tool) -> _Tool:
        if not isinstance(tool, (StructuredTool, Tool)):
            raise ConfigError(
                f"The tool {tool.name!r} is a {type(tool).__name__}, whose call cannot be limited"
                " from outside.",
                "Make it with @tool, or limit the time in its own _run and _arun.",
            )
        if tool.func is not None:
            tool.func = _in_thread(tool.func, seconds)
        if tool.coroutine is not None:
            tool.coroutine = _in_task(tool.coroutine, seconds)
        return tool

    return declare


def _in_task(
    function: Callable[..., Awaitable[_Result]], seconds: float
) -> Callable[..., Awaitable[_Result]]:
    @functools.wraps(function)
    async def run(*args: Any, **options: Any) -> _Result:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await function(*args, **options)
        except TimeoutError as error:
            if limit.expired():
                raise _late(seconds) from error
            raise

    return run


def _in_thread(function: Callable[..., _Result], seconds: float) -> Callable[..., _Result]:
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> _Result:
        future = call_in_thread(functools.partial(function, *args, **options))
        try:
            return future.result(seconds)
        except FutureTimeoutError as error:
            if future.done():  # the tool itself raised this error
                raise
            raise _late(seconds) from error

    return run


def _late(seconds: float) -> ToolFailure:
    return ToolFailure(f"TimeoutError: no answer within {seconds:g} s", ToolStatus.TIMEOUT)
