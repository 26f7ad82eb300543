"""Server reports on a model call: tokens, cost, and the tools offered."""

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
    """Reported tokens and cost of a call (None where not reported)."""

    prompt_tokens: int | None = None
    """Tokens of the prompt, cached ones included."""
    completion_tokens: int | None = None
    """Tokens of the answer."""
    cached_tokens: int | None = None
    """Prompt tokens that the server had computed before."""
    cost_usd: float | None = None
    """Price of the call, in US dollars."""


def usage_of(call: Call) -> ReportedUsage:
    """Server's report of a call. Older records have it only in the answer."""
    usage = call.usage or reported_usage(call.response)
    if usage is None:
        return ReportedUsage()
    return ReportedUsage(usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cost)


def usage_parts(usage: ReportedUsage) -> dict[str, Any]:
    """Parts of an `AIMessage` from which `usage_of` reads the usage again."""
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
    """Tools in OpenAI's form, whatever form the model was given."""
    return [dict(convert_to_openai_tool(tool)) for tool in tools]
