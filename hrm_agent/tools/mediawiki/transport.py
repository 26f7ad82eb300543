"""HTTP requests to a wiki, within its operators' rules.

Each request identifies its sender and a contact. This process makes at most three requests to a
host at a time, none while the wiki lags (`maxlag`), and none during the wiki's `Retry-After`. Waits
between attempts grow, with jitter.

A redirect is followed only on the same host, and never from https to http: a wiki must not choose
an address inside this machine's network. No question takes longer than `patience`, including the
wait for a turn. A slow wiki is an `infrastructure` failure. A `timeout` would blame the model's
request.

A MediaWiki returns errors as HTTP 200 with an `error` in the JSON. A proxy in front of it answers
in HTML. A different service at the address may answer in JSON of its own, which must not be taken
for "nothing found".
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import ssl
import threading
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from pydantic_core import from_json

from hrm_agent.basics.async_bridge import BackgroundLoop
from hrm_agent.basics.http_client import backoff, bounded_body, retry_after
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.trajectory import ToolStatus

__all__ = ["Asker", "the_loop"]

_INFRASTRUCTURE = ToolStatus.INFRASTRUCTURE
_MAX_BYTES = 32 * 2**20
_LONGEST_PAUSE = 3600.0
"""Longest pause in seconds. If a wiki asks for a longer one, which is usually a mistake, it is
still asked once an hour.
"""
_SHOWN = 300
"""Maximum number of characters of a wiki's own words in a failure."""
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_FORBIDDEN = (401, 403)
_TOO_LONG = (413, 414, 431)
_BUSY = ("maxlag", "ratelimited", "readonly")
"""Codes of the JSON `error` for which waiting helps."""
_REFUSED = ("readapidenied", "permissiondenied", "blocked", "autoblocked")
_GONE = ("missingtitle", "nosuchrevid", "nosuchpageid")
_AT_ONCE = 3
_LAG_SECONDS = 5
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 8.0
_REDIRECTS = 5
_now, _sleep = time.monotonic, asyncio.sleep
"""Clock of all pauses. Tests replace both functions by a clock that advances only by sleeping."""


class RetryLater(Exception):
    """Exception for a wiki that asks to retry later, or could not be reached."""

    def __init__(self, failure: ToolFailure, seconds: float | None = None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.seconds = seconds
        """Pause in seconds that the wiki asked for (None if unknown)."""


@dataclass(slots=True)
class _Host:
    """Limits of this process for one host."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    """Limit of parallel requests."""
    quiet_until: float = 0.0
    """Time on the monotonic clock before which no request is made."""


_hosts: dict[str, _Host] = {}
_lock = threading.Lock()
_loop: BackgroundLoop | None = None


def the_loop() -> BackgroundLoop:
    """Event loop of all connections to wikis, started on first use.

    A connection, and the queue of callers that wait for it, belong to the event loop on which they
    were created. By using this one loop, all threads and other event loops share them. A cancelled
    caller leaves the queue at once.
    """
    global _loop
    with _lock:
        if _loop is None:
            _loop = BackgroundLoop("wikis")
        return _loop


def _forget() -> None:
    """Reset loop and hosts in a forked child, in which the loop's thread does not exist."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()
    _hosts.clear()


os.register_at_fork(after_in_child=_forget)


class Asker:
    """Client of one API, for use on the event loop of `the_loop`. Its connections are opened on
    demand.
    """

    def __init__(
        self, url: httpx.URL, user_agent: str, *, timeout: float, attempts: int, patience: float
    ) -> None:
        self._url = url
        self._timeout = timeout
        self._attempts = attempts
        self._patience = patience
        self.shown = str(url.copy_with(username=None, password=None))
        """URL without its password."""
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "gzip"}
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def ask(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Answer of the API to a request. The request is repeated until an answer arrives, the
        attempts are used up, or the next wait would exceed the patience.

        Raises `ToolFailure`.
        """
        host = _hosts.setdefault(self._url.netloc.decode(), _Host())
        deadline = _now() + self._patience
        attempt = 0
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
                    pause = (
                        f" It asks for a pause of {error.seconds:.0f} s." if error.seconds else ""
                    )
                    raise ToolFailure(f"{error.failure}{pause}", error.failure.status) from error
                await _sleep(wait)

    async def close(self) -> None:
        """Close the connections. Another request opens them again."""
        held = self._client
        self._client = None
        if held is not None and held[0] is asyncio.get_running_loop():
            await held[1].aclose()

    @asynccontextmanager
    async def _turn(self, host: _Host, deadline: float) -> AsyncGenerator[None]:
        """Hold one of the host's places for parallel requests, and wait until the wiki may be
        asked.
        """
        try:
            async with asyncio.timeout(deadline - _now()):
                await host.turns.acquire()
        except TimeoutError as error:
            text = (
                f"{self.shown} had no time within {self._patience:g} s: it is busy with other"
                " questions of ours."
            )
            raise ToolFailure(text, _INFRASTRUCTURE) from error
        try:
            while (left := host.quiet_until - _now()) > 0:
                if host.quiet_until > deadline:
                    text = f"{self.shown} wants to be left alone for another {left:.0f} s."
                    raise ToolFailure(text, _INFRASTRUCTURE)
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
            raise RetryLater(ToolFailure(text, _INFRASTRUCTURE)) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            text = f"{self.shown} cannot be reached: {error or type(error).__name__}"
            failure = ToolFailure(text, _INFRASTRUCTURE)
            # a wrong certificate would not change with another attempt
            raise (failure if "SSL" in str(error) else RetryLater(failure)) from error
        return _meaning(self.shown, status, headers, body)

    async def _follow(self, url: httpx.URL) -> tuple[int, httpx.Headers, bytes]:
        for _ in range(_REDIRECTS + 1):
            async with self._connections().stream("GET", url) as response:
                if not response.has_redirect_location:
                    text = f"The answer is over {_MAX_BYTES:,} bytes."
                    too_large = ToolFailure(text, ToolStatus.OUTPUT_LIMIT)
                    parts = bounded_body(_unpacked(response), _MAX_BYTES, too_large)
                    body = b"".join([part async for part in parts])
                    return response.status_code, response.headers, body
                url = _next(url, response.headers["Location"])
        raise ToolFailure(f"{self.shown} sends its visitors in a circle.", _INFRASTRUCTURE)

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


@functools.cache
def _certificates() -> ssl.SSLContext:
    """TLS context with all certificate authorities. It is cached, as reading the certificates takes
    longer than a request.
    """
    return httpx.create_ssl_context()


async def _unpacked(response: httpx.Response) -> AsyncIterator[bytes]:
    """Pieces of the body, decompressed with a size limit. httpx itself would decompress without
    one.
    """
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise ToolFailure(
            f"The answer is packed as {encoding[:40]!r}, for which nobody asked.", _INFRASTRUCTURE
        )
    unpack = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    async for piece in response.aiter_raw():
        try:
            part = unpack.decompress(piece, _MAX_BYTES + 1) if unpack else piece
        except zlib.error as error:
            failure = ToolFailure(f"The answer cannot be unpacked: {error}", _INFRASTRUCTURE)
            raise RetryLater(failure) from error
        yield part


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
    raise ToolFailure(text, _INFRASTRUCTURE)


def _meaning(url: str, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """JSON object that the API has answered. Raises `RetryLater` or `ToolFailure` for any other
    answer.
    """
    later = retry_after(headers.get("Retry-After"), _LONGEST_PAUSE)
    if status in _PASSING:
        raise RetryLater(
            ToolFailure(f"{url} is not available (HTTP {status}).", _INFRASTRUCTURE), later
        )
    if status in _FORBIDDEN:
        raise ToolFailure(f"{url} refuses to answer (HTTP {status}).", ToolStatus.DENIED)
    if status in _TOO_LONG:
        raise ToolFailure(
            f"The question is too long for {url} (HTTP {status}).", ToolStatus.INVALID_CALL
        )
    try:
        # unlike `json`, this parser refuses deep nesting and lone surrogates, which cannot be
        # stored
        parsed: Any = from_json(body, allow_inf_nan=False)
    except ValueError:
        parsed = None
    answer = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else None
    if answer is None and status == 200 and "json" in headers.get("Content-Type", ""):
        raise RetryLater(
            ToolFailure(f"{url} broke off in the middle of its answer.", _INFRASTRUCTURE), later
        )
    if answer is not None and "error" in answer:
        raise _refusal(answer["error"], later)
    if (
        status != 200
        or answer is None
        or not answer.keys() & {"query", "parse", "batchcomplete", "continue"}
    ):
        kind = headers.get("Content-Type", "of no content type").partition(";")[0][:60]
        raise ToolFailure(
            f"{url} is no API of a MediaWiki (HTTP {status}, {kind}). The path of one"
            " ends in api.php.",
            _INFRASTRUCTURE,
        )
    return answer


def _refusal(error: Any, later: float | None) -> Exception:
    """Exception for an `error` in the JSON: `RetryLater`, or a typed failure."""
    known = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    code = str(known.get("code", "unknown"))[:60]
    what = str(known.get("info", error))[:_SHOWN]
    if code in _BUSY:
        return RetryLater(ToolFailure(f"The wiki is busy ({code}): {what}", _INFRASTRUCTURE), later)
    if code.startswith("internal_api_error"):
        return ToolFailure(f"The wiki failed ({code}): {what}", _INFRASTRUCTURE)
    if code in _REFUSED:
        return ToolFailure(f"The wiki does not let us read ({code}): {what}", ToolStatus.DENIED)
    status = ToolStatus.ERROR if code in _GONE else ToolStatus.INVALID_CALL
    return ToolFailure(f"The wiki refused the request ({code}): {what}", status)
