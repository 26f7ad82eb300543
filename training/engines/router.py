"""Router of requests over several engines. Each request goes to the engine of its rollout. If that
engine dies, the request goes to another.

`RolloutScheduler` decides on placements, and the router carries them out and keeps the requests
that wait for room. If an engine goes away, its unanswered requests are sent to another engine with
the same seeds. An answered request is never sent again. The router is thread-safe: requests come
from any thread, and answers from threads of the engines.

Each request has a name, under which an engine can report the request's progress (`heard`). So the
scheduler sees tokens while they are sampled, and the router can tell an engine that hangs from a
busy one (`silent`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Protocol

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.vllm.server import ServerGoneError
from hrm_agent.training.engines.costs import IterationCosts
from hrm_agent.training.engines.scheduler import Placement, RolloutScheduler

__all__ = [
    "MOST_SILENCES",
    "EngineRouter",
    "Member",
    "RoutedEngine",
    "RoutedRequest",
    "RoutedRollout",
    "never_answered",
]

MOST_SILENCES = 3
"""Number of engines that may fall silent over one request before it fails."""


class RoutedEngine(Protocol):
    """An engine behind a router."""

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Send a request, like `hrm_agent.models.Engine`. The future fails with `ServerGoneError`
        if another engine may answer the request.
        """
        ...


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request and its pending answer."""

    request: GenerationRequest
    """Request as submitted."""
    future: Future[Completion]
    """Future of the caller."""
    rollout: RoutedRollout
    """Rollout that sent the request."""
    attempt: int = 0
    """Number of the current attempt. Answers to earlier attempts are ignored."""
    inner: Future[Completion] | None = None
    """Future of the engine (None before the request is sent)."""
    name: str = ""
    """Name under which the engine knows this attempt."""
    tokens: int = 0
    """Number of prompt and sampled tokens in the last report."""
    heard_at: float = 0.0
    """Monotonic time at which the request was sent or last made progress."""
    listed: bool = False
    """True if the engine's last report lists the request. A request in the queue that the engine
    keeps itself is not listed.
    """
    silences: int = 0
    """Number of engines that were given up because they were silent about the request."""

    def advanced(self, tokens: int | None, now: float) -> bool:
        """Take the request's token count from a report (None if not listed). Return True if the
        request made progress: it has more tokens, or is listed for the first time.
        """
        begun = tokens is not None and not self.listed
        self.listed = tokens is not None
        if not begun and (tokens or 0) <= self.tokens:
            return False
        self.tokens = max(self.tokens, tokens or 0)
        self.heard_at = now
        return True


@dataclass(slots=True, eq=False)
class RoutedRollout:
    """Rollout from its first request to its end."""

    name: str
    """Thread of the rollout, or a generated name."""
    once: bool
    """True for a single request outside of any rollout. It is over when the request is answered."""
    asked: set[RoutedRequest] = field(default_factory=set[RoutedRequest])
    """Unanswered requests. There are several if a graph calls the model in parallel."""
    waiting: list[RoutedRequest] = field(default_factory=list[RoutedRequest])
    """Requests that wait for an engine."""
    member: Member | None = None
    """Engine on which the rollout is placed (None while it waits)."""
    in_turn: bool = True
    """Scheduler state: True if a turn is in progress, or waits for room."""
    prompt_tokens: int = 0
    """Tokens of the prompt of the rollout's first request."""


@dataclass(slots=True, eq=False)
class Member:
    """An engine behind the router."""

    name: str
    """Name, unique among present engines."""
    engine: RoutedEngine
    """Engine that requests are sent to."""
    asked: set[RoutedRequest] = field(default_factory=set[RoutedRequest])
    """Requests sent to the engine and unanswered."""
    held: list[RoutedRequest] | None = None
    """Requests held back while the engine must get none (None if the engine is not held)."""
    reports: bool = False
    """True if the engine reports the progress of its requests."""
    advanced_at: float = 0.0
    """Monotonic time at which a request at the engine last made progress or was answered."""

    def hear(self, tokens: Mapping[str, int], now: float) -> list[RoutedRequest]:
        """Take the engine's report of tokens by request name. Return the requests that made
        progress since the last report.
        """
        found = [asked for asked in self.asked if asked.advanced(tokens.get(asked.name), now)]
        self.reports, self.advanced_at = True, now if found else self.advanced_at
        return found

    def silent_over(self, until: float) -> tuple[bool, list[RoutedRequest]]:
        """Return True if the engine has been silent since `until`, with the requests that may be
        the reason.

        An engine that reports is silent only if none of its requests made progress: one request may
        wait in its queue while others are sampled. Requests that its last report did not list are
        in that queue, so the reason is sought among the listed ones.
        """
        late = [asked for asked in self.asked if asked.heard_at < until]
        if not late or (self.reports and self.advanced_at >= until):
            return False, []
        return True, [asked for asked in late if asked.listed] or late


def never_answered() -> ModelError:
    """Error of a request that no engine has answered."""
    return ModelError(
        f"A request got no answer: {MOST_SILENCES} times its server was left because nothing was"
        " heard of it.",
        "See the servers' logs. A server that is only slow needs a larger --server-patience; then"
        " resume the run.",
    )


class EngineRouter:
    """Engines by name, and the rollouts on them."""

    def __init__(
        self, scheduler: RolloutScheduler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: monotonic time in seconds."""
        self._scheduler = scheduler
        self._clock = clock
        self._own = secrets.token_hex(4)
        """Prefix of request names, since other clients may use the same engines."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._members: dict[str, Member] = {}
        self._answers = Counter[str]()
        self._rollouts: dict[str, RoutedRollout] = {}
        self._begun: dict[str, int] = {}
        """Prompt tokens of rollouts that were ended unfinished and may go on later, by name."""
        self._numbers = count()
        self._to_send: list[tuple[Member, RoutedRequest]] = []
        self._closed: ModelError | None = None
        self.lost = 0
        """Number of times that an engine was lost."""
        self.asked_again = 0
        """Number of requests sent again to another engine."""

    @property
    def scheduler(self) -> RolloutScheduler:
        """Scheduler, to be read for metrics."""
        return self._scheduler

    @property
    def names(self) -> list[str]:
        """Names of the present engines."""
        with self._lock:
            return list(self._members)

    @property
    def unanswered(self) -> int:
        """Number of unanswered requests."""
        with self._lock:
            return sum(len(rollout.asked) for rollout in self._rollouts.values())

    # requests

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Send a request, or keep it until there is room. Cancelling the future withdraws it."""
        future: Future[Completion] = Future()
        with self._lock:
            if self._closed is not None:
                raise self._closed
            name = request.thread or f"request {next(self._numbers)}"
            rollout = self._rollouts.get(name) or RoutedRollout(name, once=not request.thread)
            asked = RoutedRequest(request, future, rollout)
            rollout.asked.add(asked)
            self._place(rollout, asked)
        future.add_done_callback(partial(self._taken_back, asked))
        self._send()
        return future

    def rollout_ended(self, name: str, *, counted: bool = True) -> None:
        """End a rollout: withdraw its pending requests, and give its room to others.

        `counted`: True if the rollout's length is used to predict the lengths of the next step.
        """
        with self._lock:
            rollout = self._rollouts.pop(name, None)
            if rollout is None:
                return
            if counted:
                self._begun.pop(name, None)
            else:
                self._begun[name] = rollout.prompt_tokens
            left = list(rollout.asked)
            rollout.asked.clear()
            self._apply(self._scheduler.ended(name, counted=counted))
        for asked in left:
            asked.future.cancel()
            self._drop(asked)
        self._send()

    def step_ended(self) -> None:
        """End a step. The lengths of its rollouts are used to predict those of the next step."""
        with self._lock:
            self._scheduler.step_ended()

    # engines

    def join(
        self,
        name: str,
        engine: RoutedEngine,
        capacity_tokens: int,
        max_running: int,
        costs: IterationCosts | None,
        *,
        block_tokens: int = 16,
    ) -> None:
        """Add an engine, for the first time or again. Sizes and costs: see
        `RolloutScheduler.join`.
        """
        with self._lock:
            self._members[name] = Member(name, engine, advanced_at=self._clock())
            sizes = (capacity_tokens, max_running)
            self._apply(self._scheduler.join(name, *sizes, block_tokens=block_tokens, costs=costs))
            self._changed.notify_all()
        self._send()

    def heard(self, name: str, tokens: Mapping[str, int]) -> None:
        """Take an engine's report: number of tokens so far, prompt included, by request name.

        The report moves nothing at once. The scheduler uses it when a turn or a rollout next ends
        or arrives.
        """
        with self._lock:
            member = self._members.get(name)
            for asked in member.hear(tokens, self._clock()) if member is not None else ():
                if asked.rollout.member is member:
                    self._grow(asked.rollout.name, asked.tokens)

    def silent(self, name: str, seconds: float) -> bool:
        """True if an engine with requests hangs: it has given no tokens and no answer for
        `seconds`.

        An engine that reports no tokens has to answer every request within that time.
        """
        with self._lock:
            member = self._members.get(name)
            found, over = (
                member.silent_over(self._clock() - seconds) if member is not None else (False, [])
            )
            for asked in over:
                asked.silences += 1
            return found

    def answered(self, name: str) -> int:
        """Number of requests that the engine of this name has answered since the start, including
        the times before it left and came back.
        """
        with self._lock:
            return self._answers[name]

    def leave(self, name: str) -> None:
        """Remove an engine that is gone. Its requests are sent elsewhere, or wait for an engine.

        A request fails if `MOST_SILENCES` engines have fallen silent over it.
        """
        with self._lock:
            member = self._members.pop(name, None)
            if member is None:
                return
            self.lost += 1
            moved = [
                *member.asked,
                *(member.held or ()),
                *(asked for to, asked in self._to_send if to is member),
            ]
            self._to_send = [(to, asked) for to, asked in self._to_send if to is not member]
            self.asked_again += len(member.asked)
            for rollout in self._rollouts.values():
                if rollout.member is member:
                    rollout.member = None
            for asked in moved:
                asked.attempt += 1
                asked.rollout.waiting.append(asked)
            self._apply(self._scheduler.leave(name))
            self._changed.notify_all()
        for asked in moved:
            if asked.inner is not None:
                asked.inner.cancel()
            if asked.silences >= MOST_SILENCES:
                self._settle(asked, never_answered())
        self._send()

    def hold(self, name: str) -> bool:
        """Send the engine nothing until `release`. Return False if the engine is not present, or is
        held already.
        """
        with self._lock:
            member = self._members.get(name)
            if member is None or member.held is not None:
                return False
            member.held = []
            return True

    def drain(self, name: str, *, abort: bool, seconds: float) -> bool:
        """Wait until a held engine has answered all its requests. With `abort`, withdraw the
        requests instead; `release` sends them again.

        Return False if the engine is gone, or is not done within `seconds`.
        """
        with self._lock:
            member = self._members.get(name)
            taken: list[RoutedRequest] = []
            if member is not None and abort:
                taken = list(member.asked)
                held = member.held
                assert held is not None, "an engine is held before it is drained"
                member.asked.clear()
                for asked in taken:
                    asked.attempt += 1
                held.extend(taken)
        for asked in taken:
            if asked.inner is not None:
                asked.inner.cancel()
        with self._lock:
            done = self._changed.wait_for(
                lambda: name not in self._members or not self._members[name].asked, seconds
            )
            return done and member is not None and self._members.get(name) is member

    def release(self, name: str) -> None:
        """Let a held engine take requests again."""
        with self._lock:
            member = self._members.get(name)
            if member is None:
                return
            held = member.held or []
            member.held = None
            self._to_send += [(member, asked) for asked in held]
        self._send()

    def fail_all(self, error: ModelError) -> None:
        """Answer all pending requests with an error."""
        with self._lock:
            left = [asked for rollout in self._rollouts.values() for asked in rollout.asked]
        for asked in left:
            self._settle(asked, error)

    def close(self, error: ModelError) -> None:
        """Refuse further requests, and fail pending ones with `error`."""
        with self._lock:
            self._closed = error
        self.fail_all(error)

    # The methods below are called with the lock held.

    def _grow(self, rollout: str, tokens: int) -> None:
        with suppress(KeyError):
            self._scheduler.grow(rollout, tokens)

    def _place(self, rollout: RoutedRollout, asked: RoutedRequest) -> None:
        tokens = len(asked.request.prompt_ids)
        if rollout.name not in self._rollouts:
            self._rollouts[rollout.name] = rollout
            rollout.waiting.append(asked)
            rollout.prompt_tokens = self._begun.get(rollout.name, tokens)
            group = rollout.name.rpartition("/")[0]
            self._apply(self._scheduler.arrive(rollout.name, group, rollout.prompt_tokens, tokens))
        elif not rollout.in_turn:
            rollout.in_turn = True
            rollout.waiting.append(asked)
            self._apply(self._scheduler.turn_asked(rollout.name, tokens))
        elif rollout.member is not None:
            self._to_send.append((rollout.member, asked))
        else:
            rollout.waiting.append(asked)

    def _apply(self, placements: Iterable[Placement]) -> None:
        for placement in placements:
            rollout = self._rollouts[placement.rollout]
            rollout.member = self._members[placement.engine]
            self._to_send += [(rollout.member, asked) for asked in rollout.waiting]
            rollout.waiting.clear()
            if not rollout.asked:  # its requests were withdrawn
                self._turn_over(rollout)

    def _turn_over(self, rollout: RoutedRollout) -> None:
        if self._rollouts.get(rollout.name) is not rollout:
            return
        if rollout.once:
            del self._rollouts[rollout.name]
            self._apply(self._scheduler.ended(rollout.name, counted=False))
        elif (
            rollout.in_turn and rollout.member is not None
        ):  # a queued rollout ends its turn when it is placed
            rollout.in_turn = False
            self._apply(self._scheduler.turn_ended(rollout.name))

    # The methods below are called without the lock.

    def _send(self) -> None:
        while True:
            with self._lock:
                if not self._to_send:
                    return
                member, asked = self._to_send.pop(0)
                if asked not in asked.rollout.asked:
                    continue  # withdrawn meanwhile
                if member.held is not None:
                    member.held.append(asked)
                    continue
                member.asked.add(asked)
                asked.attempt += 1
                attempt = asked.attempt
                asked.name, asked.tokens = (
                    f"{self._own}-{next(self._numbers)}",
                    len(asked.request.prompt_ids),
                )
                asked.heard_at = self._clock()
                asked.listed = False
            try:
                inner = member.engine.submit(replace(asked.request, name=asked.name))
            except ModelError as error:
                inner = Future[Completion]()
                inner.set_exception(error)
            asked.inner = inner
            inner.add_done_callback(partial(self._answered, member, asked, attempt))

    def _answered(
        self, member: Member, asked: RoutedRequest, attempt: int, inner: Future[Completion]
    ) -> None:
        with self._lock:
            member.asked.discard(asked)
            self._changed.notify_all()
            stale = asked.attempt != attempt or inner.cancelled()
            if not inner.cancelled():
                member.advanced_at = self._clock()
                self._answers[member.name] += inner.exception() is None
        if stale:
            return
        error = inner.exception()
        if isinstance(error, ServerGoneError) and asked.request.on_token is None:
            with self._lock:
                known = self._members.get(member.name) is member
                member.asked.add(asked)  # `leave` sends it again with the others
            if known:
                self.leave(member.name)
                return
        self._settle(asked, error or inner.result())

    def _settle(self, asked: RoutedRequest, answer: BaseException | Completion) -> None:
        with self._lock:
            rollout = asked.rollout
            if asked not in rollout.asked:
                return
            rollout.asked.discard(asked)
            if isinstance(answer, Completion):
                self._grow(rollout.name, len(asked.request.prompt_ids) + len(answer.token_ids))
            if not rollout.asked:
                self._turn_over(rollout)
        if asked.future.set_running_or_notify_cancel():
            if isinstance(answer, BaseException):
                asked.future.set_exception(answer)
            else:
                asked.future.set_result(answer)
        self._send()

    def _taken_back(self, asked: RoutedRequest, future: Future[Completion]) -> None:
        if not future.cancelled():
            return
        with self._lock:
            if asked not in asked.rollout.asked:
                return
            asked.rollout.asked.discard(asked)
        self._drop(asked)
        with self._lock:
            if not asked.rollout.asked:
                self._turn_over(asked.rollout)
        self._send()

    def _drop(self, asked: RoutedRequest) -> None:
        """Remove a request from engines and queues."""
        with self._lock:
            asked.attempt += 1
            for member in self._members.values():
                member.asked.discard(asked)
                if member.held is not None and asked in member.held:
                    member.held.remove(asked)
            if asked in asked.rollout.waiting:
                asked.rollout.waiting.remove(asked)
            self._changed.notify_all()
        if asked.inner is not None:
            asked.inner.cancel()
