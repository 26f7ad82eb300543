"""Messages between the ranks of a training, except for tensors. Rank 0 gives the orders.

Rank 0 has a connection to each other rank. Messages do not use the process group of the tensors,
for two reasons. A rank waits for its next order as long as rollouts take, so that no timeout of the
process group fits. And the end of a connection shows at once that a process has ended, whatever the
cause.

Frames are those of `hrm_agent.training.workers.wire`. torchrun has started all ranks as processes
of one program and one user, so they may unpickle each other's messages. A process that connects has
to know a secret, which it got through the process group.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from hrm_agent.basics.worker_process import FrameSocket
from hrm_agent.errors import RunError
from hrm_agent.training.workers.wire import Message, packed, unpacked

__all__ = ["FALLEN", "RankLink", "RankListener", "linked_to"]

FALLEN = "fallen"
"""Kind of the message with the error by which a process ends."""
_SECRET_BYTES = 32
_RANK = struct.Struct("<Q")
_CONNECT_SECONDS = 60.0
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Keep-alive options, by which connections to a machine without power end after a minute and a
half.
"""


class RankLink:
    """A connection to another rank. Thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameSocket(connection)
        self._hearing = threading.Lock()
        self._heard: list[Message] = []
        self._listener: tuple[Callable[[Message], None], Callable[[], None]] | None = None
        self.failure: str | None = None
        """Error by which the other process ended (None if it sent none)."""
        self.ended = threading.Event()
        """Set when the other process has ended, or has closed the connection."""
        threading.Thread(target=self._read, name="rank", daemon=True).start()

    def send(self, *messages: Message) -> None:
        """Send messages, and return once they are handed to the connection. Errors are ignored,
        since `ended` is set if the other process is lost.
        """
        self._frames.send(packed(messages))

    def hear(self, take: Callable[[Message], None], over: Callable[[], None]) -> None:
        """Call `take` with each message, including those that came before, and `over` when the
        connection ends. The calls run in the current event loop.
        """
        loop = asyncio.get_running_loop()

        def called(what: Callable[..., None], *arguments: Message) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(what, *arguments)

        with self._hearing:
            self._listener = partial(called, take), partial(called, over)
            for message in self._heard:
                self._listener[0](message)
            self._heard.clear()
            if self.ended.is_set():
                self._listener[1]()

    def _read(self) -> None:
        try:
            while frame := self._frames.receive():
                for message in unpacked(frame):
                    self._hear(message)
        finally:
            with self._hearing:
                self.ended.set()
                if self._listener is not None:
                    self._listener[1]()

    def _hear(self, message: Message) -> None:
        if message[0] == FALLEN:
            name, text, _ = message[1]
            self.failure = f"{name}: {text}"
            return
        with self._hearing:
            if self._listener is None:
                self._heard.append(message)
            else:
                self._listener[0](message)

    def close(self) -> None:
        """Close the connection. The other process still receives all messages that were sent
        before.
        """
        with suppress(OSError):
            self._frames.connection.shutdown(socket.SHUT_RDWR)


class RankListener:
    """Listener of rank 0 for connections of the other ranks."""

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0))
        self._secret = secrets.token_bytes(_SECRET_BYTES)

    @property
    def place(self) -> tuple[int, bytes]:
        """Port and secret for connecting."""
        return self._socket.getsockname()[1], self._secret

    def accept(self, count: int) -> dict[int, RankLink]:
        """Accept the connections of ranks 1 to `count` - 1, and return them by rank. Raises
        `RunError` if ranks are missing.
        """
        links: dict[int, RankLink] = {}
        self._socket.settimeout(_CONNECT_SECONDS)
        with self._socket:
            while len(links) < count - 1:
                try:
                    connection, _ = self._socket.accept()
                    connection.settimeout(_CONNECT_SECONDS)
                    said = _exactly(connection, _SECRET_BYTES + _RANK.size)
                except TimeoutError:
                    lacking = sorted(set(range(1, count)) - set(links))
                    raise RunError(
                        f"Ranks {lacking} did not connect to rank 0.",
                        "Look whether a firewall is between them.",
                    ) from None
                if hmac.compare_digest(said[:_SECRET_BYTES], self._secret):
                    links[_RANK.unpack(said[_SECRET_BYTES:])[0]] = RankLink(connection)
                else:
                    connection.close()
        return links


def linked_to(host: str, place: tuple[int, bytes], rank: int) -> RankLink:
    """Connect `rank` to rank 0, which listens at `place`. Raises `RunError` if rank 0 is
    unreachable.
    """
    port, secret = place
    try:
        connection = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
    except OSError as error:
        raise RunError(
            f"Rank {rank} cannot reach rank 0 at {host}:{port}: {error}.",
            "Look whether a firewall is between them.",
        ) from error
    connection.sendall(secret + _RANK.pack(rank))
    return RankLink(connection)


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Read up to `size` bytes (fewer at the end of the connection)."""
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data
