"""Sessions as the front keeps them: which process continues, what is run again, what is lost, who may."""

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
from tests.support.environment.front_workers import ThreadWorkers

NEW, KEPT, REPLAYED, LOST = SessionState


@pytest.fixture
def workers() -> Iterator[ThreadWorkers]:
    workers = ThreadWorkers(4)
    yield workers
    assert workers.broken == []


@pytest.fixture
def front(workers: ThreadWorkers) -> Iterator[Scheduler]:
    front = Scheduler(workers)
    yield front
    front.close()


def submit(front: Scheduler, code: str, session: str = "s", **fields: object) -> Future[ExecutionResult]:
    return front.submit(Submission(code, session=session, **fields))  # type: ignore[arg-type]


def run(front: Scheduler, code: str, session: str = "s", **fields: object) -> ExecutionResult:
    return submit(front, code, session, **fields).result(60)


def found(front: Scheduler, code: str, session: str = "s", **fields: object) -> tuple[str | None, SessionState | None]:
    result = run(front, code, session, **fields)
    return result.value, result.session


def digest(value: str) -> str:
    return ExecutionResult(ToolStatus.OK, value=value).digest


def test_a_session_keeps_its_process(front: Scheduler) -> None:
    assert found(front, "set 5") == ("5", NEW)
    assert found(front, "get") == ("5", KEPT)
    assert run(front, "fail").status is ToolStatus.ERROR
    assert found(front, "get") == ("5", KEPT)
    assert found(front, "get", "other") == ("nothing", NEW)


def test_calls_of_a_session_run_one_at_a_time_in_order(front: Scheduler, workers: ThreadWorkers) -> None:
    calls = [submit(front, f"sleep 0.0{i}") for i in (3, 2, 1)] + [submit(front, f"set {i}") for i in range(50)]
    others = [submit(front, "set 1", f"other{i}") for i in range(50)]
    for call in calls + others:
        call.result(60)
    own = [work.code for work in workers.works if work.session == workers.works[0].session]
    assert own == [*(f"sleep 0.0{i}" for i in (3, 2, 1)), *(f"set {i}" for i in range(50))]


def test_a_call_behind_another_of_its_session_holds_no_slot(workers: ThreadWorkers) -> None:
    front = Scheduler(workers)
    hold = [submit(front, "wait") for _ in range(20)]
    assert front.submit(Submission("value 1")).result(60).value == "1"
    assert workers.began == ["wait", "value 1"]
    for call in reversed(hold):
        call.cancel()
    assert found(front, "get") == ("nothing", NEW)
    front.close()


@pytest.mark.parametrize("fatal", ["timeout", "die", "break"])
def test_a_call_that_ended_its_process_is_none_of_the_session(
    fatal: str, front: Scheduler, workers: ThreadWorkers
) -> None:
    run(front, "set 5")
    assert run(front, fatal).session is KEPT
    assert found(front, "get") == ("5", REPLAYED)
    assert found(front, "get") == ("5", KEPT)
    assert workers.began == ["set 5", fatal, "set 5", "get", "get"]


def test_a_cancelled_call_is_none_of_the_session(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5")
    hold = submit(front, "wait")
    block_until(lambda: "wait" in workers.began)
    after = submit(front, "get")
    hold.cancel()
    result = after.result(60)
    assert (result.value, result.session) == ("5", REPLAYED)


def test_a_first_call_that_dies_leaves_a_session_without_cells(front: Scheduler) -> None:
    run(front, "die")
    assert found(front, "get") == ("nothing", NEW)


def test_a_process_that_dies_idle_is_rebuilt(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5")
    workers.kill_idle(workers.works[-1].session)
    assert found(front, "get") == ("5", REPLAYED)


def test_a_process_whose_death_is_heard_of_late_is_rebuilt(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5")
    workers.processes.clear()
    result = run(front, "get")
    assert (result.value, result.session, result.attempt) == ("5", REPLAYED, 2)


def test_a_call_lost_before_it_began_is_run_again_and_one_that_began_is_not(front: Scheduler) -> None:
    run(front, "set 5")
    lost = run(front, "lose once")
    assert (lost.status, lost.session, lost.attempt) == (ToolStatus.OK, REPLAYED, 2)
    broken = run(front, "break")
    assert (broken.status, broken.attempt) == (ToolStatus.INFRASTRUCTURE, 1)
    assert found(front, "get") == ("5", REPLAYED)


def test_what_comes_to_something_else_is_lost_once(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5")
    run(front, "clock")
    run(front, "timeout")
    assert found(front, "get") == ("5", LOST)
    assert found(front, "get") == ("5", KEPT)


def test_the_history_that_is_given_counts(front: Scheduler, workers: ThreadWorkers) -> None:
    cells = (Cell("set 5", digest("5")), Cell("value 1"))
    assert found(front, "get", history=cells) == ("5", REPLAYED)
    assert found(front, "get", history=(*cells, Cell("get", digest("5")))) == ("5", KEPT)
    assert found(front, "get", history=(*cells, Cell("get"), Cell("get"))) == ("5", KEPT)
    assert found(front, "get", history=(Cell("set 6"),)) == ("6", REPLAYED)
    assert found(front, "get", history=(Cell("set 6"), Cell("get", digest("7")))) == ("6", LOST)
    assert found(front, "get", history=()) == ("nothing", NEW)
    assert found(front, "get") == ("nothing", KEPT)
    assert len(workers.processes) == 1


def test_a_cell_that_ended_its_process_does_so_again(front: Scheduler, workers: ThreadWorkers) -> None:
    """A history may hold such a cell: it is left out, and nothing is lost if it came to what it came to before."""
    died = ExecutionResult(ToolStatus.ERROR, stdout="last words").digest
    assert found(front, "get", history=(Cell("set 5"), Cell("die", died))) == ("5", REPLAYED)
    assert found(front, "get", history=(Cell("set 6"), Cell("die", digest("else")), Cell("value 1"))) == ("6", LOST)
    assert found(front, "get", history=(Cell("set 7"), Cell("die"))) == ("7", LOST)


def test_rebuilding_is_given_up_when_cell_after_cell_is_fatal(front: Scheduler, workers: ThreadWorkers) -> None:
    cells = (Cell("set 5"), *(Cell(f"timeout {i}") for i in range(10)))
    assert found(front, "get", history=cells) == ("nothing", LOST)
    assert [code for code in workers.began if code.startswith("timeout")] == [f"timeout {i}" for i in range(3)]


def test_rebuilding_is_tried_twice(front: Scheduler, workers: ThreadWorkers) -> None:
    result = run(front, "get", history=(Cell("set 5"), Cell("lose once")))
    assert (result.value, result.session, result.attempt) == ("5", REPLAYED, 2)
    result = run(front, "get", history=(Cell("set 5"), Cell("lose")))
    assert (result.status, result.attempt) == (ToolStatus.INFRASTRUCTURE, 2)


def test_a_call_is_cancelled_while_its_session_is_rebuilt(front: Scheduler, workers: ThreadWorkers) -> None:
    hold = submit(front, "value 1", history=(Cell("set 5"), Cell("wait"), Cell("value 2")))
    block_until(lambda: "wait" in workers.began)
    hold.cancel()
    assert found(front, "get", history=(Cell("set 6"),)) == ("6", REPLAYED)
    assert "value 2" not in workers.began


def test_the_one_idle_longest_makes_room_and_is_rebuilt(workers: ThreadWorkers) -> None:
    front = Scheduler(workers, max_sessions=4)
    for i in range(6):
        run(front, f"set {i}", f"s{i}")
    assert [found(front, "get", f"s{i}") for i in (2, 3, 4, 5)] == [(str(i), KEPT) for i in (2, 3, 4, 5)]
    assert [found(front, "get", f"s{i}") for i in (0, 1, 5)] == [("0", REPLAYED), ("1", REPLAYED), ("5", KEPT)]
    assert workers.most_processes <= 4
    front.close()


def test_there_is_a_process_for_every_slot(workers: ThreadWorkers) -> None:
    front = Scheduler(workers, max_sessions=1)
    calls = [submit(front, "sleep 0.01", f"s{i % 9}") for i in range(45)]
    assert {call.result(60).status for call in calls} == {ToolStatus.OK}
    assert workers.most_processes <= 4
    front.close()


def test_what_is_remembered_is_bounded(workers: ThreadWorkers) -> None:
    front = Scheduler(workers, max_sessions=4, bounds=Bounds(sessions=2, history_cells=3))
    for i in range(8):
        run(front, f"set {i}", f"s{i}")
    assert "hrm_environment_sessions_known 6\n" in front.metrics()
    assert found(front, "get", "s0") == ("nothing", NEW)
    for _ in range(5):
        run(front, "get", "s7")
    assert found(front, "get", "s7") == ("7", KEPT)
    run(front, "timeout", "s7")
    assert found(front, "get", "s7") == ("nothing", LOST)  # it had more cells than are remembered
    front.close()
    small = Scheduler(ThreadWorkers(1), max_sessions=1, bounds=Bounds(sessions_bytes=1000))
    for i in range(5):
        run(small, "value " + "x" * 400, f"s{i}")
    assert "hrm_environment_sessions_known 3\n" in small.metrics()
    small.close()


def test_a_fork_is_a_copy_apart(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5")
    front.fork_session("s", "copy").result(60)
    run(front, "set 6")
    assert found(front, "get", "copy") == ("5", REPLAYED)
    run(front, "set 7", "copy")
    assert found(front, "get") == ("6", KEPT)
    assert {work.seed for work in workers.works} == {workers.works[0].seed}
    with pytest.raises(HrmError, match="no session 'unknown'"):
        front.fork_session("unknown", "copy")


def test_a_fork_waits_for_the_running_call_only(front: Scheduler, workers: ThreadWorkers) -> None:
    calls = [submit(front, "set 5"), submit(front, "hold"), submit(front, "set 6")]
    calls[0].result(60)
    block_until(lambda: "hold" in workers.began)
    copied = front.fork_session("s", "copy")
    assert not copied.done()
    workers.let_go.set()
    copied.result(60)
    assert found(front, "get", "copy") == ("5", REPLAYED)
    assert [work.code for work in workers.works if work.session == 2] == ["set 5", "hold", "get"]


def test_a_fork_replaces_an_idle_session_but_no_busy_one(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5")
    run(front, "set 9", "target")
    front.fork_session("s", "target").result(60)
    assert found(front, "get", "target") == ("5", REPLAYED)
    hold = submit(front, "wait", "target")
    with pytest.raises(HrmError, match="under way"):
        front.fork_session("s", "target").result(60)
    hold.cancel()


def test_end_session_forgets(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5")
    front.end_session("s")
    front.end_session("unknown")
    assert found(front, "get") == ("nothing", NEW)
    assert workers.ended_sessions == [1]


def test_end_session_ends_its_open_calls(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5")
    calls = [submit(front, "wait"), submit(front, "get"), submit(front, "get")]
    block_until(lambda: "wait" in workers.began)
    front.end_session("s")
    after = submit(front, "get")
    assert [call.result(60).status for call in calls] == [ToolStatus.INFRASTRUCTURE] * 3
    result = after.result(60)
    assert (result.value, result.session) == ("nothing", NEW)
    block_until(lambda: set(workers.processes) == {2})


def test_a_session_belongs_to_the_run_that_made_it(front: Scheduler, workers: ThreadWorkers) -> None:
    run(front, "set 5", run="mine")
    for other in ("theirs", ""):
        denied = run(front, "get", run=other, history=())
        assert (denied.status, denied.value) == (ToolStatus.DENIED, None)
    assert found(front, "get", run="mine") == ("5", KEPT)
    front.end_session("s")
    assert run(front, "get", run="theirs").session is NEW
    assert workers.began == ["set 5", "get", "get"]
