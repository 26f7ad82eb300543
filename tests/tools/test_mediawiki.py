"""The MediaWiki tools against a server of this process that answers, errs and dies as wikis do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hrm_agent.errors import ConfigError
from hrm_agent.tools import ToolFailure
from hrm_agent.tools.mediawiki import MediaWiki
from hrm_agent.trajectory import ToolStatus

AGENT = "tests/1.0 (tests@example.org)"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Wiki:
    """Serves the answers that a test put in `answers`, one for each request; then those of a small wiki."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[float, dict[str, str], str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((time.monotonic(), dict(request.query), request.headers["User-Agent"]))
        return await self.answers.pop(0)(request) if self.answers else web.json_response(usual(request.query))


def page(title: str) -> dict[str, Any]:
    url = f"http://wiki.test/wiki/{title.replace(' ', '_')}"
    return {"pageid": 7, "title": title, "lastrevid": 42, "canonicalurl": url, "extract": f"All about {title}.\n"}


def usual(query: Any) -> dict[str, Any]:
    if query.get("list") == "search":
        assert query["srwhat"] in ("text", "nearmatch")
        rows = [{"pageid": 7, "title": "Blue whale", "snippet": 'The <span class="m">whale</span> &amp; krill'}]
        return {"query": {"search": rows if "whale" in query["srsearch"] else []}}
    if query["action"] == "parse":
        return {"parse": {"text": "<div><h2>Bare</h2><p>From <b>HTML</b>.</p></div>"}}
    title = query.get("titles", "Blue whale")
    if title == "Missing":
        return {"query": {"pages": [{"title": title, "missing": True}]}}
    if title == "<bad>":
        return {"query": {"pages": [{"title": title, "invalid": True, "invalidreason": "It has '<'."}]}}
    found = page("Blue whale" if title == "Balaenoptera" else title)
    if title == "Bare":
        del found["extract"]
    return {"query": {"pages": [found]}}


def says(status: int = 200, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.json_response(body, status=status, headers=headers)

    return answer


def lagging(seconds: str) -> Answer:
    return says(headers={"Retry-After": seconds}, error={"code": "maxlag", "info": "Waiting for a host: 6 s lagged"})


async def html(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(text="<h1>Not here</h1>", content_type="text/html")


async def silence(request: web.Request) -> web.StreamResponse:
    del request
    await asyncio.sleep(0.8)
    return web.json_response({})


async def dies(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"query": ')
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.fixture
def wiki() -> Iterator[Wiki]:
    served, loop, ready = Wiki(), asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/api.php", served.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api.php"
        ready.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.run_forever()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield served
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.fixture
def client(wiki: Wiki) -> Iterator[MediaWiki]:
    client = MediaWiki(wiki.url, user_agent=AGENT, timeout=0.5, attempts=2, patience=3.0)
    yield client
    client.close()


def test_search_and_page(wiki: Wiki, client: MediaWiki) -> None:
    (found,) = client.search("a whale")
    assert (found.title, found.url) == ("Blue whale", "http://wiki.test/wiki/Blue_whale")
    assert found.snippet == "The whale & krill"
    assert client.search("zebra") == []
    read = client.page("Balaenoptera")
    assert (read.title, read.text, read.revision) == ("Blue whale", "All about Blue whale.", 42)
    assert read.permanent_url == "http://wiki.test/wiki/Blue_whale?oldid=42"
    assert client.page("東京 Straße").title == "東京 Straße"
    assert client.page("Bare").text == "== Bare ==\n\nFrom HTML."
    assert {agent for _, _, agent in wiki.requests} == {AGENT}
    assert {query["maxlag"] for _, query, _ in wiki.requests} == {"5"}


def test_the_tools_of_a_model(client: MediaWiki) -> None:
    search, read = client.tools()
    assert search.invoke({"query": "whale"}) == ("Blue whale <http://wiki.test/wiki/Blue_whale>: The whale & krill")
    assert search.invoke({"query": "zebra"}) == "No page has these words."
    assert read.invoke({"title": "Otter"}).startswith("Otter <http://wiki.test/wiki/Otter?oldid=42>\n\nAll about")


@pytest.mark.parametrize(
    ("title", "status"),
    [("Missing", ToolStatus.ERROR), ("<bad>", ToolStatus.INVALID_CALL), (" ", ToolStatus.INVALID_CALL),
     ("A|B", ToolStatus.INVALID_CALL)],
)  # fmt: skip
def test_pages_that_are_not_there(client: MediaWiki, title: str, status: ToolStatus) -> None:
    with pytest.raises(ToolFailure) as failure:
        client.page(title)
    assert failure.value.status is status


@pytest.mark.parametrize(
    ("answer", "status", "requests"),
    [
        (silence, ToolStatus.TIMEOUT, 2),
        (dies, ToolStatus.INFRASTRUCTURE, 2),
        (html, ToolStatus.INFRASTRUCTURE, 1),
        (says(500), ToolStatus.INFRASTRUCTURE, 2),
        (says(404), ToolStatus.INFRASTRUCTURE, 1),
        (says(403), ToolStatus.DENIED, 1),
        (says(error={"code": "badvalue", "info": "no"}), ToolStatus.INVALID_CALL, 1),
        (says(error={"code": "internal_api_error_DBQueryError", "info": "no"}), ToolStatus.INFRASTRUCTURE, 1),
        (lagging("0"), ToolStatus.INFRASTRUCTURE, 2),
        (says(503, {"Retry-After": "3600"}), ToolStatus.INFRASTRUCTURE, 1),
    ],
)
def test_failures_are_typed(wiki: Wiki, client: MediaWiki, answer: Answer, status: ToolStatus, requests: int) -> None:
    wiki.answers = [answer] * 5
    with pytest.raises(ToolFailure) as failure:
        client.page("Otter")
    assert failure.value.status is status
    assert len(wiki.requests) == requests
    assert str(failure.value)


@pytest.mark.parametrize("answer", [says(503, {"Retry-After": "1"}), lagging("1"), says(429, {"Retry-After": "1"})])
def test_retry_after_is_obeyed(wiki: Wiki, client: MediaWiki, answer: Answer) -> None:
    wiki.answers = [answer]
    assert client.page("Otter").title == "Otter"
    (first, *_), (second, *_) = wiki.requests
    assert 1.0 <= second - first < 2.5


def test_an_answer_without_end_is_cut_off(wiki: Wiki, client: MediaWiki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hrm_agent.tools.mediawiki.answers.MAX_BYTES", 100_000)
    wiki.answers = [says(query={"pages": ["x" * 1_000_000]})]
    with pytest.raises(ToolFailure) as failure:
        client.page("Otter")
    assert failure.value.status is ToolStatus.OUTPUT_LIMIT


def test_an_answer_that_drips_is_a_time_out(wiki: Wiki, client: MediaWiki) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(20):
            await response.write(b" ")
            await asyncio.sleep(0.05)
        return response

    wiki.answers = [drip, drip]
    with pytest.raises(ToolFailure) as failure:
        client.page("Otter")
    assert failure.value.status is ToolStatus.TIMEOUT


def test_nobody_there(wiki: Wiki) -> None:
    client = MediaWiki("http://127.0.0.1:9/api.php", user_agent=AGENT, attempts=1)
    with pytest.raises(ToolFailure) as failure:
        client.search("whale")
    assert failure.value.status is ToolStatus.INFRASTRUCTURE


def test_the_cache_outlives_the_client_and_has_no_errors(wiki: Wiki, tmp_path: Path) -> None:
    wiki.answers = [says(error={"code": "badvalue", "info": "no"})]
    for number in range(3):
        client = MediaWiki(wiki.url, user_agent=AGENT, cache=tmp_path / "cache")
        if number == 0:
            with pytest.raises(ToolFailure):
                client.page("Otter")
        else:
            assert client.page("Otter").text == "All about Otter."
        client.close()
    assert len(wiki.requests) == 2


def test_a_contact_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="whom to write to"):
        MediaWiki.wikipedia("de", user_agent="python")
    assert MediaWiki.wikipedia("de", user_agent=AGENT).url == "https://de.wikipedia.org/w/api.php"
