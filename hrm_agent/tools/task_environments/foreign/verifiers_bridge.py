"""Bridge to a taskset of verifiers' v1 interface: its own episodes, whose model is the other side.

The library runs an episode as in an evaluation of its own: setup, tool servers, users, stop
conditions, limits and rewards are all its own. Its model endpoint is this process, which passes
each request to the client as an observation, and the client's answer back as the completion. So
nothing of the library is imitated, and the reward is the one that it gives.

One WebSocket connection is one session, with OpenEnv's messages: `reset` begins the episode of
`{"index": number}`, `step` answers the model request with `{"message": assistant message}`, `tasks`
counts the tasks. An observation holds the messages that are new since the last answer, and after a
reset the tools.

The seats of an environment play in the `subprocess` runtime, on this machine. Their harness is a
plain chat loop in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
import time
import types
from importlib import import_module
from typing import Any
from uuid import uuid4

_KEY_VARIABLE = "VERIFIERS_BRIDGE_KEY"
_HARNESS = "verifiers_bridge_harness"
_MOST_MESSAGE = 4 * 1024 * 1024


class _Refused(Exception):
    """Environment that cannot be bridged, with the reason."""


class BridgedEpisode:
    """Running episode of a session."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()
        """Model requests; None or an exception at the end."""
        self.answer: asyncio.Future[dict[str, Any]] | None = None
        """Answer to the pending model request."""
        self.seen = 0
        """Number of messages that the client knows."""
        self.task: asyncio.Task[Any] | None = None
        """Task that runs the episode."""
        self.result: Any = None
        """Finished episode of the library."""

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Pass a model request to the client, and wait for its answer."""
        if self.answer is not None and not self.answer.done():
            raise _Refused("two model requests at a time: several agents cannot be bridged")
        self.answer = asyncio.get_running_loop().create_future()
        await self.asked.put(body)
        return await self.answer

    async def next(self) -> dict[str, Any]:
        """Next observation: the next model request, or the end."""
        found = await self.asked.get()
        if isinstance(found, BaseException):
            raise found
        if found is None:
            return self._end()
        messages = found["messages"]
        new = messages[self.seen :]
        self.seen = len(messages) + 1
        seen = {"messages": new, "tools": found.get("tools") or []}
        return {"observation": seen, "reward": None, "done": False}

    def _end(self) -> dict[str, Any]:
        episode = self.result
        if not episode.ok:
            errors = [*episode.errors, *(e for trace in episode.traces for e in trace.errors)]
            told = "; ".join(f"{error.type}: {error.message}" for error in errors)
            raise RuntimeError(told[:2000] or "the episode failed")
        trace = episode.traces[0]
        rewards = {name: given.score for name, given in trace.rewards.items() if given is not None}
        seen = {"messages": [], "rewards": rewards}
        return {"observation": seen, "reward": float(trace.reward), "done": True}


class Bridge:
    """Environment, and its sessions."""

    def __init__(self, taskset: str, arguments: dict[str, Any], endpoint: str) -> None:
        os.environ.setdefault(_KEY_VARIABLE, uuid4().hex)
        loaders = import_module("verifiers.v1.utils.loaders")
        agents = import_module("verifiers.v1.configs.agent")
        given = {"taskset": {**arguments, "id": taskset}}
        seats = agents.agent_config_fields(loaders.resolve_env_config(given))
        if len(seats) != 1:
            raise _Refused(f"it has {len(seats)} seats ({', '.join(seats)}), and one is supported")
        seat = {"harness": {"id": _HARNESS}, "runtime": {"type": "subprocess"}}
        config = loaders.resolve_env_config({**given, next(iter(seats)): seat})
        self.environment = loaders.load_environment(config)
        if type(self.environment.taskset).task_type().NEEDS_CONTAINER:
            raise _Refused("its tasks need a container")
        clients = import_module("verifiers.v1.clients")
        self._context = clients.ModelContext
        self._client = clients.EvalClientConfig(base_url=endpoint, api_key_var=_KEY_VARIABLE)
        self._tasks: list[Any] = []
        self._rest = iter(self.environment.taskset)
        self.episodes: dict[str, BridgedEpisode] = {}

    def count(self) -> int | None:
        """Number of tasks (None: endless)."""
        if not self.environment.taskset.bounded:
            return None
        self._tasks.extend(self._rest)
        return len(self._tasks)

    def _task(self, index: int) -> Any:
        missing = index + 1 - len(self._tasks)
        if missing > 0:
            self._tasks.extend(itertools.islice(self._rest, missing))
        if not 0 <= index < len(self._tasks):
            raise ValueError(f"there is no task {index}")
        return self._tasks[index]

    def begin(self, name: str, index: int) -> BridgedEpisode:
        """Start an episode."""
        episode = self.episodes[name] = BridgedEpisode()
        task = self._task(index)

        async def run() -> None:
            try:
                context = self._context(model=name, client=self._client)
                episode.result = await self.environment.run_episode(task, context)
                await episode.asked.put(None)
            except Exception as error:
                await episode.asked.put(error)

        episode.task = asyncio.create_task(run())
        return episode

    async def end(self, name: str) -> None:
        """Cancel an episode."""
        episode = self.episodes.pop(name, None)
        if episode is not None and episode.task is not None:
            episode.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await episode.task


def _register_harness() -> None:
    """Make the harness importable under its name, as the library finds plugins."""
    v1: Any = import_module("verifiers.v1")
    tools: Any = import_module("verifiers.v1.harnesses.utils.mcp")
    wire: Any = import_module("verifiers.v1.dialects.chat")
    httpx: Any = import_module("httpx")

    class BridgeHarness(v1.Harness[v1.HarnessConfig]):
        """Chat loop in this process: each answer's tool calls are run, until one has none."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            messages: list[dict[str, Any]] = []
            if system:
                messages.append({"role": "system", "content": system})
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [wire.message_to_wire(message) for message in prompt or ()]
            servers = {
                n: {"url": u, "timeout": self.config.tool_timeout} for n, u in mcp_urls.items()
            }
            headers = {"Authorization": f"Bearer {secret}"}
            async with (
                contextlib.AsyncExitStack() as stack,
                httpx.AsyncClient(timeout=None, headers=headers) as client,
            ):
                schemas, dispatch, connections = await tools.connect_mcp(
                    {"mcpServers": servers}, stack
                )
                while True:
                    body = {"model": ctx.model, "messages": messages}
                    if schemas:
                        body["tools"] = schemas
                    response = await client.post(f"{endpoint}/chat/completions", json=body)
                    if response.status_code != 200:
                        return v1.ProgramResult(exit_code=1, stdout="", stderr=response.text[:2000])
                    message = response.json()["choices"][0]["message"]
                    messages.append({k: v for k, v in message.items() if v is not None})
                    if not message.get("tool_calls"):
                        return v1.ProgramResult(exit_code=0, stdout="", stderr="")
                    for call in message["tool_calls"]:
                        content = await _tool_result(call["function"], tools, dispatch, connections)
                        messages.append(
                            {
                                "role": "tool",
                                "tool_call_id": call["id"],
                                "name": call["function"]["name"],
                                "content": content,
                            }
                        )

    module: Any = types.ModuleType(_HARNESS)
    module.BridgeHarness = BridgeHarness
    module.__all__ = ["BridgeHarness"]
    sys.modules[_HARNESS] = module


async def _tool_result(
    function: dict[str, Any], tools: Any, dispatch: Any, connections: Any
) -> Any:
    """Result of a call, with the library's own words for calls that cannot be run."""
    name = function["name"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return f"error: tool arguments must be a JSON object, got {kind}; resend as an object"
    if name not in dispatch:
        return f"error: unknown tool {name!r}"
    return await tools.call_mcp(connections, dispatch, name, arguments)


def _completion(model: str, message: dict[str, Any]) -> dict[str, Any]:
    """Completion of the chat API with an assistant message."""
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in message.get("tool_calls") or ()
    ]
    said: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
    if calls:
        said["tool_calls"] = calls
    reason = "tool_calls" if calls else "stop"
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


async def _serve(what: str, listener: socket.socket) -> None:
    web: Any = import_module("aiohttp.web")
    import_module("verifiers.v1")
    _register_harness()
    given = json.loads(what)
    port = listener.getsockname()[1]
    bridge = Bridge(given["taskset"], given["arguments"], f"http://127.0.0.1:{port}/v1")

    async def chat(request: Any) -> Any:
        if request.headers.get("Authorization") != f"Bearer {os.environ[_KEY_VARIABLE]}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        body = await request.json()
        episode = bridge.episodes.get(body.get("model"))
        if episode is None:
            return web.json_response({"error": {"message": "no such session"}}, status=404)
        try:
            return web.json_response(_completion(body["model"], await episode.complete(body)))
        except _Refused as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)

    async def session(request: Any) -> Any:
        sock = web.WebSocketResponse(max_msg_size=_MOST_MESSAGE)
        await sock.prepare(request)
        name = uuid4().hex
        try:
            async for message in sock:
                try:
                    asked = json.loads(message.data)
                    answer = await _answered(bridge, name, asked["type"], asked["data"])
                    text = json.dumps({"type": "observation", "data": answer}, allow_nan=False)
                except Exception as error:
                    told = f"{type(error).__name__}: {error}"[:2000]
                    data = {"message": told, "code": "EXECUTION_ERROR"}
                    text = json.dumps({"type": "error", "data": data})
                await sock.send_str(text)
        finally:
            await bridge.end(name)
        return sock

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/ws", session)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    async with bridge.environment.serving():
        await web.SockSite(runner, listener).start()
        await asyncio.Event().wait()


async def _answered(bridge: Bridge, name: str, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    if kind == "tasks":
        return {"observation": {"count": bridge.count()}, "reward": None, "done": False}
    if kind == "reset":
        await bridge.end(name)
        return await bridge.begin(name, int(data["index"])).next()
    episode = bridge.episodes.get(name)
    if kind != "step" or episode is None or episode.answer is None or episode.answer.done():
        raise ValueError("no model request waits for an answer")
    episode.answer.set_result(data["message"])
    return await episode.next()


def serve(what: str, listener: socket.socket) -> None:
    """Serve the taskset that `what` names, until the process is ended."""
    try:
        asyncio.run(_serve(what, listener))
    except _Refused as error:
        raise SystemExit(f"This environment cannot be bridged: {error}.") from None
