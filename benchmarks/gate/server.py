"""Server with OpenAI's API on loopback, whose share of right answers depends on its instructions.

It adds two numbers, in the forms that the agents of `benchmarks.gate.agents` ask for. Only the last
step of an agent can be wrong: a step whose instructions contain one of the marks of `RIGHT`. The same
problem and the same instructions always have the same answer. Other instructions without another
mark change the answers of a few problems, in both directions, as a change of wording does.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

__all__ = ["Asked", "CountingServer", "serving"]

Json = dict[str, Any]
IMPROVED, SPOILT = "Check each step.", "Answer at once."
"""Sentences of the instructions that change the share of right answers."""
RIGHT = {IMPROVED: 0.8, SPOILT: 0.4, "": 0.6}
"""Share of right answers by the sentence in the instructions."""
REDRAWN = 0.1
"""Share of the problems whose answer depends on the wording."""
_PROBLEM = re.compile(r"Problem ([0-9]+): what is ([0-9]+) plus ([0-9]+)\?")
_SECONDS = 0.005
"""Time that an answer takes."""


@dataclass(slots=True)
class Asked:
    """Request that the server has read."""

    digest: str
    """Hash of the request's body."""
    problem: int
    """Number of the problem in the request."""
    ended_at: float = math.inf
    """Time at which the answer was sent, of the monotonic clock (inf: it could not be sent)."""


class CountingServer(ThreadingHTTPServer):
    """Server at the address `url`. `asked` lists the requests, and `seed` chooses the problems that
    are answered right.
    """

    request_queue_size = 256
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = list[Asked]()
        self.seed = 0

    @property
    def url(self) -> str:
        """Address in the form of OPENAI_BASE_URL."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections of clients that were killed."""

    def by_problem(self) -> Counter[int]:
        """Number of requests of each problem."""
        return Counter(each.problem for each in self.asked)


@contextmanager
def serving() -> Generator[CountingServer]:
    """Run the server in separate threads."""
    with CountingServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = cast("CountingServer", self.server)
        try:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            body: Json = json.loads(content)
            problem = _PROBLEM.search(json.dumps(body["messages"]))
            if problem is None:
                self.send_error(400, "no problem in the request")
                return
            asked = Asked(hashlib.sha256(content).hexdigest()[:16], int(problem[1]))
            server.asked.append(asked)
            time.sleep(_SECONDS)
            message = _answer(body, asked.digest, problem, server.seed)
            sent = json.dumps(_completion(message, body["model"])).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)
            asked.ended_at = time.monotonic()
        except (OSError, json.JSONDecodeError):
            self.close_connection = True  # the client was killed

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""


def _answer(body: Json, digest: str, problem: re.Match[str], seed: int) -> Json:
    messages: list[Json] = body["messages"]
    system = str(messages[0]["content"])
    number = int(problem[1])
    total = int(problem[2]) + int(problem[3])
    if "planner" in system:
        return _text(json.dumps({"subgoals": [{"name": "sum", "goal": "Add the numbers."}]}))
    if "critic" in system:
        return _text(json.dumps({"action": "accept"}))
    if body.get("tools") and messages[-1]["role"] != "tool":
        return _tool_call(body["tools"][0]["function"]["name"], digest, problem)
    # a solver of the reasoning graph is right, and its synthesizer may be wrong
    if "solver" not in system and not _is_right(system, number, seed):
        total += 1
    return _text(f"<answer>\\boxed{{{total}}}</answer>" if "boxed" in system else f"{total}")


def _is_right(system: str, number: int, seed: int) -> bool:
    mark = next(mark for mark in RIGHT if mark in system)
    drawn = random.Random(f"{seed}/{number}").random()
    again = random.Random(f"{seed}/{number}/{system}")
    if again.random() < REDRAWN:
        drawn = again.random()
    return drawn < RIGHT[mark]


def _text(text: str) -> Json:
    return {"role": "assistant", "content": text}


def _tool_call(name: str, digest: str, problem: re.Match[str]) -> Json:
    given: Json = {"a": int(problem[2]), "b": int(problem[3])}
    if name == "python":
        given = {"code": f"print({problem[2]} + {problem[3]})"}
    function = {"name": name, "arguments": json.dumps(given)}
    call = {"id": f"call_{digest}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _completion(message: Json, model: str) -> Json:
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50},
    }
