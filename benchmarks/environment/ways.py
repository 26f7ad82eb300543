"""Ways to run a snippet: our environment in three forms, a new interpreter per call, and a new
interpreter in a bubblewrap sandbox.

Each opens as a `Call`. `python -I` per call has no isolation at all. bubblewrap has new namespaces
and a read-only view of the files, without a filter of system calls. Both run twice as many calls at
once as there are cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp

from benchmarks.environment.measure import Call
from benchmarks.environment.workloads import Answer, Workload
from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.base import Environment, ExecutionResult, Limits, Submission
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.messages import parse_result, submission_record

__all__ = ["bubblewrap", "ended", "in_process", "served", "session", "subprocesses"]

Opened = AbstractAsyncContextManager[Call]
_SANDBOX = (
    "--as-pid-1 --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp"
    " --unshare-all --die-with-parent --new-session --clearenv"
)
"""Options of bubblewrap. With `--as-pid-1` the CPU seconds of the sandboxed process reach its
parent's figures.
"""
_TOKEN = "a token for the benchmark alone"


def answer_of(result: ExecutionResult) -> Answer:
    status = str(result.status)
    return None if status == "infrastructure" else (status, result.stdout)


def _asking(environment: Environment, *, sessions: bool = False) -> Call:
    async def call(workload: Workload, client: int) -> Sequence[Answer]:
        limits = Limits(wall_seconds=workload.seconds)
        name = f"client {client}" if sessions else None
        # without a history, since cells of a benchmark must not run again
        return [
            answer_of(await environment.run(Submission(workload.code, session=name, limits=limits)))
        ]

    return call


@asynccontextmanager
async def in_process(*, sessions: bool = False) -> AsyncGenerator[Call]:
    environment = LocalEnvironment()
    try:
        yield _asking(environment, sessions=sessions)
    finally:
        await environment.close()


def session() -> Opened:
    """Way in which each client has its own session, a persistent process."""
    return in_process(sessions=True)


@asynccontextmanager
async def served(*, plain: bool = False) -> AsyncGenerator[Call]:
    """Way through a server process, by our client, or by a plain request for each call like the
    peers.
    """
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(_TOKEN)
        token.chmod(0o600)
        words = ["environment", "serve", "--port", "0", "--token-file", str(token), "--json"]
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hrm_agent.cli.main", *words, stdout=asyncio.subprocess.PIPE
        )
        assert server.stdout is not None
        try:
            url = json.loads(await server.stdout.readline())["url"]
            async with _by_requests(url) if plain else _by_client(url) as call:
                yield call
        finally:
            await ended(server)


@asynccontextmanager
async def _by_client(url: str) -> AsyncGenerator[Call]:
    environment = await asyncio.to_thread(RemoteEnvironment, url, token=_TOKEN)
    try:
        yield _asking(environment)
    finally:
        await environment.close()


@asynccontextmanager
async def _by_requests(url: str) -> AsyncGenerator[Call]:
    headers = {"Authorization": f"Bearer {_TOKEN}"}
    async with aiohttp.ClientSession(
        headers=headers, connector=aiohttp.TCPConnector(limit=0)
    ) as http:

        async def call(workload: Workload, client: int) -> Sequence[Answer]:
            submission = Submission(workload.code, limits=Limits(wall_seconds=workload.seconds))
            async with http.post(f"{url}/v1/run", json=submission_record(submission)) as response:
                return [answer_of(parse_result(await response.json())) if response.ok else None]

        yield call


def subprocesses() -> Opened:
    return _commands(lambda code: [sys.executable, "-I", "-c", code])


def bubblewrap() -> Opened | None:
    """Way with bubblewrap (None if it is not installed)."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    words = [
        found,
        *_SANDBOX.split(),
        "--setenv",
        "OPENBLAS_NUM_THREADS",
        "1",
        sys.executable,
        "-I",
        "-c",
    ]
    return _commands(lambda code: [*words, code])


@asynccontextmanager
async def _commands(command: Callable[[str], list[str]]) -> AsyncGenerator[Call]:
    free = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    async def call(workload: Workload, client: int) -> Sequence[Answer]:
        async with free:
            process = await asyncio.create_subprocess_exec(
                *command(workload.code),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"OPENBLAS_NUM_THREADS": "1"},
            )
            try:
                stdout, _ = await asyncio.wait_for(process.communicate(), workload.seconds)
            except TimeoutError:
                process.kill()
                await process.wait()
                return [("timeout", "")]
            return [("error" if process.returncode else "ok", stdout.decode())]

    yield call


async def ended(process: asyncio.subprocess.Process, seconds: float = 10.0) -> None:
    """End a process, by force if necessary."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            process.kill()
            await process.wait()
