"""Clients of the wikis, with little patience."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hrm_agent.tools.mediawiki import MediaWiki
from tests.wiki.proxy import Proxy, serving
from tests.wiki.server import WikiServer

AGENT = "tests/1.0 (tests@example.org)"


@pytest.fixture
def wiki(wiki_server: WikiServer) -> Iterator[MediaWiki]:
    """The real one."""
    client = MediaWiki(wiki_server.url, user_agent=AGENT)
    yield client
    client.close()


@pytest.fixture
def proxy(wiki_server: WikiServer) -> Iterator[Proxy]:
    """Before the real one."""
    with serving(Proxy(wiki_server.url)) as proxy:
        yield proxy
