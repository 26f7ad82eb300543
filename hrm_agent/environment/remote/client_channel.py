"""Requests of one event loop to a served environment: waiting calls, and the connection that they
are sent on.

A call is in one of three states: in `_waiting`, in `open` of a link, or answered. When a link
breaks, its calls are put back at the head of `_waiting`. When a link's server shuts down, the link
keeps the calls that have begun on the server, and the other calls go to the next link. `client`
describes what a broken connection means for a call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from itertools import count
from typing import Any

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.basics.http_client import backoff
from hrm_agent.basics.strict_json import from_json, to_json
from hrm_agent.environment.base import Submission
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.remote.address import About, Address, about_of, stranger, wrong_token
from hrm_agent.environment.remote.messages import MAX_CALLS, MOST_WAIT, submission_record
from hrm_agent.environment.remote.session_memory import SessionMemory
from hrm_agent.errors import HrmError, to_install

try:
    import aiohttp
except ImportError as error:
    raise HrmError(
        "aiohttp is not installed, and an environment on a server needs it.",
        f"Run `{to_install('service')}`.",
    ) from error

__all__ = ["MAX_ATTEMPTS", "Channel", "Peer", "RemoteCall"]

MAX_ATTEMPTS = 5
"""Maximum number of attempts of a call. If the connection breaks in each, the call ends with status
`infrastructure`: the call itself may be what kills the server.
"""
_HELLO_SECONDS = 10.0
_CLOSING = aiohttp.ClientWSTimeout(ws_close=2.0)  # pyright: ignore[reportCallIssue] - made by attrs
_FIRST_SECONDS, _LONGEST_SECONDS = 0.1, 1.0
"""First and longest pause in seconds between attempts to reach an absent server."""
_PING_SECONDS, _PINGS = 5.0, 3
"""Seconds between pings, and number of unanswered pings after which a peer counts as dead."""
_MAX_CANCELLED = 1000
"""Maximum number of cancellations in one message."""
_GONE = (aiohttp.ClientError, OSError, TimeoutError)
_GUARD = LoopGuard("environment-client", rests=False)
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Peer:
    """Server as seen by all event loops of this process."""

    address: Address
    """Address of the server."""
    token: str = field(repr=False)
    """Token sent with every connection; never shown."""
    least: Isolation
    """Least isolation accepted."""
    about: About
    """Description of the server at the latest connection."""
    patience_seconds: float
    """Seconds that the server may be away before calls fail."""
    session_memory: SessionMemory = field(default_factory=SessionMemory)
    """Cells of this process's sessions, for a server that was restarted."""


@dataclass(slots=True, eq=False)
class RemoteCall:
    """One request to the server."""

    message: dict[str, Any]
    """Message to send. It is empty for a submission, whose message depends on the server that it is
    sent to.
    """
    submission: Submission | None
    """Submission to run (None for other requests, such as a fork or the end of a session)."""
    future: asyncio.Future[dict[str, Any]]
    """Response of the server, or {"failed": reason} if the infrastructure failed."""
    began: float
    """Time of the request, by the monotonic clock."""
    waits_since: float
    """Start of the wait for a connection, by the monotonic clock."""
    sent: int = 0
    """Number of times that the request was sent."""
    key: int = 0
    """Number under which the request was sent last (0 if it was not sent yet). The server's answer
    repeats the number.
    """
    link: Link | None = None
    """Connection that the request was sent on (None while it waits, and once it is answered)."""

    def answer(self, /, **answer: Any) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class Link:
    """Connection to the server."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, about: About) -> None:
        self.socket = socket
        self.about = about
        self.open: dict[int, RemoteCall] = {}
        self.cancelled: list[int] = []
        """Keys of cancelled calls that the server has to be notified of."""
        self.ready = asyncio.Event()
        """Set if there is a message to send."""
        self.heard = True
        """True if the peer has sent anything since the latest ping."""
        self.closing: asyncio.Task[bool] | None = None

    async def watch(self) -> None:
        """Close the connection if the peer is dead. If this process's own event loop pauses, that
        counts as one missed ping, however long the pause was.
        """
        silent = 0
        with suppress(*_GONE):
            while silent < _PINGS:
                await asyncio.sleep(_PING_SECONDS)
                silent = 0 if self.heard else silent + 1
                self.heard = False
                await self.socket.ping()
        await self.socket.close()


class Channel:
    """Requests of one event loop. Made on that loop, and used nowhere else."""

    def __init__(self, peer: Peer) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._peer = peer
        self._waiting: deque[RemoteCall] = deque()
        self._link: Link | None = None
        """Connection used for new calls."""
        self._links: dict[Link, asyncio.Task[None]] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._keys = count(1)
        connector = (
            aiohttp.UnixConnector(peer.address.path) if peer.address.scheme == "unix" else None
        )
        timeout = aiohttp.ClientTimeout(total=_HELLO_SECONDS)
        # `trust_env=False`: no proxies from environment variables, and no password from a netrc
        # file
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        self._keeper = self._keep()
        # This runs `_keep` to its yield. When a loop shuts down, it closes the async generators
        # that were started on it, and so this channel.
        with suppress(StopIteration):
            self._keeper.__anext__().__await__().send(None)

    async def _keep(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.close()

    async def ask(
        self, message: dict[str, Any], submission: Submission | None, seconds: float
    ) -> tuple[RemoteCall, Any]:
        """Send a request and wait for the answer. Returns the call and its answer (`failed` if
        there is no answer within `seconds`).
        """
        now = time.monotonic()
        call = RemoteCall(message, submission, self.loop.create_future(), now, now)
        timer = self.loop.call_later(
            seconds, lambda: call.answer(failed=f"no answer within {seconds:.0f} s")
        )
        self._waiting.append(call)
        self._go_on()
        try:
            return call, await call.future
        finally:
            timer.cancel()
            link = call.link
            if link is not None and link.open.pop(call.key, None) is not None:
                link.cancelled.append(call.key)  # the call is still open on the server
                link.ready.set()

    async def close(self) -> None:
        """Close all connections. Open calls fail, and the server ends them."""
        if not self._session.closed:
            tasks = [task for task in (self._connecting, *self._links.values()) if task is not None]
            self._abandon()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._session.close()

    def _abandon(self) -> None:
        self.closed = True
        for call in [
            *self._waiting,
            *(call for link in self._links for call in link.open.values()),
        ]:
            call.answer(failed="the environment was closed")
        self._waiting.clear()

    def _go_on(self) -> None:
        """Send the waiting calls. If there is no connection, connect first."""
        if self._link is not None:
            self._link.ready.set()
        elif self._connecting is None and self._waiting and not self.closed:
            self._connecting = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        attempts = count()
        try:
            while self._waiting and self._link is None:
                if not await self._try():
                    await asyncio.sleep(backoff(next(attempts), _FIRST_SECONDS, _LONGEST_SECONDS))
        except asyncio.CancelledError:
            self._abandon()  # the loop is shutting down
            raise
        finally:
            self._connecting = None

    async def _try(self) -> bool:
        """Try to connect. False if the server cannot be reached."""
        try:
            link = await self._open()
        except HrmError as error:
            for call in self._waiting:
                call.answer(error=error.message, hint=error.hint)
            self._waiting.clear()
        except _GONE as error:
            self._give_up(str(error) or type(error).__name__)
            return False
        else:
            self._link = link
            self._links[link] = self.loop.create_task(self._serve(link))
            link.ready.set()
        return True

    def _give_up(self, why: str) -> None:
        """Fail calls that have waited too long."""
        before = time.monotonic() - self._peer.patience_seconds
        kept: deque[RemoteCall] = deque()
        for call in self._waiting:
            if call.waits_since > before:
                kept.append(call)
            else:
                call.answer(failed=f"{self._peer.address} is away ({why})")
        self._waiting = kept

    async def _open(self) -> Link:
        peer = self._peer
        try:
            socket = await self._session.ws_connect(
                f"{peer.address.base}/v1/stream",
                headers={"Authorization": f"Bearer {peer.token}"},
                timeout=_CLOSING,
                autoping=False,
                max_msg_size=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            raise (wrong_token if error.status == HTTPStatus.UNAUTHORIZED else stranger)(
                peer.address
            ) from None
        try:
            hello = await socket.receive(timeout=_HELLO_SECONDS)
            if socket.closed:
                raise ConnectionResetError("the connection broke before the server's first message")
            peer.about = about_of(str(hello.data), peer.address, peer.least)
        except BaseException:
            await socket.close()
            raise
        return Link(socket, peer.about)

    async def _serve(self, link: Link) -> None:
        helpers = [self.loop.create_task(link.watch()), self.loop.create_task(self._write(link))]
        for helper in helpers:  # if one of them ended, calls would wait forever
            helper.add_done_callback(partial(self._unhelped, link))
        try:
            await self._read(link)
        except asyncio.CancelledError:
            self._abandon()
            raise
        finally:
            for helper in helpers:
                helper.cancel()
            self._broken(link)
            await link.socket.close()

    def _unhelped(self, link: Link, helper: asyncio.Task[None]) -> None:
        """Close the connection after a helper task has ended, for any reason. The connection's
        calls are sent again on another one.
        """
        if helper.cancelled():
            return
        if (error := helper.exception()) is not None:
            _GUARD.caught(error)
        link.closing = self.loop.create_task(link.socket.close())

    async def _read(self, link: Link) -> None:
        with suppress(*_GONE):
            async for message in link.socket:
                link.heard = True
                if message.type is aiohttp.WSMsgType.TEXT:
                    try:
                        for answer in from_json(message.data):
                            self._take(link, answer)
                    except Exception as error:
                        _LOG.warning("%s sent an invalid answer: %r", self._peer.address, error)
                        return
                elif message.type is aiohttp.WSMsgType.PING:
                    await link.socket.pong(message.data)

    def _take(self, link: Link, answer: dict[str, Any]) -> None:
        call = link.open.pop(answer["key"], None)
        if call is None:  # cancelled meanwhile
            return
        call.link = None
        if "away" in answer:  # the server is shutting down, and the call has not begun there
            if self._link is link:
                self._link = None
            call.sent -= 1
            self._again(call)
        else:
            call.answer(**{**answer, "boot": link.about.boot})

    async def _write(self, link: Link) -> None:
        try:
            while await link.ready.wait():
                link.ready.clear()
                while (frame := self._frame(link)) is not None:
                    await link.socket.send_str(frame)
        except _GONE:
            await link.socket.close()

    def _frame(self, link: Link) -> str | None:
        """Next message, with as many waiting calls as fit (None if there is nothing to send)."""
        parts = [f'{{"key":{key},"cancel":true}}' for key in link.cancelled[:_MAX_CANCELLED]]
        del link.cancelled[:_MAX_CANCELLED]
        size = sum(map(len, parts)) + len(parts)
        while self._waiting and self._link is link and len(parts) < MAX_CALLS:
            text = self._text(self._waiting[0], link)
            size += len(text) + 1
            if parts and size >= link.about.request_bytes:
                break
            call = self._waiting.popleft()
            if text:
                parts.append(text)
                call.link, call.sent = link, call.sent + 1
                link.open[call.key] = call
        return f"[{','.join(parts)}]" if parts else None

    def _text(self, call: RemoteCall, link: Link) -> str:
        """JSON of a call (empty if it already has its answer)."""
        if call.future.done():
            return ""
        call.key = next(self._keys)
        try:
            message = self._message(call, link.about.boot)
            text = to_json({"key": call.key, **message}) if message else ""
        except Exception as error:  # any error is reported, and the other calls are sent
            known = isinstance(error, HrmError)
            call.answer(refused=error.message if known else f"The call cannot be sent: {error!r}.")
            return ""
        if len(text) + 1 >= link.about.request_bytes:
            call.answer(
                refused=(
                    f"The call is larger than the {link.about.request_bytes:,} bytes that the"
                    " server takes."
                )
            )
            return ""
        return text

    def _message(self, call: RemoteCall, boot: str) -> dict[str, Any] | None:
        """Message of a call to the server `boot` (None if it need not be sent). Raises HrmError if
        the call has no JSON form.
        """
        submission = call.submission
        memory = self._peer.session_memory
        if submission is None:
            if "fork" in call.message and memory.gone(call.message["fork"]["source"], boot):
                # only the cells in `memory` are left of the session, and the caller copies them
                call.answer(done=True)
                return None
            return call.message
        try:
            changed: dict[str, Any] = {"history": memory.history(submission, boot)}
        except HrmError as error:
            call.answer(failed=error.message)
            return None
        if (
            (seconds := submission.deadline_seconds) is not None
            and call.sent
            and seconds <= MOST_WAIT
        ):
            left = changed["deadline_seconds"] = seconds - (time.monotonic() - call.began)
            if left <= 0:
                call.answer(failed="it had not begun at its deadline")
                return None
        return {"run": submission_record(replace(submission, **changed))}

    def _broken(self, link: Link) -> None:
        self._links.pop(link, None)
        if self._link is link:
            self._link = None
        for call in reversed(link.open.values()):
            call.link = None
            if call.sent >= MAX_ATTEMPTS:
                call.answer(
                    failed=f"the connection to {self._peer.address} broke {call.sent} times"
                )
            else:
                self._again(call)
        link.open.clear()

    def _again(self, call: RemoteCall) -> None:
        call.waits_since = time.monotonic()
        self._waiting.appendleft(call)
        self._go_on()
