"""Sessions as the scheduler keeps them: which process continues, what is run again, what is lost,
who may.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from hrm_agent.environment.base import Cell, ExecutionResult, SessionState, Submission
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.environment.scheduler.scheduler import Scheduler
from hrm_agent.errors import HrmError
from hrm_agent.testing import block_until
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.scheduler_workers import ThreadWorkers

NEW, KEPT, REPLAYED, DIFFERS, LOST = SessionState


@pytest.fixture
def workers() -> Iterator[ThreadWorkers]:
    workers = ThreadWorkers(4)
    yield workers
    assert workers.broken == []


def submit(
    scheduler: Scheduler, code: str, session: str = "s", **fields: object
) -> Future[ExecutionResult]:
    return scheduler.submit(Submission(code, session=session, **fields))  # type: ignore[arg-type]


def run(scheduler: Scheduler, code: str, session: str = "s", **fields: object) -> ExecutionResult:
    return submit(scheduler, code, session, **fields).result(60)


def found(
    scheduler: Scheduler, code: str, session: str = "s", **fields: object
) -> tuple[str | None, SessionState | None]:
    result = run(scheduler, code, session, **fields)
    return result.value, result.session


def digest(value: str) -> str:
    return ExecutionResult(ToolStatus.OK, value=value).digest


def test_a_session_keeps_its_process(scheduler: Scheduler) -> None:
    assert found(scheduler, "set 5") == ("5", NEW)
    assert found(scheduler, "get") == ("5", KEPT)
    assert run(scheduler, "fail").status is ToolStatus.ERROR
    assert found(scheduler, "get") == ("5", KEPT)
    assert found(scheduler, "get", "other") == ("nothing", NEW)


def test_calls_of_a_session_run_one_at_a_time_in_order(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    calls = [submit(scheduler, f"sleep 0.0{i}") for i in (3, 2, 1)] + [
        submit(scheduler, f"set {i}") for i in range(50)
    ]
    others = [submit(scheduler, "set 1", f"other{i}") for i in range(50)]
    for call in calls + others:
        call.result(60)
    own = [work.code for work in workers.works if work.session == workers.works[0].session]
    assert own == [*(f"sleep 0.0{i}" for i in (3, 2, 1)), *(f"set {i}" for i in range(50))]


def test_a_call_behind_another_of_its_session_holds_no_slot(workers: ThreadWorkers) -> None:
    scheduler = Scheduler(workers)
    hold = [submit(scheduler, "wait") for _ in range(20)]
    assert scheduler.submit(Submission("value 1")).result(60).value == "1"
    assert workers.began == ["wait", "value 1"]
    for call in reversed(hold):
        call.cancel()
    assert found(scheduler, "get") == ("nothing", NEW)
    scheduler.close()


@pytest.mark.parametrize("fatal", ["timeout", "die", "break"])
def test_a_call_that_ended_its_process_is_none_of_the_session(
    fatal: str, scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    run(scheduler, "set 5")
    assert run(scheduler, fatal).session is KEPT
    assert found(scheduler, "get") == ("5", REPLAYED)
    assert found(scheduler, "get") == ("5", KEPT)
    assert workers.began == ["set 5", fatal, "set 5", "get", "get"]


def test_a_cancelled_call_is_none_of_the_session(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    run(scheduler, "set 5")
    hold = submit(scheduler, "wait")
    block_until(lambda: "wait" in workers.began)
    after = submit(scheduler, "get")
    hold.cancel()
    result = after.result(60)
    assert (result.value, result.session) == ("5", REPLAYED)


def test_a_first_call_that_dies_leaves_a_session_without_cells(scheduler: Scheduler) -> None:
    run(scheduler, "die")
    assert found(scheduler, "get") == ("nothing", NEW)


def test_a_process_that_dies_idle_is_rebuilt(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    run(scheduler, "set 5")
    workers.kill_idle(workers.works[-1].session)
    assert found(scheduler, "get") == ("5", REPLAYED)


def test_a_process_whose_death_is_heard_of_late_is_rebuilt(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    run(scheduler, "set 5")
    workers.processes.clear()
    result = run(scheduler, "get")
    assert (result.value, result.session, result.attempt) == ("5", REPLAYED, 2)


def test_a_call_lost_before_it_began_is_run_again_and_one_that_began_is_not(
    scheduler: Scheduler,
) -> None:
    run(scheduler, "set 5")
    lost = run(scheduler, "lose once")
    assert (lost.status, lost.session, lost.attempt) == (ToolStatus.OK, REPLAYED, 2)
    broken = run(scheduler, "break")
    assert (broken.status, broken.attempt) == (ToolStatus.INFRASTRUCTURE, 1)
    assert found(scheduler, "get") == ("5", REPLAYED)


def test_what_comes_to_something_else_is_named_once(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    run(scheduler, "set 5")
    run(scheduler, "clock")
    run(scheduler, "timeout")
    rebuilt = run(scheduler, "get")
    assert (rebuilt.value, rebuilt.session, rebuilt.changed_cells) == ("5", DIFFERS, (2,))
    kept = run(scheduler, "get")
    assert (kept.value, kept.session, kept.changed_cells) == ("5", KEPT, ())


def test_cells_that_changed_keep_their_numbers_where_one_before_them_is_fatal(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    died = ExecutionResult(ToolStatus.ERROR, stdout="last words").digest
    cells = (
        Cell("die", died),
        Cell("set 5", digest("5")),
        Cell("clock", digest("1")),
        Cell("get", digest("6")),
    )
    rebuilt = run(scheduler, "get", history=cells)
    assert (rebuilt.value, rebuilt.session, rebuilt.changed_cells) == ("5", DIFFERS, (3, 4))


def test_the_history_that_is_given_counts(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    cells = (Cell("set 5", digest("5")), Cell("value 1"))
    assert found(scheduler, "get", history=cells) == ("5", REPLAYED)
    assert found(scheduler, "get", history=(*cells, Cell("get", digest("5")))) == ("5", KEPT)
    assert found(scheduler, "get", history=(*cells, Cell("get"), Cell("get"))) == ("5", KEPT)
    assert found(scheduler, "get", history=(Cell("set 6"),)) == ("6", REPLAYED)
    assert found(scheduler, "get", history=(Cell("set 6"), Cell("get", digest("7")))) == (
        "6",
        DIFFERS,
    )
    assert found(scheduler, "get", history=()) == ("nothing", NEW)
    assert found(scheduler, "get") == ("nothing", KEPT)
    assert len(workers.processes) == 1


def test_a_cell_that_ended_its_process_does_so_again(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    """A history may hold such a cell: it is left out, and nothing is lost if it came to what it
    came to before.
    """
    died = ExecutionResult(ToolStatus.ERROR, stdout="last words").digest
    assert found(scheduler, "get", history=(Cell("set 5"), Cell("die", died))) == ("5", REPLAYED)
    assert found(
        scheduler, "get", history=(Cell("set 6"), Cell("die", digest("else")), Cell("value 1"))
    ) == ("6", LOST)
    assert found(scheduler, "get", history=(Cell("set 7"), Cell("die"))) == ("7", LOST)


def test_rebuilding_is_given_up_when_cell_after_cell_is_fatal(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    cells = (Cell("set 5"), *(Cell(f"timeout {i}") for i in range(10)))
    assert found(scheduler, "get", history=cells) == ("nothing", LOST)
    assert [code for code in workers.began if code.startswith("timeout")] == [
        f"timeout {i}" for i in range(3)
    ]


def test_rebuilding_is_tried_twice(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    result = run(scheduler, "get", history=(Cell("set 5"), Cell("lose once")))
    assert (result.value, result.session, result.attempt) == ("5", REPLAYED, 2)
    result = run(scheduler, "get", history=(Cell("set 5"), Cell("lose")))
    assert (result.status, result.attempt) == (ToolStatus.INFRASTRUCTURE, 2)


def test_a_call_is_cancelled_while_its_session_is_rebuilt(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    hold = submit(scheduler, "value 1", history=(Cell("set 5"), Cell("wait"), Cell("value 2")))
    block_until(lambda: "wait" in workers.began)
    hold.cancel()
    assert found(scheduler, "get", history=(Cell("set 6"),)) == ("6", REPLAYED)
    assert "value 2" not in workers.began


def test_the_one_idle_longest_makes_room_and_is_rebuilt(workers: ThreadWorkers) -> None:
    scheduler = Scheduler(workers, max_sessions=4)
    for i in range(6):
        run(scheduler, f"set {i}", f"s{i}")
    assert [found(scheduler, "get", f"s{i}") for i in (2, 3, 4, 5)] == [
        (str(i), KEPT) for i in (2, 3, 4, 5)
    ]
    assert [found(scheduler, "get", f"s{i}") for i in (0, 1, 5)] == [
        ("0", REPLAYED),
        ("1", REPLAYED),
        ("5", KEPT),
    ]
    assert workers.most_processes <= 4
    scheduler.close()


def test_there_is_a_process_for_every_slot(workers: ThreadWorkers) -> None:
    scheduler = Scheduler(workers, max_sessions=1)
    calls = [submit(scheduler, "sleep 0.01", f"s{i % 9}") for i in range(45)]
    assert {call.result(60).status for call in calls} == {ToolStatus.OK}
    assert workers.most_processes <= 4
    scheduler.close()


def test_what_is_remembered_is_bounded(workers: ThreadWorkers) -> None:
    scheduler = Scheduler(workers, max_sessions=4, bounds=Bounds(sessions=2, history_cells=3))
    for i in range(8):
        run(scheduler, f"set {i}", f"s{i}")
    assert "hrm_environment_sessions_known 6\n" in scheduler.metrics()
    assert found(scheduler, "get", "s0") == ("nothing", NEW)
    for _ in range(5):
        run(scheduler, "get", "s7")
    assert found(scheduler, "get", "s7") == ("7", KEPT)
    run(scheduler, "timeout", "s7")
    # it had more cells than are remembered
    assert found(scheduler, "get", "s7") == ("nothing", LOST)
    scheduler.close()
    small = Scheduler(ThreadWorkers(1), max_sessions=1, bounds=Bounds(sessions_bytes=1000))
    for i in range(5):
        run(small, "value " + "x" * 400, f"s{i}")
    assert "hrm_environment_sessions_known 3\n" in small.metrics()
    small.close()


def test_a_fork_is_a_copy_apart(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    run(scheduler, "set 5")
    scheduler.fork_session("s", "copy").result(60)
    run(scheduler, "set 6")
    assert found(scheduler, "get", "copy") == ("5", REPLAYED)
    run(scheduler, "set 7", "copy")
    assert found(scheduler, "get") == ("6", KEPT)
    assert {work.seed for work in workers.works} == {workers.works[0].seed}
    with pytest.raises(HrmError, match="no session 'unknown'"):
        scheduler.fork_session("unknown", "copy")


def test_a_fork_waits_for_the_running_call_only(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    calls = [submit(scheduler, "set 5"), submit(scheduler, "hold"), submit(scheduler, "set 6")]
    calls[0].result(60)
    block_until(lambda: "hold" in workers.began)
    copied = scheduler.fork_session("s", "copy")
    assert not copied.done()
    workers.let_go.set()
    copied.result(60)
    assert found(scheduler, "get", "copy") == ("5", REPLAYED)
    assert [work.code for work in workers.works if work.session == 2] == ["set 5", "hold", "get"]


def test_a_fork_replaces_an_idle_session_but_no_busy_one(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    run(scheduler, "set 5")
    run(scheduler, "set 9", "target")
    scheduler.fork_session("s", "target").result(60)
    assert found(scheduler, "get", "target") == ("5", REPLAYED)
    hold = submit(scheduler, "wait", "target")
    with pytest.raises(HrmError, match="has open calls"):
        scheduler.fork_session("s", "target").result(60)
    hold.cancel()


def test_end_session_forgets(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    run(scheduler, "set 5")
    scheduler.end_session("s")
    scheduler.end_session("unknown")
    assert found(scheduler, "get") == ("nothing", NEW)
    assert workers.ended_sessions == [1]


def test_end_session_ends_its_open_calls(scheduler: Scheduler, workers: ThreadWorkers) -> None:
    run(scheduler, "set 5")
    calls = [submit(scheduler, "wait"), submit(scheduler, "get"), submit(scheduler, "get")]
    block_until(lambda: "wait" in workers.began)
    scheduler.end_session("s")
    after = submit(scheduler, "get")
    assert [call.result(60).status for call in calls] == [ToolStatus.INFRASTRUCTURE] * 3
    result = after.result(60)
    assert (result.value, result.session) == ("nothing", NEW)
    block_until(lambda: set(workers.processes) == {2})


def test_a_session_belongs_to_the_run_that_made_it(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    run(scheduler, "set 5", run="mine")
    for other in ("theirs", ""):
        denied = run(scheduler, "get", run=other, history=())
        assert (denied.status, denied.value) == (ToolStatus.DENIED, None)
    assert found(scheduler, "get", run="mine") == ("5", KEPT)
    scheduler.end_session("s", run="mine")
    assert run(scheduler, "get", run="theirs").session is NEW
    assert workers.began == ["set 5", "get", "get"]


def test_a_fork_that_waited_takes_no_session_that_another_run_has_made_meanwhile(
    scheduler: Scheduler, workers: ThreadWorkers
) -> None:
    run(scheduler, "set 1", "mine", run="a")
    held = submit(scheduler, "hold", "mine", run="a")
    block_until(lambda: workers.works[-1].code == "hold")
    copied = scheduler.fork_session("mine", "target", "a")
    run(scheduler, "set 2", "target", run="b")
    workers.let_go.set()
    held.result(60)
    with pytest.raises(HrmError, match="belongs to another run"):
        copied.result(60)
    assert run(scheduler, "get", "target", run="b").value == "2"
