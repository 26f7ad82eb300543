"""Features of the local wiki itself: a changing folder, awkward files, ports, and its end."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import httpx
import pytest

from hrm_agent.errors import RetrievalError
from hrm_agent.tools import ToolFailure
from hrm_agent.tools.local_wiki import LocalWiki
from hrm_agent.tools.mediawiki import MediaWiki
from tests.tools.mediawiki.conftest import AGENT


def test_files_of_all_kinds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "the_cape.txt").write_text("A cape.\n\n## No heading in plain text")
    (tmp_path / "named.md").write_text("# Who? What & Why/Where + 50%\nA name.\n\n## Part ##\nOne.")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 \x00")
    (tmp_path / "nothing.md").touch()
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "gone.md").symlink_to(tmp_path / "not there")
    (tmp_path / "picture.png").write_bytes(os.urandom(99))
    with LocalWiki(tmp_path) as local:
        wiki = MediaWiki(local.url, user_agent=AGENT)
        assert set(local.pages()) == {
            "Below/the cape",
            "Who? What & Why/Where + 50%",
            "Latin",
            "Nothing",
        }
        assert wiki.page("below/the_cape").text == "A cape.\n\n## No heading in plain text"
        named = wiki.page("Who? What & Why/Where + 50%")
        assert named.text == "A name.\n\n== Part ==\nOne." and named.url in {
            one.url for one in wiki.search("name")
        }
        assert httpx.get(named.permanent_url).text.endswith(f"<pre>{named.text}</pre>")
        assert wiki.page("Latin").text == "caf\ufffd \ufffd"
        assert wiki.page("Nothing").text == ""
    assert capfd.readouterr() == ("", "")


def test_a_page_that_changes_has_another_revision(tmp_path: Path) -> None:
    (tmp_path / "Vell.md").write_text("An island.")
    with LocalWiki(tmp_path) as local:
        wiki = MediaWiki(local.url, user_agent=AGENT)
        before = wiki.page("Vell")
        (tmp_path / "Vell.md").write_text("A reef.")
        after = wiki.page("Vell")
        assert (before.text, after.text) == (
            "An island.",
            "A reef.",
        ) and before.revision != after.revision
        assert httpx.get(after.permanent_url).status_code == 200
        assert httpx.get(before.permanent_url).status_code == 404
    with pytest.raises(ToolFailure, match="cannot be reached"):
        MediaWiki(local.url, user_agent=AGENT, attempts=1).page("Vell")


def test_what_cannot_be_served(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match="is not a folder"):
        LocalWiki(tmp_path / "none")
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(RetrievalError, match="No wiki can be served on"),
    ):
        LocalWiki(tmp_path, port=taken.getsockname()[1])
    with pytest.raises(RetrievalError, match="port 99999"):
        LocalWiki(tmp_path, port=99_999)
    LocalWiki(tmp_path).stop()
