"""Runs model-written Python on the nodes of a Ray cluster.

The queue, sessions, ids, deadlines and second attempts are the same as on one machine
(`Scheduler`), and are in the driver's process; the nodes give slots (`workers`). So a call means
the same wherever it runs, and what a node that died knew is known here: which calls were under way,
and by which cells a session is rebuilt on another node.

* A stateless call that was on a node which died is run on another, once; then it ends with status
  `infrastructure`.
* A session's call likewise: its process died with the node, and with that all that it had done. The
  session is rebuilt from its cells (`SessionState.REPLAYED`; `LOST` if there were more than are
  remembered), and the call is run again.
* A call submitted under an id is answered once, whichever node it was on; its process may have been
  begun twice, on two nodes, of which the first is gone with all that it did.
* Calls wait while there is no node; after a minute they end with status `infrastructure`.

The nodes need this package, as the driver has it. A node that isolates less than is accepted is
left out, and a warning says so. Who can speak to Ray can run anything on its nodes: a cluster's
network is to be trusted, and out of reach of model-written code, which has no network in its slot
at level L2. A cluster that is started here is bound to loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from hrm_agent.basics.async_bridge import call_in_thread
from hrm_agent.environment.base import Environment, ExecutionResult, Submission
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation
from hrm_agent.environment.local.slots import LocalWorkers
from hrm_agent.environment.on_ray.connection import connect, release
from hrm_agent.environment.on_ray.workers import RayWorkers
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.environment.scheduler.scheduler import Scheduler
from hrm_agent.environment.scheduler.workers import Workers

__all__ = ["RayEnvironment"]


class RayEnvironment(Environment):
    """An `Environment` on all nodes of a Ray cluster. Thread-safe, and usable from any number of
    event loops.
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
        """`address`: `HOST:PORT` of a cluster that this machine is a node of, `auto` for the one
        that was started here; None for RAY_ADDRESS, else a cluster of this machine alone, gone when
        the environment is closed. A Ray that this process has already is used whatever the address,
        and left as it is. `slots`, `packages`, `cgroup`: of each node, see `LocalEnvironment`.
        `max_sessions`: living sessions of all nodes together. `isolation`: the least that is
        accepted. `overhang`: calls that a node is given at once, per slot; those beyond its slots
        count as running and wait there, in order of arrival. 1: none does, and slots stand idle for
        the time of a message. `factory`: makes a node's workers, there, instead.

        Raises HrmError where Ray is not installed or out of reach, or where no node isolates by
        `isolation`.
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
        """The weakest of the nodes'. Each outcome has its own node's."""
        return self._workers.isolation

    async def run(self, submission: Submission) -> ExecutionResult:
        future: Future[ExecutionResult] = Future()
        waiter = partial(_answer, future)
        call = self._scheduler.enter(submission, waiter, patient=True)
        if call is not None:
            future.add_done_callback(
                lambda _: self._scheduler.leave(call, waiter) if future.cancelled() else None
            )
        return await asyncio.wrap_future(future)

    async def fork_session(self, source: str, target: str, *, run: str = "") -> None:
        await asyncio.wrap_future(self._scheduler.fork_session(source, target, run))

    async def end_session(self, session: str, *, run: str = "") -> None:
        self._scheduler.end_session(session, run)

    async def metrics(self) -> str:
        """The queue's, and counts by node."""
        return self._scheduler.metrics() + await asyncio.to_thread(self._workers.metrics)

    async def check_health(self, seconds: float = 5.0) -> str:
        asking = call_in_thread(partial(self._scheduler.not_responding, seconds))
        return await asyncio.wrap_future(asking)

    async def close(self) -> None:
        await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """`close` for where there is no event loop. Does nothing in a fork of the process that made
        it.
        """
        if self._scheduler.is_ours:
            self._scheduler.close()
            self._disconnect()

    def _disconnect(self) -> None:
        if self._ours:
            self._ours = False
            release(self._ray)


def _answer(future: Future[ExecutionResult], result: ExecutionResult) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(result)
