"""Rollout worker: `python -m hrm_agent.training.workers.process`, started by
`hrm_agent.training.workers.subprocess`.

The worker runs episodes as its parent would: it opens the run's store, an environment and the
tasks, and uses the parent's engine. A separate thread reads the parent's messages, so that a node
that blocks the event loop while it waits for an answer still gets the answer. A worker on a Ray
cluster differs only in its connection (`hrm_agent.training.workers.ray_worker`).

If the parent ends, the kernel kills the worker. If the parent closes the connection, the worker
cancels its current runs, like a process that is interrupted. A later run resumes them from the
record.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Protocol

from hrm_agent.basics.frozen_heap import begin_program, frozen_heap
from hrm_agent.basics.worker_process import parent_socket
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.open import SPARE_SECONDS, open_environment
from hrm_agent.environment.sandbox.kernel import die_with_parent
from hrm_agent.errors import ConfigError, HrmError, ModelError, RunError
from hrm_agent.models import Engine, load_policy
from hrm_agent.models.loading.policy_loader import load_elsewhere
from hrm_agent.runtime.episode import Episode, EpisodeRunner, exporting
from hrm_agent.runtime.selection.strategies import solve
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.workers.engine_proxy import EngineProxy
from hrm_agent.training.workers.wire import (
    Message,
    WorkerSetup,
    error_of,
    packed,
    told,
    unpacked,
)
from hrm_agent.trajectory import TaskRef

__all__ = ["Asking", "Parent", "WorkerRollouts", "main", "opened_rollouts", "serve"]


class Parent:
    """Connection to the process that started this worker. It is thread-safe."""

    def __init__(
        self, receive: Callable[[], Sequence[Message]], write: Callable[[bytes], None]
    ) -> None:
        """`receive`: function that waits for the next messages (empty at the end). `write`:
        function that sends a frame, which any thread may call.
        """
        self.receive = receive
        self._write = write
        self._numbers = count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._gone = False

    def send(self, *messages: Message) -> None:
        self._write(packed(messages))

    def engine(self, name: str) -> Engine:
        """Proxy of an engine that the parent loads. `name` is its model string."""
        found: Future[bytes] = Future()
        self._ask(found, "load", name)
        return EngineProxy(
            name, found.result(), lambda answer, request: self._ask(answer, "ask", request)
        )

    def _ask(self, answer: Future[Any], kind: str, what: Any) -> None:
        number = next(self._numbers)
        self._asked[number] = answer
        if self._gone:
            raise _closed()
        answer.add_done_callback(lambda done: self._forget(number) if done.cancelled() else None)
        self.send((kind, number, what))

    def _forget(self, number: int) -> None:
        if self._asked.pop(number, None) is not None:
            self.send(("cancel", number))

    def settle(self, kind: str, number: int, found: Any) -> None:
        """Resolve the future of the request with this number."""
        answer = self._asked.pop(number, None)
        if answer is None or not answer.set_running_or_notify_cancel():
            return
        if kind == "error":
            answer.set_exception(error_of(*found))
        else:
            answer.set_result(found)

    def close(self) -> None:
        """Fail all pending requests, since no more answers will come."""
        self._gone = True
        for number in list(self._asked):
            error = _closed()
            self.settle("error", number, (type(error).__name__, error.message, error.hint))


class Asking(Protocol):
    """Side that asks for runs, which receives messages about them."""

    def send(self, *messages: Message) -> None: ...


def _closed() -> ModelError:
    return ModelError("The process that has the engine has ended.", "Resume the run.")


class WorkerRollouts:
    """Runs in this process for which another process asks."""

    def __init__(self, setup: WorkerSetup, runner: EpisodeRunner, parent: Asking) -> None:
        self._setup = setup
        self._runner = runner
        self._parent = parent
        self._gate = asyncio.Semaphore(setup.concurrency)
        threads = ThreadPoolExecutor(setup.concurrency, thread_name_prefix="episode")
        asyncio.get_running_loop().set_default_executor(threads)
        self._tasks = (
            {_key(task.ref()): task for task in setup.tasks()} if setup.tasks is not None else None
        )
        self._running: dict[int, asyncio.Task[None]] = {}

    @property
    def owner(self) -> str:
        """Owner of this worker's leases in the store."""
        return self._runner.store.owner

    async def serve(self, commands: asyncio.Queue[Message]) -> None:
        """Serve commands until the message "over". Then cancel the current runs, and wait until
        they have released their leases.
        """
        while (message := await commands.get())[0] != "over":
            if message[0] == "run":
                self._begin(*message[1:])
            elif message[1] in self._running:
                self._running[message[1]].cancel()
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _begin(self, number: int, episode: bytes, version: int) -> None:
        if isinstance(self._runner.backend, EngineProxy):
            self._runner.backend.policy_version = version
        task = self._running[number] = asyncio.create_task(self._run(number, episode))
        task.add_done_callback(lambda done: self._stopped(number) if done.cancelled() else None)

    def _stopped(self, number: int) -> None:
        """Report a cancelled run, after its lease is released so that another worker can acquire
        it.
        """
        self._running.pop(number, None)  # still listed if the run had not begun
        self._runner.store.database.flush()
        self._parent.send(("stopped", number, None))

    async def _run(self, number: int, episode: bytes) -> None:
        try:
            asked = self._with_verifier(_read(episode))
            outcome = await solve(self._runner, asked, self._setup.mode, gate=self._gate)
            self._parent.send(("ended", number, outcome.trajectory))
        except Exception as error:
            if not isinstance(error, HrmError):
                traceback.print_exc()  # only the error's text is sent
            self._parent.send(("failed", number, told(error)))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            what = "The graph or the verifier of a rollout awaited something that was cancelled."
            self._parent.send(
                ("failed", number, told(RunError(what, "Catch it there; then resume the run.")))
            )
        finally:
            del self._running[number]

    def _with_verifier(self, episode: Episode) -> Episode:
        config = self._setup.config
        if isinstance(config, GrpoConfig):
            config = config.of_family(episode.task.family)
        if self._tasks is None or config.rewards is not None:
            return episode
        task = self._tasks.get(_key(episode.task))
        if task is None:
            family = self._setup.config.tasks
            raise ConfigError(
                f"A worker process that draws the tasks {family!r} gets no task"
                f" {episode.task.id!r}: the tasks were passed as objects, or each draw is"
                " different.",
                "Name your tasks as package.module:attribute, and make them depend only on"
                " split, seed and count; or run in one process.",
            )
        return replace(episode, verify=task.verify, verify_run=task.verify_run)


def _read(episode: bytes) -> Episode:
    try:
        return pickle.loads(episode)  # noqa: S301 - only the parent can write it
    except Exception as error:  # a class that only the parent's program has
        raise ConfigError(
            "A value in a task or in the graph's options cannot be read in a worker process:"
            f" {type(error).__name__}: {error}.",
            "Give them plain values, or run in one process.",
        ) from error


def _key(task: TaskRef) -> tuple[str, ...]:
    return task.family, task.id, task.prompt, task.answer or ""


@asynccontextmanager
async def opened_rollouts(
    setup: WorkerSetup, parent: Asking, engine: Engine | None = None
) -> AsyncGenerator[WorkerRollouts]:
    """Open the run's store and an environment, and yield the object that runs rollouts. `engine`:
    engine to use (None: a proxy of the parent's engine, or an engine that is loaded lazily).
    """
    config = setup.config
    with open_store(setup.store, create=False, allow=config.allowed_types) as store:
        backend = engine or (setup.policy if setup.is_lazy else load_policy(setup.policy))
        # the parent has already reported how the environment is isolated
        environment = (
            open_environment(config.environment, isolation=config.isolation)
            if config.environment is not None
            else LocalEnvironment(
                slots=setup.slots,
                max_sessions=setup.sessions,
                isolation=config.isolation,
                spare_seconds=SPARE_SECONDS,
            )
        )
        try:
            runner = EpisodeRunner(
                store, backend, setup.policy, environment, **config.runner_options()
            )
            with exporting(config) as on_end:
                yield WorkerRollouts(setup, replace(runner, on_end=on_end), parent)
        finally:
            await environment.close()


async def serve(parent: Parent) -> None:
    """Load the setup, which the parent sends first, then run the parent's commands until there are
    no more.
    """
    loop = asyncio.get_running_loop()
    first = await asyncio.to_thread(parent.receive)
    if not first:
        return
    ((_, setup),) = first
    commands = asyncio.Queue[Message]()

    def read() -> None:
        try:
            while messages := parent.receive():
                for message in messages:
                    if message[0] in ("answer", "engine", "error"):
                        parent.settle(*message)
                    else:
                        loop.call_soon_threadsafe(commands.put_nowait, message)
        finally:
            loop.call_soon_threadsafe(commands.put_nowait, ("over",))

    threading.Thread(target=read, name="parent", daemon=True).start()
    load_elsewhere(parent.engine)
    try:
        async with opened_rollouts(pickle.loads(setup), parent) as rollouts:  # noqa: S301 - only the parent can write it
            parent.send(("open", rollouts.owner))
            with frozen_heap():
                await rollouts.serve(commands)
            parent.close()
    except Exception as error:
        if not isinstance(error, HrmError):
            traceback.print_exc()
        parent.send(("refused", told(error)))


def main() -> None:
    """Run the parent's commands until it is gone."""
    ends = parent_socket()
    die_with_parent()
    if os.getppid() != int(sys.argv[1]):  # the parent had ended before `die_with_parent` was called
        return

    def receive() -> Sequence[Message]:
        frame = ends.receive()
        return unpacked(frame) if frame else ()

    asyncio.run(serve(Parent(receive, ends.send)))


if __name__ == "__main__":
    begin_program()
    main()
