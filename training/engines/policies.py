"""Which engine has room for a rollout: the policies of `RolloutScheduler`, and what they are told
of engines.

Two kinds. The static ones and `least_requests` admit everybody at once, as trainers do by default:
the engine preempts when its cache is full, and computes what it threw away again. The others hold
rollouts back in a central queue: `fixed_limit` by a number that somebody chose, `safe_maximum` by
the longest that a rollout may get, `expected_peak` by what the last step says they will need.
docs/scale.md has what each of them gains and loses.

How long rollouts get, as the last complete step had them; and what a set of running ones will need
at most.

A rollout's length is in tokens past its prompt: sampled ones, tool results. Of the rollouts that
have `x` tokens now, the share `S(x + h) / S(x)` will be there when each of them has `h` more; `S`
is the survival curve. Lengths of the rollouts that have finished *so far* are biased to the short
ones, which is why a step counts only when it is over.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.training.engines.costs import IterationCosts

__all__ = [
    "POLICIES",
    "EngineState",
    "ExpectedPeak",
    "FixedLimit",
    "Floats",
    "LeastRequests",
    "LengthCurve",
    "PeakTable",
    "RolloutState",
    "SafeMaximum",
    "SchedulingPolicy",
    "StaticPrompts",
    "StaticRollouts",
    "highest",
    "scheduling_policy",
]

Floats = NDArray[np.floating]

HORIZONS = 20
"""Moments ahead at which the need is computed, from now to the longest length."""
_BUCKETS = 512
"""Lengths are told apart as far as one in so many of the longest."""


@dataclass(frozen=True)
class LengthCurve:
    """The survival curve of final lengths, from all rollouts of one step."""

    lengths: tuple[int, ...]
    """Final lengths in tokens past the prompt, ascending."""

    @classmethod
    def of(cls, lengths: Iterable[int]) -> LengthCurve:
        """Raises `ConfigError` for none, or for a negative one."""
        found = tuple(sorted(int(length) for length in lengths))
        if not found or found[0] < 0:
            raise ConfigError(
                "A curve of lengths needs at least one length, and none below 0.",
                "Leave the lengths out where there are none yet: the first step then does without.",
            )
        return cls(found)

    @property
    def longest(self) -> int:
        """Tokens past the prompt; at least 1."""
        return max(1, self.lengths[-1])

    @property
    def mean(self) -> float:
        """Tokens past the prompt; at least 1."""
        return max(1.0, sum(self.lengths) / len(self.lengths))

    def survival(self, tokens: Floats) -> Floats:
        """Share of rollouts that get longer than `tokens`, of any shape; never 0, since a later one
        may.
        """
        longer = len(self.lengths) - np.searchsorted(np.asarray(self.lengths), tokens, side="right")
        return (longer + 0.5) / (len(self.lengths) + 0.5)


class PeakTable:
    """For each length a rollout may have now: mean and variance of the tokens it holds at each
    horizon.

    One row of numbers a rollout, so that what an engine will hold is a sum of rows: a decision
    costs a rollout's row where nothing else has changed, and one gather over the engine's own
    rollouts where something has.
    """

    def __init__(self, curve: LengthCurve) -> None:
        self._width = max(1.0, curve.longest / _BUCKETS)
        now = (np.arange(2 * _BUCKETS + 1) * self._width)[:, None]
        ahead = np.arange(HORIZONS)[None, :] * (curve.longest / HORIZONS)
        alive = curve.survival(now + ahead) / curve.survival(now)
        tokens = now + ahead
        self._rows_B2H: Floats = np.stack([tokens * alive, tokens**2 * alive * (1 - alive)], axis=1)

    def row(self, tokens: float) -> Floats:
        """Of one rollout that has `tokens` past its prompt: (mean and variance, horizon)."""
        return self._rows_B2H[min(int(tokens / self._width), len(self._rows_B2H) - 1)]

    def total(self, tokens: Sequence[float]) -> Floats:
        """Of several: (mean and variance, horizon)."""
        found = (np.array(tokens, np.float64) / self._width).astype(np.int64)
        return self._rows_B2H[np.minimum(found, len(self._rows_B2H) - 1)].sum(axis=0)


def highest(total_2H: Floats, deviations: float) -> float:
    """The most tokens over all horizons, `deviations` standard deviations above the mean."""
    return float((total_2H[0] + deviations * np.sqrt(total_2H[1])).max())


@dataclass(slots=True, eq=False)
class RolloutState:
    """One rollout, from its arrival to its end."""

    name: str
    """Unique among those that are not over."""
    group: str
    """Rollouts of one group share their prompt."""
    prompt_tokens: int
    """Of the first prompt."""
    tokens: int
    """Of its whole context now: prompt, sampled tokens, tool results."""
    engine: EngineState | None = None
    """Where it is live; None while it waits,
    or while it is in a tool call and its engine has left.
    """
    running: bool = True
    """Whether a turn of it is under way or waits for an engine; False in a tool call."""
    placed: bool = False
    """Whether it has been on an engine."""

    response_tokens: int = 0
    """Of `tokens`, those past the prompt."""

    def set_tokens(self, tokens: int) -> None:
        """Of the whole context; its engine's sums follow."""
        response = tokens - self.prompt_tokens if tokens > self.prompt_tokens else 0
        engine = self.engine
        if engine is not None:
            engine.response_tokens += response - self.response_tokens
            engine.changes += 1
        self.tokens, self.response_tokens = tokens, response


@dataclass(slots=True, eq=False)
class EngineState:
    """One engine, and the rollouts that are live on it."""

    name: str
    """Unique among those that are there."""
    capacity_tokens: int
    """Tokens that its key-value cache holds."""
    max_running: int
    """Sequences that it takes into one iteration."""
    block_tokens: int
    """Tokens of a block of its cache: a rollout holds half of one more than its tokens,
    on average.
    """
    costs: IterationCosts | None
    """What was measured of it, if it was."""
    live: dict[str, RolloutState] = field(default_factory=dict[str, RolloutState])
    """Rollouts pinned to it, by name."""
    running: int = 0
    """Of the live ones, those with a turn under way."""
    response_tokens: int = 0
    """Tokens past the prompts, of all live ones."""
    prompt_tokens: int = 0
    """Tokens of the prompts, each group's once."""
    groups: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Group -> its live rollouts here, and the tokens of its prompt."""
    changes: int = 0
    """Goes up with each change of a live rollout: what was computed at another number is stale."""

    @property
    def tokens(self) -> int:
        """That the live rollouts' contexts have now, a group's prompt once."""
        return self.response_tokens + self.prompt_tokens

    def new_prompt_tokens(self, rollout: RolloutState) -> int:
        """What its prompt would add: nothing if one of its group is here."""
        return 0 if rollout.group in self.groups else rollout.prompt_tokens

    def add(self, rollout: RolloutState) -> None:
        self.prompt_tokens += self.new_prompt_tokens(rollout)
        count, prompt = self.groups.get(rollout.group, (0, rollout.prompt_tokens))
        self.groups[rollout.group] = (count + 1, prompt)
        self.live[rollout.name] = rollout
        self.running += rollout.running
        self.response_tokens += rollout.response_tokens
        self.changes += 1

    def remove(self, rollout: RolloutState) -> None:
        count, prompt = self.groups.pop(rollout.group)
        if count > 1:
            self.groups[rollout.group] = (count - 1, prompt)
        else:
            self.prompt_tokens -= prompt
        del self.live[rollout.name]
        self.running -= rollout.running
        self.response_tokens -= rollout.response_tokens
        self.changes += 1


class SchedulingPolicy:
    """Says where there is room. This one, which the others are made of, admits everybody where the
    fewest are.
    """

    name = "least_requests"
    watches_growth = False
    """Whether it looks at what a rollout holds in the middle of a turn: if not, `grow` at a turn's
    end will do.
    """
    uses_costs = False
    """Whether it asks what an engine's iterations cost: if not, nobody needs to measure that."""
    _random: random.Random

    def start(self, chance: random.Random, lengths: LengthCurve | None) -> None:
        """Before anything else, once; `chance` decides between equals, or groups would fall in line
        with engines.
        """
        self._random = chance

    def learn(self, lengths: LengthCurve, engines: Sequence[EngineState]) -> None:
        """A step is over; `lengths` are those of its rollouts."""

    def joined(self, engine: EngineState) -> None:
        """An engine is there, empty."""

    def left(self, engine: EngineState) -> None:
        """An engine is gone."""

    def pinned(self, rollout: RolloutState, engine: EngineState) -> None:
        """A rollout was placed: `engine` has it already."""

    def place(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        """That of `engines`, at least one, with room for a rollout that is on none; None if it has
        to wait.
        """
        return min(engines, key=lambda each: (len(each.live), self._random.random()))

    def better(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        """Where a live rollout should have its next turn,
        if not on the engine that has its cache.
        """
        return None

    def peak(self, engine: EngineState) -> float:
        """Tokens that the live rollouts of an engine are expected to hold at most, as far as the
        policy asks.
        """
        return engine.tokens


class LeastRequests(SchedulingPolicy):
    """Everybody at once, each to the engine with the fewest live rollouts, where it stays."""


class StaticRollouts(SchedulingPolicy):
    """Everybody at once, the same number to each engine, whatever has ended: the split that most
    trainers make.

    Each round over the engines has an order of its own.
    """

    name = "static_rollouts"

    def __init__(self) -> None:
        self._round: list[str] = []

    def place(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        there = {each.name: each for each in engines}
        self._round = [name for name in self._round if name in there]
        if not self._round:
            self._round = self._random.sample(sorted(there), len(there))
        return there[self._round.pop()]


class StaticPrompts(StaticRollouts):
    """Everybody at once, all rollouts of a group to one engine."""

    name = "static_prompts"

    def __init__(self) -> None:
        super().__init__()
        self._homes: dict[str, str] = {}

    def place(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        home = next((each for each in engines if each.name == self._homes.get(rollout.group)), None)
        chosen = home or super().place(rollout, engines)
        assert chosen is not None
        self._homes[rollout.group] = chosen.name
        return chosen

    def learn(self, lengths: LengthCurve, engines: Sequence[EngineState]) -> None:
        self._homes.clear()


class _Admission(SchedulingPolicy, ABC):
    """Those that hold rollouts back, and let the last ones of a step spread over the engines."""

    @abstractmethod
    def has_room(self, rollout: RolloutState, engine: EngineState) -> bool:
        """Whether the rollout may begin on the engine now."""

    def load(self, engine: EngineState) -> float:
        """What orders the engines; that of an engine without rollouts is the least."""
        return len(engine.live)

    def place(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        if len(engines) > 1:
            engines = sorted(engines, key=lambda each: (self.load(each), self._random.random()))
        return next(
            (
                each
                for each in engines
                if each.running < each.max_running and self.has_room(rollout, each)
            ),
            None,
        )

    def better(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        """The emptiest engine if it has so much fewer rollouts that computing the context again is
        worth it.
        """
        assert rollout.engine is not None
        emptiest = min(engines, key=lambda each: len(each.live))
        crowded = len(rollout.engine.live) > _MOVE_FROM * (len(emptiest.live) + 1)
        return emptiest if crowded and self.has_room(rollout, emptiest) else None


_MOVE_FROM = 1.3
"""How many times the rollouts of the emptiest engine an engine has before one of its own goes
there.
"""


class FixedLimit(_Admission):
    """At most so many live rollouts on an engine, whatever they hold."""

    name = "fixed_limit"

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def has_room(self, rollout: RolloutState, engine: EngineState) -> bool:
        return len(engine.live) < self.limit


class SafeMaximum(_Admission):
    """Room for the longest response that each rollout may have is reserved: nothing is ever thrown
    away.

    That is the scheduler of rStar2-Agent (arXiv 2508.20722, section 3.2). `over_commit` multiplies
    what is reserved; its released code begins with 0.7.
    """

    name = "safe_maximum"

    def __init__(self, max_response_tokens: int, over_commit: float = 1.0) -> None:
        self.max_response_tokens = max_response_tokens
        self.over_commit = over_commit

    def has_room(self, rollout: RolloutState, engine: EngineState) -> bool:
        more = engine.new_prompt_tokens(rollout) + self._reserved(engine)
        return self.peak(engine) + self.over_commit * more <= engine.capacity_tokens

    def peak(self, engine: EngineState) -> float:
        return self.over_commit * (engine.prompt_tokens + len(engine.live) * self._reserved(engine))

    def _reserved(self, engine: EngineState) -> int:
        """Of one rollout past its prompt, in whole blocks and the one that the prompt shares."""
        return (
            -(-self.max_response_tokens // engine.block_tokens) * engine.block_tokens
            + engine.block_tokens
        )


class ExpectedPeak(_Admission):
    """As many as are expected to fit at the moment when they hold most, by the lengths of the last
    step.

    What a set of rollouts holds at a moment ahead is a sum over independent ones: it stays within
    `deviations` standard deviations of its mean. 2 would do if lengths were those of the last step;
    2.5 has room for a step whose rollouts get a few percent longer, for 0.5 % of the time, and
    preempting is the price of the rest. The idea is that of Past-Future (arXiv 2507.10150). Before
    the first step is over there is no curve, and an engine whose iterations cost mostly overhead
    runs fastest with everybody on it: then all are admitted, as all are with `admit_all`. Of an
    engine that was measured (`IterationCosts`) the policy sees that by itself.
    """

    name = "expected_peak"
    watches_growth = uses_costs = True

    def __init__(self, deviations: float = 2.5, *, admit_all: bool = False) -> None:
        self.deviations = deviations
        self.admit_all = admit_all
        self._curve: LengthCurve | None = None
        self._table: PeakTable | None = None
        self._totals: dict[str, _Total] = {}

    def start(self, chance: random.Random, lengths: LengthCurve | None) -> None:
        super().start(chance, lengths)
        if lengths is not None:
            self.learn(lengths, ())

    def learn(self, lengths: LengthCurve, engines: Sequence[EngineState]) -> None:
        self._curve, self._table = lengths, PeakTable(lengths)
        self._totals.clear()

    def left(self, engine: EngineState) -> None:
        self._totals.pop(engine.name, None)

    def pinned(self, rollout: RolloutState, engine: EngineState) -> None:
        """Where the sum was that of before, the new one's row is added to it: no gather for each of
        many arrivals.
        """
        known = self._totals.get(engine.name)
        if known is not None and self._table is not None and known.changes == engine.changes - 1:
            known.total = known.total + self._row(self._table, rollout, engine)
            self._settle(known, engine)

    def has_room(self, rollout: RolloutState, engine: EngineState) -> bool:
        if self._table is None or self._admits_all(engine):
            return True
        total = self._total(self._table, engine).total + self._row(self._table, rollout, engine)
        peak = (
            highest(total, self.deviations)
            + engine.prompt_tokens
            + engine.new_prompt_tokens(rollout)
        )
        return peak <= engine.capacity_tokens

    def load(self, engine: EngineState) -> float:
        """The share of its cache, as it was last computed: what has changed since is computed where
        it matters.
        """
        known = self._totals.get(engine.name)
        return (
            known.peak / engine.capacity_tokens
            if known is not None and engine.live
            else len(engine.live)
        )

    def peak(self, engine: EngineState) -> float:
        return engine.tokens if self._table is None else self._total(self._table, engine).peak

    def _admits_all(self, engine: EngineState) -> bool:
        if self.admit_all or self._curve is None or engine.costs is None:
            return self.admit_all
        fit = min(engine.max_running, engine.capacity_tokens / self._curve.mean)
        # in a tool call they cost no iteration
        sampling = engine.running / len(engine.live) if engine.live else 1.0
        return engine.costs.recompute_share(sampling * fit) < _OVERHEAD_BOUND

    def _row(self, table: PeakTable, rollout: RolloutState, engine: EngineState) -> Floats:
        return table.row(rollout.response_tokens + engine.block_tokens / 2)

    def _total(self, table: PeakTable, engine: EngineState) -> _Total:
        known = self._totals.get(engine.name)
        if known is None or known.changes != engine.changes:
            spare = engine.block_tokens / 2
            known = _Total(
                table.total([each.response_tokens + spare for each in engine.live.values()])
            )
            self._settle(known, engine)
            self._totals[engine.name] = known
        return known

    def _settle(self, total: _Total, engine: EngineState) -> None:
        total.changes = engine.changes
        total.peak = highest(total.total, self.deviations) + engine.prompt_tokens


_OVERHEAD_BOUND = 0.15
"""Below that share, work done twice costs less than rollouts that begin later: holding back loses
(docs/scale.md).
"""


@dataclass(slots=True)
class _Total:
    """Sum of an engine's rows, and when it was taken."""

    total: Floats
    peak: float = 0.0
    changes: int = -1


POLICIES: dict[str, Callable[..., SchedulingPolicy]] = {
    policy.name: policy
    for policy in (
        ExpectedPeak,
        FixedLimit,
        LeastRequests,
        SafeMaximum,
        StaticPrompts,
        StaticRollouts,
    )
}
"""By the names that a configuration knows them by."""


def scheduling_policy(name: str, **options: float) -> SchedulingPolicy:
    """A policy by its name, and the options of its class. Raises `ConfigError` for what it does not
    know or lacks.
    """
    if name not in POLICIES:
        close = nearest(name, POLICIES)
        raise ConfigError(
            f"There is no scheduling policy {name!r}.",
            close or f"Take one of {', '.join(POLICIES)}.",
        )
    try:
        return POLICIES[name](**options)
    except TypeError as error:
        raise ConfigError(
            f"The scheduling policy {name!r} cannot be made from {options or 'no options'}:"
            f" {error}.",
            "Look at its class in training/engines/policies.py for what it takes.",
        ) from error
