"""A server that answers in the forms of OpenAI and Anthropic, whole and streamed: first with a tool
call, then with a text.

The answers have all fields of the providers' interfaces, also useless ones, since a client may put
them into the message that goes into a graph's state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

__all__ = ["LANGCHAIN", "ProviderServer"]

TEXT = "It is 42, über alles."
ARGUMENTS: dict[str, Any] = {"a": 6, "b": 7.5, "note": 'sixty "and" ✓'}

LANGCHAIN = """
from langchain_openai import ChatOpenAI


def init_chat_model(name, **options):
    return ChatOpenAI(model=name.partition(":")[2], **options)
"""
"""Part of the package langchain, which the tests do without, that opens a provider's model. A
process keeps the models that it has opened, so each file of tests has names of its own.
"""


class ProviderServer:
    """Server on a free port. `asked` lists the bodies of all requests.

    `cost`: cost that is reported beside the tokens, as by routers such as OpenRouter. `text`: text
    of the answer. `calls`: number of tool calls in an answer that calls tools.
    """

    def __init__(
        self,
        cost: float | None = None,
        text: str | Callable[[dict[str, Any]], str] = "",
        calls: int = 1,
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        self.cost, self.text, self.calls = cost, text, calls
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append(body)
                number = len(server.asked)
                if self.path.endswith("/messages"):
                    whole, stream = _anthropic(body, number)
                else:
                    text = server.text(body) if callable(server.text) else server.text or TEXT
                    whole, stream = _openai(body, number, text, server.cost, server.calls)
                self.send_response(200)
                self.send_header(
                    "Content-Type",
                    "text/event-stream" if body.get("stream") else "application/json",
                )
                self.end_headers()
                sent = "".join(stream) if body.get("stream") else json.dumps(whole)
                self.wfile.write(sent.encode())

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _calls_tool(body: dict[str, Any]) -> bool:
    """True if tools are offered and the last message is not a tool's."""
    return bool(body.get("tools")) and "tool" not in json.dumps(body["messages"][-1])


def _cut(text: str) -> Iterator[str]:
    yield from (text[start : start + 7] for start in range(0, len(text), 7))


def _openai(
    body: dict[str, Any], number: int, text: str, cost: float | None, many: int
) -> tuple[dict[str, Any], Iterator[str]]:
    calls = [
        {
            "id": f"call_{number}" if index == 0 else f"call_{number}_{index}",
            "type": "function",
            "function": {
                "name": "multiply",
                "arguments": json.dumps(
                    {**ARGUMENTS, "a": ARGUMENTS["a"] + index}, separators=(",", ":")
                ),
            },
        }
        for index in range(many)
    ]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": [],
    }
    if _calls_tool(body):
        message |= {"content": None, "tool_calls": calls}
    usage: dict[str, Any] = {
        **({} if cost is None else {"cost": cost}),
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": 0},
    }
    head = {
        "id": f"chatcmpl-{number}",
        "created": 1,
        "model": "gpt-test-0",
        "service_tier": "default",
    }
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    whole = {
        **head,
        "object": "chat.completion",
        "choices": [choice],
        "usage": usage,
        "system_fingerprint": "fp",
    }

    def stream() -> Iterator[str]:
        deltas: list[dict[str, Any]] = [
            {"role": "assistant", "content": message["content"] and "", "refusal": None}
        ]
        if "tool_calls" in message:
            for index, call in enumerate(calls):
                started = {
                    **call,
                    "index": index,
                    "function": {"name": "multiply", "arguments": ""},
                }
                deltas.append({"tool_calls": [started]})
                deltas += [
                    {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
                    for part in _cut(call["function"]["arguments"])
                ]
        else:
            deltas += [{"content": part} for part in _cut(text)]
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
            for delta in deltas
        ]
        chunks.append(
            {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}]}
        )
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({"choices": [], "usage": usage})
        for chunk in chunks:
            yield f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', **chunk})}\n\n"
        yield "data: [DONE]\n\n"

    return whole, stream()


def _anthropic(body: dict[str, Any], number: int) -> tuple[dict[str, Any], Iterator[str]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": TEXT}]
    if body.get("thinking"):
        blocks.insert(
            0, {"type": "thinking", "thinking": "Six times seven.", "signature": "c2lnbmF0dXJl"}
        )
    calls = _calls_tool(body)
    if calls:
        blocks.append(
            {"type": "tool_use", "id": f"toolu_{number}", "name": "multiply", "input": ARGUMENTS}
        )
    counted = {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-test-0"}
    ended = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    whole = {**head, "content": blocks, **ended, "usage": {**counted, "output_tokens": 3}}

    def stream() -> Iterator[str]:
        begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**begun, "usage": {**counted, "output_tokens": 1}})
        for index, block in enumerate(blocks):
            empty, deltas = _deltas(block)
            yield _event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=ended, usage={"output_tokens": 3})
        yield _event("message_stop")

    return whole, stream()


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [
                {"type": "text_delta", "text": part} for part in _cut(block["text"])
            ]
        case "thinking":
            said = [
                {"type": "thinking_delta", "thinking": part} for part in _cut(block["thinking"])
            ]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*said, signed]
        case _:
            parts = _cut(json.dumps(block["input"]))
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": part} for part in parts
            ]


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"
