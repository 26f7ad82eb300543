"""Tool calls are written ahead, finished once, and returned from the record instead of being run
again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.errors import GraphInterrupt

from hrm_agent.environment import ExecutionResult
from hrm_agent.errors import HrmError
from hrm_agent.tools.record_call import ToolOutcome, as_message, record_tool_call
from hrm_agent.trajectory import MemoryJournal, ToolCall, ToolStatus, tool_record_id

CONFIG: Any = {
    "metadata": {
        "thread_id": "t",
        "langgraph_checkpoint_ns": "solve:1|tools:2",
        "langgraph_node": "tools",
        "langgraph_step": 3,
        "langgraph_path": ("__pregel_pull", "tools"),
    }
}


class Counter:
    """Function to execute, which counts its calls."""

    def __init__(self, outcome: ToolOutcome | Exception | None = None) -> None:
        self.runs = 0
        self.outcome = outcome or ToolOutcome(
            ToolStatus.OK,
            "shown",
            execution=ExecutionResult(
                ToolStatus.OK, "out", "err", "value", duration_seconds=0.25, cpu_seconds=0.125
            ),
        )

    async def __call__(self) -> ToolOutcome:
        self.runs += 1
        await asyncio.sleep(0)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def record(
    execute: Any, call_id: str = "c", arguments: Any = None, config: Any = CONFIG
) -> ToolCall:
    arguments = {"x": 1} if arguments is None else arguments
    return await record_tool_call(
        tool_call_id=call_id, name="f", arguments=arguments, config=config, execute=execute
    )


async def test_the_record_holds_identity_and_outcome(journal: MemoryJournal) -> None:
    finished = await record(Counter())
    assert finished.id == tool_record_id("t", "2", "c")
    assert (finished.identity.thread_id, finished.identity.node) == ("t", "tools")
    assert (finished.identity.checkpoint_ns, finished.identity.task_id) == ("solve:1|tools:2", "2")
    assert (finished.status, finished.content, finished.duration_seconds) == (
        ToolStatus.OK,
        "shown",
        0.25,
    )
    assert (finished.stdout, finished.stderr, finished.value) == ("out", "err", "value")
    assert (finished.cpu_seconds, finished.attempt) == (0.125, 1)
    assert finished.started_at > 1e9
    assert journal.find_tool_call(finished.id) == finished


async def test_it_is_written_before_it_runs(journal: MemoryJournal) -> None:
    seen: list[ToolCall | None] = []

    async def execute() -> ToolOutcome:
        seen.append(journal.find_tool_call(tool_record_id("t", "2", "c")))
        return ToolOutcome(ToolStatus.OK, "")

    await record(execute)
    assert seen[0] is not None
    assert (seen[0].status, seen[0].arguments) == (None, {"x": 1})


async def test_a_finished_call_is_given_back_and_not_run_again(journal: MemoryJournal) -> None:
    execute = Counter(ToolOutcome(ToolStatus.TIMEOUT, "too long"))
    assert await record(execute) == await record(execute)
    assert execute.runs == 1


async def test_another_request_under_the_same_id_is_run(journal: MemoryJournal) -> None:
    execute = Counter()
    await record(execute)
    await record(execute, arguments={"x": 2})
    assert execute.runs == 2


async def test_a_cancelled_call_stays_unfinished_and_runs_again(journal: MemoryJournal) -> None:
    begun = asyncio.Event()

    async def endless() -> ToolOutcome:
        begun.set()
        await asyncio.sleep(600)
        raise AssertionError

    task = asyncio.create_task(record(endless))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    unfinished = journal.find_tool_call(tool_record_id("t", "2", "c"))
    assert unfinished is not None
    assert unfinished.status is None
    again = await record(Counter())
    assert (again.id, again.status, again.repeated_of) == (unfinished.id, ToolStatus.OK, None)


async def test_a_repetition_names_the_first_call_and_never_itself(journal: MemoryJournal) -> None:
    first, second, other = await asyncio.gather(
        record(Counter(), "a"), record(Counter(), "b"), record(Counter(), "c", {"x": 2})
    )
    third = await record(Counter(), "d")
    assert (first.repeated_of, other.repeated_of) == (None, None)
    assert (second.repeated_of, third.repeated_of) == (first.id, first.id)
    elsewhere = await record(
        Counter(), "e", config={"metadata": {**CONFIG["metadata"], "thread_id": "u"}}
    )
    assert elsewhere.repeated_of is None


async def test_an_exception_is_a_fault_of_the_infrastructure(journal: MemoryJournal) -> None:
    finished = await record(Counter(OSError("no more processes")))
    assert (finished.status, finished.stderr) == (
        ToolStatus.INFRASTRUCTURE,
        "OSError: no more processes",
    )
    assert not ToolStatus.INFRASTRUCTURE.is_policy_failure


@pytest.mark.parametrize("error", [HrmError("mend me"), GraphInterrupt(())])
async def test_what_is_for_a_person_or_for_the_graph_passes_through(
    journal: MemoryJournal, error: Exception
) -> None:
    with pytest.raises(type(error)):
        await record(Counter(error))
    unfinished = journal.find_tool_call(tool_record_id("t", "2", "c"))
    assert unfinished is not None
    assert unfinished.status is None


async def test_outside_a_graph_the_call_is_its_own_task(journal: MemoryJournal) -> None:
    finished = await record(Counter(), config={})
    assert (finished.identity.thread_id, finished.identity.task_id) == ("c", "c")


@pytest.mark.parametrize(
    ("status", "shown"),
    [(ToolStatus.OK, "success"), (ToolStatus.ERROR, "error"), (ToolStatus.DENIED, "error")],
)
async def test_the_message(journal: MemoryJournal, status: ToolStatus, shown: str) -> None:
    finished = await record(Counter(ToolOutcome(status, "text")))
    message = as_message(finished)
    assert (message.content, message.name, message.tool_call_id, message.status) == (
        "text",
        "f",
        "c",
        shown,
    )
    assert message.artifact == {"status": str(status), "record": finished.id}
