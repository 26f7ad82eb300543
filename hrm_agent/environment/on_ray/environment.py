"""Runs model-written Python on the nodes of a Ray cluster.

The queue, sessions, ids, deadlines and second attempts are those of one machine (`Scheduler`), in
the driver's process; the nodes provide slots (`workers`). So a call behaves the same wherever it
runs, and the driver keeps what a dead node knew: which calls were running, and the cells by which a
session is rebuilt on another node.

* A stateless call on a node that died is run on another, once. Then it ends with status
  `infrastructure`.
* A call of a session is run again too: its process and all its effects died with the node. The
  session is rebuilt from its cells (`SessionState.REPLAYED`; `LOST` if there were more than are
  remembered).
* A call submitted under an id is answered once, whichever node it ran on. Its process may have been
  started twice, on two nodes, of which the first is gone with all its effects.
* Calls wait while there is no node. After a minute they end with status `infrastructure`.

The nodes need this package in the driver's version. A node that isolates less than accepted is left
out, with a warning. Any client of Ray can run anything on its nodes. So the network of a cluster
has to be trusted and unreachable for model-written code, which has no network in its slot at level
L2. A cluster started here is bound to loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation
from hrm_agent.environment.local.slots import LocalWorkers
from hrm_agent.environment.on_ray.connection import connect, release
from hrm_agent.environment.on_ray.workers import RayWorkers
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.environment.scheduler.scheduler import ScheduledEnvironment, Scheduler
from hrm_agent.environment.scheduler.workers import Workers

__all__ = ["RayEnvironment"]


class RayEnvironment(ScheduledEnvironment):
    """`Environment` on all nodes of a Ray cluster. Thread-safe, and usable from any number of event
    loops.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        slots: int | None = None,
        max_sessions: int = 256,
        isolation: Isolation = DEFAULT_ISOLATION,
        packages: Sequence[str] | None = None,
        cgroup: Path | None = None,
        overhang: int = 2,
        bounds: Bounds | None = None,
        factory: Callable[[], Workers] | None = None,
    ) -> None:
        """Connect to a cluster, or start one. Raises HrmError if Ray is not installed or
        unreachable, or no node isolates by `isolation`.

        `address`: `HOST:PORT` of a cluster that this machine is a node of, or `auto` for the one
        started on this machine. None takes RAY_ADDRESS, else starts a cluster of this machine
        alone, which ends with the environment. A Ray that is already initialized in this process is
        used whatever the address, and left as it is. `slots`, `packages`, `cgroup`: of each node,
        see `LocalEnvironment`. `max_sessions`: sessions with a process, on all nodes together.
        `isolation`: the least level accepted. `overhang`: calls sent to a node, per slot. Calls
        beyond its slots count as running and wait there, in order of arrival. With 1 none wait
        there, and slots are idle for the time of a message. `factory`: makes a node's workers, on
        the node, instead of `LocalWorkers`.
        """
        self._ray, self._ours = connect(address)
        try:
            make = factory or partial(
                LocalWorkers, slots, isolation=isolation, packages=packages, cgroup=cgroup
            )
            self._workers = RayWorkers(self._ray, make, isolation, overhang)
        except BaseException:
            self._disconnect()
            raise
        self._scheduler = Scheduler(self._workers, max_sessions=max_sessions, bounds=bounds)
        self._workers.grew = self._scheduler.settle

    @property
    def isolation(self) -> str:
        """Weakest isolation level of the nodes. Each outcome has its own node's level."""
        return self._workers.isolation

    async def metrics(self) -> str:
        """Metrics of the queue, and counts by node."""
        return await super().metrics() + await asyncio.to_thread(self._workers.metrics)

    def shutdown(self) -> None:
        """Close without an event loop. Does nothing in a forked child of the process that made
        it.
        """
        if self._scheduler.is_ours:
            self._scheduler.close()
            self._disconnect()

    def _disconnect(self) -> None:
        if self._ours:
            self._ours = False
            release(self._ray)
