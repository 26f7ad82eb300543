"""One client of a server takes nothing from the others: too many calls, unread answers, endless
deadlines.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hrm_agent.environment.base import Limits, Submission
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.remote import clients, exchange, server
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.clients import Client, Clients, add_client, read_clients
from hrm_agent.environment.remote.exchange import Exchange
from hrm_agent.environment.remote.messages import MAX_CALLS
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.environment.scheduler.sessions import ScheduledCall
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.errors import HrmError
from hrm_agent.testing import wait_until
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import LONG, all_slots_free, gauge, until_gauge
from tests.support.environment.held import HOLD, let_go, until_held
from tests.support.environment.served import served

pytestmark = pytest.mark.whole

LINE = 60_000
"""Characters that a call of these tests prints."""


class Server:
    """Server with three clients: `greedy` with a quota of one call, `free` without a quota, and
    `other`, which is to notice nothing.
    """

    def __init__(
        self,
        local: LocalEnvironment,
        url: str,
        tokens: dict[str, str],
        known: Clients | None = None,
    ) -> None:
        self.local, self.url, self.tokens, self._known = local, url, tokens, known

    def holder(self, name: str) -> Client:
        """The client as the server knows it."""
        assert self._known is not None
        client = self._known.find(self.tokens[name].encode())
        assert client is not None
        return client

    def headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[name]}"}

    async def client(self, name: str) -> RemoteEnvironment:
        return await asyncio.to_thread(RemoteEnvironment, self.url, token=self.tokens[name])

    async def ask(self, path: str, body: Any, name: str = "greedy") -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}{path}", json=body, headers=self.headers(name)) as response,
        ):
            return response.status, await response.json()

    async def health(self) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/health") as response,
        ):
            return response.status, await response.json()

    async def others_are_served(self) -> None:
        other = await self.client("other")
        assert (await other.execute("6 * 7", limits=LONG)).value == "42"
        await other.close()


@pytest.fixture(scope="module")
def served_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file: Path = tmp_path_factory.mktemp("clients") / "clients"
    tokens = {
        name: add_client(file, name, calls)
        for name, calls in (("greedy", 1), ("free", None), ("other", None))
    }
    local, listener = LocalEnvironment(slots=2), listen_tcp("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    # what the kernel keeps is not counted
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
    known = read_clients(file)
    with served(local, listener, known):
        yield Server(local, url, tokens, known)
    local.shutdown()


@pytest.mark.parametrize("seconds", [1e12, 604_801, 604_800.001, -1, 2**59])
async def test_a_deadline_beyond_its_bound_costs_nobody_else_theirs(
    served_: Server, seconds: float
) -> None:
    greedy = await served_.client("greedy")
    holding = asyncio.create_task(greedy.execute(f"{HOLD}1", limits=LONG))  # all of its quota
    held = await until_held()
    call = {"code": "1", "deadline_seconds": seconds}
    behind = asyncio.create_task(served_.ask("/v1/run", call))
    for status, answer in (
        await served_.ask("/v1/run", call, "free"),
        let_go(held) or await behind,
    ):
        assert (status, answer["status"], "604,800" in answer["stderr"]) == (
            200,
            "invalid_call",
            True,
        )
    await holding
    await greedy.close()
    other = await served_.client("other")
    holding = [asyncio.create_task(other.execute(f"{HOLD}1", limits=LONG)) for _ in range(2)]
    held = await until_held(2)
    late = await other.run(Submission("1", deadline_seconds=0.01))
    assert (late.status, "deadline of 0.01 s" in late.stderr) == (ToolStatus.INFRASTRUCTURE, True)
    let_go(held)
    assert [(await call).value for call in holding] == ["1", "1"]
    await other.close()


@pytest.mark.parametrize("seconds", ["1e309", "-1e400", "9" * 400, "NaN", "Infinity", "1e300"])
async def test_a_deadline_that_is_no_number_is_refused_by_name(
    served_: Server, seconds: str
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{served_.url}/v1/run",
            data=f'{{"code": "1", "deadline_seconds": {seconds}}}'.encode(),
            headers=served_.headers("free") | {"Content-Type": "application/json"},
        ) as response,
    ):
        assert response.status == 400
        error = (await response.json())["error"]
    assert "deadline_seconds" in error or "JSON" in error
    await served_.others_are_served()


async def test_a_batch_of_too_many_calls_is_refused_before_any_begins(served_: Server) -> None:
    before = await gauge(served_.local, 'calls_total{status="ok"}')
    status, answer = await served_.ask("/v1/batch", {"calls": [{"code": "1"}] * 100_000})
    assert (status, "calls: more than 10000 items" in answer["error"]) == (400, True)
    assert await gauge(served_.local, 'calls_total{status="ok"}') == before
    await served_.others_are_served()


def exchanges(client: Client) -> list[Exchange]:
    return [found for found in list(client.exchanges) if isinstance(found, Exchange)]


async def test_calls_that_cannot_begin_are_held_as_small_objects(served_: Server) -> None:
    """Other clients are served while thousands of calls are taken in."""
    greedy = await served_.client("greedy")
    holding = asyncio.create_task(greedy.execute(f"{HOLD}1", limits=LONG))
    held = await until_held()
    client = served_.holder("greedy")
    body = {"calls": [{"code": "1"}] * MAX_CALLS}
    batch = asyncio.create_task(served_.ask("/v1/batch", body))
    (taken,) = await wait_until(
        lambda: [each for each in exchanges(client) if len(each._held) > 7000]
    )
    assert taken.under_way * LONG.output_bytes <= exchange.MOST_KEPT
    await served_.others_are_served()
    batch.cancel()
    with suppress(asyncio.CancelledError):
        await batch
    await wait_until(lambda: taken not in client.exchanges)
    let_go(held)
    assert (await holding).value == "1"
    assert (await greedy.execute("2")).value == "2"
    await greedy.close()
    await all_slots_free(served_.local)


async def test_a_stream_takes_in_so_many_calls_and_no_more_before_some_have_ended(
    served_: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_HELD", 20)
    monkeypatch.setattr(exchange, "MOST_KEPT", 500_000)
    client = served_.holder("greedy")
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{served_.url}/v1/stream", headers=served_.headers("greedy")) as stream,
    ):
        await stream.receive_json()
        await stream.send_json([{"key": 0, "run": {"code": HOLD}}])
        held = await until_held()
        await stream.send_json([{"key": key, "run": {"code": f"{key}"}} for key in range(1, 101)])
        await stream.send_json([{"key": 101, "run": {"code": "101"}}])
        (taken,) = await wait_until(
            lambda: [each for each in exchanges(client) if not each.room.is_set()]
        )
        assert (len(taken._held) < 100, taken.under_way < 20) == (True, True)
        await served_.others_are_served()
        let_go(held)
        values = dict[int, str]()
        while len(values) < 102:
            values |= {
                each["key"]: each["result"].get("value")
                for each in await stream.receive_json(timeout=60)
            }
    assert all(values[key] == f"{key}" for key in range(1, 102))


async def test_held_calls_may_be_cancelled_and_have_their_deadlines(
    served_: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_KEPT", 1)  # one at a time
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{served_.url}/v1/stream", headers=served_.headers("free")) as stream,
    ):
        await stream.receive_json()
        calls = [f"{HOLD}'held'", "'cancelled'", "'late'", "'last'", "'refused'"]
        messages: list[dict[str, Any]] = [
            {"key": key, "run": {"code": code}} for key, code in enumerate(calls)
        ]
        messages[2]["run"]["deadline_seconds"] = 0.05
        messages[4]["run"]["deadline_seconds"] = 604_800.001
        await stream.send_json(messages)
        held = await until_held()
        await stream.send_json([{"key": 1, "cancel": True}])
        (late,) = await stream.receive_json(timeout=60)
        assert (late["key"], late["result"]["status"]) == (2, "infrastructure")
        assert "deadline of 0.05 s" in late["result"]["stderr"]
        let_go(held)
        ended = [(await stream.receive_json(timeout=60))[0] for _ in range(3)]
    assert ended.pop()["result"]["status"] == "invalid_call"
    assert [(each["key"], each["result"].get("value")) for each in ended] == [
        (0, "'held'"),
        (3, "'last'"),
    ]
    assert ended[1]["result"]["queued_seconds"] >= 0.05


PRINTING = {"code": f"print('x' * {LINE})", "limits": {"output_bytes": LINE}}


def idle() -> aiohttp.ClientSession:
    """Session of a client that reads only on request. Until then its library leaves incoming bytes
    in the kernel, whose buffer is small.
    """

    def small(address: Any) -> socket.socket:
        made = socket.socket(*address[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        return made

    connector = aiohttp.TCPConnector(socket_factory=small)
    return aiohttp.ClientSession(connector=connector, read_bufsize=LINE)


class Reader:
    """A client of many calls that print."""

    def __init__(self, session: aiohttp.ClientSession, served_: Server, calls: int) -> None:
        self.session, self.calls = session, calls
        self.url, self.headers = f"{served_.url}/v1/", served_.headers("free")

    async def stream(self) -> AsyncIterator[list[Any]]:
        async with self.session.ws_connect(
            f"{self.url}stream", headers=self.headers, max_msg_size=0
        ) as stream:
            await stream.receive_json()
            await stream.send_json([{"key": key, "run": PRINTING} for key in range(self.calls)])
            yield []
            while True:
                yield await stream.receive_json(timeout=60)

    async def batch(self) -> AsyncIterator[list[Any]]:
        body = {"calls": [PRINTING] * self.calls}
        async with self.session.post(
            f"{self.url}batch", json=body, headers=self.headers
        ) as response:
            yield []
            while True:
                yield [json.loads(await response.content.readline())]


@pytest.mark.parametrize("way", ["stream", "batch"])
async def test_what_a_client_does_not_read_is_bounded_whole(
    served_: Server, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Over all its results; its further calls wait, and are run when it reads."""
    most, calls, client = 10 * LINE, 40, served_.holder("free")
    monkeypatch.setattr(exchange, "MOST_KEPT", most)

    def is_full() -> list[Exchange]:
        return [
            each for each in exchanges(client) if each._held and not each.under_way and each.unread
        ]

    async with idle() as session:
        answers = getattr(Reader(session, served_, calls), way)()
        assert await anext(answers) == []
        (full,) = await wait_until(is_full)
        assert most / 2 < full.unread <= most + 2 * LINE
        await served_.others_are_served()
        got = dict[int, int]()
        while len(got) < calls:
            for line in await anext(answers):
                got[line.get("key", line.get("index"))] = line["result"]["stdout_bytes"]
        await answers.aclose()
    assert got == dict.fromkeys(range(calls), LINE + 1)
    await wait_until(lambda: client.unread == 0)


async def test_of_a_clients_connections_the_one_that_keeps_most_unread_is_ended(
    served_: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_KEPT", 15 * LINE)
    monkeypatch.setattr(clients, "MOST_UNREAD", 22 * LINE)
    client = served_.holder("free")
    async with idle() as session:
        streams = list[aiohttp.ClientWebSocketResponse]()
        for number in range(3):
            stream = await session.ws_connect(
                f"{served_.url}/v1/stream", headers=served_.headers("free"), max_msg_size=0
            )
            await stream.receive_json()
            streams.append(stream)
            if number < 2:
                await stream.send_json([{"key": key, "run": PRINTING} for key in range(40)])
        await wait_until(lambda: len(client.exchanges) < 3)
        assert client.unread <= 22 * LINE
        await streams[2].send_json([{"key": 1, "run": {"code": "6 * 7"}}])
        assert (await streams[2].receive_json(timeout=60))[0]["result"]["value"] == "42"
    await wait_until(lambda: client.unread == 0 and not client.exchanges)
    await all_slots_free(served_.local)


async def test_a_clients_priority_puts_no_other_client_last(served_: Server) -> None:
    free, other = await served_.client("free"), await served_.client("other")
    begun = list[tuple[int, str]]()  # by the sandbox's clock: answers may arrive in another order
    holding = [asyncio.create_task(free.execute(f"{HOLD}1", limits=LONG)) for _ in range(2)]
    held = await until_held(2)

    async def call(who: RemoteEnvironment, name: str, priority: int) -> None:
        clock = Submission("import time\ntime.monotonic_ns()", priority=priority, limits=LONG)
        begun.append((int((await who.run(clock)).value or ""), name))

    calls = [asyncio.create_task(call(free, "free", 100)) for _ in range(30)]
    await until_gauge(served_.local, "waiting", 30)
    calls.append(asyncio.create_task(call(other, "other", 0)))
    await until_gauge(served_.local, "waiting", 31)
    let_go(held)
    await asyncio.gather(*calls, *holding)
    assert [name for _, name in sorted(begun)].index("other") < 8
    await asyncio.gather(free.close(), other.close())


def deadlines(local: LocalEnvironment, go_on: threading.Event) -> AbstractContextManager[object]:
    watched = local._scheduler._deadlines
    watched._passed = lambda call: go_on.wait(60)  # type: ignore[assignment]
    watched.add(time.monotonic(), ScheduledCall(Submission("1"), 0, 0.0))
    return nullcontext()


def slots(local: LocalEnvironment, go_on: threading.Event) -> AbstractContextManager[object]:
    local._workers.start(Work("1", Limits(), lambda result, lost: bool(go_on.wait(60)) and None))
    return nullcontext()


def lock(local: LocalEnvironment, go_on: threading.Event) -> AbstractContextManager[object]:
    del go_on
    return local._scheduler._guard._condition


@pytest.mark.parametrize(
    ("stuck", "why"),
    [
        (deadlines, "the thread of the deadlines"),
        (slots, "the thread that serves the slots"),
        (lock, "the queue's lock"),
    ],
)
async def test_health_asks_the_loops(
    stuck: Callable[[LocalEnvironment, threading.Event], AbstractContextManager[object]],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_HEALTH_SECONDS", 0.3)
    monkeypatch.setattr(server, "_HEALTH_KEPT_SECONDS", 0.0)
    local, listener, go_on = (
        LocalEnvironment(slots=1),
        listen_tcp("127.0.0.1", 0),
        threading.Event(),
    )
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with served(local, listener):
        found = Server(local, url, {})
        assert (await found.health())[0] == 200
        with stuck(local, go_on):

            async def is_told() -> bool:
                status, answer = await found.health()
                return status == 503 and why in answer["error"]

            await wait_until(is_told)
            with pytest.raises(HrmError, match="does not serve"):
                await asyncio.to_thread(RemoteEnvironment, url, token="a token for tests")
        go_on.set()

        async def is_well() -> bool:
            return (await found.health())[0] == 200

        await wait_until(is_well)
    local.shutdown()
