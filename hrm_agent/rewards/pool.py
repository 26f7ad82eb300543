"""Processes that run the functions of a named rubric, and the handling of functions that hang in a
process or end it.

A reward function is a user's code on a policy's text: it may loop, sleep, fork, or end its process.
The caller must not be blocked, and must know which function is at fault.

Each process reports which function it begins. If a function has not answered some time after its
timeout, the process is killed with all its children. Several functions may have run in it in
parallel, and the one at fault cannot be identified. So each of these functions is called once more,
alone in a process of its own, where a failure is its own fault. A process in which a function has
left a thread or a child behind gets no further work.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from hrm_agent.basics.worker_process import WorkerProcess
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.import_by_name import imported_files
from hrm_agent.rewards.calling import fault_score
from hrm_agent.rewards.rollout import Rollout
from hrm_agent.rewards.rubric import Reward, Rubric
from hrm_agent.trajectory import RewardFault, RewardScore

__all__ = ["RewardPool"]

GRACE_SECONDS = 2.0
"""Seconds after a function's timeout until its process is killed. The process itself enforces the
timeout if it can.
"""
MAX_JOBS = 32
"""Maximum number of parallel jobs of one process. It is high, since a judge takes seconds, but
little CPU time of the process.
"""
_STDERR = 2
_OPEN_SECONDS = 120.0
"""Seconds that a process may take to start, including the import of a user's module."""


@dataclass(eq=False)
class _Job:
    """Rollouts, and the functions to call for them one after the other."""

    data: bytes
    """Rollouts, pickled."""
    count: int
    """Number of rollouts."""
    names: list[str]
    """Names of the functions that have not answered yet, in order."""
    done: asyncio.Future[None]
    scores: dict[str, list[RewardScore]] = field(default_factory=dict[str, "list[RewardScore]"])
    began: str | None = None
    """Name of the function that is running (None between calls)."""
    deadline: float = 0.0
    """Deadline of the running function on the monotonic clock."""


class RewardPool:
    """Processes that have one rubric loaded. Use as an async context manager."""

    def __init__(
        self,
        rubric: Rubric,
        spec: str,
        folder: str,
        *,
        workers: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`rubric` was loaded from `spec`, which is relative to `folder`. `environment`: additional
        environment variables.
        """
        self._spec = spec
        self._folder = folder
        self._variables = {**os.environ, **(environment or {})}
        self._rewards = {part.name: part for part in rubric.parts}
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._gate = asyncio.Semaphore(workers * MAX_JOBS)
        self._workers = workers
        self._opening = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        for worker in list(self._all):
            await worker.close()

    async def score(
        self, rollouts: Sequence[Rollout], names: Sequence[str]
    ) -> dict[str, list[RewardScore]]:
        """Scores of each function in `names`, one for each rollout. Raises `HrmError` for a rubric
        that cannot work.
        """
        try:
            data = pickle.dumps(rollouts)
        except Exception as error:  # a state may hold any object
            reason = (
                f"what it looks at cannot be handed to its process: {type(error).__name__}: {error}"
            )
            return {
                name: [fault_score(self._rewards[name], RewardFault.RAISED, reason)] * len(rollouts)
                for name in names
            }
        job = _Job(data, len(rollouts), list(names), asyncio.get_running_loop().create_future())
        async with self._gate:
            worker = await self._shared()
            await worker.run(job)
            for _ in range(2 * len(self._rewards)):
                if not job.names:
                    break
                # the process has ended, because of this job or of another job in it
                await self._alone(job)
            if job.names:
                raise HrmError(
                    f"The processes that score by {self._spec!r} end before they can score.",
                    "See what they write to stderr, and whether the machine has free memory.",
                )
        return job.scores

    async def _shared(self) -> _Worker:
        """Process with the fewest jobs among those that accept more."""
        async with self._opening:
            usable = [worker for worker in self._idle if worker.usable]
            self._idle = usable
            free = min(usable, key=lambda worker: worker.jobs, default=None)
            if free is None or (free.jobs > 0 and len(usable) < self._workers):
                free = await self._open()
                self._idle.append(free)
            return free

    async def _open(self, *, alone: bool = False) -> _Worker:
        if self._closed:  # the job belongs to a run that has ended
            raise asyncio.CancelledError
        worker = _Worker(self._rewards, self._variables, alone=alone)
        self._all.add(worker)
        await worker.open(self._spec, self._folder)
        return worker

    async def _alone(self, job: _Job) -> None:
        worker = await self._open(alone=True)
        try:
            job.done = asyncio.get_running_loop().create_future()
            job.began = None
            await worker.run(job)
            if job.began is not None:  # the process has ended, and no other function ran in it
                reason = "it ended the process that it ran in, alone"
                _give_up(job, self._rewards, RewardFault.PROCESS_ENDED, reason)
        finally:
            await worker.close()
            self._all.discard(worker)


def _give_up(job: _Job, rewards: Mapping[str, Reward], fault: RewardFault, reason: str) -> None:
    """Score the running function as a fault. The functions after it still have to be called."""
    assert job.began is not None
    reward = rewards[job.began]
    job.scores[job.began] = [fault_score(reward, fault, reason)] * job.count
    job.names.remove(job.began)
    job.began = None


class _Worker:
    """Process that calls a rubric's functions."""

    def __init__(
        self, rewards: Mapping[str, Reward], variables: Mapping[str, str], *, alone: bool
    ) -> None:
        """Start the process. `alone`: the process gets only one job, so that its failure is the
        job's fault.
        """
        self._rewards = rewards
        self._alone = alone
        self._jobs: dict[int, _Job] = {}
        self._numbers = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._process = WorkerProcess(
            "hrm_agent.rewards.worker", environment=variables, stdout=_STDERR
        )
        self._ended = False
        self._soiled = False
        """True if a function has left a thread or a process behind. The process then gets no
        further job.
        """

    @property
    def usable(self) -> bool:
        return not self._ended and not self._soiled

    @property
    def jobs(self) -> int:
        return len(self._jobs)

    async def open(self, spec: str, folder: str) -> None:
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                await self._process.connect()
                self._process.send(pickle.dumps(("open", spec, folder)))
                answer = await self._receive()
        except TimeoutError:
            await self.close()
            raise ConfigError(
                f"The rubric {spec!r} was not imported within {_OPEN_SECONDS:g} s.",
                "Move slow imports of its module into the functions that need them.",
            ) from None
        except OSError:  # the process ended before it was connected
            answer = None
        if answer is None or "error" in answer:
            await self.close()
            said = (
                answer["error"]
                if answer
                else [f"The rubric {spec!r} ended the process that imported it.", ""]
            )
            raise ConfigError(*said)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    async def run(self, job: _Job) -> None:
        """Run a job until it is done or the process has ended. If the process has ended,
        `job.names` has the functions without an answer.
        """
        self._numbers += 1
        number = self._numbers
        self._jobs[number] = job
        try:
            if not self._ended:
                names = tuple(job.names)
                frame = ("score", number, job.data, job.count, names, imported_files())
                self._process.send(pickle.dumps(frame))
                await job.done
        finally:
            self._jobs.pop(number, None)
            if self._soiled and not self._jobs:
                await self.close()

    async def _receive(self) -> dict[str, Any] | None:
        """Next answer of the process (None once the process has ended)."""
        try:
            return json.loads(await self._process.receive())
        except ValueError:
            return None

    async def _read(self) -> None:
        while (answer := await self._receive()) is not None:
            job = self._jobs.get(answer["job"])
            if job is None:
                continue
            if (error := answer.get("error")) is not None:
                job.names.clear()
                job.began = None
                if not job.done.done():
                    job.done.set_exception(HrmError(*error))
            elif (name := answer.get("began")) is not None:
                seconds = self._rewards[name].timeout_seconds
                job.began = name
                job.deadline = time.monotonic() + seconds + GRACE_SECONDS
            else:
                name = answer["name"]
                self._soiled |= answer["left_behind"]
                job.scores[name] = [RewardScore.model_validate(score) for score in answer["scores"]]
                job.names.remove(name)
                job.began = None
                if not job.names and not job.done.done():
                    job.done.set_result(None)
        self._ended = True
        for job in self._jobs.values():
            if not job.done.done():
                job.done.set_result(None)

    async def _watch(self) -> None:
        """Kill the process if a function is still running `GRACE_SECONDS` after its timeout."""
        while True:
            now = time.monotonic()
            late = [
                job for job in self._jobs.values() if job.began is not None and job.deadline < now
            ]
            for job in late if self._alone else ():
                assert job.began is not None
                bound = self._rewards[job.began].timeout_seconds
                _give_up(
                    job,
                    self._rewards,
                    RewardFault.TIMEOUT,
                    f"not done after {bound:g} s; its process was ended",
                )
            if late:
                self._process.kill()
                return
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Kill the process and all processes that its functions have started."""
        self._ended = True
        await self._process.close()
        for task in self._tasks:
            task.cancel()
        for job in self._jobs.values():
            if not job.done.done():
                job.done.set_result(None)
