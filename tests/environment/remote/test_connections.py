"""Connections to the server that are slow, too many, unfinished, or carry what is no request."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from aiohttp.compression_utils import ZLibDecompressor
from aiohttp.web_protocol import RequestHandler

from hrm_agent.basics import http_server
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.remote import server_stream
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.server import Service
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.testing import wait_until
from tests.support.environment.contract import all_slots_free
from tests.support.environment.served import TOKEN, served

pytestmark = pytest.mark.whole

SOON = 0.3
"""A deadline that is met at once where nobody waits for it."""
HOST = b"Host: 127.0.0.1\r\n"
HOLDER = HOST + f"Authorization: Bearer {TOKEN}\r\n".encode()
HEALTH = b"GET /health HTTP/1.1\r\n" + HOLDER + b"\r\n"
BODY = b'{"code": "6 * 7"}'
POST = b"POST /v1/run HTTP/1.1\r\n"
JSON = b"Content-Type: application/json\r\n"
LENGTH = f"Content-Length: {len(BODY)}\r\n".encode()
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = f"{len(BODY):x}\r\n".encode() + BODY + b"\r\n0\r\n\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
STREAM = b"GET /v1/stream HTTP/1.1\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    def __init__(self, port: int, local: LocalEnvironment, service: Service) -> None:
        self.port, self.local, self.service = port, local, service
        self.url = f"http://127.0.0.1:{port}"

    async def open(self, said: bytes = b"") -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(said)
        return reader, writer


@contextmanager
def serving() -> Iterator[Server]:
    local, listener = LocalEnvironment(slots=1), listen_tcp("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with served(local, listener, hosts=("127.0.0.1",)) as service:
        yield Server(port, local, service)
    local.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


async def answer(streams: Streams) -> tuple[int, bytes]:
    """Status and body of the next answer; status 0 where the connection is closed instead."""
    reader, _ = streams
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)
    return 0, b""


async def until_closed(streams: Streams) -> None:
    with suppress(ConnectionError):
        while await streams[0].read(65536):
            pass
    streams[1].close()


async def test_every_header_of_a_connection_has_to_come_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Headers of a second request are also due in time, after the token was shown, however slowly
    they come.
    """
    monkeypatch.setattr(http_server, "SECONDS_BETWEEN", SOON)
    with serving() as server:
        silent, slow = await server.open(HEALTH), await server.open(HEALTH)
        assert [(await answer(each))[0] for each in (silent, slow)] == [200, 200]
        slow[1].write(b"GET /health HTTP/1.1\r\nX: ")
        closed = asyncio.create_task(until_closed(slow))
        while not closed.done():
            slow[1].write(b"x")
            await asyncio.sleep(SOON / 10)
        await until_closed(silent)


async def test_a_strangers_header_has_to_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SECONDS_TO_ASK", SOON)
    with serving() as server:
        for said in (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "):
            await until_closed(await server.open(said))


async def test_a_body_has_to_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SECONDS_TO_ASK", SOON)
    monkeypatch.setattr(
        "hrm_agent.basics.http_server._Strangers._end", lambda *_: None
    )  # however late the header is seen
    with serving() as server:
        for head, rest in ((LENGTH, BODY), (CHUNKED, CHUNKS)):
            slow = await server.open(POST + HOLDER + JSON + head + b"\r\n" + rest[:5])
            assert (await answer(slow))[0] == 408
            slow[1].close()


async def test_who_opened_too_many_connections_comes_in_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "SECONDS_BETWEEN", 2.0)
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "MAX_STRANGERS", 2)
    held = list[Streams]()
    with serving() as server:

        async def status() -> int:
            held.append(await server.open(HEALTH))
            return (await answer(held[-1]))[0]

        async def turned_away() -> bool:
            return await status() == 0

        async def let_in() -> bool:
            return await status() == 200

        await wait_until(turned_away)
        await wait_until(let_in)  # and none of the others was closed by its owner
        for _, writer in held:
            writer.close()


async def test_connections_that_went_by_themselves_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "MAX_STRANGERS", 4)

    def kept() -> int:
        return sum(isinstance(each, RequestHandler) for each in gc.get_objects())

    with serving() as server:
        await until_closed(await server.open(b"no request\r\n\r\n"))
        before = kept()
        for _ in range(60):
            await until_closed(await server.open(b"no request\r\n\r\n"))

        def few_are_left() -> bool:
            gc.collect()
            return kept() - before <= 2 * http_server.MAX_STRANGERS

        await wait_until(few_are_left, seconds=http_server.SECONDS_TO_ASK / 2)


async def test_a_strangers_body_is_not_unpacked(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = list[int]()
    of_aiohttp = ZLibDecompressor.decompress_sync

    def seen(self: ZLibDecompressor, data: bytes, *rest: Any, **more: Any) -> bytes:
        unpacked.append(len(data))
        return of_aiohttp(self, data, *rest, **more)

    monkeypatch.setattr(ZLibDecompressor, "decompress_sync", seen)
    body = gzip.compress(b" " * 1_000_000)
    packed = JSON + f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    for head, status in ((HOST, 401), (HOLDER, 415)):
        asked = await server.open(POST + head + packed)
        assert (await answer(asked))[0] == status
        asked[1].write_eof()
        await until_closed(asked)
    assert unpacked == []


async def test_an_answer_that_did_not_come_is_asked_for_again() -> None:
    """Requests are repeated if other connections are so many that this one was closed before it had
    shown its token.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    about = {"service": "hrm-agent environment", "protocol": 0}

    def serve() -> None:
        for kind in ("closed", "reset", "answered"):
            connection, _ = listener.accept()
            if kind == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            elif kind == "answered":
                body = json.dumps(about).encode()
                connection.recv(65536)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(Exception, match="speaks version 0"):
        await asyncio.to_thread(RemoteEnvironment, f"http://127.0.0.1:{port}", token=TOKEN)
    await asyncio.to_thread(thread.join)
    listener.close()


NO_REQUESTS = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64",
    b"GET /health HTTP/1.1\r\n"
    + HOST
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\n"
    + HOST
    + b"".join(b"X%d: 1\r\n" % i for i in range(10_000))
    + b"\r\n",
    b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /health HTTP/1.1\r\n" + HOST + b"X: \0\r\n\r\n",
    b"\0" * 5000,
    b"GET //[::1 HTTP/1.1\r\n" + HOLDER + b"\r\n",
    b"GET http://[::1 HTTP/1.1\r\n" + HOLDER + b"\r\n",
    b"GET /%zz%ff%00 HTTP/1.1\r\n" + HOLDER + b"\r\n",
    b"GET /health HTTP/1.1\r\nHost: \xff\xfe[::1\r\n\r\n",
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"DELETE /v1/sessions/%ff?run=%ff&%&&= HTTP/1.1\r\n" + HOLDER + b"\r\n",
    (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") * 50,
    HEALTH * 50,
    STREAM + HOST + UPGRADE + KEY + b"\r\n\x81\x85abcdefghi",
    STREAM + HOLDER + UPGRADE + b"\r\n",
    STREAM + HOLDER + UPGRADE + b"Sec-WebSocket-Key: x\r\n\r\n",
    STREAM + HOLDER + UPGRADE.replace(b"websocket", b"webs\xd3cket") + KEY + b"\r\n",
    STREAM + HOLDER + UPGRADE.replace(b"13", b"99") + KEY + b"\r\n",
    STREAM + HOLDER + b"\r\n",
    STREAM + HOLDER + UPGRADE + KEY + b"\r\n" + b"\xff" * 500,
    STREAM + HOLDER + UPGRADE + KEY + b"\r\n\x82\x81\0\0\0\0a",
    STREAM + HOLDER + UPGRADE + KEY + b"\r\n\x81\x81\0\0\0\0\xff",
    STREAM + HOLDER + UPGRADE + KEY + b"\r\n\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0aaaa",
    *(
        POST + who + JSON + head + b"\r\n" + rest
        for who in (HOST, HOLDER)
        for head, rest in (
            (b"Content-Length: -5\r\n", BODY),
            (b"Content-Length: 99999999999999999999999999\r\n", BODY),
            (LENGTH + b"Content-Length: 14\r\n", BODY),
            (LENGTH + CHUNKED, CHUNKS),
            (CHUNKED, b"zz\r\n"),
            (CHUNKED, b"-d\r\n" + BODY),
            (CHUNKED, b"d;" + b"a" * 100_000 + b"\r\n"),
            (CHUNKED, CHUNKS[:-2] + b"X: \0\r\n\r\n"),
            (b"Transfer-Encoding: x\r\n", BODY),
            (b"Content-Encoding: gzip\r\n" + LENGTH, BODY),
            (b"Content-Encoding: br\r\n" + LENGTH, BODY),
            (LENGTH, BODY[:-1]),
            (LENGTH, BODY),
        )
    ),
]
"""Mostly malformed requests; `spoilt` mutates the last, valid ones."""
SEEDS = 300
TOGETHER = 50


def spoilt(seed: int) -> bytes:
    """Random bytes, or something of the above with a few changes."""
    chance = random.Random(seed)
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(1, 3000))
    said = bytearray(chance.choice(NO_REQUESTS)[:3000])
    for _ in range(chance.randrange(1, 8)):
        at = chance.randrange(len(said) + 1)
        put = chance.choice(
            [
                b"\0",
                b"\r\n",
                b"\r\n\r\n",
                b"\xff",
                b":",
                b" ",
                b"-1",
                HOLDER,
                JSON,
                chance.randbytes(1),
            ]
        )
        said[at : at + chance.choice((0, 0, len(put), chance.randrange(20)))] = put
    return bytes(said)


async def test_whatever_is_sent_leaves_no_traceback(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of them go at once, so that the answer finds nobody; the rest in two parts, and with
    time to be answered.
    """
    all_of_them = [*NO_REQUESTS, *map(spoilt, range(SEEDS))]
    for first in range(0, len(all_of_them), TOGETHER):
        for leave in (True, False):
            asked = [
                await server.open(said[: len(said) // 2])
                for said in all_of_them[first : first + TOGETHER]
            ]
            assert (await answer(await server.open(HEALTH)))[0] == 200
            for (_, writer), said in zip(asked, all_of_them[first:], strict=False):
                with suppress(OSError):
                    writer.write(said[len(said) // 2 :])
                    if leave:
                        writer.write_eof()
            for _ in range(3):
                assert (await answer(await server.open(HEALTH)))[0] == 200
            for streams in asked:
                with suppress(OSError):
                    streams[1].write_eof()
                await until_closed(streams)
    await all_slots_free(server.local)
    status, body = await answer(await server.open(POST + HOLDER + JSON + LENGTH + b"\r\n" + BODY))
    assert (status, json.loads(body)["value"]) == (200, "42")
    gc.collect()  # a task whose error nobody asked for says so when it goes
    told = [
        (record.name, record.getMessage())
        for record in caplog.records
        if record.levelno >= logging.INFO
    ]
    assert (told, "Traceback" in caplog.text) == ([], False)


def text_frame(text: str) -> bytes:
    """WebSocket frame of a text as a client sends it, masked with zeros, which leave the text
    unchanged.
    """
    return b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text.encode()


async def test_a_client_that_does_not_read_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server takes no more from such a client before it reads, and does not wait for it when
    going down.
    """
    monkeypatch.setattr(server_stream, "_LEAVE_SECONDS", SOON)
    call = {"code": "print('x' * 9_000_000)", "limits": {"output_bytes": 10_000_000}}
    with serving() as server:
        _, writer = await server.open(STREAM + HOLDER + UPGRADE + KEY + b"\r\n")
        writer.write(text_frame(json.dumps([{"key": 1, "run": call}])))
        (stream,) = await wait_until(lambda: server.service._streams)
        await wait_until(lambda: not stream._room.is_set())
        assert not stream._transport.is_closing()
    assert stream._transport.is_closing()
    writer.close()
