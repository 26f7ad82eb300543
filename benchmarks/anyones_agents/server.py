"""Server with OpenAI's API on loopback that answers by rule, at once, and counts requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

__all__ = ["ScriptedServer", "serving"]

Json = dict[str, Any]
LAST_RESORT = {"think", "manage_memory"}


class ScriptedServer(ThreadingHTTPServer):
    """Scripted server at the address `url`. `asked` counts requests for an answer."""

    asked = 0
    _lock = threading.Lock()

    def count(self) -> int:
        """Count a request and return its number."""
        with self._lock:
            self.asked += 1
            return self.asked

    @property
    def url(self) -> str:
        """Address in the form of OPENAI_BASE_URL."""
        return f"http://127.0.0.1:{self.server_port}/v1"


@contextmanager
def serving() -> Generator[ScriptedServer]:
    """Run the server in a separate thread."""
    with ScriptedServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = _answer(body, cast("ScriptedServer", self.server).count())
        if body.get("stream"):
            self._send("text/event-stream", "".join(_events(message)).encode())
        else:
            self._send("application/json", json.dumps(_whole(message)).encode())

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""


def _answer(body: Json, number: int) -> Json:
    """Answer with a call of the tool that `_wanted` chooses, if it has not been called, or else
    with a text.
    """
    messages: list[Json] = body["messages"]
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    called = {
        call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()
    }
    name = _wanted(tools, called, body.get("tool_choice"))
    if name is not None:
        schema: Json = tools[name].get("parameters") or {}
        function = {"name": name, "arguments": json.dumps(_instance(schema, schema))}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    text = "The answer is 42."
    if "python code" in str(messages[0]["content"]).lower() and not any(
        m["role"] == "assistant" for m in messages
    ):
        text = "```python\nprint(multiply(6, 7))\n```"
    if (
        "let's first understand the problem and devise a plan"
        in str(messages[0]["content"]).lower()
    ):
        text = "Plan:\n1. Multiply 6 by 7.\n<END_OF_PLAN>"
    return {"role": "assistant", "content": text}


def _wanted(tools: Iterable[str], called: set[str], choice: Any) -> str | None:
    """Choose the next tool: handoffs first, then sums, then any other if none was called or a call
    is required.
    """
    if isinstance(choice, dict):
        return str(choice["function"]["name"])
    fresh = [name for name in tools if name not in called]
    order = [name for name in fresh if name.startswith("transfer_to_")]
    order += [name for name in fresh if name in {"multiply", "task"}]
    if not called or choice in ("required", "any"):
        order += [name for name in fresh if name not in LAST_RESORT] + [
            name for name in tools if name in LAST_RESORT
        ]
    return order[0] if order else None


def _instance(schema: Json, root: Json) -> Any:
    """Smallest value that is valid for the schema."""
    if "$ref" in schema:
        target: Any = root
        for part in str(schema["$ref"]).lstrip("#/").split("/"):
            target = target[part]
        return _instance(target, root)
    for chosen in ("anyOf", "oneOf", "allOf"):
        if chosen in schema:
            return _instance(schema[chosen][0], root)
    if "enum" in schema or "const" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    kind = schema.get("type", "object")
    if kind == "object":
        fields: Json = schema.get("properties") or {}
        return {
            name: _named(name, fields[name], root)
            for name in schema.get("required", ())
            if name in fields
        }
    return {
        "integer": 6,
        "number": 6.0,
        "boolean": False,
        "array": [],
        "string": "text",
        "null": None,
    }.get(kind)


def _named(name: str, schema: Json, root: Json) -> Any:
    return "helper" if name == "subagent_type" else _instance(schema, root)


def _shell(kind: str, choice: Json) -> Json:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    made = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "scripted-1"}
    return {**made, "choices": [{"index": 0, **choice}], "usage": usage}


def _whole(message: Json) -> Json:
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return _shell("chat.completion", {"message": message, "finish_reason": reason})


def _events(message: Json) -> Generator[str]:
    reason = "tool_calls" if "tool_calls" in message else "stop"
    for choice in (
        {"delta": message, "finish_reason": None},
        {"delta": {}, "finish_reason": reason},
    ):
        yield f"data: {json.dumps({**_shell('chat.completion.chunk', choice), 'usage': None})}\n\n"
    yield "data: [DONE]\n\n"
