"""Worker processes that run a run's graphs around one engine, which stays in this process with the weights.

Each worker opens the run's store itself. Commits are atomic across processes in SQLite and PostgreSQL, and each thread
has a lease, so that what was built for several commands on one store holds here as it stands; records that went
through this process would be written by the one that the engine needs most. What a worker hands over of a rollout that
has ended is what it has read back from the store.

A worker that dies takes nothing with it but what it had not committed. Its rollouts are handed to another, which finds
the leases without an owner and goes on from the record, as a resumed run does. Workers that die without having ended a
single rollout end the run.

Workers lead sessions of their own: an interrupt from the keyboard is for this process, which ends them.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from hrm_agent.errors import ConfigError, RunError
from hrm_agent.models import Backend, Engine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.runtime.selection.strategies import ONE_RUN, Mode
from hrm_agent.training.configs import CollectConfig, GrpoConfig
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.worker_engines import EngineHost
from hrm_agent.training.worker_wire import LENGTH, Message, WorkerSetup, error_of, packed, unpacked
from hrm_agent.trajectory import RunStatus, Trajectory

__all__ = ["RolloutWorkers", "opened_workers", "refuse_unsendable"]

GRACE_SECONDS = 10.0
"""For a worker to give back what it holds; then it is killed."""
_LAST_WORDS_SECONDS = 1.0
"""For what a worker that has ended had said. The connection may stay open: what it forked holds it, too."""
_DEATHS = 3
"""Workers that die one after another before a rollout has ended: something is wrong that another worker cannot mend."""


class _WorkerDiedError(Exception):
    """The process of a worker ended while it had work."""


class RolloutWorkers:
    """Runs episodes in worker processes, which are started when there is something to run."""

    def __init__(self, setup: WorkerSetup, processes: int, runner: EpisodeRunner) -> None:
        self._setup, self._processes, self._runner = setup, processes, runner
        backend = runner.backend
        self._engines: dict[str, Engine] = {}
        if not isinstance(backend, (str, BaseChatModel)):
            self._engines[setup.policy] = backend
        self._workers: list[_Worker] = []
        self._opening = asyncio.Lock()
        self._deaths = 0
        self._begun = False
        """A worker was ready once: what can be loaded here can be loaded again."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that live."""
        return [worker.pid for worker in self._workers]

    async def run(self, episode: Episode) -> Trajectory:
        """Run, resume or read back an episode. Raises what it would raise in this process."""
        if not isinstance(episode.graph, str):
            raise ConfigError(
                f"The graph {episode.graph_name} is an object of this process, and worker processes import graphs.",
                "Name it as package.module:attribute or ./file.py:attribute, or run in one process.",
            )
        on_record = self._runner.store.journal.find_trajectory
        known = on_record(episode.trajectory_id) if self._setup.mode == ONE_RUN else None
        if known is not None and known.status is not RunStatus.RUNNING:
            return known
        sent = replace(episode, verify=None, verify_run=None)
        version = getattr(self._runner.backend, "policy_version", 0)
        while True:
            worker = await self._free()
            try:
                found = await worker.run(sent, version)
            except _WorkerDiedError as error:
                await self._replace(worker, str(error))
                continue
            self._deaths = 0
            return found

    async def _free(self) -> _Worker:
        """The worker that has fewest runs."""
        while len(self._workers) < self._processes:
            async with self._opening:
                lacking = self._processes - len(self._workers)
                await run_group(range(lacking), self._open)
        return min(self._workers, key=lambda worker: worker.runs)

    async def _open(self, _: int) -> None:
        worker = _Worker(self._engines)
        try:
            await worker.open(self._setup)
        except _WorkerDiedError as error:
            await worker.kill()
            if not self._begun:  # so will the next
                raise RunError(
                    f"A rollout worker died {error} before it was ready.", "What it said, if anything, stands above."
                ) from error
            self._count_death(f"{error} before it was ready", "another is started")
            return
        except BaseException:
            await worker.kill()
            raise
        self._begun = True
        self._workers.append(worker)

    async def _replace(self, worker: _Worker, how: str) -> None:
        """Drop a dead worker and report it once; the next rollout that needs a worker starts a new one."""
        async with self._opening:
            if worker not in self._workers:
                return
            self._workers.remove(worker)
            await worker.kill()
            self._count_death(how, "its open rollouts go on in another")

    def _count_death(self, how: str, what_next: str) -> None:
        self._deaths += 1
        if self._deaths >= _DEATHS:
            raise RunError(
                f"{self._deaths} rollout workers died one after another, the last one {how}.",
                "What was recorded is kept. Look at the memory that is left, and at what the graph does (sys.exit ends "
                "its worker); then resume the run.",
            )
        sys.stderr.write(f"hrm-agent: A rollout worker died {how}; {what_next}.\n")

    async def close(self) -> None:
        """End all workers; what is under way there is cancelled."""
        await asyncio.gather(*(worker.close() for worker in self._workers))
        self._workers.clear()


class _Worker:
    """One process, seen from this one."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self._host = EngineHost(engines, self.send)
        self._numbers = count(1)
        self._runs: dict[int, asyncio.Future[Trajectory]] = {}
        self._loading: set[asyncio.Task[None]] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._told_to_end = False
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> int:
        return len(self._runs)

    async def open(self, setup: WorkerSetup) -> None:
        """Start it, and wait until it has loaded what it needs.

        Raises what it could not be opened by, `_WorkerDiedError` if its process has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "hrm_agent.training.worker_process"),
                *(str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self.send([("setup", pickle.dumps(setup))])
        self._listening = asyncio.create_task(self._listen(reader))
        self._watching = asyncio.create_task(self._watch(self._process, self._listening))
        await self._opened

    def send(self, messages: Sequence[Message]) -> None:
        """Nothing any more once the worker was told to end: an engine may still answer what was asked before."""
        if not self._told_to_end and not self._writer.is_closing():
            self._writer.write(packed(messages))

    async def run(self, episode: Episode, version: int) -> Trajectory:
        """The trajectory, when the episode has ended. Raises `_WorkerDiedError` if the process has."""
        number, ended = next(self._numbers), asyncio.get_running_loop().create_future()
        try:
            data = packed([("run", number, pickle.dumps(episode), version)])
        except Exception as error:  # of an object among the task's metadata or the graph's options
            raise ConfigError(
                f"Thread {episode.thread_id} cannot be handed to a worker process: {type(error).__name__}: {error}.",
                "Give the task and the graph's options plain values, or run in one process.",
            ) from error
        if self._listening is None or self._listening.done():
            raise _WorkerDiedError(await self._how())
        self._runs[number] = ended
        try:
            self._writer.write(data)
            return await ended
        except asyncio.CancelledError:
            self.send([("stop", number)])
            raise
        finally:
            del self._runs[number]

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                for message in unpacked(await reader.readexactly(length)):
                    self._take(*message)
        except (asyncio.IncompleteReadError, ConnectionError):
            ended: Exception = _WorkerDiedError(await self._how())
        except Exception as error:  # whatever it is, nobody must be left waiting
            ended = error
        self._host.close()
        for waiting in (self._opened, *self._runs.values()):
            if not waiting.done():
                waiting.set_exception(ended)

    async def _watch(self, process: asyncio.subprocess.Process, listening: asyncio.Task[None]) -> None:
        """When the process has ended, end all that it has started and that led no session of its own."""
        await process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait([listening], timeout=_LAST_WORDS_SECONDS)
        self._writer.transport.abort()

    def _take(self, kind: str, *rest: Any) -> None:
        match kind:
            case "ask":
                self._host.ask(*rest[:2])
            case "cancel":
                self._host.cancel(rest[0])
            case "load":
                task = asyncio.create_task(self._host.load(*rest))
                self._loading.add(task)
                task.add_done_callback(self._loading.discard)
            case "open":
                self._opened.set_result(None)
            case "refused":
                self._opened.set_exception(error_of(*rest[0]))
            case _:
                number, found = rest
                ended = self._runs.get(number)
                if ended is None or ended.done():
                    return
                if kind == "ended":
                    ended.set_result(found)
                else:
                    ended.set_exception(error_of(*found))

    async def _how(self) -> str:
        """By what the process ended, in words."""
        assert self._process is not None
        code = await self._process.wait()
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
        return f"{how} (process {self._process.pid})"

    async def close(self) -> None:
        """Let it give back what it holds, then end it."""
        if self._process is None:
            return
        self._told_to_end = True
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it, and all that its graphs have started."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._watching is not None and self._listening is not None:
            await self._watching
            await self._listening


def refuse_unsendable(processes: int, config: CollectConfig | GrpoConfig, given: Backend | None = None) -> None:
    """Raise `ConfigError` for what worker processes cannot have, before anything is opened.

    `given`: a backend that was handed over as an object.
    """
    if processes == 1:
        return
    if isinstance(given, BaseChatModel):
        raise ConfigError(
            f"The chat model {type(given).__name__} is an object of this process, and cannot be sent to others.",
            "Name it by a model string, such as openai:gpt-5, or run in one process.",
        )
    if config.environment == "ray" and not os.environ.get("RAY_ADDRESS"):
        raise ConfigError(
            "The environment `ray` without an address is a cluster of one process: each worker would start its own.",
            "Start one, `ray start --head`, and name it: --environment ray:ADDRESS.",
        )


@asynccontextmanager
async def opened_workers(
    processes: int,
    runner: EpisodeRunner,
    config: CollectConfig | GrpoConfig,
    *,
    draw: Callable[[], list[Task]],
    mode: Mode = ONE_RUN,
) -> AsyncGenerator[RolloutWorkers | None]:
    """Workers for the episodes of a run; None where one process is asked for, which is this one.

    `draw`: draws the run's tasks anew, there.
    """
    if processes == 1:
        yield None
        return
    setup = WorkerSetup(
        config=config,
        store=runner.store.url,
        policy=runner.policy,
        is_lazy=isinstance(runner.backend, str),
        tasks=draw if config.rewards is None else None,
        mode=mode,
        concurrency=ceil(config.concurrency / processes),
        slots=_share(getattr(runner.environment, "slots", 0), processes),
        sessions=_share(getattr(runner.environment, "max_sessions", 0), processes),
    )
    workers = RolloutWorkers(setup, processes, runner)
    try:
        yield workers
    finally:
        await workers.close()


def _share(total: int, processes: int) -> int:
    """Together the workers have as many as one process would."""
    return ceil(total / processes)
