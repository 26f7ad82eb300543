"""An engine that drops the replies under way when new weights are published, and samples them
again.

Who asked sees nothing of it: one request, one reply, all of it by one version. A reply that was
dropped was on no record. Prompts and seeds are the same, the weights are not.

Requests that stream (`on_token`) are left to end on the weights that they began with: part of their
reply was shown.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from hrm_agent.models.engine import Completion, Engine, GenerationRequest

__all__ = ["RestartingEngine"]


class _Asked:
    """One request, and where it stands."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.reply: Future[Completion] = Future()
        """What was handed out."""
        self.sampled: Future[Completion] | None = None
        """The engine's."""


class RestartingEngine:
    """Wraps an engine whose replies can be cancelled. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name, self.codec, self.logprob_kind = engine.name, engine.codec, engine.logprob_kind
        self.restarted = 0
        """Replies that were dropped and asked for again."""
        self._lock = threading.Lock()
        self._under_way: set[_Asked] = set()
        self._dropped: list[_Asked] = []

    def __getattr__(self, name: str) -> Any:
        """What else the engine has."""
        return getattr(self._engine, name)

    @property
    def policy_version(self) -> int:
        """Of the weights in force."""
        return self._engine.policy_version

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. Cancelling the future frees its place."""
        asked = _Asked(request)
        self._ask(asked)
        asked.reply.add_done_callback(
            lambda reply: self._free(asked) if reply.cancelled() else None
        )
        return asked.reply

    def publish(self, version: int, state_dict: Any = None) -> None:
        """As the engine's; what is under way is dropped before, and asked for again after it."""
        with self._lock:
            dropped = [asked for asked in self._under_way if asked.request.on_token is None]
        for asked in dropped:
            self._free(asked)
        try:
            self._engine.publish(version, state_dict)
        finally:
            with self._lock:
                again, self._dropped = self._dropped, []
            self.restarted += len(again)
            for asked in again:
                self._ask_again(asked)

    def close(self) -> None:
        """As the engine's."""
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
        except Exception as error:  # the engine has closed: who waits is told
            if asked.reply.set_running_or_notify_cancel():
                asked.reply.set_exception(error)
            return
        if asked.reply.cancelled():  # meanwhile
            self._free(asked)

    def _free(self, asked: _Asked) -> None:
        if asked.sampled is not None:
            asked.sampled.cancel()

    def _ended(self, asked: _Asked, sampled: Future[Completion]) -> None:
        """Called in the engine's thread, or where it was cancelled: by who asked,
        or by `publish`.
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
