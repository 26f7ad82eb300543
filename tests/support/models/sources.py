"""Sources of a model on the loopback: stand-ins for the Hugging Face hub and for an index of Python
packages.
"""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hrm_agent.models.cached.folders import FileFacts

__all__ = ["SourceStub", "file_facts", "serving", "write_wheel"]


@dataclass
class SourceStub:
    """Content of a server by path, and the requested paths."""

    url: str = ""
    given: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    """Suffixes of paths whose bodies end half-way, as on a connection that breaks."""

    def put_repository(self, repository: str, revision: str, files: Mapping[str, bytes]) -> None:
        self.given |= {
            f"/{repository}/resolve/{revision}/{name}": content for name, content in files.items()
        }

    def put_wheel(self, distribution: str, wheel: Path) -> None:
        link = f'<!DOCTYPE html><a href="/files/{wheel.name}">{wheel.name}</a>'
        self.given |= {
            f"/simple/{distribution}/": link.encode(),
            f"/files/{wheel.name}": wheel.read_bytes(),
        }


def file_facts(content: bytes) -> FileFacts:
    return FileFacts(len(content), hashlib.sha256(content).hexdigest())


def write_wheel(folder: Path, distribution: str, version: str, member: str, content: bytes) -> Path:
    """A wheel with one file beside its metadata."""
    stem = f"{distribution.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@contextmanager
def serving() -> Generator[SourceStub]:
    stub = SourceStub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            stub.asked.append(f"{self.command} {self.path}")
            content = stub.given.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header(
                "Content-Type",
                "text/html" if self.path.endswith("/") else "application/octet-stream",
            )
            if content is not None and "/resolve/" in self.path:
                self.send_header("X-Repo-Commit", self.path.split("/")[4])
                self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.end_headers()
            if body and content and any(map(self.path.endswith, stub.cut)):
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
            elif body and content:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing: the requests are in `asked`."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        stub.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()
