"""A Ray cluster as the place of a run's rollout workers.

Ray decides where each is: on nodes with a CPU that is not taken, spread out. One that finds none
waits, and gets the first that comes free, or joins; where the cluster has an autoscaler, that is
what makes it grow. A node that is of no use (it lacks this package, has another version, isolates
less than is accepted, cannot reach the store) is left out with a line on stderr; a run whose nodes
are all of no use ends with the reason.

The engine and the driver of Ray are one process, the trainer's. If the cluster's head dies, workers
and trainer still reach each other, but nobody can be placed any more, and Ray ends all of them
within minutes. So the run ends first: it says so, workers give back what they hold, and it goes on
from its store on another cluster.

Who can speak to Ray can run anything on its nodes, and reads what goes between them: a cluster's
network is to be trusted, and out of reach of model-written code.
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
from hrm_agent.training.workers.ray_actor import this_host
from hrm_agent.training.workers.ray_worker import RayWorker
from hrm_agent.training.workers.wire import WorkerSetup

__all__ = ["WorkerCluster", "opened_cluster"]

LOOK_SECONDS = 2.0
"""Between two looks at the head, and at workers without a place."""
HEADLESS_SECONDS = 20.0
"""The run ends when the head has not answered for so long."""
PLACE_SECONDS = 30.0
"""A line says that a worker waits for a place when it has waited so long."""
NOWHERE_SECONDS = 600.0
"""The run ends when no worker has found a place for so long."""
_REACH_SECONDS = 5.0
_RAY_WAITS_SECONDS = "600"
"""Ray ends a process that has not reached the head for so long; by default (60) a trainer in the
midst of an update would be gone before it could say anything.
"""
_TRIES = 3
"""Times that a worker is placed anew which died before it was ready: its node may have died."""


class WorkerCluster:
    """Starts workers on a cluster. To be used in one event loop."""

    def __init__(self, ray: Any, store: RunStore) -> None:
        self._ray = ray
        self._on_host = "" if store.database.path is None else this_host()
        self._refused: dict[str, str] = {}
        """Node -> why it is of no use."""
        self._waiting: dict[RayWorker, float] = {}
        """Workers without a place -> since when."""
        self._placed, self._told = False, False
        self.on_lost: Callable[[Exception], None] = lambda error: None
        """Is called when the cluster can be used no more."""

    def setup_of(self, setup: WorkerSetup) -> WorkerSetup:
        """As for a worker with one CPU of a machine that is not the trainer's."""
        return replace(setup, slots=2, sessions=min(64, max(2, setup.concurrency)))

    async def open_worker(self, engines: dict[str, Engine], setup: WorkerSetup) -> RayWorker:
        """One that is ready. Raises `WorkerDiedError`, or what makes all nodes of no use."""
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
        """Leave a node out from now on. Raises the error where no other is left."""
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
        """Look at the head, and at workers that wait, for ever."""
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
                    "Each takes one CPU of Ray's account: `ray status` shows who has them. Then"
                    " resume the run.",
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
    """The cluster at `address`: `HOST:PORT` of one that this machine is a node of, `auto` for the
    one that was started here, `local` for one of this machine alone, gone with the run.

    Raises `HrmError` where Ray is not installed or out of reach, `ConfigError` where its nodes
    cannot share the store.
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
                f"The store {store.url} is a file of this machine, and the Ray cluster has others:"
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
