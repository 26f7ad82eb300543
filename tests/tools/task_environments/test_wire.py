"""Recorded messages of OpenEnv's real servers (openenv-core 0.3.0, openenv 0.10.0), as
`benchmarks.others_environments --exchanges` writes them: an environment of `openenv init`, and one
with MCP tools.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hrm_agent.tools.task_environments.source import parse_source
from hrm_agent.tools.task_environments.wire import (
    ActRefusedError,
    EnvironmentFault,
    Observed,
    WireSession,
)

RECORDED = json.loads((Path(__file__).parent / "openenv_exchanges.json").read_text("utf-8"))
BY_SERVER: dict[str, dict[str, str]] = {
    each["server"]: {
        sent if sent == "schema" else json.dumps(json.loads(sent), sort_keys=True): answer
        for sent, answer in each["exchanges"]
    }
    for each in RECORDED
}


async def played(server: str, query: str, *actions: Mapping[str, Any]) -> list[Observed]:
    """Responses to a reset and actions, on a server that answers with the recorded texts."""
    texts = BY_SERVER[server]

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(texts[json.dumps(json.loads(message.data), sort_keys=True)])
        return socket

    async def schema(request: web.Request) -> web.Response:
        return web.Response(text=texts["schema"], content_type="application/json")

    app = web.Application()
    app.router.add_get("/ws", session)
    app.router.add_get("/schema", schema)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    wire = WireSession(parse_source(f"openenv:{url}{query}"), url)
    try:
        return [await wire.reset({"seed": 1}), *[await wire.act(each) for each in actions]]
    finally:
        await wire.close()
        await runner.cleanup()


@pytest.mark.parametrize("version", ["openenv-core 0.3.0", "openenv 0.10.0"])
async def test_an_action_with_fields_is_a_tool(version: str) -> None:
    server = f"{version}, echo_env"
    said = {"name": "step", "arguments": {"message": "hello"}, "id": "1"}
    begun, seen = await played(server, "", said)
    (tool,) = begun.tools
    assert tool["function"]["name"] == "step"
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "message": {
                "description": "Message to echo back",
                "title": "Message",
                "type": "string",
            }
        },
        "required": ["message"],
    }
    assert (begun.reward, begun.done, seen.reward, seen.done) == (0.0, False, 0.5, False)
    (message,) = seen.messages
    assert (message["role"], message["tool_call_id"]) == ("tool", "1")
    assert json.loads(message["content"])["echoed_message"] == "hello"
    with pytest.raises(ActRefusedError, match="message: Input should be a valid string"):
        await played(server, "", {**said, "arguments": {"message": 1}})
    _, seen = await played(server, "?reply=message", {"reply": "hello"})
    assert (seen.messages[0]["role"], seen.reward) == ("user", 0.5)


@pytest.mark.parametrize("version", ["openenv-core 0.3.0", "openenv 0.10.0"])
async def test_tools_of_mcp_are_listed_and_called(version: str) -> None:
    guess = {"name": "guess", "arguments": {"number": 50}, "id": "1"}
    fail = {"name": "fail", "arguments": {}, "id": "2"}
    begun, lower, failed = await played(f"{version}, mcp_env", "", guess, fail)
    assert [tool["function"]["name"] for tool in begun.tools] == ["guess", "fail"]
    assert begun.tools[0]["function"]["parameters"]["required"] == ["number"]
    assert (lower.messages[0]["content"], lower.failed, lower.reward) == ("lower", False, 0.0)
    assert failed.failed and "no such luck" in failed.messages[0]["content"]


STEP = {"name": "step", "arguments": {"number": 1}, "id": "1"}
BEGUN = {"observation": {"text": "go"}, "reward": None, "done": False}


@asynccontextmanager
async def hostile(
    act: Any, schema: str = '{"action": {"title": "A", "properties": {}}}'
) -> AsyncGenerator[WireSession]:
    """Session with a server that answers each act by `act(socket)`, and sends the schema in two
    pieces.
    """

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if json.loads(message.data)["type"] == "reset":
                await socket.send_json({"type": "observation", "data": BEGUN})
            else:
                await act(socket)
        return socket

    async def pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(schema[:9].encode())
        await asyncio.sleep(0.02)
        await response.write(schema[9:].encode())
        return response

    app = web.Application()
    app.router.add_get("/ws", session)
    app.router.add_get("/schema", pieces)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    wire = WireSession(parse_source(f"openenv:{url}?seconds=0.5"), url)
    try:
        yield wire
    finally:
        await wire.close()
        await runner.cleanup()


async def test_pings_do_not_prolong_the_time_limit() -> None:
    async def ping(socket: web.WebSocketResponse) -> None:
        for _ in range(200):
            await socket.ping()
            await asyncio.sleep(0.05)

    async with asyncio.timeout(8), hostile(ping) as wire:
        await wire.reset({})
        with pytest.raises(EnvironmentFault, match="did not answer within"):
            await wire.act(STEP)


async def test_a_message_that_nothing_asked_for_is_no_answer() -> None:
    async def twice(socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "observation", "data": {**BEGUN, "reward": 0.0}})
        await socket.send_json({"type": "observation", "data": {**BEGUN, "reward": 1.0}})

    async with hostile(twice) as wire:
        await wire.reset({})
        await wire.act(STEP)
        await asyncio.sleep(0.05)
        with pytest.raises(EnvironmentFault, match="nothing had asked for"):
            await wire.act(STEP)


HUGE = f'{{"type":"observation","data":{{"observation":{{}},"reward":1{"0" * 400},"done":false}}}}'


async def test_a_reward_of_too_many_digits_is_a_fault() -> None:
    async with hostile(lambda socket: socket.send_str(HUGE)) as wire:
        await wire.reset({})
        with pytest.raises(EnvironmentFault, match="not a number"):
            await wire.act(STEP)


@pytest.mark.parametrize("fields", ['"oops"', "[1]", '{"a": 1}, "required": 7'])
async def test_a_schema_of_another_form_is_a_fault(fields: str) -> None:
    async with hostile(None, f'{{"action": {{"properties": {fields}}}}}') as wire:
        wire._source = parse_source(f"openenv:{wire._base}?reply=a")  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(EnvironmentFault, match=r"no JSON object|what it sent is invalid"):
            await wire.reset({})


async def test_half_a_character_in_a_schema_is_replaced() -> None:
    half = '{"action": {"description": "a \\ud800", "properties": {}}}'
    async with hostile(None, half) as wire:
        (tool,) = (await wire.reset({})).tools
    assert tool["function"]["description"] == "Take one action. a ?"
