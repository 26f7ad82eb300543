"""Helpers of loops of answers and tool calls: the newest answer, its tool calls, the stop
reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

from langchain_core.messages import AIMessage, AnyMessage

from hrm_agent.errors import ConfigError, ContextLengthError
from hrm_agent.graphs.parts.budget import Prices, sampled_tokens, seconds_worked, spent_on
from hrm_agent.models import invalid_tool_calls, was_cut
from hrm_agent.trajectory import StopReason

__all__ = [
    "LoopLimits",
    "ToolFormat",
    "calls_tools",
    "last_answer",
    "loop_stop",
    "refuse_tool_format",
    "run_loop",
]

ToolFormat = Literal["native", "fenced"]
"""Form in which a model calls the Python tool. native: the format of its chat template or provider.
fenced: a fenced block in its text.
"""


class LoopLimits(Protocol):
    """Limits of one loop."""

    @property
    def max_turns(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_seconds(self) -> float: ...
    @property
    def max_cost(self) -> float | None: ...
    @property
    def prices(self) -> Prices: ...


def refuse_tool_format(given: str) -> None:
    """Raise `ConfigError` for an unknown tool format."""
    if given not in get_args(ToolFormat):
        known = " or ".join(get_args(ToolFormat))
        raise ConfigError(f"tool_format is {given!r}.", f"Give {known}.")


def last_answer(messages: Sequence[AnyMessage]) -> AIMessage:
    return next(message for message in reversed(messages) if isinstance(message, AIMessage))


def calls_tools(answer: AIMessage) -> bool:
    """True if an answer calls tools. A call that cannot be decoded counts, too, since the model
    gets an error as its result.
    """
    return bool(answer.tool_calls or invalid_tool_calls(answer))


def loop_stop(
    messages: Sequence[AnyMessage], limits: LoopLimits, *, final: bool
) -> StopReason | None:
    """Stop reason of a loop after these messages (None if the loop continues). `final`: True if the
    last answer needs no reply.
    """
    answers = [message for message in messages if isinstance(message, AIMessage)]
    if was_cut(answers[-1]) or sampled_tokens(answers) >= limits.max_tokens:
        return StopReason.MAX_TOKENS
    if final:
        return StopReason.ANSWER
    if len(answers) >= limits.max_turns:
        return StopReason.MAX_TURNS
    if seconds_worked(messages) >= limits.max_seconds:
        return StopReason.MAX_SECONDS
    if (
        limits.max_cost is not None
        and spent_on(answers, limits.prices).get("cost", 0.0) >= limits.max_cost
    ):
        return StopReason.MAX_COST
    return None


async def run_loop(
    loop: Any, messages: Sequence[AnyMessage], context: Any, **more: Any
) -> tuple[dict[str, Any], str]:
    """Run a loop. Returns its last state, and the error if the model's context window was full
    (else empty). `more`: further fields of the loop's input.

    After such an error, the state still has all earlier messages, so that their sources and usage
    count.
    """
    end: dict[str, Any] = {"messages": []}
    try:
        async for values in loop.astream(
            {"messages": [*messages], **more}, context=context, stream_mode="values"
        ):
            end = values
    except ContextLengthError as error:
        return {**end, "stop_reason": StopReason.MAX_TOKENS.value}, str(error)
    return end, ""
