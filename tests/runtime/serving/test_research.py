"""The research agent for chat clients. The server determines its sources."""

from __future__ import annotations

import pytest

from hrm_agent.errors import ConfigError
from tests.runtime.serving.conftest import Serve
from tests.support.graphs.research_scripts import AGENT, ASKED, Researcher
from tests.support.graphs.small_wiki import SmallWiki


async def test_a_served_research_looks_where_the_server_says(serve: Serve) -> None:
    wiki = SmallWiki()
    async with serve(Researcher(), context={"wiki": wiki.url, "user_agent": AGENT}) as served:
        client = served.client()
        whole = await client.chat.completions.create(
            model="research",
            messages=[{"role": "user", "content": ASKED}],
            max_tokens=4096,
            extra_body={"context": {"max_turns": 7}},
        )
        answer = whole.choices[0].message.content or ""
        assert answer.startswith(
            "It is 29.9 m long [1].\nKrill come up at night [2].\n\nSources:\n[1] Blue whale"
        )
        stream = await client.chat.completions.create(
            model="research",
            messages=[{"role": "user", "content": ASKED}],
            max_tokens=4096,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "".join(pieces) == answer, "what is shown is the checked text, not the draft"
    wiki.close()


async def test_an_option_that_no_graph_has_is_told_at_the_start(serve: Serve) -> None:
    with pytest.raises(ConfigError, match="None of the graphs has an option 'wikis'"):
        async with serve(context={"wikis": "en"}):
            pass
