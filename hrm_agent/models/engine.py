"""Protocols of engines and codecs, the two parts of a recorded policy.

An `Engine` turns token ids into token ids. A `Codec` turns messages into token ids and an answer's
text back into a message. Neither of them knows of LangGraph or of the record.
`hrm_agent.models.chat.PolicyModel` connects engine and codec with LangGraph and the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from langchain_core.messages import BaseMessage

from hrm_agent.trajectory import FinishReason, LogprobKind, Sampling

__all__ = [
    "Codec",
    "Completion",
    "Engine",
    "GenerationRequest",
    "KeepsRollouts",
    "ParsedTurn",
    "TemplateMismatch",
    "TextStream",
]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Request to an engine for one continuation."""

    prompt_ids: tuple[int, ...]
    """Prompt tokens, exactly as the model sees them."""
    sampling: Sampling
    """Sampling parameters, with a seed."""
    messages: Sequence[BaseMessage] = ()
    """Conversation of `prompt_ids`, for engines that answer from a script."""
    on_token: Callable[[int], None] | None = None
    """Callback from the engine's thread for each sampled token. It must not block."""
    schema: Mapping[str, Any] | None = None
    """JSON schema that the answer's text has to follow. An engine that cannot constrain answers
    ignores it.
    """
    role: str = ""
    """Role that makes the request, as in `GraphIdentity.role`. An engine with adapters by role uses
    this role's adapter.
    """
    thread: str = ""
    """LangGraph thread of the rollout. If there are several engines, the engine that answered
    earlier turns of this thread answers the next turns fastest.
    """
    name: str = ""
    """Name of the request in an engine of another process. The engine reports progress under this
    name.
    """


@dataclass(frozen=True, slots=True)
class Completion:
    """Result of sampling. `token_ids` and `logprobs` are aligned."""

    token_ids: tuple[int, ...]
    """Sampled tokens, including the token that ended the turn."""
    logprobs: tuple[float, ...]
    """Natural log-probs, of the kind in the engine's `logprob_kind`."""
    finish_reason: FinishReason
    """Reason why sampling stopped."""
    policy_version: int
    """Version of the weights that sampled the tokens."""
    queue_seconds: float = 0.0
    """Seconds from submission until sampling began."""
    constrained: bool = False
    """True if the tokens were chosen under the request's schema. The log-probs are those without
    the schema, if the engine can report these.
    """


class Engine(Protocol):
    """Sampler of continuations for many callers in parallel. Thread-safe."""

    @property
    def name(self) -> str:
        """Model string, as stored in `Call.model`."""
        ...

    @property
    def codec(self) -> Codec: ...

    @property
    def logprob_kind(self) -> LogprobKind:
        """Kind of the log-probs that the engine reports. At temperature 1 without truncation, the
        log-probs of a call are raw in any case.
        """
        ...

    @property
    def policy_version(self) -> int:
        """Number of optimiser steps of the current weights."""
        ...

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Switch to the weights of `version`. Returns once new requests are sampled with them.

        `state_dict`: weights by name (None if the engine shares the weights, and they were changed
        in place). Each `Completion` has the version of the weights that sampled it. Raises
        `hrm_agent.errors.ModelError` for weights of another model.
        """
        ...

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. Cancelling the future frees the request's place."""
        ...

    def close(self) -> None:
        """Stop. Pending requests fail with `hrm_agent.errors.ModelError`."""
        ...


@runtime_checkable
class KeepsRollouts(Protocol):
    """Engine that keeps room for a rollout between its turns."""

    def rollout_ended(self, thread: str, *, counted: bool = True) -> None:
        """Release the room of the rollout on `thread`. `counted`: True if the rollout ended by
        itself.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """Parsed text of an answer."""

    content: str
    """Text without its tool calls and its thoughts."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Calls in order, each `{"name": str, "args": dict}`."""
    invalid_tool_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Calls that could not be decoded, each `{"name": str | None, "args": str, "error": str}` with
    the reason.
    """
    reasoning: str | None = None
    """Thoughts before the answer (None without thoughts)."""


class TemplateMismatch(Exception):
    """The chat template rewrites earlier turns, so the new prompt does not start with the tokens
    that the model saw before.
    """


class TextStream(Protocol):
    """Text of one answer while it is being sampled."""

    def push(self, token_id: int) -> str:
        """Text that can be shown now that this token is known, often empty."""
        ...

    def finish(self) -> str:
        """Text that was held back although nothing hidden followed."""
        ...


class Codec(Protocol):
    """Conversion of messages to token ids and back. Text inside a message can never become a
    control token.
    """

    end_of_turn: int
    """Token that ends a written answer."""
    ends: frozenset[int]
    """All tokens that end an answer, including `end_of_turn`."""
    without_thoughts: tuple[int, ...]
    """Tokens to append to a prompt for an answer without thoughts (empty if no tokens are needed).
    """

    def encode(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Token ids of the whole prompt, up to and including the header of the answer. `tools` are
        in OpenAI's form.
        """
        ...

    def extend(
        self,
        messages: Sequence[BaseMessage],
        answered: int,
        *,
        ended_by: int | None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """Tokens to insert after the sampled tokens of `messages[answered]`, up to the header of
        the next answer.

        `ended_by`: last sampled token, if it is one of `ends` (None if the answer was cut: the
        insertion then starts with the end of the answer). Raises `TemplateMismatch` if the template
        changes earlier turns.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, without the token that ended the turn."""
        ...

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer as the model would write it (for a script), with its end."""
        ...

    def encode_turn(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Token ids of the last message, with its end. The message is an answer that was written
        rather than sampled (a demonstration). The tokens are those that the model would have to
        sample after `encode(messages[:-1], tools)`.
        """
        ...

    def parse(
        self, text: str, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True
    ) -> ParsedTurn:
        """Parse an answer's text.

        `tools`: offered tools, which define the types of arguments. `thinks`: False if
        `without_thoughts` precedes the answer.
        """
        ...

    def thought_tokens(self, token_ids: Sequence[int]) -> int:
        """Number of sampled tokens that hold an answer's thoughts or the marks around them. All
        other tokens hold the answer's words, calls and end. Only called if `parse` found thoughts.
        """
        ...

    def stream(self, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True) -> TextStream:
        """Decoder for one answer that is being sampled. `tools` and `thinks` are those of
        `parse`.
        """
        ...
