"""One connection: the room reserved for its calls, the requests that do not wait, and nothing left
at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.remote import clients, exchange, server_stream
from hrm_agent.environment.remote.calls import Calls
from hrm_agent.environment.remote.clients import Client
from hrm_agent.environment.remote.exchange import Exchange
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.testing import wait_until
from tests.support.environment.held import HOLD, let_go, until_held
from tests.support.environment.served import TOKEN, served

pytestmark = pytest.mark.whole

HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Any]]:
    """URL of a server's stream, and its service."""
    local, listener = LocalEnvironment(slots=1), listen_tcp("127.0.0.1", 0)
    with served(local, listener, hosts=("127.0.0.1",)) as service:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/stream", service
    local.shutdown()


async def test_a_client_that_is_not_listened_to_hears_of_the_server(
    server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings prevent the client from taking the connection for dead and sending its calls again."""
    monkeypatch.setattr(exchange, "MOST_HELD", 1)
    monkeypatch.setattr(exchange, "MOST_KEPT", 1)  # one call at a time
    monkeypatch.setattr(server_stream, "_SIGN_SECONDS", 0.05)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(server[0], headers=HEADERS, autoping=False) as stream,
    ):
        await stream.receive_json()
        await stream.send_json([{"key": 1, "run": {"code": HOLD}}])
        held = await until_held()
        for key in (2, 3):
            await stream.send_json([{"key": key, "run": {"code": "1"}}])
        for _ in range(3):
            assert (await stream.receive(timeout=60)).type is aiohttp.WSMsgType.PING
        let_go(held)
        keys = list[int]()
        while len(keys) < 3:
            message = await stream.receive(timeout=60)
            keys += (
                [each["key"] for each in message.json()]
                if message.type is aiohttp.WSMsgType.TEXT
                else []
            )
    assert keys == [1, 2, 3]


async def test_calls_that_might_print_much_and_what_is_no_call_go_past_one_another(
    server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"output_bytes": 8 * 1024 * 1024}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(server[0], headers=HEADERS) as stream,
    ):
        await stream.receive_json()
        await stream.send_json([{"key": 1, "run": {"code": HOLD, "limits": large}}])
        held = await until_held()
        await stream.send_json(
            [{"key": key, "run": {"code": "1", "limits": large}} for key in range(2, 21)]
        )
        await wait_until(
            lambda: [each for each in server[1]._streams if each._exchange.under_way == 20]
        )
        monkeypatch.setattr(exchange, "MOST_KEPT", 1)
        await stream.send_json([{"key": 21, "run": {"code": "1"}}, {"key": 22, "metrics": True}])
        (first,) = await stream.receive_json(timeout=60)
        assert (first["key"], "text" in first) == (22, True)
        let_go(held)
        keys = list[int]()
        while len(keys) < 21:
            keys += [each["key"] for each in await stream.receive_json(timeout=60)]
    assert sorted(keys) == list(range(1, 22))


async def test_an_answer_that_is_ready_when_its_connection_ends_counts_for_nothing() -> None:
    environment = LocalEnvironment(slots=1)
    client = Client()
    taken = Exchange(Calls(environment), client, lambda key, answer: f"{key}{answer}")

    async def work() -> dict[str, Any]:
        return {"done": True}

    taken.take_work(1, work)
    await asyncio.sleep(0)  # it has ended; the exchange is told in the loop's next turn
    assert taken.under_way == 1
    taken.close()
    await wait_until(lambda: taken.under_way == 0)
    assert (client.unread, taken.unread, taken.next()) == (0, 0, "")
    client.kept(clients.MOST_UNREAD + 1)  # whoever had them has gone
    await environment.close()
