"""Strict parser of chat requests: `POST /v1/chat/completions` -> `ChatRequest`.

An unsupported parameter that would change the answer is refused, never silently dropped. A value
that changes nothing (`n=1`, `presence_penalty=0`) is accepted, because clients send it. A parameter
that is only for the accounting of a provider (`user`, `metadata`) is ignored.

The last message, the user's, is the task. The messages before it are passed to graphs whose state
has messages; a graph that takes the problem as text gets the last message alone. The text of a
system (or developer) message is put before the task, as part of the user's turn: the system turn
belongs to the graph's roles, and a caller cannot take it over. Content is text: a codec encodes a
control token that is spelled in it as its characters, so that no content begins a turn. Tools are
the graph's own. A client cannot offer any, nor claim results of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hrm_agent.basics.unicode import without_surrogates
from hrm_agent.models.own_defaults import UsualAnswer
from hrm_agent.runtime.episode import HISTORY
from hrm_agent.runtime.serving.answers import reasoning
from hrm_agent.trajectory import Sampling, TaskRef

__all__ = [
    "DEFAULT_LIMITS",
    "OTHER_LIMIT",
    "ChatRequest",
    "RefusedError",
    "read_request",
    "refusal",
]

MAX_MESSAGES = 1000
MAX_STOPS = 4
_IGNORED = {
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, 0.0),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Parameter -> values that change nothing."""
_THE_SERVERS = ("model", "models", "wiki", "user_agent", "cache", "index", "tools", "prices")
"""Options of a graph that a client may not set: they reach files, addresses, keys and code of the
server, or change the accounting of a limit on cost.
"""
_LIMIT, _COST = "max_", "max_cost"
"""Prefix of the options that limit a run, and the one option without a default limit."""
DEFAULT_LIMITS = {
    "max_turns": 100,
    "max_rounds": 100,
    "max_calls": 1000,
    "max_tool_calls": 1000,
    "max_seconds": 3600,
}
OTHER_LIMIT = 1_000_000
"""Maximum of a limit that `DEFAULT_LIMITS` does not name. Both bound what a client may request if
the server gave no limit.
"""


class RefusedError(Exception):
    """Error of a request, answered in OpenAI's form."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Parsed chat request."""

    model: str
    """Name of the graph."""
    prompt: str
    """Task: the last user message, after the text of system messages."""
    said: str
    """Last user message by itself."""
    history: tuple[dict[str, str], ...] = ()
    """The turns before the task, each as `{"role": "user" or "assistant", "content": text}`, an
    answer also with its thoughts.
    """
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `Sampling` that the client sets, without the limit on tokens."""
    max_tokens: int | None = None
    """Maximum completion tokens of one reply (None: the server's limit)."""
    seed: int | None = None
    """Base of the seeds of all calls of the run (None: drawn from the system)."""
    stop: tuple[str, ...] = ()
    """Texts before which the content ends."""
    stream: bool = False
    """True if the reply is sent in pieces, as server-sent events."""
    include_usage: bool = False
    """True if a stream ends with the counts of tokens."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the graph."""

    def task(self, name: str) -> TaskRef:
        metadata = {HISTORY: list(self.history)} if self.history else {}
        return TaskRef(id=name, family="chat", prompt=self.prompt, metadata=metadata)

    def sampled_by(self, base: Sampling, backend: object) -> Sampling:
        """Sampling parameters of the server, with the client's in their place. The lower token
        limit holds.

        If the server has no limit and `backend` is an engine, the usual limit of its model holds.
        """
        most = base.max_tokens if "max_tokens" in base.model_fields_set else None
        if most is None and isinstance(backend, UsualAnswer):
            most = backend.usual_answer
        limit = (
            {}
            if self.max_tokens is None
            else {"max_tokens": min(most or self.max_tokens, self.max_tokens)}
        )
        return base.model_copy(update={**self.sampling, **limit})

    def context_over(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Options of the server, with the client's in their place. The lower limit holds: the
        server's or, if it has none, `DEFAULT_LIMITS`. Raises `RefusedError`.
        """
        limits: dict[str, float] = {}
        for name, asked in self.context.items():
            limit = base.get(name)
            if not name.startswith(_LIMIT):
                continue
            if isinstance(limit, (int, float)):
                limits[name] = _lower(limit, asked, name)
            elif name != _COST:
                limits[name] = _lower(DEFAULT_LIMITS.get(name, OTHER_LIMIT), asked, name)
            elif asked is not None:
                limits[name] = _lower(float("inf"), asked, name)
        return {**base, **self.context, **limits}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _ContentPart(_Strict):
    type: Literal["text"]
    text: str


class _Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_ContentPart]
    name: str | None = None
    reasoning_content: str | None = None
    """Thoughts of an earlier answer, as clients send them back (None: it has none)."""
    refusal: None = None

    @property
    def text(self) -> str:
        text = (
            self.content
            if isinstance(self.content, str)
            else "".join(part.text for part in self.content)
        )
        return without_surrogates(text)


class _StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Body(_Strict):
    model: str
    messages: Annotated[list[_Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    context: dict[str, Any] = Field(default_factory=dict)


def read_request(body: Any) -> ChatRequest:
    """Parse the body of a request. Raises `RefusedError`."""
    if not isinstance(body, dict):
        raise RefusedError(400, "The body has to be a JSON object.")
    try:
        read = _Body.model_validate(_supported(body))
    except ValidationError as error:
        raise refusal(error) from None
    for name in read.context:
        if name in _THE_SERVERS:
            what = "Only the server may set this option: it decides on models, sources and prices."
            raise RefusedError(400, what, param=f"context.{name}")
    limits = [limit for limit in (read.max_tokens, read.max_completion_tokens) if limit is not None]
    stops = [read.stop] if isinstance(read.stop, str) else read.stop or []
    given = {"temperature": read.temperature, "top_p": read.top_p}
    if read.messages[-1].role != "user" or not read.messages[-1].text.strip():
        raise RefusedError(
            400, "The last message has to be a user message that is not empty.", param="messages"
        )
    said = [message.text for message in read.messages if message.role in ("system", "developer")]
    if any(message.reasoning_content for message in read.messages if message.role != "assistant"):
        raise RefusedError(
            400, "Only an assistant message has reasoning_content.", param="messages"
        )
    turns = [
        {
            "role": m.role,
            "content": m.text,
            **reasoning(without_surrogates(m.reasoning_content or "")),
        }
        for m in read.messages[:-1]
        if m.role in ("user", "assistant")
    ]
    return ChatRequest(
        model=read.model,
        prompt="\n\n".join([*filter(str.strip, said), read.messages[-1].text]),
        said=read.messages[-1].text,
        history=tuple(turns),
        sampling={name: value for name, value in given.items() if value is not None},
        max_tokens=min(limits, default=None),
        seed=read.seed,
        stop=tuple(stop for stop in stops if stop),
        stream=bool(read.stream),
        include_usage=read.stream_options is not None and read.stream_options.include_usage,
        context=read.context,
    )


def _supported(body: dict[str, Any]) -> dict[str, Any]:
    """Parameters that count. Raises `RefusedError` for one that is unknown or not supported."""
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name in _IGNORED or (value is None and name not in ("model", "messages")):
            continue
        if name in _NEUTRAL:
            if not any(
                type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL[name]
            ):
                what = (
                    "tools are the graph's own"
                    if "tool" in name or "function" in name
                    else "it is not supported"
                )
                raise RefusedError(
                    400, f"{name}: {what}.", code="unsupported_parameter", param=name
                )
            continue
        if name not in _Body.model_fields:
            raise RefusedError(
                400,
                f"There is no parameter {name[:80]!r}.",
                code="unknown_parameter",
                param=name[:80],
            )
        kept[name] = value
    return kept


def _lower(limit: float, asked: Any, name: str) -> float:
    """Lower one of two limits (`asked` None: the client requests none)."""
    if asked is None:
        return limit
    if isinstance(asked, bool) or not isinstance(asked, (int, float)):
        raise RefusedError(400, "A limit has to be a number.", param=f"context.{name}")
    return min(limit, asked)


def refusal(error: ValidationError) -> RefusedError:
    """Error for the first invalid value, without that value."""
    first = error.errors(include_url=False, include_input=False)[0]
    param = ".".join(str(part) for part in first["loc"] if part != "")
    if first["loc"][:1] == ("messages",) and first["loc"][-1:] == ("role",):
        message = (
            "The role must be system, developer, user or assistant; the graph runs its own tools."
        )
        return RefusedError(400, message, param=param)
    return RefusedError(400, f"{param}: {first['msg']}.", param=param)
