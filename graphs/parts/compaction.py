"""Compaction of a conversation: when it has become long, the model summarises it, and goes on from
the summary.

The state keeps all messages. The request for the summary and the summary are two of them, so that
budgets, the record and a reader of the conversation see the same as without compaction. Only what
the model is sent gets shorter (`compacted`): the task with the summary, the last exchange before
the summary, and what came after it. A training sees one rollout of two sequences, before and after
the break, with one advantage. Each token is trained once.

    is_due(messages, limit)            whether a summary is to be asked for
    summary_request(messages)          the message that asks for it
    compacted(messages, own)           what the model is sent; with_request(..., request) to ask
    as_summary(answer)                 what goes into the state, after the request
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from hrm_agent.graphs.parts.prompts import SUMMARY_NOTE, SUMMARY_PROMPT

__all__ = ["SUMMARY", "as_summary", "compacted", "is_due", "summary_request", "with_request"]

SUMMARY = "-summary"
"""Suffix of the id of the human message that asks for a summary."""


def is_due(messages: Sequence[AnyMessage], limit: int | None) -> bool:
    """True if the last answer read and wrote `limit` tokens or more (None: never), and there is an
    older exchange to leave out. An answer without usage counts as short.
    """
    asked = _last_request(messages)
    answers = [
        message
        for message in messages[asked + 2 if asked >= 0 else 0 :]
        if isinstance(message, AIMessage)
    ]
    if limit is None or len(answers) < 2:
        return False
    usage = answers[-1].usage_metadata
    return usage is not None and usage["total_tokens"] >= limit


def summary_request(messages: Sequence[AnyMessage]) -> HumanMessage:
    """Message that asks for a summary of a conversation. Its id follows from that of the last one."""
    return HumanMessage(SUMMARY_PROMPT, id=f"{messages[-1].id}{SUMMARY}")


def with_request(messages: Sequence[AnyMessage], request: HumanMessage) -> list[AnyMessage]:
    """Messages with a further one of a person. It becomes part of the last one if that is a person's,
    too, since some chat templates refuse two in a row.
    """
    *before, last = messages
    if not isinstance(last, HumanMessage):
        return [*messages, request]
    return [*before, _joined(last, request.text)]


def as_summary(answer: AIMessage) -> AIMessage:
    """Answer to a request for a summary, without the tool calls that it may have."""
    return answer.model_copy(update={"tool_calls": [], "invalid_tool_calls": []})


def compacted(messages: Sequence[AnyMessage], own: Collection[str] = ()) -> list[AnyMessage]:
    """Messages to send to the model.

    What came before the newest summary is replaced by the person's newest message before it, with
    the summary, and the last answer before it with its results. All messages are sent if there is no
    summary, and all but the request if it is empty or no person has spoken.

    `own`: suffixes of the ids of other human messages that the graph writes, not a person.
    """
    asked = _last_request(messages)
    if asked < 0 or asked + 1 == len(messages):
        return list(messages)
    summary = messages[asked + 1].text
    after = messages[asked + 2 :]
    task = next(
        (
            number
            for number in range(asked - 1, -1, -1)
            if isinstance(messages[number], HumanMessage)
            and not str(messages[number].id).endswith((SUMMARY, *own))
        ),
        None,
    )
    if task is None or not summary.strip():
        return [*compacted(messages[:asked], own), *after]
    answers = [
        number
        for number in range(task + 1, asked)
        if isinstance(messages[number], AIMessage)
        and not str(messages[number - 1].id).endswith(SUMMARY)
    ]
    last = messages[answers[-1] : asked] if answers else []
    return [_joined(messages[task], f"{SUMMARY_NOTE}\n{summary}"), *last, *after]


def _joined(message: AnyMessage, text: str) -> HumanMessage:
    """Message of a person with a further paragraph."""
    content = message.content
    if isinstance(content, str):
        return HumanMessage(f"{content}\n\n{text}", id=message.id)
    return HumanMessage([*content, {"type": "text", "text": text}], id=message.id)


def _last_request(messages: Sequence[AnyMessage]) -> int:
    """Index of the newest request for a summary (-1 without one)."""
    return next(
        (
            number
            for number in range(len(messages) - 1, -1, -1)
            if isinstance(messages[number], HumanMessage)
            and str(messages[number].id).endswith(SUMMARY)
        ),
        -1,
    )
