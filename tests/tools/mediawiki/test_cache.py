"""Cached answers on disk: one wiki's, complete ones only, shared by processes, and safe from other
writers.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.tools import ToolFailure
from hrm_agent.tools.mediawiki import MediaWiki, open_wiki
from hrm_agent.tools.mediawiki.cache import AnswerCache
from tests.support.wiki.proxy import Proxy, dies, says
from tests.tools.mediawiki.conftest import AGENT


def test_only_whole_answers_are_kept(proxy: Proxy, tmp_path: Path) -> None:
    proxy.answers = [says(error={"code": "badvalue", "info": "no"}), dies, says(200, query="?")]
    for _ in range(2):
        with pytest.raises(ToolFailure):
            MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path, attempts=1).page("Vell")
    client = MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path)
    with pytest.raises(ToolFailure, match="no MediaWiki"):
        client.page("Vell")
    page, asked = client.page("Vell"), len(proxy.asked)
    client.close()
    assert client.page("Vell") == page
    assert MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path).page("Vell") == page
    assert len(proxy.asked) == asked
    assert MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path).page("Krill").title == "Krill"
    assert len(proxy.asked) == asked + 1


def test_another_wiki_has_answers_of_its_own(proxy: Proxy, wiki: MediaWiki, tmp_path: Path) -> None:
    proxy.always = says(query={"search": []})
    assert MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path).search("krill") == []
    assert MediaWiki(wiki.url, user_agent=AGENT, cache=tmp_path).search("krill") != []


def test_old_answers_are_asked_for_again(proxy: Proxy, tmp_path: Path) -> None:
    client = MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path, cache_seconds=0)
    assert client.page("Vell") == client.page("Vell")
    assert len(proxy.asked) == 2


async def test_it_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hrm_agent.tools.mediawiki.cache._MAX_BYTES", 500_000)
    cache, rows = (
        AnswerCache(tmp_path, seconds=60.0),
        [{"noise": os.urandom(20_000).hex()} for _ in range(60)],
    )
    for number, row in enumerate(rows):
        await cache.set(f"key {number}", row)
    assert await cache.get("key 59") == rows[59] and await cache.get("key 0") is None
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.val")) < 600_000
    cache.close()


PROGRAM = """
import os, sys
from hrm_agent.tools.mediawiki import open_wiki

wiki = open_wiki(sys.argv[1], "tests/1.0 (tests@example.org)", sys.argv[2])
titles = ["Vell", "Krill", "Zürich", "東京", "AC/DC"]
before = [wiki.page(title).text for title in titles]
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    assert [wiki.page(title).text for title in titles] == before
else:
    assert [wiki.page(title).text for title in titles] == before
    assert wiki.page("Blue whale").title == "Blue whale"
    os._exit(0)
"""


def test_processes_share_it(proxy: Proxy, tmp_path: Path) -> None:
    """Includes processes that start together, and processes that fork."""
    command = [sys.executable, "-c", PROGRAM, proxy.url, str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[1] for process in running] == [""] * 2
    assert [process.returncode for process in running] == [0] * 2
    asked = len(proxy.asked)
    assert 6 <= asked <= 12
    assert (
        open_wiki(proxy.url, AGENT, str(tmp_path / "cache")).page("Blue whale").title
        == "Blue whale"
    )
    assert len(proxy.asked) == asked


class Bomb:
    """Object that leaves a file behind if it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("column", ["value", "key"])
def test_what_others_put_there_is_not_run(proxy: Proxy, tmp_path: Path, column: str) -> None:
    client, gone = (
        MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path / "cache"),
        tmp_path / "gone",
    )
    page = client.page("Vell")
    with sqlite3.connect(tmp_path / "cache" / "cache.db") as database:
        bomb = pickle.dumps(Bomb(gone))
        if column == "value":
            database.execute("UPDATE Cache SET mode = 4, value = ?", (bomb,))
        else:
            database.execute("UPDATE Cache SET raw = 0, key = ?", (bomb,))
    assert client.page("Vell") == page
    assert len(proxy.asked) == 2 and not gone.exists()


def test_no_file_elsewhere_is_read_or_removed(proxy: Proxy, tmp_path: Path) -> None:
    client, other = (
        MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path / "cache"),
        tmp_path / "other",
    )
    other.write_text("mine")
    page = client.page("Vell")
    with sqlite3.connect(tmp_path / "cache" / "cache.db") as database:
        database.execute("UPDATE Cache SET mode = 2, filename = '../other', value = NULL")
    assert client.page("Vell") == page and len(proxy.asked) == 2
    with sqlite3.connect(tmp_path / "cache" / "cache.db") as database:
        database.execute("UPDATE Cache SET expire_time = 0, filename = '../other'")
    assert client.page("Krill").title == "Krill"
    assert other.read_text() == "mine"


def test_a_damaged_cache_costs_no_answer(
    proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = MediaWiki(proxy.url, user_agent=AGENT, cache=tmp_path)
    page = client.page("Vell")
    with sqlite3.connect(tmp_path / "cache.db") as database:
        database.execute("UPDATE Cache SET value = x'00'")
    assert client.page("Vell") == page
    with sqlite3.connect(tmp_path / "cache.db") as database:
        database.execute("DROP TABLE Cache")
    assert [client.page("Vell"), client.page("Vell")] == [page, page]
    assert len([record for record in caplog.records if "cannot be used" in record.message]) == 1


def test_folders_that_cannot_be_a_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "cache.db").write_text(
        "no database, but something that is long enough to be one" * 99
    )
    for name in ("file", "file/below", "used"):
        with pytest.raises(ConfigError, match="cannot be used as a cache of a wiki"):
            open_wiki("en", AGENT, str(tmp_path / name))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("wiki", "said"),
    [
        ("", "is not a wiki"),
        ("English!", "is not a wiki"),
        ("en.evil.example/#", "is not a wiki"),
        ("https://en.wikipedia.org", "is not the URL of a MediaWiki"),
        ("https://en.wikipedia.org/wiki/Whale", "is not the URL of a MediaWiki"),
        ("ftp://host/api.php", "is not the URL of a MediaWiki"),
        ("file:///w/api.php", "is not the URL of a MediaWiki"),
        ("https:///w/api.php", "is not the URL of a MediaWiki"),
        ("https://host/api.php?action=edit", "is not the URL of a MediaWiki"),
        ("https://[/api.php", "is not the URL of a MediaWiki"),
        ("https://host\n/api.php", "is not a URL"),
    ],
)
def test_what_is_no_wiki(wiki: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        open_wiki(wiki, AGENT)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("agent", ["python", "", "bot/1.0 (a@b.org)\r\nX: y", "böt/1.0 (a@b.org)"])
def test_who_does_not_say_who_he_is(agent: str) -> None:
    with pytest.raises(ConfigError, match="user agent"):
        open_wiki("en", agent)


def test_wikis_by_language() -> None:
    for language in ("en", "de", "simple", "zh-min-nan", "be-x-old", "roa-rup"):
        assert open_wiki(language, AGENT).url == f"https://{language}.wikipedia.org/w/api.php"
    assert open_wiki("en", AGENT) is open_wiki(" en ", AGENT)
    with pytest.raises(ConfigError, match="is not a language"):
        MediaWiki.wikipedia("en/evil", user_agent=AGENT)
