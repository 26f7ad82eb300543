"""Peers from their checkouts: code-judge and SandboxFusion, each started as in its README, with its
defaults.

The user has to create checkouts and virtual environments
(`python -m benchmarks.environment --help`). Snippets run in the `python` of the server's PATH. That
is the virtual environment's, which needs numpy and sympy. SandboxFusion asks conda for an
environment of the name `sandbox-runtime`; a folder `condabin` above its virtual environment, with a
script `bin/activate NAME`, does as well.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.environment.measure import Call
from benchmarks.environment.workloads import Answer, Workload

__all__ = ["BATCH", "code_judge", "sandbox_fusion"]

BATCH = 32
_START_SECONDS = 120.0
_FAR = aiohttp.ClientTimeout(total=120)


@asynccontextmanager
async def code_judge(
    checkout: Path, python: Path, *, batches: bool = False
) -> AsyncGenerator[Call]:
    """Start Redis, the API and the workers. A request has one call, or `BATCH` calls."""
    redis = shutil.which("redis-server")
    if redis is None:
        raise FileNotFoundError("redis-server is not in PATH")
    port, redis_port = _free_port(), _free_port()
    variables = _variables(python) | {"REDIS_URI": f"redis://127.0.0.1:{redis_port}"}
    # Without a long time-out the supervisor kills an API process that starts slowly on a busy
    # machine.
    api = ["-m", "uvicorn", "app.main:app", "--workers", "4", "--limit-max-requests", "1000"]
    api += ["--port", str(port), "--timeout-worker-healthcheck", "60"]
    with tempfile.TemporaryDirectory() as folder:
        async with (
            _running(
                [
                    redis,
                    "--port",
                    str(redis_port),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--dir",
                    folder,
                ]
            ),
            _running([str(python), "run_workers.py"], checkout, variables),
            _running([str(python), *api], checkout, variables),
            _asked(f"http://127.0.0.1:{port}", "/ping") as http,
        ):
            yield _judged_in_batches(http) if batches else _judged(http)


def _judged(http: aiohttp.ClientSession) -> Call:
    async def call(workload: Workload, client: int) -> Sequence[Answer]:
        answer = await _posted(http, "/run", {"type": "python", "solution": workload.code})
        return [_of_code_judge(answer)]

    return call


def _judged_in_batches(http: aiohttp.ClientSession) -> Call:
    async def call(workload: Workload, client: int) -> Sequence[Answer]:
        given = {"type": "python", "solution": workload.code}
        answer = await _posted(
            http, "/run/long-batch", {"type": "batch", "submissions": [given] * BATCH}
        )
        return (
            [_of_code_judge(result) for result in answer["results"]] if answer else [None] * BATCH
        )

    return call


def _of_code_judge(answer: Mapping[str, Any] | None) -> Answer:
    if answer is None or answer["reason"] in ("queue_timeout", "internal_error"):
        return None
    status = (
        "timeout"
        if answer["reason"] == "worker_timeout"
        else "ok"
        if answer["run_success"]
        else "error"
    )
    return status, answer["stdout"] or ""


@asynccontextmanager
async def sandbox_fusion(checkout: Path, python: Path) -> AsyncGenerator[Call]:
    """Start one server process like `make run`."""
    port = _free_port()
    (checkout / "docs" / "build").mkdir(parents=True, exist_ok=True)
    words = [
        str(python),
        "-m",
        "uvicorn",
        "sandbox.server.server:app",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    async with (
        _running(words, checkout, _variables(python)),
        _asked(f"http://127.0.0.1:{port}", "/v1/ping") as http,
    ):

        async def call(workload: Workload, client: int) -> Sequence[Answer]:
            given = {"language": "python", "code": workload.code}
            given |= {"run_timeout": workload.seconds} if workload.status == "timeout" else {}
            answer = await _posted(http, "/run_code", given)
            found = answer and answer["run_result"]
            if not found or found["status"] == "Error":
                return [None]
            late = found["status"] == "TimeLimitExceeded"
            return [
                ("timeout" if late else "error" if found["return_code"] else "ok", found["stdout"])
            ]

        yield call


async def _posted(
    http: aiohttp.ClientSession, path: str, given: Mapping[str, Any]
) -> dict[str, Any] | None:
    with suppress(aiohttp.ClientError, TimeoutError):
        async with http.post(path, json=given) as response:
            return await response.json() if response.ok else None
    return None


@asynccontextmanager
async def _asked(url: str, ping: str) -> AsyncGenerator[aiohttp.ClientSession]:
    """Wait until a server answers and yield a client of it."""
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(
        url, connector=aiohttp.TCPConnector(limit=0), timeout=_FAR
    ) as http:
        end = loop.time() + _START_SECONDS
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(ping) as response:
                    if response.ok:
                        break
            if loop.time() > end:
                raise TimeoutError(f"{url} did not answer for {_START_SECONDS:.0f} s")
            await asyncio.sleep(0.2)
        yield http


@asynccontextmanager
async def _running(
    words: Sequence[str], folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> AsyncGenerator[Process]:
    """Run a server without its log, and end it with all its processes."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env=variables,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(process.pid).children(recursive=True)
        with suppress(ProcessLookupError):  # the parent first: it would restart the others
            process.kill()
        for child in below:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        await process.wait()


def _variables(python: Path) -> dict[str, str]:
    """Environment variables with the virtual environment in PATH."""
    return {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
