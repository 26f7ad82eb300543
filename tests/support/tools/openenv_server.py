"""Server of a small environment that speaks OpenEnv's protocol as its real servers do
(`openenv_exchanges.json`), with faults of choice.

The environment is a number from 1 to 100 to be guessed, which depends on the seed. An episode ends
with the right guess, whose reward is 1.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from hrm_agent.basics.async_bridge import BackgroundLoop

__all__ = ["GuessServer", "serving"]

STEP = {
    "additionalProperties": False,
    "description": "Guess the number from 1 to 100.",
    "properties": {
        "metadata": {"type": "object"},
        "number": {"description": "Number to guess", "type": "integer"},
    },
    "required": ["number"],
    "title": "GuessAction",
    "type": "object",
}
GUESS = {
    "name": "guess",
    "description": "Guess the number from 1 to 100.",
    "input_schema": {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
    },
}


@dataclass
class GuessServer:
    """Environment and its faults."""

    mcp: bool = False
    """True if its actions are calls of a tool."""
    text: bool = False
    """True if its action is a text."""
    most: int = 64
    """Number of sessions at a time."""
    fault: Callable[[int], Any] = lambda act: None
    """Number of an act of a session -> text to send in place of the answer, `hang`, or `die` (None:
    no fault).
    """
    seeded: bool = True
    """True if the seed decides about the number."""
    redirect: str = ""
    """Address that clients are sent to."""
    url: str = ""
    """Address of the server."""
    opened: int = 0
    """Number of sessions so far."""
    open_now: int = 0
    """Number of open sessions."""
    acts: list[int] = field(default_factory=list[int])
    """Guesses of all sessions."""

    async def schema(self, request: web.Request) -> web.Response:
        title = {"title": "CallToolAction", "type": "object"}
        text = {**STEP, "properties": {"text": {"type": "string"}}, "required": ["text"]}
        action = title if self.mcp else text if self.text else STEP
        return web.json_response({"action": action, "observation": {}, "state": {}})

    async def session(self, request: web.Request) -> web.StreamResponse:
        if self.redirect:
            raise web.HTTPFound(self.redirect)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.open_now >= self.most:
            told = {"message": "Full", "code": "CAPACITY_REACHED", "max_sessions": self.most}
            await socket.send_json({"type": "error", "data": told})
            await socket.close()
            return socket
        self.opened += 1
        self.open_now += 1
        try:
            await self._play(socket)
        finally:
            self.open_now -= 1
        return socket

    async def _play(self, socket: web.WebSocketResponse) -> None:
        number = 0
        done = False
        count = 0
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                return
            asked = json.loads(message.data)
            data = asked["data"]
            if asked["type"] == "reset":
                seed = data["seed"] if self.seeded else None
                number = random.Random(seed).randint(1, 100)
                done = False
                shown: dict[str, Any] = {"range": [1, 100], "parity": number % 2}
                shown |= {} if self.seeded else {"session": self.opened}
                await socket.send_json(_observed(shown, 0.0, done=False))
                continue
            if data.get("type") == "list_tools":
                await socket.send_json(_observed({"tools": [GUESS]}, None, done=False))
                continue
            count += 1
            fault = self.fault(count)
            if fault == "die":
                return
            if fault == "hang":
                await asyncio.sleep(60)
            if fault is not None:
                await socket.send_str(fault)
                continue
            guess = self._guess(data)
            if guess is None:
                errors = [{"loc": ["number"], "msg": "Input should be a valid integer"}]
                told = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors}
                await socket.send_json({"type": "error", "data": told})
                continue
            self.acts.append(guess)
            done = guess == number
            said = "right" if done else "higher" if guess < number else "lower"
            await socket.send_json(_observed(self._shown(said), float(done), done=done))

    def _guess(self, data: Mapping[str, Any]) -> int | None:
        found = data.get("arguments", {}).get("number") if self.mcp else data.get("number")
        if self.text:
            found = int(data["text"]) if str(data.get("text")).isdigit() else 0
        return found if isinstance(found, int) else None

    def _shown(self, said: str) -> dict[str, Any]:
        if not self.mcp:
            return {"said": said}
        result = {"content": [{"type": "text", "text": said}], "is_error": False}
        return {"tool_name": "guess", "result": result, "error": None}


def _observed(observation: Mapping[str, Any], reward: float | None, *, done: bool) -> Any:
    data = {"observation": observation, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


@contextmanager
def serving(server: GuessServer) -> Generator[GuessServer]:
    """Serve an environment on a free port of this machine inside the block."""
    loop = BackgroundLoop("guess-server")

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/ws", server.session)
        app.router.add_get("/schema", server.schema)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    runner = loop.run(start())
    try:
        yield server
    finally:
        loop.run(runner.cleanup())
        loop.close()
