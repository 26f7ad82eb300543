"""The Python tools: model-written code, run in the active environment, its calls recorded.

`python` is a session: what an agent's calls define lives on between them
(`hrm_agent.tools.sessions`). So it is for whatever has a thread, in a graph or by
`{"configurable": {"thread_id": ...}}`. Without one there is nothing that two calls could belong to,
and each is run as by `python_stateless`, in a fresh interpreter.

Each is one LangChain tool for both ways of calling it: `run_tool_calls` in our own loop, and
LangGraph's prebuilt ToolNode in a user's graph that knows nothing of records. What the model reads
is kept short and regular, because a small policy has to learn from it: the output as a notebook
shows it, or the end of the traceback, whose last line names the error.

No annotation here is a string: LangChain resolves those of `_arun` three times a call, and compiles
what is text.
"""

from collections.abc import Sequence
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
from hrm_agent.tools.sessions import scope_of, sessions_of
from hrm_agent.trajectory import SessionState, ToolStatus, active_recording, tool_record_id
from hrm_agent.trajectory.identity import graph_identity

__all__ = ["PythonTool", "python", "python_stateless", "tool_content"]

MAX_CONTENT = 4000
"""Characters that the model is shown of one call."""
TRACEBACK_LINES = 3
"""The failing line's place, the line itself, and the error."""
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
    """What the model gives, and the call's id, which LangChain fills in."""

    code: str = Field(description="Python source; print the result or end with an expression.")
    """Python source."""
    tool_call_id: Annotated[str, InjectedToolCallId]
    """The id by which the model's message names this call."""


class PythonTool(BaseTool):
    """Runs Python code. Its message's artifact is
    `{"status": ..., "record": id of the ToolCall}`.
    """

    records_itself: ClassVar[bool] = True
    """The recording of other LangChain tools leaves it alone."""

    name: str = "python"
    """Name under which the model calls it."""
    description: str = (
        "Run Python code in a session whose variables live on between calls; "
        "returns what it prints and its last expression's value."
    )
    """What the model is told of it."""
    args_schema: Any = PythonArguments
    """What its arguments have to be."""
    response_format: Any = "content_and_artifact"
    """It returns the text for the model, and the message's artifact."""
    stateless: bool = False
    """Each call is given a fresh interpreter."""
    limits: Limits = Limits()
    """What each call may use; a session's memory limit is that of its first call."""
    variables: dict[str, Any] = Field(default_factory=dict[str, Any])
    """JSON values by name, which each of its sessions begins with."""

    async def _arun(
        self, code: str, tool_call_id: str, config: RunnableConfig
    ) -> tuple[ToolMessage, dict[str, Any]]:
        config = _with_thread(config)
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
        message = as_message(record)  # as a message, because a failed call's carries status="error"
        return message, message.artifact

    def _run(
        self, code: str, tool_call_id: str, config: RunnableConfig
    ) -> tuple[ToolMessage, dict[str, Any]]:
        return run_sync(self._arun(code, tool_call_id, config))


class _Execution:
    """One call, and where it belongs."""

    def __init__(
        self, tool: PythonTool, code: str, tool_call_id: str, config: RunnableConfig
    ) -> None:
        self._tool, self._code, self._id, self._config = tool, code, tool_call_id, config
        self._recording, self._identity = (
            active_recording(),
            graph_identity(config.get("metadata"), tool_call_id),
        )
        self._sessions = sessions_of(self._recording)

    def turn(self) -> AbstractAsyncContextManager[None]:
        """The session is this call's inside the block."""
        identity = self._identity
        replaying = self._recording.replaying
        return self._sessions.turns.turn(
            (identity.thread_id, scope_of(identity)),
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
            first, history = not place.history, (begin, *place.history)
        else:  # the environment keeps the session's cells, this one among them
            first, history = place.name not in self._sessions.begun, None
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
        """Its id lets a service that outlived this process give the first answer again: LangGraph's
        ids are unique.
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


def _with_thread(config: RunnableConfig) -> RunnableConfig:
    """Outside of graphs nobody copies the thread's id to where a graph's tasks find it."""
    configurable: Any = config.get("configurable", {})
    known = {"thread_id": configurable["thread_id"]} if configurable.get("thread_id") else {}
    return {**config, "metadata": known | config.get("metadata", {})}


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
    notes = {
        SessionState.LOST: LOST,
        SessionState.DIFFERS: DIFFERS.format(_listed(result.changed_cells)),
    }
    note, shown = notes.get(result.session) if result.session else None, tool_content(result)
    return ToolOutcome(result.status, f"{note}\n{shown}" if note else shown, execution=result)


def _listed(numbers: Sequence[int]) -> str:
    """`call 2`, `calls 1, 3 and 4`"""
    *before, last = map(str, numbers or [0])
    return f"calls {', '.join(before)} and {last}" if before else f"call {last}"


def _shorten(text: str, limit: int) -> str:
    """At most about `limit` characters, the middle cut out."""
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
