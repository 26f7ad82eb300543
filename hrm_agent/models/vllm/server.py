"""Address of a vLLM server, facts about the served model, and errors for its refusals.

A server is named by one string,
`vllm:http://127.0.0.1:8000/v1?model=NAME&tokenizer=PATH&key_env=NAME&timeout=600`; everything after
`?` is optional. The string is recorded with every call, so it must not contain a secret. Instead of
a key, it has the name of the environment variable that holds the key.

Four facts are requested once, when the engine is opened: the model's name, its tokenizer, the
longest conversation, and the kind of its log-probs. A server does not report this kind. By default
(`--logprobs-mode raw_logprobs`), vLLM takes log-probs from the model's logits, before temperature,
top-p and schema. If it was started with `processed_logprobs`, it takes them after all three. To
find the kind, a test request is sent (`_probe`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import httpx

from hrm_agent.errors import ContextLengthError, ModelError, nearest
from hrm_agent.models.model_string import CodecOptions, codec_options
from hrm_agent.trajectory import LogprobKind

__all__ = [
    "Refusal",
    "Served",
    "ServerGoneError",
    "ServerSilentError",
    "VllmAddress",
    "look_up",
    "object_of",
    "parse_address",
    "refusal",
    "server_tokens",
    "unreachable",
]

KEY_ENV = "VLLM_API_KEY"
SCHEME = "vllm:"
_OPTIONS = ("key_env", "model", "renderer", "template", "thoughts", "timeout", "tokenizer", "tools")
HTTP_OK = 200
_LOOK_UP_SECONDS = 60.0
_LOOK_UP_BYTES = 8 << 20
_ROUNDING = 1e-3
_CONTEXT_SIGNS = ("maximum context length", "max_model_len", "context length")
_SHOWN = 400
"""Number of characters of a server's message in an error."""


@dataclass(frozen=True, slots=True)
class VllmAddress:
    """Address of a server and its options."""

    name: str
    """Whole string, as recorded."""
    url: str
    """Address up to and including `/v1`, without a slash at its end."""
    model: str | None = None
    """Model name (None: the first model that the server lists)."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer (None: the tokenizer that the server was started with).
    """
    key_env: str = KEY_ENV
    """Environment variable that holds the key."""
    seconds: float = 600.0
    """Timeout of an answer in seconds, including waiting (infinite if the caller enforces a timeout
    itself).
    """
    codec: CodecOptions = field(default=CodecOptions())
    """Options of the conversation format."""

    @property
    def bounded(self) -> bool:
        """True if the string has a timeout."""
        return "timeout" in dict(parse_qsl(self.name.partition("?")[2]))

    @property
    def local(self) -> bool:
        """True if the server is on this machine. Then no proxy is used."""
        return (urlsplit(self.url).hostname or "") in ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Served:
    """Facts that a server reports about its model."""

    model: str
    """Name under which the model is served."""
    tokenizer: str
    """Folder or hub name of the tokenizer."""
    max_length: int | None
    """Maximum tokens of prompt and answer together (None if the server does not report it)."""
    logprob_kind: LogprobKind
    """Kind of log-probs, found by a test request: RAW, or SAMPLED if the server processes them."""


class Refusal(ModelError):
    """The server understood the request and refused it (HTTP 400). A retry is useless."""


class ServerGoneError(ModelError):
    """The server is missing, went away while it answered, or failed. Another server may answer the
    same request.
    """


class ServerSilentError(ServerGoneError):
    """The server seems to run but does not answer."""


def parse_address(name: str) -> VllmAddress:
    """Parse `vllm:URL?OPTIONS` into an address. Raises `ModelError`."""
    base, _, query = name.removeprefix(SCHEME).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        httpx.URL(base).host.encode("idna")
    except (ValueError, httpx.InvalidURL):
        parts = urlsplit("")
        usable = None
    if not usable:
        raise ModelError(f"{name!r} names no server.", "Write vllm:http://HOST:PORT/v1.")
    if parts.username is not None or parts.password is not None:
        raise ModelError(
            "The address of the vLLM server contains a password, which would be recorded.",
            _key_hint(),
        )
    for option in options.keys() - set(_OPTIONS):
        hint = (
            _key_hint()
            if "key" in option
            else f"{nearest(option, _OPTIONS)} Known: {', '.join(_OPTIONS)}."
        )
        raise ModelError(f"A vLLM server has no option {option!r}.", hint)
    timeout = options.get("timeout", "600")
    try:
        seconds = float(timeout)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ModelError(
            f"The time limit {timeout!r} is not a number of seconds.",
            "Write timeout=600, for example.",
        )
    path = parts.path.rstrip("/") or "/v1"
    return VllmAddress(
        name=name,
        url=f"{parts.scheme}://{parts.netloc}{path}",
        model=options.get("model") or None,
        tokenizer=options.get("tokenizer") or None,
        key_env=options.get("key_env") or KEY_ENV,
        seconds=seconds,
        codec=codec_options(name, options),
    )


def _key_hint(variable: str = KEY_ENV) -> str:
    return (
        f"Put the key into the environment variable {variable}, or name another variable with"
        " key_env=NAME."
    )


def client_options(address: VllmAddress) -> dict[str, Any]:
    """Options of every HTTP client. Compression is declined, since a few bytes could unpack to any
    size.
    """
    key = os.environ.get(address.key_env, "").strip()
    # the key is checked before use, since an error of the HTTP client would show it
    if not (key.isascii() and (key.isprintable() or not key)):
        raise ModelError(
            f"{address.key_env} holds characters that a key cannot have.",
            "Use printable ASCII in one line.",
        )
    return {
        "headers": {
            "Accept-Encoding": "identity",
            **({"Authorization": f"Bearer {key}"} if key else {}),
        },
        "trust_env": not address.local,
        "verify": address.url.startswith("https:"),  # certificates take time to load
    }


def look_up(address: VllmAddress) -> Served:
    """Request facts about the served model. Raises `ModelError`."""
    with httpx.Client(timeout=_LOOK_UP_SECONDS, **client_options(address)) as client:
        listed: Any = _value(address, client, "GET", "models").get("data")
        entries = [
            cast("dict[str, Any]", each)
            for each in (cast("list[Any]", listed) if isinstance(listed, list) else [])
            if isinstance(each, dict) and isinstance(cast("dict[str, Any]", each).get("id"), str)
        ]
        if not entries:
            raise ModelError(
                f"The server at {address.url} lists no model.", "Start it with a model."
            )
        names = [str(each["id"]) for each in entries]
        wanted = names[0] if address.model is None else address.model
        if wanted not in names:
            hint = f"{nearest(wanted, names)} It serves: {', '.join(names[:20])}."
            raise ModelError(
                f"The server at {address.url} serves no model {wanted!r}.", hint.strip()
            )
        entry = entries[names.index(wanted)]
        base = next((other for other in entries if other["id"] == entry.get("parent")), entry)
        probe = _value(address, client, "POST", "completions", _probe(entry["id"]))
        length = base.get("max_model_len")
        return Served(
            model=entry["id"],
            tokenizer=address.tokenizer or str(base.get("root") or base["id"]),
            max_length=length if isinstance(length, int) and length > 0 else None,
            logprob_kind=_kind(address, probe),
        )


def server_tokens(address: VllmAddress, model: str, text: str) -> list[int] | None:
    """Tokens of `text`, encoded by the server (None if the server does not return them)."""
    url = f"{address.url.removesuffix('/v1')}/tokenize"
    asked = {"model": model, "prompt": text, "add_special_tokens": False}
    try:
        with httpx.Client(timeout=_LOOK_UP_SECONDS, **client_options(address)) as client:
            status, said = _bounded(client, "POST", url, asked)
        tokens = json.loads(said)["tokens"] if status == HTTP_OK else None
    except (httpx.HTTPError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return cast("list[int]", tokens) if isinstance(tokens, list) else None


def _value(
    address: VllmAddress,
    client: httpx.Client,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    try:
        status, said = _bounded(client, method, f"{address.url}/{path}", body)
    except httpx.HTTPError as error:
        raise unreachable(address, error) from error
    if status != HTTP_OK:
        raise refusal(address, status, said.decode(errors="replace"))
    return object_of(address, said)


def _bounded(
    client: httpx.Client, method: str, url: str, body: Mapping[str, Any] | None
) -> tuple[int, bytes]:
    """Status and body of an answer. The body is not decompressed, since compression was declined.
    Raises `httpx.RemoteProtocolError` if the body is too large or takes too long.
    """
    until = time.monotonic() + _LOOK_UP_SECONDS
    said = b""
    with client.stream(method, url, json=body) as response:
        for part in response.iter_raw():
            said += part
            if len(said) > _LOOK_UP_BYTES or time.monotonic() > until:
                raise httpx.RemoteProtocolError("its answer does not end")
        return response.status_code, said


def object_of(address: VllmAddress, text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises `ModelError`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        raise ModelError(
            f"The server at {address.url} is not a vLLM server: it answered {shown[:80]!r}.",
            "Check that the address ends in /v1.",
        )
    return cast("dict[str, Any]", value)


def _probe(model: str) -> dict[str, Any]:
    """Request in which only token 0 is allowed. The log-prob of this token is 0 if the server
    processes log-probs. A raw log-prob is not 0.
    """
    asked = {
        "model": model,
        "prompt": [0],
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 0,
    }
    return {
        **asked,
        "allowed_token_ids": [0],
        "logprobs": 1,
        "return_token_ids": True,
        "ignore_eos": True,
    }


def _kind(address: VllmAddress, probed: Mapping[str, Any]) -> LogprobKind:
    try:
        choice = probed["choices"][0]
        token_ids, (first,) = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        (top,) = choice["logprobs"]["top_logprobs"]
        logprobs = [float(first), *map(float, top.values())]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelError(
            f"The server at {address.url} does not return token ids with their log-probs.",
            "A vLLM from 0.11 on does, on /v1/completions; name any other server by its provider,"
            " as openai:NAME.",
        ) from error
    if token_ids != [0] or max(logprobs) > _ROUNDING:
        raise ModelError(
            f"The log-probs of the server at {address.url} are not log-probabilities.",
            "Start it with --logprobs-mode raw_logprobs.",
        )
    return LogprobKind.RAW if logprobs[0] < -_ROUNDING else LogprobKind.SAMPLED


def unreachable(address: VllmAddress, error: Exception) -> ModelError:
    """Error for a server that is missing, or went away while it answered."""
    why = str(error) or type(error).__name__
    silent = isinstance(error, httpx.TimeoutException) and not isinstance(
        error, httpx.ConnectTimeout
    )
    return (ServerSilentError if silent else ServerGoneError)(
        f"The vLLM server at {address.url} does not answer: {why}.",
        "Start it (docs/models.md, vLLM), or check the address; `hrm-agent resume` continues a run"
        " that stopped.",
    )


def refusal(address: VllmAddress, status: int, body: str) -> ModelError:
    """Error for an HTTP status other than 200."""
    said = _said(body)
    if status in (401, 403):
        return ModelError(
            f"The vLLM server at {address.url} does not accept the key.", _key_hint(address.key_env)
        )
    if status == 404:
        return ModelError(
            f"The server at {address.url} does not have what was requested: {said}",
            "Check the address, which ends in /v1, and model=NAME.",
        )
    if status in (400, 422):
        if any(sign in said for sign in _CONTEXT_SIGNS):
            return ContextLengthError(
                f"The conversation does not fit the server's model: {said}",
                "Shorten the conversation, or start the server with a larger --max-model-len.",
            )
        return Refusal(f"The vLLM server at {address.url} refused the request: {said}")
    return ServerGoneError(
        f"The vLLM server at {address.url} failed (HTTP {status}): {said}",
        "See its log; `hrm-agent resume` continues a run that stopped.",
    )


def _said(body: str) -> str:
    """Message inside an error body of any format."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        value = body
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = cast("dict[str, Any]", value)[key]
    return " ".join(str(value).split())[:_SHOWN]
