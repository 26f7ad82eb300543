"""State of a router: its engines, their rollouts, and pending requests."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import Completion, GenerationRequest

__all__ = [
    "MOST_SILENCES",
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
    """Number of attempts so far. Answers to earlier attempts are ignored."""
    inner: Future[Completion] | None = None
    """Future of the engine (None before it is sent)."""
    name: str = ""
    """Name of this attempt, for its engine."""
    tokens: int = 0
    """Number of prompt and sampled tokens in the last report."""
    heard_at: float = 0.0
    """Monotonic time at which it was sent or last made progress."""
    listed: bool = False
    """True if its engine's last report lists it. A request in the engine's own queue is not listed.
    """
    silences: int = 0
    """Number of engines that were given up because they reported nothing on the request."""

    def advanced(self, tokens: int | None, now: float) -> bool:
        """Take its token count of a report (None if not listed). Return True if it made progress:
        it has more tokens, or has begun.
        """
        begun, self.listed = tokens is not None and not self.listed, tokens is not None
        if not begun and (tokens or 0) <= self.tokens:
            return False
        self.tokens, self.heard_at = max(self.tokens, tokens or 0), now
        return True


@dataclass(slots=True, eq=False)
class RoutedRollout:
    """Rollout from its first request to its end."""

    name: str
    """Thread of the rollout, or a generated name."""
    once: bool
    """True for a single request outside of any rollout, which is over when it is answered."""
    asked: set[RoutedRequest] = field(default_factory=set[RoutedRequest])
    """Unanswered requests: several if a graph asks in parallel."""
    waiting: list[RoutedRequest] = field(default_factory=list[RoutedRequest])
    """Requests that are on no engine."""
    member: Member | None = None
    """Engine on which it is placed (None while it waits)."""
    in_turn: bool = True
    """Scheduler state: True if a turn is in progress, or waits for room."""
    prompt_tokens: int = 0
    """Tokens of its first request's prompt."""


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
    """Requests held back while it takes none (None while it takes them)."""
    reports: bool = False
    """True if it reports the progress of its requests."""
    advanced_at: float = 0.0
    """Monotonic time at which one of its requests last made progress or was answered."""

    def hear(self, tokens: Mapping[str, int], now: float) -> list[RoutedRequest]:
        """Take its report of tokens by request name. Return the requests that made progress since
        the last one.
        """
        found = [asked for asked in self.asked if asked.advanced(tokens.get(asked.name), now)]
        self.reports, self.advanced_at = True, now if found else self.advanced_at
        return found

    def silent_over(self, until: float) -> tuple[bool, list[RoutedRequest]]:
        """Return True if it has been silent since `until`, with the requests that may be the
        reason.

        An engine that reports is silent if none of its requests made progress, since some may wait
        in its queue as long as others are sampled. Requests that it does not list wait for those
        that it lists.
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
