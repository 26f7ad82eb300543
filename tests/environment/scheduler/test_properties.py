"""Properties of the scheduler under any sequence of events: nothing is lost or doubled, no slot is
idle or taken twice, order holds.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hrm_agent.environment.base import ExecutionResult, SessionState, Submission
from hrm_agent.environment.scheduler.scheduler import Scheduler
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.scheduler_workers import SteppedWorkers, ThreadWorkers, failed

SLOTS = 2


@dataclass(eq=False)
class Expected:
    submission: Submission
    future: Future[ExecutionResult] | None = None
    starts: int = 0
    losses: int = 0
    before: list[str] = field(default_factory=list)
    """Codes that the session's process had run when the call was started."""

    @property
    def waits(self) -> bool:
        """A call that was lost waits again."""
        return (self.future is None or not self.future.done()) and self.starts == self.losses


class Queueing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.workers = SteppedWorkers(self.started)
        self.scheduler = Scheduler(self.workers, max_sessions=SLOTS)
        self.calls: list[Expected] = []
        self.lived: dict[str, list[str]] = {}
        """Session -> codes of its calls whose process lived on."""
        self.rebuilt: set[int] = set()
        """Numbers of sessions whose next call has its slot already."""

    def started(self, work: Work) -> None:
        call = self.calls[int(work.code)]
        session = call.submission.session
        if call.future is not None and call.future.done():  # it is run again to rebuild its session
            assert session is not None
            assert work.code in self.lived[session]
            self.rebuilt.add(work.session)
            return
        assert call.starts == call.losses
        call.before = list(self.workers.ran.get(work.session, []))
        ahead = [other for other in self.calls[: int(work.code)] if other.waits]
        if session is not None:
            assert all(other.submission.session != session for other in ahead)
            assert call.before == self.lived.get(session, [])
        if work.session not in self.rebuilt:
            self.is_next(call.submission, ahead)
        self.rebuilt.discard(work.session)
        call.starts += 1

    def is_next(self, mine: Submission, ahead: list[Expected]) -> None:
        alike = [
            other
            for other in ahead
            if (other.submission.run, other.submission.priority) == (mine.run, mine.priority)
        ]
        assert all(other.submission.session in self.busy() for other in alike)
        free = [call for call in self.calls if call.waits and call.submission.session is None]
        assert all(call.submission.priority <= mine.priority for call in free)

    def busy(self) -> set[str | None]:
        """Sessions that have an earlier call under way."""
        return {
            call.submission.session
            for call in self.calls
            if call.submission.session is not None and (call.starts > 0 or call.waits)
        }

    @rule(
        number=st.integers(1, 5),
        run=st.sampled_from("ab"),
        priority=st.integers(0, 1),
        session=st.sampled_from([None, None, "s", "t", "u", "v"]),
    )
    def submit(self, number: int, run: str, priority: int, session: str | None) -> None:
        run, priority = ("", 0) if session else (run, priority)
        for _ in range(number):
            submission = Submission(
                str(len(self.calls)), session=session, run=run, priority=priority
            )
            call = Expected(submission)
            self.calls.append(call)
            call.future = self.scheduler.submit(submission)

    @precondition(lambda self: self.workers.running)
    @rule(
        data=st.data(),
        how=st.sampled_from(["ok", "ok", "ok", "error", "timeout", "lost", "broken"]),
    )
    def end(self, data: st.DataObject, how: str) -> None:
        work = data.draw(st.sampled_from(self.workers.running))
        call = self.calls[int(work.code)]
        own = not (call.future is not None and call.future.done())
        result = (
            failed(how)
            if how in ("lost", "broken")
            else ExecutionResult(ToolStatus(how), value=work.code)
        )
        session = call.submission.session
        if own and session is not None and how in ("ok", "error"):
            self.lived.setdefault(session, []).append(work.code)
        if not own and how != "ok":  # a cell that is run again comes to what it did before
            how, result = "lost", failed("lost")
        if not own and how == "ok":
            assert call.future is not None
            result = call.future.result(0)
        retried = own and (how == "lost" or (how == "broken" and session is None))
        call.losses += retried and call.losses == 0
        self.workers.end(work, result, lost=how == "lost")

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        open_calls = [
            call for call in self.calls if call.future is not None and not call.future.done()
        ]
        if open_calls:
            future = data.draw(st.sampled_from(open_calls)).future
            assert future is not None
            future.cancel()

    @precondition(lambda self: self.workers.ran)
    @rule(data=st.data())
    def session_dies(self, data: st.DataObject) -> None:
        busy = {work.session for work in self.workers.running}
        idle = sorted(self.workers.ran.keys() - busy)
        if idle:
            number = data.draw(st.sampled_from(idle))
            del self.workers.ran[number]
            self.workers.died(number)

    @invariant()
    def calls_are_started_in_their_order(self) -> None:
        if self.workers.broken:
            raise self.workers.broken[0]

    @invariant()
    def no_slot_is_idle_while_a_call_could_run(self) -> None:
        open_calls = [
            call for call in self.calls if call.future is not None and not call.future.done()
        ]
        free = [call for call in open_calls if call.submission.session is None]
        sessions = {call.submission.session for call in open_calls} - {None}
        assert len(self.workers.running) >= min(SLOTS, len(free) + len(sessions))
        assert len(self.workers.ran) <= SLOTS

    @invariant()
    def outcomes_are_right(self) -> None:
        for i, call in enumerate(self.calls):
            if call.future is not None and call.future.done() and not call.future.cancelled():
                result = call.future.result(0)
                assert call.starts <= result.attempt <= 2
                # its session could not be rebuilt
                assert call.starts or result.status is ToolStatus.INFRASTRUCTURE
                assert result.value in (str(i), None)
                assert (result.status is ToolStatus.INFRASTRUCTURE) == (result.value is None)
                known = (
                    {SessionState.NEW}
                    if not call.before
                    else {SessionState.KEPT, SessionState.REPLAYED}
                )
                assert (
                    result.session in (known if call.submission.session else {None})
                    or result.value is None
                )

    def teardown(self) -> None:
        while self.workers.running:
            work = self.workers.running[0]
            call = self.calls[int(work.code)]
            done = call.future is not None and call.future.done() and not call.future.cancelled()
            result = (
                call.future.result(0) if done else ExecutionResult(ToolStatus.OK, value=work.code)
            )  # type: ignore[union-attr]
            if not done and call.submission.session is not None:
                self.lived.setdefault(call.submission.session, []).append(work.code)
            self.workers.end(work, result, lost=False)
        assert all(call.future is not None and call.future.done() for call in self.calls)
        self.calls_are_started_in_their_order()
        self.outcomes_are_right()
        self.scheduler.close()


ANY_SPEED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(
    ANY_SPEED, max_examples=30, stateful_step_count=25, derandomize=True
)


@pytest.mark.slow
class TestMuchQueueing(Queueing.TestCase):
    settings = settings(ANY_SPEED, max_examples=300, stateful_step_count=40)


def test_a_call_that_ends_well_after_it_was_cancelled_is_none_of_the_session() -> None:
    workers = SteppedWorkers(lambda work: None)
    workers.kill = lambda work: None  # type: ignore[method-assign]  # it came too late
    scheduler = Scheduler(workers)
    well = ExecutionResult(ToolStatus.OK)
    scheduler.submit(Submission("1", session="s"))
    workers.end(workers.running[0], well, lost=False)
    cancelled = scheduler.submit(Submission("2", session="s"))
    cancelled.cancel()
    after = scheduler.submit(Submission("3", session="s"))
    for code in ("2", "1", "3"):
        assert [work.code for work in workers.running] == [code]
        workers.end(workers.running[0], well, lost=False)
    assert after.result(0).session is SessionState.REPLAYED
    assert workers.broken == []


def test_under_threads_nothing_is_lost_or_doubled() -> None:
    """Several threads submit, cancel and resubmit; outcomes come from as many others, some of them
    lost.
    """
    workers = ThreadWorkers(4)
    scheduler = Scheduler(workers, max_sessions=4)

    def client(number: int) -> Counter[str]:
        chance, seen = random.Random(number), Counter[str]()
        for i in range(150):
            name = f"{number}-{i}"
            code = f"{chance.choice(['value', 'value', 'value', 'lose', 'timeout'])} {name}"
            if chance.random() < 0.2:
                code = f"lose once{name}"
            session = chance.choice([None, None, f"{number}", f"{number}b"])
            submission = Submission(code, session=session, run=str(number % 2), id=name)
            future = scheduler.submit(submission)
            if chance.random() < 0.2:
                future.cancel()
                seen["cancelled"] += 1
                continue
            result = future.result(60)
            assert result.value in (code.partition(" ")[2], None)
            if result.status is not ToolStatus.INFRASTRUCTURE:
                assert scheduler.submit(submission).result(60) == result
            seen[result.status] += 1
        return seen

    with ThreadPoolExecutor(8) as pool:
        seen = sum(pool.map(client, range(8)), Counter[str]())
    assert sum(seen.values()) == 8 * 150
    assert (
        min(
            seen[status]
            for status in (ToolStatus.OK, ToolStatus.TIMEOUT, ToolStatus.INFRASTRUCTURE)
        )
        > 20
    )
    assert scheduler.drain(60)
    assert "hrm_environment_waiting 0\n" in scheduler.metrics()
    scheduler.close()
    assert workers.broken == []
    assert (
        max(
            Counter(
                code
                for code in workers.began
                if "once" not in code and not code.startswith("value")
            ).values()
        )
        <= 2
    )
