"""Which engine a rollout runs on: a state machine, told what happens, that answers with placements.

It has no clock, no sockets and no event loop: the router in front of real servers and the simulator
of `benchmarks.simulate` drive the same code, and the same calls in the same order give the same
answers. A rollout is pinned to the engine that it was placed on, since its key-value cache lies
there, and stays *live* on it during its tool calls. What has no room waits in one queue, in order
of arrival; an engine is offered the head of the queue whenever something ended on it. Which engine
has room is the business of a `SchedulingPolicy`.

A rollout's life is `arrive`, then `turn_ended` and `turn_asked` for each tool call, then `ended`;
`grow` in between, as often as one likes. Each of them returns the placements that follow: of the
rollout itself, of others, or none.
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
    """A rollout's turn, which is waiting to be sent, goes to an engine."""

    rollout: str
    """Its name."""
    engine: str
    """Name of the engine, which the rollout is pinned to from now on."""
    moved: bool
    """True if it was live on another engine before:
    its whole context is computed anew on this one.
    """


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the scheduler knows about one engine now."""

    engine: str
    """Its name."""
    live: int
    """Rollouts pinned to it, those in a tool call included."""
    running: int
    """Of the live ones, those with a turn under way."""
    tokens: int
    """Tokens of the live ones' contexts now; a prompt that several of a group share counts once."""
    peak_tokens: float
    """What the policy expects them to hold at most, or has reserved for them; `tokens` where it
    does not ask.
    """
    capacity_tokens: int
    """Tokens that its key-value cache holds."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """What the scheduler knows about all engines now."""

    engines: tuple[EngineLoad, ...]
    """In the order in which they joined."""
    queued: int
    """Rollouts that wait for room on any engine."""
    placed: int
    """Rollouts placed for the first time, so far."""
    moves: int
    """Live rollouts that went on on an engine with fewer of them, so far."""
    displaced: int
    """Live rollouts whose engine left, so far."""


class RolloutScheduler:
    """Engines, the rollouts on them, and those that wait.

    `lengths` is the curve of the last complete step, None before there is one: then a policy that
    needs it admits everybody. `seed` decides between engines that are equal to the policy. A call
    about a rollout or engine that is not known raises `KeyError`; one that cannot follow what was
    told before, `ValueError`.
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
        """An engine is there, for the first time or again, with an empty cache.

        `max_running` is its limit of sequences in one iteration, `block_tokens` the unit in which
        its cache is handed out, `costs` what was measured of it, if it was.
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
        """An engine is gone, and its cache with it; nothing happens if it was gone before.

        Its rollouts with a turn under way are queued again, before all others, and so will those in
        a tool call be when they ask for their next turn.
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
        """A rollout wants its first turn. It waits if nothing is returned for it.

        `tokens`: of its whole context, where it was begun before and goes on.
        """
        if rollout in self._rollouts:
            raise ValueError(f"Rollout {rollout} has arrived already.")
        state = self._rollouts[rollout] = RolloutState(rollout, group, prompt_tokens, prompt_tokens)
        state.set_tokens(max(tokens, prompt_tokens))
        waiting = bool(self._queue)
        self._queue[rollout] = state
        return [] if waiting else self._fill(self._all())

    def grow(self, rollout: str, tokens: int) -> None:
        """Its context has `tokens` now: prompt, sampled ones, tool results. Cheap enough for each
        streamed token.
        """
        self._rollouts[rollout].set_tokens(tokens)

    def turn_ended(self, rollout: str) -> list[Placement]:
        """The engine has answered; a tool call follows, and the rollout stays live where it is."""
        state = self._rollouts[rollout]
        engine = state.engine
        if engine is None or not state.running:
            raise ValueError(f"Rollout {rollout} has no turn under way that could end.")
        state.running = False
        engine.running -= 1
        return self._fill([engine])

    def turn_asked(self, rollout: str, tokens: int) -> list[Placement]:
        """The tool call is over, and the next turn's prompt has `tokens` in all.

        Normally the answer is the engine that it is pinned to. It may be another one when nobody
        waits and the engines empty unevenly; and none, so that it waits, if its engine has left.
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
        """It is over, whatever it was doing, and its room goes to the next ones.

        `counted` is False for one that failed or was cut off by us: its length says nothing about
        those to come.
        """
        state = self._rollouts.pop(rollout)
        self._queue.pop(rollout, None)
        if counted:
            self._finished.append(state.response_tokens)
        engine = state.engine
        if engine is None:
            return self._fill(self._all())  # it may have been the head that fitted nowhere
        self._unpin(state)
        return self._fill([engine])

    def step_ended(self) -> None:
        """All rollouts of a step are over: their lengths are what the next step's are expected to
        be.
        """
        if self._finished:
            self.lengths = LengthCurve.of(self._finished)
            self._finished = []
            self.policy.learn(self.lengths, self._all())

    def load(self) -> FleetLoad:
        """A picture for metrics."""
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

        What fits on no engine even by itself runs by itself: the engine has to preempt or to refuse
        it, and it must not wait for ever and everybody else behind it.
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
        moved, rollout.placed = rollout.placed, True
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
