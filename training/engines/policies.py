"""Scheduling policies of `RolloutScheduler`: which engine has room for a rollout.

Policies are of two kinds. `least_requests`, `static_rollouts` and `static_prompts` admit all
rollouts at once, as trainers do by default: an engine preempts when its cache is full, and later
recomputes what it evicted. The other policies hold rollouts back in a central queue. `fixed_limit`
admits a chosen number of rollouts, `safe_maximum` counts each at its maximum length, and
`expected_peak` predicts the need from the lengths of the last step. docs/scale.md compares the
policies.

`LengthCurve` holds the rollout lengths of the last complete step. `PeakTable` computes from them
the largest expected need of a set of running rollouts.

The length of a rollout is the number of tokens past its prompt, sampled or of tool results. Of the
rollouts with `x` tokens, the share `S(x + h) / S(x)` gets `h` tokens longer, where `S` is the
survival curve. In the middle of a step mostly short rollouts have finished, so the lengths of a
step are used only when the step is over.
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
"""Number of buckets from length 0 to the longest length."""


@dataclass(frozen=True)
class LengthCurve:
    """Survival curve of final lengths, from all rollouts of one step."""

    lengths: tuple[int, ...]
    """Final lengths in tokens past the prompt, ascending."""

    @classmethod
    def of(cls, lengths: Iterable[int]) -> LengthCurve:
        """Build the curve from final lengths. Raises `ConfigError` if there is no length, or a
        negative one.
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
        """Share of rollouts that get longer than `tokens`, an array of any shape. The share is
        never 0, since a later rollout may be longer than all known ones.
        """
        longer = len(self.lengths) - np.searchsorted(np.asarray(self.lengths), tokens, side="right")
        return (longer + 0.5) / (len(self.lengths) + 0.5)


class PeakTable:
    """Mean and variance of the tokens that a rollout holds at each horizon, by current length.

    Each rollout is a row of numbers, so the need of an engine is a sum of rows. A decision adds one
    row to a known sum. If the engine's rollouts have changed since that sum was taken, their rows
    are gathered and summed again.
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
    """Mean plus `deviations` standard deviations, in tokens: the maximum over all horizons."""
    return float((total_2H[0] + deviations * np.sqrt(total_2H[1])).max())


@dataclass(slots=True, eq=False)
class RolloutState:
    """State of one rollout, from its arrival to its end."""

    name: str
    """Name, unique among active rollouts."""
    group: str
    """Name of the group, whose rollouts share a prompt."""
    prompt_tokens: int
    """Tokens of the first prompt."""
    tokens: int
    """Tokens of the whole current context: prompt, sampled tokens, tool results."""
    engine: EngineState | None = None
    """Engine on which the rollout is live (None while the rollout waits, or in a tool call after
    its engine has left).
    """
    running: bool = True
    """True if a turn is in progress or waits for an engine. False in a tool call."""
    placed: bool = False
    """True if the rollout has ever been on an engine."""

    response_tokens: int = 0
    """Number of `tokens` past the prompt."""

    def set_tokens(self, tokens: int) -> None:
        """Set the tokens of the whole context, and update the sums of its engine."""
        response = tokens - self.prompt_tokens if tokens > self.prompt_tokens else 0
        engine = self.engine
        if engine is not None:
            engine.response_tokens += response - self.response_tokens
            engine.changes += 1
        self.tokens = tokens
        self.response_tokens = response


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
    """Tokens of a cache block. On average the last block of a rollout is half empty."""
    costs: IterationCosts | None
    """Measured iteration costs (None if not measured)."""
    live: dict[str, RolloutState] = field(default_factory=dict[str, RolloutState])
    """Rollouts pinned to the engine, by name."""
    running: int = 0
    """Number of live rollouts with a turn in progress."""
    response_tokens: int = 0
    """Tokens past the prompts, of all live rollouts."""
    prompt_tokens: int = 0
    """Tokens of the prompts, counted once per group."""
    groups: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Group -> number of its live rollouts on this engine, and tokens of its prompt."""
    changes: int = 0
    """Counter of changes of the live rollouts. A value that was computed at another count is stale.
    """

    @property
    def tokens(self) -> int:
        """Tokens of the live rollouts' current contexts, with a group's prompt counted once."""
        return self.response_tokens + self.prompt_tokens

    def new_prompt_tokens(self, rollout: RolloutState) -> int:
        """Tokens that the rollout's prompt would add (0 if a rollout of its group is on this
        engine).
        """
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
    """Decides which engine has room. This base class admits every rollout, on the engine with the
    fewest rollouts.
    """

    name = "least_requests"
    watches_growth = False
    """True if the policy needs a rollout's tokens during a turn. If False, `grow` at the end of a
    turn is enough.
    """
    uses_costs = False
    """True if the policy uses iteration costs of engines. If False, they need not be measured."""
    _random: random.Random

    def start(self, chance: random.Random, lengths: LengthCurve | None) -> None:
        """Initialise the policy; called once, before any other method. `chance` breaks ties at
        random, so that groups do not line up with engines.
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
        """Return an engine with room for an unplaced rollout (None if the rollout has to wait).
        `engines` is not empty.
        """
        return min(engines, key=lambda each: (len(each.live), self._random.random()))

    def better(self, rollout: RolloutState, engines: Sequence[EngineState]) -> EngineState | None:
        """Return the engine to which a live rollout moves for its next turn (None if it stays on
        the engine that has its cache).
        """
        return None

    def peak(self, engine: EngineState) -> float:
        """Number of tokens that the live rollouts of an engine are expected to hold at their peak.
        A policy that predicts nothing returns the current number.
        """
        return engine.tokens


class LeastRequests(SchedulingPolicy):
    """Admits all rollouts at once, each to the engine with the fewest live rollouts, where it
    stays.
    """


class StaticRollouts(SchedulingPolicy):
    """Admits all rollouts at once, the same number to each engine, no matter how many have ended.
    Most trainers split rollouts this way.

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
    """Admits all rollouts at once, and all rollouts of a group to one engine."""

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
    """Base of policies that hold rollouts back, and spread the last rollouts of a step over the
    engines.
    """

    @abstractmethod
    def has_room(self, rollout: RolloutState, engine: EngineState) -> bool:
        """True if the rollout may begin on the engine now."""

    def load(self, engine: EngineState) -> float:
        """Load by which engines are ordered, least first. An engine without rollouts has load 0."""
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
        """Return the engine with the fewest rollouts, if it has so few that recomputing the context
        on it pays off.
        """
        assert rollout.engine is not None
        emptiest = min(engines, key=lambda each: len(each.live))
        crowded = len(rollout.engine.live) > _MOVE_FROM * (len(emptiest.live) + 1)
        return emptiest if crowded and self.has_room(rollout, emptiest) else None


_MOVE_FROM = 1.3
"""Ratio above which a rollout moves: the live rollouts of its engine, divided by one more than
those of the emptiest engine.
"""


class FixedLimit(_Admission):
    """Admits up to a fixed number of live rollouts per engine, regardless of their tokens."""

    name = "fixed_limit"

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def has_room(self, rollout: RolloutState, engine: EngineState) -> bool:
        return len(engine.live) < self.limit


class SafeMaximum(_Admission):
    """Reserves room for the longest response of each rollout, so that nothing is ever evicted.

    This is the scheduler of rStar2-Agent (arXiv 2508.20722, section 3.2). `over_commit` multiplies
    the reservation; the released code of rStar2-Agent begins with 0.7.
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
        """Tokens that are reserved for a rollout past its prompt: whole blocks, plus the block that
        begins with the end of the prompt.
        """
        return (
            -(-self.max_response_tokens // engine.block_tokens) * engine.block_tokens
            + engine.block_tokens
        )


class ExpectedPeak(_Admission):
    """Admits as many rollouts as are expected to fit at their peak, judged by the lengths of the
    last step.

    The need of a set of rollouts at a future moment is a sum of independent needs, so it is assumed
    to stay within `deviations` standard deviations of its mean. If lengths equalled those of the
    last step, 2 would be enough. 2.5 leaves room for rollouts that get a few percent longer and
    costs 0.5 % of the time; if they grow more, the engine preempts. The idea is that of Past-Future
    (arXiv 2507.10150).

    In the first step there is no curve, and all rollouts are admitted. `admit_all` admits them
    always. If an engine's iterations are mostly overhead, it is fastest with all rollouts; the
    policy detects this if the engine was measured (`IterationCosts`).
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
        self._curve = lengths
        self._table = PeakTable(lengths)
        self._totals.clear()

    def left(self, engine: EngineState) -> None:
        self._totals.pop(engine.name, None)

    def pinned(self, rollout: RolloutState, engine: EngineState) -> None:
        """Add the rollout's row to the engine's sum if the sum is up to date. This avoids a gather
        for every one of many arrivals.
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
        """Share of the cache that the last computed peak takes. The peak may be out of date; it is
        computed again when room is checked.
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
"""Share of recomputation in an iteration below which preemption costs less than delaying rollouts.
Below it, all rollouts are admitted (docs/scale.md).
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
