"""Contract of any wiki: the real MediaWiki, and its local stand-in."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hrm_agent.tools import ToolFailure
from hrm_agent.tools.local_wiki import LocalWiki
from hrm_agent.tools.mediawiki import MediaWiki, Page
from hrm_agent.trajectory import ToolStatus
from tests.support.wiki.pages import PLAIN, as_folder

TITLES = [title for title, text in PLAIN.items() if not text.startswith("#REDIRECT")]
REDIRECTS = [
    ("Tokyo", "東京"),
    ("Balaenoptera musculus", "Blue whale"),
    ("Sulphur-bottom", "Blue whale"),
]


@pytest.fixture(scope="module", params=["mediawiki", "local"])
def wiki(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MediaWiki]:
    agent = "tests/1.0 (tests@example.org)"
    if request.param == "mediawiki":
        yield MediaWiki(request.getfixturevalue("wiki_server").url, user_agent=agent)
        return
    with LocalWiki(as_folder(tmp_path_factory.mktemp("local") / "pages")) as local:
        yield MediaWiki(local.url, user_agent=agent)


def words(text: str) -> list[str]:
    return re.sub("==+", " ", text).split()


def test_pages_are_read_by_their_titles(wiki: MediaWiki) -> None:
    """Pages can also be opened at their permanent URLs."""
    with ThreadPoolExecutor(4) as threads:
        pages = list(threads.map(wiki.page, TITLES))
        shown = list(threads.map(lambda page: httpx.get(page.permanent_url, timeout=120), pages))
    for title, page, seen in zip(TITLES, pages, shown, strict=True):
        assert (page.title, words(page.text)) == (title, words(PLAIN[title]))
        assert f"oldid={page.revision}" in page.permanent_url and seen.status_code == 200, title
        assert all(word in html.unescape(seen.text) for word in words(PLAIN[title]))
    assert len({page.url for page in pages}) == len(pages)


async def test_the_async_twins_give_the_same(wiki: MediaWiki) -> None:
    assert await wiki.apage("Vell") == wiki.page("Vell")
    assert await wiki.asearch("krill") == wiki.search("krill") != []


def test_a_search_looks_into_texts(wiki: MediaWiki) -> None:
    (found,) = wiki.search("furniture")
    assert found.title == "Orrin Lighthouse" and found.url == wiki.page("Orrin Lighthouse").url
    assert "furniture" in found.snippet and found.intro.startswith("The Orrin Lighthouse stands on")
    assert "Lamp" not in found.intro
    assert {one.title for one in wiki.search("krill")} == {"Krill", "Blue whale"}
    assert len(wiki.search("Vell", limit=2)) == 2
    assert wiki.search("no such words anywhere") == []


@pytest.mark.parametrize(
    ("query", "title"), [("who was here?", "Who was here?"), ("tokyo", "東京")]
)
def test_a_search_by_title(wiki: MediaWiki, query: str, title: str) -> None:
    """Pages are found by words of the text, or by the title itself if that finds nothing."""
    assert title in {found.title for found in wiki.search(query)}


@pytest.mark.parametrize(("title", "target"), REDIRECTS)
def test_redirects_lead_to_the_page(wiki: MediaWiki, title: str, target: str) -> None:
    assert wiki.page(title) == wiki.page(target)


@pytest.mark.parametrize(
    ("title", "said"), [("Here", "in a circle"), ("Nowhere", "There is no page 'Nowhere'")]
)
def test_redirects_that_lead_nowhere(wiki: MediaWiki, title: str, said: str) -> None:
    with pytest.raises(ToolFailure, match=said) as failure:
        wiki.page(title)
    assert failure.value.status is ToolStatus.ERROR


@pytest.mark.parametrize(
    "title", ["vell", " Vell\n", "Orrin_Lighthouse", " orrin\u3000 Lighthouse", "Zu\u0308rich"]
)
def test_titles_are_written_in_several_ways(wiki: MediaWiki, title: str) -> None:
    assert wiki.page(title).title in ("Vell", "Orrin Lighthouse", "Zürich")


@pytest.mark.parametrize(
    ("title", "status"),
    [
        ("No such page", ToolStatus.ERROR),
        ("東京都庁?&=#", ToolStatus.ERROR),
        ("", ToolStatus.INVALID_CALL),
        ("Vell|Krill", ToolStatus.INVALID_CALL),
        ("\x1fVell\x1fKrill", ToolStatus.ERROR),
        ("\ud800", ToolStatus.INVALID_CALL),
        ("x" * 100_000, ToolStatus.INVALID_CALL),
    ],
)
def test_pages_that_are_not_there(wiki: MediaWiki, title: str, status: ToolStatus) -> None:
    with pytest.raises(ToolFailure) as failure:
        wiki.page(title)
    assert failure.value.status is status
    assert len(str(failure.value)) < 400


def test_a_title_in_another_case_is_put_right(wiki: MediaWiki) -> None:
    with pytest.raises(ToolFailure, match="Did you mean 'Orrin Lighthouse'"):
        wiki.page("orrin lighthouse")


@pytest.mark.parametrize("query", ["", " \n", "\ud800", "x" * 100_000])
def test_queries_that_are_none(wiki: MediaWiki, query: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        wiki.search(query)
    assert failure.value.status is ToolStatus.INVALID_CALL


@pytest.mark.parametrize(
    "query", ['"', "Vell'", "*", "AND OR NOT", "-", "vell:", "(", "\\", "% _", "東京 🐋", "a" * 300]
)
def test_no_query_is_a_syntax_error(wiki: MediaWiki, query: str) -> None:
    assert isinstance(wiki.search(query), list)


def test_sections_and_passages_are_stretches_of_the_text(wiki: MediaWiki) -> None:
    page = wiki.page("Orrin Lighthouse")
    assert [(section.title, section.level) for section in page.sections] == [
        ("", 1),
        ("Lamp", 2),
        ("Fuel", 3),
        ("Storm of 1902", 2),
    ]
    assert "".join(page.text[section.start : section.end] for section in page.sections) == page.text
    passage = page.passage("paraffin electric 1958", size=140)
    assert passage.text == page.text[passage.start : passage.end]
    assert passage.text.startswith("Paraffin replaced") and passage.text.endswith("in 1958.")
    both = page.passage("built engineer lamp", size=400)
    assert both.text.startswith("The Orrin") and both.text.endswith("in Zürich.")
    cut = page.passage("engineer whale", size=80)
    assert cut.text == page.text[cut.start : cut.end] and {"engineer", "whale"} <= set(
        cut.text.split()
    )
    assert len(cut.text) < 120 and cut.text.strip() == cut.text
    assert page.passage("zebra", size=50).start == 0
    unspaced = Page("東京", "", 1, "あ" * 500 + "首都" + "い" * 500).passage("日本の首都", size=20)
    assert "首都" in unspaced.text and len(unspaced.text) < 100


def test_a_model_searches_and_reads(wiki: MediaWiki) -> None:
    search, read = wiki.tools(page_characters=120)
    assert search.invoke({"query": "limmat"}).startswith("Zürich <http://127.0.0.1:")
    assert search.invoke({"query": "zebra"}) == "No page has these words."
    page = wiki.page("Orrin Lighthouse")
    call = {
        "type": "tool_call",
        "name": "wiki_page",
        "id": "1",
        "args": {"title": "orrin Lighthouse", "start": 60},
    }
    answer = read.invoke(call)
    assert answer.artifact == {
        "title": page.title, "url": page.permanent_url, "revision": page.revision, "start": 60, "end": 180
    }  # fmt: skip
    assert answer.content.startswith(
        f"Orrin Lighthouse <{page.permanent_url}>\n\n{page.text[60:180]}\n\n[Characters 60"
    )
    assert (
        f"Lamp at {page.text.index('== Lamp')}" in answer.content
        and "Go on with start=180" in answer.content
    )
    with pytest.raises(ToolFailure, match=f"has {len(page.text)} characters"):
        read.invoke({"title": "Orrin Lighthouse", "start": 10_000})
    assert read.invoke({"title": "Empty page"}).endswith(
        f"oldid={wiki.page('Empty page').revision}>\n\n"
    )
