"""The server: what it refuses, what becomes of calls whose caller goes, and of callers whose server
goes.
"""

from __future__ import annotations

import asyncio
import gc
import http.server
import json
import logging
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hrm_agent.basics.http_server import MAX_STRANGERS
from hrm_agent.environment.base import Cell, Environment, SessionState, Submission
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.remote import client_channel as channel
from hrm_agent.environment.remote.address import kept_token_file, parse_address, token_for
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.server import Service
from hrm_agent.environment.remote.sockets import listen_tcp, listen_unix
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.testing import wait_until
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import IDLE, LONG, SLOTS, all_slots_free, gauge, until_gauge
from tests.support.environment.held import HOLD, let_go, until_held
from tests.support.environment.served import TOKEN, ServerProcess, served

pytestmark = pytest.mark.whole

HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


class Http:
    """A client that knows nothing of ours."""

    def __init__(self, url: str, local: LocalEnvironment, service: Service) -> None:
        self.url, self.local, self.service = url, local, service

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str | None
    ) -> tuple[int, Any]:
        given = {name: value for name, value in (HEADERS | headers).items() if value is not None}
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        async with (
            aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session,
            session.request(method, self.url + path, data=data, headers=given) as response,
        ):
            text = await response.text()
            return response.status, (
                json.loads(text) if text and response.content_type == "application/json" else text
            )


@pytest.fixture(scope="module")
def http_() -> Iterator[Http]:
    local, listener = LocalEnvironment(slots=SLOTS), listen_tcp("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with served(local, listener, hosts=("127.0.0.1",), slots=SLOTS) as service:
        yield Http(url, local, service)
    local.shutdown()


async def test_a_call(http_: Http) -> None:
    status, result = await http_.ask("POST", "/v1/run", {"code": "print(1)\n6 * 7"})
    assert (status, result["status"], result["stdout"], result["value"]) == (200, "ok", "1\n", "42")


async def test_a_batch_is_answered_line_by_line_as_its_calls_end(http_: Http) -> None:
    calls = [{"code": code, "limits": {"wall_seconds": 300.0}} for code in (f"{HOLD}0", "1", "2")]
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{http_.url}/v1/batch", json={"calls": calls}, headers=HEADERS) as response,
    ):
        lines = [json.loads(await response.content.readline()) for _ in range(2)]
        let_go(await until_held())
        lines += [json.loads(await response.content.readline())]
        assert (response.status, await response.content.readline()) == (200, b"")
    assert lines[-1]["index"] == 0
    assert {line["index"]: line["result"]["value"] for line in lines} == {0: "0", 1: "1", 2: "2"}


async def test_sessions_by_hand(http_: Http) -> None:
    name = "a b/c?é"
    await http_.ask("POST", "/v1/run", {"code": "x = 3", "session": name})
    assert (await http_.ask("POST", "/v1/sessions/fork", {"source": name, "target": "t"}))[0] == 200
    assert (await http_.ask("POST", "/v1/sessions/fork", {"source": "none", "target": "t"}))[
        0
    ] == 409
    assert (await http_.ask("DELETE", "/v1/sessions/a%20b%2Fc%3F%C3%A9"))[0] == 200
    after = (await http_.ask("POST", "/v1/run", {"code": "x", "session": name}))[1]
    copy = (await http_.ask("POST", "/v1/run", {"code": "x", "session": "t"}))[1]
    assert (after["session"], after["status"], copy["value"]) == ("new", "error", "3")


async def test_health_is_told_to_anybody_but_not_to_a_wrong_token(http_: Http) -> None:
    status, health = await http_.ask("GET", "/health", Authorization=None)
    assert (status, health["service"], health["isolation"]) == (
        200,
        "hrm-agent environment",
        http_.local.isolation,
    )
    assert health["slots"] == SLOTS
    assert (await http_.ask("GET", "/health", Authorization="Bearer wrong"))[0] == 401


@pytest.mark.parametrize(
    "token", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/run"),
        ("POST", "/v1/batch"),
        ("POST", "/v1/sessions/fork"),
        ("DELETE", "/v1/sessions/a"),
        ("GET", "/v1/stream"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
    ],
)
async def test_nothing_without_the_token(
    http_: Http, method: str, path: str, token: str | None
) -> None:
    status, answer = await http_.ask(
        method, path, {"code": "1"} if method == "POST" else None, Authorization=token
    )
    assert (status, TOKEN in str(answer)) == (401, False)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "attacker.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": None}, 415),
    ],
)
async def test_what_a_page_could_make_a_browser_send_is_refused(
    http_: Http, headers: dict[str, str | None], status: int
) -> None:
    assert (await http_.ask("POST", "/v1/run", {"code": "1"}, **headers))[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Origin": "http://attacker.example"}, 403),
        ({"Host": "attacker.example"}, 403),
    ],
)
@pytest.mark.parametrize("expected", ["100-continue", "<b>anything"])
@pytest.mark.parametrize("path", ["/v1/run", "/v1/nothing"])
async def test_an_expectation_is_not_answered_before_the_token_is_seen(
    http_: Http, path: str, expected: str, headers: dict[str, str | None], status: int
) -> None:
    address = http_.url.removeprefix("http://")
    given = {"Host": address, **HEADERS, **headers, "Expect": expected, "Content-Length": "0"}
    reader, writer = await asyncio.open_connection(*address.split(":"))
    lines = [
        f"POST {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in given.items() if value is not None),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
    writer.close()


async def test_strangers_do_not_keep_out_who_has_the_token(http_: Http) -> None:
    host, port = http_.url.removeprefix("http://").split(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(MAX_STRANGERS + 50)]
    for _, writer in held:
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # and no end of it
    assert (await http_.ask("POST", "/v1/run", {"code": "6 * 7"}))[1]["value"] == "42"
    reader, writer = held[-1]
    writer.write(b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    # to its end: it is not kept open
    assert (await reader.read()).lower().count(b"connection: close") == 1
    with suppress(ConnectionError):
        assert await held[0][0].read() == b""
    for _, writer in held:
        writer.close()


async def test_bytes_that_are_no_request_leave_no_traceback(
    http_: Http, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = http_.url.removeprefix("http://").split(":")
    for said in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
        b"POST /v1/run HTTP/9.9\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        writer.write_eof()
        await reader.read()
        writer.close()
    assert "Traceback" not in caplog.text
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_nothing_of_a_server_that_has_ended_is_kept() -> None:
    local, listener = LocalEnvironment(slots=1), listen_tcp("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with served(local, listener) as service:
        assert asyncio.run(Http(url, local, service).ask("GET", "/health"))[0] == 200
        kept = weakref.ref(service)
        del service
    local.shutdown()
    gc.collect()
    assert kept() is None


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"code": 1}, "code"),
        ({}, "code"),
        ([], "object"),
        ({"code": "1", "pickle": "x"}, "pickle"),
        ({"code": "1", "limits": {"wall_seconds": "5"}}, "limits.wall_seconds"),
        ({"code": "1", "limits": {"wall_seconds": True}}, "limits.wall_seconds"),
        ({"code": "1", "limits": {"memory_bytes": 1.5}}, "limits.memory_bytes"),
        ({"code": "1", "limits": {"memory_bytes": 10**400}}, "limits.memory_bytes"),
        ({"code": "1", "limits": {"seconds": 1}}, "limits.seconds: no such field"),
        ({"codde": "1"}, "codde: no such field"),
        ({"code": "1", "history": [{"code": "1"}, {"cod\ud800": "1"}]}, "history[1].cod"),
        ({f"k{i}": i for i in range(100_000)}, "k0: no such field"),
        ({"code": "1", "limits": [1]}, "limits"),
        ({"code": "1", "history": [{"code": "1", "digest": 5}]}, "history[0].digest"),
        ({"code": "1", "history": {}}, "history"),
        ({"code": "1", "id": 5}, "id"),
        ({"code": "1", "priority": "high"}, "priority"),
        (b'{"code": "1", "deadline_seconds": NaN}', "NaN"),
        (b'{"code": "1", "deadline_seconds": 1e999}', "deadline_seconds"),
        (b'{"code": "1", "priority": ' + b"9" * 5000 + b"}", "JSON"),
        (b"{", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"", "JSON"),
        (DEEP, "JSON"),
        (b"\x80\x04\x95.", "JSON"),
    ],
)
async def test_what_is_malformed_is_refused_by_name(http_: Http, body: Any, named: str) -> None:
    status, answer = await http_.ask("POST", "/v1/run", body)
    assert (status, answer.keys()) == (400, {"error", "hint"})
    assert named in answer["error"] and "Traceback" not in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/run", 404),
        ("HEAD", "/metrics", 404),
        ("GET", "/v1/sessions/fork", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/run/", 404),
        ("POST", "/health", 200),
        ("DELETE", "/v1/sessions/", 200),
        ("DELETE", "/v1/sessions/a%0Ab%25", 200),
    ],
)
async def test_paths_and_methods(http_: Http, method: str, path: str, status: int) -> None:
    found, answer = await http_.ask(method, path)
    assert found == status
    assert (
        method == "HEAD"
        or status == 200
        or answer == {"error": f"There is no {method} {path}.", "hint": ""}
    )


async def test_a_batch_names_the_call(http_: Http) -> None:
    status, answer = await http_.ask("POST", "/v1/batch", {"calls": [{"code": "1"}, {"code": 2}]})
    assert status == 400 and "calls[1].code" in answer["error"]


async def test_a_large_request_is_refused_unread(http_: Http) -> None:
    assert (await http_.ask("POST", "/v1/run", {"code": "#" * 3_000_000}))[0] == 413
    assert (await http_.ask("POST", "/v1/run", {"code": "1"}))[0] == 200


@pytest.mark.parametrize(
    "frame",
    [
        "{",
        "{}",
        '[{"run": {}}]',
        '[{"key": "1"}]',
        '[{"key": true}]',
        '[{"key": 1, "what": 2}]',
        '[{"key": 1, "cancel": 1}]',
        '[{"key": 1, "metrics": false}]',
        '[{"key": 1, "fork": {"source": "a"}}]',
        "x" * 3_000_000,
    ],
)
async def test_a_stream_of_nonsense_is_closed(http_: Http, frame: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{http_.url}/v1/stream", headers=HEADERS) as socket,
    ):
        await socket.receive_json()
        with suppress(ConnectionError):  # what is too large is not read to its end
            await socket.send_str(frame)
        assert (await socket.receive(timeout=60)).type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
        )


async def test_a_caller_that_goes_away_frees_its_slots(http_: Http) -> None:
    url = parse_address(http_.url)
    bodies = [json.dumps({"code": IDLE, "limits": {"wall_seconds": 300}}) for _ in range(SLOTS)]
    sockets: list[socket.socket] = []
    for path, body in (
        ("/v1/run", bodies[0]),
        ("/v1/batch", json.dumps({"calls": [json.loads(bodies[1])]})),
    ):
        sockets.append(socket.create_connection((url.host, url.port)))
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        request = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length:"
            f" {len(body)}\r\n\r\n{body}"
        )
        sockets[-1].sendall(request.encode())

    await until_gauge(http_.local, "running", SLOTS)
    for each in sockets:
        each.close()
    await all_slots_free(http_.local)


def test_a_loop_that_ends_leaves_nothing_behind(http_: Http) -> None:
    """Neither a connection nor a call, though nobody closed the environment."""
    remote = RemoteEnvironment(http_.url, token=TOKEN)

    async def leave_one_running() -> None:
        call = asyncio.create_task(remote.execute(IDLE, limits=LONG))
        assert (await remote.execute("1")).value == "1"
        assert not call.done()

    asyncio.run(leave_one_running())
    asyncio.run(all_slots_free(http_.local))

    async def nobody_connected() -> bool:
        return not http_.service._streams

    asyncio.run(wait_until(nobody_connected))


async def test_what_is_not_what_it_should_be(
    http_: Http, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    free = listen_tcp("127.0.0.1", 0)
    port = free.getsockname()[1]
    free.close()
    for url in (f"http://127.0.0.1:{port}", f"unix:{tmp_path / 'nothing'}"):
        with pytest.raises(HrmError, match="Nothing listens") as nobody:
            RemoteEnvironment(url, token=TOKEN)
        assert "serve" in nobody.value.hint and TOKEN not in str(nobody.value)
    with pytest.raises(HrmError, match="refuses the token") as wrong:
        RemoteEnvironment(http_.url, token="not this one")
    assert "not this one" not in str(wrong.value)
    with pytest.raises(HrmError, match="no token"):
        RemoteEnvironment(http_.url)
    kept_token_file().parent.mkdir()
    kept_token_file().write_text(TOKEN + "\n")
    assert RemoteEnvironment(http_.url).isolation == http_.local.isolation
    with pytest.raises(HrmError, match="no token"):  # another machine is not told this one's
        token_for(parse_address("http://192.0.2.1:8742"), None)
    with pytest.raises(HrmError, match="less than the required L3"):
        RemoteEnvironment(http_.url, token=TOKEN, least=_above(http_.local.isolation))
    assert TOKEN not in repr(RemoteEnvironment(http_.url, token=TOKEN))


def _above(level: str) -> Isolation:
    above = [each for each in Isolation if each.value > level]
    if not above:
        pytest.fail("nothing is above L3: this test needs a server that gives less")
    return above[0]


async def test_another_server_is_not_taken_for_ours() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.raises(HrmError, match="is not an hrm-agent environment"):
        RemoteEnvironment(f"http://127.0.0.1:{server.server_port}", token=TOKEN)
    server.shutdown()


@pytest.mark.parametrize(
    "url",
    ["http://u:secret@h:1", "ftp://h", "h:1", "http://", "unix:", "http://h:x", "http://h/?t=1"],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_address(url)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_network_is_only_listened_to_when_asked(host: str) -> None:
    with pytest.raises(ConfigError, match="allow-remote"):
        listen_tcp(host, 0)
    listen_tcp(host, 0, allow_remote=True).close()


def test_a_socket_file_is_its_owners_and_a_dead_ones_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    first = listen_unix(path)
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    first.listen()
    with pytest.raises(ConfigError, match="listens at"):
        listen_unix(path)
    first.close()
    listen_unix(path).close()
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match="is not a socket"):
        listen_unix(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    server.start()
    yield server
    server.kill()


async def test_a_server_that_was_killed_and_started_anew(process: ServerProcess) -> None:
    """Calls under way run again, a session is rebuilt from what the client remembers, what is not
    known is not run.
    """
    remote = RemoteEnvironment(process.url, token=TOKEN)
    stranger = RemoteEnvironment(process.url, token=TOKEN)
    await remote.execute("x = [1]", session="mine")
    await remote.execute("x.append(2)", session="mine")
    await remote.execute("y = 1", session="origin")
    await remote.execute("z = 1", session="shared")
    await stranger.execute("z += 1", session="shared")
    cell = asyncio.create_task(remote.execute(f"{HOLD}x.append(3)\nx", session="mine", limits=LONG))
    alone = asyncio.create_task(remote.execute(f"{HOLD}7", limits=LONG))
    await until_held(2, below=process.pid)
    await asyncio.to_thread(process.restart)
    let_go(await until_held(2, below=process.pid))
    assert ((await alone).value, (await alone).attempt) == ("7", 2)
    assert ((await cell).value, (await cell).session) == ("[1, 2, 3]", SessionState.REPLAYED)
    assert (await remote.execute("x", session="mine")).session is SessionState.KEPT
    unknown = await stranger.execute("z", session="shared")
    assert (unknown.status, unknown.value) == (ToolStatus.INFRASTRUCTURE, None)
    assert "not all known" in unknown.stderr
    given = await stranger.run(Submission("z", session="shared", history=(Cell("z = 5"),)))
    assert (given.value, given.session) == ("5", SessionState.REPLAYED)
    await remote.fork_session("origin", "copy")
    assert (await remote.execute("y", session="copy")).value == "1"
    await remote.close()
    await stranger.close()


async def test_cells_that_were_under_way_together_are_not_run_again(process: ServerProcess) -> None:
    remote = RemoteEnvironment(process.url, token=TOKEN)
    await remote.execute("x = 0", session="s")
    code = f"{HOLD}x += 1\nx"
    cells = [asyncio.create_task(remote.execute(code, session="s", limits=LONG)) for _ in range(2)]
    await until_held(below=process.pid)
    await until_gauge(remote, "waiting", 1)
    await asyncio.to_thread(process.restart)
    assert {(await cell).status for cell in cells} == {ToolStatus.INFRASTRUCTURE}
    after = await remote.execute("x", session="s")
    assert (after.value, after.session) == ("0", SessionState.REPLAYED)
    await remote.close()


async def test_a_server_that_stays_away_is_waited_for_only_so_long(process: ServerProcess) -> None:
    remote = RemoteEnvironment(process.url, token=TOKEN, patience_seconds=0.5)
    call = asyncio.create_task(remote.execute(IDLE, limits=LONG))
    await until_gauge(remote, "running", 1)
    process.kill()
    began = time.monotonic()
    lost = await call
    assert (lost.status, "is away" in lost.stderr) == (ToolStatus.INFRASTRUCTURE, True)
    assert time.monotonic() - began >= 0.5
    assert "is away" in (await remote.execute("1")).stderr
    with pytest.raises(HrmError, match="is away") as away:
        await remote.metrics()
    assert TOKEN not in str(away.value)
    await remote.close()


async def test_a_server_that_is_silent_is_taken_for_dead(
    process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteEnvironment(process.url, token=TOKEN, patience_seconds=0.5)
    monkeypatch.setattr(channel, "_PING_SECONDS", 0.1)
    monkeypatch.setattr(channel, "_HELLO_SECONDS", 1.0)
    assert (await remote.execute("1")).value == "1"
    process.signal(signal.SIGSTOP)
    lost = await remote.execute("1")
    assert (lost.status, "is away" in lost.stderr) == (ToolStatus.INFRASTRUCTURE, True)
    monkeypatch.undo()
    remote._peer.patience_seconds = 60.0  # pyright: ignore[reportPrivateUsage] - it comes back at its own speed
    process.signal(signal.SIGCONT)
    assert (await remote.execute("2")).value == "2"
    await remote.close()


async def test_going_down_finishes_what_runs_and_takes_nothing_new(process: ServerProcess) -> None:
    remote = RemoteEnvironment(process.url, token=TOKEN)
    running = asyncio.create_task(remote.execute(f"{HOLD}'finished'", limits=LONG))
    holds = await until_held(below=process.pid)
    process.signal(signal.SIGTERM)
    await wait_until(lambda: _is_away(process))
    late = asyncio.create_task(remote.execute("'on the next one'"))
    (ours,) = remote._channels.values()  # pyright: ignore[reportPrivateUsage]

    async def sent_away() -> bool:
        return ours._connecting is not None  # pyright: ignore[reportPrivateUsage]

    await wait_until(sent_away)
    let_go(holds)
    first = await running
    assert (first.value, first.attempt) == ("'finished'", 1)
    assert await asyncio.to_thread(process.wait) == 0
    assert not late.done()
    await asyncio.to_thread(process.start)
    assert ((await late).value, (await late).attempt) == ("'on the next one'", 1)
    await remote.close()


async def _is_away(process: ServerProcess) -> bool:
    """True if nothing listens at the process's address any more."""
    try:
        _, writer = await asyncio.open_unix_connection(process.url.removeprefix("unix:"))
    except OSError:
        return True
    writer.close()
    return False


async def test_going_down_does_not_wait_for_ever(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "--drain-seconds", "0.5")
    process.start()
    remote = RemoteEnvironment(process.url, token=TOKEN, patience_seconds=0.5)
    running = asyncio.create_task(remote.execute(IDLE, limits=LONG))
    await until_gauge(remote, "running", 1)
    process.signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait) == 0  # the call would have gone on
    assert (await running).status is ToolStatus.INFRASTRUCTURE
    await remote.close()


class Breaking:
    """A way to a server that can be cut."""

    def __init__(self, port: int, cut_handshakes: int = 0) -> None:
        """`cut_handshakes`: so many streams end before the server has said what it is."""
        self.port, self.cut_handshakes, self._writers = (
            port,
            cut_handshakes,
            list[asyncio.StreamWriter](),
        )

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers += [writer, back]
        await asyncio.gather(
            self._copy(reader, back), self._copy(there, writer), return_exceptions=True
        )

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            head, end, _ = data.partition(b"\r\n\r\n")
            if self.cut_handshakes and head.startswith(b"HTTP/1.1 101"):
                self.cut_handshakes -= 1
                writer.write(head + end)
                break
            writer.write(data)
        writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self.cut()
        self._server.close()


async def test_a_connection_that_breaks_costs_no_call_and_no_session(http_: Http) -> None:
    way = Breaking(parse_address(http_.url).port)
    url = await way.open()
    remote: Environment = await asyncio.to_thread(RemoteEnvironment, url, token=TOKEN)
    await remote.execute("x = [1]", session="cut")
    cell = asyncio.create_task(remote.execute(f"{HOLD}x.append(2)\nx", session="cut", limits=LONG))
    alone = asyncio.create_task(remote.execute(f"{HOLD}7", limits=LONG))
    broken = await until_held(2)
    way.cut()
    # a caller that goes ends its calls; they were asked for again
    let_go(await until_held(2, known=broken))
    assert ((await cell).value, (await alone).value) == ("[1, 2]", "7")
    for _ in range(3):  # while nothing is under way
        way.cut()
        assert (await remote.execute("len(x)", session="cut")).value == "2"
    await remote.close()
    await way.close()


async def test_a_connection_that_breaks_before_the_server_says_what_it_is(http_: Http) -> None:
    way = Breaking(parse_address(http_.url).port, cut_handshakes=2)
    remote = await asyncio.to_thread(RemoteEnvironment, await way.open(), token=TOKEN)
    assert (await remote.execute("1")).value == "1"
    assert way.cut_handshakes == 0
    await remote.close()
    await way.close()


async def test_a_call_that_breaks_every_connection_is_given_up(http_: Http) -> None:
    way = Breaking(parse_address(http_.url).port)
    remote = await asyncio.to_thread(RemoteEnvironment, await way.open(), token=TOKEN)
    call = asyncio.create_task(remote.execute(IDLE, limits=LONG))
    while not call.done():
        await asyncio.sleep(0.02)
        if await gauge(http_.local, "running"):
            way.cut()
    result = await call
    assert (result.status, result.attempt) == (ToolStatus.INFRASTRUCTURE, channel.MAX_ATTEMPTS)
    await remote.close()
    await way.close()
    await all_slots_free(http_.local)


def test_what_stays_out_of_memory() -> None:
    """The extra is needed by those who serve or are served, and by nobody else."""
    program = (
        "import sys, hrm_agent.environment, hrm_agent.cli.services.environment; print('aiohttp' in"
        " sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
