"""Attacks on a server and on its sandbox, each by a client that has its own token. `load` mixes
them in.

The expected result of each is known: the outcome or refusal of its own call, never an
infrastructure fault.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp

from hrm_agent.environment.base import ExecutionResult, Limits, Submission
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.trajectory import ToolStatus

__all__ = ["QUOTA", "Attacker"]

QUOTA = 4
"""Maximum calls of the attacker that wait or run at once."""
MANY = 100_000
"""Calls of one batch."""
TRIES = 5
"""Maximum attempts, each on a new connection, to have a request refused."""
UNREAD, UNREAD_BYTES, UNREAD_SECONDS = 30, 1_000_000, 1.0
"""Calls whose answers are not read, bytes that each prints, and seconds until the connection is
dropped.
"""
OWN = {ToolStatus.OK, ToolStatus.ERROR}
ALL = OWN | {ToolStatus.TIMEOUT, ToolStatus.DENIED, ToolStatus.OUT_OF_MEMORY}
PEAK = range(1024 * 1024, 4 * 1024**3)
"""Plausible range of a call's peak memory, in bytes."""
PATIENT = Limits(wall_seconds=60, cpu_seconds=60)
NAMED = "import ctypes\nctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)\n1 + 1"


class Attacker:
    """Client that makes one attack at a time, of a random kind. `calls` is the number of calls that
    the server may count.
    """

    def __init__(self, url: str, token: str, number: int) -> None:
        self._url, self._token, self._number = url, token, number
        self._headers = {"Authorization": f"Bearer {token}"}
        self._environment: RemoteEnvironment | None = None
        self._kinds: dict[Callable[[random.Random], Awaitable[str]], int] = {
            self._signal: 20, self._name: 15, self._name_in_session: 15, self._deadline: 15, self._priority: 15,
            self._history: 5, self._many: 5, self._many_on_a_stream: 5, self._unread: 5,
        }  # fmt: skip
        self.calls = 0

    async def attack(self, chance: random.Random) -> tuple[str, str]:
        """Make an attack and return its kind and the problem with its result (empty without
        one).
        """
        (kind,) = chance.choices([*self._kinds], [*self._kinds.values()])
        return kind.__name__.strip("_").replace("_", " "), await kind(chance)

    async def close(self) -> None:
        if self._environment is not None:
            await self._environment.close()

    async def _run(self, code: str, **how: Any) -> ExecutionResult:
        if self._environment is None:
            self._environment = await asyncio.to_thread(
                RemoteEnvironment, self._url, token=self._token
            )
        self.calls += 1
        return await self._environment.run(Submission(code, limits=PATIENT, **how))

    async def _signal(self, chance: random.Random) -> str:
        """End a process by a signal without a name, or by a signal that the host itself uses."""
        number = chance.choice([*range(34, 64), 9, 24, 31])
        result = await self._run(f"import os\nos.kill(os.getpid(), {number})\n'lives'")
        return (
            ""
            if result.status in OWN
            else f"signal {number}: {result.status} {result.stderr[-100:]}"
        )

    async def _name(self, chance: random.Random) -> str:
        """Print a process name that resembles the kernel's own line."""
        name = chance.choice(
            [b"VmHWM: 0 kB", b"VmHWM: x", b"VmHWM:\t1e9", b"a) S 1 1 (", b"\nVmHWM: 9"]
        )
        return _sound(await self._run(NAMED.format(name=name)))

    async def _name_in_session(self, chance: random.Random) -> str:
        session = f"named {self._number} {chance.random()}"
        found = [
            _sound(await self._run(NAMED.format(name=b"VmHWM: x"), session=session))
            for _ in range(2)
        ]
        assert self._environment is not None
        await self._environment.end_session(session)
        return " ".join(filter(None, found))

    async def _deadline(self, chance: random.Random) -> str:
        seconds = chance.choice([1e12, 1e15, -1.0, 604_801.0])
        result = await self._run("1", deadline_seconds=seconds)
        return (
            ""
            if result.status is ToolStatus.INVALID_CALL
            else f"deadline {seconds}: {result.status}"
        )

    async def _priority(self, chance: random.Random) -> str:
        result = await self._run(f"{chance.random()}", priority=100)
        return (
            ""
            if result.status is ToolStatus.OK
            else f"priority 100: {result.status} {result.stderr[-100:]}"
        )

    async def _history(self, chance: random.Random) -> str:
        del chance
        body = {"code": "1", "session": "h", "history": [{"code": ""}] * MANY}
        return await self._refused("run", body)

    async def _many(self, chance: random.Random) -> str:
        del chance
        return await self._refused("batch", {"calls": [{"code": "1"}] * MANY})

    async def _refused(self, path: str, body: Any) -> str:
        for tried in range(TRIES):
            await asyncio.sleep(tried)  # strangers take freed connections at once
            with suppress(aiohttp.ClientConnectionError):  # the server closed it to limit strangers
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(
                        f"{self._url}/v1/{path}", json=body, headers=self._headers
                    ) as response,
                ):
                    said = await response.text()
                    return (
                        ""
                        if response.status in (400, 413)
                        else f"/v1/{path}: {response.status} {said[:200]}"
                    )
        return f"/v1/{path}: no connection in {TRIES} tries"

    async def _many_on_a_stream(self, chance: random.Random) -> str:
        """Submit many calls and leave before they have ended."""
        await self._leave(
            [{"key": key, "run": {"code": "1"}} for key in range(MANY // 2)], chance.random()
        )
        return ""

    async def _unread(self, chance: random.Random) -> str:
        del chance
        call = {"code": f"print('x' * {UNREAD_BYTES})", "limits": {"output_bytes": UNREAD_BYTES}}
        await self._leave([{"key": key, "run": call} for key in range(UNREAD)], UNREAD_SECONDS)
        return ""

    async def _leave(self, messages: list[dict[str, Any]], seconds: float) -> None:
        self.calls += len(messages)
        async with aiohttp.ClientSession() as session:
            with suppress(aiohttp.ClientError):
                socket = await session.ws_connect(f"{self._url}/v1/stream", headers=self._headers)
                await socket.send_json(messages)
                await asyncio.sleep(seconds)


def _sound(result: ExecutionResult) -> str:
    """Problem with a result, if it belongs to another call or has an impossible peak of memory
    (empty without one).
    """
    if result.status in ALL and result.peak_memory_bytes in PEAK:
        return ""
    return f"a name: {result.status}, peak {result.peak_memory_bytes} bytes, {result.stderr[-100:]}"
