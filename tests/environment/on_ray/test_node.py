"""The works of a node, as the driver sends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hrm_agent.environment.base import Limits
from hrm_agent.environment.on_ray.node import RayNode
from hrm_agent.environment.on_ray.workers import _given
from hrm_agent.environment.scheduler.workers import Work


class Started:
    """`Workers` that keep what they are given."""

    slots = 8

    def __init__(self) -> None:
        self.works = list[Work]()

    def on_session_death(self, callback: Any) -> None: ...

    def start(self, work: Work) -> None:
        self.works.append(work)


async def test_a_work_arrives_whole() -> None:
    """One that was lost before is told apart, so that it gets a new slot."""
    sent = [
        Work("1", Limits(), print, 3, True, 5),
        Work("2", Limits(wall_seconds=2), print, again=True),
    ]
    workers = Started()
    node = cast(Any, SimpleNamespace(open=dict(enumerate(sent))))
    await RayNode(lambda: cast(Any, workers)).give(
        [_given(node, number) for number in node.open], [], []
    )
    for work, got in zip(sent, workers.works, strict=True):
        names = ("code", "limits", "session", "fresh", "seed", "again")
        assert [getattr(got, name) for name in names] == [getattr(work, name) for name in names]
