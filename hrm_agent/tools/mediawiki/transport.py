"""HTTP requests to a wiki, within its operators' rules.

Each request identifies its sender and a contact. This process makes at most three requests to a
host at a time, none while the wiki lags (`maxlag`), and none during its `Retry-After`. Waits
between attempts grow, with jitter.

A redirect is followed only on the same host, and never from https to http: a wiki must not choose
an address inside this machine's network. Nothing takes longer than `patience`, including the wait
for a turn. A slow wiki is an `infrastructure` failure, not a `timeout`, which would blame the
model's request.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from hrm_agent.basics.http_client import backoff
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.tools.mediawiki.responses import RetryLater, meaning, read_body
from hrm_agent.trajectory import ToolStatus

__all__ = ["Asker"]

_AT_ONCE = 3
_LAG_SECONDS = 5
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 8.0
_REDIRECTS = 5
_now, _sleep = time.monotonic, asyncio.sleep
"""Clock of all pauses. Tests replace both by a clock that only sleeping advances."""


@dataclass(slots=True)
class _Host:
    """Limits of this process for one host."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    """Limit of parallel requests."""
    quiet_until: float = 0.0
    """Time on the monotonic clock before which no request is made."""


_hosts: dict[str, _Host] = {}
os.register_at_fork(after_in_child=_hosts.clear)


class Asker:
    """Client of one API, on the loop of `io_loop`. Its connections are opened on demand."""

    def __init__(
        self, url: httpx.URL, user_agent: str, *, timeout: float, attempts: int, patience: float
    ) -> None:
        self._url, self._timeout, self._attempts, self._patience = url, timeout, attempts, patience
        self.shown = str(url.copy_with(username=None, password=None))
        """URL without its password."""
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "gzip"}
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def ask(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """One answer. It retries until one arrives, the attempts are used up, or the wait would
        exceed the patience.

        Raises `ToolFailure`.
        """
        host, deadline, attempt = (
            _hosts.setdefault(self._url.netloc.decode(), _Host()),
            self._deadline(),
            0,
        )
        while True:
            try:
                async with self._turn(host, deadline):
                    return await self._request(parameters, deadline)
            except RetryLater as error:
                wait = backoff(attempt, _FIRST_WAIT, _LONGEST_WAIT)
                attempt += 1
                if error.seconds is not None:
                    wait = error.seconds * random.uniform(1.0, 1.1)
                    host.quiet_until = max(host.quiet_until, _now() + error.seconds)
                if attempt >= self._attempts or _now() + wait > deadline:
                    raise _given_up(error) from error
                await _sleep(wait)

    async def close(self) -> None:
        """Close the connections. Another request opens them again."""
        held, self._client = self._client, None
        if held is not None and held[0] is asyncio.get_running_loop():
            await held[1].aclose()

    def _deadline(self) -> float:
        return _now() + self._patience

    @asynccontextmanager
    async def _turn(self, host: _Host, deadline: float) -> AsyncGenerator[None]:
        """Hold one of the three places, at a time when the wiki may be asked."""
        try:
            async with asyncio.timeout(deadline - _now()):
                await host.turns.acquire()
        except TimeoutError as error:
            text = (
                f"{self.shown} had no time within {self._patience:g} s: it is busy with other"
                " questions of ours."
            )
            raise ToolFailure(text, ToolStatus.INFRASTRUCTURE) from error
        try:
            while (left := host.quiet_until - _now()) > 0:
                if host.quiet_until > deadline:
                    text = f"{self.shown} wants to be left alone for another {left:.0f} s."
                    raise ToolFailure(text, ToolStatus.INFRASTRUCTURE)
                await _sleep(left * random.uniform(1.0, 1.1))
            yield
        finally:
            host.turns.release()

    async def _request(self, parameters: Mapping[str, str], deadline: float) -> dict[str, Any]:
        query = {**parameters, "format": "json", "formatversion": "2", "maxlag": str(_LAG_SECONDS)}
        seconds = max(0.001, min(self._timeout, deadline - _now()))
        try:
            async with asyncio.timeout(seconds):
                status, headers, body = await self._follow(self._url.copy_merge_params(query))
        except (TimeoutError, httpx.TimeoutException) as error:
            text = f"{self.shown} gave no answer in {round(seconds, 1):g} s."
            raise RetryLater(ToolFailure(text, ToolStatus.INFRASTRUCTURE)) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise self._unreachable(error) from error
        return meaning(self.shown, status, headers, body)

    async def _follow(self, url: httpx.URL) -> tuple[int, httpx.Headers, bytes]:
        for _ in range(_REDIRECTS + 1):
            async with self._connections().stream("GET", url) as response:
                if not response.has_redirect_location:
                    return response.status_code, response.headers, await read_body(response)
                url = _next(url, response.headers["Location"])
        raise ToolFailure(
            f"{self.shown} sends its visitors in a circle.", ToolStatus.INFRASTRUCTURE
        )

    def _connections(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            self._client = (
                loop,
                httpx.AsyncClient(
                    headers=self._headers, timeout=self._timeout, verify=_certificates()
                ),
            )
        return self._client[1]

    def _unreachable(self, error: Exception) -> Exception:
        failure = ToolFailure(
            f"{self.shown} cannot be reached: {error or type(error).__name__}",
            ToolStatus.INFRASTRUCTURE,
        )
        # A wrong certificate does not change with a retry.
        return failure if "SSL" in str(error) else RetryLater(failure)


@functools.cache
def _certificates() -> ssl.SSLContext:
    """TLS context with all certificate authorities, cached as reading them takes longer than a
    request.
    """
    return httpx.create_ssl_context()


def _next(url: httpx.URL, location: str) -> httpx.URL:
    """Target of a redirect. Raises `ToolFailure` if it may not be followed."""
    try:
        target = url.join(location)
    except httpx.InvalidURL:
        target = httpx.URL()
    down = url.scheme == "https" and target.scheme != "https"
    if (
        target.scheme in ("http", "https")
        and not down
        and (target.host, target.port) == (url.host, url.port)
    ):
        return target
    shown = (
        f"{target.scheme}://{target.netloc.decode()}{target.path}"[:200]
        if target.host
        else location[:200]
    )
    text = f"{url.host} sends its visitors elsewhere, to {shown!r}, which is not followed."
    raise ToolFailure(text, ToolStatus.INFRASTRUCTURE)


def _given_up(error: RetryLater) -> ToolFailure:
    if error.seconds:
        return ToolFailure(
            f"{error.failure} It asks for a pause of {error.seconds:.0f} s.", error.failure.status
        )
    return error.failure
