"""Simulation of one step of rollouts on engines, behind the router of a training.

As in a training, the router receives the tokens of all active requests of an engine at fixed
intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import simpy

from benchmarks.simulate.engine import EngineModel, SimulatedEngine
from benchmarks.simulate.engine import Sequence as EngineSequence
from benchmarks.simulate.workload import Planned
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.training.engines.policies import LengthCurve, SchedulingPolicy
from hrm_agent.training.engines.router import EngineRouter
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.trajectory import FinishReason, Sampling

LOOK_SECONDS = 1.0
"""Seconds between two polls of a server in a training."""


@dataclass
class Outcome:
    """Result of a simulated step."""

    seconds: float
    share: float
    """Lower bound of the step's time over its time."""
    idle: float
    """Share of the engines' time in which they had nothing to run."""
    recomputed: float
    """Tokens computed again, over sampled ones."""
    preemptions: int
    moves: int
    sampled_tokens: int
    tokens: int
    calls: int
    calls_in_a_second: int
    """Maximum calls that began within one second."""
    calls_at_once: int
    group_median: float
    """Time at which half of the groups were complete, as a share of the step."""
    tail: float
    """Share of the step after 90 % of the rollouts had ended."""
    microseconds: float
    """CPU time of the scheduler per call in microseconds, without `grow`."""
    timeline: list[list[int]] = field(default_factory=list)
    """Running sequences of each engine, at equal intervals."""


def least_seconds(rollouts: Sequence[Planned], model: EngineModel, engines: int) -> float:
    """Lower bound for any schedule: the larger of the work of all rollouts spread over all engines,
    and the longest rollout alone.

    The work is the time to sample everything with a cache that is always full: an iteration serves
    at most `capacity_tokens` and `max_running` sequences, so there is a least number of iterations.
    """
    sampled = sum(each.sampled_tokens for each in rollouts)
    resident = sum(_token_steps(each) for each in rollouts)
    shared = {each.group: each.prompt_tokens for each in rollouts}
    fed = sum(shared.values()) + sum(
        each.response_tokens - each.sampled_tokens for each in rollouts
    )
    iterations = max(resident / model.capacity_tokens, sampled / model.max_running)
    work = max(model.weights_s * iterations, model.token_s * sampled + model.fed_token_s * fed)
    work += model.overhead_s * iterations + model.cached_token_s * resident
    return max(work / engines, *(_alone(each, model) for each in rollouts))


def _token_steps(rollout: Planned) -> float:
    """Tokens in the cache, summed over the iterations of a rollout."""
    tokens, total = rollout.prompt_tokens, 0.0
    for turn in rollout.turns:
        total += turn.sampled * (tokens + turn.sampled / 2)
        tokens += turn.sampled + turn.tool_tokens
    return total


def _alone(rollout: Planned, model: EngineModel) -> float:
    seconds = rollout.sampled_tokens * model.base(1) + model.cached_token_s * _token_steps(rollout)
    return seconds + sum(
        turn.tool_seconds + turn.tool_tokens * model.fed_token_s for turn in rollout.turns
    )


def _timed(name: str) -> Callable[..., Any]:
    method = getattr(RolloutScheduler, name)

    def call(self: _TimedScheduler, *words: Any, **named: Any) -> Any:
        begin = time.process_time()
        try:
            return method(self, *words, **named)
        finally:
            self.cpu += time.process_time() - begin
            self.decisions += 1

    return call


class _TimedScheduler(RolloutScheduler):
    """Scheduler that measures the time of its decisions."""

    cpu = 0.0
    decisions = 0
    arrive, turn_ended, turn_asked, ended = map(
        _timed, ("arrive", "turn_ended", "turn_asked", "ended")
    )


class _Routed:
    """Simulated engine behind the router's interface."""

    def __init__(self, submit: Callable[[GenerationRequest, Future[Completion]], None]) -> None:
        self._submit = submit

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        future: Future[Completion] = Future()
        self._submit(request, future)
        return future


class _Step:
    def __init__(
        self,
        rollouts: Sequence[Planned],
        model: EngineModel,
        engines: int,
        scheduler: _TimedScheduler,
    ) -> None:
        self.env = simpy.Environment()
        self.rollouts, self.scheduler = rollouts, scheduler
        self.router = EngineRouter(scheduler, clock=lambda: self.env.now)
        self.names = [f"engine-{i}" for i in range(engines)]
        self.engines = {
            name: SimulatedEngine(self.env, model, self._turn_over) for name in self.names
        }
        self.plans = {f"{each.group}/{each.name}": each for each in rollouts}
        self.turn = dict.fromkeys(self.plans, 0)
        self.tokens = {name: each.prompt_tokens for name, each in self.plans.items()}
        self.computed = dict.fromkeys(self.plans, 0)
        self.asked: dict[str, tuple[GenerationRequest, Future[Completion]]] = {}
        """Requests with their futures, by rollout, while an engine runs their turn."""
        self.ends: list[float] = []
        self.group_left: dict[str, int] = {}
        self.group_ends: list[float] = []
        self.began: list[float] = []
        self.at_once = self.most_at_once = 0
        for each in rollouts:
            self.group_left[each.group] = self.group_left.get(each.group, 0) + 1

    def start(self, model: EngineModel, told: bool) -> None:
        costs = model.costs if told else None
        for name in self.names:
            engine, sizes = (
                _Routed(partial(self._sent, name)),
                (
                    model.capacity_tokens,
                    model.max_running,
                ),
            )
            self.router.join(name, engine, *sizes, costs, block_tokens=model.block_tokens)
        for name in self.plans:
            self._ask(name)

    def _ask(self, name: str) -> None:
        # the simulation needs only the length of a prompt
        prompt = cast("tuple[int, ...]", range(self.tokens[name]))
        self.router.submit(GenerationRequest(prompt, Sampling(), thread=name)).add_done_callback(
            lambda _: self._answered(name)
        )

    def _sent(self, engine: str, request: GenerationRequest, future: Future[Completion]) -> None:
        name = request.thread
        plan = self.plans[name]
        self.asked[name] = (request, future)
        turn = plan.turns[self.turn[name]]
        sequence = EngineSequence(
            name,
            plan.group,
            plan.prompt_tokens,
            self.tokens[name],
            turn.sampled,
            self.computed[name],
        )
        self.engines[engine].submit(sequence)

    def _turn_over(self, sequence: EngineSequence) -> None:
        name = sequence.name
        sampled = cast("tuple[int, ...]", range(sequence.tokens - self.tokens[name]))
        self.tokens[name], self.computed[name] = sequence.tokens, sequence.computed
        _, future = self.asked.pop(name)
        future.set_result(Completion(sampled, (), FinishReason.STOP, 0))

    def _answered(self, name: str) -> None:
        plan = self.plans[name]
        turn = plan.turns[self.turn[name]]
        self.turn[name] += 1
        if self.turn[name] == len(plan.turns):
            self._rollout_over(plan, name)
            return
        self.began.append(self.env.now)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.env.timeout(turn.tool_seconds).callbacks.append(
            lambda _: self._tool_over(name, turn.tool_tokens)
        )

    def _tool_over(self, name: str, tokens: int) -> None:
        self.at_once -= 1
        self.tokens[name] += tokens
        self._ask(name)

    def _rollout_over(self, plan: Planned, name: str) -> None:
        self.ends.append(self.env.now)
        self.group_left[plan.group] -= 1
        if not self.group_left[plan.group]:
            self.group_ends.append(self.env.now)
        self.router.rollout_ended(name)

    def look(self) -> Generator[Any]:
        """Report the progress of all requests at intervals."""
        while len(self.ends) < len(self.rollouts):
            for name, engine in self.engines.items():
                self.router.heard(
                    name, {self.asked[each][0].name: tokens for each, tokens in engine.lengths()}
                )
            yield self.env.timeout(LOOK_SECONDS)

    def watch(self, seconds: float, timeline: list[list[int]]) -> Any:
        while len(self.ends) < len(self.rollouts):
            timeline.append([each.running for each in self.engines.values()])
            yield self.env.timeout(seconds)


def simulate(
    rollouts: Sequence[Planned],
    model: EngineModel,
    engines: int,
    policy: SchedulingPolicy,
    lengths: LengthCurve | None,
    *,
    seed: int = 0,
    streamed: bool = True,
    told: bool = True,
    watch_seconds: float = 0.0,
) -> Outcome:
    """Simulate one step from its start to its last rollout.

    `streamed`: the router receives tokens while they are sampled, as in a training, and not only at
    the ends of turns. `told`: it receives the engines' constants.
    """
    step = _Step(rollouts, model, engines, _TimedScheduler(policy, lengths, seed))
    timeline: list[list[int]] = []
    if watch_seconds:
        step.env.process(step.watch(watch_seconds, timeline))
    step.start(model, told)
    if streamed and policy.watches_growth:
        step.env.process(step.look())
    step.env.run()
    assert len(step.ends) == len(rollouts), "rollouts were lost"
    seconds, machines = max(step.ends), step.engines.values()
    sampled = sum(each.sampled_tokens for each in rollouts)
    return Outcome(
        seconds=seconds,
        share=least_seconds(rollouts, model, engines) / seconds,
        idle=1 - sum(each.busy_seconds for each in machines) / (engines * seconds),
        recomputed=sum(each.recomputed for each in machines) / sampled,
        preemptions=sum(each.preemptions for each in machines),
        moves=step.scheduler.load().moves,
        sampled_tokens=sampled,
        tokens=sum(step.tokens.values()),
        calls=len(step.began),
        calls_in_a_second=int(np.bincount(np.asarray(step.began, int)).max()) if step.began else 0,
        calls_at_once=step.most_at_once,
        group_median=float(np.median(step.group_ends)) / seconds,
        tail=1 - float(np.quantile(step.ends, 0.9)) / seconds,
        microseconds=step.scheduler.cpu / step.scheduler.decisions * 1e6,
        timeline=timeline,
    )
