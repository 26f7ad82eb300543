"""Shares one engine among several processes. `EngineProxy` represents the engine in a worker
process, and `EngineHost` forwards a worker's requests to the engine.

A proxy implements the `Engine` protocol. The engine's codec is sent to the worker once, so that a
worker needs neither weights nor torch. Seeds are part of requests, so the sample of a request does
not depend on the process that sent it.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models import Engine, GenerationRequest, load_policy
from hrm_agent.models.engine import Codec, Completion
from hrm_agent.models.own_defaults import UsualAnswer
from hrm_agent.training.workers.wire import Message, told
from hrm_agent.trajectory import FinishReason, LogprobKind, Sampling

__all__ = ["EngineHost", "EngineProxy"]

_OF_WEIGHTS = (
    *("hrm_agent.models.local.", "hrm_agent.models.restarting", "hrm_agent.models.vllm."),
    "hrm_agent.training.engines.fleet",
)
"""Prefixes of the modules of engines that read only tokens. The messages of a prompt are not sent
to them.
"""


class _Facts(NamedTuple):
    """Facts about an engine that are sent to a worker."""

    name: str
    codec: Codec
    logprob_kind: LogprobKind
    policy_version: int
    reads_messages: bool
    usual_answer: int


class EngineProxy:
    """Proxy, in a worker, of an engine of the parent process.

    `on_token` is called with all tokens when the answer is complete. So a graph streams the same
    pieces as without a proxy, but late.
    """

    def __init__(self, key: str, facts: bytes, ask: Callable[[Future[Any], Message], None]) -> None:
        """`key`: name by which the parent knows the engine. `ask`: function that sends a request
        and resolves the future with the answer.
        """
        told: _Facts = pickle.loads(facts)  # noqa: S301 - only the parent can write it
        self.name = told.name
        self.codec = told.codec
        self.logprob_kind = told.logprob_kind
        self.policy_version = told.policy_version
        self.usual_answer = told.usual_answer
        self._key = key
        self._ask = ask
        self._reads_messages = told.reads_messages

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. Cancelling the future frees its place in the engine."""
        future: Future[Completion] = Future()
        answer: Future[Any] = Future()
        answer.add_done_callback(partial(_hand_over, future, request.on_token))
        future.add_done_callback(lambda done: answer.cancel() if done.cancelled() else None)
        messages = tuple(request.messages) if self._reads_messages else ()
        sampling = request.sampling.model_dump()
        asked = (
            self._key,
            request.prompt_ids,
            sampling,
            request.schema,
            messages,
            request.role,
            request.thread,
        )
        self._ask(answer, asked)
        return future

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Raise `ModelError`, since only the process that has the engine can publish."""
        raise ModelError(
            "A worker process cannot publish weights.", "Publish them where the engine is."
        )

    def close(self) -> None:
        """Do nothing, since the parent process closes the engine."""


def _hand_over(
    future: Future[Completion], on_token: Callable[[int], None] | None, answer: Future[Any]
) -> None:
    if answer.cancelled() or not future.set_running_or_notify_cancel():
        return
    try:
        token_ids, logprobs, reason, version, queued, constrained = answer.result()
        for token in token_ids if on_token is not None else ():
            on_token(token)  # pyright: ignore[reportOptionalCall]
        completion = Completion(
            token_ids, logprobs, FinishReason(reason), version, queued, constrained
        )
    except BaseException as error:  # without any answer the caller would wait for ever
        future.set_exception(error)
    else:
        future.set_result(completion)


class EngineHost:
    """Forwards requests of one worker to engines of this process. All methods are called in one
    event loop.
    """

    def __init__(
        self, engines: dict[str, Engine], send: Callable[[Sequence[Message]], None]
    ) -> None:
        """`engines`: engines by the name that requests use. An engine that is not in it is loaded
        and added, so `engines` may be shared by the hosts of all workers.
        """
        self._engines = engines
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, Future[Completion]] = {}
        self._ended = deque[tuple[int, Future[Completion]]]()

    async def load(self, number: int, key: str) -> None:
        """Load an engine and send its facts to the worker."""
        try:
            engine = self._engines.get(key) or await asyncio.to_thread(load_policy, key)
            if isinstance(engine, BaseChatModel):
                raise ModelError(f"{key!r} is no engine.")
            self._engines[key] = engine
            self._send([("engine", number, _facts(engine))])
        except Exception as error:  # reported in the worker
            self._send([("error", number, told(error))])

    def ask(self, number: int, request: Message) -> None:
        key, prompt_ids, sampling, schema, messages, role, thread = request
        known = Sampling.model_construct(**sampling)
        asked = GenerationRequest(prompt_ids, known, messages, None, schema, role, thread)
        try:
            future = self._engines[key].submit(asked)
        except Exception as error:
            self._send([("error", number, told(error))])
            return
        self._open[number] = future
        future.add_done_callback(partial(self._end, number))

    def cancel(self, number: int) -> None:
        """Cancel a request whose answer is no longer needed."""
        future = self._open.pop(number, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Cancel all requests of a worker that has ended."""
        for number in list(self._open):
            self.cancel(number)

    def _end(self, number: int, future: Future[Completion]) -> None:
        """Queue a result. The engine's thread calls this; results of one engine step are then sent
        together.
        """
        self._ended.append((number, future))
        with suppress(RuntimeError):  # the loop is closed, so nobody waits for the result
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        messages: list[Message] = []
        while self._ended:
            number, future = self._ended.popleft()
            if self._open.pop(number, None) is None:
                continue
            error = future.exception()
            if error is not None:
                messages.append(("error", number, told(error)))
                continue
            found = future.result()
            fields = (
                found.token_ids,
                found.logprobs,
                found.finish_reason.value,
                found.policy_version,
                found.queue_seconds,
                found.constrained,
            )
            messages.append(("answer", number, fields))
        if messages:
            self._send(messages)


def _facts(engine: Engine) -> bytes:
    reads_messages = not type(engine).__module__.startswith(_OF_WEIGHTS)
    usual = engine.usual_answer if isinstance(engine, UsualAnswer) else Sampling().max_tokens
    facts = _Facts(
        engine.name, engine.codec, engine.logprob_kind, engine.policy_version, reads_messages, usual
    )
    try:
        return pickle.dumps(facts)
    except Exception as error:  # a codec's class may be the user's, and pickling may raise anything
        raise ConfigError(
            f"The codec of {engine.name!r} cannot be sent to a worker process:"
            f" {type(error).__name__}: {error}.",
            "Run the graphs in one process, or give the codec's class a __reduce__.",
        ) from error
