"""Substitution of a graph's own chat model by the policy, to train the graph unchanged.

A graph that uses `policy()` gets the current policy. A graph with its own hosted model can be
trained, too: inside `standing_in`, every LangChain chat model passes its calls on to the policy,
with their tools. These calls are then recorded token by token like any others.

This module wraps the entry points of LangChain's `BaseChatModel`, once per process. Outside a
`standing_in` block the wrappers do nothing.

OpenAI's class requests structured output with `response_format`. Such a call gets the same result
from the policy as from OpenAI's class. The answer is constrained to the schema if the policy's
engine can do this. Under a trainer, it is not constrained, since tokens that a schema chooses teach
nothing. For a pydantic class, the message has the object in `additional_kwargs["parsed"]`, and text
that does not follow the schema raises pydantic's `ValidationError`.

Anthropic's class requests structured output with `output_config`, and parses the text itself. The
answer is constrained in the same way. Requests in other providers' forms are not supported: the
answer is not constrained.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from hrm_agent.models.chat import PolicyModel
from hrm_agent.trajectory import open_recording
from hrm_agent.trajectory.identity import graph_identity, metadata_of

__all__ = ["read_structured_output", "standing_in"]

_standing_in: ContextVar[Collection[str] | None] = ContextVar("hrm_agent_standing_in", default=())
"""Roles for whose models the policy answers (None: all)."""
_ENTRIES = (
    "invoke",
    "ainvoke",
    "stream",
    "astream",
    "generate",
    "agenerate",
    "generate_prompt",
    "agenerate_prompt",
)


@contextmanager
def standing_in(roles: Collection[str] | None = None) -> Generator[None]:
    """Let the current policy answer for every chat model that graphs in this block call. `roles`:
    roles to which this is limited (None: all).
    """
    read_structured_output()
    token = _standing_in.set(roles)
    try:
        yield
    finally:
        _standing_in.reset(token)


def _stands_in() -> bool:
    """True if the policy answers for the model that is called here."""
    roles = _standing_in.get()
    return roles is None or (
        bool(roles) and graph_identity(metadata_of(None), "none").role in roles
    )


@functools.cache
def read_structured_output() -> None:
    """Give, from now on, answers of the policy in the form of the provider's class that it stands
    in for, also answers from the record.
    """
    for name in _ENTRIES:
        give_back = _GIVING_BACK.get(name, lambda answer, _: answer)
        setattr(BaseChatModel, name, _passing_on(getattr(BaseChatModel, name), give_back))


def _passing_on(entry: Any, give_back: Callable[[Any, Any], Any]) -> Any:
    @functools.wraps(entry)
    def call(self: BaseChatModel, *args: Any, **options: Any) -> Any:
        form = options.get("response_format")
        if isinstance(self, PolicyModel):
            return entry(self, *args, **options)
        if not _stands_in():
            answer = entry(self, *args, **options)
            return answer if form is None or open_recording() is None else give_back(answer, form)
        if options.get("tools"):
            options["tools"] = [convert_to_openai_tool(tool) for tool in options["tools"]]
        schema = _schema_of(form) or _schema_of_output(options.get("output_config"))
        return give_back(entry(PolicyModel(answer_schema=schema), *args, **options), form)

    return call


def _schema_of(form: Any) -> dict[str, Any] | None:
    """JSON schema that a `response_format` names (None if it names none)."""
    if _is_model(form):
        return form.model_json_schema()
    if not isinstance(form, dict):
        return None
    named = cast("dict[str, Any]", form)
    if named.get("type") == "json_object":
        return {"type": "object"}
    described: Any = named.get("json_schema")
    return described.get("schema") if isinstance(described, dict) else None


def _schema_of_output(config: Any) -> dict[str, Any] | None:
    """JSON schema in Anthropic's `output_config` (None without one)."""
    form: Any = config.get("format") if isinstance(config, dict) else None
    return form.get("schema") if isinstance(form, dict) else None


def _is_model(form: Any) -> bool:
    return isinstance(form, type) and issubclass(form, BaseModel)


# return values, by entry point


def _with_parsed(message: Any, form: Any) -> Any:
    ours = _stands_in() or "policy_version" in message.response_metadata
    if (
        not ours
        or not _is_model(form)
        or message.tool_calls
        or "parsed" in message.additional_kwargs
    ):
        return message
    parsed = {"parsed": form.model_validate_json(message.text)}
    return message.model_copy(update={"additional_kwargs": message.additional_kwargs | parsed})


async def _with_parsed_later(answer: Awaitable[Any], form: Any) -> Any:
    return _with_parsed(await answer, form)


def _stream_with_parsed(chunks: Iterator[Any], form: Any) -> Iterator[Any]:
    whole: Any = None
    for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
        yield chunk
    yield from _last_chunks(whole, form)


async def _astream_with_parsed(chunks: AsyncIterator[Any], form: Any) -> AsyncIterator[Any]:
    whole: Any = None
    async for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
        yield chunk
    for chunk in _last_chunks(whole, form):
        yield chunk


def _last_chunks(whole: Any, form: Any) -> Iterator[Any]:
    """Additional last chunk with the parsed object (nothing if there is no object)."""
    if whole is not None and (found := _with_parsed(whole, form)) is not whole:
        yield AIMessageChunk(
            content="", id=whole.id, additional_kwargs={"parsed": found.additional_kwargs["parsed"]}
        )


_GIVING_BACK: dict[str, Callable[[Any, Any], Any]] = {
    "invoke": _with_parsed,
    "ainvoke": _with_parsed_later,
    "stream": _stream_with_parsed,
    "astream": _astream_with_parsed,
}
