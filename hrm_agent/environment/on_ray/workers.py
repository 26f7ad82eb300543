"""`Workers` over the slots of all nodes of a Ray cluster.

Each node has one actor, and each work is one Ray call. A work goes to the node with the fewest open
works per slot. Works of a session go to the node that has the session's process. A node gets more
works than it has slots (`overhang`). Without that, a slot would be idle for the time of a message
between two works.

The cluster is checked every few seconds. The check finds new nodes, nodes that came back, and live
nodes whose actor died. A node that isolates less than accepted is left out, with a warning. A node
that has no CPUs in Ray's view is left out without a warning, which is the way to exclude the head
node. An actor uses no CPUs in Ray's accounting.

A node that died or does not respond is given up, and its actor is killed, so that no two processes
run the same work. The node's works are `lost`: all their effects were in processes of the node. The
scheduler runs them again once, and rebuilds sessions from their cells.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hrm_agent.basics.async_bridge import BackgroundLoop
from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.environment.base import ExecutionResult
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.local.slot_files import infrastructure_failure
from hrm_agent.environment.on_ray.connection import line_of
from hrm_agent.environment.on_ray.node import RESPONSE_SECONDS, RayNode, given_of
from hrm_agent.environment.scheduler.workers import Work, Workers
from hrm_agent.errors import HrmError

__all__ = ["RayWorkers"]

_LOG = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
"""Seconds between two checks of the cluster's list of nodes, and between two checks of each node.
"""
SILENCE_SECONDS = RESPONSE_SECONDS + 30.0
"""Seconds without a response to a check after which a node is given up."""
START_SECONDS = 120.0
"""Seconds after which a node's actor without a response is given up."""
REST_SECONDS = 15.0
"""Seconds until a node whose actor did not start is tried again."""
NOBODY_SECONDS = 60.0
"""Seconds without any node after which calls end with status `infrastructure`. Until then the calls
wait for a node.
"""
_MAX_CONCURRENCY = 100_000


@dataclass(slots=True, eq=False)
class _Node:
    """Node with an actor."""

    id: str
    """Ray's id of the node."""
    name: str
    """Address and first digits of the id, for messages."""
    actor: Any
    """Ray's handle of the actor on the node."""
    isolation: str
    """Isolation level of the node, `L3` to `L0`."""
    slots: int
    """Number of calls that the node runs at a time."""
    open: dict[Work, int] = field(default_factory=dict[Work, int])
    """Works sent to the node and not ended, with their numbers."""
    sessions: set[int] = field(default_factory=set[int])
    """Numbers of sessions whose process is on the node."""
    works: int = 0
    """Number of works sent to the node so far."""
    slot_deaths: int = 0
    """Number of slots that died on the node so far."""

    @property
    def load(self) -> tuple[float, int, int]:
        """Sort key. The node with the smallest key gets the next work."""
        return len(self.open) / self.slots, len(self.sessions), self.works


class RayWorkers:
    """`Workers` over the nodes of a Ray cluster. All changes of its state are made on one event
    loop in a background thread.
    """

    def __init__(
        self, ray: Any, make: Callable[[], Workers], least: Isolation, overhang: int
    ) -> None:
        """Connect to the nodes. `make`: makes a node's workers, on the node. `overhang`: number of
        works sent to a node, per slot.

        Raises HrmError if no node can be used.
        """
        self._ray = ray
        self._make = make
        self._least = least
        self._overhang = overhang
        self.isolation = ""
        """Weakest isolation level of all nodes. Each outcome carries the level of its node."""
        self.slots = self.slot_deaths = self.faults = 0
        self.grew: Callable[[], None] = lambda: None
        """Callback for an increase of `slots`."""
        self._nodes: dict[str, _Node] = {}
        self._left_out: dict[str, tuple[str, float]] = {}
        """Nodes that are not used: id -> (reason, time of the next try)."""
        self._of_session: dict[int, _Node] = {}
        self._of_work: dict[Work, _Node] = {}
        self._numbers = count(1)
        self._on_death: Callable[[int], None] = lambda session: None
        self._lost_nodes = 0
        self._down = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._guard = LoopGuard("ray-environment", rests=False)
        self._background = BackgroundLoop("ray-environment")
        self._loop = self._background.loop
        try:
            self._background.run(self._open())
        except BaseException:
            self.close()
            raise

    # methods that the scheduler calls

    def start(self, work: Work) -> None:
        self._post(lambda: self._start(work))

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

    # works

    def _post(self, change: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and every work has its outcome
            self._loop.call_soon_threadsafe(self._guard.call, change)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start(self, work: Work) -> None:
        try:
            self._place(work)
        except Exception as error:  # the call gets an outcome for any error
            self._guard.caught(error)
            why = f"The call could not be placed: {line_of(error)}"
            work.done(infrastructure_failure(why, self.isolation), True)

    def _place(self, work: Work) -> None:
        if not self._ray.is_initialized():
            self._lose_all()
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
        answer = node.actor.run.remote(number, given_of(work))
        node.open[work] = number
        node.works += 1
        self._of_work[work] = node
        if work.session:
            node.sessions.add(work.session)
            self._of_session[work.session] = node
        self._spawn(self._run(node, work, answer))

    async def _run(self, node: _Node, work: Work, answer: Any) -> None:
        try:
            result, lost, died = await answer
        except Exception as error:  # Ray raises many kinds
            kinds = self._ray.exceptions
            # errors of these kinds come from the actor's method, or from reading its outcome, so
            # the node is alive
            of_work = isinstance(error, kinds.RayTaskError | kinds.RaySystemError)
            if isinstance(error, kinds.RayError) and not of_work:
                self._lose(node, error)
                return
            self._guard.caught(error)
            why = f"its outcome could not be read: {line_of(error)}"
            result = infrastructure_failure(why, node.isolation)
            lost = False
            died = False
        with self._guard:
            if died:
                self._session_died(node, work.session)
            self._settle(work, result, lost=lost)

    def _settle(self, work: Work, result: ExecutionResult, *, lost: bool) -> None:
        """Report an outcome, unless the work has one already."""
        node = self._of_work.pop(work, None)
        if node is not None:
            del node.open[work]
            work.done(result, lost)

    def _kill(self, work: Work) -> None:
        node = self._of_work.get(work)
        if node is not None:
            node.actor.kill.remote(node.open[work])

    def _end_session(self, session: int) -> None:
        node = self._of_session.pop(session, None)
        if node is not None:
            node.sessions.discard(session)
            node.actor.end_session.remote(session)

    def _session_died(self, node: _Node, session: int) -> None:
        node.sessions.discard(session)
        if self._of_session.get(session) is node:
            del self._of_session[session]
        self._on_death(session)

    # nodes

    async def _open(self) -> None:
        await asyncio.gather(*await self._look())
        if not self._nodes:
            reasons = "; ".join(reason for reason, _ in self._left_out.values()) or "none has CPUs"
            raise HrmError(
                f"No node of the Ray cluster can run calls: {reasons.rstrip('.')}.",
                "`ray status` shows the cluster's nodes.",
            )
        self._spawn(self._watch())

    async def _watch(self) -> None:
        """Check the cluster's list of nodes forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with self._guard:
                if not self._ray.is_initialized():
                    self._lose_all()
                    continue
                try:
                    await self._look()
                except Exception as error:  # Ray raises many kinds
                    _LOG.warning("Ray could not list the cluster's nodes: %s", line_of(error))

    async def _look(self) -> list[asyncio.Task[None]]:
        """Give up nodes that are gone, and return tasks that begin to use new ones."""
        alive = {
            each["NodeID"]: each["NodeManagerAddress"]
            for each in await asyncio.to_thread(self._ray.nodes)
            if each["Alive"] and each["Resources"].get("CPU", 0) > 0
        }
        for node in [node for node in self._nodes.values() if node.id not in alive]:
            self._lose(node, "Ray counts it as dead")
        for old in self._left_out.keys() - alive.keys():
            del self._left_out[old]
        now = time.monotonic()
        new = [
            node
            for node in sorted(alive.keys() - self._nodes.keys())
            if self._left_out.get(node, ("", 0.0))[1] <= now
        ]
        for node in new:
            self._left_out[node] = "it is about to be used", math.inf
        return [self._spawn(self._join(node, alive[node])) for node in new]

    async def _join(self, id_: str, address: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        name = f"{address}/{id_[:8]}"
        actor = (
            self._ray.remote(RayNode)
            .options(
                num_cpus=0,
                max_concurrency=_MAX_CONCURRENCY,
                scheduling_strategy=NodeAffinitySchedulingStrategy(id_, soft=False),
            )
            .remote(self._make)
        )
        try:
            isolation, slots, refusal = await _answer_of(actor.hello.remote(), START_SECONDS)
            if not refusal and not Isolation(isolation).holds(self._least):
                refusal = (
                    f"it isolates at level {isolation}, less than the accepted minimum"
                    f" {self._least}"
                )
            if not refusal:
                self._left_out.pop(id_, None)
                node = self._nodes[id_] = _Node(id_, name, actor, isolation, slots)
                self._spawn(self._check(node))
                self._count_slots()
                self.grew()
                return
            self._left_out[id_] = f"{name}: {refusal}", math.inf
            _LOG.warning("The node %s is left out: %s", name, refusal)
        except Exception as error:
            self._left_out[id_] = f"{name}: {line_of(error)}", time.monotonic() + REST_SECONDS
            _LOG.warning("The node %s cannot be used: %s", name, line_of(error))
        finally:
            if id_ not in self._nodes:
                await self._end(actor)

    async def _check(self, node: _Node) -> None:
        """Check a node until it is given up."""
        while self._nodes.get(node.id) is node:
            if not self._ray.is_initialized():
                self._lose_all()
                return
            try:
                dead, slot_deaths = await _answer_of(node.actor.check.remote(), SILENCE_SECONDS)
            except Exception as error:
                self._lose(node, error)
                return
            self.slot_deaths += slot_deaths - node.slot_deaths
            node.slot_deaths = slot_deaths
            for session in dead:
                with self._guard:
                    self._session_died(node, session)
            await asyncio.sleep(LOOK_SECONDS)

    def _lose(self, node: _Node, why: object) -> None:
        """Give a node up. Its works are lost."""
        if self._nodes.get(node.id) is not node:
            return
        del self._nodes[node.id]
        self._lost_nodes += 1
        self._count_slots()
        _LOG.warning(
            "The node %s is lost, with %d open calls: %s",
            node.name,
            len(node.open),
            line_of(why),
        )
        self._spawn(self._end(node.actor))
        for session in list(node.sessions):
            with self._guard:
                self._session_died(node, session)
        lost = infrastructure_failure(f"the node {node.name} was lost", node.isolation)
        for work in list(node.open):
            with self._guard:
                self._settle(work, lost, lost=True)

    def _lose_all(self) -> None:
        """Give up all nodes after Ray was shut down in this process. Calling an actor would start a
        new cluster.
        """
        for node in list(self._nodes.values()):
            self._lose(node, "Ray was shut down in this process")

    def _count_slots(self) -> None:
        nodes = self._nodes.values()
        self.slots = sum(node.slots for node in nodes) * self._overhang
        self.isolation = min((node.isolation for node in nodes), default=self.isolation)
        if not nodes:
            self._loop.call_later(NOBODY_SECONDS, self._give_up, self._lost_nodes)

    def _give_up(self, lost_nodes: int) -> None:
        """Let waiting calls fail if there has been no node for long. One slot is claimed, so that
        the scheduler starts the calls, and `_place` lets each fail.
        """
        if not self._nodes and lost_nodes == self._lost_nodes:
            self.slots = 1
            self.grew()

    async def _end(self, actor: Any, seconds: float = 0.0) -> None:
        """End an actor. It first has `seconds` to end its works."""
        if not self._ray.is_initialized():
            return
        if seconds:
            with suppress(Exception):
                await _answer_of(actor.close.remote(), seconds)
        with suppress(Exception):
            await asyncio.to_thread(self._ray.kill, actor)

    async def _close(self) -> None:
        self._down = "the environment was closed"
        nodes = list(self._nodes.values())
        self._nodes.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(node.actor, RESPONSE_SECONDS) for node in nodes))
        for node in nodes:
            for work in list(node.open):
                self._settle(work, infrastructure_failure(self._down, node.isolation), lost=False)

    async def _render(self) -> str:
        lines: list[str] = []
        for name, (kind, text, value) in _BY_NODE.items():
            metric = f"hrm_environment_node_{name}"
            lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
            lines += [
                f'{metric}{{node="{node.name}"}} {value(node)}' for node in self._nodes.values()
            ]
        return "\n".join([*lines, f"# TYPE {_LOST} counter", f"{_LOST} {self._lost_nodes}", ""])


async def _answer_of(reference: Any, seconds: float) -> Any:
    """Result of a Ray call. Raises the call's error, or TimeoutError."""
    return await asyncio.wait_for(asyncio.wrap_future(reference.future()), seconds)


_LOST = "hrm_environment_nodes_lost_total"
_BY_NODE: dict[str, tuple[str, str, Callable[[_Node], int]]] = {
    "slots": ("gauge", "Slots of a node.", lambda node: node.slots),
    "open": ("gauge", "Calls on a node, or on their way to it.", lambda node: len(node.open)),
    "sessions": ("gauge", "Sessions with a process on a node.", lambda node: len(node.sessions)),
    "works_total": ("counter", "Calls and cells given to a node.", lambda node: node.works),
    "slot_deaths_total": ("counter", "Slots of a node that died.", lambda node: node.slot_deaths),
}
