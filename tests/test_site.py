"""The documentation site builds without a warning, leads nowhere wrong, and needs no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.site_links import SitePage, broken, read_site

PROJECT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = read_site(tmp_path)
    assert list(broken(pages, tmp_path)) == []
    written = {path: page for path, page in pages.items() if path.name != "404.html"}
    assert len(written) > len(list(PROJECT.glob("docs/*.md")))
    assert [path.name for path, page in written.items() if page.headings != 1] == []
    assert [path.name for path, page in written.items() if not page.description] == []
    descriptions = [page.description for page in written.values()]
    assert len(set(descriptions)) == len(descriptions), "two pages have one description"
    assert "ScriptedEngine" in (tmp_path / "reference" / "testing.html").read_text()
    outward = {link for page in pages.values() for link in page.outward}
    print(*sorted(outward), sep="\n")  # not fetched: `pytest -s` lists them
    assert outward


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there"></a><a href="b.html#lost"></a><a href="c.html"></a><img'
        ' src="d.png"><script src="https://cdn.example/x.js"></script><a'
        ' href="https://example.org/">out</a>'
    )
    (tmp_path / "b.html").write_text('<h2 id="there"></h2>')
    found = list(broken(read_site(tmp_path), tmp_path))
    assert found == [
        "a.html: loads https://cdn.example/x.js",
        "a.html: b.html#lost",
        "a.html: c.html",
        "a.html: d.png",
    ]


def test_what_a_page_says_of_itself_is_read() -> None:
    page = SitePage(
        '<meta name="description" content="Of whales."><h1>Whales</h1><a'
        ' href="https://a.example/">a</a>'
    )
    assert (page.description, page.headings, page.outward) == (
        "Of whales.",
        1,
        {"https://a.example/"},
    )
