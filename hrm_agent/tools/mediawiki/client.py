"""Client of one wiki: search, and read.

For a page, the API gives the title after redirects, the canonical URL, the newest revision and,
with the extension TextExtracts, the text without tables and notes. If the extension is missing or
returns nothing, the text is made from the page's HTML. Only complete answers without an error are
cached.

`wiki_tools` makes two tools for a model of a wiki. A page can be longer than a conversation, so the
tool shows one part of it, with an outline of the rest. The artifact of each answer has the position
of the shown part as JSON, for a graph that cites.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel

from hrm_agent.basics.unicode import find_surrogate
from hrm_agent.errors import ConfigError, to_install
from hrm_agent.retrieval.html.text import html_to_text
from hrm_agent.tools.failures import ToolFailure
from hrm_agent.tools.mediawiki.api_schema import (
    ApiRow,
    Parsed,
    Query,
    QueryReply,
    in_shape,
)
from hrm_agent.tools.mediawiki.pages import Page, SearchHit
from hrm_agent.tools.mediawiki.transport import Asker, the_loop
from hrm_agent.trajectory import ToolStatus

if TYPE_CHECKING:
    from hrm_agent.tools.mediawiki.cache import AnswerCache

__all__ = ["MediaWiki", "open_wiki", "wiki_tools"]

_Shape = TypeVar("_Shape", bound=BaseModel)
_MOST_FOUND = 50
"""Maximum number of hits in one answer of a wiki."""
_LONGEST_QUERY = 300
"""Maximum number of characters of a query, as in Wikipedia's search."""
_CONTINUED = 10
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z0-9]{1,12})*|simple")
_HOST = re.compile(r"[\w.:-]+")
_HEADING = re.compile(r"<(/?)h([2-6])(\b[^<>]*)>", re.IGNORECASE)


class MediaWiki:
    """Client of the API of one wiki. Threads and event loops may share it. `asearch` and `apage`
    are the async versions of `search` and `page`.
    """

    def __init__(
        self,
        url: str,
        *,
        user_agent: str,
        cache: Path | str | None = None,
        cache_seconds: float = 86_400.0,
        tables: bool = False,
        timeout: float = 10.0,
        attempts: int = 4,
        patience: float = 60.0,
    ) -> None:
        """`url`: URL of `api.php`. `cache`: folder of cached answers, each for `cache_seconds`.
        `tables`: always read pages from their HTML, including tables and notes. `timeout`: limit in
        seconds for one request. `patience`: limit in seconds for all attempts and the waits between
        them.
        """
        if not any(mark in user_agent for mark in ("@", "://")):
            raise ConfigError(
                f"The user agent {user_agent!r} names no contact, which wikis ask for.",
                'Name one, as in user_agent="name/1.0 (you@example.org)".',
            )
        if not (user_agent.isascii() and user_agent.isprintable()):
            raise ConfigError(
                f"The user agent {user_agent!r} has characters that an HTTP header cannot have.",
                "Use printable ASCII.",
            )
        self.url = url
        self._tables = tables
        self._asker = Asker(
            _api(url), user_agent, timeout=timeout, attempts=attempts, patience=patience
        )
        self._cache: AnswerCache | None = None
        if cache is not None:
            try:
                from hrm_agent.tools.mediawiki.cache import AnswerCache
            except ImportError as error:
                raise ConfigError(
                    f"{error.name} is not installed, and a cache of answers needs it.",
                    f"Run `{to_install('retrieval')}`.",
                ) from error
            self._cache = AnswerCache(cache, cache_seconds)

    @classmethod
    def wikipedia(cls, language: str = "en", **options: Any) -> MediaWiki:
        """Wikipedia in a language. Raises `ConfigError` for an invalid language."""
        if not _LANGUAGE.fullmatch(language):
            raise ConfigError(
                f"{language!r} is not a language of a Wikipedia.",
                "Name one, for example en, de, simple or zh-yue.",
            )
        return cls(f"https://{language}.wikipedia.org/w/api.php", **options)

    def close(self) -> None:
        """Close connections and files. The next request opens them again."""
        the_loop().run(self._asker.close())
        if self._cache is not None:
            self._cache.close()

    def search(self, query: str, limit: int = 5) -> list[SearchHit]:
        """Pages whose text has the words, best first. If there are none, pages whose title nearly
        matches the query (empty if there are none either).

        `limit`: maximum number of pages, at most 50.
        """
        return the_loop().run(self.asearch(query, limit))

    async def asearch(self, query: str, limit: int = 5) -> list[SearchHit]:
        """Async version of `search`."""
        if not query.strip() or _cannot_be_sent(query):
            raise ToolFailure("The query has no words.", ToolStatus.INVALID_CALL)
        if len(query) > _LONGEST_QUERY:
            text = (
                f"The query has {len(query):,} characters, and a wiki takes {_LONGEST_QUERY}: give"
                " a few words."
            )
            raise ToolFailure(text, ToolStatus.INVALID_CALL)
        return await the_loop().run_async(self._search(query, max(1, min(limit, _MOST_FOUND))))

    def page(self, title: str) -> Page:
        """Page by its title. Raises `ToolFailure` if it is missing."""
        return the_loop().run(self.apage(title))

    async def apage(self, title: str) -> Page:
        """Async version of `page`."""
        named = " ".join(title.split())
        if not named or "|" in named or _cannot_be_sent(named) or len(named) > _LONGEST_QUERY:
            raise ToolFailure(f"{title[:80]!r} is no title of a page.", ToolStatus.INVALID_CALL)
        return await the_loop().run_async(self._page(named))

    def tools(self, page_characters: int = 8_000) -> list[BaseTool]:
        """Tools `wiki_search` and `wiki_page` for a model. `page_characters` limits the part of a
        page in one answer.
        """
        return wiki_tools(self, page_characters)

    async def _search(self, words: str, limit: int) -> list[SearchHit]:
        asked = _searching(words, limit)
        rows = (await self._query(asked | {"srwhat": "text"})).search
        # MediaWiki's built-in search finds words of a title only in a title search.
        rows = rows or (await self._query(asked | {"srwhat": "nearmatch"})).search
        return await self._described(rows[:limit]) if rows else []

    async def _described(self, rows: list[ApiRow]) -> list[SearchHit]:
        """Hits with the URLs and introductions of their pages. If several redirects to one page
        were found, the page is only in the first hit.
        """
        asked = {
            "action": "query",
            "pageids": "|".join(str(row.pageid) for row in rows),
            "redirects": "1",
        }
        wanted = {
            "prop": "info|extracts",
            "inprop": "url",
            "exintro": "1",
            "explaintext": "1",
            "exlimit": "max",
        }
        answer = await self._query(asked | wanted)
        to = {redirect.origin: redirect.to for redirect in answer.redirects}
        pages = {page.title: page for page in answer.pages}
        found = dict[str, SearchHit]()
        for row in rows:
            page = pages.get(_end_of(row.title, to))
            if page is not None and page.canonicalurl is not None and page.title not in found:
                snippet = html_to_text(row.snippet)
                intro = (page.extract or "").strip()
                found[page.title] = SearchHit(page.title, page.canonicalurl, snippet, intro)
        return list(found.values())

    async def _page(self, title: str) -> Page:
        wanted = {
            "prop": "info" if self._tables else "info|extracts",
            "inprop": "url",
            "explaintext": "1",
        }
        answer = await self._query(
            {"action": "query", "titles": title, "redirects": "1", "iwurl": "1", **wanted}
        )
        if answer.interwiki:
            other = answer.interwiki[0]
            text = f"{title!r} is a page of another wiki: {other.url[:300]!r}"
            raise ToolFailure(text, ToolStatus.ERROR)
        if answer.redirects and not answer.pages:
            raise ToolFailure(f"{title!r} is a redirect that leads in a circle.", ToolStatus.ERROR)
        if not answer.pages or answer.pages[0].invalid:
            reason = answer.pages[0].invalidreason[:300] if answer.pages else ""
            raise ToolFailure(
                f"{title!r} is no title of a page. {reason}".strip(), ToolStatus.INVALID_CALL
            )
        page = answer.pages[0]
        if page.missing or page.lastrevid is None or page.canonicalurl is None:
            raise ToolFailure(
                f"There is no page {title!r}. {await self._advice(title)}", ToolStatus.ERROR
            )
        text = (page.extract or "").strip()
        if not text:
            parsed = {"action": "parse", "oldid": str(page.lastrevid), "prop": "text"}
            shown = {"disabletoc": "1", "disableeditsection": "1", "disablelimitreport": "1"}
            html = (await self._ask(Parsed, parsed | shown)).parse.text
            marked = _HEADING.sub(_marked, html)
            text = (await asyncio.to_thread(html_to_text, marked, headings=False)).strip()
        return Page(page.title, page.canonicalurl, page.lastrevid, text)

    async def _advice(self, title: str) -> str:
        """Advice for a missing page: a title that nearly matches, such as one with another case."""
        with suppress(ToolFailure):
            near = await self._query(
                _searching(title[:_LONGEST_QUERY], 1) | {"srwhat": "nearmatch"}
            )
            if near.search:
                return f"Did you mean {near.search[0].title!r}?"
        return "Search for it by words of its text."

    async def _query(self, asked: dict[str, str]) -> Query:
        """Whole result of a query, joined from its parts."""
        answer = await self._ask(QueryReply, asked)
        whole = answer.query
        more = answer.more
        for _ in range(_CONTINUED):
            if more is None or "sroffset" in more:
                break
            given = {name: str(value) for name, value in more.items()}
            answer = await self._ask(QueryReply, asked | given)
            _add(whole, answer.query)
            more = answer.more
        return whole

    async def _ask(self, shape: type[_Shape], asked: dict[str, str]) -> _Shape:
        """One answer of the API, from the cache if possible."""
        shown = self._asker.shown
        question = json.dumps([self.url, sorted(asked.items())])
        # The key is a hash, as the URL may contain a password.
        key = hashlib.sha256(question.encode()).hexdigest()
        kept = await self._cache.get(key) if self._cache is not None else None
        if kept is not None:
            with suppress(ToolFailure):
                return in_shape(shape, kept, shown)
        answer = await self._asker.ask(asked)
        given = in_shape(shape, answer, shown)
        if self._cache is not None:
            await self._cache.set(key, answer)
        return given


def open_wiki(wiki: str, user_agent: str, cache: str | None = None) -> MediaWiki:
    """Wiki at the URL of its `api.php`, or the Wikipedia in a language ("en").

    Within a process, equal arguments return the same object, with its open connections.
    """
    return _opened(wiki.strip(), user_agent, cache)


@functools.lru_cache(maxsize=64)
def _opened(wiki: str, user_agent: str, cache: str | None) -> MediaWiki:
    if _LANGUAGE.fullmatch(wiki):
        return MediaWiki.wikipedia(wiki, user_agent=user_agent, cache=cache)
    if "://" in wiki:
        return MediaWiki(wiki, user_agent=user_agent, cache=cache)
    raise ConfigError(
        f"{wiki!r} is not a wiki.",
        'Name a language of Wikipedia, such as "en", or the URL of an API:'
        ' "https://host/w/api.php".',
    )


def _api(url: str) -> httpx.URL:
    try:
        api = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigError(f"{url!r} is not a URL: {error}") from error
    if (
        api.scheme not in ("http", "https")
        or not _HOST.fullmatch(api.host)
        or not api.path.endswith(".php")
        or api.query
    ):
        raise ConfigError(
            f"{url!r} is not the URL of a MediaWiki's API.",
            "The URL ends in api.php, as in https://en.wikipedia.org/w/api.php. The page"
            " Special:Version of a wiki shows it.",
        )
    return api.copy_with(fragment=None)


def _cannot_be_sent(text: str) -> bool:
    """True if a text has NUL or lone surrogates. A model may write these characters, but no URL can
    contain them.
    """
    return "\0" in text or find_surrogate(text) is not None


def _searching(words: str, limit: int) -> dict[str, str]:
    return {
        "action": "query",
        "list": "search",
        "srsearch": words,
        "srprop": "snippet",
        "srlimit": str(limit),
    }


def _end_of(title: str, redirects: dict[str, str]) -> str:
    """Title after following redirects, which may form a cycle."""
    for _ in range(len(redirects)):
        title = redirects.get(title, title)
    return title


def _add(whole: Query, part: Query) -> None:
    """Add a part of a result. Every part lists all pages, so only extracts that are still missing
    are added.
    """
    for row in part.pages:
        for page in whole.pages:
            if page.title == row.title and page.extract is None:
                page.extract = row.extract


def _marked(tag: re.Match[str]) -> str:
    """Tag of a heading in HTML, with the `==` signs that the heading has in an extract."""
    signs = "=" * int(tag[2])
    return f" {signs}{tag[0]}" if tag[1] else f"{tag[0]}{signs} "


_SHOWN_OF_A_HIT = 400
_SHOWN_OF_A_HEADING = 80
_SECTIONS_NAMED = 40


def wiki_tools(wiki: MediaWiki, page_characters: int) -> list[BaseTool]:
    """Tools `wiki_search` and `wiki_page` for a wiki."""

    async def wiki_search(query: str) -> tuple[str, list[dict[str, Any]]]:
        """Search a wiki for pages whose text has all words of the query. Few words find more."""
        found = await wiki.asearch(query)
        lines = [
            f"{one.title} <{one.url}>: {(one.snippet or one.intro)[:_SHOWN_OF_A_HIT]}"
            for one in found
        ]
        listed = "\n".join(lines) or "No page has these words."
        return listed, [{"title": one.title, "url": one.url} for one in found]

    async def wiki_page(title: str, start: int = 0) -> tuple[str, dict[str, Any]]:
        """Read the page of a wiki with this title; of a long one a stretch, from the character `start`."""
        page = await wiki.apage(title)
        if start < 0 or start >= max(1, len(page.text)):
            raise ToolFailure(
                f"The page has {len(page.text)} characters; start is {start}.",
                ToolStatus.INVALID_CALL,
            )
        end = min(len(page.text), start + page_characters)
        shown = {
            "title": page.title,
            "url": page.permanent_url,
            "revision": page.revision,
            "start": start,
            "end": end,
        }
        return (
            (
                f"{page.title}"
                f" <{page.permanent_url}>\n\n{page.text[start:end]}{_rest(page, start, end)}"
            ),
            shown,
        )

    return [_tool(wiki_search), _tool(wiki_page)]


def _tool(function: Callable[..., Coroutine[Any, Any, Any]]) -> BaseTool:
    """Tool from a coroutine. Sync callers wait for the same coroutine."""
    tool = StructuredTool.from_function(coroutine=function, response_format="content_and_artifact")
    tool.func = lambda **arguments: the_loop().run(function(**arguments))
    return tool


def _rest(page: Page, start: int, end: int) -> str:
    """Outline of the rest of a page (empty if all of it is shown)."""
    if end - start == len(page.text):
        return ""
    sections = [
        f"{section.title[:_SHOWN_OF_A_HEADING]} at {section.start}"
        for section in page.sections
        if section.title
    ]
    places = f" Sections: {'; '.join(sections[:_SECTIONS_NAMED])}." if sections else ""
    further = f" Go on with start={end}." if end < len(page.text) else ""
    return f"\n\n[Characters {start} to {end} of {len(page.text)}.{places}{further}]"
