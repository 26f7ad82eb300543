"""One session with an environment's server, by OpenEnv's WebSocket protocol.

The bridge of verifiers (`foreign/verifiers_bridge.py`) speaks the same protocol, with chat messages
as actions and observations. All that a server sends is untrusted: the size and the time of a
message are limited, JSON is parsed strictly, redirects are refused, and every error that a server
causes is made an `EnvironmentFault` in one place (`WireSession._guarded`). It is never the policy's.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from hrm_agent.basics.strict_json import from_json
from hrm_agent.errors import HrmError, to_install
from hrm_agent.tools.task_environments.source import EnvironmentSource

__all__ = ["ActRefusedError", "AtCapacityError", "EnvironmentFault", "Observed", "WireSession"]

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Maximum size in bytes of a message of a server."""
MAX_TEXT = 32_000
"""Maximum number of characters of a text for the model."""
MAX_TOOLS = 128
MAX_MESSAGES = 64
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_CLOSE = 2.0
_SHOWN = 300
_MCP = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of the action schemas of servers whose actions are calls of MCP tools."""
_ROLES = ("assistant", "system", "tool", "user")
STEP = "step"
"""Name of the tool that takes an action by its fields."""


class EnvironmentFault(Exception):
    """An environment or its server failed: unreachable, late, invalid, or ended."""


class AtCapacityError(EnvironmentFault):
    """The server has no free session."""

    def __init__(self, message: str, most: int | None) -> None:
        super().__init__(message)
        self.most = most
        """Number of sessions that the server allows (None: unknown)."""


class ActRefusedError(Exception):
    """The environment refused an action whose fields are invalid. It has not changed."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Response of an environment to a reset or an act."""

    messages: tuple[dict[str, Any], ...]
    """Chat messages for the policy, each with role and content; `tool` with a `tool_call_id`."""
    reward: float | None
    """Reward of this act (None: the environment gave none)."""
    done: bool
    """True if the episode is over."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools in OpenAI's format; after a reset only."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rewards by name, where an environment has several."""
    failed: bool = False
    """True if the tool itself reports an error."""


class WireSession:
    """Session on a server. Used in one event loop. After an `EnvironmentFault` it is closed."""

    def __init__(self, source: EnvironmentSource, base: str) -> None:
        """`base`: URL of the server."""
        self._source = source
        self._base = base.rstrip("/")
        self._client: Any = None
        self._socket: Any = None
        self._tools_by_mcp = False

    async def reset(self, arguments: Mapping[str, Any]) -> Observed:
        """Begin an episode, on a new connection if there is none."""
        async with self._guarded():
            return await self._reset(arguments)

    async def _reset(self, arguments: Mapping[str, Any]) -> Observed:
        if self._socket is None:
            await self._connect()
        bridged = self._source.kind == "verifiers"
        schema = {} if bridged else await self._action_schema()
        if self._source.reply:
            self._refuse_other_field(schema)
        self._tools_by_mcp = schema.get("title") in _MCP
        answer = await self._ask("reset", dict(arguments))
        if bridged:
            return _bridged(answer)
        tools = () if self._source.reply else await self._tools(schema)
        text = _text(answer["observation"])
        return Observed(
            ({"role": "user", "content": text},), _reward(answer), _done(answer), tools=tools
        )

    async def act(self, action: Mapping[str, Any]) -> Observed:
        """Send `{"message": ...}` to a bridge, `{"reply": text}`, or `{"name": ..., "arguments":
        ..., "id": ...}` for a tool.
        """
        async with self._guarded():
            return await self._act(action)

    async def _act(self, action: Mapping[str, Any]) -> Observed:
        if self._socket is None:
            raise EnvironmentFault("The session with the environment is closed.")
        await self._refuse_unasked()
        if self._source.kind == "verifiers":
            return _bridged(await self._ask("step", dict(action)))
        if self._source.reply:
            answer = await self._ask("step", {self._source.reply: action["reply"]})
            text = _text(answer["observation"])
            return Observed(({"role": "user", "content": text},), _reward(answer), _done(answer))
        name = action["name"]
        fields = dict(action["arguments"])
        sent = (
            {"type": "call_tool", "tool_name": name, "arguments": fields}
            if self._tools_by_mcp
            else fields
        )
        answer = await self._ask("step", sent)
        observation = answer["observation"]
        error = observation.get("error") if self._tools_by_mcp else None
        if isinstance(error, Mapping):
            _raise_tool_error(cast("Mapping[str, Any]", error))
        text, failed = (
            _tool_text(observation) if self._tools_by_mcp else (_text(observation), False)
        )
        message = {"role": "tool", "tool_call_id": action["id"], "content": text}
        return Observed((message,), _reward(answer), _done(answer), failed=failed)

    async def count(self) -> int | None:
        """Number of tasks of a bridge."""
        async with self._guarded():
            if self._socket is None:
                await self._connect()
            found = (await self._ask("tasks", {}))["observation"].get("count")
            if found is not None and (type(found) is not int or found < 0):
                raise EnvironmentFault("The environment gave no number of tasks.")
            return found

    async def close(self) -> None:
        """End the session. The server ends its environment when the connection is closed."""
        socket = self._socket
        client = self._client
        self._socket = None
        self._client = None
        if socket is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SECONDS_TO_CLOSE):
                    await socket.close()
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def _guarded(self) -> AsyncGenerator[None]:
        """Make every error that the server causes an `EnvironmentFault`, which closes the
        session.
        """
        try:
            yield
        except ActRefusedError:
            raise
        except (EnvironmentFault, HrmError):
            await self.close()
            raise
        except TimeoutError as error:
            await self.close()
            text = f"The environment did not answer within {self._source.seconds:g} s."
            raise EnvironmentFault(text) from error
        except Exception as error:
            await self.close()
            text = f"The environment is gone, or what it sent is invalid: {_why(error)}."
            raise EnvironmentFault(text) from error
        except BaseException:  # cancelled: an answer may still come, so the session is of no use
            await self.close()
            raise

    async def _connect(self) -> None:
        aiohttp = _library()
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(_refuse_redirect)
        timeout = aiohttp.ClientTimeout(total=self._source.seconds, sock_connect=SECONDS_TO_CONNECT)
        self._client = aiohttp.ClientSession(timeout=timeout, trace_configs=[trace])
        try:
            self._socket = await self._client.ws_connect(
                f"{self._base}/ws", max_msg_size=MAX_MESSAGE_BYTES
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EnvironmentFault(f"{self._base} does not answer: {_why(error)}.") from error

    async def _action_schema(self) -> dict[str, Any]:
        """JSON schema of actions."""
        aiohttp = _library()
        body = bytearray()
        try:
            async with self._client.get(f"{self._base}/schema", allow_redirects=False) as response:
                if response.status != 200:
                    raise EnvironmentFault(f"{self._base}/schema: HTTP {response.status}.")
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_MESSAGE_BYTES:
                        raise EnvironmentFault(f"{self._base}/schema is too long.")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EnvironmentFault(f"{self._base}/schema: {_why(error)}.") from error
        schema = _object(_parsed(bytes(body))).get("action")
        if not isinstance(schema, dict):
            raise EnvironmentFault(f"{self._base}/schema has no schema of actions.")
        found = cast("dict[str, Any]", schema)
        _object(found.get("properties") or {})
        return found

    def _refuse_other_field(self, schema: Mapping[str, Any]) -> None:
        """Raise `EnvironmentFault` if an action is not the one field that takes answers."""
        fields = _object(schema.get("properties") or {})
        needed = schema.get("required") or []
        name = self._source.reply
        if name not in fields or set(needed) - {name}:
            known = ", ".join(each for each in fields if each != "metadata") or "none"
            raise EnvironmentFault(
                f"reply={name} is not the one field that an action needs. Its fields: {known}."
            )

    async def _tools(self, schema: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        if not self._tools_by_mcp:
            fields = {k: v for k, v in schema.get("properties", {}).items() if k != "metadata"}
            parameters = {
                name: value
                for name, value in schema.items()
                if name in ("$defs", "required", "type")
            } | {"properties": fields}
            about = str(schema.get("description") or "").strip().split("\n\n")[0]
            return (_tool(STEP, f"Take one action. {about}".strip(), parameters),)
        answer = await self._ask("step", {"type": "list_tools"})
        listed = answer["observation"].get("tools")
        if not isinstance(listed, list):
            raise EnvironmentFault("The environment lists no tools.")
        found = cast("list[Any]", listed)
        if len(found) > MAX_TOOLS:
            raise EnvironmentFault(f"The environment has {len(found)} tools, of {MAX_TOOLS}.")
        tools = [_object(one) for one in found]
        return tuple(
            _tool(each.get("name"), each.get("description"), each.get("input_schema"))
            for each in tools
        )

    async def _refuse_unasked(self) -> None:
        """Raise `EnvironmentFault` if a message waits. It would be taken for the answer of the
        next act, since messages have no ids.
        """
        for _ in range(2):  # the loop then reads what has come
            await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                message = await self._socket.receive()
                raise EnvironmentFault(
                    "The environment sent a message that nothing had asked for."
                    if message.type is _library().WSMsgType.TEXT
                    else "The environment closed the connection."
                )

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a message and wait for its answer."""
        text = json.dumps({"type": kind, "data": data}, allow_nan=False)
        # aiohttp's own limit begins anew after each ping
        async with asyncio.timeout(self._source.seconds):
            await self._socket.send_str(text)
            message = await self._socket.receive()
        if message.type is not _library().WSMsgType.TEXT:
            raise EnvironmentFault("The environment closed the connection.")
        answer = _object(_parsed(message.data))
        told = _object(answer.get("data"))
        if answer.get("type") == "error":
            _raise_error(told)
        if answer.get("type") != "observation":
            raise EnvironmentFault(f"The environment sent no observation: {_short(answer)}.")
        return {**told, "observation": _object(told.get("observation"))}


def _library() -> Any:
    try:
        import aiohttp
    except ImportError as error:
        raise HrmError(
            "aiohttp is not installed, and environments of other projects need it.",
            f"Run `{to_install('service')}`.",
        ) from error
    return aiohttp


async def _refuse_redirect(_session: Any, _context: Any, _parameters: Any) -> None:
    raise EnvironmentFault("The environment's server sends its clients elsewhere.")


def _raise_error(told: Mapping[str, Any]) -> None:
    code = told.get("code")
    text = f"{_short(told.get('message') or 'no reason')}"
    if code == "CAPACITY_REACHED":
        most = told.get("max_sessions")
        raise AtCapacityError(text, most if type(most) is int and most > 0 else None)
    if code == "VALIDATION_ERROR":
        errors = told.get("errors")
        lines = [
            f"{'.'.join(map(str, each.get('loc') or ()))}: {each.get('msg')}"
            for each in (cast("list[Any]", errors) if isinstance(errors, list) else [])
            if isinstance(each, Mapping)
        ]
        raise ActRefusedError(_short("; ".join(lines) or text))
    raise EnvironmentFault(f"The environment failed: {text}.")


def _raise_tool_error(error: Mapping[str, Any]) -> None:
    kind = error.get("error_type")
    text = _short(error.get("message") or "no reason")
    if kind in ("invalid_args", "tool_not_found"):
        raise ActRefusedError(text)
    if kind != "execution_error":
        raise EnvironmentFault(f"The environment's tool failed ({_short(kind)}): {text}.")


def _bridged(answer: Mapping[str, Any]) -> Observed:
    """Observation of the bridge of verifiers."""
    seen = answer["observation"]
    listed = seen.get("messages")
    if not isinstance(listed, list):
        raise EnvironmentFault("The environment sent no messages.")
    found = cast("list[Any]", listed)
    if len(found) > MAX_MESSAGES:
        raise EnvironmentFault(f"The environment sent {len(found)} messages, of {MAX_MESSAGES}.")
    tools = tuple(
        _tool(each.get("name"), each.get("description"), each.get("parameters"))
        for each in (_object(_object(one).get("function")) for one in seen.get("tools") or ())
    )
    given = _object(seen.get("rewards") or {})
    rewards = {str(name)[:100]: _finite(value) for name, value in given.items()}
    return Observed(
        tuple(map(_message, found)), _reward(answer), _done(answer), tools=tools, rewards=rewards
    )


def _message(given: Any) -> dict[str, Any]:
    said = _object(given)
    role, content = said.get("role"), said.get("content")
    if isinstance(content, list):
        parts = [_object(part) for part in cast("list[Any]", content)]
        if any(part.get("type") != "text" for part in parts):
            raise EnvironmentFault("The environment sent an image, and only texts are supported.")
        content = "\n".join(str(part.get("text")) for part in parts)
    if role not in _ROLES or not isinstance(content, str):
        raise EnvironmentFault(f"The environment sent no chat message: {_short(said)}.")
    message = {"role": role, "content": _bounded(content)}
    if role == "tool":
        if not isinstance(said.get("tool_call_id"), str):
            raise EnvironmentFault("The environment answered no tool call.")
        message["tool_call_id"] = said["tool_call_id"]
    return message


def _tool(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """Tool in OpenAI's format. Raises `EnvironmentFault` for an invalid one."""
    if not isinstance(name, str) or not 0 < len(name) <= 128 or not name.isprintable():
        raise EnvironmentFault("The environment has a tool without a valid name.")
    text = " ".join(description.split())[:1000] if isinstance(description, str) else ""
    schema = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": name, "description": text, "parameters": schema},
    }


def _tool_text(observation: Mapping[str, Any]) -> tuple[str, bool]:
    """Text of the result of an MCP tool, and True if it is an error."""
    error = observation.get("error")
    if isinstance(error, Mapping):
        return _bounded(str(cast("Mapping[str, Any]", error).get("message"))), True
    result = observation.get("result")
    if not isinstance(result, Mapping):
        return _shown(result), False
    found = cast("Mapping[str, Any]", result)
    failed = found.get("is_error") is True or found.get("isError") is True
    content = found.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    texts = [
        cast("Mapping[str, Any]", block).get("text")
        for block in blocks
        if isinstance(block, Mapping)
    ]
    if texts and all(isinstance(text, str) for text in texts):
        return _bounded("\n".join(map(str, texts))), failed
    return _shown(found.get("data", found)), failed


def _text(observation: Mapping[str, Any]) -> str:
    """Observation as text: its one text, or JSON without empty fields."""
    filled = {name: value for name, value in observation.items() if value not in (None, "", [], {})}
    if len(filled) == 1 and isinstance(only := next(iter(filled.values())), str):
        return _bounded(only)
    return _shown(filled)


def _shown(value: Any) -> str:
    text = (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    )
    return _bounded(text)


def _bounded(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def _reward(answer: Mapping[str, Any]) -> float | None:
    value = answer.get("reward")
    return None if value is None else _finite(value)


def _finite(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, (bool, int, float)) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise EnvironmentFault(f"The environment gave the reward {_short(value)}, not a number.")
    return number


def _done(answer: Mapping[str, Any]) -> bool:
    done = answer.get("done", False)
    if type(done) is not bool:
        raise EnvironmentFault(f"The environment gave {_short(done)} for `done`.")
    return done


def _parsed(data: bytes | str) -> Any:
    try:
        found = from_json(data)
        half = b"\\ud" if isinstance(data, bytes) else "\\ud"
        if half in data.lower():  # pyright: ignore[reportOperatorIssue]
            # halves of characters cannot be stored
            found = from_json(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
        return found
    except (HrmError, UnicodeDecodeError) as error:
        raise EnvironmentFault(f"The environment sent invalid JSON: {_why(error)}.") from error


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EnvironmentFault(f"The environment sent no JSON object: {_short(value)}.")
    return cast("dict[str, Any]", value)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return " ".join(text.encode("utf-8", "replace").decode().split())[:_SHOWN].rstrip(".")


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    cause = getattr(error, "os_error", None)  # aiohttp's own text holds addresses and options
    if isinstance(cause, OSError) and cause.strerror:
        return _short(cause.strerror)
    return _short(str(error) or type(error).__name__)
