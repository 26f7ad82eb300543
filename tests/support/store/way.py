"""A connection to a server that a test can shut and open, and that may lose answers or silently
lose everything.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Self

from tests.support.postgres import free_port

__all__ = ["Way"]

_COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"


class Way:
    """A proxy before a PostgreSQL server.

    `silent`: everything is accepted and nothing passed on, as in a lasting network partition.
    `breaks_after`: number of packets of answers from now after which their connection breaks.
    `deaf`: numbers of commits, from 1, that are done without an answer: the connection breaks
    before it.
    """

    def __init__(self, url: str, deaf: Collection[int] = ()) -> None:
        place, _, name = url.rpartition("/")
        before, _, port = place.rpartition(":")
        self._server = ("127.0.0.1", int(port))
        # a port that the kernel gives to nobody else while the proxy is shut
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self._address: tuple[str, int] = self._listener.getsockname()
        self.url = f"{before}:{self._address[1]}/{name}"
        self.lost = self._commits = 0
        self.silent = False
        self.breaks_after: int | None = None
        self._deaf, self._lock = deaf, threading.Lock()
        self._ends: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()

    def shut(self) -> None:
        """Break all connections and refuse new ones."""
        self._listener.close()
        self._accepting.join()
        with self._lock:
            for end in self._ends:
                _break(end)
            self._ends.clear()

    def open(self) -> None:
        """Accept connections again, on the same address."""
        self._listener = socket.create_server(self._address)
        self._listen()

    def _listen(self) -> None:
        self._listener.settimeout(0.05)  # closing the listener does not wake `accept`
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._accepting.start()

    def _accept(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            with suppress(OSError):
                client = listener.accept()[0]
                server = socket.create_connection(self._server)
                for end in (client, server):
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._ends += (client, server)
                threading.Thread(
                    target=self._pass, args=(client, server, False), daemon=True
                ).start()
                threading.Thread(
                    target=self._pass, args=(server, client, True), daemon=True
                ).start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and (self._breaks() or self._loses(data)):
                    break
                if self.silent:
                    continue
                target.sendall(data)
        for end in (source, target):
            _break(end)

    def _breaks(self) -> bool:
        with self._lock:
            if self.breaks_after is None:
                return False
            self.breaks_after -= 1
            if self.breaks_after >= 0:
                return False
            self.breaks_after = None
            return True

    def _loses(self, data: bytes) -> bool:
        with self._lock:
            if _COMMITTED not in data:
                return False
            self._commits += 1
            lost = self._commits in self._deaf
            self.lost += lost
            return lost


def _break(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
