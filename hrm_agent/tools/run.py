"""Running of all tool calls of a message in parallel, each with a recorded and typed outcome.

A call that cannot be run also gets an outcome: text that is not a call, a call of an unknown tool,
or a call with invalid arguments. The policy is shown the reason, and the record has the status
`invalid_call`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.config import get_stream_writer
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel, ValidationError

from hrm_agent.errors import GraphError, HrmError
from hrm_agent.models.chat import invalid_tool_calls
from hrm_agent.tools.external_tools import recorded_by_caller
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.tools.graph_effects import GraphEffects
from hrm_agent.tools.idempotency import key_of
from hrm_agent.tools.output_codec import OutputCodec
from hrm_agent.tools.record_call import ToolOutcome, as_message, record_tool_call
from hrm_agent.trajectory import ToolStatus, active_recording
from hrm_agent.trajectory.identity import graph_identity

__all__ = ["run_tool_calls"]


async def run_tool_calls(
    message: AIMessage, tools: Sequence[BaseTool], config: RunnableConfig
) -> list[ToolMessage]:
    """Run the calls of `message`. Returns one message per call: first for the decoded calls in
    order, then for calls that could not be decoded.

    If a call raises (a tool's interrupt, or an `HrmError`), the exception is raised after all calls
    have ended. So all other calls are on record, and do not run twice when the node runs again.
    """
    by_name = {tool.name: tool for tool in tools}
    _tell(message)
    answers = [
        _answer(call, index, by_name, config) for index, call in enumerate(message.tool_calls)
    ]
    for index, call in enumerate(invalid_tool_calls(message), start=len(answers)):
        call_id = call.get("id") or f"call_{index}"
        name = call.get("name") or "unknown"
        content = f"Invalid tool call: {call.get('error') or 'it could not be decoded'}"
        answers.append(_refuse(call_id, name, call.get("args") or "", content, config))
    results = await asyncio.gather(*answers, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, ToolMessage)]


def _tell(message: AIMessage) -> None:
    """Stream the calls that are about to run as `custom` events. A user then sees them at once,
    while the answers only arrive all together.
    """
    try:
        write = get_stream_writer()
    except (RuntimeError, KeyError):  # not in a graph
        return
    for call in message.tool_calls:
        write({"event": "tool", "name": call["name"], "id": call["id"], "args": call["args"]})


async def _answer(
    call: ToolCall, index: int, tools: dict[str, BaseTool], config: RunnableConfig
) -> ToolMessage:
    call = {**call, "id": call["id"] or f"call_{index}", "type": "tool_call"}
    call_id = str(call["id"])
    name = call["name"]
    arguments = call["args"]
    tool = tools.get(name)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return await _refuse(
            call_id, name, arguments, f"Unknown tool {name!r}. Known tools: {known}.", config
        )
    if problem := _schema_problem(tool, arguments):
        return await _refuse(
            call_id, name, arguments, f"Invalid arguments for {name}: {problem}", config
        )
    if getattr(tool, "records_itself", False):
        return await _invoke(tool, call, config)
    record = await record_tool_call(
        tool_call_id=call_id,
        name=name,
        arguments=arguments,
        config=config,
        execute=_external_tool(tool, call, config),
        key=key_of(tool, arguments),
    )
    return as_message(record)


async def _refuse(
    call_id: str, name: str, arguments: dict[str, Any] | str, content: str, config: RunnableConfig
) -> ToolMessage:
    async def execute() -> ToolOutcome:
        return ToolOutcome(ToolStatus.INVALID_CALL, content, duration_seconds=0.0)

    return as_message(
        await record_tool_call(
            tool_call_id=call_id, name=name, arguments=arguments, config=config, execute=execute
        )
    )


def _schema_problem(tool: BaseTool, arguments: dict[str, Any]) -> str:
    """Errors in the arguments, in one line (empty if they are valid). Arguments of a tool with a
    plain JSON schema are not checked here, but by the tool.
    """
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return ""
    try:
        schema.model_validate(arguments)
    except ValidationError as error:
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    return ""


def _external_tool(
    tool: BaseTool, call: ToolCall, config: RunnableConfig
) -> Callable[..., Awaitable[ToolOutcome]]:
    """Function that runs a tool that does not record itself. The tool's exceptions become its
    outcome.
    """

    async def execute(drawn: Sequence[int] = ()) -> ToolOutcome:
        recording = active_recording()
        identity = graph_identity(config.get("metadata"), str(call["id"]))
        codec = OutputCodec(recording.journal, tool)
        effects = GraphEffects(recording, identity, config, codec, drawn)
        try:
            with recorded_by_caller(str(call["id"])):
                message = await _invoke(tool, call, effects.config)
        except (GraphBubbleUp, HrmError):
            raise
        except ToolFailure as failure:
            return ToolOutcome(failure.status, str(failure), graph_effects=effects.record())
        except Exception as error:
            return ToolOutcome(
                ToolStatus.ERROR, f"{type(error).__name__}: {error}", graph_effects=effects.record()
            )
        status = ToolStatus.ERROR if message.status == "error" else ToolStatus.OK
        output = codec.pack(message) if message.artifact is not None else None
        return ToolOutcome(status, message.text, output=output, graph_effects=effects.record())

    return execute


async def _invoke(tool: BaseTool, call: ToolCall, config: RunnableConfig) -> ToolMessage:
    message = await tool.ainvoke(call, config)
    if not isinstance(message, ToolMessage):
        raise GraphError(
            f"The tool {tool.name!r} returned {type(message).__name__}, which run_tool_calls cannot"
            " pass to the graph.",
            "Run the tool in langgraph.prebuilt.ToolNode.",
        )
    return message
