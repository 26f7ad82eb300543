"""Steps of a graph on a distant PostgreSQL: each answer that a step waits for costs a round trip.

The distance is simulated by a process that forwards data after a delay.
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from benchmarks.store.measure import Row, best, spent
from benchmarks.store.ways import WAYS, Places
from benchmarks.store.workloads import loop_graph

__all__ = ["distant_loops"]

_STEPS = 60
_BYTES = 1 << 16


def distant_loops(places: Places, ways_ms: list[float], repeats: int) -> list[Row]:
    """Milliseconds per step of a two-node loop, by checkpointer and round-trip time."""
    graph, rows = loop_graph(_STEPS), list[Row]()
    for _ in range(repeats):
        for way_ms in ways_ms:
            for way in (WAYS["ours, PostgreSQL"], WAYS["PostgresSaver"]):
                assert way.opened is not None
                with (
                    _away(places.new("postgresql"), way_ms / 2e3) as place,
                    way.opened(place) as saver,
                ):
                    kept = graph.copy(update={"checkpointer": saver})
                    config = {"configurable": {"thread_id": "t"}, "recursion_limit": _STEPS + 10}
                    with spent() as used:
                        kept.invoke({"n": 0, "note": ""}, config, durability="sync")
                rows.append(
                    {
                        "way": way.name,
                        "there and back, ms": way_ms,
                        "ms a step": used.wall / _STEPS * 1e3,
                        "seconds": used.wall,
                    }
                )
    return best(rows, "way", "there and back, ms")


@contextmanager
def _away(url: str, seconds: float) -> Generator[str]:
    """Address of a proxy to the server with a delay of `seconds`."""
    server = urlsplit(url)
    assert server.hostname is not None
    assert server.port is not None
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(there, server.hostname, server.port, seconds), daemon=True
    )
    process.start()
    try:
        yield url.replace(f":{server.port}/", f":{here.recv()}/")
    finally:
        process.kill()
        process.join()


def _serve(told: Connection, host: str, port: int, seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        told.send(listening.getsockname()[1])
        while True:
            near, _ = listening.accept()
            far = socket.create_connection((host, port))
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_pass_on, args=(one, other, seconds), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket, seconds: float) -> None:
    """Forward data after a delay, without waiting for earlier data."""
    under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def arrive() -> None:
        while True:
            due, data = under_way.get()
            time.sleep(max(0.0, due - time.perf_counter()))
            if not data:
                other.close()
                return
            other.sendall(data)

    threading.Thread(target=arrive, daemon=True).start()
    while True:
        try:
            data = one.recv(_BYTES)
        except OSError:
            data = b""
        under_way.put((time.perf_counter() + seconds, data))
        if not data:
            return
