"""Python tools: model-written code, run in the active environment, with recorded calls.

`python` runs the calls of an agent in a session, so that names remain defined from call to call
(`hrm_agent.tools.sessions`). A session needs a thread, in a graph or by
`{"configurable": {"thread_id": ...}}`. Without a thread, each call runs in a fresh interpreter, as
with `python_stateless`.

Both tools are LangChain tools that can be called in two ways: by `run_tool_calls` in this package's
own loop, and by LangGraph's prebuilt ToolNode in a user's graph. The text for the model is short
and regular, as a small policy has to learn from it. It is the output as a notebook shows it, or the
end of the traceback, whose last line names the error.

Annotations in this module are not strings (no `from __future__ import annotations`): LangChain
resolves the annotations of `_arun` three times per call, and would compile strings each time.
"""

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Annotated, Any, ClassVar

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId
from pydantic import BaseModel, Field

from hrm_agent.basics.async_bridge import run_sync
from hrm_agent.environment import ExecutionResult, Limits, ready_environment
from hrm_agent.environment.base import Cell, Submission
from hrm_agent.tools.call_order import calls_before
from hrm_agent.tools.record_call import ToolOutcome, as_message, record_tool_call
from hrm_agent.tools.session_variables import variables_cell, without_variables
from hrm_agent.tools.sessions import sessions_of
from hrm_agent.trajectory import SessionState, ToolStatus, active_recording, tool_record_id
from hrm_agent.trajectory.identity import graph_identity

__all__ = ["PythonTool", "python", "python_stateless", "tool_content"]

MAX_CONTENT = 4000
"""Maximum number of characters of one call's result that the model is shown."""
TRACEBACK_LINES = 3
"""Lines of a traceback to show: the position, the failing line, and the error."""
NO_OUTPUT = "(no output)"
LOST = "Note: the session was lost; earlier variables may be gone or changed."
DIFFERS = (
    "Note: the session was rebuilt by running its earlier calls again; {} came out differently this"
    " time."
)
_FAILURES = {
    ToolStatus.TIMEOUT: "TimeoutError: the code ran longer than its time limit",
    ToolStatus.OUT_OF_MEMORY: "MemoryError: the code needed more memory than its limit",
    ToolStatus.OUTPUT_LIMIT: "OutputLimitError: the code printed more than its output limit",
    ToolStatus.INFRASTRUCTURE: "The code could not be run; it is not to blame.",
}


class PythonArguments(BaseModel):
    """Arguments from the model, and the call's id from LangChain."""

    code: str = Field(description="Python source; print the result or end with an expression.")
    """Python source."""
    tool_call_id: Annotated[str, InjectedToolCallId]
    """Id of this call in the model's message."""


class PythonTool(BaseTool):
    """Tool that runs Python code. The artifact of its message is
    `{"status": ..., "record": id of the ToolCall}`.
    """

    records_itself: ClassVar[bool] = True
    """True: this tool records its calls itself, and the recording of other LangChain tools skips
    it.
    """

    name: str = "python"
    """Name by which the model calls it."""
    description: str = (
        "Run Python code in a session whose variables live on between calls; "
        "returns what it prints and its last expression's value."
    )
    """Description for the model."""
    args_schema: Any = PythonArguments
    """Schema of the tool's arguments."""
    response_format: Any = "content_and_artifact"
    """Format of results in LangChain: the text for the model, and the message's artifact."""
    stateless: bool = False
    """True to run each call in a fresh interpreter."""
    limits: Limits = Limits()
    """Limits of each call. A session keeps the memory limit of its first call."""
    variables: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Initial variables of each session of the tool: JSON values by name."""

    async def _arun(
        self, code: str, tool_call_id: str, config: RunnableConfig
    ) -> tuple[ToolMessage, dict[str, Any]]:
        # Outside of graphs, LangGraph does not copy the thread's id to the metadata.
        configurable: Any = config.get("configurable", {})
        known = {"thread_id": configurable["thread_id"]} if configurable.get("thread_id") else {}
        config = {**config, "metadata": known | config.get("metadata", {})}
        async with AsyncExitStack() as stack:
            call = _Execution(self, code, tool_call_id, config)
            if not self.stateless and config.get("metadata", {}).get("thread_id"):
                await stack.enter_async_context(call.turn())
                execute = call.in_session
            else:
                execute = call.by_itself
            record = await record_tool_call(
                tool_call_id=tool_call_id,
                name=self.name,
                arguments={"code": code},
                config=config,
                execute=execute,
                repeatable=True,
            )
        message = as_message(record)  # a text could not carry the status "error" of a failed call
        return message, message.artifact

    def _run(
        self, code: str, tool_call_id: str, config: RunnableConfig
    ) -> tuple[ToolMessage, dict[str, Any]]:
        return run_sync(self._arun(code, tool_call_id, config))


class _Execution:
    """One call of a Python tool, with its session."""

    def __init__(
        self, tool: PythonTool, code: str, tool_call_id: str, config: RunnableConfig
    ) -> None:
        self._tool = tool
        self._code = code
        self._id = tool_call_id
        self._config = config
        self._recording, self._identity = (
            active_recording(),
            graph_identity(config.get("metadata"), tool_call_id),
        )
        self._sessions = sessions_of(self._recording)

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Hold the session for this call inside the block."""
        identity = self._identity
        replaying = self._recording.replaying
        return self._sessions.turns.turn(
            (identity.thread_id, identity.scope),
            (identity.checkpoint_id, str(identity.attempt)),
            self._id,
            () if replaying else calls_before(self._id, self._tool.name, self._config),
        )

    async def in_session(self) -> ToolOutcome:
        place = await self._sessions.place(self._recording, self._identity, self._record_id)
        if not self._tool.variables:
            return _outcome(await self._run(place.name, place.history))
        begin = variables_cell(self._tool.variables)
        if place.history is not None:
            first = not place.history
            history = (begin, *place.history)
        else:  # the environment keeps the session's cells, including this one
            first = place.name not in self._sessions.begun
            history = None
            if first:
                await self._submit(
                    Submission(begin.code, session=place.name, run=self._recording.run_id)
                )
                self._sessions.begun.add(place.name)
        return _outcome(without_variables(await self._run(place.name, history), first=first))

    async def by_itself(self) -> ToolOutcome:
        return _outcome(await self._run())

    async def _run(
        self, session: str | None = None, history: tuple[Cell, ...] | None = None
    ) -> ExecutionResult:
        """Run the code. The submission has an id made from LangGraph's unique ids. By it, a service
        that outlived this process recognises the call and repeats its first answer.
        """
        asked = Submission(
            self._code,
            session=session,
            history=history,
            limits=self._tool.limits,
            id=self._record_id if self._identity.checkpoint_ns else None,
            run=self._recording.run_id,
        )
        return await self._submit(asked)

    async def _submit(self, asked: Submission) -> ExecutionResult:
        return await (await ready_environment()).run(asked)

    @property
    def _record_id(self) -> str:
        return tool_record_id(self._identity.thread_id, self._identity.task_id, self._id)


def tool_content(result: ExecutionResult) -> str:
    """Text of `result` for the model."""
    shown = result.stdout
    if result.status is ToolStatus.OK:
        if result.value is not None:
            shown += ("\n" if shown and not shown.endswith("\n") else "") + result.value
        return _shorten(shown.strip("\n"), MAX_CONTENT) or NO_OUTPUT
    failure = _FAILURES.get(result.status)
    if not failure:  # show the end of the traceback, without lines that only underline
        lines = [line for line in result.stderr.splitlines() if line.strip(" ~^")]
        last = "\n".join(lines[-TRACEBACK_LINES:]).lstrip()
        failure = _shorten(last, MAX_CONTENT // 2) or "Error: the code failed without a message"
    return _shorten(shown, MAX_CONTENT - len(failure)) + failure


def _outcome(result: ExecutionResult) -> ToolOutcome:
    *before, last = map(str, result.changed_cells or [0])
    calls = f"calls {', '.join(before)} and {last}" if before else f"call {last}"
    notes = {SessionState.LOST: LOST, SessionState.DIFFERS: DIFFERS.format(calls)}
    note = notes.get(result.session) if result.session else None
    shown = tool_content(result)
    return ToolOutcome(result.status, f"{note}\n{shown}" if note else shown, execution=result)


def _shorten(text: str, limit: int) -> str:
    """Text of at most about `limit` characters, with the middle cut out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


python = PythonTool()
python_stateless = PythonTool(
    name="python_stateless",
    description=(
        "Run Python code in a fresh interpreter; returns what it prints and its last expression's"
        " value."
    ),
    stateless=True,
)
