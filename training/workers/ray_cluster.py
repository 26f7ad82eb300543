"""Ray cluster that hosts a run's rollout workers.

Ray places each worker on a node with a free CPU, and spreads the workers over the nodes. A worker
without a place waits, and gets the first CPU that becomes free or joins the cluster, so a cluster
with an autoscaler grows. A node is unusable if it lacks this package, has another version of it,
isolates less than is accepted, or cannot reach the store. It is then left out, and a line on stderr
gives the reason. If all nodes are unusable, the run ends with the reason.

The trainer's process has the engine and is the driver of Ray. If the cluster's head dies, workers
and trainer still reach each other, but no worker can be placed any more, and Ray ends all processes
within minutes. So the run ends before that: it reports the loss, workers release their leases, and
the run can resume from its store on another cluster.

Anyone who can connect to Ray can run anything on its nodes, and read the traffic between them. So
the network of a cluster must be trusted, and model-written code must not reach it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from hrm_agent.environment.on_ray.connection import connect, release
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.models import Engine
from hrm_agent.store import RunStore
from hrm_agent.training.workers.handle import WorkerDiedError
from hrm_agent.training.workers.ray_worker import RayWorker, this_host
from hrm_agent.training.workers.wire import WorkerSetup

__all__ = ["WorkerCluster", "opened_cluster"]

LOOK_SECONDS = 2.0
"""Seconds between two checks of the head and of workers without a place."""
HEADLESS_SECONDS = 20.0
"""Seconds without an answer of the head after which the run ends."""
PLACE_SECONDS = 30.0
"""Seconds that a worker waits for a place before this is reported on stderr."""
NOWHERE_SECONDS = 600.0
"""Seconds without a place for any worker after which the run ends."""
_REACH_SECONDS = 5.0
_RAY_WAITS_SECONDS = "600"
"""Seconds without the head after which Ray ends a process. With Ray's default (60), a trainer in
the middle of an update would be ended before it could report the loss.
"""
_TRIES = 3
"""Maximum number of times that a worker is placed if it dies before it is ready, since its node may
have died.
"""


class WorkerCluster:
    """Starts workers on a cluster. All methods are called in one event loop."""

    def __init__(self, ray: Any, store: RunStore) -> None:
        self._ray = ray
        self._on_host = "" if store.database.path is None else this_host()
        self._refused: dict[str, str] = {}
        """Node id -> reason why the node is unusable."""
        self._waiting: dict[RayWorker, float] = {}
        """Workers without a place -> time since when they wait."""
        self._placed = False
        self._told = False
        self.on_lost: Callable[[Exception], None] = lambda error: None
        """Function that is called with an error if the cluster is lost."""

    def setup_of(self, setup: WorkerSetup) -> WorkerSetup:
        """Setup for a worker with one CPU, on another machine than the trainer's."""
        return replace(setup, slots=2, sessions=min(64, max(2, setup.concurrency)))

    async def open_worker(self, engines: dict[str, Engine], setup: WorkerSetup) -> RayWorker:
        """Start a worker, and return it when it is ready. Raises `WorkerDiedError` if it dies
        repeatedly, or the reason why a node is unusable if no other node is left.
        """
        tries = _TRIES
        while True:
            worker = RayWorker(engines, self._ray, self._refused, self._on_host)
            self._waiting[worker] = time.monotonic()
            try:
                await worker.open(setup)
                self._placed = True
                return worker
            except WorkerDiedError:
                await worker.kill()
                if (tries := tries - 1) == 0:
                    raise
            except Exception as error:
                await worker.kill()
                await self._refuse(worker.place, error)
            except BaseException:
                await worker.kill()
                raise
            finally:
                del self._waiting[worker]

    async def _refuse(self, node: str, error: Exception) -> None:
        """Leave a node out from now on. Raises the error if no other node is left."""
        nodes = [each for each in await asyncio.to_thread(self._ray.nodes) if each["Alive"]]
        if node not in self._refused:
            name = next(
                (each["NodeManagerHostname"] for each in nodes if each["NodeID"] == node), ""
            )
            self._refused[node] = str(error)
            sys.stderr.write(
                f"hrm-agent: The node {name} ({node[:8]}) of the Ray cluster is left out. {error}\n"
            )
        if {
            each["NodeID"] for each in nodes if each["Resources"].get("CPU", 0) > 0
        } <= self._refused.keys():
            raise error

    async def watch(self) -> None:
        """Check the head and waiting workers in an endless loop, which ends only if the head is
        lost.
        """
        host, _, port = self._ray.get_runtime_context().gcs_address.rpartition(":")
        silent_since: float | None = None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await _answers(host, int(port)):
                silent_since = None
                if any(not worker.place for worker in self._waiting):
                    self._look_at_waiting()
            elif silent_since is None:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since >= HEADLESS_SECONDS:
                self.on_lost(
                    RunError(
                        f"The head of the Ray cluster at {host}:{port} is gone, and with it the"
                        " cluster.",
                        "What was recorded is kept. Start another cluster and give the same"
                        " command, with its --ray.",
                    )
                )
                return

    def _look_at_waiting(self) -> None:
        since = min(since for worker, since in self._waiting.items() if not worker.place)
        waited = time.monotonic() - since
        if waited >= NOWHERE_SECONDS and not self._placed:
            self.on_lost(
                RunError(
                    f"No rollout worker has found a place in the Ray cluster for {waited:.0f}"
                    " seconds.",
                    "A worker takes one CPU of Ray's count; `ray status` shows what uses the CPUs."
                    " Free some, then resume the run.",
                )
            )
        elif waited >= PLACE_SECONDS and not self._told:
            self._told = True
            count = sum(not worker.place for worker in self._waiting)
            sys.stderr.write(
                f"hrm-agent: {count} rollout worker{'s wait' if count > 1 else ' waits'} for a free"
                " CPU of the Ray cluster; others go on.\n"
            )


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_REACH_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


@asynccontextmanager
async def opened_cluster(address: str, store: RunStore) -> AsyncGenerator[WorkerCluster]:
    """Open the cluster at `address`: `HOST:PORT` of a cluster that has this machine as a node,
    `auto` for the cluster that was started on this machine, or `local` for a new cluster of this
    machine alone, which ends with the run.

    Raises `HrmError` if Ray is not installed or out of reach, `ConfigError` if its nodes cannot
    share the store.
    """
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", _RAY_WAITS_SECONDS)
    ray, ours = connect(address)
    watching: asyncio.Task[None] | None = None
    try:
        hosts = {each["NodeManagerHostname"] for each in ray.nodes() if each["Alive"]} - {
            socket.gethostname()
        }
        if store.database.path is not None and hosts:
            raise ConfigError(
                f"The store {store.url} is a file of this machine, but the Ray cluster has others:"
                f" {', '.join(hosts)}.",
                "Record in PostgreSQL, which all nodes reach: --store postgresql://...",
            )
        cluster = WorkerCluster(ray, store)
        watching = asyncio.create_task(cluster.watch())
        yield cluster
    finally:
        if watching is not None:
            watching.cancel()
        if ours:
            await asyncio.to_thread(release, ray)
