"""Evaluates given answers by verifiers itself, with its own harness `null`, in its interpreter.

    python own_verifiers.py < '{"taskset": NAME, "arguments": {...}, "episodes": [{"index": 0, "answers": [...]}]}'

Writes a list of rewards as JSON (null: the episode failed).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

ANSWERS: dict[str, list[dict[str, Any]]] = {}


class Endpoint(BaseHTTPRequestHandler):
    """Model endpoint whose answers are given."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it
        """Write no log."""

    def do_POST(self) -> None:
        """Answer a chat request by the next answer of its episode."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not ANSWERS[body["model"]]:  # the recorded run was cut short here
            self.send_response(400)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        message = ANSWERS[body["model"]].pop(0)
        said: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
        calls = [
            {
                "index": place,
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for place, call in enumerate(message.get("tool_calls") or [])
        ]
        said |= {"tool_calls": calls} if calls else {}
        base = {"id": "own", "created": 0, "model": body["model"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop"}
        if body.get("stream"):
            kind = "text/event-stream"
            base["object"] = "chat.completion.chunk"
            parts = [
                {**base, "choices": [{**choice, "delta": said}]},
                {**base, "choices": [], "usage": usage},
            ]
            data = "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"
        else:
            kind = "application/json"
            base["object"] = "chat.completion"
            data = json.dumps({**base, "choices": [{**choice, "message": said}], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data.encode())))
        self.end_headers()
        self.wfile.write(data.encode())


async def main() -> None:
    """Evaluate the episodes of the standard input."""
    given = json.load(sys.stdin)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["OWN_KEY"] = "own"
    clients = import_module("verifiers.v1.clients")
    agents = import_module("verifiers.v1.configs.agent")
    loaders = import_module("verifiers.v1.utils.loaders")
    data: dict[str, Any] = {"taskset": {**given["arguments"], "id": given["taskset"]}}
    (seat,) = agents.agent_config_fields(loaders.resolve_env_config(data))
    data[seat] = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    environment = loaders.load_environment(loaders.resolve_env_config(data))
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    client = clients.EvalClientConfig(base_url=url, api_key_var="OWN_KEY")
    most = max(each["index"] for each in given["episodes"]) + 1
    tasks = list(itertools.islice(environment.taskset, most))
    rewards: list[float | None] = []
    async with environment.serving():
        for place, each in enumerate(given["episodes"]):
            ANSWERS[f"episode-{place}"] = list(each["answers"])
            context = clients.ModelContext(model=f"episode-{place}", client=client)
            episode = await environment.run_episode(tasks[each["index"]], context)
            rewards.append(float(episode.traces[0].reward) if episode.ok else None)
    print(json.dumps(rewards))


if __name__ == "__main__":
    asyncio.run(main())
