"""The scheduler as a state machine: whatever happens, in whatever order, no rollout is lost or runs
twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hrm_agent.errors import ConfigError
from hrm_agent.training.engines.policies import (
    ExpectedPeak,
    FixedLimit,
    LeastRequests,
    LengthCurve,
    SafeMaximum,
    SchedulingPolicy,
    StaticPrompts,
    StaticRollouts,
)
from hrm_agent.training.engines.scheduler import Placement, RolloutScheduler

LONGEST = 400
ENGINES = {"a": 2_000, "b": 3_000, "tiny": 300}
"""The last one has no room for one rollout of the longest kind."""
POLICIES: dict[str, Callable[[], SchedulingPolicy]] = {
    "expected_peak": ExpectedPeak,
    "fixed_limit": lambda: FixedLimit(3),
    "least_requests": LeastRequests,
    "safe_maximum": lambda: SafeMaximum(LONGEST),
    "static_prompts": StaticPrompts,
    "static_rollouts": StaticRollouts,
}


class Life(RuleBasedStateMachine):
    """A router and its servers, without either."""

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)), known=st.booleans(), seed=st.integers(0, 9)
    )
    def begin(self, policy: str, known: bool, seed: int) -> None:
        chance = random.Random(seed)
        curve = LengthCurve.of(chance.randrange(LONGEST) for _ in range(50)) if known else None
        self.name, self.scheduler = policy, RolloutScheduler(POLICIES[policy](), curve, seed)
        self.engines: set[str] = set()
        self.waiting: set[str] = set()
        self.running: dict[str, str] = {}
        self.in_tool: dict[str, str | None] = {}
        self.tokens: dict[str, int] = {}
        self.prompts: dict[str, int] = {}
        self.count = 0

    def placed(self, placements: list[Placement]) -> None:
        for each in placements:
            assert each.rollout in self.waiting
            assert each.engine in self.engines
            self.waiting.remove(each.rollout)
            self.running[each.rollout] = each.engine

    @precondition(lambda self: len(self.engines) < len(ENGINES))
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(sorted(ENGINES.keys() - self.engines)))
        self.engines.add(engine)
        self.placed(self.scheduler.join(engine, ENGINES[engine], 8))

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(sorted(self.engines)))
        self.engines.remove(engine)
        for rollout in [name for name, where in self.running.items() if where == engine]:
            del self.running[rollout]
            self.waiting.add(rollout)
        self.in_tool = {
            name: None if where == engine else where for name, where in self.in_tool.items()
        }
        self.placed(self.scheduler.leave(engine))
        assert self.scheduler.leave(engine) == []

    @rule(group=st.integers(0, 3))
    def arrive(self, group: int) -> None:
        rollout, self.count = f"rollout-{self.count}", self.count + 1
        self.prompts[rollout] = self.tokens[rollout] = 20 + group
        self.waiting.add(rollout)
        self.placed(self.scheduler.arrive(rollout, f"group-{group}", 20 + group))

    def grown(self, rollout: str, more: int) -> int:
        self.tokens[rollout] = min(self.tokens[rollout] + more, self.prompts[rollout] + LONGEST)
        return self.tokens[rollout]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(0, 100))
    def grow(self, data: st.DataObject, more: int) -> None:
        rollout = data.draw(st.sampled_from(sorted(self.running)))
        self.scheduler.grow(rollout, self.grown(rollout, more))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def turn_ended(self, data: st.DataObject) -> None:
        rollout = data.draw(st.sampled_from(sorted(self.running)))
        self.in_tool[rollout] = self.running.pop(rollout)
        self.placed(self.scheduler.turn_ended(rollout))

    @precondition(lambda self: self.in_tool)
    @rule(data=st.data(), more=st.integers(0, 30))
    def turn_asked(self, data: st.DataObject, more: int) -> None:
        rollout = data.draw(st.sampled_from(sorted(self.in_tool)))
        home = self.in_tool.pop(rollout)
        self.waiting.add(rollout)
        placements = self.scheduler.turn_asked(rollout, self.grown(rollout, more))
        self.placed(placements)
        # its cache is there: it is sent on at once, nearly always to the same engine
        if home is not None:
            (own,) = placements
            assert own.rollout == rollout
            assert own.moved == (own.engine != home)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), counted=st.booleans())
    def ended(self, data: st.DataObject, counted: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.tokens))), counted)

    def end(self, rollout: str, counted: bool = True) -> None:
        del self.tokens[rollout]
        self.waiting.discard(rollout)
        self.running.pop(rollout, None)
        self.in_tool.pop(rollout, None)
        self.placed(self.scheduler.ended(rollout, counted=counted))

    @rule()
    def step_ended(self) -> None:
        self.scheduler.step_ended()

    @invariant()
    def agrees(self) -> None:
        load = self.scheduler.load()
        assert load.queued == len(self.waiting)
        live = {
            name: where
            for name, where in {**self.running, **self.in_tool}.items()
            if where is not None
        }
        assert {each.engine for each in load.engines} == self.engines
        for each in load.engines:
            here = [name for name, where in live.items() if where == each.engine]
            assert each.live == len(here)
            assert each.running == sum(name in self.running for name in here)
            # each group has a length of its own
            prompts = sum({self.prompts[name] for name in here})
            assert each.tokens == prompts + sum(
                self.tokens[name] - self.prompts[name] for name in here
            )

    @invariant()
    def nobody_waits_beside_an_idle_engine(self) -> None:
        load = self.scheduler.load()
        assert not load.queued or all(each.live for each in load.engines)

    @invariant()
    def what_is_reserved_fits(self) -> None:
        if self.name == "safe_maximum":
            for each in self.scheduler.load().engines:
                assert each.peak_tokens <= each.capacity_tokens or each.live == 1
                assert each.tokens <= each.peak_tokens

    def teardown(self) -> None:
        """Check that all rollouts can be brought to an end, given at least one engine."""
        if not hasattr(self, "engines"):
            return
        if not self.engines:
            self.engines.add("a")
            self.placed(self.scheduler.join("a", ENGINES["a"], 8))
        while self.tokens:
            self.end(next(iter(self.running or self.in_tool or self.waiting)))
            assert self.running or self.in_tool or not self.waiting, "rollouts wait for nothing"
        assert self.scheduler.load().queued == 0


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def fleet(
    policy: SchedulingPolicy, engines: int = 4, capacity: int = 10_000, **known: LengthCurve
) -> RolloutScheduler:
    scheduler = RolloutScheduler(policy, known.get("lengths"))
    for i in range(engines):
        assert scheduler.join(f"engine-{i}", capacity, 256) == []
    return scheduler


def arrivals(
    scheduler: RolloutScheduler, groups: int, size: int, prompt: int = 100
) -> dict[str, str]:
    """Let rollouts arrive, and return the engine of each rollout that found room."""
    return {
        each.rollout: each.engine
        for group in range(groups)
        for i in range(size)
        for each in scheduler.arrive(f"{group}-{i}", f"{group}", prompt)
    }


def live(scheduler: RolloutScheduler) -> list[int]:
    return [each.live for each in scheduler.load().engines]


def test_statics_split_evenly_and_groups_do_not_fall_in_line_with_engines() -> None:
    by_rollouts = fleet(StaticRollouts())
    homes = arrivals(by_rollouts, 8, 4)
    assert live(by_rollouts) == [8, 8, 8, 8]
    orders = {tuple(homes[f"{group}-{i}"] for i in range(4)) for group in range(8)}
    assert len(orders) > 1
    by_prompts = fleet(StaticPrompts())
    homes = arrivals(by_prompts, 8, 4)
    assert live(by_prompts) == [8, 8, 8, 8]
    assert all(len({homes[f"{group}-{i}"] for i in range(4)}) == 1 for group in range(8))


def test_the_same_calls_give_the_same_placements() -> None:
    curve = LengthCurve.of(range(0, 4_000, 10))
    assert arrivals(fleet(ExpectedPeak(), lengths=curve), 20, 4) == arrivals(
        fleet(ExpectedPeak(), lengths=curve), 20, 4
    )


def test_room_goes_to_the_head_of_the_queue_at_once() -> None:
    scheduler = fleet(FixedLimit(2), engines=2)
    homes = arrivals(scheduler, 1, 6)
    assert (len(homes), scheduler.load().queued) == (4, 2)
    scheduler.turn_ended("0-1")
    assert scheduler.ended("0-1") == [Placement("0-4", homes["0-1"], moved=False)]
    assert scheduler.ended("0-5") == []  # it was given up while it waited
    assert scheduler.load().queued == 0


def test_rollouts_of_an_engine_that_left_come_before_those_that_never_ran() -> None:
    scheduler = fleet(FixedLimit(2), engines=2)
    homes = arrivals(scheduler, 1, 5)
    lost = [rollout for rollout, engine in homes.items() if engine == "engine-0"]
    scheduler.turn_ended(lost[1])
    scheduler.grow(lost[0], 700)
    assert scheduler.leave("engine-0") == []
    assert scheduler.load().displaced == 2
    back = scheduler.join("engine-0", 10_000, 256)
    assert back == [
        Placement(lost[0], "engine-0", moved=True),
        Placement("0-4", "engine-0", moved=False),
    ]
    # its engine came back without its cache, and is full
    assert scheduler.turn_asked(lost[1], 800) == []
    assert scheduler.ended("0-4") == [Placement(lost[1], "engine-0", moved=True)]


def test_a_rollout_that_fits_nowhere_runs_by_itself() -> None:
    scheduler = fleet(SafeMaximum(50_000), engines=2)
    homes = arrivals(scheduler, 1, 3)
    assert sorted(homes.values()) == ["engine-0", "engine-1"]
    assert scheduler.ended("0-0") == [Placement("0-2", homes["0-0"], moved=False)]


def test_the_last_rollouts_move_to_an_emptier_engine() -> None:
    scheduler = fleet(FixedLimit(8), engines=2)
    homes = arrivals(scheduler, 1, 12)
    for rollout in [each for each, engine in homes.items() if engine == "engine-0"][:5]:
        scheduler.ended(rollout)
    crowded = [each for each, engine in homes.items() if engine == "engine-1"]
    assert live(scheduler) == [1, 6]
    scheduler.turn_ended(crowded[0])
    assert scheduler.turn_asked(crowded[0], 500) == [Placement(crowded[0], "engine-0", moved=True)]
    assert (live(scheduler), scheduler.load().moves) == ([2, 5], 1)


def test_the_last_complete_step_is_what_the_next_one_expects() -> None:
    scheduler = fleet(ExpectedPeak(), engines=1, capacity=1_000)
    assert len(arrivals(scheduler, 1, 30, prompt=10)) == 30, "without a curve all are admitted"
    for i in range(30):
        scheduler.grow(f"0-{i}", 110)
        assert scheduler.ended(f"0-{i}", counted=i > 0) == []
    scheduler.step_ended()
    assert scheduler.lengths is not None
    assert scheduler.lengths.lengths == (100,) * 29
    homes = arrivals(scheduler, 1, 30, prompt=10)
    assert 7 <= len(homes) <= 10
    scheduler.step_ended()
    assert scheduler.lengths.lengths == (100,) * 29, "a step without an end teaches nothing"


def test_what_cannot_be_is_refused() -> None:
    scheduler = fleet(LeastRequests(), engines=1)
    scheduler.arrive("r", "g", 10)
    with pytest.raises(ValueError, match="arrived already"):
        scheduler.arrive("r", "g", 10)
    with pytest.raises(ValueError, match="joined already"):
        scheduler.join("engine-0", 1, 1)
    with pytest.raises(ValueError, match="while one is under way"):
        scheduler.turn_asked("r", 10)
    scheduler.turn_ended("r")
    with pytest.raises(ValueError, match="no turn under way"):
        scheduler.turn_ended("r")
    with pytest.raises(KeyError):
        scheduler.ended("another")
    with pytest.raises(ConfigError, match="can run nothing"):
        scheduler.join("engine-1", 0, 8)
