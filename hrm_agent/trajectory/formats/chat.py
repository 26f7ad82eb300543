"""Conversations to fine-tune on: `{"messages": [...], "tools": [...]}`, as chat templates, trl and `train sft` read it.

One row for each path of the message forest that ends in an answer of the run's own, and in no longer conversation. Only
completed runs are taken, and of an answer whose conversation cannot be proved to be what the model saw (see
`messages`) there is no row. Calls stand in OpenAI's form with their arguments as an object, which is how templates
write them; an answer with a call that could not be decoded has no such form, so that its conversation is left out.

Each answer is learned once: where conversations fork, where the template broke one in two, or where a run was forked
off another, an answer that another row teaches carries `"weight": 0`, and so does one that no recorded call gave. It is
context. `hrm-agent train sft` heeds the weight; a trainer that does not will count these answers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.trajectory.formats.messages import ConversationOfCall, RequestHints, context_hash, conversation_of
from hrm_agent.trajectory.formats.rows import Row, RowMaker, Skipped
from hrm_agent.trajectory.schema import RunStatus, Trajectory

__all__ = ["chat_message", "chat_rows"]


def chat_rows(known: RequestHints, *, least_reward: float | None = None) -> RowMaker:
    """The conversations of completed runs; of those with at least this reward, if one is given."""

    def rows(trajectory: Trajectory) -> Iterator[Row | Skipped]:
        if trajectory.status is not RunStatus.COMPLETED:
            yield Skipped(f"the run is {trajectory.status.value}, not completed")
        elif least_reward is not None and trajectory.rewards.get("correct", float("-inf")) < least_reward:
            yield Skipped(f"the reward is below {least_reward:g}")
        else:
            yield from _rows(trajectory, known)

    return rows


def _rows(trajectory: Trajectory, known: RequestHints) -> Iterator[Row | Skipped]:
    extended = {call.parent for call in trajectory.calls}
    found = [conversation_of(c, trajectory, known) for c in trajectory.own_calls if c.id not in extended]
    yield from (Skipped(reason) for reason in found if isinstance(reason, str))
    conversations = [one for one in found if isinstance(one, ConversationOfCall)]
    learned = set[str]()
    given = {call.context_hash for call in trajectory.own_calls}
    for one in sorted(conversations, key=lambda one: len(one.messages), reverse=True):
        if any(isinstance(message, AIMessage) and message.invalid_tool_calls for message in one.messages):
            yield Skipped("a call in it could not be decoded")
            continue
        row = _row(one, given - learned)
        learned |= {context_hash(one.messages[: i + 1]) for i in _answers(one.messages)}
        if any(message["role"] == "assistant" and "weight" not in message for message in row["messages"]):
            yield row


def _row(conversation: ConversationOfCall, fresh: set[str]) -> Row:
    messages = [chat_message(message) for message in conversation.messages]
    for i in _answers(conversation.messages):
        if context_hash(conversation.messages[: i + 1]) not in fresh:
            messages[i]["weight"] = 0
    return {
        "messages": messages,
        **({"tools": [convert_to_openai_tool(tool) for tool in conversation.tools]} if conversation.tools else {}),
    }


def _answers(messages: Sequence[BaseMessage]) -> list[int]:
    return [i for i, message in enumerate(messages) if isinstance(message, AIMessage)]


def chat_message(message: BaseMessage) -> dict[str, Any]:
    """A message by its role, in OpenAI's form with the arguments of calls as an object."""
    match message:
        case SystemMessage():
            return {"role": "system", "content": _content(message)}
        case HumanMessage():
            return {"role": "user", "content": _content(message)}
        case ToolMessage():
            named = {"name": message.name} if message.name else {}
            return {"role": "tool", "content": _content(message), "tool_call_id": message.tool_call_id, **named}
        case AIMessage():
            asked = [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["args"]}}
                for call in message.tool_calls
            ]
            return {"role": "assistant", "content": message.text, **({"tool_calls": asked} if asked else {})}
        case _:
            return {"role": getattr(message, "role", message.type), "content": _content(message)}


def _content(message: BaseMessage) -> Any:
    """Text where it is text only; else the parts as they are, images included."""
    content: Any = message.content
    if isinstance(content, str):
        return content
    parts: list[Any] = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    return message.text if all(part.get("type") == "text" for part in parts) else parts
