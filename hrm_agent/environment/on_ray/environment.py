"""Runs model-written Python on the nodes of a Ray cluster.

The queue, sessions, ids, deadlines and second attempts are handled by the `Scheduler` that also
serves one machine. It is in the driver's process, and the nodes only provide slots (`workers`). So
a call behaves the same wherever it runs, and the loss of a node does not lose what the driver
knows: which calls were running, and the cells by which a session is rebuilt on another node.

* A stateless call on a node that died is run again once, on another node. If that node dies too,
  the call ends with status `infrastructure`.
* A call of a session is also run again: its process and all its effects died with the node. The
  session is rebuilt from its cells (`SessionState.REPLAYED`). If there were more cells than are
  remembered, its state is `LOST`.
* A call submitted under an id is answered once, whichever node it ran on. Its process may have been
  started twice, on two nodes. The first node is then gone with all effects of the call.
* Calls wait while there is no node. After a minute they end with status `infrastructure`.

The nodes need this package in the driver's version. A node that isolates less than accepted is left
out, with a warning.

Any client of Ray can run anything on Ray's nodes. So the network of a cluster has to be trusted,
and model-written code must not reach it. At level L2, code has no network in its slot. A cluster
that this environment starts is bound to loopback.
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
        unreachable, or if no node provides the level `isolation`.

        `address`: `HOST:PORT` of a cluster that this machine is a node of, or `auto` for the
        cluster that was started on this machine (None: the variable RAY_ADDRESS). If there is no
        address, a cluster of this machine alone is started, which ends with the environment. If
        Ray is already initialized in this process, that connection is used, `address` is ignored,
        and Ray is not shut down at the end.

        `slots`, `packages`, `cgroup`: for each node, see `LocalEnvironment`.

        `max_sessions`: maximum number of sessions with a process, on all nodes together.

        `isolation`: the least level accepted.

        `overhang`: number of calls sent to a node, per slot. Calls beyond the node's slots count as
        running, and wait on the node in order of arrival. With 1, no call waits on a node, and a
        slot is idle for the time of a message between two calls.

        `factory`: makes the workers of a node, on the node (None: `LocalWorkers`).
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
        """Weakest isolation level of all nodes. Each outcome carries the level of its node."""
        return self._workers.isolation

    async def metrics(self) -> str:
        """Metrics of the queue, and counts by node."""
        return await super().metrics() + await asyncio.to_thread(self._workers.metrics)

    def shutdown(self) -> None:
        """Close the environment without an event loop. Does nothing in a forked child of the
        process that made the environment.
        """
        if self._scheduler.is_ours:
            self._scheduler.close()
            self._disconnect()

    def _disconnect(self) -> None:
        if self._ours:
            self._ours = False
            release(self._ray)
