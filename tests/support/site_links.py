"""Broken references of a built site: links, anchors, images, scripts and styles, read from its
HTML.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["SitePage", "broken", "read_site"]

_LOADED = {"script", "img", "link", "iframe", "source"}
"""Elements that a browser fetches by itself."""


class SitePage(HTMLParser):
    """Page of a site, with its anchors, links, loaded files, number of headings, and
    description.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.headings = 0
        self.description = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.headings += tag == "h1"
        if tag == "meta" and found.get("name") == "description":
            self.description = found.get("content", "")
        for name in ("href", "src"):
            if name in found:
                (self.loads if tag in _LOADED else self.links).append(found[name])

    @property
    def outward(self) -> set[str]:
        """Links to other sites."""
        return {link for link in self.links if urlsplit(link).scheme in ("http", "https")}


def read_site(folder: Path) -> dict[Path, SitePage]:
    """Pages of a built site by their files."""
    return {
        path: SitePage(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))
    }


def broken(pages: dict[Path, SitePage], folder: Path) -> Iterator[str]:
    """Broken links within the site as `page: link`, and whatever a page would fetch from elsewhere."""
    for path, page in pages.items():
        here = path.relative_to(folder)
        yield from (f"{here}: loads {link}" for link in page.loads if urlsplit(link).netloc)
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            home = folder if parts.path.startswith("/") else path.parent
            target = (home / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else {unquote(parts.fragment)}
            if not target.is_file() or unquote(parts.fragment) not in anchors:
                yield f"{here}: {link}"
