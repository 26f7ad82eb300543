"""Tool calls of models that cannot call tools: the Python in their fenced blocks is the call.

A block becomes a call of the tool. The call's id is made from the id of the model's call and the
block's position, so resumed runs and replays find its record. It has a typed outcome and a record
like any other call. The message itself is recorded as the model wrote it: as text, whose tokens are
trained like any others.

The results go back as one plain user message, which every chat template supports. Each result is in
a fence that is longer than any fence in the result. Tags with a meaning in a model's answer are
escaped in it, as in `&lt;answer>`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from hrm_agent.answers.fenced_code import block_ids, python_blocks
from hrm_agent.answers.final_answer import HIDDEN_TAGS
from hrm_agent.models import invalid_tool_calls
from hrm_agent.models.call_recording import STARTED_AT, recorded_call_id
from hrm_agent.tools.run import run_tool_calls

__all__ = ["RESULTS", "fenced_calls", "run_fenced_blocks"]

RESULTS = "-results"
"""Suffix of the id of a message with results. Before the suffix is the id of the message with the
blocks.
"""
NO_CALLS = "tools cannot be called in this conversation; write the code in a block ```python"
_TAG = re.compile(rf"<(?=/?(?:answer|{'|'.join(HIDDEN_TAGS)})\s*>)", re.IGNORECASE)
_FENCES = re.compile(r"`{3,}")


def fenced_calls(message: AIMessage, tool: str) -> list[AIMessage]:
    """Calls of `tool` by the blocks of a message, in order, each as a message with one call.

    A block that cannot be run becomes an invalid call. So does a native tool call: a chat template
    without tools has no place for its result.
    """
    native = [
        *(
            {"id": call["id"], "name": call["name"], "args": json.dumps(call["args"])}
            for call in message.tool_calls
        ),
        *(
            {"id": call["id"], "name": call["name"], "args": call["args"]}
            for call in invalid_tool_calls(message)
        ),
    ]
    blocks = python_blocks(message.text)
    ids = block_ids(recorded_call_id(message) or message.id or "")[: len(blocks)]
    calls = [_invalid(call["id"], call["name"], call["args"], NO_CALLS) for call in native]
    for id_, block in zip(ids, blocks, strict=True):
        if block.problem:
            calls.append(_invalid(id_, tool, block.code, block.problem))
        else:
            call: Any = {"type": "tool_call", "id": id_, "name": tool, "args": {"code": block.code}}
            calls.append(AIMessage("", tool_calls=[call]))
    return calls


async def run_fenced_blocks(
    message: AIMessage, tool: BaseTool, config: RunnableConfig
) -> HumanMessage:
    """Run the blocks of `message` in order, up to the first that fails. The blocks after it are not
    run, since the model wrote them for the case that it succeeds.

    The length of the text for the model is limited by the tool's own limit and the number of
    blocks. The message's metadata has the start and end time of the tool's work.
    """
    calls = fenced_calls(message, tool.name)
    results = list[ToolMessage]()
    for call in calls:
        results += await run_tool_calls(call, [tool], config)
        if results[-1].status == "error":
            break
    lines = list[str]()
    for number, result in enumerate(results, start=1):
        longest = max((len(found[0]) for found in _FENCES.finditer(result.text)), default=2)
        fence = "`" * (longest + 1)
        quoted = f"{fence}output\n{_TAG.sub('&lt;', result.text)}\n{fence}"
        lines.append(f"Result {number} ({result.artifact['status']}):\n{quoted}")
    if len(results) < len(calls):
        lines.append("What came after it was not run.")
    timed = [each.response_metadata for each in results if STARTED_AT in each.response_metadata]
    times = {**timed[-1], STARTED_AT: timed[0][STARTED_AT]} if timed else {}
    return HumanMessage("\n".join(lines), id=f"{message.id}{RESULTS}", response_metadata=times)


def _invalid(id_: str | None, name: str | None, text: str | None, problem: str) -> AIMessage:
    call: Any = {
        "type": "invalid_tool_call",
        "id": id_,
        "name": name,
        "args": text,
        "error": problem,
    }
    return AIMessage("", invalid_tool_calls=[call])
