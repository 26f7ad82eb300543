"""Scheduler of rollouts over engines: a state machine that takes events and returns placements.

The scheduler has no clock, no sockets and no event loop, so the same calls in the same order give
the same answers. The router of real servers and the simulator of `benchmarks.simulate` drive the
same code. A rollout is pinned to the engine on which it was placed, which holds the rollout's
key-value cache. It stays *live* on that engine during its tool calls. Rollouts without room wait in
one queue, in order of arrival. An engine is offered the head of the queue whenever something ended
on it. A `SchedulingPolicy` decides which engine has room.

A rollout's life is `arrive`, then `turn_ended` and `turn_asked` for each tool call, then `ended`,
with any number of `grow` in between. Each method except `grow` returns the placements that result,
whether of this rollout or of others. There may be none.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from hrm_agent.errors import ConfigError
from hrm_agent.training.engines.costs import IterationCosts
from hrm_agent.training.engines.policies import (
    EngineState,
    LengthCurve,
    RolloutState,
    SchedulingPolicy,
)

__all__ = ["EngineLoad", "FleetLoad", "Placement", "RolloutScheduler"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of a rollout's pending turn on an engine."""

    rollout: str
    """Name of the rollout."""
    engine: str
    """Name of the engine, to which the rollout is pinned from now on."""
    moved: bool
    """True if the rollout was on an engine before, so that its whole context is recomputed."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Current load of one engine."""

    engine: str
    """Name of the engine."""
    live: int
    """Number of rollouts pinned to the engine, including those in a tool call."""
    running: int
    """Number of live rollouts with a turn in progress."""
    tokens: int
    """Tokens of the live rollouts' current contexts. A prompt that rollouts of a group share counts
    once.
    """
    peak_tokens: float
    """Maximum number of tokens that the policy expects the live rollouts to hold, or has reserved
    for them (`tokens` if the policy does neither).
    """
    capacity_tokens: int
    """Tokens that the engine's key-value cache holds."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """Current load of all engines."""

    engines: tuple[EngineLoad, ...]
    """Engines in the order in which they joined."""
    queued: int
    """Number of rollouts that wait for room on any engine."""
    placed: int
    """Number of rollouts placed for the first time, so far."""
    moves: int
    """Number of times, so far, that a live rollout moved to an engine with fewer rollouts."""
    displaced: int
    """Number of times, so far, that a live rollout lost its engine."""


class RolloutScheduler:
    """Engines, the rollouts on them, and the queue.

    `lengths` is the curve of the last complete step (None in the first step; a policy that needs a
    curve then admits all rollouts). `seed` seeds the choice between engines that the policy rates
    equal. A call about an unknown rollout or engine raises `KeyError`; a call that contradicts
    earlier ones raises `ValueError`.
    """

    def __init__(
        self, policy: SchedulingPolicy, lengths: LengthCurve | None = None, seed: int = 0
    ) -> None:
        self.policy = policy
        self.lengths = lengths
        self._engines: dict[str, EngineState] = {}
        self._rollouts: dict[str, RolloutState] = {}
        self._queue: OrderedDict[str, RolloutState] = OrderedDict()
        self._finished: list[int] = []
        self._placed = self._moves = self._displaced = 0
        policy.start(random.Random(seed), lengths)

    def join(
        self,
        engine: str,
        capacity_tokens: int,
        max_running: int,
        *,
        block_tokens: int = 16,
        costs: IterationCosts | None = None,
    ) -> list[Placement]:
        """Add an engine with an empty cache, for the first time or again.

        `max_running`: maximum number of sequences in an iteration. `block_tokens`: number of tokens
        in a block of the cache. `costs`: measured iteration costs (None if not measured). Raises
        `ConfigError` for a size below 1.
        """
        if engine in self._engines:
            raise ValueError(f"Engine {engine} has joined already.")
        if capacity_tokens < 1 or max_running < 1 or block_tokens < 1:
            raise ConfigError(
                f"Engine {engine} has room for {capacity_tokens} tokens, {max_running} sequences,"
                f" in blocks of {block_tokens}: it can run nothing.",
                "Look at the server's log for the size of its key-value cache, and give it more"
                " memory.",
            )
        state = EngineState(engine, capacity_tokens, max_running, block_tokens, costs)
        self._engines[engine] = state
        self.policy.joined(state)
        return self._fill([state])

    def leave(self, engine: str) -> list[Placement]:
        """Remove an engine that is gone, with its cache. An unknown engine is ignored.

        Its rollouts with a turn in progress go to the head of the queue. Its rollouts in a tool
        call do so when they ask for their next turn.
        """
        state = self._engines.pop(engine, None)
        if state is None:
            return []
        self.policy.left(state)
        for rollout in reversed(state.live.values()):
            rollout.engine = None
            self._displaced += 1
            if rollout.running:
                self._queue_first(rollout)
        return self._fill(self._all())

    def arrive(
        self, rollout: str, group: str, prompt_tokens: int, tokens: int = 0
    ) -> list[Placement]:
        """Ask for a rollout's first turn. If the returned placements do not include the rollout, it
        waits.

        `tokens`: tokens of the rollout's whole context, if the rollout was begun before and goes
        on.
        """
        if rollout in self._rollouts:
            raise ValueError(f"Rollout {rollout} has arrived already.")
        state = self._rollouts[rollout] = RolloutState(rollout, group, prompt_tokens, prompt_tokens)
        state.set_tokens(max(tokens, prompt_tokens))
        waiting = bool(self._queue)
        self._queue[rollout] = state
        return [] if waiting else self._fill(self._all())

    def grow(self, rollout: str, tokens: int) -> None:
        """Set the number of tokens in a rollout's context: prompt, sampled tokens and tool results.
        This is cheap enough for each streamed token.
        """
        self._rollouts[rollout].set_tokens(tokens)

    def turn_ended(self, rollout: str) -> list[Placement]:
        """End a turn before a tool call. The rollout stays live on its engine."""
        state = self._rollouts[rollout]
        engine = state.engine
        if engine is None or not state.running:
            raise ValueError(f"Rollout {rollout} has no turn under way that could end.")
        state.running = False
        engine.running -= 1
        return self._fill([engine])

    def turn_asked(self, rollout: str, tokens: int) -> list[Placement]:
        """Ask for a rollout's next turn, after a tool call. `tokens`: length of the turn's prompt.

        The rollout normally stays on the engine to which it is pinned. It may move to a much
        emptier engine if no rollout is queued. If its engine has left, it is queued and may get no
        placement yet.
        """
        state = self._rollouts[rollout]
        if state.running:
            raise ValueError(f"Rollout {rollout} asks for a turn while one is under way.")
        state.set_tokens(tokens)
        state.running = True
        old = state.engine
        if old is None:
            self._queue_first(state)
            return self._fill(self._all())
        old.running += 1
        new = None if self._queue else self.policy.better(state, self._all())
        if new is None:
            return [Placement(rollout, old.name, moved=False)]
        self._moves += 1
        self._unpin(state)
        return [self._pin(state, new)]

    def ended(self, rollout: str, *, counted: bool = True) -> list[Placement]:
        """End a rollout in any state, and give its room to queued rollouts.

        `counted`: False for a rollout that failed or was cut off, since its length does not predict
        later lengths.
        """
        state = self._rollouts.pop(rollout)
        self._queue.pop(rollout, None)
        if counted:
            self._finished.append(state.response_tokens)
        engine = state.engine
        if engine is None:
            return self._fill(self._all())  # the rollout may have blocked the queue
        self._unpin(state)
        return self._fill([engine])

    def step_ended(self) -> None:
        """End a step. The lengths of its rollouts are used to predict those of the next step."""
        if self._finished:
            self.lengths = LengthCurve.of(self._finished)
            self._finished = []
            self.policy.learn(self.lengths, self._all())

    def load(self) -> FleetLoad:
        """Current load of all engines, for metrics."""
        engines = tuple(
            EngineLoad(
                each.name,
                len(each.live),
                each.running,
                each.tokens,
                self.policy.peak(each),
                each.capacity_tokens,
            )
            for each in self._engines.values()
        )
        return FleetLoad(engines, len(self._queue), self._placed, self._moves, self._displaced)

    def _all(self) -> Sequence[EngineState]:
        return tuple(self._engines.values())

    def _queue_first(self, rollout: RolloutState) -> None:
        self._queue[rollout.name] = rollout
        self._queue.move_to_end(rollout.name, last=False)

    def _fill(self, engines: Sequence[EngineState]) -> list[Placement]:
        """Place from the head of the queue as long as one of `engines` has room.

        A rollout that is too large for every engine is placed on an empty one, since it would block
        the queue for ever. The engine then has to preempt or to refuse it.
        """
        placements: list[Placement] = []
        while self._queue and engines:
            head = next(iter(self._queue.values()))
            engine = self.policy.place(head, engines) or next(
                (each for each in engines if not each.live), None
            )
            if engine is None:
                break
            del self._queue[head.name]
            placements.append(self._pin(head, engine))
        return placements

    def _pin(self, rollout: RolloutState, engine: EngineState) -> Placement:
        moved = rollout.placed
        rollout.placed = True
        self._placed += not moved
        rollout.engine = engine
        engine.add(rollout)
        self.policy.pinned(rollout, engine)
        return Placement(rollout.name, engine.name, moved)

    def _unpin(self, rollout: RolloutState) -> None:
        engine = rollout.engine
        assert engine is not None
        engine.remove(rollout)
        rollout.engine = None
