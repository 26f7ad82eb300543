"""Clients of the wikis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hrm_agent.tools.mediawiki import MediaWiki
from hrm_agent.tools.mediawiki import transport as asking
from tests.support.wiki.proxy import Proxy, serving
from tests.support.wiki.server import WikiServer

AGENT = "tests/1.0 (tests@example.org)"


class Clock:
    """Clock whose pauses take no time and are recorded."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Clock for pauses of wikis, of which none is known yet."""
    clock = Clock()
    monkeypatch.setattr(asking, "_now", clock.monotonic)
    monkeypatch.setattr(asking, "_sleep", clock.sleep)
    monkeypatch.setattr(asking, "_hosts", {})
    return clock


@pytest.fixture
def wiki(wiki_server: WikiServer) -> Iterator[MediaWiki]:
    """Client of the real wiki."""
    client = MediaWiki(wiki_server.url, user_agent=AGENT)
    yield client
    client.close()


@pytest.fixture
def proxy(wiki_server: WikiServer) -> Iterator[Proxy]:
    """Proxy in front of the real wiki."""
    with serving(Proxy(wiki_server.url)) as proxy:
        yield proxy
