"""The Python tool: model-written code, run in the active environment, its call recorded.

One LangChain tool for both ways of calling it: `run_tool_calls` in our own loop, and LangGraph's prebuilt ToolNode in
a user's graph that knows nothing of records. What the model reads is kept short and regular, because a small policy has
to learn from it: the output as a notebook shows it, or the end of the traceback, whose last line names the error.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from typing import Annotated, Any, ClassVar, TypeVar

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId
from pydantic import BaseModel, Field

from hrm_agent.environment import ExecutionResult, active_environment
from hrm_agent.tools.recorded import ToolOutcome, as_message, record_tool_call
from hrm_agent.trajectory import ToolStatus

__all__ = ["PythonTool", "python", "tool_content"]

MAX_CONTENT = 4000
"""Characters that the model is shown of one call."""
TRACEBACK_LINES = 3
"""The failing line's place, the line itself, and the error."""
NO_OUTPUT = "(no output)"
_Result = TypeVar("_Result")
_FAILURES = {
    ToolStatus.TIMEOUT: "TimeoutError: the code ran longer than its time limit",
    ToolStatus.OUT_OF_MEMORY: "MemoryError: the code needed more memory than its limit",
    ToolStatus.OUTPUT_LIMIT: "OutputLimitError: the code printed more than its output limit",
    ToolStatus.INFRASTRUCTURE: "The code could not be run; it is not to blame.",
}


class PythonArguments(BaseModel):
    """What the model gives, and the call's id, which LangChain fills in."""

    code: str = Field(description="Python source; print the result or end with an expression.")
    tool_call_id: Annotated[str, InjectedToolCallId]


class PythonTool(BaseTool):
    """Runs Python code. Its message's artifact is `{"status": ..., "record": id of the ToolCall}`."""

    records_itself: ClassVar[bool] = True

    name: str = "python"
    description: str = "Run Python code in a fresh interpreter; returns what it prints and its last expression's value."
    args_schema: Any = PythonArguments
    response_format: Any = "content_and_artifact"

    async def _arun(self, code: str, tool_call_id: str, config: RunnableConfig) -> tuple[ToolMessage, dict[str, Any]]:
        async def execute() -> ToolOutcome:
            return _outcome(await active_environment().execute(code))

        record = await record_tool_call(
            tool_call_id=tool_call_id, name=self.name, arguments={"code": code}, config=config, execute=execute
        )
        message = as_message(record)  # as a message, because a failed call's carries status="error"
        return message, message.artifact

    def _run(self, code: str, tool_call_id: str, config: RunnableConfig) -> tuple[ToolMessage, dict[str, Any]]:
        return _run_sync(self._arun(code, tool_call_id, config))


def tool_content(result: ExecutionResult) -> str:
    """What the model is shown of `result`."""
    shown = result.stdout
    if result.status is ToolStatus.OK:
        if result.value is not None:
            shown += ("\n" if shown and not shown.endswith("\n") else "") + result.value
        return _shorten(shown.strip("\n"), MAX_CONTENT) or NO_OUTPUT
    failure = _FAILURES.get(result.status) or _end_of_traceback(result.stderr)
    return _shorten(shown, MAX_CONTENT - len(failure)) + failure


def _end_of_traceback(stderr: str) -> str:
    """Its last lines, without those that only underline."""
    lines = [line for line in stderr.splitlines() if line.strip(" ~^")]
    return (
        _shorten("\n".join(lines[-TRACEBACK_LINES:]).lstrip(), MAX_CONTENT // 2)
        or "Error: the code failed without a message"
    )


def _outcome(result: ExecutionResult) -> ToolOutcome:
    return ToolOutcome(
        result.status, tool_content(result), result.stdout, result.stderr, result.value, result.duration_seconds
    )


def _shorten(text: str, limit: int) -> str:
    """At most about `limit` characters, the middle cut out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def _run_sync(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work` to its end in a thread of its own, since this one may have a running event loop."""
    future: Future[_Result] = Future()

    def target() -> None:
        try:
            future.set_result(asyncio.run(work))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=copy_context().run, args=(target,)).start()
    return future.result()


python = PythonTool()
