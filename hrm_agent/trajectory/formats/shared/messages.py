"""Messages that a call was sent, found on record and proved by their hash.

Each call has the messages and the tools that it was sent (`Call.request`, `Call.tools`). In records
of earlier versions, calls of token models have neither, and other calls have no tools. But each
call keeps the hash of its whole conversation (`Call.context_hash`) and of the tools offered
(`Call.tools_hash`). So messages and tools may be taken from any source. If their hash equals the
recorded one, they are what the model saw, up to white space around a message and the ids of tool
calls.

Candidates are taken in this order:

1. `Call.request`: the messages themselves, or, for a call that extends another, the messages after
that other call;
2. the `messages` channel of the checkpoint that the call's step started from, if the store is
   available;
3. the record: the task as the user's turn, then each earlier answer of the conversation with its
   tools' results.

For 2 and 3, the messages are tried without a system turn and with each known system turn. Messages
that cannot be proved are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import TypeAdapter, ValidationError

from hrm_agent.trajectory.conversation_digest import context_hash
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.schema import Call, ToolCall, Trajectory

__all__ = [
    "NO_MESSAGES",
    "NO_TOOLS",
    "ConversationOfCall",
    "RequestHints",
    "answer_of",
    "context_hash",
    "conversation_of",
    "messages_of",
    "tools_of",
]

NO_TOOLS = "the tools that were offered are not known"
NO_MESSAGES = "the messages that were sent are not on record"

Messages = tuple[BaseMessage, ...]
_ANY: TypeAdapter[Any] = TypeAdapter(AnyMessage)


@dataclass(frozen=True, slots=True)
class RequestHints:
    """Candidate system prompts and tools, with which an export reconstructs requests."""

    systems: tuple[str, ...] = ()
    """System turns that a graph's nodes may have put before its messages."""
    tools: tuple[tuple[dict[str, Any], ...], ...] = ()
    """Lists of tools that may have been offered, as given to the model. An empty list is always
    tried.
    """
    state: Callable[[Call], Sequence[BaseMessage]] | None = None
    """Function that returns the `messages` of the state that a call's step started from; empty if
    there are none.
    """


@dataclass(frozen=True, slots=True)
class ConversationOfCall:
    """Messages that one call saw, with its answer as the last one."""

    messages: Messages
    """Messages from the system turn to the answer."""
    tools: tuple[dict[str, Any], ...]
    """Tools as given to the model: in OpenAI's form, except for models of other providers."""


def conversation_of(
    call: Call, trajectory: Trajectory, known: RequestHints
) -> ConversationOfCall | str:
    """Proved conversation of a call, or the missing part in words."""
    if (tools := tools_of(call, known)) is None:
        return NO_TOOLS
    messages = messages_of(call, trajectory, known)
    return NO_MESSAGES if messages is None else ConversationOfCall(messages, tools)


def tools_of(call: Call, known: RequestHints) -> tuple[dict[str, Any], ...] | None:
    """Tools that a call was offered (None if unknown)."""
    if call.tools is not None or not call.tools_hash:
        return call.tools or ()
    return next(
        (offer for offer in ((), *known.tools) if content_hash(offer) == call.tools_hash), None
    )


def messages_of(call: Call, trajectory: Trajectory, known: RequestHints) -> Messages | None:
    """Messages that a call was sent, and its answer (None if they cannot be proved)."""
    answer = answer_of(call)
    for sent in _candidates(call, trajectory, known) if call.context_hash else ():
        messages = (*sent, answer)
        if context_hash(messages) == call.context_hash:
            return messages
    return None


def answer_of(call: Call) -> AIMessage:
    """Stored answer as a message."""
    return AIMessage.model_validate(call.response)


def _candidates(call: Call, trajectory: Trajectory, known: RequestHints) -> Iterator[Messages]:
    by_id = {other.id: other for other in trajectory.calls}
    if call.request is not None:
        yield from _requested(call, by_id)
    if known.state is not None and (state := tuple(known.state(call))):
        yield from _with_systems(state, known.systems)
    yield from _with_systems(_remembered(call, trajectory, by_id), known.systems)


def _requested(call: Call, by_id: dict[str, Call]) -> Iterator[Messages]:
    """Candidates from the request. It is taken as all messages that were sent, then as the messages
    after the call that this call extends.
    """
    try:
        added: Messages = tuple(_ANY.validate_python(message) for message in call.request or ())
    except ValidationError:
        return
    yield added
    parent = by_id.get(call.parent or "")
    if parent is not None and parent.request is not None:
        yield from ((*before, answer_of(parent), *added) for before in _requested(parent, by_id))


def _with_systems(messages: Messages, systems: Iterable[str]) -> Iterator[Messages]:
    yield messages
    yield from ((SystemMessage(system), *messages) for system in systems)


def _remembered(call: Call, trajectory: Trajectory, by_id: dict[str, Call]) -> Messages:
    """Task, followed by each earlier answer with its tools' results."""
    earlier: list[Call] = []
    step = by_id.get(call.parent or call.branch_of or "")
    while step is not None and len(earlier) < len(by_id):
        earlier.append(step)
        step = by_id.get(step.parent or step.branch_of or "")
    messages: list[BaseMessage] = [HumanMessage(trajectory.task.prompt)]
    for one in reversed(earlier):
        answer = answer_of(one)
        messages += [answer, *_results(answer, trajectory.tool_calls)]
    return tuple(messages)


def _results(answer: AIMessage, tool_calls: Sequence[ToolCall]) -> Iterator[ToolMessage]:
    """Results of an answer's calls, in the order of the calls, decoded ones first."""
    asked = [call.get("id") for call in (*answer.tool_calls, *answer.invalid_tool_calls)]
    by_id = {record.tool_call_id: record for record in tool_calls}
    yield from (_result(by_id[id_]) for id_ in asked if id_ in by_id)


def _result(record: ToolCall) -> ToolMessage:
    # packed by `hrm_agent.tools.output_codec`
    message = (record.output or {}).get("message")
    if message is not None:
        return ToolMessage.model_validate(message)
    return ToolMessage(record.content, name=record.name, tool_call_id=record.tool_call_id)
