"""Training a graph that holds its own chat model, without a change to it.

A graph that asks `policy()` for its model is served by whatever policy is in force. A graph that was written before,
with a hosted model in it, can be trained too: inside `standing_in`, every LangChain chat model that is called in this
context passes the call on to the policy, tools and all. The calls are then recorded token by token like any others.

This wraps the entry points of LangChain's `BaseChatModel`, once per process; outside a `standing_in` block the
wrappers do nothing. What cannot be passed on is a provider's own form of structured output (`response_format`): such
graphs use `with_structured_output(..., method="function_calling")`.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.models.chat import PolicyModel

__all__ = ["standing_in"]

_standing_in: ContextVar[bool] = ContextVar("hrm_agent_standing_in", default=False)
_ENTRIES = ("invoke", "ainvoke", "stream", "astream", "generate", "agenerate", "generate_prompt", "agenerate_prompt")


@contextmanager
def standing_in() -> Generator[None]:
    """Let the current policy answer for every chat model that graphs in this block call."""
    _wrap_entries()
    token = _standing_in.set(True)
    try:
        yield
    finally:
        _standing_in.reset(token)


@functools.cache
def _wrap_entries() -> None:
    for name in _ENTRIES:
        setattr(BaseChatModel, name, _passing_on(getattr(BaseChatModel, name)))


def _passing_on(entry: Any) -> Any:
    @functools.wraps(entry)
    def call(self: BaseChatModel, *args: Any, **options: Any) -> Any:
        if isinstance(self, PolicyModel) or not _standing_in.get():
            return entry(self, *args, **options)
        if options.get("tools"):
            options["tools"] = [convert_to_openai_tool(tool) for tool in options["tools"]]
        return entry(PolicyModel(), *args, **options)

    return call
