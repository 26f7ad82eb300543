"""Scheduling policies of `RolloutScheduler`: which engine has room for a rollout.

There are two kinds. The static ones and `least_requests` admit all rollouts at once, as trainers do
by default: the engine preempts when its cache is full, and later computes the evicted part again.
The others hold rollouts back in a central queue: `fixed_limit` by a chosen number, `safe_maximum`
by the longest that a rollout may get, `expected_peak` by the need predicted from the last step.
docs/scale.md compares their gains and losses.

`LengthCurve` has the rollout lengths of the last complete step, and `PeakTable` the largest
expected need of a set of running ones.

A rollout's length is in tokens past its prompt: sampled ones, tool results. Of the rollouts that
have `x` tokens now, the share `S(x + h) / S(x)` remains when each of them has `h` more; `S` is the
survival curve. Lengths of the rollouts that have finished *so far* are biased to the short ones, so
a step counts only when it is over.
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
"""Number of future moments at which the need is computed, from now to the longest length."""
_BUCKETS = 512
"""Resolution of lengths: buckets up to the longest one."""


@dataclass(frozen=True)
class LengthCurve:
    """Survival curve of final lengths, from all rollouts of one step."""

    lengths: tuple[int, ...]
    """Final lengths in tokens past the prompt, ascending."""

    @classmethod
    def of(cls, lengths: Iterable[int]) -> LengthCurve:
        """Build the curve from final lengths. Raises `ConfigError` if there are none, or one is
        negative.
        """
        found = tuple(sorted(int(length) for length in lengths))
        if not found or found[0] < 0:
            raise ConfigError(
                "A curve of lengths needs at least one length, and none below 0.",
                "Leave the lengths out where there are none yet: the first step then does without.",
            )
        return cls(found)

    @property
    def longest(self) -> int:
        """Longest length in tokens past the prompt, at least 1."""
        return max(1, self.lengths[-1])

    @property
    def mean(self) -> float:
        """Mean length in tokens past the prompt, at least 1."""
        return max(1.0, sum(self.lengths) / len(self.lengths))

    def survival(self, tokens: Floats) -> Floats:
        """Share of rollouts that get longer than `tokens`, of any shape. Never 0, since a later
        rollout may.
        """
        longer = len(self.lengths) - np.searchsorted(np.asarray(self.lengths), tokens, side="right")
        return (longer + 0.5) / (len(self.lengths) + 0.5)


class PeakTable:
    """Mean and variance of the tokens that a rollout holds at each horizon, by its current length.

    Each rollout is one row of numbers, so the need of an engine is a sum of rows. A decision costs
    one row if nothing else has changed, and otherwise one gather over the engine's rollouts.
    """

    def __init__(self, curve: LengthCurve) -> None:
        self._width = max(1.0, curve.longest / _BUCKETS)
        now = (np.arange(2 * _BUCKETS + 1) * self._width)[:, None]
        ahead = np.arange(HORIZONS)[None, :] * (curve.longest / HORIZONS)
        alive = curve.survival(now + ahead) / curve.survival(now)
        tokens = now + ahead
        self._rows_B2H: Floats = np.stack([tokens * alive, tokens**2 * alive * (1 - alive)], axis=1)

    def row(self, tokens: float) -> Floats:
        """Row of one rollout with `tokens` past its prompt: (mean and variance, horizon)."""
        return self._rows_B2H[min(int(tokens / self._width), len(self._rows_B2H) - 1)]

    def total(self, tokens: Sequence[float]) -> Floats:
        """Sum of the rows of several rollouts: (mean and variance, horizon)."""
        found = (np.array(tokens, np.float64) / self._width).astype(np.int64)
        return self._rows_B2H[np.minimum(found, len(self._rows_B2H) - 1)].sum(axis=0)


def highest(total_2H: Floats, deviations: float) -> float:
    """Maximum over all horizons of the mean plus `deviations` standard deviations, in tokens."""
    return float((total_2H[0] + deviations * np.sqrt(total_2H[1])).max())


@dataclass(slots=True, eq=False)
class RolloutState:
    """State of one rollout, from its arrival to its end."""

    name: str
    """Name, unique among active rollouts."""
    group: str
    """Name of the group. Its rollouts share a prompt."""
    prompt_tokens: int
    """Tokens of the first prompt."""
    tokens: int
    """Tokens of the whole current context: prompt, sampled tokens, tool results."""
    engine: EngineState | None = None
    """Engine on which it is live (None while it waits, or in a tool call after its engine has
    left).
    """
    running: bool = True
    """True if a turn is in progress or waits for an engine. False in a tool call."""
    placed: bool = False
    """True if it has ever been on an engine."""

    response_tokens: int = 0
    """Part of `tokens` past the prompt."""

    def set_tokens(self, tokens: int) -> None:
        """Set the tokens of the whole context, and update the sums of its engine."""
        response = tokens - self.prompt_tokens if tokens > self.prompt_tokens else 0
        engine = self.engine
        if engine is not None:
            engine.response_tokens += response - self.response_tokens
            engine.changes += 1
        self.tokens, self.response_tokens = tokens, response


@dataclass(slots=True, eq=False)
class EngineState:
    """State of one engine, with its live rollouts."""

    name: str
    """Name, unique among present engines."""
    capacity_tokens: int
    """Tokens that its key-value cache holds."""
    max_running: int
    """Maximum number of sequences in one iteration."""
    block_tokens: int
    """Tokens of a cache block. On average a rollout occupies half a block more than its tokens."""
    costs: IterationCosts | None
    """Measured iteration costs (None if not measured)."""
    live: dict[str, RolloutState] = field(default_factory=dict[str, RolloutState])
    """Rollouts pinned to it, by name."""
    running: int = 0
    """Number of live rollouts with a turn in progress."""
    response_tokens: int = 0
    """Tokens past the prompts, of all live rollouts."""
    prompt_tokens: int = 0
    """Tokens of the prompts, counted once per group."""
    groups: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Group -> number of its live rollouts here, and tokens of its prompt."""
    changes: int = 0
    """Change counter of live rollouts. A value computed at another count is stale."""

    @property
    def tokens(self) -> int:
        """Tokens of the live rollouts' current contexts, with a group's prompt counted once."""
        return self.response_tokens + self.prompt_tokens

    def new_prompt_tokens(self, rollout: RolloutState) -> int:
        """Tokens that the rollout's prompt would add (0 if its group is here)."""
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
    """Decides which engine has room. This base class admits every rollout on the engine with the
    fewest.
    """

    name = "least_requests"
    watches_growth = False
    """True if it needs a rollout's tokens during a turn. Otherwise `grow` at a turn's end is
    enough.
    """
    uses_costs = False
    """True if it uses iteration costs of engines. Otherwise they need not be measured."""
    _random: random.Random

    def start(self, chance: random.Random, lengths: LengthCurve | None) -> None:
        """Initialise, once, before any other call. `chance` breaks ties, so that groups do not line
        up with engines.
        """
        self._random = chance

    def learn(self, lengths: LengthCurve, engines: Sequence[EngineState]) -> None:
        """Take the rollout `lengths` of a step that is over."""

    def joined(self, engine: EngineState) -> None:
        """Add an empty engine."""

    def left(self, engine: EngineState) -> None:
        """Remove an engine that is gone."""

    def pinned(self, rollout: RolloutState, engine: EngineState) -> None:
        """Take the placement of a rollout, which `engine` already lists."""

    def place(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        """Return one of `engines`, at least one, with room for an unplaced rollout (None if it has
        to wait).
        """
        return min(engines, key=lambda each: (len(each.live), self._random.random()))

    def better(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        """Return the engine to move a live rollout to for its next turn (None to stay with its
        cache).
        """
        return None

    def peak(self, engine: EngineState) -> float:
        """Maximum number of tokens that the live rollouts of an engine are expected to hold, if the
        policy predicts it (otherwise the current number).
        """
        return engine.tokens


class LeastRequests(SchedulingPolicy):
    """Admits all rollouts at once, each to the engine with the fewest live rollouts, where it
    stays.
    """


class StaticRollouts(SchedulingPolicy):
    """Admits all rollouts at once, the same number to each engine whatever has ended. Most trainers
    split this way.

    Each round over the engines has its own random order.
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
    """Admits all rollouts at once, those of a group to one engine."""

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
    """Base of policies that hold rollouts back, and spread the last ones of a step over the
    engines.
    """

    @abstractmethod
    def has_room(self, rollout: RolloutState, engine: EngineState) -> bool:
        """True if the rollout may begin on the engine now."""

    def load(self, engine: EngineState) -> float:
        """Load that orders the engines. An engine without rollouts has the least."""
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
        """Return the emptiest engine if it has so many fewer rollouts that computing the context
        again pays off.
        """
        assert rollout.engine is not None
        emptiest = min(engines, key=lambda each: len(each.live))
        crowded = len(rollout.engine.live) > _MOVE_FROM * (len(emptiest.live) + 1)
        return emptiest if crowded and self.has_room(rollout, emptiest) else None


_MOVE_FROM = 1.3
"""Ratio of live rollouts to those of the emptiest engine plus one, above which a rollout moves
there.
"""


class FixedLimit(_Admission):
    """Admits up to a fixed number of live rollouts per engine, whatever they hold."""

    name = "fixed_limit"

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def has_room(self, rollout: RolloutState, engine: EngineState) -> bool:
        return len(engine.live) < self.limit


class SafeMaximum(_Admission):
    """Reserves room for the longest response of each rollout, so that nothing is ever evicted.

    This is the scheduler of rStar2-Agent (arXiv 2508.20722, section 3.2). `over_commit` multiplies
    the reservation; its released code begins with 0.7.
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
        """Reserved tokens of one rollout past its prompt, in whole blocks, plus the block that it
        shares with the prompt.
        """
        return (
            -(-self.max_response_tokens // engine.block_tokens) * engine.block_tokens
            + engine.block_tokens
        )


class ExpectedPeak(_Admission):
    """Admits as many rollouts as are expected to fit at their peak, by the lengths of the last
    step.

    The need of a set of rollouts at a future moment is a sum over independent ones: it stays within
    `deviations` standard deviations of its mean. 2 would do if lengths equalled those of the last
    step. 2.5 leaves room for rollouts that get a few percent longer, at the cost of 0.5 % of the
    time; larger growth is paid for by preemption. The idea is that of Past-Future (arXiv
    2507.10150).

    All rollouts are admitted before the first step is over, when there is no curve, and with
    `admit_all`. An engine whose iterations cost mostly overhead also runs fastest with all rollouts
    on it; the policy detects that if the engine was measured (`IterationCosts`).
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
        """Add the rollout's row to an up-to-date sum, which avoids a gather for each of many
        arrivals.
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
        """Share of the cache that the last computed peak takes. Later changes are computed when
        they matter.
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
        # rollouts in a tool call cost no iteration
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
"""Share of recomputation below which it costs less than delaying rollouts, so that all are admitted
(docs/scale.md).
"""


@dataclass(slots=True)
class _Total:
    """Sum of an engine's rows, its peak, and the change counter at which it was taken."""

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
"""Policies by configuration name."""


def scheduling_policy(name: str, **options: float) -> SchedulingPolicy:
    """Build a policy by name, with the options of its class. Raises `ConfigError` for an unknown
    name, or unknown or missing options.
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
