"""Engine that drops running replies when new weights are published, and samples them again.

Callers do not notice this: each request gets one reply, sampled by one version. A dropped reply is
never recorded. The prompt and the seed of the new reply are the same, only the weights differ.

Requests that stream (`on_token`) end on the weights that they started with, since a part of the
reply was shown.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from hrm_agent.models.engine import Completion, Engine, GenerationRequest

__all__ = ["RestartingEngine"]


class _Asked:
    """Request with its current state."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.reply: Future[Completion] = Future()
        """Future that the caller got."""
        self.sampled: Future[Completion] | None = None
        """Future of the engine (None while the request is not submitted)."""


class RestartingEngine:
    """Wrapper of an engine whose replies can be cancelled. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name
        self.codec = engine.codec
        self.logprob_kind = engine.logprob_kind
        self.restarted = 0
        """Number of replies that were dropped and requested again."""
        self._lock = threading.Lock()
        self._under_way: set[_Asked] = set()
        self._dropped: list[_Asked] = []

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the engine."""
        return getattr(self._engine, name)

    @property
    def policy_version(self) -> int:
        """Version of the current weights."""
        return self._engine.policy_version

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. Cancelling the future frees the request's place."""
        asked = _Asked(request)
        self._ask(asked)
        asked.reply.add_done_callback(
            lambda reply: self._free(asked) if reply.cancelled() else None
        )
        return asked.reply

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Publish weights to the engine. Running replies are dropped before, and requested again
        afterwards.
        """
        with self._lock:
            dropped = [asked for asked in self._under_way if asked.request.on_token is None]
        for asked in dropped:
            self._free(asked)
        try:
            self._engine.publish(version, state_dict)
        finally:
            with self._lock:
                again = self._dropped
                self._dropped = []
            self.restarted += len(again)
            for asked in again:
                self._ask_again(asked)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def _ask(self, asked: _Asked) -> None:
        with self._lock:
            self._under_way.add(asked)
        try:
            asked.sampled = self._engine.submit(asked.request)
        except BaseException:
            with self._lock:
                self._under_way.discard(asked)
            raise
        asked.sampled.add_done_callback(lambda sampled: self._ended(asked, sampled))

    def _ask_again(self, asked: _Asked) -> None:
        if asked.reply.cancelled():
            return
        try:
            self._ask(asked)
        # for example, the engine has closed, which the caller has to know
        except Exception as error:
            if asked.reply.set_running_or_notify_cancel():
                asked.reply.set_exception(error)
            return
        if asked.reply.cancelled():  # cancelled meanwhile
            self._free(asked)

    def _free(self, asked: _Asked) -> None:
        if asked.sampled is not None:
            asked.sampled.cancel()

    def _ended(self, asked: _Asked, sampled: Future[Completion]) -> None:
        """Handle the end of a sampled reply, in the engine's thread or in the thread that cancelled
        it.
        """
        with self._lock:
            self._under_way.discard(asked)
            if sampled.cancelled():
                self._dropped += [] if asked.reply.cancelled() else [asked]
                return
        if not asked.reply.set_running_or_notify_cancel():
            return
        error = sampled.exception()
        if error is not None:
            asked.reply.set_exception(error)
        else:
            asked.reply.set_result(sampled.result())
