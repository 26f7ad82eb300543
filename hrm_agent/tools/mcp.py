"""Tools of a Model Context Protocol server, by a command that starts it or by its URL.

    TOOLS = mcp_tools("uvx mcp-server-time")
    TOOLS = mcp_tools("https://example.org/mcp", listing="tools.json")

Requires the extra `mcp`. Each call opens a session of its own and closes it. So a server that is
given by a command is started for each call, keeps nothing between calls, and leaves no process
behind. A server's text is untrusted: each description is cut to one line, and code that uses the
server's answers must treat them as data.
"""

from __future__ import annotations

import asyncio
import functools
import json
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.errors import GraphBubbleUp

from hrm_agent.basics.async_bridge import run_sync
from hrm_agent.errors import ConfigError, HrmError, nearest, to_install
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.trajectory import ToolStatus

__all__ = ["mcp_tools"]

MAX_DESCRIPTION = 1000
"""Maximum number of characters of the description of a tool, and of each of its arguments."""
_WORDS = {"$comment", "description", "title"}
_VALUES = {"const", "default", "enum", "examples"}
_BY_NAME = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
"""Keys of a JSON schema: for texts, for literal values, and for dicts of schemas by name. In such a
dict a name may equal any of these words.
"""


def mcp_tools(
    server: str | Mapping[str, Any],
    *,
    only: Collection[str] | None = None,
    listing: str | Path | None = None,
    seconds: float = 30.0,
) -> list[BaseTool]:
    """Tools of a server, as LangChain tools. Raises `ConfigError` if the server does not answer.

    `server`: a command with its arguments, a URL (streamable HTTP), or a connection of
    langchain-mcp-adapters, such as
    `{"transport": "stdio", "command": "npx", "args": [...], "env": {...}}`. `only`: names of the
    wanted tools. `listing`: file for the list of tools. If it is given, the server is asked for the
    list only once, and a replay needs no server. `seconds`: time limit for listing the tools.
    """
    if isinstance(server, Mapping):
        given = server.get("args", [])
        if not isinstance(given, (list, tuple)) or not all(
            isinstance(word, str) for word in cast("list[Any]", given)
        ):
            raise ConfigError(
                f"`args` of the MCP server's connection is {given!r}, not a list of texts.",
                'Give a list such as ["-m", "x"].',
            )
        connection = dict(server)
    elif server.startswith(("http://", "https://")):
        connection = {"transport": "streamable_http", "url": server}
    else:
        try:
            command, *arguments = shlex.split(server)
        except ValueError:  # an empty command, or an unclosed quotation mark
            raise ConfigError(
                f"{server!r} is not a command.", "Give a command with its arguments, or a URL."
            ) from None
        connection = {"transport": "stdio", "command": command, "args": arguments}
    file = None if listing is None else Path(listing)
    if file is not None and file.exists():
        try:
            described = [dict(one) for one in json.loads(file.read_text(encoding="utf-8"))]
        except (ValueError, TypeError):
            raise ConfigError(
                f"{file} does not contain a list of tools.",
                "Delete it. The server is then asked for the list again.",
            ) from None
    else:
        described = run_sync(_described(connection, seconds))
        if file is not None:
            file.write_text(json.dumps(described, indent=1), encoding="utf-8")
    tools = {tool.name: tool for tool in map(functools.partial(_tool, connection), described)}
    for name in only or ():
        if name not in tools:
            raise ConfigError(
                f"The MCP server has no tool {name!r}. {nearest(name, tools)}".strip(),
                f"Its tools: {', '.join(tools) or 'none'}.",
            )
    return [tool for name, tool in tools.items() if only is None or name in only]


async def _described(connection: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
    create_session, load = _library()
    del load
    try:
        async with asyncio.timeout(seconds), create_session(connection) as session:
            await session.initialize()
            found = list[Any]()
            cursor = None
            while True:
                page = await session.list_tools(cursor=cursor)
                found = [*found, *page.tools]
                cursor = page.nextCursor
                if not cursor:
                    return [tool.model_dump(mode="json", exclude_none=True) for tool in found]
    except Exception as error:
        words = [connection.get("command"), *connection.get("args", ())]
        shown = connection["url"] if "url" in connection else " ".join(map(str, words))
        raise ConfigError(
            f"The MCP server {shown!r} does not answer: {_reason(error)}.",
            "Start it by hand to see why. A command may write nothing but MCP messages to its"
            " standard output.",
        ) from error


def _tool(connection: Mapping[str, Any], described: dict[str, Any]) -> BaseTool:
    from mcp.types import Tool

    _, load = _library()
    tool = load(None, Tool.model_validate(described), connection=dict(connection))
    assert isinstance(tool, StructuredTool)
    assert tool.coroutine is not None
    tool.description = _bounded(tool.description)
    _bound_descriptions(tool.args_schema)
    tool.coroutine = _typed(tool.coroutine)
    return tool


def _bounded(text: str) -> str:
    return " ".join(text.split())[:MAX_DESCRIPTION]


def _bound_descriptions(schema: Any) -> None:
    """Shorten the texts of a JSON schema in place, at any depth. Its values are unchanged."""
    within = [(schema, False)]
    while within:
        found, by_name = within.pop()
        if isinstance(found, list):
            within += [(one, False) for one in cast("list[Any]", found)]
        elif isinstance(found, dict):
            fields = cast("dict[str, Any]", found)
            fields |= {
                key: _bounded(fields[key])
                for key in _WORDS & fields.keys()
                if isinstance(fields[key], str)
            }
            inner = (
                fields.items()
                if by_name
                else [(key, fields[key]) for key in fields.keys() - _VALUES]
            )
            within += [(value, key in _BY_NAME and not by_name) for key, value in inner]


def _typed(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap a call so that it raises typed failures. A lost server is an infrastructure failure.
    Errors that the tool itself reports are shown to the model.
    """

    @functools.wraps(call)
    async def run(*args: Any, **options: Any) -> Any:
        try:
            return await call(*args, **options)
        except (ToolException, ToolFailure, GraphBubbleUp, HrmError):
            raise
        except Exception as error:
            status = ToolStatus.ERROR if _is_of_the_call(error) else ToolStatus.INFRASTRUCTURE
            raise ToolFailure(f"The MCP server failed: {_reason(error)}", status) from error

    return run


def _is_of_the_call(error: Exception) -> bool:
    """True if the server refused the arguments, or if its answer is of a kind that cannot be shown
    to a model.
    """
    from mcp import McpError
    from mcp.types import INVALID_PARAMS

    return isinstance(error, NotImplementedError) or (
        isinstance(error, McpError) and error.error.code == INVALID_PARAMS
    )


def _reason(error: BaseException) -> str:
    """First exception within nested groups of exceptions, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _library() -> tuple[Any, Any]:
    try:
        from langchain_mcp_adapters.sessions import create_session
        from langchain_mcp_adapters.tools import convert_mcp_tool_to_langchain_tool
    except ImportError as error:
        raise ConfigError(
            "langchain-mcp-adapters is not installed, and MCP servers need it.",
            f"Run `{to_install('mcp')}`.",
        ) from error
    return create_session, convert_mcp_tool_to_langchain_tool
