"""Simulation of one engine: sequences that decode together, in a cache that may not hold them all.

An iteration with `n` sequences and `K` tokens in the cache takes max(W, C n + P p) + O + A K
seconds. It computes `p` tokens of prompts, at P seconds each, besides. Time passes in stretches in
which nothing changes but the lengths: until a turn ends, the blocks run out, or a turn is
submitted. If the sequences do not fit, the last one is preempted, and computed again when it fits
as a whole (vLLM's "Optimization and Tuning"). Waiting sequences are admitted in order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from benchmarks.simulate.blocks import Blocks
from hrm_agent.training.engines.costs import IterationCosts


@dataclass(frozen=True)
class EngineModel:
    """Constants of an engine. Files in `engines/` hold such constants with their source."""

    weights_s: float
    """W: seconds to read the weights."""
    overhead_s: float
    """O: further seconds of an iteration."""
    cached_token_s: float
    """A: seconds to read a token's keys and values."""
    token_s: float
    """C: seconds to compute a token."""
    capacity_tokens: int
    """Capacity of the key-value cache."""
    block_tokens: int = 16
    max_running: int = 256
    prompt_token_s: float = 0.0
    """Seconds to compute a token of a prompt, if it is less than `token_s` (0 if it is equal)."""
    source: str = ""
    """Source of the constants."""

    @property
    def fed_token_s(self) -> float:
        return self.prompt_token_s or self.token_s

    @property
    def costs(self) -> IterationCosts:
        """Constants that a scheduler receives."""
        return IterationCosts(self.weights_s, self.overhead_s, self.token_s, self.fed_token_s)

    def base(self, sequences: int, fed: int = 0) -> float:
        """Seconds of an iteration without reads of its cache. `fed` tokens of prompts are computed
        with it.
        """
        return (
            max(self.weights_s, self.token_s * sequences + self.fed_token_s * fed) + self.overhead_s
        )


@dataclass(slots=True, eq=False)
class Sequence:
    """Turn of a rollout on an engine."""

    name: str
    group: str
    prompt: int
    tokens: int
    """All tokens, including those that wait to be computed."""
    left: int
    """Tokens still to be sampled."""
    computed: int
    """Maximum tokens of this rollout that were ever computed, on any engine."""


class SimulatedEngine:
    """Simulated engine. `ended` is called with each sequence whose turn ends."""

    def __init__(
        self, env: simpy.Environment, model: EngineModel, ended: Callable[[Sequence], None]
    ) -> None:
        self.model = model
        self.blocks = Blocks(model.capacity_tokens // model.block_tokens, model.block_tokens)
        self.busy_seconds = 0.0
        self.preemptions = self.recomputed = self.prefilled = self.iterations = self.reused = 0
        self._env, self._ended = env, ended
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._tokens = np.zeros(0, np.int64)
        self._left = np.zeros(0, np.int64)
        self._alarm = 0
        self._started: float | None = None
        self._planned = 0
        self._resident = 0
        self._prefill = 0.0
        self._in_step = False

    @property
    def running(self) -> int:
        return len(self._running)

    def submit(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)
        if self._in_step:
            return
        if self._started is None:
            self._next()
        elif (
            len(self._waiting) == 1
            and self.running < self.model.max_running
            and self._room(sequence)
        ):
            self._cut_short()

    def lengths(self) -> list[tuple[str, int]]:
        """Current tokens of the running sequences."""
        done = (
            self._done(self._env.now - self._started, math.floor)
            if self._started is not None
            else 0
        )
        return [
            (each.name, tokens + done)
            for each, tokens in zip(self._running, self._tokens.tolist(), strict=True)
        ]

    def _room(self, sequence: Sequence) -> bool:
        return (
            self.blocks.fit(sequence.name, sequence.group, sequence.prompt, sequence.tokens)
            is not None
        )

    def _next(self) -> None:
        """Begin a stretch, if there is anything to run. After a preemption no sequence is
        admitted.
        """
        crowded = self._make_room()
        fresh = 0 if crowded else self._admit()
        self._make_room()
        if not self._running:
            assert not self._waiting, "a sequence alone does not fit into the cache"
            self._started = None
            return
        self._prefill = self.model.base(self.running, fresh) - self.model.base(self.running)
        self._resident = int(self._tokens.sum())
        self._started, self._planned = self._env.now, self._steps()
        self._wake(self._seconds(self._planned))

    def _make_room(self) -> bool:
        """Free blocks for one iteration of the running sequences. Return True if one was
        preempted.
        """
        before = self.preemptions
        while self._running and self._taken(1) > self.blocks.free:
            self._preempt()
        return self.preemptions > before

    def _admit(self) -> int:
        """Admit waiting sequences. Return the number of tokens to compute, beside one token of each
        sequence.
        """
        fresh, joined, spare = 0, list[Sequence](), self._taken(1)
        while self._waiting and self.running + len(joined) < self.model.max_running:
            head = self._waiting[0]
            fit = self.blocks.admit(head.name, head.group, head.prompt, head.tokens, spare)
            if fit is None:
                break
            self._waiting.popleft()
            computed = head.tokens - fit.cached_tokens
            self.recomputed += max(0, min(head.computed, head.tokens) - fit.cached_tokens)
            self.reused += fit.cached_tokens
            head.computed = max(head.computed, head.tokens)
            spare += head.tokens % self.blocks.size == 0
            fresh += computed - 1
            self.prefilled += computed
            joined.append(head)
        if joined:
            self._running += joined
            self._tokens = np.concatenate([self._tokens, [each.tokens for each in joined]])
            self._left = np.concatenate([self._left, [each.left for each in joined]])
        return fresh

    def _steps(self) -> int:
        """Iterations until a turn ends, or before the blocks run out."""
        most = int(self._left.min())
        at_most = self.running * (most // self.blocks.size + 1)
        if at_most <= self.blocks.free or self._taken(most) <= self.blocks.free:
            return most
        low, high = 1, most  # `low` iterations fit, `high` do not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._taken(middle) <= self.blocks.free else (low, middle)
        return low

    def _taken(self, steps: int) -> int:
        """Blocks that `steps` iterations of the running sequences take."""
        size = self.blocks.size
        spare = -self._tokens % size
        return int((np.maximum(steps + size - 1 - spare, 0) // size).sum())

    def _preempt(self) -> None:
        victim = self._running.pop()
        victim.tokens, victim.left = int(self._tokens[-1]), int(self._left[-1])
        victim.computed = max(victim.computed, victim.tokens)
        self._tokens, self._left = self._tokens[:-1], self._left[:-1]
        self.blocks.release(victim.name, victim.group, victim.prompt, victim.tokens)
        self._waiting.appendleft(victim)
        self.preemptions += 1

    def _seconds(self, steps: float) -> float:
        """Seconds of the first `steps` iterations of this stretch."""
        n = self.running
        held = self._resident * steps + n * steps * (steps - 1) / 2
        return self._prefill + steps * self.model.base(n) + self.model.cached_token_s * held

    def _done(self, seconds: float, rounded: Callable[[float], int]) -> int:
        """Iterations of this stretch after `seconds`. Prompts are computed with the first one."""
        seconds -= self._prefill
        if seconds <= 0:
            return min(self._planned, 1) if rounded is math.ceil else 0
        a = self.model.cached_token_s * self.running / 2
        b = self.model.base(self.running) + self.model.cached_token_s * self._resident - a
        steps = seconds / b if a <= 0 else 2 * seconds / (b + math.sqrt(b * b + 4 * a * seconds))
        return min(self._planned, max(rounded(steps - 1e-9), 1 if rounded is math.ceil else 0))

    def _cut_short(self) -> None:
        """End the stretch after the current iteration, since a sequence is to be admitted."""
        assert self._started is not None
        elapsed = self._env.now - self._started
        steps = self._done(elapsed, math.ceil)
        if steps < self._planned:
            self._planned = steps
            self._wake(max(0.0, self._seconds(steps) - elapsed))

    def _wake(self, delay: float) -> None:
        self._alarm += 1
        number = self._alarm

        def rings(_: Any) -> None:
            if number == self._alarm:
                self._end_stretch()

        self._env.timeout(delay).callbacks.append(rings)

    def _end_stretch(self) -> None:
        steps = self._planned
        assert self._started is not None
        self.busy_seconds += self._env.now - self._started
        self.iterations += steps
        self.blocks.take(self._taken(steps))
        self._tokens = self._tokens + steps
        self._left = self._left - steps
        self._started, self._in_step = None, True
        over: list[int] = np.flatnonzero(self._left == 0).tolist()
        finished = [self._running[i] for i in over]
        if over:
            for i, each in zip(over, finished, strict=True):
                each.tokens = int(self._tokens[i])
                each.computed = max(each.computed, each.tokens)
                self.blocks.release(each.name, each.group, each.prompt, each.tokens)
            keep = self._left > 0
            self._tokens, self._left = self._tokens[keep], self._left[keep]
            for i in reversed(over):
                del self._running[i]
        for each in finished:
            self._ended(each)
        self._in_step = False
        self._next()
