"""Where a vLLM server stands, what it serves, and what its refusals mean.

A server is named by one string,
`vllm:http://127.0.0.1:8000/v1?model=NAME&tokenizer=PATH&key_env=NAME&timeout=600`; all after `?` is
optional. The string is recorded with every call, so no secret may stand in it: a key is named by
the environment variable that holds it.

What is served is asked once, when the engine is opened: the model's name, its tokenizer, the
longest conversation, and what its log-probs mean. The last is no part of the protocol. By default
(`--logprobs-mode raw_logprobs`) vLLM takes them from the logits as the model gave them, before
temperature, top-p and schema; a server started with `processed_logprobs` takes them after all of
these, and looks like any other. So it is put to a test (`_probe`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
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
_CONTEXT_SIGNS = ("maximum context length", "max_model_len", "context length")
_SHOWN = 400
"""Characters of a server's own words in an error."""


@dataclass(frozen=True, slots=True)
class VllmAddress:
    """A server and what was said about it."""

    name: str
    """The whole string, as recorded."""
    url: str
    """Up to and with `/v1`, without a slash at its end."""
    model: str | None = None
    """None takes the one that the server lists first."""
    tokenizer: str | None = None
    """Folder or hub name; None takes what the server was started with."""
    key_env: str = KEY_ENV
    """Environment variable that holds the key."""
    seconds: float = 600.0
    """Within which an answer has to be there, waiting included; infinite where somebody else
    watches over that.
    """
    codec: CodecOptions = field(default=CodecOptions())
    """How the model is spoken to."""

    @property
    def bounded(self) -> bool:
        """True if its string says how long an answer may take."""
        return "timeout" in dict(parse_qsl(self.name.partition("?")[2]))

    @property
    def local(self) -> bool:
        """On this machine, where no proxy is asked."""
        return (urlsplit(self.url).hostname or "") in ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says of the model that it serves."""

    model: str
    """Name under which it is served."""
    tokenizer: str
    """Folder or hub name."""
    max_length: int | None
    """Prompt and answer are at most so many tokens; None where it does not say."""
    logprob_kind: LogprobKind
    """RAW, or SAMPLED for processed ones, as the test of the server showed."""


class Refusal(ModelError):
    """The server understood and refused (HTTP 400): asking again as it is has no use."""


class ServerGoneError(ModelError):
    """The server is not there, went away while it answered, or failed: another may answer the same
    request.
    """


class ServerSilentError(ServerGoneError):
    """The server is there, as far as can be seen, and does not answer."""


def parse_address(name: str) -> VllmAddress:
    """The server that `vllm:URL?OPTIONS` names. Raises `ModelError`."""
    base, _, query = name.removeprefix(SCHEME).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        httpx.URL(base).host.encode("idna")
    except (ValueError, httpx.InvalidURL):
        parts, usable = urlsplit(""), None
    if not usable:
        raise ModelError(f"{name!r} names no server.", "Write vllm:http://HOST:PORT/v1.")
    if parts.username is not None or parts.password is not None:
        raise ModelError(
            "The address of the vLLM server holds a password, and it is recorded.", _key_hint()
        )
    for option in options.keys() - set(_OPTIONS):
        hint = (
            _key_hint()
            if "key" in option
            else f"{nearest(option, _OPTIONS)} Known: {', '.join(_OPTIONS)}."
        )
        raise ModelError(f"A vLLM server has no option {option!r}.", hint)
    path = parts.path.rstrip("/") or "/v1"
    return VllmAddress(
        name=name,
        url=f"{parts.scheme}://{parts.netloc}{path}",
        model=options.get("model") or None,
        tokenizer=options.get("tokenizer") or None,
        key_env=options.get("key_env") or KEY_ENV,
        seconds=_seconds(options.get("timeout", "600")),
        codec=codec_options(name, options),
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ModelError(
            f"The time limit {text!r} is not a number of seconds.",
            "Write timeout=600, for example.",
        )
    return seconds


def _key_hint(variable: str = KEY_ENV) -> str:
    return (
        f"Put the key into the environment variable {variable}, or name another with key_env=NAME."
    )


def client_options(address: VllmAddress) -> dict[str, Any]:
    """What every client is made with. Compression is declined: a few bytes could unpack into any
    number.
    """
    key = os.environ.get(address.key_env, "").strip()
    # said here, since whoever sends it would show it
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
    """Ask the server what it serves. Raises `ModelError`."""
    with httpx.Client(timeout=_LOOK_UP_SECONDS, **client_options(address)) as client:
        entries = _models(address, _value(address, client, "GET", "models"))
        entry = _chosen(address, entries)
        base = next((other for other in entries if other["id"] == entry.get("parent")), entry)
        probe = _value(address, client, "POST", "completions", _probe(entry["id"]))
        return Served(
            model=entry["id"],
            tokenizer=address.tokenizer or str(base.get("root") or base["id"]),
            max_length=_length(base),
            logprob_kind=_kind(address, probe),
        )


def server_tokens(address: VllmAddress, model: str, text: str) -> list[int] | None:
    """How the server's own tokenizer splits `text`; None where it does not say."""
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
    """Status and body as they came: not unpacked, since compression was declined, and not without
    an end.
    """
    until, said = time.monotonic() + _LOOK_UP_SECONDS, b""
    with client.stream(method, url, json=body) as response:
        for part in response.iter_raw():
            said += part
            if len(said) > _LOOK_UP_BYTES or time.monotonic() > until:
                raise httpx.RemoteProtocolError("its answer does not end")
        return response.status_code, said


def object_of(address: VllmAddress, text: str | bytes) -> dict[str, Any]:
    """The JSON object that `text` is. Raises `ModelError`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        raise ModelError(
            f"What answers at {address.url} is not a vLLM server: it said {shown[:80]!r}.",
            "Check the address: it ends in /v1.",
        )
    return cast("dict[str, Any]", value)


def _models(address: VllmAddress, listed: Mapping[str, Any]) -> list[dict[str, Any]]:
    data: Any = listed.get("data")
    entries = (
        [cast("dict[str, Any]", entry) for entry in data if isinstance(entry, dict)]
        if _is_list(data)
        else []
    )
    named = [entry for entry in entries if isinstance(entry.get("id"), str)]
    if not named:
        raise ModelError(f"The server at {address.url} lists no model.", "Start it with a model.")
    return named


def _chosen(address: VllmAddress, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if address.model is None:
        return entries[0]
    names = [str(entry["id"]) for entry in entries]
    if address.model not in names:
        hint = f"{nearest(address.model, names)} It serves: {', '.join(names[:20])}."
        raise ModelError(
            f"The server at {address.url} serves no model {address.model!r}.", hint.strip()
        )
    return entries[names.index(address.model)]


def _length(entry: Mapping[str, Any]) -> int | None:
    length = entry.get("max_model_len")
    return length if isinstance(length, int) and length > 0 else None


def _probe(model: str) -> dict[str, Any]:
    """Token 0 and no other is allowed after token 0: a log-prob of the policy does not know of
    that, and is not 0.
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
            f"The server at {address.url} gives no token ids with their log-probs.",
            "A vLLM from 0.11 on does, on /v1/completions; name any other server by its provider,"
            " as openai:NAME.",
        ) from error
    if token_ids != [0] or max(logprobs) > _ROUNDING:
        raise ModelError(
            f"The log-probs of the server at {address.url} are not log-probabilities.",
            "Start it with --logprobs-mode raw_logprobs.",
        )
    return LogprobKind.RAW if logprobs[0] < -_ROUNDING else LogprobKind.SAMPLED


_ROUNDING = 1e-3


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def unreachable(address: VllmAddress, error: Exception) -> ModelError:
    """The server is not there, or went away while it answered."""
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
    """What an HTTP status other than 200 means."""
    said = _said(body)
    if status in (401, 403):
        return ModelError(
            f"The vLLM server at {address.url} does not take the key.", _key_hint(address.key_env)
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
                "Shorten it, or start the server with a larger --max-model-len.",
            )
        return Refusal(f"The vLLM server at {address.url} refused the request: {said}")
    return ServerGoneError(
        f"The vLLM server at {address.url} failed (HTTP {status}): {said}",
        "See its log; `hrm-agent resume` continues a run that stopped.",
    )


def _said(body: str) -> str:
    """The message inside an error, whatever it is wrapped in."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        value = body
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = cast("dict[str, Any]", value)[key]
    return " ".join(str(value).split())[:_SHOWN]
