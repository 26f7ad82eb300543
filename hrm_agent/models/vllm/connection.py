"""Requests to a vLLM server: many in parallel over a few connections, with retries until an answer
starts.

A failed request is retried only if no part of an answer has arrived. Then no token was shown, and
the same prompt and seed give the same answer. If a part has arrived, tokens may have been shown. So
the error is raised to the caller, whose run can be resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from math import isfinite
from typing import Any

import httpx

from hrm_agent.basics.http_client import backoff, bounded_body, retry_after
from hrm_agent.errors import ModelError
from hrm_agent.models.vllm.server import (
    HTTP_OK,
    ServerSilentError,
    VllmAddress,
    client_options,
    object_of,
    refusal,
    unreachable,
)

__all__ = ["Connection"]

_TRIES = 5
_FIRST_SECONDS, _LONGEST_SECONDS = 0.4, 4.0
"""First and longest pause between two tries, in seconds."""
_BUSY = frozenset((408, 429, 500, 502, 503, 504))
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 2.0
"""Seconds after which an idle connection is closed. The server closes idle connections after 5 s.
The limit here is lower, so that the server does not close a connection just when a new request uses
it.
"""
_MAX_BYTES = 64 << 20
_MAX_LINE = 4 << 20
_MAX_WAIT = 20.0


class Connection:
    """Connection to a server, bound to the event loop of its first use."""

    def __init__(self, address: VllmAddress) -> None:
        self._address = address
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_SECONDS
            ),
            **client_options(address),
        )

    async def ask(self, body: Mapping[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        """Post `body` and pass each piece of the answer to `take`. Raises `ModelError`. Cancelling
        closes the connection.
        """
        try:
            async with asyncio.timeout(
                self._address.seconds if isfinite(self._address.seconds) else None
            ):
                await self._ask_repeatedly(body, take)
        except TimeoutError as error:
            raise ServerSilentError(
                f"The vLLM server at {self._address.url} gave no complete answer within"
                f" {self._address.seconds:g} s.",
                "Allow more with timeout=SECONDS in the model's string, or request fewer tokens.",
            ) from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask_repeatedly(
        self, body: Mapping[str, Any], take: Callable[[dict[str, Any]], None]
    ) -> None:
        for number in range(_TRIES):
            attempt = _Attempt(self._address, take)
            last = number == _TRIES - 1
            asked = None
            try:
                await attempt.run(self._client, body)
            except httpx.HTTPError as error:
                if last or attempt.answered:
                    raise unreachable(self._address, error) from error
            except _BusyError as busy:
                if last:
                    raise refusal(self._address, busy.status, busy.body) from None
                asked = busy.wait
            else:
                return
            await asyncio.sleep(
                max(backoff(number, _FIRST_SECONDS, _LONGEST_SECONDS), asked or 0.0)
            )


class _BusyError(Exception):
    """The server may accept the request later."""

    def __init__(self, status: int, body: str, wait: float | None) -> None:
        super().__init__(body)
        self.status = status
        self.body = body
        self.wait = wait


class _Attempt:
    """One try of a request."""

    def __init__(self, address: VllmAddress, take: Callable[[dict[str, Any]], None]) -> None:
        self.answered = False
        self._address = address
        self._take = take

    async def run(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> None:
        async with client.stream("POST", f"{self._address.url}/completions", json=body) as response:
            if response.status_code != HTTP_OK:
                said = b"".join([part async for part in _body(response)]).decode(errors="replace")
                if response.status_code in _BUSY:
                    wait = retry_after(response.headers.get("Retry-After"), _MAX_WAIT)
                    raise _BusyError(response.status_code, said, wait)
                raise refusal(self._address, response.status_code, said)
            pieces = _events(_body(response)) if body.get("stream") else _whole(_body(response))
            async for piece in pieces:
                self.answered = True
                self._take(object_of(self._address, piece))
        if not self.answered:
            raise httpx.RemoteProtocolError("the server closed the connection without an answer")


def _body(response: httpx.Response) -> AsyncIterator[bytes]:
    too_large = ModelError(
        f"The server at {response.url} answers with more than {_MAX_BYTES >> 20} MiB."
    )
    return bounded_body(response.aiter_raw(), _MAX_BYTES, too_large)


async def _whole(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if body := b"".join([part async for part in parts]):
        yield body


async def _events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Data of server-sent events, up to `[DONE]`. If a stream ends without `[DONE]`, it was cut
    off, and `httpx.RemoteProtocolError` is raised.
    """
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _MAX_LINE:
            raise ModelError(
                "The server sends an event that is too long.", "Check that the address ends in /v1."
            )
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                return
            if data:
                yield data
            elif line.lstrip().startswith(b"{"):
                yield line  # an error outside of an event
    if rest.strip():
        yield rest.strip()
        return
    raise httpx.RemoteProtocolError("the server closed the connection in the middle of an answer")
