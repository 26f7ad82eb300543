"""Process in the place of `foreign/serve.py`: a taskset that answers as the bridge of verifiers does
with a real one (its messages were taken from there).

    python bridge_stub.py ... '{"taskset": NAME, "arguments": {...}}' DESCRIPTOR

Task n asks for a sum of numbers. Its tool adds to a total, which is rewarded with the answer.
`arguments` may hold `dies_at`, the number of the answer at which the process ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any

from aiohttp import web

TOOL = {
    "type": "function",
    "function": {
        "name": "sums_add",
        "description": "Add a number to the running total, and return the total.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"title": "Number", "type": "integer"}},
            "required": ["number"],
            "title": "addArguments",
        },
    },
}
GIVEN: dict[str, Any] = json.loads(sys.argv[-2])["arguments"] if __name__ == "__main__" else {}


class _Played:
    def __init__(self) -> None:
        self.right = 0
        self.total = 0
        self.answers = 0

    def answer(self, kind: str, data: dict[str, Any]) -> Any:
        if kind == "tasks":
            return _observed({"count": GIVEN.get("num_tasks", 3)})
        if kind == "reset":
            self.right = 3 * (data["index"] + 1)
            self.total = 0
            asked = f"What is {data['index'] + 1} + {2 * (data['index'] + 1)}?"
            messages = [
                {"role": "system", "content": "Use the tool."},
                {"role": "user", "content": asked},
            ]
            return _observed({"messages": messages, "tools": [TOOL]})
        self.answers += 1
        if self.answers == GIVEN.get("dies_at"):
            os._exit(1)
        message = data["message"]
        results: list[dict[str, Any]] = []
        for call in message["tool_calls"]:
            if call["name"] == "sums_add":
                self.total += json.loads(call["arguments"])["number"]
                content = str(self.total)
            else:
                content = f"error: unknown tool {call['name']!r}"
            told = {"role": "tool", "tool_call_id": call["id"], "name": call["name"]}
            results.append({**told, "content": content})
        if results:
            return _observed({"messages": results, "tools": [TOOL]})
        rewards = {
            "right": float(str(self.right) in message["content"]),
            "used_the_tool": float(self.total == self.right),
        }
        total = sum(rewards.values()) / 2
        return _observed({"messages": [], "rewards": rewards}, total, done=True)


def _observed(seen: dict[str, Any], reward: float | None = None, *, done: bool = False) -> Any:
    return {"type": "observation", "data": {"observation": seen, "reward": reward, "done": done}}


async def _session(request: web.Request) -> web.WebSocketResponse:
    sock = web.WebSocketResponse()
    await sock.prepare(request)
    played = _Played()
    async for message in sock:
        asked = json.loads(message.data)
        await sock.send_json(played.answer(asked["type"], asked["data"]))
    return sock


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    app = web.Application()
    app.router.add_get("/ws", _session)
    web.run_app(app, sock=socket.socket(fileno=int(sys.argv[-1])), print=None)
