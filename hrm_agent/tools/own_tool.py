"""Custom tool as a part of an agent, with limits, and with its results as documents.

The wrapper passes its call to the inner tool under the same id. So the call is recorded once, with
the text that the model is shown.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph.errors import GraphBubbleUp

from hrm_agent.basics.async_bridge import call_in_thread
from hrm_agent.basics.unicode import text_of
from hrm_agent.errors import HrmError, RetrievalError
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.trajectory import ToolStatus

__all__ = ["LIMIT_REACHED", "own_tool"]

LIMIT_REACHED = "The limit for this is reached. End with what you have found."
MAX_FAILURE, MAX_ARGUMENTS = 2000, 200
"""Maximum number of characters of a failure, and of a call's arguments in the title of its
result.
"""
ShowDocuments = Callable[[Sequence[Document]], tuple[str, Any]]
"""Function from a tool's documents to the text for the model and the message's artifact."""


def own_tool(
    tool: BaseTool, show: ShowDocuments, seconds: float, refused: bool = False
) -> BaseTool:
    """Wrap a tool to answer a model. A tool that records itself, such as `python`, is returned
    unchanged.

    `seconds`: time limit of one call. A late sync tool continues in a thread, and its result is
    dropped. `refused`: calls are denied with `LIMIT_REACHED`.
    """
    if getattr(tool, "records_itself", False) and not refused:
        return tool
    return _OwnTool(
        name=tool.name,
        description=tool.description,
        metadata=tool.metadata,
        inner=tool,
        show=show,
        seconds=seconds,
        refused=refused,
    )


class _OwnTool(BaseTool):
    inner: BaseTool
    show: Any
    seconds: float
    refused: bool

    @property
    def tool_call_schema(self) -> Any:
        return self.inner.tool_call_schema

    def _run(self, *args: Any, **options: Any) -> Any:
        return self.inner.run(*args, **options)

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002  # BaseTool's name
        if self.refused:
            raise ToolFailure(LIMIT_REACHED, ToolStatus.DENIED)
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                if _is_sync(self.inner):
                    message = await _in_own_thread(
                        partial(self.inner.invoke, input, config, **kwargs)
                    )
                else:
                    message = await self.inner.ainvoke(input, config, **kwargs)
        except GraphBubbleUp:
            raise
        except Exception as error:
            # a missing or locked index is an outcome of the call and does not end the run
            unread = isinstance(error, RetrievalError)
            if isinstance(error, HrmError) and not unread:
                raise
            failure = (
                error
                if isinstance(error, ToolFailure)
                else f"{type(error).__name__}: {text_of(error)}"
            )
            status = getattr(
                failure, "status", ToolStatus.INFRASTRUCTURE if unread else ToolStatus.ERROR
            )
            if limit.expired():
                failure = f"TimeoutError: no answer within {self.seconds:g} s"
                status = ToolStatus.TIMEOUT
            raise ToolFailure(str(failure)[:MAX_FAILURE], status) from error
        if not isinstance(message, ToolMessage):
            return message
        if message.status == "error":
            return message.model_copy(update={"content": message.text[:MAX_FAILURE]})
        given = ", ".join(f"{name}={value!r}" for name, value in input["args"].items())[
            :MAX_ARGUMENTS
        ]
        found: Any = message.artifact
        documents = [Document(message.text, metadata={"title": f"{self.name}({given})"})]
        if (
            isinstance(found, (list, tuple))
            and found
            and all(isinstance(one, Document) for one in found)
        ):
            documents = [*found]
        shown, artifact = await asyncio.to_thread(self.show, documents)
        return message.model_copy(update={"content": shown, "artifact": artifact})


def _is_sync(tool: BaseTool) -> bool:
    """True if `ainvoke` would run the tool in the event loop's thread pool, where a hanging call
    would keep a thread forever.
    """
    kind = type(tool)
    if kind.ainvoke not in (BaseTool.ainvoke, StructuredTool.ainvoke, Tool.ainvoke):
        return False
    if not isinstance(tool, (StructuredTool, Tool)):
        return kind._arun is BaseTool._arun  # pyright: ignore[reportPrivateUsage]
    if not inspect.isfunction(tool.coroutine):
        return tool.coroutine is None
    # a tool made by `create_retriever_tool` has its retriever in the closure
    held = inspect.getclosurevars(tool.coroutine).nonlocals.get("retriever")
    asked = type(held)._aget_relevant_documents if isinstance(held, BaseRetriever) else None  # pyright: ignore[reportPrivateUsage]
    return tool.func is not None and asked is BaseRetriever._aget_relevant_documents  # pyright: ignore[reportPrivateUsage]


async def _in_own_thread(call: Callable[[], Any]) -> Any:
    def called() -> Any:
        try:
            return call()
        except StopIteration as error:  # a future cannot hold this exception
            raise RuntimeError(f"StopIteration: {error}") from error

    return await asyncio.wrap_future(call_in_thread(called))
