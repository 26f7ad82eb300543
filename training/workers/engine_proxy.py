"""One engine for several processes: `EngineProxy` stands for it in a worker, and `EngineHost` asks
it for a worker.

A proxy implements the `Engine` protocol. The codec is the engine's own, sent once, so that a worker
needs neither weights nor torch. Seeds are drawn where the graph runs: what is sampled for a request
does not depend on which process it came from.
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
"""Engines that look at nothing but tokens: the messages behind a prompt are not sent for them."""


class _Facts(NamedTuple):
    """What a worker is told of an engine."""

    name: str
    codec: Codec
    logprob_kind: LogprobKind
    policy_version: int
    reads_messages: bool
    usual_answer: int


class EngineProxy:
    """An engine of the parent process.

    `on_token` is called with all tokens when the answer is whole: what a graph streams comes in the
    same pieces, late.
    """

    def __init__(self, key: str, facts: bytes, ask: Callable[[Future[Any], Message], None]) -> None:
        """`key`: by which the parent knows the engine. `ask`: sends a request, whose answer the
        future is given.
        """
        told: _Facts = pickle.loads(facts)  # noqa: S301 - only the parent can write it
        self.name, self.codec, self.logprob_kind = told.name, told.codec, told.logprob_kind
        self.policy_version = told.policy_version
        self.usual_answer = told.usual_answer
        self._key, self._ask, self._reads_messages = key, ask, told.reads_messages

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
        """Raises `ModelError`: who has the engine publishes."""
        raise ModelError(
            "A worker process cannot publish weights.", "Publish them where the engine is."
        )

    def close(self) -> None:
        """The engine is its owner's to close."""


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
    except BaseException as error:  # whatever it is, the caller must not be left waiting
        future.set_exception(error)
    else:
        future.set_result(completion)


class EngineHost:
    """Asks engines of this process for one worker. To be used in one event loop."""

    def __init__(
        self, engines: dict[str, Engine], send: Callable[[Sequence[Message]], None]
    ) -> None:
        """`engines`: by the name under which they are asked for; others are loaded, once for all
        workers.
        """
        self._engines, self._send = engines, send
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, Future[Completion]] = {}
        self._ended = deque[tuple[int, Future[Completion]]]()

    async def load(self, number: int, key: str) -> None:
        """Tell the worker what stands for an engine."""
        try:
            engine = self._engines.get(key) or await asyncio.to_thread(load_policy, key)
            if isinstance(engine, BaseChatModel):
                raise ModelError(f"{key!r} is no engine.")
            self._engines[key] = engine
            self._send([("engine", number, _facts(engine))])
        except Exception as error:  # told there
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
        """Free the place of a request that nobody waits for."""
        future = self._open.pop(number, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """The worker is gone."""
        for number in list(self._open):
            self.cancel(number)

    def _end(self, number: int, future: Future[Completion]) -> None:
        """Called in the engine's thread: what ends in one of its steps is sent together."""
        self._ended.append((number, future))
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        messages: list[Message] = []
        while self._ended:
            number, future = self._ended.popleft()
            if self._open.pop(number, None) is not None:
                messages.append(_answer(number, future))
        if messages:
            self._send(messages)


def _answer(number: int, future: Future[Completion]) -> Message:
    error = future.exception()
    if error is not None:
        return "error", number, told(error)
    found = future.result()
    fields = (found.token_ids, found.logprobs, found.finish_reason.value, found.policy_version)
    return "answer", number, (*fields, found.queue_seconds, found.constrained)


def _facts(engine: Engine) -> bytes:
    reads_messages = not type(engine).__module__.startswith(_OF_WEIGHTS)
    usual = engine.usual_answer if isinstance(engine, UsualAnswer) else Sampling().max_tokens
    facts = _Facts(
        engine.name, engine.codec, engine.logprob_kind, engine.policy_version, reads_messages, usual
    )
    try:
        return pickle.dumps(facts)
    except Exception as error:  # of a class of a user's
        raise ConfigError(
            f"The codec of {engine.name!r} cannot be sent to a worker process:"
            f" {type(error).__name__}: {error}.",
            "Run the graphs in one process, or give the codec's class a __reduce__.",
        ) from error
