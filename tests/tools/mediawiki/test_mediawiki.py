"""Behaviour that only a real MediaWiki shows: markup, redirects and revisions, and its rules for
clients.
"""

from __future__ import annotations

import html
from pathlib import Path

import httpx
import pytest

from hrm_agent.tools import ToolFailure
from hrm_agent.tools.mediawiki import MediaWiki, open_wiki
from hrm_agent.trajectory import ToolStatus
from tests.support.wiki.pages import FORGED
from tests.support.wiki.server import WikiServer
from tests.tools.mediawiki.conftest import AGENT, Clock


def test_text_is_what_a_reader_sees(wiki: MediaWiki) -> None:
    assert (
        wiki.page("Markup in words").text
        == "In HTML, <b> makes bold, &amp; an ampersand; café has an accent, and 5 km a space that"
        " keeps.\n'''not bold''' and {{no template}}"
    )
    heights = wiki.page("Heights").text
    assert heights.startswith("Heights of Vell: the Orrin Lighthouse has 41 metres.")
    assert "first item\nbelow it\none, with a note" in heights
    # An extract has no tables, but a page that is nothing else is read all the same.
    assert "Rope mill" not in heights
    assert wiki.page("Table of tides").text == "Port\tHigh water\nOrrin\t4.7 m\nBell Cove\t3.9 m"


def test_tables_are_read_where_they_are_asked_for(wiki_server: WikiServer, wiki: MediaWiki) -> None:
    whole = MediaWiki(wiki_server.url, user_agent=AGENT, tables=True)
    page = whole.page("Heights")
    assert "Tower\tMetres\nRope mill\t19" in page.text and "one, with a note[1]" in page.text
    assert (page.title, page.permanent_url) == (
        wiki.page("Heights").title,
        wiki.page("Heights").permanent_url,
    )
    extract, read = wiki.page("Orrin Lighthouse"), whole.page("Orrin Lighthouse")
    assert [(one.title, one.level) for one in read.sections] == [
        (one.title, one.level) for one in extract.sections
    ]
    assert read.text.split() == extract.text.split()


def test_a_long_page_is_whole(wiki: MediaWiki) -> None:
    page = wiki.page("Chronicle of Vell")
    assert (
        len(page.sections) == 251 and page.sections[-1].title == "1949" and len(page.text) > 30_000
    )
    passage = page.passage("In the year 1913 the ferry", size=200)
    assert "In the year 1913 the ferry of Vell crossed" in passage.text and len(passage.text) < 300
    (found,) = wiki.search("fog ferrymen")
    assert found.intro == "The chronicle of Vell was kept by its ferrymen."


@pytest.mark.parametrize(
    ("title", "status", "said"),
    [
        (
            "Elsewhere",
            ToolStatus.ERROR,
            "of another wiki: 'https://en.wikipedia.org/wiki/Lighthouse'",
        ),
        ("Special:RecentChanges", ToolStatus.ERROR, "There is no page"),
        ("File:No such file.png", ToolStatus.ERROR, "There is no page"),
        ("<b>", ToolStatus.INVALID_CALL, 'invalid characters: "<"'),
        ("../../etc/passwd", ToolStatus.INVALID_CALL, "no title of a page"),
        ("%41", ToolStatus.INVALID_CALL, "no title of a page"),
        ("é" * 200, ToolStatus.INVALID_CALL, "no title of a page"),
    ],
)
def test_titles_without_a_page(wiki: MediaWiki, title: str, status: ToolStatus, said: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        wiki.page(title)
    assert failure.value.status is status
    assert said in str(failure.value)


def test_redirects_of_all_kinds(wiki: MediaWiki) -> None:
    assert wiki.page("Storm of 1902").title == "Orrin Lighthouse"
    assert wiki.page("Tokyo#History").title == "東京"
    # The redirect's own text has the words too. The page is found once.
    assert [found.title for found in wiki.search("musculus")] == ["Blue whale"]


def test_a_citation_stays_true_when_the_page_changes(
    wiki_server: WikiServer, tmp_path: Path
) -> None:
    with_cache = open_wiki(wiki_server.url, AGENT, str(tmp_path))
    wiki_server.edit("Ferry", "The ferry is red.")
    before = with_cache.page("Ferry")
    assert with_cache.page("Ferry") == before
    wiki_server.edit("Ferry", "The ferry is blue.")
    after = open_wiki(wiki_server.url, AGENT).page("Ferry")
    assert (before.text, after.text) == ("The ferry is red.", "The ferry is blue.")
    assert after.revision > before.revision
    assert with_cache.page("Ferry") == before, "from the cache, for a day"
    for page in (before, after):
        seen = httpx.get(page.permanent_url, timeout=120)
        assert seen.status_code == 200 and page.text in html.unescape(seen.text)
    wiki_server.edit("Vanity", "A page about me.")
    assert open_wiki(wiki_server.url, AGENT).page("Vanity").text == "A page about me."


def test_what_a_wiki_says_is_text(wiki: MediaWiki) -> None:
    """Wiki text reaches a model as the content of one message. The chat template defuses control
    tokens in it.
    """
    page = wiki.page("Hostile page")
    assert FORGED in page.text and "<script>alert(1)</script>" in page.text
    search, _ = wiki.tools()
    (line,) = search.invoke({"query": "harbour"}).splitlines()
    assert line.startswith(f"Hostile page <{page.url}>: The harbour")


def test_a_wiki_that_is_behind_is_left_alone(
    wiki_server: WikiServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wiki's own lag error, forced here, asks for a pause of five seconds. The whole process
    keeps it.
    """
    eager = MediaWiki(wiki_server.url, user_agent=AGENT, attempts=1)
    with monkeypatch.context() as lagging:
        lagging.setattr("hrm_agent.tools.mediawiki.transport._LAG_SECONDS", -5)
        with pytest.raises(
            ToolFailure, match=r"busy \(maxlag\).*It asks for a pause of 5 s"
        ) as failure:
            eager.page("Vell")
    assert failure.value.status is ToolStatus.INFRASTRUCTURE
    with pytest.raises(ToolFailure, match=r"left alone for another 5 s"):
        MediaWiki(wiki_server.url, user_agent=AGENT, patience=1).page("Vell")
    assert clock.slept == []
    assert MediaWiki(wiki_server.url, user_agent=AGENT).page("Vell").title == "Vell"
    assert 5 <= sum(clock.slept) <= 5.5
