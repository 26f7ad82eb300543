"""Recording of tools that do not know of it: each call runs once, and is then answered from its
record.

A plain LangChain tool is run by LangGraph's prebuilt ToolNode or by a node itself. Inside a
recording, the call is written before it runs, and again with its whole output when it has ended. A
node that runs again after a crash gets this output, and the call's effects on the graph are
repeated (`hrm_agent.tools.graph_effects`). A call is run again if it raised, or if its output
cannot be stored (`hrm_agent.tools.output_codec`). A typed failure (`hrm_agent.tools.failures`) is
an output, which the model is shown.

`BaseTool.run` and `arun` are wrapped once per process. The wrappers do nothing outside of a
recording, for tools that record themselves, and for calls that `run_tool_calls` records. Tools that
are not LangChain tools are not recorded.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any
from uuid import uuid4

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp

from hrm_agent.basics.unicode import text_of
from hrm_agent.errors import HrmError
from hrm_agent.models.call_recording import plain
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.tools.graph_effects import GraphEffects, repeat_effects
from hrm_agent.tools.idempotency import key_of, under_way
from hrm_agent.tools.output_codec import OutputCodec, is_answer, pack_error, raised, why_lost
from hrm_agent.tools.record_call import (
    SECONDS_BETWEEN_LOOKS,
    ToolOutcome,
    acquire,
    begin_tool_call,
    finish_tool_call,
    holding,
    new_tool_call,
)
from hrm_agent.trajectory import Recording, ToolCall, ToolStatus, content_hash, open_recording
from hrm_agent.trajectory.draws import while_answered
from hrm_agent.trajectory.identity import graph_identity, in_graph

__all__ = ["record_external_tools", "recorded_by_caller"]

_by_caller: ContextVar[str | None] = ContextVar("hrm_agent_recorded_tool_call", default=None)


@functools.cache
def record_external_tools() -> None:
    """Record, from now on, the calls of tools inside a recording. Further calls of this function
    change nothing.
    """
    tool: Any = BaseTool
    inner_run = tool.run
    inner_arun = tool.arun

    @functools.wraps(inner_run)
    def run(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        config = ensure_config(options.get("config"))
        recording, call = _call(self, tool_input, options, config)
        if recording is None or call is None:
            return inner_run(self, tool_input, *args, **options)
        while not acquire(recording, call):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        with holding(recording, call):
            run = _ExternalRun(recording, call, self, options.get("tool_call_id"), config)
            if not run.answered:
                given, options["config"] = run.effects.arguments(tool_input), run.effects.config
                with run, under_way(call), while_answered(call.identity.checkpoint_ns):
                    run.output = inner_run(self, given, *args, **options)
            return run.output

    @functools.wraps(inner_arun)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        config = ensure_config(options.get("config"))
        recording, call = _call(self, tool_input, options, config)
        if recording is None or call is None:
            return await inner_arun(self, tool_input, *args, **options)
        while not acquire(recording, call):  # noqa: ASYNC110  # the key's holder may run on another loop
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        with holding(recording, call):
            run = _ExternalRun(recording, call, self, options.get("tool_call_id"), config)
            if not run.answered:
                given, options["config"] = run.effects.arguments(tool_input), run.effects.config
                with run, under_way(call), while_answered(call.identity.checkpoint_ns):
                    run.output = await inner_arun(self, given, *args, **options)
            return run.output

    tool.run = run
    tool.arun = arun


@contextmanager
def recorded_by_caller(tool_call_id: str) -> Generator[None]:
    """Do not record the call with this id inside the block, since the caller records it. Further
    calls that the tool makes are recorded.
    """
    token = _by_caller.set(tool_call_id)
    try:
        yield
    finally:
        _by_caller.reset(token)


def _call(
    tool: BaseTool, given: Any, options: dict[str, Any], config: RunnableConfig
) -> tuple[Recording | None, ToolCall | None]:
    """Pair (recording, call) for a call to be recorded by the wrapper. Both are None if the call is
    recorded elsewhere, or not at all.
    """
    recording = open_recording()
    metadata = config.get("metadata")
    tool_call_id = options.get("tool_call_id")
    by_caller = tool_call_id is not None and tool_call_id == _by_caller.get()
    if (
        recording is None
        or by_caller
        or getattr(tool, "records_itself", False)
        or not in_graph(metadata)
    ):
        return None, None
    identity = graph_identity(metadata, str(uuid4()))
    shown: Any = tool._filter_injected_args(given) if isinstance(given, dict) else given  # pyright: ignore[reportPrivateUsage]
    arguments: dict[str, Any] | str = plain(shown)
    if tool_call_id is None:
        what = content_hash(tool.name, arguments)[:16]
        tool_call_id = f"{what}-{recording.ordinal(identity, what)}"
    return recording, new_tool_call(
        identity, tool_call_id, tool.name, arguments, key_of(tool, arguments)
    )


class _ExternalRun:
    """One call of an external tool. The output comes from the record of an earlier run. If there is
    none, the tool runs, and the record is written when the call ends.

    An error that is not the tool's fault leaves the record unfinished. A typed failure answers a
    model's call, which has an id. If a node called the tool itself, the failure is raised.
    """

    def __init__(
        self,
        recording: Recording,
        call: ToolCall,
        tool: BaseTool,
        answers: str | None,
        config: RunnableConfig,
    ) -> None:
        self._recording = recording
        self._answers = answers
        self._config = config
        self._codec = OutputCodec(recording.journal, tool)
        self._begun = begin_tool_call(recording, call)
        self._drawn: tuple[int, ...] = ()
        self._error: Exception | None = None
        self.answered = self._begun.status is not None and self._given_back(call)
        self.effects = GraphEffects(recording, call.identity, config, self._codec, self._drawn)
        self._clock = time.perf_counter()

    def _given_back(self, call: ToolCall) -> bool:
        """True if the output is on record and the call's effects on the graph were repeated.

        A replay raises a recorded error again.
        """
        if lost := self._read(call):
            self._recording.run_again(call, lost)
        else:
            drawn = repeat_effects(self._begun, call, self._recording, self._config, self._codec)
            if drawn is None and self._error is not None:
                raise self._error
            if drawn is None:
                return True
            self._drawn = drawn
        self._begun = self._recording.write_tool_call(call, again=True)
        return False

    def _read(self, call: ToolCall) -> str:
        """Read the recorded output, or in a replay the recorded error. Returns the reason if it
        cannot be read (empty if it can).
        """
        record = self._begun
        output = self._begun.output or {}
        if is_answer(output):
            try:
                self.output = _for_call(self._codec.unpack(output), call)
                return ""
            except Exception as error:  # a type may have been moved since
                output = {"reason": str(error)}
        if self._recording.replaying and "raised" in output:
            self._error = raised(output)
            if isinstance(self._error, ToolFailure) and record.status is not None:
                self._error.status = record.status
            return ""
        # the text alone is given back: another run of the tool would repeat its external effect
        if call.idempotency_key is not None and record.status is ToolStatus.OK:
            self.output = ToolMessage(
                record.content, name=call.name, tool_call_id=call.tool_call_id
            )
            return ""
        return why_lost(output)

    def __enter__(self) -> None:
        self._clock = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            output = self.output
            failed = isinstance(output, ToolMessage) and output.status == "error"
            content = output.text if isinstance(output, ToolMessage) else text_of(output)
            self._end(
                ToolStatus.ERROR if failed else ToolStatus.OK, content, self._codec.pack(output)
            )
        elif isinstance(error, ToolFailure) and self._answers is None:
            self._end(error.status, str(error), pack_error(error))
        elif isinstance(error, ToolFailure):  # the failure becomes a message for the model
            self.output = ToolMessage(
                str(error),
                name=self._begun.name,
                tool_call_id=self._answers,
                status="error",
                artifact={"status": str(error.status), "record": self._begun.id},
            )
            self._end(error.status, str(error), self._codec.pack(self.output))
            return True
        elif isinstance(error, Exception) and not isinstance(error, (GraphBubbleUp, HrmError)):
            self._end(
                ToolStatus.ERROR, f"{type(error).__name__}: {text_of(error)}", pack_error(error)
            )
        return False

    def _end(self, status: ToolStatus, content: str, output: dict[str, Any]) -> None:
        outcome = ToolOutcome(status, content, output=output, graph_effects=self.effects.record())
        stands = finish_tool_call(
            self._recording, self._begun, outcome, time.perf_counter() - self._clock
        )
        if stands.output != output and is_answer(stands.output or {}):  # another run ended it first
            self.output = _for_call(self._codec.unpack(stands.output or {}), self._begun)


def _for_call(output: Any, call: ToolCall) -> Any:
    """Output as the answer to `call`. An output that was found by its idempotency key may have the
    id of another call, which is replaced.
    """
    if isinstance(output, ToolMessage) and output.tool_call_id != call.tool_call_id:
        return output.model_copy(update={"tool_call_id": call.tool_call_id, "id": None})
    return output
