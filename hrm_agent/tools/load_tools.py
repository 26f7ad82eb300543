"""Custom tools, as objects or by name: LangChain tools, retrievers, or lists of these.

A retriever becomes a tool with one argument, `query`, that returns the retriever's documents. The
tool's name and description are made from the name of the retriever's class. To choose them, make
the tool with `create_retriever_tool` of langchain-core.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, get_origin

from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    create_retriever_tool,
)
from langgraph.prebuilt import ToolRuntime
from pydantic.fields import FieldInfo

from hrm_agent.errors import ConfigError
from hrm_agent.import_by_name import NoFileError, import_by_name

__all__ = ["as_tools", "load_tools"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names that model providers accept."""


def load_tools(names: str | Sequence[str]) -> tuple[BaseTool, ...]:
    """Load tools named as `package.module:attribute` or `./file.py:attribute`, once per process.
    Raises `ConfigError`.
    """
    listed = [names] if isinstance(names, str) else names
    return as_tools(one for name in listed for one in _load(name, str(Path.cwd())))


def as_tools(given: Iterable[Any]) -> tuple[BaseTool, ...]:
    """Convert tools and retrievers to tools with distinct names. Raises `ConfigError` for invalid
    or equal names, for other objects, and for arguments that only a ToolNode fills in.
    """
    tools = list[BaseTool]()
    for one in given:
        if isinstance(one, BaseTool):
            tools.append(one)
        elif isinstance(one, BaseRetriever):
            name = one.get_name()
            about = (
                f"Search {re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', name)} with a query; gives the"
                " documents that fit it best."
            )
            tools.append(
                create_retriever_tool(one, name, about, response_format="content_and_artifact")
            )
        else:
            raise ConfigError(
                f"A {type(one).__name__} is neither a LangChain tool nor a retriever.",
                "Decorate a function with `@tool` of langchain_core.tools.",
            )
    names = [tool.name for tool in tools]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a valid name of a tool.",
                "Use at most 64 letters, digits, `_` and `-`.",
            )
        if names.count(name) > 1:
            raise ConfigError(
                f"There are two tools named {name!r}.", "Give each a name of its own."
            )
    for tool in tools:
        if injected := _injected(tool):
            raise ConfigError(
                f"The argument {injected!r} of the tool {tool.name!r} is required, and only"
                " LangGraph's ToolNode would fill it in, which does not run this tool.",
                "Give the argument a default, or make a tool without it.",
            )
    return tuple(tools)


def _injected(tool: BaseTool) -> str:
    """Name of a required argument that only a ToolNode would fill in (empty if there is none). An
    argument for the call's id is allowed, as every tool gets the id.
    """
    fields: dict[str, FieldInfo] = getattr(tool.get_input_schema(), "model_fields", {})
    for name, field in fields.items():
        kinds = [field.annotation, get_origin(field.annotation)]
        kinds += [one if isinstance(one, type) else type(one) for one in field.metadata]
        injected = [
            kind
            for kind in kinds
            if isinstance(kind, type) and issubclass(kind, (InjectedToolArg, ToolRuntime))
        ]
        if field.is_required() and injected and not issubclass(injected[0], InjectedToolCallId):
            return name
    return ""


@lru_cache(maxsize=64)
def _load(name: Any, folder: str) -> tuple[BaseTool, ...]:
    module_name, colon, attribute = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if not colon or not module_name or not attribute:
        raise ConfigError(
            f"{name!r} names no tool.",
            "Name it as package.module:attribute or ./file.py:attribute, in quotes.",
        )
    try:
        module = import_by_name(module_name, folder)
    except NoFileError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"Tool {name!r} does not import: {type(error).__name__}: {error}.",
            "--debug shows the traceback.",
        ) from error
    if not hasattr(module, attribute):
        known = [
            key
            for key, value in vars(module).items()
            if isinstance(value, (BaseTool, BaseRetriever))
        ]
        raise ConfigError(
            f"{module_name} has no {attribute!r}.",
            f"Tools found there: {', '.join(known) or 'none'}.",
        )
    found: Any = getattr(module, attribute)
    return as_tools(cast("Sequence[Any]", found) if isinstance(found, (list, tuple)) else [found])
