"""Conversations to fine-tune on: `{"messages": [...], "tools": [...]}`, as read by chat templates,
trl and `train sft`.

Calls of every role are included, whichever model answered. There is one row for each path of the
message forest that ends in an own answer of the run and is not part of a longer conversation of the
same role. A call without token ids is a path by itself. Each row also has `role` (the node of the
outermost graph that asked), `model`, the run's `answer` and `reward` (null if it was not verified)
and its `trajectory_id`. Only completed runs are taken. An answer whose conversation cannot be
proved to be what the model saw (see `messages`) gives no row. Calls are in OpenAI's form with their
arguments as an object, as templates write them. An answer with a call that could not be decoded has
no such form, so that its conversation is left out. Everything left out is counted with its reason.
Thoughts of an answer are its `reasoning_content`.

Each answer is learned once, and by the role that gave it. All other answers of a row carry
`"weight": 0` and are context only. They are answers that another row teaches (after a fork of a
conversation or of a run, or after the template broke a conversation in two), answers that no
recorded call of this role gave with these tools, and answers that were cut off at their token
limit, since such an answer would be learned as a complete one. `hrm-agent train sft` respects the
weight; a trainer that ignores it counts these answers again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.trajectory.formats.shared.messages import (
    ConversationOfCall,
    RequestHints,
    context_hash,
    conversation_of,
)
from hrm_agent.trajectory.formats.shared.rows import Row, RowMaker, Skipped
from hrm_agent.trajectory.schema import Call, FinishReason, RunStatus, Trajectory
from hrm_agent.trajectory.words import REASONING, thoughts_of

__all__ = ["chat_message", "chat_rows"]

_Given = tuple[str, str, str]
"""Learnable answer as (role that gave it, hash of its tools, hash of its conversation)."""


def chat_rows(
    known: RequestHints, *, least_reward: float | None = None, roles: Collection[str] = ()
) -> RowMaker:
    """Row maker for the conversations of completed runs. `least_reward`, `roles`: only runs with at
    least this reward, and only conversations of these roles.
    """

    def rows(trajectory: Trajectory) -> Iterator[Row | Skipped]:
        if trajectory.status is not RunStatus.COMPLETED:
            yield Skipped(f"the run is {trajectory.status.value}, not completed")
        elif (
            least_reward is not None
            and trajectory.rewards.get("correct", float("-inf")) < least_reward
        ):
            yield Skipped(f"the reward is below {least_reward:g}")
        elif not trajectory.own_calls:
            yield Skipped("no model was asked")
        else:
            yield from _rows(trajectory, known, roles)

    return rows


def _rows(
    trajectory: Trajectory, known: RequestHints, roles: Collection[str]
) -> Iterator[Row | Skipped]:
    wanted = [call for call in trajectory.own_calls if not roles or call.identity.role in roles]
    others = (
        {call.identity.role for call in trajectory.own_calls} - set(roles) if roles else set[str]()
    )
    yield from (Skipped(f"the role {role!r} was not asked for") for role in sorted(others))
    extended = {(call.parent, call.identity.role) for call in trajectory.calls}
    leaves = [call for call in wanted if (call.id, call.identity.role) not in extended]
    found = [(call, conversation_of(call, trajectory, known)) for call in leaves]
    yield from (Skipped(reason) for _, reason in found if isinstance(reason, str))
    conversations = [(call, one) for call, one in found if isinstance(one, ConversationOfCall)]
    whole = [call for call in wanted if call.finish_reason is not FinishReason.LENGTH]
    yield from [Skipped("the answer was cut off at its limit on tokens")] * (
        len(wanted) - len(whole)
    )
    fresh = {_given(call, call.context_hash) for call in whole}
    for call, one in sorted(conversations, key=lambda each: len(each[1].messages), reverse=True):
        row = _row(trajectory, call, one, fresh)
        if isinstance(row, Skipped):
            yield row
            continue
        fresh -= {_given(call, context_hash(one.messages[: i + 1])) for i in _answers(one.messages)}
        if any(
            message["role"] == "assistant" and "weight" not in message
            for message in row["messages"]
        ):
            yield row


def _given(call: Call, hashed: str) -> _Given:
    return call.identity.role, call.tools_hash, hashed


def _row(
    trajectory: Trajectory, call: Call, one: ConversationOfCall, fresh: set[_Given]
) -> Row | Skipped:
    if any(
        isinstance(message, AIMessage) and message.invalid_tool_calls for message in one.messages
    ):
        return Skipped("a tool call of the conversation could not be decoded")
    try:
        tools = [convert_to_openai_tool(tool) for tool in one.tools]
    except (ValueError, TypeError, KeyError):
        return Skipped("an offered tool is the provider's own and has no form in OpenAI's API")
    messages = [chat_message(message) for message in one.messages]
    for i in _answers(one.messages):
        if _given(call, context_hash(one.messages[: i + 1])) not in fresh:
            messages[i]["weight"] = 0
    return {
        "messages": messages,
        **({"tools": tools} if tools else {}),
        "role": call.identity.role,
        "model": call.answered_by or call.model,
        "answer": trajectory.answer,
        "reward": trajectory.rewards.get("correct"),
        "trajectory_id": trajectory.id,
    }


def _answers(messages: Sequence[BaseMessage]) -> list[int]:
    return [i for i, message in enumerate(messages) if isinstance(message, AIMessage)]


def chat_message(message: BaseMessage) -> dict[str, Any]:
    """Message by its role, in OpenAI's form with the arguments of calls as an object."""
    match message:
        case SystemMessage():
            return {"role": "system", "content": _content(message)}
        case HumanMessage():
            return {"role": "user", "content": _content(message)}
        case ToolMessage():
            named = {"name": message.name} if message.name else {}
            return {
                "role": "tool",
                "content": _content(message),
                "tool_call_id": message.tool_call_id,
                **named,
            }
        case AIMessage():
            asked = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["args"]},
                }
                for call in message.tool_calls
            ]
            thoughts = thoughts_of(vars(message))
            return {
                "role": "assistant",
                "content": message.text,
                **({REASONING: thoughts} if thoughts else {}),
                **({"tool_calls": asked} if asked else {}),
            }
        case _:
            return {"role": getattr(message, "role", message.type), "content": _content(message)}


def _content(message: BaseMessage) -> Any:
    """Text if there is only text, else the parts unchanged, images included."""
    content: Any = message.content
    if isinstance(content, str):
        return content
    parts: list[Any] = [
        {"type": "text", "text": part} if isinstance(part, str) else part for part in content
    ]
    return message.text if all(part.get("type") == "text" for part in parts) else parts
