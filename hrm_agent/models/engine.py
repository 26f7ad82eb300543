"""What an engine and a codec are: the two things a recorded policy is made of.

An `Engine` turns token ids into token ids. A `Codec` turns messages into token ids and an answer's
text back into a message. Neither knows of LangGraph or of the record:
`hrm_agent.models.chat.PolicyModel` joins them with both.
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
    """One continuation asked of an engine."""

    prompt_ids: tuple[int, ...]
    """Exactly what the model sees."""
    sampling: Sampling
    """With a seed: the caller has drawn one."""
    messages: Sequence[BaseMessage] = ()
    """The conversation behind `prompt_ids`, for engines that answer from a script."""
    on_token: Callable[[int], None] | None = None
    """Called from the engine's thread with each sampled token; must not block."""
    schema: Mapping[str, Any] | None = None
    """JSON schema that the answer's text is to follow; an engine that cannot hold it to that
    ignores it.
    """
    role: str = ""
    """Who asks, as `GraphIdentity.role` has it: an engine with adapters by role answers through
    this one's.
    """
    thread: str = ""
    """The rollout that asks, by its LangGraph thread: its turns are best answered where the ones
    before were.
    """
    name: str = ""
    """Name of the request in an engine of another process, by which it reports progress."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled. `token_ids` and `logprobs` are aligned."""

    token_ids: tuple[int, ...]
    """Sampled tokens, the one that ended the turn included."""
    logprobs: tuple[float, ...]
    """Natural log, of the kind that the engine names."""
    finish_reason: FinishReason
    """Why sampling stopped."""
    policy_version: int
    """Version of the weights that sampled them."""
    queue_seconds: float = 0.0
    """Seconds from submission until sampling began."""
    constrained: bool = False
    """The tokens were chosen under the request's schema; the log-probs are without it, where the
    engine has them.
    """


class Engine(Protocol):
    """Samples continuations for many callers at once. Thread-safe."""

    @property
    def name(self) -> str:
        """The string that names the model, as stored in `Call.model`."""
        ...

    @property
    def codec(self) -> Codec: ...

    @property
    def logprob_kind(self) -> LogprobKind:
        """What its log-probs are in general: a call at temperature 1 that nothing cut has raw ones
        all the same.
        """
        ...

    @property
    def policy_version(self) -> int:
        """Number of optimiser steps behind the weights in force."""
        ...

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Switch to the weights of `version`; returns once new requests are sampled with them.

        `state_dict`: the weights, by name; None where they are shared and were changed in place.
        Each `Completion` says which version sampled it. Raises `hrm_agent.errors.ModelError` where
        the weights are another's.
        """
        ...

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. Cancelling the future frees its place."""
        ...

    def close(self) -> None:
        """Stop; pending requests fail with `hrm_agent.errors.ModelError`."""
        ...


@runtime_checkable
class KeepsRollouts(Protocol):
    """What an engine also is that keeps room for a rollout between its turns."""

    def rollout_ended(self, thread: str, *, counted: bool = True) -> None:
        """The rollout on `thread` asks for nothing more. `counted`:
        it came to an end of its own.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """An answer's text, taken apart."""

    content: str
    """The text without its tool calls and its thoughts."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """`{"name": str, "args": dict}` each, in order."""
    invalid_tool_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """`{"name": str | None, "args": str, "error": str}` each: calls that could not be decoded, with
    the reason.
    """
    reasoning: str | None = None
    """Thoughts before the answer, where the model's template knows of any."""


class TemplateMismatch(Exception):
    """The chat template rewrites earlier turns: the new prompt does not start with what the model
    saw before.
    """


class TextStream(Protocol):
    """The text of one answer while it is being sampled."""

    def push(self, token_id: int) -> str:
        """The text that can be shown now that this token is known; often empty."""
        ...

    def finish(self) -> str:
        """The text that was held back and turned out to be plain."""
        ...


class Codec(Protocol):
    """Messages to token ids and back. Text inside a message can never become a control token."""

    end_of_turn: int
    """The token that ends a written answer."""
    ends: frozenset[int]
    """All tokens that end an answer, `end_of_turn` among them."""
    without_thoughts: tuple[int, ...]
    """Tokens after a prompt for an answer that is to have no thoughts; empty where it begins
    without any.
    """

    def encode(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """The whole prompt, up to and with the header of the answer. `tools` in OpenAI's form."""
        ...

    def extend(
        self,
        messages: Sequence[BaseMessage],
        answered: int,
        *,
        ended_by: int | None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """The tokens to insert after the sampled tokens of `messages[answered]`, up to the header
        of the next answer.

        `ended_by`: the last sampled token if it is one of `ends` (None: the answer was cut, and the
        insertion starts with its end). Raises `TemplateMismatch` where the template does not leave
        the earlier turns as they were.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, without the token that ended the turn."""
        ...

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer as the model would write it (a script's), with its end."""
        ...

    def encode_turn(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Token ids of the last message, an answer that was written rather than sampled (a
        demonstration), with its end: what the model would have had to sample after
        `encode(messages[:-1], tools)`.
        """
        ...

    def parse(
        self, text: str, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True
    ) -> ParsedTurn:
        """Take an answer's text apart.

        `tools`: those that were offered, which say the types of arguments. `thinks`: False where
        `without_thoughts` stood before it.
        """
        ...

    def thought_tokens(self, token_ids: Sequence[int]) -> int:
        """Number of sampled tokens that hold an answer's thoughts or the marks around them, so that
        all others hold its words, its calls and its end. Asked where `parse` found thoughts.
        """
        ...

    def stream(self, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True) -> TextStream:
        """A decoder for one answer that is being sampled; `tools` and `thinks` as for `parse`."""
        ...
