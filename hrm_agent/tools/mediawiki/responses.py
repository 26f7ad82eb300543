"""Meaning of an HTTP answer: an object of the API, a reason to retry later, or a typed failure.

A MediaWiki returns errors as HTTP 200 with an `error` in the JSON. Proxies before it answer in
HTML. Another service may answer in foreign JSON, which must not be taken for "nothing found".
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import httpx
from pydantic_core import from_json

from hrm_agent.basics.http_client import bounded_body, retry_after
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.trajectory import ToolStatus

__all__ = ["RetryLater", "meaning", "read_body"]

_NOBODYS = ToolStatus.INFRASTRUCTURE
MAX_BYTES = 32 * 2**20
_LONGEST_PAUSE = 3600.0
"""Longest pause in seconds. A wiki that asks for more is asked once an hour, as a longer pause is
usually a mistake.
"""
_SHOWN = 300
"""Most characters of a wiki's own words in a failure."""
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_FORBIDDEN = (401, 403)
_TOO_LONG = (413, 414, 431)
_BUSY = ("maxlag", "ratelimited", "readonly")
"""Codes of the JSON `error` for which waiting helps."""
_REFUSED = ("readapidenied", "permissiondenied", "blocked", "autoblocked")
_GONE = ("missingtitle", "nosuchrevid", "nosuchpageid")


class RetryLater(Exception):
    """Exception for a wiki that asks to retry later, or could not be reached."""

    def __init__(self, failure: ToolFailure, seconds: float | None = None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.seconds = seconds
        """Pause in seconds that the wiki asked for (None if unknown)."""


async def read_body(response: httpx.Response) -> bytes:
    """Whole body, within the size limit."""
    too_large = ToolFailure(f"The answer is over {MAX_BYTES:,} bytes.", ToolStatus.OUTPUT_LIMIT)
    return b"".join(
        [part async for part in bounded_body(_unpacked(response), MAX_BYTES, too_large)]
    )


async def _unpacked(response: httpx.Response) -> AsyncIterator[bytes]:
    """Pieces of the body, decompressed here. httpx would decompress before the size is checked."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise ToolFailure(
            f"The answer is packed as {encoding[:40]!r}, for which nobody asked.", _NOBODYS
        )
    unpack = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    async for piece in response.aiter_raw():
        try:
            part = unpack.decompress(piece, MAX_BYTES + 1) if unpack else piece
        except zlib.error as error:
            raise RetryLater(
                ToolFailure(f"The answer cannot be unpacked: {error}", _NOBODYS)
            ) from error
        yield part


def meaning(url: str, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Object of the API. Raises `RetryLater` or `ToolFailure` if there is none."""
    later = retry_after(headers.get("Retry-After"), _LONGEST_PAUSE)
    if status in _PASSING:
        raise RetryLater(ToolFailure(f"{url} is not available (HTTP {status}).", _NOBODYS), later)
    if status in _FORBIDDEN:
        raise ToolFailure(f"{url} refuses to answer (HTTP {status}).", ToolStatus.DENIED)
    if status in _TOO_LONG:
        raise ToolFailure(
            f"The question is too long for {url} (HTTP {status}).", ToolStatus.INVALID_CALL
        )
    answer = _object(body)
    if answer is None and status == 200 and "json" in headers.get("Content-Type", ""):
        raise RetryLater(
            ToolFailure(f"{url} broke off in the middle of its answer.", _NOBODYS), later
        )
    if answer is not None and "error" in answer:
        raise _refusal(answer["error"], later)
    if (
        status != 200
        or answer is None
        or not answer.keys() & {"query", "parse", "batchcomplete", "continue"}
    ):
        raise ToolFailure(
            f"{url} is no API of a MediaWiki (HTTP {status}, {_kind(headers)}). The path of one"
            " ends in api.php.",
            _NOBODYS,
        )
    return answer


def _object(body: bytes) -> dict[str, Any] | None:
    """JSON object (None if invalid). The parser is strict about Unicode and depth, unlike `json`,
    as lone surrogates cannot be stored or searched for.
    """
    try:
        answer: Any = from_json(body, allow_inf_nan=False)
    except ValueError:
        return None
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else None


def _kind(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "of no content type").partition(";")[0][:60]


def _refusal(error: Any, later: float | None) -> Exception:
    """Exception for an `error` in the JSON: `RetryLater`, or a typed failure."""
    known = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    code, what = str(known.get("code", "unknown"))[:60], str(known.get("info", error))[:_SHOWN]
    if code in _BUSY:
        return RetryLater(ToolFailure(f"The wiki is busy ({code}): {what}", _NOBODYS), later)
    if code.startswith("internal_api_error"):
        return ToolFailure(f"The wiki failed ({code}): {what}", _NOBODYS)
    if code in _REFUSED:
        return ToolFailure(f"The wiki does not let us read ({code}): {what}", ToolStatus.DENIED)
    status = ToolStatus.ERROR if code in _GONE else ToolStatus.INVALID_CALL
    return ToolFailure(f"The wiki refused the request ({code}): {what}", status)
