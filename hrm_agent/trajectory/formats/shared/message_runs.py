"""Runs of other agents, recorded as messages: a model call for each answer, with the messages
before it.

The messages in order are taken as the request of each call, and its hashes are made from them, so
that conversations can be exported and compared like those of hrm-agent's runs. Missing data is not
made up: a call without exact tokens is not trainable, and gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from hrm_agent.trajectory.call_facts import reported_usage
from hrm_agent.trajectory.conversation_digest import HashedContext
from hrm_agent.trajectory.formats.shared.json_documents import refused
from hrm_agent.trajectory.formats.shared.token_runs import Assembly, Origin
from hrm_agent.trajectory.ids import call_id, content_hash, tool_record_id
from hrm_agent.trajectory.schema import (
    BranchReason,
    Call,
    FinishReason,
    GraphIdentity,
    LogprobKind,
    SentSampling,
    ToolCall,
    ToolStatus,
    Trajectory,
)

__all__ = ["MOST_SENT", "NO_PROMPT_TOKENS", "NO_TOKENS", "ForeignRun", "Tokens", "in_range"]

NO_TOKENS = "the file gives no token ids"
NO_PROMPT_TOKENS = "the file gives no token ids of the prompt"
_COMPARED = 64
"""Maximum number of earlier calls whose tokens a prompt is compared with, newest first."""
MOST_SENT = 2**20
"""Maximum number of messages sent by the calls of one run, where each call counts all messages of
its request. A run of 1,000 steps with an answer and a result each stays below it. The limit is
needed, since a short file can name the same messages again and again.
"""


def in_range(value: Any) -> bool:
    """True for a valid reward: a number from 0 to 1."""
    return isinstance(value, (int, float)) and 0 <= value <= 1


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one call: its whole prompt and its answer."""

    prompt: list[int]
    """Tokens of the prompt."""
    completion: list[int]
    """Tokens of the answer."""
    logprobs: list[float] | None
    """Log-probs (natural log), one per token of `completion` (None if the file has none)."""


@dataclass
class ForeignRun:
    """Run under construction, with its current conversation."""

    assembly: Assembly
    """Assembly that makes the trajectory."""
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    """Tool calls so far."""
    _messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _context: HashedContext = field(default_factory=lambda: HashedContext.of(()))
    _dumps: dict[int, tuple[BaseMessage, dict[str, Any]]] = field(
        default_factory=dict[int, tuple[BaseMessage, dict[str, Any]]]
    )
    _sent: int = 0
    """Number of messages of all requests so far."""
    _seen: list[tuple[list[int], str]] = field(default_factory=list[tuple[list[int], str]])

    @staticmethod
    def of(
        id_: str, origin: Origin, place: str, model: str | None, started_at: float, ended_at: float
    ) -> ForeignRun:
        return ForeignRun(
            Assembly(id_, origin, place, model, started_at, max(started_at, ended_at))
        )

    def begin(self, messages: Iterable[BaseMessage] = ()) -> None:
        """Start another conversation of the run with `messages`."""
        self._messages, self._context = [], HashedContext.of(())
        for message in messages:
            self.say(message)

    def say(self, message: BaseMessage) -> None:
        """Add a message that the next call sees. Raises `StoreError` if more than `MOST_SENT` were
        sent.
        """
        if self._sent + len(self._messages) > MOST_SENT:
            refused(
                self.assembly.place,
                "",
                f"its model calls were sent more than {MOST_SENT:,} messages in all",
            )
        held = self._dumps.get(id(message))
        if held is None:
            held = self._dumps[id(message)] = message, message.model_dump(mode="json")
        self._messages.append(held[1])
        self._context = self._context.then(message)

    def answer(
        self,
        message: AIMessage,
        *,
        tools: Sequence[dict[str, Any]] = (),
        tokens: Tokens | None = None,
        node: str = "",
        untrainable: str | None = None,
        **facts: Any,
    ) -> Call:
        """Add a model call that gave `message`, which the next call sees. `facts`: other fields of
        the call.
        """
        request = tuple(self._messages)
        self._sent += len(request)
        self.say(message)
        told: dict[str, Any] = {"response": self._messages[-1], **facts}
        call = (
            self._with_tokens(tokens, told)
            if tokens
            else self._without(untrainable or NO_TOKENS, told)
        )
        known: dict[str, Any] = {
            "context_hash": self._context.hash(),
            "tools_hash": content_hash(tuple(tools)),
            "tools": tuple(tools),
            "usage": reported_usage(call.response),
            "identity": call.identity.model_copy(update={"node": node or "imported"}),
            "request": request,
            **({"model": facts["model"]} if facts.get("model") else {}),
        }
        call = call.model_copy(update=known)
        self.assembly.calls[-1] = call
        return call

    def _with_tokens(self, tokens: Tokens, facts: dict[str, Any]) -> Call:
        fits = [one for one in self._seen[-_COMPARED:] if tokens.prompt[: len(one[0])] == one[0]]
        before, parent = max(fits, key=lambda one: len(one[0]), default=([], None))
        told = {name: value for name, value in facts.items() if name != "model"}
        self.assembly.add(
            parent,
            tokens.prompt[len(before) :],
            tokens.completion,
            [True] * len(tokens.completion),
            tokens.logprobs,
            kind=LogprobKind.SAMPLED,
            **told,
        )
        call = self.assembly.calls[-1]
        self._seen.append(([*tokens.prompt, *tokens.completion], call.id))
        return call

    def _without(self, untrainable: str, facts: dict[str, Any]) -> Call:
        run = self.assembly.id
        task = str(len(self.assembly.calls))
        known: dict[str, Any] = {
            "id": call_id(run, task, 0),
            "identity": GraphIdentity(thread_id=run, task_id=task),
            "call_index": 0,
            "request_hash": content_hash("imported", run, task),
            "model": self.assembly.policy,
            "branch_reason": BranchReason.NO_TOKENS,
            "sampling": None,
            "sampling_sent": SentSampling(),
            "finish_reason": FinishReason.STOP,
            "untrainable": untrainable,
            "started_at": self.assembly.started_at,
            "ended_at": self.assembly.started_at,
            **facts,
        }
        call = Call(**known)
        self.assembly.calls.append(call)
        return call

    def tool_result(
        self,
        tool_call_id: str,
        name: str,
        arguments: dict[str, Any] | str,
        *,
        status: ToolStatus,
        content: str,
        task: str | None = None,
        node: str = "",
        checkpoint_ns: str = "",
        **facts: Any,
    ) -> None:
        """Add a tool call with its outcome. `content`: text that the model was shown."""
        thread = self.assembly.id
        task = task or f"tools-{len(self.assembly.calls)}"
        self.tool_calls.append(
            ToolCall(
                id=tool_record_id(thread, task, tool_call_id),
                identity=GraphIdentity(
                    thread_id=thread,
                    task_id=task,
                    node=node or "imported",
                    checkpoint_ns=checkpoint_ns,
                ),
                tool_call_id=tool_call_id,
                name=name,
                arguments=arguments,
                status=status,
                content=content,
                **facts,
            )
        )

    def finish(self, **facts: Any) -> Trajectory:
        """Trajectory with the given fields. Raises `StoreError` if the linter finds a problem."""
        return self.assembly.finish(tool_calls=tuple(self.tool_calls), **facts)
