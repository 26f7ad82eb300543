"""Discovery of usable nodes of a Ray cluster. The cluster is checked every few seconds, and each
node gets an actor.

So new nodes are found, nodes that came back, and live nodes whose actor died. A node that isolates
less than accepted is left out, with a warning. A node without CPUs in Ray's view is left out
silently: that is how the head node is excluded. An actor uses no CPUs in Ray's accounting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.on_ray.connection import line_of
from hrm_agent.environment.on_ray.node import POLL_SECONDS, RayNode
from hrm_agent.environment.scheduler.workers import Work, Workers

__all__ = ["Node", "RayCluster", "answer_of"]

_LOG = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
"""Seconds between two checks of the cluster's nodes."""
START_SECONDS = 120.0
"""Seconds after which a node's actor without a response is given up."""
_MOST_REST_SECONDS = 60.0
"""Longest pause in seconds between two tries of a node whose actor does not start."""


@dataclass(slots=True, eq=False)
class Node:
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
    """Calls that it runs at a time."""
    open: dict[int, Work] = field(default_factory=dict[int, Work])
    """Works sent to it or to be sent, by number."""
    unsent: deque[int] = field(default_factory=deque[int])
    """Numbers of works still to be sent to it."""
    killed: list[int] = field(default_factory=list[int])
    """Numbers of works to be killed there."""
    ended: list[int] = field(default_factory=list[int])
    """Numbers of sessions to be ended there."""
    sessions: set[int] = field(default_factory=set[int])
    """Numbers of sessions whose process is on it."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    """Tasks that send works to it and take results."""
    something: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set when there is something to send."""
    works: int = 0
    """Number of works assigned to it so far."""
    batches: int = 0
    """Number of Ray calls that its works took."""
    slot_deaths: int = 0
    """Number of slots that died there so far."""

    @property
    def load(self) -> tuple[float, int, int]:
        """Sort key: the node with the smallest gets the next work."""
        return len(self.open) / self.slots, len(self.sessions), self.works


class RayCluster:
    """Usable nodes of a Ray cluster. Its methods are called on one event loop."""

    def __init__(self, ray: Any, make: Callable[[], Workers], least: Isolation) -> None:
        self._ray, self._make, self._least = ray, make, least
        self.joined: Callable[[Node], None] = lambda node: None
        self.gone: Callable[[Node, object], None] = lambda node, why: None
        self.nodes: dict[str, Node] = {}
        """Nodes in use. The code that gives one up removes it."""
        self.reasons: dict[str, str] = {}
        """Nodes left out: id -> reason, or the error of the last try."""
        self._resting: dict[str, tuple[int, float]] = {}
        """Nodes whose actor did not start: id -> (number of tries, time of the next)."""
        self._joining: dict[str, asyncio.Task[None]] = {}

    async def look(self) -> None:
        """Find new nodes, and give up nodes that are gone."""
        found = await asyncio.to_thread(self._ray.nodes)
        alive = {
            each["NodeID"]: each["NodeManagerAddress"]
            for each in found
            if each["Alive"] and _has_cpus(each)
        }
        for node in [node for node in self.nodes.values() if node.id not in alive]:
            self.gone(node, "Ray counts it as dead")
        for known in (self.reasons, self._resting):
            for old in known.keys() - alive.keys():
                del known[old]
        for node in sorted(
            alive.keys() - self.nodes.keys() - self._joining.keys() - set(self._left_out())
        ):
            self._joining[node] = asyncio.get_running_loop().create_task(
                self._join(node, alive[node])
            )

    async def settled(self) -> None:
        """Wait until every node that was found is in use or left out."""
        await asyncio.gather(*self._joining.values())

    async def watch(self) -> None:
        """Check the nodes forever."""
        guard = LoopGuard("ray-nodes", rests=False)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with guard:
                await self._look_or_say()

    async def _look_or_say(self) -> None:
        try:
            await self.look()
        except Exception as error:  # Ray raises many kinds
            _LOG.warning("Ray does not say which nodes there are: %s", line_of(error))

    async def close(self) -> None:
        """End all actors."""
        joining, nodes = list(self._joining.values()), list(self.nodes.values())
        self.nodes.clear()
        for task in joining:
            task.cancel()
        await asyncio.gather(
            *joining,
            *(self.end(node.actor, POLL_SECONDS) for node in nodes),
            return_exceptions=True,
        )

    async def end(self, actor: Any, seconds: float = 0.0) -> None:
        """End an actor, with `seconds` for it to end its works."""
        if seconds:
            with suppress(Exception):
                await answer_of(actor.close.remote(), seconds)
        with suppress(Exception):
            await asyncio.to_thread(self._ray.kill, actor)

    def _left_out(self) -> Iterator[str]:
        now = time.monotonic()
        for node in self.reasons:
            if node not in self._resting or self._resting[node][1] > now:
                yield node

    async def _join(self, node: str, address: str) -> None:
        name, actor = f"{address}/{node[:8]}", self._new_actor(node)
        try:
            isolation, slots, refusal = await answer_of(actor.hello.remote(), START_SECONDS)
            refusal = refusal or self._too_weak(isolation)
            if not refusal:
                self._use(Node(node, name, actor, isolation, slots))
                return
            self.reasons[node] = f"{name}: {refusal}"
            _LOG.warning("The node %s is left out: %s", name, refusal)
        except Exception as error:
            times = self._resting.get(node, (0, 0.0))[0] + 1
            self._resting[node] = times, time.monotonic() + min(_MOST_REST_SECONDS, 2.0**times)
            self.reasons[node] = f"{name}: {line_of(error)}"
            _LOG.warning("The node %s cannot be used: %s", name, line_of(error))
        finally:
            del self._joining[node]
            if node not in self.nodes:
                await self.end(actor)

    def _use(self, node: Node) -> None:
        self.reasons.pop(node.id, None)
        self._resting.pop(node.id, None)
        self.nodes[node.id] = node
        self.joined(node)

    def _new_actor(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return (
            self._ray.remote(RayNode)
            .options(num_cpus=0, scheduling_strategy=there)
            .remote(self._make)
        )

    def _too_weak(self, isolation: str) -> str:
        if Isolation(isolation).holds(self._least):
            return ""
        return f"it isolates at {isolation}, less than {self._least}, the least that is accepted"


async def answer_of(reference: Any, seconds: float) -> Any:
    """Result of a Ray call. Raises the call's error, or TimeoutError."""
    return await asyncio.wait_for(asyncio.wrap_future(reference.future()), seconds)


def _has_cpus(node: dict[str, Any]) -> bool:
    return node["Resources"].get("CPU", 0) > 0
