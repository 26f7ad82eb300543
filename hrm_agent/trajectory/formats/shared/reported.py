"""Reports of a model's server on a call, read in one place: tokens and cost,
and the tools offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.trajectory.call_facts import reported_usage
from hrm_agent.trajectory.schema import Call

__all__ = ["ReportedUsage", "tool_definitions", "usage_of", "usage_parts"]


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """Tokens and money of a call, as reported; None where nothing was."""

    prompt_tokens: int | None = None
    """Tokens of the prompt, cached ones included."""
    completion_tokens: int | None = None
    """Tokens of the answer."""
    cached_tokens: int | None = None
    """Of the prompt's tokens, those that the server had computed before."""
    cost_usd: float | None = None
    """Price of the call, in US dollars."""


def usage_of(call: Call) -> ReportedUsage:
    """The server's report of a call; in older records it stands in the answer only."""
    usage = call.usage or reported_usage(call.response)
    if usage is None:
        return ReportedUsage()
    return ReportedUsage(usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cost)


def usage_parts(usage: ReportedUsage) -> dict[str, Any]:
    """The parts of an `AIMessage` from which `usage_of` reads it again."""
    parts: dict[str, Any] = {}
    if usage.prompt_tokens is not None and usage.completion_tokens is not None:
        cached = (
            {}
            if usage.cached_tokens is None
            else {"input_token_details": {"cache_read": usage.cached_tokens}}
        )
        total = usage.prompt_tokens + usage.completion_tokens
        counts = {
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
            "total_tokens": total,
        }
        parts["usage_metadata"] = {**counts, **cached}
    if usage.cost_usd is not None:
        parts["response_metadata"] = {"token_usage": {"cost": usage.cost_usd}}
    return parts


def tool_definitions(tools: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools in OpenAI's form, whatever the form in which the model was given them."""
    return [dict(convert_to_openai_tool(tool)) for tool in tools]
