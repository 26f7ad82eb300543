"""Requests over several engines: their placement, and their fate if an engine disappears. The
engines answer when a test orders it, since the model does not matter here.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.vllm.server import ServerGoneError
from hrm_agent.training.engines.policies import LengthCurve, scheduling_policy
from hrm_agent.training.engines.router import EngineRouter
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.trajectory import FinishReason, Sampling


class HandEngine:
    """Engine whose answers a test gives by hand."""

    def __init__(self) -> None:
        self.asked: list[tuple[GenerationRequest, Future[Completion]]] = []
        self._lock = threading.Lock()

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        future: Future[Completion] = Future()
        with self._lock:
            self.asked.append((request, future))
        return future

    @property
    def open(self) -> list[tuple[GenerationRequest, Future[Completion]]]:
        return [(request, future) for request, future in self.asked if not future.done()]

    def answer(self, *tokens: int) -> None:
        request, future = self.open[0]
        del request
        future.set_result(
            Completion(tokens or (7,), (-0.5,) * max(1, len(tokens)), FinishReason.STOP, 0)
        )

    def die(self) -> None:
        for _, future in self.open:
            if future.set_running_or_notify_cancel():
                future.set_exception(ServerGoneError("gone"))


def request(thread: str, tokens: int = 4, seed: int = 0) -> GenerationRequest:
    return GenerationRequest((1,) * tokens, Sampling(seed=seed), thread=thread)


def router(
    engines: int, policy: str = "static_rollouts", capacity: int = 1000
) -> tuple[EngineRouter, list[HandEngine]]:
    made = EngineRouter(RolloutScheduler(scheduling_policy(policy)))
    found = [HandEngine() for _ in range(engines)]
    for number, engine in enumerate(found):
        made.join(f"e{number}", engine, capacity, 64, None)
    return made, found


def test_the_turns_of_a_rollout_stay_on_one_engine() -> None:
    routing, engines = router(2)
    for turn in range(3):
        answers = [routing.submit(request(f"r/0/{k}", 4 + turn, seed=k)) for k in range(4)]
        for engine in engines:
            while engine.open:
                engine.answer()
        assert all(answer.result(5).token_ids == (7,) for answer in answers)
    threads = [{asked.thread for asked, _ in engine.asked} for engine in engines]
    assert len(threads[0]) == len(threads[1]) == 2 and not threads[0] & threads[1]


def test_parallel_requests_of_one_rollout_go_to_its_engine() -> None:
    routing, engines = router(2)
    answers = [routing.submit(request("r/0/0", seed=k)) for k in range(3)]
    (busy,) = [engine for engine in engines if engine.asked]
    while busy.open:
        busy.answer()
    assert [answer.result(5).policy_version for answer in answers] == [0, 0, 0]
    routing.submit(request("r/0/0"))
    assert len(busy.open) == 1


def test_what_a_dead_engine_had_is_asked_elsewhere_and_what_it_answered_is_not() -> None:
    routing, (first, second) = router(2)
    answers = [routing.submit(request(f"r/0/{k}", seed=k)) for k in range(6)]
    answered = first.open[0][0].sampling.seed
    first.answer(9)
    waiting = {asked.sampling.seed for asked, _ in first.open}
    first.die()
    assert {asked.sampling.seed for asked, _ in second.asked} >= waiting
    assert answered not in {asked.sampling.seed for asked, _ in second.asked}
    while second.open:
        second.answer()
    assert all(answer.result(5) for answer in answers) and answers[
        answered or 0
    ].result().token_ids == (9,)
    assert routing.lost == 1 and routing.asked_again == len(waiting)


def test_requests_wait_while_no_engine_is_there_and_go_to_the_one_that_comes() -> None:
    routing, (only,) = router(1)
    answer = routing.submit(request("r/0/0"))
    only.die()
    assert not answer.done() and routing.names == [] and routing.unanswered == 1
    back = HandEngine()
    routing.join("e0", back, 1000, 64, None)
    back.answer(3)
    assert answer.result(5).token_ids == (3,)


def test_a_refusal_is_the_callers_and_moves_nobody() -> None:
    routing, (only,) = router(1)
    answer = routing.submit(request("r/0/0"))
    only.open[0][1].set_exception(ModelError("too long"))
    with pytest.raises(ModelError, match="too long"):
        answer.result(5)
    assert routing.names == ["e0"] and routing.lost == 0


def test_a_held_engine_is_sent_nothing_ends_what_it_has_and_goes_on() -> None:
    routing, (only,) = router(1)
    before = routing.submit(request("r/0/0"))
    assert routing.hold("e0")
    after = routing.submit(request("r/0/1"))
    assert len(only.asked) == 1
    with ThreadPoolExecutor(1) as threads:
        drained = threads.submit(routing.drain, "e0", abort=False, seconds=60)
        only.answer()
        assert drained.result(60) and before.result(5) and len(only.asked) == 1
    routing.release("e0")
    only.answer(5)
    assert after.result(5).token_ids == (5,)


def test_an_aborted_request_is_asked_anew_of_the_same_engine() -> None:
    routing, (only,) = router(1)
    answer = routing.submit(request("r/0/0", seed=3))
    assert routing.hold("e0") and routing.drain("e0", abort=True, seconds=60)
    assert only.asked[0][1].cancelled() and not answer.done()
    routing.release("e0")
    assert [asked.sampling.seed for asked, _ in only.asked] == [3, 3]
    only.answer(5)
    assert answer.result(5).token_ids == (5,)


def test_an_engine_that_dies_while_it_is_held_gives_all_to_the_other() -> None:
    routing, (first, second) = router(2)
    for k in range(4):
        routing.submit(request(f"r/0/{k}", seed=k))
    assert routing.hold("e0")
    for k in range(4):
        routing.submit(request(f"r/0/{k}", seed=10 + k))
    routing.leave("e0")
    assert not routing.drain("e0", abort=False, seconds=60)
    assert {asked.sampling.seed for asked, _ in second.open} == {0, 1, 2, 3, 10, 11, 12, 13}
    assert not first.open


def test_the_end_of_a_rollout_takes_back_what_it_asks_for_and_makes_room() -> None:
    routing, (only,) = router(1)
    answer = routing.submit(request("r/0/0"))
    routing.rollout_ended("r/0/0")
    assert answer.cancelled() and only.asked[0][1].cancelled()
    routing.rollout_ended("r/0/0")
    assert routing.unanswered == 0


def test_a_rollout_that_goes_on_counts_with_all_that_it_has_sampled() -> None:
    routing, (only,) = router(1)
    routing.submit(request("r/0/0", 100))
    only.answer(*range(50))
    routing.submit(request("r/0/0", 160))
    routing.rollout_ended("r/0/0", counted=False)
    routing.submit(request("r/0/0", 160))
    (load,) = routing.scheduler.load().engines
    assert load.tokens == 160, "a prompt of 100, which its group shares, and 60 of its own"
    only.answer(*range(40))
    routing.rollout_ended("r/0/0")
    routing.step_ended()
    assert routing.scheduler.lengths is not None and routing.scheduler.lengths.lengths == (100,)


def test_a_cancelled_request_that_waits_for_room_is_never_sent() -> None:
    routing = EngineRouter(RolloutScheduler(scheduling_policy("fixed_limit", limit=1)))
    only = HandEngine()
    routing.join("e0", only, 1000, 64, None)
    first, second = routing.submit(request("r/0/0")), routing.submit(request("r/0/1"))
    assert second.cancel()
    third = routing.submit(request("r/0/1", seed=2))
    only.answer()
    assert first.result(5) and not third.done()
    routing.rollout_ended("r/0/0")
    assert [asked.sampling.seed for asked, _ in only.open] == [2]
    only.answer()
    assert third.result(5)


def test_a_request_of_no_rollout_leaves_nothing_behind() -> None:
    routing, (only,) = router(1)
    for _ in range(3):
        answer = routing.submit(request(""))
        only.answer()
        assert answer.result(5)
    (load,) = routing.scheduler.load().engines
    assert load.live == 0


def test_closing_fails_what_waits_and_takes_nothing_more() -> None:
    routing, _ = router(1)
    answer = routing.submit(request("r/0/0"))
    routing.close(ModelError("closed"))
    with pytest.raises(ModelError, match="closed"):
        answer.result(5)
    with pytest.raises(ModelError, match="closed"):
        routing.submit(request("r/0/1"))


def test_the_scheduler_hears_of_tokens_while_they_are_sampled() -> None:
    """A rollout that has grown must keep others out of a cache that they would overflow together."""
    scheduler = RolloutScheduler(scheduling_policy("expected_peak"), LengthCurve.of([100] * 50))
    routing, engine = EngineRouter(scheduler), HandEngine()
    routing.join("e0", engine, 240, 64, None, block_tokens=8)
    routing.submit(request("r/0/0", 20))
    asked, _ = engine.open[0]
    assert asked.name
    routing.heard("e0", {asked.name: 60, "another's": 900})
    (load,) = scheduler.load().engines
    assert load.tokens == 60
    routing.heard("e0", {asked.name: 40})
    assert scheduler.load().engines[0].tokens == 60, "what was said before it, and came later"
    engine.answer(*range(70))
    assert scheduler.load().engines[0].tokens == 90


def test_parallel_requests_have_names_of_their_own_and_each_attempt_another() -> None:
    routing, (only,) = router(1)
    for k in range(3):
        routing.submit(request("r/0/0", seed=k))
    first = {asked.name for asked, _ in only.asked}
    only.die()
    back = HandEngine()
    routing.join("e0", back, 1000, 64, None)
    assert len(first | {asked.name for asked, _ in back.asked}) == 6


def test_the_scheduler_is_told_the_size_of_a_servers_blocks() -> None:
    scheduler = RolloutScheduler(scheduling_policy("safe_maximum", max_response_tokens=100))
    EngineRouter(scheduler).join("e0", HandEngine(), 1000, 64, None, block_tokens=128)
    assert [each.block_tokens for each in scheduler._all()] == [128]


def clocked() -> tuple[EngineRouter, list[float]]:
    """Router with a clock that tests can set."""
    now = [0.0]
    return EngineRouter(RolloutScheduler(scheduling_policy("static_rollouts")), lambda: now[0]), now


def test_an_engine_that_reports_is_silent_when_none_of_its_requests_goes_on() -> None:
    """A busy engine has requests in its own queue for as long as it takes."""
    routing, now = clocked()
    engine = HandEngine()
    routing.join("e0", engine, 1000, 64, None)
    answers = [routing.submit(request(f"r/0/{k}", 4)) for k in range(3)]
    sampled, answered, queued = (asked.name for asked, _ in engine.open)
    for at in range(5, 30, 5):
        now[0] = float(at)
        routing.heard("e0", {sampled: 4 + at, answered: 4})
        assert not routing.silent("e0", 10)
    now[0] = 34.0
    engine.open[1][1].set_result(Completion((7,), (-0.5,), FinishReason.STOP, 0))
    now[0] = 40.0
    routing.heard("e0", {sampled: 29})
    assert not routing.silent("e0", 10), "one was answered"
    now[0] = 43.0
    routing.heard("e0", {sampled: 29, queued: 4})
    now[0] = 50.0
    assert not routing.silent("e0", 10), "one has left the queue"
    now[0] = 54.0
    routing.heard("e0", {sampled: 29, queued: 4})
    assert routing.silent("e0", 10)
    assert [answer.done() for answer in answers] == [False, True, False]


def test_an_engine_that_reports_nothing_has_to_answer_each_request_within_the_time() -> None:
    routing, now = clocked()
    engine = HandEngine()
    routing.join("e0", engine, 1000, 64, None)
    now[0] = 100.0
    assert not routing.silent("e0", 10), "it was asked nothing"
    routing.submit(request("r/0/0"))
    routing.submit(request("r/0/1"))
    now[0] = 109.0
    engine.answer()
    assert not routing.silent("e0", 10)
    now[0] = 111.0
    assert routing.silent("e0", 10)


def test_a_request_over_which_several_engines_fall_silent_fails_and_the_others_go_on() -> None:
    routing, now = clocked()
    stuck, queued = routing.submit(request("r/0/0")), routing.submit(request("r/0/1"))
    for k in range(3):
        engine = HandEngine()
        routing.join("e0", engine, 1000, 64, None)
        other = routing.submit(request(f"r/1/{k}"))
        now[0] += 11.0
        routing.heard("e0", {asked.name: 4 for asked, _ in engine.open if asked.thread == "r/0/0"})
        now[0] += 11.0
        assert routing.silent("e0", 10) and not stuck.done()
        routing.leave("e0")
        assert not other.done()
    with pytest.raises(ModelError, match="got no answer: 3 times"):
        stuck.result(5)
    assert not queued.done(), "it waited for the other, in the engine's queue"
    assert routing.unanswered == 4


class Chaos:
    """A router to which anything may happen."""

    def __init__(self, policy: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.routing = EngineRouter(RolloutScheduler(scheduling_policy(policy)))
        self.there: dict[str, HandEngine] = {}
        self.answers: list[tuple[str, Future[Completion]]] = []
        self.threads = [f"r/{k % 3}/{k}" for k in range(9)]

    def join(self) -> None:
        name = self.chance.choice(["e0", "e1", "e2"])
        if name not in self.there:
            self.there[name] = HandEngine()
            self.routing.join(name, self.there[name], 200, 4, None)

    def leave(self) -> None:
        if self.there:
            name = self.chance.choice(sorted(self.there))
            self.there.pop(name).die()
            self.routing.leave(name)

    def ask(self) -> None:
        thread = self.chance.choice(self.threads)
        self.answers.append(
            (thread, self.routing.submit(request(thread, self.chance.randrange(1, 40))))
        )

    def answer(self) -> None:
        busy = [engine for engine in self.there.values() if engine.open]
        if busy:
            self.chance.choice(busy).answer()

    def cancel(self) -> None:
        if self.answers:
            self.chance.choice(self.answers)[1].cancel()

    def end(self) -> None:
        self.routing.rollout_ended(self.chance.choice(self.threads))

    def publish(self) -> None:
        for name in sorted(self.there):
            assert self.routing.hold(name) and self.routing.drain(name, abort=True, seconds=60)
            self.routing.release(name)

    def settle(self) -> None:
        """Answer until no request waits. Room is freed, so that none waits for ever."""
        while not self.there:
            self.join()
        while self.routing.unanswered:
            self.answer()
            for thread in self.threads:
                if all(future.done() for asked, future in self.answers if asked == thread):
                    self.routing.rollout_ended(thread)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("policy", ["static_rollouts", "least_requests", "expected_peak"])
def test_whatever_happens_each_request_is_answered_once(policy: str, seed: int) -> None:
    chaos = Chaos(policy, seed)
    some = [
        chaos.join,
        chaos.leave,
        *[chaos.ask] * 3,
        *[chaos.answer] * 2,
        chaos.cancel,
        chaos.end,
        chaos.publish,
    ]
    chaos.join()
    for _ in range(150):
        chaos.chance.choice(some)()
    chaos.settle()
    assert chaos.answers and all(future.done() for _, future in chaos.answers)
    assert chaos.routing.scheduler.load().queued == 0
