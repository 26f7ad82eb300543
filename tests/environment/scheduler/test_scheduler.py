"""The queue before the slots: order, fairness, ids, deadlines, bounds, cancellation, second
attempts, the end.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from hrm_agent.environment.base import Cell, ExecutionResult, Limits, Submission
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.environment.scheduler.scheduler import Scheduler
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.errors import HrmError, QueueFullError
from hrm_agent.testing import block_until
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.scheduler_workers import SteppedWorkers, ThreadWorkers


@pytest.fixture
def workers() -> Iterator[ThreadWorkers]:
    """A single slot."""
    workers = ThreadWorkers(1)
    yield workers
    assert workers.broken == []


def running(
    scheduler: Scheduler, workers: ThreadWorkers, **fields: object
) -> Future[ExecutionResult]:
    """A call that holds its slot until it is killed."""
    before = workers.began.count("wait")
    future = scheduler.submit(Submission("wait", **fields))  # type: ignore[arg-type]
    block_until(lambda: workers.began.count("wait") > before)
    return future


def outcome(future: Future[ExecutionResult]) -> ExecutionResult:
    return future.result(timeout=60)


def test_first_in_first_out(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    hold = running(scheduler, workers)
    calls = [scheduler.submit(Submission(f"value {i}")) for i in range(200)]
    hold.cancel()
    assert [outcome(call).value for call in calls] == [str(i) for i in range(200)]
    assert workers.began[1:] == [f"value {i}" for i in range(200)]


def test_a_call_that_comes_when_a_slot_is_freed_overtakes_nobody(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    """Callers submit their next call as soon as one has ended. Calls that wait still come first."""
    waiting = [scheduler.submit(Submission(f"sleep 0.00{i}")) for i in range(1, 6)]
    waiting[0].add_done_callback(lambda _: scheduler.submit(Submission("value late")))
    for call in waiting:
        outcome(call)
    block_until(lambda: len(workers.began) == 6)
    assert workers.began[-1] == "value late"


def test_higher_priorities_go_first(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    hold = running(scheduler, workers)
    for priority in (0, -5, 3, 0, 3):
        scheduler.submit(Submission(f"value {priority}", priority=priority))
    hold.cancel()
    block_until(lambda: len(workers.began) == 6)
    assert workers.began[1:] == ["value 3", "value 3", "value 0", "value 0", "value -5"]


def test_a_priority_orders_the_calls_of_its_client_alone(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    hold = running(scheduler, workers, client="greedy")
    for i in range(100):
        scheduler.submit(
            Submission(f"value greedy{i}", client="greedy", priority=100, run=f"run {i % 7}")
        )
    for priority in (-100, 5):
        scheduler.submit(Submission(f"value {priority}", client="modest", priority=priority))
    scheduler.submit(Submission("value last", client="last", priority=-100)).add_done_callback(
        lambda _: None
    )
    hold.cancel()
    block_until(lambda: len(workers.began) == 104)
    places = [workers.began.index(code) for code in ("value 5", "value -100", "value last")]
    assert places[0] < places[1] <= 6
    assert places[2] <= 4


def test_slots_are_shared_evenly_among_clients_whatever_their_runs() -> None:
    workers = SteppedWorkers(lambda work: None, slots=4)
    scheduler = Scheduler(workers)
    for i in range(200):
        scheduler.submit(Submission("many", client="many", run=f"{i % 20}", priority=i % 3))
        scheduler.submit(Submission("one", client="one"))
    for _ in range(100):
        workers.end(workers.running[0], ExecutionResult(ToolStatus.OK), lost=False)
        assert sorted(work.code for work in workers.running) in (
            ["many", "many", "one", "one"],
            ["many", "many", "many", "one"],
            ["many", "one", "one", "one"],
        )
    scheduler.close()
    queue = scheduler._dispatch._queue  # pyright: ignore[reportPrivateUsage]
    assert (len(queue), queue._lanes, queue._order, queue._client_shares, queue._run_shares) == (
        0,
        {},
        {},
        {},
        {},
    )
    assert workers.broken == []


def test_a_run_with_many_calls_does_not_starve_one_with_few(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    hold = running(scheduler, workers)
    for i in range(1000):
        scheduler.submit(Submission(f"value many{i}", run="many"))
    few = [scheduler.submit(Submission(f"value few{i}", run="few")) for i in range(3)]
    hold.cancel()
    for call in few:
        outcome(call)
    assert workers.began.index("value few2") <= 7


def test_slots_are_shared_evenly_whatever_the_length_of_calls() -> None:
    """The calls of one run are ten times as long as the other's: it gets as many slots, not ten
    times as many.
    """
    ends: dict[Work, int] = {}
    workers = SteppedWorkers(lambda work: ends.update({work: now + int(work.code)}), slots=4)
    scheduler, now, began = Scheduler(workers), 0, Counter[str]()
    for i in range(400):
        scheduler.submit(Submission("10" if i % 2 else "1", run="long" if i % 2 else "short"))
    while began["1"] < 150:
        work = min(workers.running, key=ends.__getitem__)
        now, began[work.code] = ends[work], began[work.code] + 1
        workers.end(work, ExecutionResult(ToolStatus.OK), lost=False)
        assert sorted(work.code for work in workers.running) in (
            ["1", "1", "10", "10"],
            ["1", "1", "1", "10"],
        )
    assert began["10"] <= began["1"] / 9
    scheduler.close()
    assert workers.broken == []


def test_cancelling_frees_the_slot_at_once(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    hold, queued = running(scheduler, workers), scheduler.submit(Submission("value never"))
    after = scheduler.submit(Submission("value after"))
    queued.cancel()
    hold.cancel()
    assert outcome(after).value == "after"
    assert workers.began == ["wait", "value after"]


def test_cancelled_calls_are_not_kept_in_the_queue(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    running(scheduler, workers)
    calls = [scheduler.submit(Submission(f"value {i}")) for i in range(500)]
    for call in calls:
        call.cancel()
    last = scheduler.submit(Submission("value last"))
    assert "hrm_environment_waiting 1\n" in scheduler.metrics()
    queue = scheduler._dispatch._queue  # pyright: ignore[reportPrivateUsage]
    assert (
        sum(len(line._heap) for lane in queue._lanes.values() for line in lane.lines.values()) < 100
    )
    assert not last.done()


def test_a_call_under_an_id_is_run_once(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    one, two = (scheduler.submit(Submission("clock", id="a")) for _ in range(2))
    first = outcome(one)
    assert outcome(two) == first
    assert outcome(scheduler.submit(Submission("clock", id="a"))) == first
    assert outcome(scheduler.submit(Submission("clock", id="b"))) != first
    assert workers.began == ["clock", "clock"]


def test_one_of_two_callers_may_leave(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    one, two = (scheduler.submit(Submission("sleep 0.05", id="a")) for _ in range(2))
    block_until(lambda: workers.began != [])
    one.cancel()
    assert outcome(two).status is ToolStatus.OK
    hold = [scheduler.submit(Submission("wait", id="b")) for _ in range(2)]
    for call in hold:
        call.cancel()
    assert outcome(scheduler.submit(Submission("value 1"))).value == "1"


@pytest.mark.parametrize(
    "other", [Submission("clock ", id="a"), Submission("clock", id="a", session="s")]
)
def test_an_id_of_another_call_is_refused(
    other: Submission, scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    hold = running(scheduler, workers)
    call = scheduler.submit(Submission("clock", id="a"))
    assert outcome(scheduler.submit(other)).status is ToolStatus.INVALID_CALL
    hold.cancel()
    outcome(call)
    refused = outcome(scheduler.submit(other))
    assert (refused.status, "`id` 'a'" in refused.stderr) == (ToolStatus.INVALID_CALL, True)


def test_an_id_counts_within_its_run(scheduler: Scheduler) -> None:
    assert outcome(scheduler.submit(Submission("clock", id="a", run="one"))) != outcome(
        scheduler.submit(Submission("clock", id="a", run="two"))
    )


def test_what_the_infrastructure_failed_at_is_run_again_under_its_id(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    for _ in range(2):
        assert (
            outcome(scheduler.submit(Submission("lose", id="a"))).status
            is ToolStatus.INFRASTRUCTURE
        )
    assert workers.began == ["lose"] * 4


def test_answers_are_forgotten_oldest_first(workers: ThreadWorkers) -> None:
    scheduler = Scheduler(workers, bounds=Bounds(answers=2))
    first = [outcome(scheduler.submit(Submission("clock", id=name))).value for name in "abc"]
    assert [
        outcome(scheduler.submit(Submission("clock", id=name))).value for name in "cb"
    ] == first[:0:-1]
    assert outcome(scheduler.submit(Submission("clock", id="a"))).value not in first
    scheduler.close()
    large = Scheduler(ThreadWorkers(1), bounds=Bounds(answers_bytes=10_000))
    outcome(large.submit(Submission("value " + "x" * 20_000, id="a")))
    assert "hrm_environment_answers 0\n" in large.metrics()
    large.close()


def test_a_lost_call_is_run_once_more(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    again = outcome(scheduler.submit(Submission("lose once")))
    assert (again.status, again.attempt) == (ToolStatus.OK, 2)
    lost = outcome(scheduler.submit(Submission("lose")))
    assert (lost.status, lost.attempt) == (ToolStatus.INFRASTRUCTURE, 2)
    assert workers.began == ["lose once"] * 2 + ["lose"] * 2


def test_a_lost_call_keeps_its_place(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    hold = running(scheduler, workers)
    calls = [scheduler.submit(Submission(code)) for code in ("lose once", "value 1", "value 2")]
    hold.cancel()
    for call in calls:
        outcome(call)
    assert workers.began == ["wait", "lose once", "lose once", "value 1", "value 2"]


def test_a_deadline_is_answered_on_time_though_no_slot_is_free(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    hold = running(scheduler, workers, deadline_seconds=60)
    begun = time.monotonic()
    last, late, early = (
        scheduler.submit(Submission("value never", deadline_seconds=each))
        for each in (60, 0.1, 0.05)
    )
    result = outcome(early)
    assert time.monotonic() - begun >= 0.05
    assert (result.status, "deadline of 0.05 s" in result.stderr) == (
        ToolStatus.INFRASTRUCTURE,
        True,
    )
    assert result.queued_seconds >= 0.05
    assert "deadline of 0.1 s" in outcome(late).stderr
    assert not last.done()
    assert not hold.done()
    last.cancel()
    hold.cancel()
    assert outcome(scheduler.submit(Submission("value 1", deadline_seconds=60))).value == "1"
    assert workers.began == ["wait", "value 1"]


def test_a_deadline_counts_until_the_call_has_begun(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    hold = running(scheduler, workers, deadline_seconds=60)
    (call,) = scheduler._open  # pyright: ignore[reportPrivateUsage]
    scheduler._guard.change(scheduler._expire, call)  # pyright: ignore[reportPrivateUsage] - as if it were over
    assert not hold.done()
    hold.cancel()


@pytest.mark.parametrize(
    ("submission", "named"),
    [
        (Submission("#" * 1_048_577), "`code`"),
        (Submission("\u00e9" * 600_000), "`code`"),
        (Submission("1", limits=Limits(wall_seconds=float("nan"))), "`limits.wall_seconds`"),
        (Submission("1", limits=Limits(wall_seconds=float("inf"))), "`limits.wall_seconds`"),
        (Submission("1", limits=Limits(cpu_seconds=0)), "`limits.cpu_seconds`"),
        (Submission("1", limits=Limits(memory_bytes=-1)), "`limits.memory_bytes`"),
        (Submission("1", limits=Limits(output_bytes=1 << 40)), "`limits.output_bytes`"),
        (Submission("1", priority=1000), "`priority`"),
        (Submission("1", priority=10**5000), "`priority`"),
        (Submission("1", limits=Limits(memory_bytes=10**5000)), "`limits.memory_bytes`"),
        (Submission("1", id="x" * 2000), "`id`"),
        (Submission("1", history=(Cell("1"),)), "`session`"),
        (Submission("1", session="s", history=(Cell("1"),) * 2001), "`history` has 2,001 cells"),
        (Submission("1", session="s", history=(Cell("1" * 1_000_000),) * 5), "`history` is larger"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(
    submission: Submission, named: str, scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    result = outcome(scheduler.submit(submission))
    assert (result.status, named in result.stderr) == (ToolStatus.INVALID_CALL, True)
    assert workers.began == []


NO_DEADLINES = [
    1e12,
    1e308,
    10**400,
    10**5000,
    604_801,
    -0.001,
    -1e12,
    *map(float, ("nan", "inf", "-inf")),
]


# Python refuses to write one of them in full
@pytest.mark.parametrize("number", range(len(NO_DEADLINES)))
def test_a_deadline_that_is_none_is_refused_and_costs_nobody_else_theirs(
    number: int, scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    running(scheduler, workers, deadline_seconds=604_800)
    refused = outcome(
        scheduler.submit(Submission("value 1", deadline_seconds=NO_DEADLINES[number]))
    )
    assert (refused.status, "from 0 to 604,800" in refused.stderr) == (
        ToolStatus.INVALID_CALL,
        True,
    )
    late = outcome(scheduler.submit(Submission("value 1", deadline_seconds=0.01)))
    assert "deadline of 0.01 s" in late.stderr


def test_odd_characters_break_nothing(scheduler: Scheduler) -> None:
    odd = "value \ud800\0\udfff"
    submission = Submission(odd, id="\ud800", session="\udfff\0", run="\ud801")
    assert [outcome(scheduler.submit(submission)).value for _ in range(2)] == [odd[6:]] * 2


def test_a_full_queue_is_refused_or_waited_for_in_line(workers: ThreadWorkers) -> None:
    scheduler = Scheduler(workers, bounds=Bounds(queue=2))
    hold = running(scheduler, workers)
    told: list[ExecutionResult] = []
    for i in range(2):
        scheduler.submit(Submission(f"value {i}"))
    with pytest.raises(QueueFullError, match="2 calls are waiting"):
        scheduler.submit(Submission("value refused"))
    calls = [
        scheduler.enter(Submission(f"value {i}"), told.append, patient=True) for i in range(2, 7)
    ]
    assert calls[0] is not None
    scheduler.leave(calls[0], told.append)
    late = Submission("value late", deadline_seconds=0.05)
    scheduler.enter(late, told.append, patient=True)
    block_until(lambda: len(told) == 1)
    assert told.pop().status is ToolStatus.INFRASTRUCTURE
    hold.cancel()
    block_until(lambda: len(told) == 4)
    assert workers.began == ["wait", *(f"value {i}" for i in (0, 1, 3, 4, 5, 6))]
    scheduler.close()


def test_draining_ends_what_is_open_and_takes_nothing_new(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    hold = running(scheduler, workers)
    queued = scheduler.submit(Submission("value 1"))
    assert not scheduler.drain(0.05)
    with pytest.raises(HrmError, match="shut down"):
        scheduler.submit(Submission("value 2"))
    threading.Timer(0.05, hold.cancel).start()
    assert scheduler.drain(60)
    assert queued.result(0).value == "1"


def test_closing_gives_every_call_an_outcome(workers: ThreadWorkers) -> None:
    scheduler = Scheduler(workers, bounds=Bounds(queue=10))
    hold = running(scheduler, workers)
    calls = [
        hold,
        *(
            scheduler.submit(Submission("value 1", session="s" if i % 2 else None))
            for i in range(10)
        ),
    ]
    told: list[ExecutionResult] = []
    scheduler.enter(Submission("value outside"), told.append, patient=True)
    scheduler.close()
    results = [*map(outcome, calls), *told]
    assert [result.status for result in results] == [ToolStatus.INFRASTRUCTURE] * 12
    assert workers.began == ["wait"]
    with pytest.raises(HrmError, match="closed"):
        scheduler.submit(Submission("value 1"))
    scheduler.close()


class Immediate(ThreadWorkers):
    """Answers from within `start`, or raises there."""

    def start(self, work: Work) -> None:
        self.works.append(work)
        if work.code == "raise":
            raise OSError("no descriptor left")
        if work.code != "hold":
            work.done(ExecutionResult(ToolStatus.OK), False)


def test_workers_may_answer_at_once_or_fail_to_start() -> None:
    workers = Immediate(1)
    scheduler = Scheduler(workers)
    scheduler.submit(Submission("hold"))
    calls = [scheduler.submit(Submission("value")) for _ in range(3000)]
    workers.works[0].done(ExecutionResult(ToolStatus.OK), False)
    assert {call.result(0).status for call in calls} == {ToolStatus.OK}
    failed = outcome(scheduler.submit(Submission("raise")))
    assert (failed.status, failed.attempt) == (ToolStatus.INFRASTRUCTURE, 2)
    assert "no descriptor left" in failed.stderr
    scheduler.close()


def test_an_outcome_that_is_told_twice_counts_once(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    outcome(scheduler.submit(Submission("value 1")))
    hold = running(scheduler, workers)
    workers.works[0].done(ExecutionResult(ToolStatus.OK), False)
    queued = scheduler.submit(Submission("value 2"))
    assert not queued.done()
    assert workers.began == ["value 1", "wait"]
    hold.cancel()
    assert outcome(queued).value == "2"


def test_seeds_come_from_names(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    named = [
        Submission("value", id="a"),
        Submission("value", id="b"),
        Submission("value"),
        Submission("value"),
    ]
    for submission in [*named, Submission("value", session="a"), Submission("value", session="a")]:
        outcome(scheduler.submit(submission))
    seeds = [work.seed for work in workers.works]
    assert len(set(seeds[:4])) == 4
    assert seeds[4] == seeds[5]
    other = Scheduler(workers)
    outcome(other.submit(named[0]))
    assert workers.works[-1].seed == seeds[0]


def test_metrics_are_prometheus_text(scheduler: Scheduler) -> None:
    for code in ("value 1", "lose once", "timeout"):
        outcome(scheduler.submit(Submission(code)))
    outcome(scheduler.submit(Submission("set 1", session="s")))
    scheduler.submit(Submission("wait")).cancel()
    text = scheduler.metrics()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert text.endswith("\n")
    for name, value in {
        'calls_total{status="ok"}': 3,
        'calls_total{status="timeout"}': 1,
        'attempts_total{attempt="2"}': 1,
        'session_calls_total{state="new"}': 1,
        "retries_total": 1,
        "cancelled_total": 1,
        "sessions_living": 1,
        'queue_seconds_bucket{le="+Inf"}': 4,
        "wall_seconds_count": 4,
        'info{isolation="L0"}': 1,
    }.items():
        assert float(samples[f"hrm_environment_{name}"]) == value, name
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")} == set(
        families
    )


def test_a_cancelled_future_raises_for_those_who_wait(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    hold = running(scheduler, workers)
    hold.cancel()
    with pytest.raises(CancelledError):
        hold.result(60)
