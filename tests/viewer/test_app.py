"""The page's server: access control, headers for browsers, and bounds."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from hrm_agent.basics import http_server
from hrm_agent.basics.http_server import BadRequestError
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.store import open_store
from hrm_agent.testing import wait_until
from hrm_agent.viewer import answer_threads, app, events
from hrm_agent.viewer.answer_threads import AnswerThreads
from hrm_agent.viewer.app import WEB, Viewer, viewing
from hrm_agent.viewer.places import Place, Places
from hrm_agent.viewer.projections import Endpoint
from hrm_agent.viewer.security import FORK_HEADER, HEADERS
from tests.support.trajectory.samples import make_trajectory

TOKEN, FORK_TOKEN = "the-token", "the-other-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Served(NamedTuple):
    url: str
    port: int
    store: Path
    ask: aiohttp.ClientSession
    viewer: Viewer


class Forks:
    """Fork jobs that record the requests they receive."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []

    def plan(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(("plan", place.id, request))
        return {"digest": "d"}

    fork = replay = plan

    def all(self) -> dict[str, Any]:
        return {"jobs": []}


@asynccontextmanager
async def served(
    folder: Path, places: Places | None = None, **options: Any
) -> AsyncIterator[Served]:
    with open_store(folder / "store.db") as store:
        store.journal.write_trajectory(make_trajectory())
    places = places or Places([str(folder / "store.db")])
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.getsockname()[1]
    viewer = Viewer(places, TOKEN, "127.0.0.1", port, **options)
    async with viewing(viewer, listener), aiohttp.ClientSession(auto_decompress=False) as session:
        yield Served(f"http://127.0.0.1:{port}", port, folder / "store.db", session, viewer)
    places.close()


async def status(served: Served, path: str, method: str = "GET", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with served.ask.request(method, served.url + path, headers=named) as answer:
        await answer.read()
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, "of every answer"
        return answer.status


async def raw(served: Served, request: str) -> str:
    """Answer to a raw request that no client would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(request.replace("PORT", str(served.port)).replace("\n", "\r\n").encode("latin-1"))
    await writer.drain()
    try:
        return (await asyncio.wait_for(reader.read(), 60)).decode("latin-1")
    finally:
        writer.close()


# Files


async def test_the_files_of_the_page_are_served_to_anybody(tmp_path: Path) -> None:
    files = {
        f"/{path.relative_to(WEB)}": path
        for path in WEB.rglob("*")
        if path.suffix in (".js", ".css", ".html")
    }
    assert files
    async with served(tmp_path) as page:
        for path, file in files.items():
            async with page.ask.get(page.url + path) as answer:
                assert (answer.status, await answer.read()) == (200, file.read_bytes())
        for path in ("/", "/favicon.ico"):
            assert (await status(page, path), await status(page, path, "HEAD")) == (200, 200)
        assert await status(page, "/", "POST", Origin=page.url, **BEARER) == 404


PATHS = (
    *(
        "/app.py",
        "/../app.py",
        "/%2e%2e/app.py",
        "/core/..%2f..%2fapp.py",
        "/core/../../app.py",
        "/..\\app.py",
    ),
    *(
        "//etc/passwd",
        "/etc/passwd",
        "/%00",
        "/index.html%00.js",
        "/index.html/",
        "/core",
        "/core/",
        "/INDEX.HTML",
    ),
    *("/vendor/vendor.json", "/%ff", "/\xff", "/.", "/..", "/%252e%252e/app.py"),
)


@pytest.mark.parametrize("path", PATHS)
async def test_no_other_file_is(path: str, tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        answer = await raw(
            page, f"GET {path} HTTP/1.1\nHost: 127.0.0.1:PORT\nConnection: close\n\n"
        )
        assert answer.split()[1] in ("400", "404")
        assert "import " not in answer and "root:" not in answer


# Tokens


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (BEARER, 200),
        ({}, 401),
        ({"Authorization": "Bearer another"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"Cookie": f"token={TOKEN}; hrm-token={TOKEN}; Authorization={TOKEN}"}, 401),
        ({FORK_HEADER: TOKEN}, 401),
    ],
)
async def test_data_is_for_who_shows_the_token(
    headers: dict[str, str], expected: int, tmp_path: Path
) -> None:
    async with served(tmp_path) as page:
        for path in ("/api/v1/about", "/api/v1/runs", "/api/v1/jobs"):
            assert await status(page, path, **headers) == expected
            assert await status(page, path, "HEAD", **headers) == expected
        if expected != 200:
            for path in (
                "/api/v1/events",
                f"/api/v1/about?token={TOKEN}",
                "/api/v1/nothing",
                "/api/",
                "/api",
            ):
                assert await status(page, path, **headers) in (401, 404)


async def test_no_cookie_is_set(tmp_path: Path) -> None:
    async with served(tmp_path) as page, page.ask.get(page.url, headers=BEARER) as answer:
        assert "Set-Cookie" not in answer.headers


# Other sites


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example:PORT",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.0.0.1:PORT.evil.example",
            "localhost.:PORT",
        ),
        *(
            "127.0.0.1:PORT@evil.example",
            "[::1",
            "[::1]",
            "",
            "0.0.0.0:PORT",
            "127.1:PORT",
            "127.0.0.1:PORT,evil",
        ),
    ],
)
@pytest.mark.parametrize(
    "path", ["/", "/index.html", "/api/v1/about", "/api/v1/events", "/nothing"]
)
async def test_a_name_that_was_rebound_to_this_machine_is_refused(
    host: str, path: str, tmp_path: Path
) -> None:
    async with served(tmp_path) as page:
        asked = (
            f"GET {path} HTTP/1.1\nHost: {host}\nAuthorization: Bearer {TOKEN}\nConnection:"
            " close\n\n"
        )
        assert (await raw(page, asked)).split()[1] in ("400", "403")


async def test_our_own_names_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        for host in ("127.0.0.1:PORT", "localhost:PORT", "LOCALHOST:PORT", "[::1]:PORT"):
            assert (
                await raw(page, f"GET / HTTP/1.1\nHost: {host}\nConnection: close\n\n")
            ).split()[1] == "200"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Origin": "http://127.0.0.1:PORT"}, 200),
        ({"Origin": "http://localhost:PORT"}, 200),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1:PORT"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://evil.example:PORT"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        (
            {
                "Sec-Fetch-Site": "cross-site",
                "Sec-Fetch-Mode": "navigate",
                "Sec-Fetch-Dest": "document",
            },
            403,
        ),
    ],
)
async def test_another_site_s_page_is_refused(
    headers: dict[str, str], expected: int, tmp_path: Path
) -> None:
    async with served(tmp_path) as page:
        sent = {name: value.replace("PORT", str(page.port)) for name, value in headers.items()}
        assert await status(page, "/api/v1/about", **BEARER, **sent) == expected
        assert await status(page, "/style.css", **sent) == expected


async def test_a_link_of_another_site_leads_to_the_first_page_alone(tmp_path: Path) -> None:
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    async with served(tmp_path) as page:
        assert await status(page, "/", **link) == 200
        assert await status(page, "/", **link | {"Sec-Fetch-Dest": "iframe"}) == 403
        assert await status(page, "/index.html", **link) == 403


@pytest.mark.parametrize(
    "head",
    [
        "Host: 127.0.0.1:PORT\nHost: evil.example",
        "Host: 127.0.0.1:PORT\nContent-Length: 4\nTransfer-Encoding: chunked",
        "Host: 127.0.0.1:PORT\nContent-Length: 4\nContent-Length: 5",
        "Host: 127.0.0.1:PORT\nOrigin: http://127.0.0.1:PORT\nOrigin: http://evil.example",
        "Host: 127.0.0.1:PORT\nX: a\rHost: evil.example",
        "Host : 127.0.0.1:PORT",
        " Host: 127.0.0.1:PORT",
        "X: " + "a" * 20_000 + "\nHost: 127.0.0.1:PORT",
    ],
)
async def test_a_header_that_can_be_read_in_two_ways_is_refused(head: str, tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        answer = await raw(
            page, f"GET /api/v1/about HTTP/1.1\n{head}\nAuthorization: Bearer {TOKEN}\n\n"
        )
        assert answer.split()[1] in ("400", "403") and answer.count("HTTP/1.") == 1


async def test_what_is_asked_for_does_not_become_a_header(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        path = "/api/v1/trajectory?place=x%0d%0aSet-Cookie:%20a=b&id=1"
        async with page.ask.get(page.url + path, headers=BEARER) as answer:
            assert answer.status == 404 and "Set-Cookie" not in answer.headers


# Forks


async def test_a_server_that_only_shows_forks_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        own = {"Origin": page.url, FORK_HEADER: "", **BEARER}
        for action in ("fork/plan", "fork", "replay"):
            assert await status(page, f"/api/v1/{action}", "POST", **own) == 403


async def test_a_fork_wants_origin_and_both_tokens(tmp_path: Path) -> None:
    forks = Forks()
    async with served(tmp_path, forks=forks, fork_token=FORK_TOKEN) as page:
        whole = {"Origin": page.url, FORK_HEADER: FORK_TOKEN, **BEARER}
        body = {"place": "store.db", "id": "1"}

        async def post(headers: dict[str, str], action: str = "fork", **options: Any) -> int:
            options = options or {"json": body}
            async with page.ask.post(
                f"{page.url}/api/v1/{action}", headers=headers, **options
            ) as answer:
                await answer.read()
                return answer.status

        for name, wrong in (
            ("Origin", "http://evil.example"),
            (FORK_HEADER, TOKEN),
            ("Authorization", "Bearer x"),
        ):
            for headers in ({k: v for k, v in whole.items() if k != name}, whole | {name: wrong}):
                assert await post(headers) in (401, 403)
        assert await post(whole, "fork?x=1") == 400
        assert await post(whole, data="place=store.db") == 415, (
            "what a form of another site could send"
        )
        assert await post(whole, json=["store.db"]) == 400
        assert await post(whole, json={"place": "nothing"}) == 404
        assert await post(whole, data=b"x" * (2 << 20)) in (413, 415)
        assert forks.asked == []
        assert [await post(whole, action) for action in ("fork/plan", "fork", "replay")] == [
            200
        ] * 3
        assert forks.asked == [("plan", "store.db", body)] * 3
        assert await status(page, "/api/v1/fork", "GET", **whole) == 404
        assert await status(page, "/api/v1/jobs", **whole) == 200


# Answers


async def told(page: Served, path: str) -> tuple[int, dict[str, Any]]:
    async with page.ask.get(f"{page.url}/api/v1/{path}", headers=BEARER) as answer:
        return answer.status, await answer.json()


async def test_what_is_wrong_with_a_question_is_told(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        for path, expected, said in (
            ("nothing", 404, "There is no 'nothing'."),
            ("trajectory?id=1", 400, "'place' is missing"),
            ("trajectory?place=store.db", 400, "'id' is missing"),
            ("trajectory?place=store.db&id=1&id=2", 400, "given twice"),
            ("trajectory?place=store.db&id=1&what=2", 400, "no query value 'what'"),
            ("trajectory?place=nowhere&id=1", 404, "no place 'nowhere'"),
            ("trajectory?place=store.db&id=1", 404, ""),
            ("trajectories?place=store.db&after=x", 400, "not a whole number"),
            ("trajectories?place=store.db&limit=1000000", 400, "out of range"),
            ("about?x=1", 400, "no query value 'x'"),
        ):
            code, answer = await told(page, path)
            assert (code, set(answer["error"])) == (expected, {"message", "hint"})
            assert said in answer["error"]["message"]
        code, answer = await told(page, "about")
        assert code == 200 and (answer["fork"], answer["static"], answer["environment"]) == (
            False,
            False,
            False,
        )
        assert answer["places"] == [{"id": "store.db", "where": str(page.store), "problem": None}]


async def test_a_fault_of_ours_is_told_as_one_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(places: Sequence[Place]) -> dict[str, Any]:
        raise RuntimeError(f"a secret of {len(places)} places")

    monkeypatch.setitem(app.ENDPOINTS, "fails", Endpoint(fails, everywhere=True))  # pyright: ignore[reportArgumentType]
    async with served(tmp_path) as page:
        with caplog.at_level(logging.ERROR, "hrm_agent.viewer.app"):
            code, answer = await told(page, "fails")
        assert code == 500 and "secret" not in json.dumps(answer)
        assert "a secret of 1 places" in caplog.text


async def test_long_answers_are_packed_and_very_long_ones_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long(places: Sequence[Place]) -> dict[str, Any]:
        return {"text": "word " * 1000 * len(places)}

    monkeypatch.setitem(app.ENDPOINTS, "long", Endpoint(long, everywhere=True))  # pyright: ignore[reportArgumentType]
    async with served(tmp_path) as page:
        url = f"{page.url}/api/v1/long"
        async with page.ask.get(url, headers={"Accept-Encoding": "gzip", **BEARER}) as answer:
            body = await answer.read()
            assert answer.headers["Content-Encoding"] == "gzip" and len(body) < 500
            assert len(json.loads(gzip.decompress(body))["text"]) == 5000
        async with page.ask.get(url, headers={"Accept-Encoding": "identity", **BEARER}) as answer:
            assert "Content-Encoding" not in answer.headers and len(await answer.read()) > 5000
        monkeypatch.setattr(app, "_MOST_BYTES", 1000)
        code, error = await told(page, "long")
        assert code == 500 and "limit=N" in error["error"]["hint"]


async def test_requests_beyond_those_that_may_wait_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_threads, "MAX_WAITING", 2)
    threads, go = AnswerThreads(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> str:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return "done"

    under_way = [asyncio.create_task(threads.run(work)) for _ in range(answer_threads.THREADS + 2)]
    await asyncio.sleep(0)
    with pytest.raises(BadRequestError, match="Too many requests"):
        await threads.run(work)
    under_way[-1].cancel()  # its client has gone before it was its turn
    go.set()
    assert await asyncio.gather(*under_way[:-1]) == ["done"] * (answer_threads.THREADS + 1)
    assert await threads.run(work) == "done"


async def test_a_client_that_does_not_end_its_question_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SECONDS_TO_ASK", 0.05)
    async with served(tmp_path) as page:
        assert await raw(page, "GET / HTTP/1.1\nHost: 127.") == ""


# Hints of changes


async def next_line(stream: aiohttp.StreamReader, start: bytes) -> bytes:
    async with asyncio.timeout(60):
        while not (line := await stream.readline()).startswith(start):
            assert line, "the stream has ended"
        return line.removeprefix(start)


async def until_told_of(stream: aiohttp.StreamReader, place: str) -> None:
    """Read events until one names the place. Earlier events may name others, since a recent write
    may be reported twice.
    """
    assert await next_line(stream, b"event: ") == b"change\n"
    while place not in json.loads(await next_line(stream, b"data: "))["places"]:
        pass


async def test_a_change_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SECONDS_BETWEEN_LOOKS", 0.05)
    async with served(tmp_path, Places([str(tmp_path)])) as page:
        answer = await page.ask.get(f"{page.url}/api/v1/events", headers=BEARER)
        assert answer.content_type == "text/event-stream"
        await next_line(answer.content, b": listening")
        with open_store(page.store) as store:
            store.journal.write_trajectory(
                make_trajectory().model_copy(update={"id": "u", "thread_id": "u"})
            )
        await until_told_of(answer.content, "store.db")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "metrics.jsonl").touch()
        await until_told_of(answer.content, "new")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(page.url)


async def test_more_listeners_than_there_may_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_LISTENERS", 2)
    async with served(tmp_path) as page:
        url = f"{page.url}/api/v1/events"
        first, second = [await page.ask.get(url, headers=BEARER) for _ in range(2)]
        assert (first.status, second.status) == (200, 200)
        assert await status(page, "/api/v1/events", **BEARER) == 503
        first.close()
        await wait_until(lambda: page.viewer.events.listeners == 1)
        async with page.ask.get(url, headers=BEARER) as third:
            assert third.status == 200


class Busy(Places):
    """Places that report many changes at any time."""

    def changed(self) -> list[str]:
        return [f"{number:07}" * 100 for number in range(5_000)]


async def test_a_listener_that_does_not_read_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(events, "SECONDS_TO_TAKE", 0.2)
    async with served(tmp_path, Busy([str(tmp_path / "store.db")])) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port, limit=1000)
        head = (
            f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nAuthorization: Bearer"
            f" {TOKEN}\r\n\r\n"
        )
        writer.write(head.encode())
        await reader.readuntil(b"listening")
        assert page.viewer.events.listeners == 1
        await wait_until(lambda: page.viewer.events.listeners == 0)
        writer.close()
