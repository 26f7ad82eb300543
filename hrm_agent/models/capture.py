"""Recording of what a graph calls on its own: chat models and tools that are not ours.

A user's graph may hold a hosted chat model and tools of its own. LangChain tells a callback handler of each such
call, with LangGraph's identity; this one writes them to the journal, as text, marked as not trainable. It only
watches: a call that is recorded here is made again when a crashed node runs again. For recorded answers, a graph uses
`hrm_agent.models.policy()` and `hrm_agent.tools.run_tool_calls`, which this handler leaves alone.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from hrm_agent.models.turns import Turn, close_text_turn, context_of
from hrm_agent.trajectory import (
    RECORDED,
    Recording,
    Sampling,
    ToolCall,
    ToolStatus,
    content_hash,
    tool_record_id,
)
from hrm_agent.trajectory.identity import graph_identity

__all__ = ["JournalHandler"]


class JournalHandler(BaseCallbackHandler):
    """Writes foreign model and tool calls of one thread to the journal."""

    raise_error = True  # a record that cannot be written must not be lost in silence
    run_inline = True  # so that calls are written in the order in which they end

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._journal = recording.journal
        self._turns: dict[UUID, tuple[Turn, str]] = {}
        self._tool_calls: dict[UUID, ToolCall] = {}

    @property
    def ignore_chain(self) -> bool:
        return True

    @property
    def ignore_retriever(self) -> bool:
        return True

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if (metadata or {}).get(RECORDED):
            return
        identity = graph_identity(metadata, str(run_id))
        tools = (kwargs.get("invocation_params") or {}).get("tools") or ()
        said = {
            "temperature": (metadata or {}).get("ls_temperature"),
            "max_tokens": (metadata or {}).get("ls_max_tokens"),
        }
        sampling = Sampling.model_validate({name: value for name, value in said.items() if value is not None})
        request_hash = content_hash(context_of(messages[0]), tools)
        index = self._recording.claim(identity, str(run_id))  # no request has this hash: nothing on record is claimed
        assert isinstance(index, int)
        turn = Turn(identity, index, request_hash, messages[0], tools, sampling)
        self._turns[run_id] = turn, str((metadata or {}).get("ls_model_name") or serialized.get("name") or "unknown")

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        turn, model = self._turns.pop(run_id, (None, ""))
        generation = response.generations[0][0]
        if turn is not None and isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
            call, _ = close_text_turn(turn, model, generation.message)
            self._recording.write_call(call)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        turn, _ = self._turns.pop(run_id, (None, ""))
        if turn is not None:
            self._recording.release(turn.identity, turn.call_index)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        if (metadata or {}).get(RECORDED):
            return
        identity = graph_identity(metadata, str(run_id))
        name, arguments = str(serialized.get("name") or "tool"), inputs if inputs is not None else input_str
        asked = tool_call_id or str(run_id)
        started = ToolCall(
            id=tool_record_id(identity.thread_id, identity.task_id, asked),
            identity=identity,
            tool_call_id=asked,
            name=name,
            arguments=arguments,
            started_at=time.time(),
            repeated_of=self._journal.find_repeat(identity.thread_id, name, arguments),
        )
        self._tool_calls[run_id] = started
        self._journal.write_tool_call(started)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        failed = isinstance(output, ToolMessage) and output.status == "error"
        content = output.text if isinstance(output, ToolMessage) else str(output)
        self._finish_tool(run_id, ToolStatus.ERROR if failed else ToolStatus.OK, content)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._finish_tool(run_id, ToolStatus.ERROR, f"{type(error).__name__}: {error}")

    def _finish_tool(self, run_id: UUID, status: ToolStatus, content: str) -> None:
        started = self._tool_calls.pop(run_id, None)
        if started is not None:
            duration = max(0.0, time.time() - started.started_at)
            finished = {"status": status, "content": content, "duration_seconds": duration}
            self._journal.write_tool_call(started.model_copy(update=finished))
