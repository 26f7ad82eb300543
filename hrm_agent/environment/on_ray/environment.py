"""Runs model-written Python on the nodes of a Ray cluster.

The queue, sessions, ids, deadlines and second attempts are the same as on one machine (`Scheduler`), and are in the
driver's process; the nodes give slots (`workers`). So a call means the same wherever it runs, and what a node that
died knew is known here: which calls were under way, and by which cells a session is rebuilt on another node.

* A stateless call that was on a node which died is run on another, once; then it ends with status `infrastructure`.
* A session's call likewise: its process died with the node, and with that all that it had done. The session is rebuilt
  from its cells (`SessionState.REPLAYED`; `LOST` if there were more than are remembered), and the call is run again.
* A call submitted under an id is answered once, whichever node it was on; its process may have been begun twice, on two
  nodes, of which the first is gone with all that it did.
* Calls wait while there is no node; after a minute they end with status `infrastructure`.

The nodes need this package, as the driver has it. A node that isolates less than is accepted is left out, and a warning
says so. Who can speak to Ray can run anything on its nodes: a cluster's network is to be trusted, and out of reach of
model-written code, which has no network in its slot at level L2. A cluster that is started here is bound to loopback.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hrm_agent.environment.base import Environment, ExecutionResult, Submission
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation
from hrm_agent.environment.local.slots import LocalWorkers
from hrm_agent.environment.on_ray.cluster import line_of
from hrm_agent.environment.on_ray.workers import RayWorkers
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.environment.scheduler.scheduler import Scheduler
from hrm_agent.environment.scheduler.workers import Workers
from hrm_agent.errors import HrmError

__all__ = ["RayEnvironment"]

_REACH_SECONDS = 5.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_lock = threading.Lock()
_open = 0
"""Environments that use a connection made here; the last one ends it."""
_START = "Start one with `ray start --head`, or give no address: then one is started on this machine."


class RayEnvironment(Environment):
    """An `Environment` on all nodes of a Ray cluster. Thread-safe, and usable from any number of event loops."""

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
        """`address`: `HOST:PORT` of a cluster that this machine is a node of, `auto` for the one that was started here;
        None for RAY_ADDRESS, else a cluster of this machine alone, gone when the environment is closed. A Ray that this
        process has already is used whatever the address, and left as it is. `slots`, `packages`, `cgroup`: of each
        node, see `LocalEnvironment`. `max_sessions`: living sessions of all nodes together. `isolation`: the least that
        is accepted. `overhang`: calls that a node is given at once, per slot; those beyond its slots count as running
        and wait there, in order of arrival. 1: none does, and slots stand idle for the time of a message. `factory`:
        makes a node's workers, there, instead.

        Raises HrmError where Ray is not installed or out of reach, or where no node isolates by `isolation`.
        """
        self._ray, self._ours = _connect(address)
        try:
            make = factory or partial(LocalWorkers, slots, isolation=isolation, packages=packages, cgroup=cgroup)
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
            future.add_done_callback(lambda _: self._scheduler.leave(call, waiter) if future.cancelled() else None)
        return await asyncio.wrap_future(future)

    async def fork_session(self, source: str, target: str, *, run: str = "") -> None:
        await asyncio.wrap_future(self._scheduler.fork_session(source, target, run))

    async def end_session(self, session: str, *, run: str = "") -> None:
        self._scheduler.end_session(session, run)

    async def metrics(self) -> str:
        """The queue's, and counts by node."""
        return self._scheduler.metrics() + await asyncio.to_thread(self._workers.metrics)

    async def close(self) -> None:
        await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """`close` for where there is no event loop. Does nothing in a fork of the process that made it."""
        if self._scheduler.is_ours:
            self._scheduler.close()
            self._disconnect()

    def _disconnect(self) -> None:
        if self._ours:
            self._ours = False
            _release(self._ray)


def _answer(future: Future[ExecutionResult], result: ExecutionResult) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def _connect(address: str | None) -> tuple[Any, bool]:
    """Ray, and whether it was connected here."""
    global _open
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    with _lock:
        ray = _imported(address)
        if not ray.is_initialized():
            _init(ray, address)
        elif not _open:
            return ray, False
        _open += 1
        return ray, True


def _release(ray: Any) -> None:
    global _open
    with _lock:
        _open -= 1
        if not _open:
            ray.shutdown()


def _imported(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local" or address.rpartition(":")[0] in _LOOPBACK:
        # Else Ray puts the machine's outer address for loopback. The name is of where that is done without being asked.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        return import_module("ray")
    except ImportError:
        raise HrmError("Ray is not installed.", "pip install 'hrm-agent[ray]'") from None


def _init(ray: Any, address: str) -> None:
    if address not in {"local", "auto"}:
        _reach(address)
    here = {"_node_ip_address": "127.0.0.1"} if address == "local" else {}
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="WARNING", **here)
    except Exception as error:  # of many kinds
        raise HrmError(f"No connection to Ray at {address}: {line_of(error)}", _START) from error


def _reach(address: str) -> None:
    """Raises HrmError where nobody listens, since Ray would wait for that for ever."""
    host, _, port = address.rpartition(":")
    if "//" in host or not host or not port.isdigit():
        where = "Run the driver on a node of the cluster, and give HOST:PORT of the head, or `auto`."
        raise HrmError(f"{address!r} is not the address of a Ray cluster.", where)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise HrmError(f"No Ray cluster answers at {address}: {error}.", _START) from None
