"""Requests to a LangChain chat model that is used instead of an engine, and the record of their
sampling parameters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from hrm_agent.basics.async_bridge import call_in_thread
from hrm_agent.errors import ModelError
from hrm_agent.models.call_recording import PendingCall, plain
from hrm_agent.trajectory import Sampling, SentSampling, content_hash
from hrm_agent.trajectory.conversation_digest import context_of

__all__ = [
    "ask_in_thread",
    "hashes_of_options",
    "is_text",
    "most_prompt_tokens",
    "name_of_model",
    "policy_options",
    "sent_sampling",
]

_LIMITS = (
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_new_tokens",
    "num_predict",
)
"""Names under which providers take the maximum number of completion tokens."""
_OTHER = (
    *(
        "frequency_penalty",
        "min_p",
        "presence_penalty",
        "reasoning_effort",
        "repeat_penalty",
        "repetition_penalty",
    ),
    *("thinking_budget", "top_a", "top_k", "verbosity"),
)
"""Names of further sampling parameters, whose values are numbers or short texts."""
_ADDRESSES = (
    *("base_url", "openai_api_base", "azure_endpoint", "anthropic_api_url", "endpoint_url"),
    *("endpoint", "host", "inference_server_url", "location", "region_name"),
)
"""Attributes with the address of a model."""
_ADDED = ("default_headers", "default_query", "extra_body", "model_kwargs")
"""Attributes with options that some classes send and do not report to tracers."""
_KEY = re.compile(
    r"(?i)(?:^|[-_])(?:api[-_]?key|authorization|cookie|credentials|password|secret|token)$"
)
"""Pattern of names of options that hold a key, which may change at any time."""
_NOT_SENT = frozenset(
    {
        *("stop", "tools", "functions"),  # these are compared apart
        *("ls_structured_output_format", "structured_output_format"),
        *("stream", "streaming", "stream_options", "stream_usage", "max_retries"),
        *("timeout", "request_timeout", "default_request_timeout"),
    }
)
"""Options that do not change an answer."""
_TEXT_PARTS = frozenset(
    {
        *("text", "output_text", "text-plain"),
        *("reasoning", "thinking", "redacted_thinking", "refusal"),
        *("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "tool_result"),
        *("function_call", "input_json_delta"),
    }
)
"""Types of the parts of a message that are sent as text."""
_FRAME = 32
"""Allowance in tokens for what a provider writes around a message or a tool."""


def ask_in_thread(
    model: BaseChatModel, pending: PendingCall, options: dict[str, Any]
) -> Future[Any]:
    """Call a chat model in a thread. Sync and async callers both use this function.

    Temperature, top-p and the token limit are passed on if they are set, under LangChain's usual
    names. A seed is not passed on, since few providers take one. If the provider refuses a
    parameter, its error is raised.
    """
    tools = options.get("tools")
    choice = options.get("tool_choice")
    runnable: Any = (
        model.bind_tools(tools, **({"tool_choice": choice} if choice else {})) if tools else model
    )
    passed = policy_options(pending.sampling)

    def ask() -> Any:
        try:
            return runnable.invoke(list(pending.messages), {"callbacks": []}, **passed)
        except Exception as error:
            # the graph is not at fault, so the run stops and can be resumed
            raise ModelError(
                f"The model {name_of_model(model)} gave no answer: {type(error).__name__}: {error}.",
                "Check its key, its name and the network, then `hrm-agent resume` the run.",
            ) from error

    # an empty context, since the provider must not see the graph's config
    return call_in_thread(ask, Context())


def name_of_model(backend: Any) -> str:
    """Recorded name of a chat model or an engine."""
    name = getattr(backend, "model_name", None) or getattr(backend, "model", None)
    return str(name or type(backend).__name__)


def most_prompt_tokens(messages: Sequence[BaseMessage], tools: Sequence[Any]) -> int:
    """Upper bound of a request's prompt tokens for any tokenizer of bytes: a token is at least a
    byte. `_FRAME` tokens are added for each message and tool, and for the request.
    """
    texts = (json.dumps(part, ensure_ascii=False, default=str) for part in context_of(messages))
    offered = (json.dumps(plain(tool), ensure_ascii=False) for tool in tools)
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in (*texts, *offered)]
    return sum(sizes) + _FRAME * (len(sizes) + 1)


def is_text(messages: Sequence[BaseMessage]) -> bool:
    """True if no message has a part other than text, such as an image. The tokens of such a part
    do not depend on its bytes.
    """
    return all(_is_text(message.content) for message in messages)


def _is_text(content: Any) -> bool:
    if not isinstance(content, list):
        return True
    parts: list[Any] = content
    # the result of a tool has parts of its own
    return all(
        isinstance(part, str) or (part.get("type") in _TEXT_PARTS and _is_text(part.get("content")))
        for part in parts
    )


def policy_options(sampling: Sampling) -> dict[str, Any]:
    """Sampling parameters that are set, under LangChain's usual names, without the seed.

    Parameters that are not set are left to the provider, since some of its models take no
    temperature, or think for longer than the default limit.
    """
    given = sampling.model_dump(
        include=sampling.model_fields_set & {"temperature", "max_tokens", "top_p"}
    )
    return {**given, "stop": list(sampling.stop) or None}


def sent_sampling(model: BaseChatModel, options: Mapping[str, Any]) -> SentSampling:
    """Sampling parameters in a request to `model`: those of the model, overridden by those of the
    call.

    They are read from what LangChain reports to tracers, since only the provider's class knows what
    it sends. A missing parameter was not sent. Values of an unknown form are omitted.
    """
    told = _reported(model, options)
    traced = cast("dict[str, Any]", model._get_ls_params(**options))  # pyright: ignore[reportPrivateUsage]
    limits = (_amount(told.get(name)) for name in _LIMITS)
    ends: Any = told.get("stop") or traced.get("ls_stop") or ()
    ends = ends if isinstance(ends, (list, tuple)) else [ends]
    found = {
        "temperature": _first(
            _amount(told.get("temperature")), _amount(traced.get("ls_temperature"))
        ),
        "top_p": _amount(told.get("top_p")),
        "max_tokens": _whole(_first(*limits, _amount(traced.get("ls_max_tokens")))),
        "seed": _whole(_amount(told.get("seed"))),
        "stop": tuple(text for text in ends if isinstance(text, str)),
        "other": {name: told[name] for name in _OTHER if _is_plain(told.get(name))},
    }
    return SentSampling.model_validate(found)


def _reported(model: BaseChatModel, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a request that LangChain reports to tracers."""
    named = {name: value for name, value in options.items() if name != "stop"}
    return model._get_invocation_params(stop=options.get("stop"), **named)  # pyright: ignore[reportPrivateUsage]


def hashes_of_options(model: BaseChatModel, options: Mapping[str, Any]) -> dict[str, str]:
    """Name of each option of a request to `model`, also of its address -> hash of its value.
    Options that `sent_sampling` has are left out, and so are keys.
    """
    told = _reported(model, options)
    # a client reads an address from the environment, too
    client = getattr(model, "root_client", None)
    url = getattr(client, "base_url", None)
    sent = {name: getattr(model, name, None) for name in (*_ADDRESSES, *_ADDED)} | {**told}
    if url is not None:
        sent["base_url"] = str(url)
        sent.pop("openai_api_base", None)
    recorded = {"temperature", "top_p", "seed", *_LIMITS, *_OTHER}
    found = dict[str, str]()
    for name, value in sent.items():
        if value is None or value == {} or name in _NOT_SENT or _KEY.search(name):
            continue
        if name in recorded and _is_plain(value):
            continue
        if name in _ADDRESSES:
            value = str(value).rpartition("@")[2]  # without a password
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, Any]", value).items()
            value = {key: each for key, each in entries if not _KEY.search(key)}
        found[name] = content_hash(_hashable(value))[:16]
    return found


def _hashable(value: Any) -> Any:
    """JSON of an option. A class becomes the schema of its values."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    if isinstance(value, Mapping):
        options = cast("Mapping[str, Any]", value).items()
        return {str(name): _hashable(each) for name, each in options}
    return plain(value)


def _amount(value: Any) -> float | int | None:
    return value if _is_plain(value) and not isinstance(value, (bool, str)) else None


def _is_plain(value: Any) -> bool:
    """True for a text, or a number that JSON can hold."""
    return isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value))


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == int(value) else None


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
