"""`Workers` over the slots of all nodes of a Ray cluster.

Each node has one actor. A Ray call per tool call would cost more than the tool call, so calls that
arrive while a batch is being sent share the next one (`RayNode.give`), and outcomes return in
batches as they are ready (`RayNode.collect`). A work goes to the node with the shortest queue for
its slots. The length of a node's queue is always known exactly, since it gets works only from here:
all works sent and not answered. Works of a session go to the node that has its process.

A node gets more works than it has slots (`overhang`), or slots would be idle for the time of a
message. The other works wait here, where they can still go to any node. So a work may wait on a
node before it begins.

A node that died or does not respond is given up and its actor killed, so that no two processes run
the same work. Its works are `lost`: all their effects were in processes of that node. The scheduler
runs them again once, and rebuilds sessions from their cells.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from hrm_agent.basics.async_bridge import BackgroundLoop
from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.local.slot_files import infrastructure_failure
from hrm_agent.environment.on_ray.cluster import Node, RayCluster, answer_of
from hrm_agent.environment.on_ray.connection import line_of
from hrm_agent.environment.on_ray.node import POLL_SECONDS, Collected, Event, Given, unpack
from hrm_agent.environment.scheduler.workers import Work, Workers
from hrm_agent.errors import HrmError

__all__ = ["BATCH", "RayWorkers"]

_LOG = logging.getLogger(__name__)
BATCH = 256
"""Most works in one Ray call."""
SILENCE_SECONDS = POLL_SECONDS + 30.0
"""Seconds without a response after which a node is given up."""
NOBODY_SECONDS = 60.0
"""Seconds without any node after which calls end with status `infrastructure`. Until then they wait
for one.
"""


class RayWorkers:
    """`Workers` over the nodes of a Ray cluster. All changes of its state are made on one event
    loop in a background thread.
    """

    def __init__(
        self, ray: Any, make: Callable[[], Workers], least: Isolation, overhang: int
    ) -> None:
        """Connect to the nodes. `make`: makes a node's workers, on the node. `overhang`: works that
        a node is given, per slot.

        Raises HrmError if no node can be used.
        """
        self._overhang = overhang
        self.isolation = ""
        """Weakest isolation level of the nodes. Each outcome has its own node's level."""
        self.slots = self.slot_deaths = self.faults = 0
        self.grew: Callable[[], None] = lambda: None
        """Callback for an increase of `slots`."""
        self._cluster = RayCluster(ray, make, least)
        self._cluster.joined, self._cluster.gone = self._joined, self._on_node_lost
        self._nodes = self._cluster.nodes
        self._of_session: dict[int, Node] = {}
        self._of_work: dict[Work, tuple[Node, int]] = {}
        self._numbers = count(1)
        self._on_death: Callable[[int], None] = lambda session: None
        self._lost_nodes = 0
        self._down = ""
        self._inbox: deque[Callable[[], None]] = deque()
        self._woken = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._guard = LoopGuard("ray-environment", rests=False)
        self._background = BackgroundLoop("ray-environment")
        self._loop = self._background.loop
        try:
            self._background.run(self._open())
        except BaseException:
            self.close()
            raise

    # interface of the scheduler

    def start(self, work: Work) -> None:
        self._post(lambda: self._place_or_fail(work))

    def kill(self, work: Work) -> None:
        self._post(lambda: self._kill(work))

    def end_session(self, session: int) -> None:
        self._post(lambda: self._end_session(session))

    def on_session_death(self, callback: Callable[[int], None]) -> None:
        self._on_death = callback

    def responds(self, seconds: float) -> bool:
        answered = threading.Event()
        self._post(answered.set)
        return not self._down and answered.wait(seconds)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._background.run(self._close())
            self._background.close()

    def metrics(self) -> str:
        """Counts by node, in the text format of Prometheus."""
        return self._background.run(self._render())

    # the loop

    def _post(self, change: Callable[[], None]) -> None:
        """Run `change` on the loop, which is woken once for many changes."""
        self._inbox.append(change)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # closed: every work has its outcome
                self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._woken = False
        while self._inbox:
            with self._guard:
                self._inbox.popleft()()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # works

    def _place_or_fail(self, work: Work) -> None:
        try:
            self._place(work)
        except Exception as error:  # the call gets an outcome for any error
            self._guard.caught(error)
            work.done(
                infrastructure_failure(
                    f"The call could not be placed: {line_of(error)}", self.isolation
                ),
                True,
            )

    def _place(self, work: Work) -> None:
        node = self._of_session.get(work.session)
        if node is None and (work.fresh or not work.session):
            node = min(self._nodes.values(), key=lambda node: node.load, default=None)
        if self._down or node is None:
            why = self._down or (
                "its process is gone" if self._nodes else "no node of the Ray cluster can be used"
            )
            work.done(infrastructure_failure(why, self.isolation), not self._down)
            return
        number = next(self._numbers)
        node.open[number] = work
        node.unsent.append(number)
        self._of_work[work] = node, number
        if work.session:
            node.sessions.add(work.session)
            self._of_session[work.session] = node
        node.something.set()

    def _kill(self, work: Work) -> None:
        node, number = self._of_work.get(work, (None, 0))
        if node is None:
            return
        if number in node.unsent:
            node.unsent.remove(number)
            self._settle(node, number)
            work.done(infrastructure_failure("killed before it began", node.isolation), False)
        else:
            node.killed.append(number)
            node.something.set()

    def _end_session(self, session: int) -> None:
        node = self._of_session.pop(session, None)
        if node is not None:
            node.sessions.discard(session)
            node.ended.append(session)
            node.something.set()

    def _settle(self, node: Node, number: int) -> Work | None:
        work = node.open.pop(number, None)
        if work is not None:
            del self._of_work[work]
        return work

    def _session_died(self, node: Node, session: int) -> None:
        node.sessions.discard(session)
        if self._of_session.get(session) is node:
            del self._of_session[session]
        self._on_death(session)

    # a node

    async def _send(self, node: Node) -> None:
        """Send works, kills and ended sessions to a node, in batches."""
        try:
            while True:
                await node.something.wait()
                node.something.clear()
                while node.unsent or node.killed or node.ended:
                    batch = [
                        _given(node, node.unsent.popleft())
                        for _ in range(min(BATCH, len(node.unsent)))
                    ]
                    killed, node.killed, ended, node.ended = node.killed, [], node.ended, []
                    node.batches += 1
                    node.works += len(batch)
                    await answer_of(node.actor.give.remote(batch, killed, ended), SILENCE_SECONDS)
        except Exception as error:
            self._on_node_lost(node, error)

    async def _collect(self, node: Node) -> None:
        """Receive the events of a node."""
        try:
            while True:
                collected: Collected = await answer_of(node.actor.collect.remote(), SILENCE_SECONDS)
                events, slot_deaths = collected
                self.slot_deaths += slot_deaths - node.slot_deaths
                node.slot_deaths = slot_deaths
                self._on_events(node, events)
        except Exception as error:
            self._on_node_lost(node, error)

    def _on_events(self, node: Node, events: list[Event]) -> None:
        for number, what, packed in events:
            with self._guard:
                self._on_event(node, number, what, packed)

    def _on_event(self, node: Node, number: int, what: int, packed: tuple[Any, ...]) -> None:
        if not number:
            self._session_died(node, what)
            return
        work = self._settle(node, number)
        if work is None:
            return
        try:
            result = unpack(packed)
        except Exception as error:
            self._guard.caught(error)
            result = infrastructure_failure(
                f"its outcome could not be read: {line_of(error)}", node.isolation
            )
        work.done(result, bool(what))

    def _on_node_lost(self, node: Node, why: object) -> None:
        """Give a node up. Its works are lost, except stateless ones that were never sent, which go
        to another node.
        """
        if self._nodes.get(node.id) is not node:
            return
        del self._nodes[node.id]
        self._lost_nodes += 1
        self._count_slots()
        _LOG.warning(
            "The node %s is lost, with %d calls under way: %s",
            node.name,
            len(node.open),
            line_of(why),
        )
        self._spawn(self._cluster.end(node.actor))
        for task in node.tasks:
            task.cancel()
        for session in list(node.sessions):
            with self._guard:
                self._session_died(node, session)
        unsent = set(node.unsent)
        for number, work in list(node.open.items()):
            with self._guard:
                self._settle(node, number)
                if number in unsent and not work.session and self._nodes:
                    self._place_or_fail(work)
                else:
                    work.done(
                        infrastructure_failure(f"the node {node.name} was lost", node.isolation),
                        True,
                    )

    # the cluster

    async def _open(self) -> None:
        await self._cluster.look()
        await self._cluster.settled()
        if not self._nodes:
            reasons = "; ".join(self._cluster.reasons.values()) or "none has CPUs"
            raise HrmError(
                f"No node of the Ray cluster can run calls: {reasons.rstrip('.')}.",
                "`ray status` shows its nodes.",
            )
        self._spawn(self._cluster.watch())

    def _joined(self, node: Node) -> None:
        node.tasks = [self._spawn(self._send(node)), self._spawn(self._collect(node))]
        self._count_slots()
        self.grew()

    def _count_slots(self) -> None:
        nodes = self._nodes.values()
        self.slots = sum(node.slots for node in nodes) * self._overhang
        self.isolation = min((node.isolation for node in nodes), default=self.isolation)
        if not nodes:
            self._loop.call_later(NOBODY_SECONDS, self._give_up, self._lost_nodes)

    def _give_up(self, lost_nodes: int) -> None:
        """Let waiting calls fail if there has been no node for long: with one slot they are
        started, and `_place` reports the failure.
        """
        if not self._nodes and lost_nodes == self._lost_nodes:
            self.slots = 1
            self.grew()

    async def _close(self) -> None:
        self._down = "the environment was closed"
        self._take()
        nodes = list(self._nodes.values())
        for task in list(self._tasks):
            task.cancel()
        await self._cluster.close()
        for node in nodes:
            for number, work in list(node.open.items()):
                self._settle(node, number)
                work.done(infrastructure_failure(self._down, node.isolation), False)

    async def _render(self) -> str:
        nodes = list(self._nodes.values())
        lines = [line for name in _BY_NODE for line in _metric(name, nodes)]
        return "\n".join([*lines, f"# TYPE {_LOST} counter", f"{_LOST} {self._lost_nodes}", ""])


def _given(node: Node, number: int) -> Given:
    work = node.open[number]
    limits = work.limits
    bounds = limits.wall_seconds, limits.cpu_seconds, limits.memory_bytes, limits.output_bytes
    return number, work.code, bounds, work.session, work.fresh, work.seed, work.again


_LOST = "hrm_environment_nodes_lost_total"
_BY_NODE: dict[str, tuple[str, str, Callable[[Node], int]]] = {
    "slots": ("gauge", "Slots of a node.", lambda node: node.slots),
    "open": ("gauge", "Calls on a node, or on their way to it.", lambda node: len(node.open)),
    "sessions": ("gauge", "Sessions with a process on a node.", lambda node: len(node.sessions)),
    "works_total": ("counter", "Calls and cells given to a node.", lambda node: node.works),
    "batches_total": ("counter", "Ray calls that they took.", lambda node: node.batches),
    "slot_deaths_total": ("counter", "Slots of a node that died.", lambda node: node.slot_deaths),
}


def _metric(name: str, nodes: list[Node]) -> Iterator[str]:
    kind, text, value = _BY_NODE[name]
    name = f"hrm_environment_node_{name}"
    yield from (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
    yield from (f'{name}{{node="{node.name}"}} {value(node)}' for node in nodes)
