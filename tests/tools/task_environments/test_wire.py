"""Recorded messages of OpenEnv's real servers (openenv-core 0.3.0, openenv 0.10.0), as
`benchmarks.others_environments --exchanges` writes them: an environment of `openenv init`, and one
with MCP tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hrm_agent.tools.task_environments.source import parse_source
from hrm_agent.tools.task_environments.wire import ActRefusedError, Observed, WireSession

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
