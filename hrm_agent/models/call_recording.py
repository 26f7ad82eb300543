"""Recording of one model call, independent of LangChain's interface and of the engine.

`open_call` returns the recorded answer of a request, or a pending call with its seed. `find_prefix`
finds the earlier call that the pending call extends token by token. `close_call` makes the `Call`
from the sampled tokens. Only callers of these functions distinguish invoke, stream and batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.runnables.config import ensure_config
from pydantic import BaseModel

from hrm_agent.models.codec.thoughts import REASONING
from hrm_agent.models.engine import Codec, Completion, Engine, ParsedTurn, TemplateMismatch
from hrm_agent.models.recorded_values import OWN_FACTS, pack_answer
from hrm_agent.trajectory import (
    AskedModel,
    BranchReason,
    Call,
    FinishReason,
    GraphIdentity,
    LogprobKind,
    Recording,
    Sampling,
    SentSampling,
    call_id,
    content_hash,
)
from hrm_agent.trajectory.call_facts import RaisedError, reported_usage
from hrm_agent.trajectory.conversation_digest import HashedContext, context_hash

__all__ = [
    "PendingCall",
    "Prefix",
    "adopt_call",
    "as_chunk",
    "close_call",
    "close_failed_call",
    "close_text_call",
    "copied_call",
    "find_prefix",
    "in_one_order",
    "offered",
    "open_call",
    "plain",
    "recorded_call_id",
    "was_cut",
]

CALL_ID, STARTED_AT, ENDED_AT, THREAD_ID = OWN_FACTS
"""Keys in a message's `response_metadata`. Their values are the id of the message's call, the Unix
times of its start and end, and its thread. A node that reads these times instead of a clock can be
replayed. The thread is needed since a fork's state also holds messages of its source run.
"""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Position of a call in the message forest."""

    inserted: list[int]
    """Prompt tokens that this call adds to its parent."""
    prompt_ids: tuple[int, ...]
    """All tokens that the model sees: the parent's path, then `inserted`."""
    parent: str | None = None
    """Id of the call that this one extends (None for a root)."""
    branch_reason: BranchReason | None = None
    """Reason why the call is a root (None exactly if it has a parent)."""
    branch_of: str | None = None
    """Id of the call that a root would have extended but could not."""
    thinks: bool = True
    """False if the prompt ends with tokens that make the model answer without thoughts."""


def _now() -> float:
    return time.time()


def _named_thread() -> str:
    """Thread of the running graph (empty if it has none)."""
    return str((ensure_config().get("metadata") or {}).get("thread_id", ""))


@dataclass(frozen=True, slots=True)
class PendingCall:
    """Call that has no answer yet."""

    identity: GraphIdentity
    """Position of the call in the graph's run."""
    call_index: int
    """Index of the call within its LangGraph task, from 0."""
    request_hash: str
    """Hash of messages, tools in one order, and sampling."""
    messages: Sequence[BaseMessage]
    """Messages of the request."""
    context: HashedContext
    """Hashed context of the messages, as the model sees it."""
    tools: Sequence[dict[str, Any]]
    """Offered tools, in the provider's form (OpenAI's for the policy)."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling parameters for an engine, with the call's own seed. Other models ignore them."""
    started_at: float = field(default_factory=_now)
    """Unix time in seconds."""
    thread: str = field(default_factory=_named_thread)
    """Thread of the graph (empty without a thread: `identity` then has a name unique to each call).
    """
    instead_of: str | None = None
    """Id of the failed call that this call repeats. The failed call belongs to an earlier run of
    the same LangGraph task.
    """

    @property
    def call_id(self) -> str:
        return call_id(self.identity.thread_id, self.identity.task_id, self.call_index)

    @property
    def role(self) -> str:
        """Role that makes the call."""
        return self.identity.role


def open_call(
    recording: Recording,
    identity: GraphIdentity,
    messages: Sequence[BaseMessage],
    tools: Sequence[dict[str, Any]],
    sampling: Sampling,
    special: Mapping[str, Any] | None = None,
    model: str = "",
) -> PendingCall | Call:
    """Recorded answer to a request, or a call to be sampled.

    `special`: a model or a schema that the call names. It is left out of the hash if empty, so that
    the hashes of older records stay valid. `model`: name of the model that would be asked.
    """
    context = HashedContext.of(messages)
    rest = (sampling.model_dump(), *([special] if special else []))
    request_hash = offered_hash = context.hash(in_one_order(tools), *rest)
    if len(tools) > 1:
        offered_hash = context.hash(tools, *rest)
    asked = AskedModel(model)
    claimed = recording.claim(
        identity, request_hash, messages, tools, former_hash=offered_hash, model=asked
    )
    if isinstance(claimed, Call):
        return claimed
    if sampling.seed is None:
        sampling = sampling.model_copy(update={"seed": recording.draw_seed(identity, offered_hash)})
    again = recording.asked_again(identity, claimed)
    return PendingCall(
        identity, claimed, request_hash, messages, context, tools, sampling, instead_of=again
    )


def copied_call(
    call: Call,
    identity: GraphIdentity,
    index: int,
    request_hash: str,
    *,
    parent: str | None,
    branch_of: str | None,
) -> Call:
    """Copy of a call of another thread, with its tokens and answer under a new identity, so that
    later calls extend the copy.
    """
    own = call_id(identity.thread_id, identity.task_id, index)
    metadata = {**call.response.get("response_metadata", {}), CALL_ID: own}
    if THREAD_ID in metadata:
        metadata[THREAD_ID] = identity.thread_id
    response = {**call.response, "response_metadata": metadata}
    if call.response.get("id") == call.id:
        response["id"] = own
    changes: dict[str, Any] = {
        "id": own,
        "identity": identity,
        "call_index": index,
        "request_hash": request_hash,
        "parent": parent,
        "branch_of": branch_of,
        "response": response,
    }
    return call.model_copy(update=changes)


def adopt_call(
    recording: Recording,
    found: Call,
    identity: GraphIdentity,
    index: int,
    request_hash: str,
    messages: Sequence[Any],
) -> Call:
    """Record a call of another thread as the answer to an equal request of this one. The copy
    extends the last answer that the messages have.
    """
    last = next(filter(None, map(recorded_call_id, reversed(messages))), None)
    copy = copied_call(
        found,
        identity,
        index,
        request_hash,
        parent=last if found.parent else None,
        branch_of=last if found.branch_of else None,
    )
    return recording.write_call(copy, messages)


def find_prefix(
    recording: Recording, engine: Engine, pending: PendingCall, *, thinks: bool = True
) -> Prefix:
    """Extend the newest recorded call of the conversation token by token.

    If that is impossible, the result has the reason. `thinks`: False for an answer that a schema
    constrains from its first token on, so that it has no thoughts.
    """
    found = _prefix(recording, engine, pending)
    skipped = () if thinks else engine.codec.without_thoughts
    if not skipped:
        return found
    return replace(
        found,
        inserted=[*found.inserted, *skipped],
        prompt_ids=(*found.prompt_ids, *skipped),
        thinks=False,
    )


def _prefix(recording: Recording, engine: Engine, pending: PendingCall) -> Prefix:
    journal = recording.journal
    answered = next(
        (
            i
            for i in reversed(range(len(pending.messages)))
            if recorded_call_id(pending.messages[i])
        ),
        None,
    )
    named = recorded_call_id(pending.messages[answered]) if answered is not None else None
    known = recording.opened(named) if named else None
    parent = known[0] if known else journal.find_call(named, request=False) if named else None
    if answered is None or parent is None:
        return _root(engine.codec, pending, BranchReason.ROOT)
    of_this_thread = parent.identity.thread_id == pending.identity.thread_id
    # the message was copied from another thread, without the tokens of its call
    if not of_this_thread and parent.id not in recording.inherited:
        return _root(engine.codec, pending, BranchReason.ROOT)
    if parent.model != engine.name or not parent.token_ids:
        return _root(engine.codec, pending, BranchReason.MODEL, parent.id)
    if parent.tools_hash != content_hash(pending.tools):
        return _root(engine.codec, pending, BranchReason.TOOLS, parent.id)
    if parent.context_hash != context_hash(pending.messages[: answered + 1]):
        return _root(engine.codec, pending, BranchReason.REWRITTEN, parent.id)
    last = parent.token_ids[-1]
    ended_by = last if last in engine.codec.ends else None
    try:
        inserted = engine.codec.extend(
            pending.messages, answered, ended_by=ended_by, tools=pending.tools
        )
        path = known[1] if known else journal.path_tokens(parent.id)
    except TemplateMismatch:
        return _root(engine.codec, pending, BranchReason.TEMPLATE, parent.id)
    except KeyError:  # an in-memory journal no longer has the first calls of the path
        return _root(engine.codec, pending, BranchReason.ROOT)
    return Prefix(inserted, (*path, *inserted), parent.id)


def _root(
    codec: Codec, pending: PendingCall, reason: BranchReason, branch_of: str | None = None
) -> Prefix:
    inserted = codec.encode(pending.messages, pending.tools)
    return Prefix(inserted, tuple(inserted), branch_reason=reason, branch_of=branch_of)


def close_call(
    pending: PendingCall, prefix: Prefix, engine: Engine, completion: Completion
) -> tuple[Call, AIMessage]:
    """Record of a sampled turn, and its message."""
    inserted = prefix.inserted
    sampled = completion.token_ids
    message = _message(pending, engine, prefix, completion)
    untrainable = pending.sampling.why_untrainable
    if completion.constrained:
        untrainable = "a schema chose among the tokens"
    elif engine.logprob_kind is LogprobKind.NONE:
        untrainable = "log-probs are none"
    call = Call(
        **_common(pending, message),
        sampling=pending.sampling,
        model=engine.name,
        policy_version=completion.policy_version,
        parent=prefix.parent,
        branch_reason=prefix.branch_reason,
        branch_of=prefix.branch_of,
        token_ids=(*inserted, *sampled),
        mask=(False,) * len(inserted) + (True,) * len(sampled),
        logprobs=(0.0,) * len(inserted) + completion.logprobs,
        logprob_kind=_logprob_kind(engine.logprob_kind, pending.sampling, completion),
        finish_reason=completion.finish_reason,
        constrained=completion.constrained,
        untrainable=untrainable,
        queue_seconds=completion.queue_seconds,
    )
    return call, message


def _logprob_kind(engines: LogprobKind, sampling: Sampling, completion: Completion) -> LogprobKind:
    """Kind of a call's log-probs. `SAMPLED` becomes `TEMPERED` if only the temperature changed the
    distribution. `TEMPERED` becomes `RAW` if the temperature is 0 or 1.
    """
    if (
        engines is LogprobKind.SAMPLED
        and not completion.constrained
        and sampling.why_untrainable is None
    ):
        engines = LogprobKind.TEMPERED
    untempered = engines is LogprobKind.TEMPERED and sampling.temperature in (0, 1)
    return LogprobKind.RAW if untempered else engines


def close_text_call(
    pending: PendingCall, model: str, message: AIMessage, sent: SentSampling
) -> tuple[Call, AIMessage]:
    """Record of a turn by a chat model without token ids, and the message in the model's own
    message class.

    `sent`: sampling parameters of its request.
    """
    metadata = {
        **message.response_metadata,
        CALL_ID: pending.call_id,
        **_times(pending),
        **_thread(pending),
    }
    message = message.model_copy(
        update={"id": message.id or pending.call_id, "response_metadata": metadata}
    )
    common = _common(pending, _whole(message))
    call = Call(
        **common,
        sampling=None,
        sampling_sent=sent,
        model=model,
        answered_by=_who_answered(message),
        usage=reported_usage(common["response"]),
        branch_reason=BranchReason.NO_TOKENS,
        finish_reason=FinishReason.LENGTH if was_cut(message) else FinishReason.STOP,
        untrainable="the model reports no token ids",
    )
    return call, message


def _whole(message: AIMessage) -> AIMessage:
    """Convert a chunk to a whole message."""
    whole = message_chunk_to_message(message)
    return whole if isinstance(whole, AIMessage) else message


def close_failed_call(
    pending: PendingCall,
    model: str,
    error: RaisedError,
    shown: AIMessage | None = None,
    sent: SentSampling | None = None,
) -> Call:
    """Record of a call that raised, or whose stream was abandoned.

    `shown`: part that was streamed before. `sent`: sampling parameters of its request. The record
    has an id of its own and no seed, since the next call gets the same index.
    """
    response, exact, lost = pack_answer(_whole(shown)) if shown is not None else ({}, None, None)
    return Call(
        id=content_hash("failed", pending.call_id, pending.started_at),
        identity=pending.identity,
        call_index=pending.call_index,
        request_hash=pending.request_hash,
        context_hash=pending.context.hash(),
        tools_hash=content_hash(pending.tools),
        model=model,
        branch_reason=BranchReason.NO_TOKENS,
        sampling=None,
        sampling_sent=sent,
        untrainable="the model gave no answer",
        tools=offered(pending.tools),
        response=response,
        exact=exact,
        lost=lost,
        error=error,
        instead_of=pending.instead_of,
        started_at=pending.started_at,
        ended_at=_times(pending)[ENDED_AT],
    )


def _who_answered(message: AIMessage) -> str | None:
    """Model that a provider names in its answer, which may differ from the requested name."""
    said = (message.response_metadata.get(key) for key in ("model_name", "model", "model_id"))
    return next((name for name in said if isinstance(name, str) and name), None)


def _common(pending: PendingCall, message: AIMessage) -> dict[str, Any]:
    packed = pack_answer(message)
    return {
        "id": pending.call_id,
        "identity": pending.identity,
        "call_index": pending.call_index,
        "request_hash": pending.request_hash,
        "context_hash": pending.context.then(message).hash(),
        "tools_hash": content_hash(pending.tools),
        "tools": offered(pending.tools),
        "response": packed.response,
        "exact": packed.exact,
        "lost": packed.lost,
        "instead_of": pending.instead_of,
        "started_at": message.response_metadata[STARTED_AT],
        "ended_at": message.response_metadata[ENDED_AT],
    }


def _times(pending: PendingCall) -> dict[str, float]:
    return {STARTED_AT: pending.started_at, ENDED_AT: max(time.time(), pending.started_at)}


def _thread(pending: PendingCall) -> dict[str, str]:
    return {THREAD_ID: pending.thread} if pending.thread and pending.identity.checkpoint_ns else {}


def _message(
    pending: PendingCall, engine: Engine, prefix: Prefix, completion: Completion
) -> AIMessage:
    text = engine.codec.decode(completion.token_ids)
    parsed = (
        ParsedTurn(text.strip())
        if completion.constrained
        else engine.codec.parse(text, pending.tools, thinks=prefix.thinks)
    )
    prompt = len(prefix.prompt_ids)
    answer = len(completion.token_ids)
    usage = UsageMetadata(input_tokens=prompt, output_tokens=answer, total_tokens=prompt + answer)
    if parsed.reasoning is not None:
        usage["output_token_details"] = {
            "reasoning": engine.codec.thought_tokens(completion.token_ids)
        }
    return AIMessage(
        content=parsed.content,
        additional_kwargs={} if parsed.reasoning is None else {REASONING: parsed.reasoning},
        id=pending.call_id,
        tool_calls=[
            {
                "type": "tool_call",
                "id": f"{pending.call_id[:16]}-{i}",
                "name": call["name"],
                "args": call["args"],
            }
            for i, call in enumerate(parsed.tool_calls)
        ],
        invalid_tool_calls=[
            {"type": "invalid_tool_call", "id": f"{pending.call_id[:16]}-x{i}", **call}
            for i, call in enumerate(parsed.invalid_tool_calls)
        ],
        response_metadata={
            CALL_ID: pending.call_id,
            "model_name": engine.name,
            "finish_reason": completion.finish_reason.value,
            "policy_version": completion.policy_version,
            **_times(pending),
            **_thread(pending),
        },
        usage_metadata=usage,
    )


def as_chunk(message: AIMessage) -> AIMessageChunk:
    """Whole answer as the single chunk of a stream, from which LangChain makes the same message."""
    calls = [
        tool_call_chunk(name=c["name"], args=json.dumps(c["args"]), id=c["id"])
        for c in message.tool_calls
    ]
    broken = [
        tool_call_chunk(name=c["name"], args=c["args"], id=c["id"])
        for c in message.invalid_tool_calls
    ]
    kept = message.model_dump(exclude={"type", "tool_calls", "invalid_tool_calls"})
    for index, chunk in enumerate(chunks := [*calls, *broken]):
        chunk["index"] = index
    return AIMessageChunk(**kept, tool_call_chunks=chunks, chunk_position="last")


def was_cut(message: AIMessage) -> bool:
    """True if a token limit ended the answer. Providers name this reason differently."""
    said = (
        message.response_metadata.get(key)
        for key in ("finish_reason", "stop_reason", "done_reason")
    )
    return any(str(reason).lower() in ("length", "max_tokens") for reason in said)


def recorded_call_id(message: BaseMessage) -> str | None:
    """Id of the call that produced a message (None if no recorded call did)."""
    found: Mapping[str, Any] = message.response_metadata if isinstance(message, AIMessage) else {}
    return found.get(CALL_ID)


_SECRET_OF_A_SERVER = ("headers", "authorization")
"""Fields of a tool that names an MCP server. They hold the keys for the server."""


def offered(tools: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Tools as recorded: JSON, without keys of a server that a tool names."""
    shown: list[dict[str, Any]] = []
    for tool in tools:
        found = plain(tool) if isinstance(tool, Mapping) else {"name": plain(tool)}
        removed = _SECRET_OF_A_SERVER if found.get("type") == "mcp" else ()
        shown.append(
            {name: "removed" if name in removed else value for name, value in found.items()}
        )
    return tuple(shown)


def in_one_order(tools: Sequence[Any]) -> list[Any]:
    """Sort tools by content. Agents that take tools from a set offer them in another order in each
    process. The model may then answer differently, but the request counts as the same.
    """
    if len(tools) < 2:
        return list(tools)
    return sorted(tools, key=lambda tool: json.dumps(plain(tool), sort_keys=True))


def plain(value: Any) -> Any:
    """Convert `value` to JSON. Values that JSON cannot hold become their type's name, without
    memory addresses, since the result is hashed.
    """
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = cast("Sequence[Any]", value)
        return [plain(item) for item in items]
    if isinstance(value, BaseModel):
        return plain(
            value.model_dump(
                mode="json", warnings=False, fallback=lambda other: type(other).__qualname__
            )
        )
    return type(value).__qualname__
