"""Provider's server with two scripted models: `agent`, which follows the facts in its prompt, and
`reflection`, which writes a text from the feedback that it is sent.

`agent` knows nothing of the post office but what its prompts say. It writes weights in kilograms
unless the prompt says that those of letters are in grams, zones as the customer does unless the
prompt has another name, and bare numbers unless the prompt names a currency. `reflection` sees the
request that a model would get, and nothing else: it adds the messages of failed tools to the text,
and units that expected answers have and given ones lack.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["FakeProvider", "tasks"]

KINDS = ("plain", "letter", "harbour", "abroad", "hopeless")
SHARES = (0.4, 0.2, 0.2, 0.17, 0.03)
"""Shares of the tasks: without a rule, with one of three rules, and such that no rule helps."""
_ITEM = re.compile(r"Task (\d+): a (\w+) of ([0-9.]+) kg to zone (\w+)(, abroad)?")


def tasks(count: int) -> list[dict[str, str]]:
    """Rows of a task file."""
    rows = list[dict[str, str]]()
    for number in range(count):
        draw = int(sha256(f"post {number}".encode()).hexdigest()[:8], 16) / 2**32
        kind = KINDS[-1]
        for name, share in zip(KINDS, SHARES, strict=True):
            if draw < share:
                kind = name
                break
            draw -= share
        item = "letter" if kind == "letter" else "parcel"
        weight = (number % 7 + 1) / (10 if item == "letter" else 1)
        zone = "Harbour" if kind == "harbour" else ("North", "South", "West")[number % 3]
        cost = round(weight * 10 if item == "letter" else weight * 2)
        cost += 3 * len("H1" if zone == "Harbour" else zone)
        abroad = ", abroad" if kind == "abroad" else ""
        answer = (
            f"{cost + (kind == 'hopeless')} USD" if abroad else str(cost + (kind == "hopeless"))
        )
        question = f"Task {number}: a {item} of {weight:g} kg to zone {zone}{abroad}. The price?"
        rows.append({"question": question, "answer": answer})
    return rows


def agent(body: Mapping[str, Any]) -> dict[str, Any]:
    """Message of the model `agent`."""
    system, *others = body["messages"]
    prompt = str(system["content"])
    last = others[-1]
    if not body.get("tools"):
        text = str(last["content"])
        number = re.findall(r"-?\d+", text.partition("Clerk:")[2])
        unit = re.search(r"\b[A-Z]{3}\b", prompt) if "abroad" in text else None
        return {"content": f"{number[-1] if number else 'unknown'}{f' {unit[0]}' if unit else ''}"}
    if last["role"] == "tool":
        return {"content": str(last["content"])}
    found = _ITEM.search(str(last["content"]))
    if found is None:
        return {"content": "unknown"}
    kind = found[2]
    weight = float(found[3])
    zone = found[4]
    if kind == "letter" and "letter is in grams" in prompt:
        weight *= 1000
    renamed = re.search(rf"zone {zone} is called (\w+)", prompt)
    arguments = {"kind": kind, "weight": weight, "zone": renamed[1] if renamed else zone}
    call = {"name": "price", "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]}


def reflection(body: Mapping[str, Any]) -> dict[str, Any]:
    """Message of the model `reflection`."""
    question = str(body["messages"][-1]["content"])
    current = re.findall(r"```\n(.*?)\n```", question, re.DOTALL)[0]
    rules = re.findall(r"Tool price failed\. error: \w+: (.*)", question)
    pairs = re.findall(r"Expected answer: (.*)\nGiven answer: (.*)", question)
    units = [
        expected.removeprefix(given).strip()
        for expected, given in pairs
        if given and expected != given and expected.startswith(f"{given} ")
    ]
    added = [f"Note: {rule}." for rule in rules]
    if "abroad" in question:
        added += [f"Abroad, write {unit} after the number." for unit in units]
    new = [each for each in dict.fromkeys(added) if each not in current]
    return {"content": f"I read the feedback.\n```\n{' '.join([current, *new])}\n```"}


MODELS = {"agent": agent, "reflection": reflection}


class FakeProvider:
    """Server on a free port. `asked` lists the bodies of all requests."""

    def __init__(self, delay: float = 0.0) -> None:
        self.asked: list[dict[str, Any]] = []
        self.tokens: tuple[int, int] = (0, 0)
        """Prompt tokens and completion tokens of all answers."""
        self._lock = threading.Lock()
        self._open = set[int]()
        server = self
        pause = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with suppress(OSError, ValueError):  # the client was killed
                    super().handle()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server.asked.append(body)
                    number = len(server.asked)
                    server._open.add(number)
                pause.wait(delay)
                try:
                    message = {"role": "assistant", **MODELS[body["model"]](body)}
                except RuntimeError as error:  # an answer of a test that fails
                    server._open.discard(number)
                    self.send_error(400, str(error))
                    return
                calls = "tool_calls" in message
                words = len(json.dumps(body["messages"])) // 4
                usage = {"prompt_tokens": words, "completion_tokens": 20}
                with server._lock:
                    server.tokens = (server.tokens[0] + words, server.tokens[1] + 20)
                answer = {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [
                        {
                            "index": 0,
                            "message": message,
                            "finish_reason": "tool_calls" if calls else "stop",
                        }
                    ],
                    "usage": {**usage, "total_tokens": sum(usage.values())},
                }
                data = json.dumps(answer).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the client was killed
                    self.close_connection = True
                server._open.discard(number)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    def drain(self) -> None:
        """Wait until no request is under way."""
        while self._open:
            time.sleep(0.005)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
