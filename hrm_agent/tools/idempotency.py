"""Idempotency keys: a tool with an external effect declares which calls have the same effect.

    @idempotent("order_id")
    @tool
    def pay(order_id: str, amount: float) -> str:
        return httpx.post(URL, headers={"Idempotency-Key": idempotency_key()}, ...).text

If an earlier call of the same thread has the same key and ended well, its record answers the call,
whatever task or branch it was in. After an interrupted call, no record can show whether the call
had its effect. Such a call is run again under the same key, so a backend that is given the key can
recognise it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from langchain_core.tools import BaseTool

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.trajectory import ToolCall

__all__ = ["idempotency_key", "idempotent", "key_of", "under_way"]

_Tool = TypeVar("_Tool", bound=BaseTool)
_KEY = "hrm_agent_idempotency_key"
"""Key in a tool's metadata. Its value is the name of an argument, or a function of the arguments.
"""
_under_way: ContextVar[str | None] = ContextVar("hrm_agent_tool_call", default=None)


def idempotent(key: str | Callable[[Mapping[str, Any]], str]) -> Callable[[_Tool], _Tool]:
    """Declare the key of a tool's calls: the name of an argument, or a function of the
    arguments.
    """

    def declare(tool: _Tool) -> _Tool:
        if isinstance(key, str) and key not in tool.args:
            raise ConfigError(
                f"The tool {tool.name!r} has no argument {key!r}. {nearest(key, tool.args)}".strip(),
                f"Its arguments: {', '.join(tool.args) or 'none'}.",
            )
        tool.metadata = {**(tool.metadata or {}), _KEY: key}
        return tool

    return declare


def idempotency_key() -> str:
    """Key of the running call, the same on every attempt. If the tool declares no key, it is the
    call's own id.

    Raises `ConfigError` outside of a recorded call.
    """
    key = _under_way.get()
    if key is None:
        raise ConfigError(
            "No recorded tool call is running.", "Call the tool from a graph, in a recorded run."
        )
    return key


def key_of(tool: BaseTool, arguments: Mapping[str, Any] | str) -> str | None:
    """Key of a call of `tool` (None if the tool declares none). Tools do not share keys."""
    declared: Any = (tool.metadata or {}).get(_KEY)
    if declared is None or isinstance(arguments, str):
        return None
    if callable(declared):
        return f"{tool.name}:{declared(arguments)}"
    return f"{tool.name}:{arguments[declared]}" if declared in arguments else None


@contextmanager
def under_way(call: ToolCall) -> Generator[None]:
    """Make `idempotency_key` return the key of `call` inside the block."""
    token = _under_way.set(call.idempotency_key or call.id)
    try:
        yield
    finally:
        _under_way.reset(token)
