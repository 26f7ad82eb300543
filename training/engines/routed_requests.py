"""State of a router: its engines, their rollouts, and the requests on their way."""

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
"""Engines that may fall silent over one request before it fails."""


class RoutedEngine(Protocol):
    """An engine behind a router."""

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """As `hrm_agent.models.Engine`. Fails with `ServerGoneError` where another engine may
        answer it.
        """
        ...


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request and its answer to come."""

    request: GenerationRequest
    """As it was asked."""
    future: Future[Completion]
    """The caller's."""
    rollout: RoutedRollout
    """The one that asks."""
    attempt: int = 0
    """Number of times it was sent: answers to earlier attempts are ignored."""
    inner: Future[Completion] | None = None
    """The engine's own future, while it is there."""
    name: str = ""
    """Name of this attempt, for its engine."""
    tokens: int = 0
    """Prompt and sampled ones, as last heard of."""
    heard_at: float = 0.0
    """Time at which it was sent or last made progress, on the monotonic clock."""
    listed: bool = False
    """True if its engine's last report names it: one that waits in the engine's own queue is in
    none.
    """
    silences: int = 0
    """Number of engines that were left because nothing was heard of the request."""

    def advanced(self, tokens: int | None, now: float) -> bool:
        """Take its tokens, or None where a report does not list it. True if it went on: it has
        more, or has begun.
        """
        begun, self.listed = tokens is not None and not self.listed, tokens is not None
        if not begun and (tokens or 0) <= self.tokens:
            return False
        self.tokens, self.heard_at = max(self.tokens, tokens or 0), now
        return True


@dataclass(slots=True, eq=False)
class RoutedRollout:
    """A rollout, from its first request to its end."""

    name: str
    """Its thread, or a name of its own."""
    once: bool
    """True for a single request outside of any rollout: over when it is answered."""
    asked: set[RoutedRequest] = field(default_factory=set[RoutedRequest])
    """Requests without an answer: several where a graph asks in parallel."""
    waiting: list[RoutedRequest] = field(default_factory=list[RoutedRequest])
    """Requests that no engine has."""
    member: Member | None = None
    """Engine on which it is placed."""
    in_turn: bool = True
    """As the scheduler knows it: a turn of it is under way, or waits for room."""
    prompt_tokens: int = 0
    """Tokens of its first request's prompt."""


@dataclass(slots=True, eq=False)
class Member:
    """An engine behind the router."""

    name: str
    """Unique among those that are there."""
    engine: RoutedEngine
    """Engine that requests are sent to."""
    asked: set[RoutedRequest] = field(default_factory=set[RoutedRequest])
    """With the engine."""
    held: list[RoutedRequest] | None = None
    """Requests that came while it takes none; None while it takes them."""
    reports: bool = False
    """True if it says how far its requests are."""
    advanced_at: float = 0.0
    """Time at which one of its requests last made progress or was answered,
    on the monotonic clock.
    """

    def hear(self, tokens: Mapping[str, int], now: float) -> list[RoutedRequest]:
        """Take its report, by request name,
        and find the requests that went on since the last one.
        """
        found = [asked for asked in self.asked if asked.advanced(tokens.get(asked.name), now)]
        self.reports, self.advanced_at = True, now if found else self.advanced_at
        return found

    def silent_over(self, until: float) -> tuple[bool, list[RoutedRequest]]:
        """True if nothing was heard of it since `until`, and the requests that may be the reason.

        One that reports is silent if none of its requests went on: some may wait in its queue for
        as long as others are sampled. Those that it does not list wait for those that it does.
        """
        late = [asked for asked in self.asked if asked.heard_at < until]
        if not late or (self.reports and self.advanced_at >= until):
            return False, []
        return True, [asked for asked in late if asked.listed] or late


def never_answered() -> ModelError:
    """Why a request fails that no engine has answered."""
    return ModelError(
        f"A request got no answer: {MOST_SILENCES} times its server was left because nothing was"
        " heard of it.",
        "See the servers' logs. A server that is only slow needs a larger --server-patience; then"
        " resume the run.",
    )
