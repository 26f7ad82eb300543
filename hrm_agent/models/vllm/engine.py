"""Engine of a vLLM server, which gets token ids and returns sampled ids with log-probs.

The server never renders prompts. The codec is the same as for local policies, with the server's
tokenizer. So a conversation is continued token by token, and runs are recorded as with a local
engine. The server contributes batching, several GPUs, and long contexts.

All requests run on one event loop in a background thread, so any number of threads and loops may
`submit`. Cancelling a future closes its connection, which frees the request's place on the server.

An answer is a function of (weights, prompt, seed) as far as the server guarantees that. vLLM draws
random numbers by request, as the local engine does, but in another way. So the two engines sample
different tokens for the same seed.

The server computes log-probs before or after the temperature, depending on how it was started
(`logprob_kind`). If they are raw and a call's temperature is not 1, they are correct, but do not
belong to the sampled distribution. To get those of the sampled distribution, start the server with
`--logprobs-mode processed_logprobs`.

Limits: this engine cannot change the server's weights. Code that changes them reports their version
by `serve` (`training.engines.fleet`). How long a request waits inside the server is unknown:
`queue_seconds` only counts the wait for one of `max_requests` places.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from hrm_agent.basics.async_bridge import BackgroundLoop
from hrm_agent.errors import ContextLengthError, ModelError, to_install
from hrm_agent.models.adapter_folder import codec_on_record
from hrm_agent.models.capabilities import Capabilities, Speech
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.own_defaults import usual_answer
from hrm_agent.models.vllm.answer import VllmReply, request_body
from hrm_agent.models.vllm.connection import Connection
from hrm_agent.models.vllm.server import (
    Refusal,
    Served,
    VllmAddress,
    look_up,
    parse_address,
    server_tokens,
)

if TYPE_CHECKING:
    from hrm_agent.models.codec.chat_template import PolicyCodec

__all__ = ["VllmEngine", "load_vllm_codec", "open_vllm"]

_PROBE = "The answer to 17 * 23 is 391. Größe, 漢字, 🎉\n\tdef f(x): return x"


class VllmEngine:
    """Engine that samples on a vLLM server, for many callers in parallel."""

    def __init__(
        self,
        address: VllmAddress,
        served: Served,
        codec: PolicyCodec,
        *,
        name: str = "",
        max_requests: int = 256,
    ) -> None:
        """`max_requests`: maximum number of parallel requests to the server. Further requests wait
        in this process, in order.

        `name`: recorded name of calls (empty: the server's address).
        """
        self.name = name or address.name
        self.codec = codec
        self.logprob_kind = served.logprob_kind
        self.policy_version = 0
        self._model = served.model
        self.cache_salt = ""
        """Salt of the server's prefix cache: only requests with the same salt share prefixes
        (empty: no salt).
        """
        self.max_length = served.max_length
        """Maximum tokens of prompt and answer together (None if the server did not report it)."""
        self.usual_answer = usual_answer(served.max_length)
        """Maximum completion tokens of an answer without an explicit limit."""
        self._address = address
        self._closed = self._hanging_up = False
        self._process = os.getpid()
        """Id of the process that created the engine. A forked process lacks the thread of the loop,
        so it must not close the engine, which would affect the parent.
        """
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connection = Connection(address)
        self._places = asyncio.Semaphore(max_requests)
        self._loop = BackgroundLoop(f"engine {self.name}")
        atexit.register(self.close)

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Send a request. Cancelling the future frees its place on the server."""
        length = len(request.prompt_ids)
        error = None
        if not length:
            error = ModelError("The prompt is empty.", "Send at least one message.")
        elif self.max_length is not None and length >= self.max_length:
            error = ContextLengthError(
                f"The prompt has {length} tokens, and model {self.name!r} takes at most"
                f" {self.max_length}, including the answer.",
                "Shorten the conversation, or start the server with a larger --max-model-len.",
            )
        if self._process != os.getpid():
            raise self._closed_error()
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if error is None:
                return self._loop.submit(self._answer(request))
        future: Future[Completion] = Future()
        future.set_exception(error)
        return future

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Raise `ModelError`: weights go to a server by `hrm_agent.models.vllm.weights`, and
        `serve` reports their version.
        """
        raise ModelError(
            f"{self.name} cannot take weights, since its server has them.",
            "Train with `--engine vllm --servers URL`.",
        )

    @property
    def address(self) -> VllmAddress:
        """Address of the server."""
        return self._address

    @property
    def model(self) -> str:
        """Model name in requests to the server."""
        return self._model

    def serve(self, version: int, model: str = "") -> None:
        """Use `version` from the next request on as the version of the server's weights, and
        `model`, if given, as the model's name in requests.
        """
        self.policy_version, self._model = version, model or self._model

    def capabilities(self) -> Capabilities:
        """Capabilities of the server's model. `trainable` is False, since a trainer in this process
        cannot change its weights.
        """
        speech: Speech | None = getattr(self.codec, "speech", None)
        return Capabilities(
            kind="vllm",
            tools=speech is None or not any(fault.about_tools for fault in speech.faults),
            token_ids=True,
            logprobs=self.logprob_kind,
            streaming=True,
            structured=True,
            trainable=False,
            max_length=self.max_length,
            speech=speech,
        )

    def close(self) -> None:
        """Close all connections. Pending requests fail with `ModelError`."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self._loop.run(self._hang_up())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # on the loop

    async def _answer(self, request: GenerationRequest) -> Completion:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        submitted_at = time.monotonic()
        try:
            async with self._places:
                return await self._ask(request, time.monotonic() - submitted_at)
        except asyncio.CancelledError:
            if self._hanging_up:
                raise self._closed_error() from None
            raise
        finally:
            self._tasks.discard(task)

    async def _ask(self, request: GenerationRequest, waited: float) -> Completion:
        try:
            return await self._sample(request, waited)
        except Refusal:
            if request.schema is None:
                raise
            # the server cannot enforce the schema
            return await self._sample(replace(request, schema=None), waited)

    async def _sample(self, request: GenerationRequest, waited: float) -> Completion:
        limit = request.sampling.max_tokens
        if self.max_length is not None:
            limit = min(limit, self.max_length - len(request.prompt_ids))
        answer = VllmReply(request, self._address, self.codec, limit)
        version = self.policy_version
        body = request_body(request, self._model, self.codec, limit)
        body |= {"cache_salt": self.cache_salt} if self.cache_salt else {}
        await self._connection.ask(body, answer.take)
        return answer.completion(version, waited)

    async def _hang_up(self) -> None:
        pending = self._tasks.copy()
        self._hanging_up = True
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._connection.close()

    def _closed_error(self) -> ModelError:
        return ModelError(f"The engine {self.name!r} is closed.", "Open a new engine.")


def open_vllm(name: str, *, seconds: float | None = None) -> VllmEngine:
    """Engine for `vllm:URL?OPTIONS`. Raises `ModelError`.

    `seconds`: timeout of an answer, used if the name has no timeout.
    """
    address = parse_address(name)
    if seconds is not None and not address.bounded:
        address = replace(address, seconds=seconds)
    _check_transformers(name)
    served = look_up(address)
    codec, encode = _codec(address, served.tokenizer)
    theirs = server_tokens(address, served.model, _PROBE)
    if theirs is not None and theirs != encode(_PROBE):
        raise ModelError(
            f"The tokenizer {served.tokenizer!r} is not the tokenizer of the server at"
            f" {address.url}.",
            "Name the tokenizer that the server was started with: vllm:URL?tokenizer=PATH.",
        )
    return VllmEngine(address, served, codec)


def load_vllm_codec(name: str) -> PolicyCodec:
    """Codec of `vllm:URL?OPTIONS`. The server is only contacted if the string names no tokenizer.

    The string may come from someone else's store, so no key is sent to another machine.
    """
    address = parse_address(name)
    _check_transformers(name)
    asked = address if address.local else replace(address, key_env="")
    return _codec(address, address.tokenizer or look_up(asked).tokenizer)[0]


def _check_transformers(name: str) -> None:
    if find_spec("transformers") is None:
        raise ModelError(
            f"The tokenizer of {name!r} needs transformers.", f"Run `{to_install('train')}`."
        )


def _codec(address: VllmAddress, path: str) -> tuple[PolicyCodec, Callable[[str], list[int]]]:
    """Codec over a tokenizer, and a function that encodes plain text with that tokenizer."""
    from hrm_agent.models.codec.opening import load_codec_of

    try:
        codec: Any = load_codec_of(path, address.codec.over(codec_on_record(path)))
    except ModelError as error:
        raise ModelError(
            f"The server at {address.url} cannot be used, since its tokenizer cannot be loaded:"
            f" {error.message}",
            "Name a folder or a model of the hub that has its tokenizer: vllm:URL?tokenizer=PATH.",
        ) from error
    return codec, lambda text: codec.tokenizer.encode(text, add_special_tokens=False)
