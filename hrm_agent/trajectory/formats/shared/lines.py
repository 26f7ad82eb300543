"""Conversations of a run as lines, from a first message to an answer that no call continues.

Programs without graphs read messages in order. Parallel solvers, a planner and its critic, and two
samples of one request have no common order. So each of them is a separate line, with the parts that
it shares with another line repeated.

A call continues an earlier call if its request begins with the earlier call's whole conversation.
If the messages are not proved (see `messages`), the call's own links decide: the call whose tokens
it extends, or would have extended if the template had not broken them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from hrm_agent.trajectory.formats.shared.messages import (
    NO_TOOLS,
    ConversationOfCall,
    RequestHints,
    answer_of,
    context_hash,
    conversation_of,
)
from hrm_agent.trajectory.schema import BranchReason, Call, Trajectory

__all__ = ["Line", "Said", "lines"]

Said = tuple[BaseMessage, Call | None]
"""Message, and the call that gave it."""


@dataclass(frozen=True, slots=True)
class Line:
    """Conversation with the calls that answered in it."""

    calls: tuple[Call, ...]
    """Calls from the first on record to the last."""
    messages: tuple[Said, ...]
    """Messages, each answer with its call (None for an answer that no recorded call gave)."""
    proved: bool
    """True if these are all messages that the last call saw. Otherwise some answers appear without
    the messages between them.
    """
    tools: tuple[dict[str, Any], ...]
    """Tools offered to the last call, as given to the model; empty if unknown."""


def lines(trajectory: Trajectory, known: RequestHints) -> list[Line]:
    """Lines of a run, in the order in which their last calls finished. Every call is in at least
    one line.
    """
    found = {call.id: _found(call, trajectory, known) for call in trajectory.calls}
    before = _before(trajectory, found)
    continued = {call.id for call in before.values()}
    return [_line(call, before, found) for call in trajectory.calls if call.id not in continued]


def _found(call: Call, trajectory: Trajectory, known: RequestHints) -> ConversationOfCall | None:
    """Proved conversation of a call (None if it is not proved). The tools may be unknown, since
    messages are hashed separately from tools.
    """
    found = conversation_of(call, trajectory, known)
    if found == NO_TOOLS:
        found = conversation_of(call.model_copy(update={"tools_hash": ""}), trajectory, known)
    return found if isinstance(found, ConversationOfCall) else None


def _before(trajectory: Trajectory, found: dict[str, ConversationOfCall | None]) -> dict[str, Call]:
    """Id of a call -> earlier call that it continues."""
    by_hash: defaultdict[str, list[Call]] = defaultdict(list)
    by_id: dict[str, Call] = {}
    before: dict[str, Call] = {}
    taken: set[str] = set()
    for call in trajectory.calls:
        proved = found[call.id]
        if proved is None:
            rewritten = call.branch_reason is BranchReason.REWRITTEN
            earlier = by_id.get(call.parent or ("" if rewritten else call.branch_of) or "")
            fits = [] if earlier is None else [earlier]
        else:
            fits = _said_before(call, proved, by_hash)
        if fits:
            before[call.id] = next((one for one in fits if one.id not in taken), fits[0])
            taken.add(before[call.id].id)
        by_id[call.id] = call
        if call.context_hash:
            by_hash[call.context_hash].append(call)
    return before


def _said_before(
    call: Call, proved: ConversationOfCall, by_hash: dict[str, list[Call]]
) -> list[Call]:
    """Calls whose conversation is the longest beginning of this call's conversation: first the call
    whose tokens it extends, then the newest.
    """
    for end in range(len(proved.messages) - 1, 0, -1):
        before = proved.messages[:end]
        if isinstance(before[-1], AIMessage) and (fits := by_hash.get(context_hash(before))):
            newest_first = fits[::-1]
            return sorted(newest_first, key=lambda one: one.id != call.parent)
    return []


def _line(leaf: Call, before: dict[str, Call], found: dict[str, ConversationOfCall | None]) -> Line:
    calls = [leaf]
    while (earlier := before.get(calls[-1].id)) is not None:
        calls.append(earlier)
    calls.reverse()
    newest = next((i for i in reversed(range(len(calls))) if found[calls[i].id] is not None), -1)
    shown = calls[: newest + 1]
    rest = calls[newest + 1 :]
    said = _said(shown, found[shown[-1].id]) if shown else None
    proved = said is not None and not rest
    if said is None:
        said = []
        rest = calls
    messages = (*said, *((answer_of(call), call) for call in rest))
    offered = found[leaf.id]
    return Line(tuple(calls), messages, proved, offered.tools if offered else ())


def _said(calls: list[Call], proved: ConversationOfCall | None) -> list[Said] | None:
    """Messages, each answer with its call (None if a call is not among them)."""
    answers = {call.context_hash: call for call in calls}
    said: list[Said] = []
    messages = proved.messages if proved else ()
    for i, message in enumerate(messages):
        answered = isinstance(message, AIMessage)
        said.append(
            (message, answers.pop(context_hash(messages[: i + 1]), None) if answered else None)
        )
    return None if answers else said
