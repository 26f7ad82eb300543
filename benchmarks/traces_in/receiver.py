"""Receiver of traces on loopback: an OTLP collector over HTTP, and the endpoints of LangSmith and
Langfuse that their clients post to.

OTLP requests are kept as they came: one protobuf message a file. LangSmith's runs are merged from
their create and update requests, as the service does, into the rows that its API lists.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import zstandard

from hrm_agent.trajectory.formats.traces.otlp import otlp_rows, protobuf_messages

__all__ = ["Receiver", "langfuse_rows", "receiving", "write_otlp"]

Json = dict[str, Any]


class Receiver(ThreadingHTTPServer):
    """Receiver with the address `url`. `requests`: OTLP messages as (path, bytes); `runs`:
    LangSmith's runs by id.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, bytes]] = []
        self.runs: dict[str, Json] = {}
        self.unknown: list[str] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def receiving() -> Generator[Receiver]:
    """Run the receiver in a separate thread."""
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        limits = {"size_limit": 100, "scale_up_nthreads_limit": 1, "scale_up_qsize_trigger": 1000}
        told = {"use_multipart_endpoint": True, "size_limit_bytes": 2**24, **limits}
        self._answer({"version": "1", "batch_ingest_config": told})

    def do_POST(self) -> None:
        body = self._body()
        server = cast("Receiver", self.server)
        with server.lock:
            if "otel" in self.path or self.path in ("/v1/traces", "/v1/logs"):
                server.requests.append((self.path, body))
            elif self.path.endswith("/runs/multipart"):
                for name, part in _parts(self.headers["Content-Type"], body):
                    _merge(server.runs, name, part)
            elif self.path.endswith("/runs/batch"):
                batch = json.loads(body)
                for row in (*batch.get("post", ()), *batch.get("patch", ())):
                    server.runs.setdefault(row["id"], {}).update(row)
            else:
                server.unknown.append(self.path)
        self._answer({})

    do_PATCH = do_POST  # noqa: N815  # part of the interface

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match self.headers.get("Content-Encoding"):
            case "gzip":
                return gzip.decompress(body)
            case "zstd":
                return zstandard.ZstdDecompressor().decompressobj().decompress(body)
            case _:
                return body

    def _answer(self, value: Json) -> None:
        content = (
            json.dumps(value).encode()
            if "otel" not in self.path and self.path not in ("/v1/traces", "/v1/logs")
            else b""
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""


def _parts(kind: str, body: bytes) -> Generator[tuple[str, bytes]]:
    """Parts of a multipart form by name."""
    message = message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    for part in cast("list[Any]", message.get_payload()):
        yield part.get_param("name", header="content-disposition"), part.get_payload(decode=True)


def _merge(runs: dict[str, Json], name: str, part: bytes) -> None:
    """Merge a part named `post.ID`, `patch.ID`, or `post.ID.inputs` into its run."""
    words = name.split(".")
    if words[0] not in ("post", "patch"):
        return
    run = runs.setdefault(words[1], {})
    value = json.loads(part)
    if len(words) == 2:
        run.update(value)
    else:
        run[words[2]] = value


def write_otlp(receiver: Receiver, folder: Path) -> list[Path]:
    """Write the OTLP messages, as they came, each to a file."""
    files: list[Path] = []
    for index, (path, body) in enumerate(receiver.requests):
        files.append(folder / f"{'logs' if path.endswith('logs') else 'traces'}-{index}.pb")
        files[-1].write_bytes(body)
    return files


def langfuse_rows(files: list[Path]) -> list[Json]:
    """Observations as Langfuse's API lists them, of the spans that its client sent."""
    rows: list[Json] = []
    messages = (one for file in files for one in protobuf_messages(file.read_bytes(), str(file)))
    for span in (span for message in messages for span in otlp_rows(message, "")):
        held = span.attributes
        named = {
            "input": "input",
            "output": "output",
            "modelParameters": "model.parameters",
            "usageDetails": "usage_details",
            "costDetails": "cost_details",
        }
        prefix = "langfuse.observation."
        rows.append(
            {
                "id": span.id,
                "traceId": span.trace_id,
                "parentObservationId": span.parent,
                "type": str(held[f"{prefix}type"]).upper(),
                "name": span.name,
                "startTime": datetime.fromtimestamp(span.started_at, UTC).isoformat(),
                "endTime": datetime.fromtimestamp(span.ended_at or 0, UTC).isoformat(),
                "model": held.get(f"{prefix}model.name"),
                "level": held.get(f"{prefix}level", "DEFAULT"),
                "statusMessage": held.get(f"{prefix}status_message"),
                **{
                    name: json.loads(held[key]) if held[key][:1] in ("{", "[") else held[key]
                    for name, path in named.items()
                    if (key := f"{prefix}{path}") in held
                },
                "metadata": {
                    name.removeprefix(f"{prefix}metadata."): json.loads(value)
                    for name, value in held.items()
                    if name.startswith(f"{prefix}metadata.")
                },
            }
        )
    return rows
