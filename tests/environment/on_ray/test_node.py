"""The works of a node, as the driver sends them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hrm_agent.environment.base import ExecutionResult, Limits
from hrm_agent.environment.on_ray.node import RayNode, given_of
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.trajectory import ToolStatus


class Started:
    """`Workers` that keep what they are given."""

    isolation = "L0"

    def __init__(self, slots: int = 8) -> None:
        self.slots = slots
        self.works = list[Work]()

    def on_session_death(self, callback: Any) -> None: ...

    def start(self, work: Work) -> None:
        self.works.append(work)
        work.done(ExecutionResult(ToolStatus.OK), False)


async def test_a_work_arrives_whole() -> None:
    """One that was lost before is told apart, so that it gets a new slot."""
    sent = [
        Work("1", Limits(), print, 3, True, 5),
        Work("2", Limits(wall_seconds=2), print, again=True),
    ]
    workers = Started()
    node = RayNode(lambda: cast(Any, workers))
    await node.hello()
    for number, work in enumerate(sent):
        await node.run(number, given_of(work))
    for work, got in zip(sent, workers.works, strict=True):
        names = ("code", "limits", "session", "fresh", "seed", "again")
        assert [getattr(got, name) for name in names] == [getattr(work, name) for name in names]


async def test_a_killed_work_waits_for_no_slot() -> None:
    node = RayNode(lambda: cast(Any, Started(slots=0)))
    await node.hello()
    given = given_of(Work("1", Limits(), print))
    waits = asyncio.create_task(node.run(1, given))
    await asyncio.sleep(0)
    for number in (1, 2):
        await node.kill(number)
    for outcome in (await waits, await node.run(2, given)):
        result, lost, died = outcome
        assert (result.status, lost, died) == (ToolStatus.INFRASTRUCTURE, False, False)
        assert "killed before it began" in result.stderr
