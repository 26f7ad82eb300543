r"""Engine that answers from a script, for tests of graphs, trainers, and users' code.

Apart from missing weights, it works like any other engine: it returns token ids and log-probs,
honours `max_tokens` and stop strings, streams, fails when it is closed, and finishes its futures
from other threads. An answer is text in the format of the codec, including tool calls:

    ScriptedEngine([
        '<reason>add</reason><tool_call>{"name": "python", "arguments": {"code": "40 + 2"}}</tool_call>',
        "<answer>\\\boxed{42}</answer>",
    ])
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from langchain_core.messages import BaseMessage

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import Codec, Completion, GenerationRequest
from hrm_agent.models.local.stop_strings import StopStrings
from hrm_agent.trajectory import FinishReason, LogprobKind

__all__ = ["ScriptedEngine"]

_THREADS = 8

Script = Sequence[str] | Callable[[Sequence[BaseMessage]], str]
Delay = float | Callable[[Sequence[BaseMessage]], float]


class ScriptedEngine:
    """Engine that takes its answers from a sequence, in the order of the requests, or from a
    function of the messages.
    """

    logprob_kind = LogprobKind.RAW

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        codec: Codec | None = None,
        delay: Delay = 0,
    ) -> None:
        """`delay`: seconds before an answer, or a function that returns them for the messages. By
        such a function, a later request may be answered first.
        """
        self.name = name
        self.codec: Codec = codec or ByteCodec()
        self.policy_version = 0
        self.requests: list[GenerationRequest] = []
        """All requests, in the order of arrival."""
        self._script = script
        self._delay = delay
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="scripted-engine")

    @property
    def calls(self) -> int:
        """Number of requests so far."""
        return len(self.requests)

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. Answers of a sequence are used in the order of submission."""
        with self._lock:
            if self._closed.is_set():
                raise _closed(self.name)
            index = len(self.requests)
            self.requests.append(request)
            future: Future[Completion] = Future()
            self._pool.submit(self._run, future, request, index, time.monotonic())
        return future

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Use this policy version for answers from now on. A script has no weights."""
        del state_dict
        self.policy_version = version

    def close(self) -> None:
        """Stop. Pending requests fail with `ModelError`."""
        with self._lock:
            self._closed.set()
        self._pool.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self, future: Future[Completion], request: GenerationRequest, index: int, queued_at: float
    ) -> None:
        waited = time.monotonic() - queued_at
        if not future.set_running_or_notify_cancel():
            return
        try:
            delay = self._delay(request.messages) if callable(self._delay) else self._delay
            if self._closed.wait(delay):
                raise _closed(self.name)
            future.set_result(self._complete(request, index, waited))
        except BaseException as error:  # whatever a script raises goes to the caller
            future.set_exception(error)

    def _complete(self, request: GenerationRequest, index: int, waited: float) -> Completion:
        ids, reason = self._cut(self.codec.encode_answer(self._answer(request, index)), request)
        for token in ids:
            if request.on_token is not None:
                request.on_token(token)
        logprobs = tuple(-(1 + (token + position) % 7) / 8 for position, token in enumerate(ids))
        return Completion(tuple(ids), logprobs, reason, self.policy_version, waited)

    def _answer(self, request: GenerationRequest, index: int) -> str:
        """Text of the answer to the request with this index. Subclasses may use the request's
        sampling parameters.
        """
        if callable(self._script):
            return self._script(request.messages)
        if index >= len(self._script):
            raise ModelError(
                f"The script of {self.name!r} has {len(self._script)} answers, but one more was"
                " requested.",
                "Add answers, or script a function of the messages.",
            )
        return self._script[index]

    def _cut(self, ids: list[int], request: GenerationRequest) -> tuple[list[int], FinishReason]:
        sampling = request.sampling
        stop = StopStrings(sampling.stop, self.codec.decode)
        for length in range(1, min(len(ids), sampling.max_tokens) + 1):
            if sampling.stop and stop.reached(ids[:length]):
                return ids[:length], FinishReason.STOP
        if len(ids) > sampling.max_tokens:
            return ids[: sampling.max_tokens], FinishReason.LENGTH
        return ids, FinishReason.STOP


def _closed(name: str) -> ModelError:
    return ModelError(f"The engine {name!r} is closed.", "Open a new engine.")
