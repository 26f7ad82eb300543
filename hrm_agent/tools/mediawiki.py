"""Any MediaWiki as two tools: search its texts, and read a page.

    wiki = MediaWiki("https://en.wikipedia.org/w/api.php", user_agent="whales/1.0 (ann@example.org)", cache="runs/wiki")
    tools = wiki.tools()

A wiki is somebody's server. It is told who asks and whom to write to, asked by three threads at most, left alone when
it is behind (`maxlag`) and for as long as its `Retry-After` says, and not asked twice for what is in the cache on disk.

Its errors come as HTTP 200 with an `error` in the JSON; proxies before it answer in HTML. Each is a `ToolFailure` with
a status that says whose fault it is: `invalid_call` and `error` (no such page) are the model's to mend, `timeout`,
`infrastructure`, `denied` and `output_limit` are not. Only whole answers without an error are cached.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, cast

import httpx
from langchain_core.tools import BaseTool, StructuredTool

from hrm_agent.errors import ConfigError
from hrm_agent.retrieval.html_text import html_to_text
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.trajectory import ToolStatus

__all__ = ["Found", "MediaWiki", "Page"]

_AT_ONCE = 3
_LAG_SECONDS = 5
_MAX_BYTES = 32 * 2**20
_RETRIED = (408, 429, 500, 502, 503, 504)
_BUSY = ("maxlag", "ratelimited", "readonly")
"""Codes of the JSON `error` for which waiting helps."""
_LONGEST_WAIT = 8.0


@dataclass(frozen=True, slots=True)
class Found:
    """A page that a search found."""

    title: str
    url: str
    snippet: str
    """Plain text around the words that were found; empty where the wiki gives none."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it was at one revision."""

    title: str
    """The page's own title: a redirect has been followed."""
    url: str
    revision: int
    text: str
    """Plain text of the whole page."""

    @property
    def permanent_url(self) -> str:
        """The page at this revision, whatever becomes of it."""
        return f"{self.url}{'&' if '?' in self.url else '?'}oldid={self.revision}"


class _Retry(Exception):
    """The wiki asks to come back later, or could not be reached."""

    def __init__(self, failure: ToolFailure, seconds: float | None = None) -> None:
        super().__init__(str(failure))
        self.failure, self.seconds = failure, seconds


class MediaWiki:
    """The API of one wiki. Threads may share it."""

    def __init__(
        self,
        url: str,
        *,
        user_agent: str,
        cache: Path | str | None = None,
        cache_seconds: float = 86_400.0,
        timeout: float = 10.0,
        attempts: int = 4,
        patience: float = 60.0,
    ) -> None:
        """`url`: of `api.php`. `timeout`: seconds for one request; `patience`: for all attempts and their waits."""
        if not any(mark in user_agent for mark in ("@", "://")):
            raise ConfigError(
                f"The user agent {user_agent!r} does not say whom to write to.",
                'Wikis ask for a contact: user_agent="name/1.0 (you@example.org)".',
            )
        self.url, self.attempts, self.patience, self.timeout = url, attempts, patience, timeout
        self._client = httpx.Client(headers={"User-Agent": user_agent}, timeout=timeout, follow_redirects=True)
        self._gate = threading.BoundedSemaphore(_AT_ONCE)
        self._cache, self._cache_seconds = _open_cache(cache), cache_seconds

    @classmethod
    def wikipedia(cls, language: str = "en", **options: Any) -> MediaWiki:
        """Wikipedia in a language."""
        return cls(f"https://{language}.wikipedia.org/w/api.php", **options)

    def close(self) -> None:
        self._client.close()
        if self._cache is not None:
            self._cache.close()

    def search(self, query: str, limit: int = 5) -> list[Found]:
        """Pages whose text has the words, best first; empty if there are none."""
        if not query.strip():
            raise ToolFailure("The query has no words.", ToolStatus.INVALID_CALL)
        answer = self._ask(action="query", list="search", srsearch=query, srwhat="text", srlimit=str(limit))
        rows = answer.get("query", {}).get("search", [])
        if not rows:
            return []
        ids = "|".join(str(row["pageid"]) for row in rows)
        pages = self._ask(action="query", pageids=ids, prop="info", inprop="url")["query"]["pages"]
        urls = {page["pageid"]: page["canonicalurl"] for page in pages if "canonicalurl" in page}
        return [
            Found(row["title"], urls[row["pageid"]], html_to_text(row.get("snippet", "")))
            for row in rows
            if row["pageid"] in urls
        ]

    def page(self, title: str) -> Page:
        """A page by its title. Raises `ToolFailure` if there is none."""
        if "|" in title or not title.strip():
            raise ToolFailure(f"{title!r} is no title of a page.", ToolStatus.INVALID_CALL)
        wanted = {"prop": "info|extracts", "inprop": "url", "explaintext": "1", "redirects": "1"}
        pages = self._ask(action="query", titles=title, **wanted).get("query", {}).get("pages", [])
        if not pages or pages[0].get("invalid"):
            reason = pages[0].get("invalidreason", "") if pages else ""
            raise ToolFailure(f"{title!r} is no title of a page. {reason}".strip(), ToolStatus.INVALID_CALL)
        page = pages[0]
        if page.get("missing") or "lastrevid" not in page:
            raise ToolFailure(f"There is no page {title!r}. Search for it by words of its text.", ToolStatus.ERROR)
        text = page.get("extract") or self._parsed(page["lastrevid"])
        return Page(page["title"], page["canonicalurl"], page["lastrevid"], text.strip())

    def _parsed(self, revision: int) -> str:
        """The text from a page's HTML, for wikis without the extension TextExtracts."""
        html = self._ask(action="parse", oldid=str(revision), prop="text", disableeditsection="1", disabletoc="1")
        return html_to_text(html["parse"]["text"])

    def tools(self) -> list[BaseTool]:
        """`wiki_search` and `wiki_page`, for a model."""

        def wiki_search(query: str) -> str:
            """Search a wiki for pages whose text has the words of the query."""
            found = self.search(query)
            return "\n".join(f"{one.title} <{one.url}>: {one.snippet}" for one in found) or "No page has these words."

        def wiki_page(title: str) -> str:
            """Read the page of a wiki with this title."""
            page = self.page(title)
            return f"{page.title} <{page.permanent_url}>\n\n{page.text}"

        return [StructuredTool.from_function(wiki_search), StructuredTool.from_function(wiki_page)]

    def _ask(self, **parameters: str) -> dict[str, Any]:
        """One answer of the API, from the cache if it is there."""
        key = json.dumps([self.url, sorted(parameters.items())], ensure_ascii=False)
        kept: Any = self._cache.get(key) if self._cache is not None else None
        if kept is not None:
            return kept
        answer = self._patiently(parameters)
        if self._cache is not None:
            self._cache.set(key, answer, expire=self._cache_seconds)
        return answer

    def _patiently(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Ask until there is an answer, the attempts are used up, or the wait would outlast the patience."""
        deadline, attempt = time.monotonic() + self.patience, 0
        while True:
            try:
                with self._gate:
                    return self._once(parameters)
            except _Retry as error:
                attempt += 1
                grown = random.uniform(0.5, 1.0) * min(_LONGEST_WAIT, 0.5 * 2**attempt)
                # Those who were sent away together are not to come back together.
                wait = grown if error.seconds is None else error.seconds * random.uniform(1.0, 1.1)
                if attempt >= self.attempts or time.monotonic() + wait > deadline:
                    raise error.failure from error
                time.sleep(wait)

    def _once(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        query = {**parameters, "format": "json", "formatversion": "2", "maxlag": str(_LAG_SECONDS)}
        try:
            with self._client.stream("GET", self.url, params=query) as response:
                later = _retry_after(response.headers.get("Retry-After"))
                return self._answer(response.status_code, _body(response, self.timeout), later)
        except httpx.TimeoutException as error:
            raise _Retry(
                ToolFailure(f"{self.url} gave no answer in {self.timeout:g} s.", ToolStatus.TIMEOUT)
            ) from error
        except httpx.HTTPError as error:
            failure = ToolFailure(f"{self.url} cannot be reached: {error}", ToolStatus.INFRASTRUCTURE)
            raise _Retry(failure) from error

    def _answer(self, status: int, body: bytes, later: float | None) -> dict[str, Any]:
        if status in _RETRIED:
            failure = ToolFailure(f"{self.url} is not available (HTTP {status}).", ToolStatus.INFRASTRUCTURE)
            raise _Retry(failure, later)
        if status in (401, 403):
            raise ToolFailure(f"{self.url} refuses to answer (HTTP {status}).", ToolStatus.DENIED)
        try:
            answer: Any = json.loads(body)
        except ValueError:
            answer = None
        if status != 200 or not isinstance(answer, dict):
            raise ToolFailure(
                f"{self.url} is no API of a MediaWiki: HTTP {status}, and no JSON object. Its path ends in api.php.",
                ToolStatus.INFRASTRUCTURE,
            )
        given = cast("dict[str, Any]", answer)
        if "error" in given:
            raise _refusal(given["error"], later)
        return given


def _refusal(error: Any, later: float | None) -> Exception:
    """What an `error` in the JSON means: to come back later, or that the request was wrong."""
    known = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    code, what = str(known.get("code", "unknown")), str(known.get("info", error))
    if code in _BUSY:
        return _Retry(ToolFailure(f"The wiki is busy ({code}): {what}", ToolStatus.INFRASTRUCTURE), later)
    if code.startswith("internal_api_error"):
        return ToolFailure(f"The wiki failed ({code}): {what}", ToolStatus.INFRASTRUCTURE)
    return ToolFailure(f"The wiki refused the request ({code}): {what}", ToolStatus.INVALID_CALL)


def _body(response: httpx.Response, seconds: float) -> bytes:
    """The whole answer. httpx's time-outs are for each read: a body that drips is bounded here."""
    body, deadline = bytearray(), time.monotonic() + seconds
    for piece in response.iter_bytes():
        body += piece
        if len(body) > _MAX_BYTES:
            raise ToolFailure(f"The answer is over {_MAX_BYTES:,} bytes.", ToolStatus.OUTPUT_LIMIT)
        if time.monotonic() > deadline:
            raise httpx.ReadTimeout("the answer came too slowly")
    return bytes(body)


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, from seconds or a date; None if it says nothing."""
    try:
        if value is None or value.strip().isdigit():
            return None if value is None else float(value)
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def _open_cache(folder: Path | str | None) -> Any:
    if folder is None:
        return None
    from diskcache import Cache, JSONDisk

    return Cache(str(folder), disk=JSONDisk)
