"""Local wiki on the loopback, for examples and tests without a network: a folder of Markdown and
text files.

    with LocalWiki("notes") as local:
        page = open_wiki(local.url, user_agent="me/1.0 (me@example.org)").page("Zürich")

It answers the part of MediaWiki's API that `hrm_agent.tools.mediawiki` uses, and shows its pages to
a browser. The title of a page is the heading `# Title` in its first line, or else its file name.
`#REDIRECT [[Title]]` is a redirect. Files are read again for each request. The revision number of a
page is made from its text, and older revisions are not kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from unicodedata import normalize
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from hrm_agent.errors import RetrievalError

__all__ = ["LocalWiki"]

_REDIRECT = re.compile(r"#redirect\s*\[\[([^\]|#]+)", re.IGNORECASE)
_HEADING = re.compile(r"^(#{2,6}) +(.+?) *#*$", re.MULTILINE)
_WORD = re.compile(r"\w+")


class LocalWiki:
    """Server of a folder as a wiki, from `start` to `stop` or as a context manager."""

    def __init__(self, folder: Path | str, port: int = 0) -> None:
        """`port`: 0 for any free port."""
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise RetrievalError(
                f"{folder} is not a folder.",
                "Name a folder. A local wiki serves the .md and .txt files in it.",
            )
        try:
            self._server = _Server(
                ("127.0.0.1", port), type("Handler", (_Handler,), {"wiki": self})
            )
        except (OSError, OverflowError) as error:
            raise RetrievalError(
                f"No wiki can be served on port {port}: {error}",
                "Leave the port out to take a free one.",
            ) from error
        self._serving: threading.Thread | None = None
        self.site = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.site}/api.php"

    def start(self) -> Self:
        self._serving = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._serving.start()
        return self

    def stop(self) -> None:
        """Stop serving."""
        if self._serving is not None:
            self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pages(self) -> dict[str, _LocalPage]:
        pages: dict[str, _LocalPage] = {}
        for file in sorted(self._folder.rglob("*")):
            if file.suffix not in (".md", ".txt"):
                continue
            with suppress(OSError):  # the path is a folder, is unreadable, or was just deleted
                text = file.read_text(encoding="utf-8", errors="replace").strip()
                name = str(file.relative_to(self._folder).with_suffix(""))
                if text.startswith("# "):
                    heading, _, text = text.partition("\n")
                    name = heading[2:]
                if file.suffix == ".md":
                    text = _HEADING.sub(
                        lambda found: f"{'=' * len(found[1])} {found[2]} {'=' * len(found[1])}",
                        text,
                    )
                title = _title(name)
                pages[title] = _LocalPage(title, text.strip(), _number(f"{name}\n{text}"))
        return pages

    def answer(self, asked: dict[str, str]) -> dict[str, Any]:
        """Answer of the API to a query."""
        pages = self.pages()
        if asked.get("list") == "search":
            return {"query": {"search": _found(pages, asked)[: int(asked.get("srlimit", "10"))]}}
        if asked.get("action") == "parse":
            text = next(
                (page.text for page in pages.values() if str(page.number) == asked.get("oldid")), ""
            )
            return {"parse": {"text": f"<pre>{escape(text)}</pre>"}}
        if asked.get("action") != "query":
            return {
                "error": {
                    "code": "badvalue",
                    "info": "This wiki knows the actions query and parse.",
                }
            }
        ids = asked.get("pageids", "").split("|")
        passed = dict[str, str]()
        titles = [_title(title) for title in asked.get("titles", "").split("|") if title]
        titles += [page.title for page in pages.values() if str(_number(page.title)) in ids]
        ends = dict.fromkeys(_followed(pages, title, passed) for title in titles)
        described = [
            self._described(pages.get(title), title, "exintro" in asked)
            for title in ends
            if title not in passed
        ]
        redirects = [{"from": title, "to": to} for title, to in passed.items()]
        return {"query": {"redirects": redirects, "pages": described}}

    def _described(self, page: _LocalPage | None, title: str, intro: bool) -> dict[str, Any]:
        if page is None:
            return {"title": title, "missing": True}
        url = f"{self.site}/wiki/{quote(title.replace(' ', '_'), safe='/')}"
        about = {
            "pageid": _number(title),
            "title": title,
            "lastrevid": page.number,
            "canonicalurl": url,
        }
        return about | {"extract": page.text.partition("\n==")[0] if intro else page.text}


@dataclass(frozen=True, slots=True)
class _LocalPage:
    title: str
    text: str
    """Text of the page, with Markdown headings in wiki form."""
    number: int
    """Revision number."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    wiki: LocalWiki

    def do_GET(self) -> None:
        at = urlsplit(self.path)
        asked = dict(parse_qsl(at.query))
        if at.path == "/api.php":
            return self._send(200, "application/json", json.dumps(self.wiki.answer(asked)))
        page = self.wiki.pages().get(_title(unquote(at.path.removeprefix("/wiki/"))))
        if page is None or asked.get("oldid", str(page.number)) != str(page.number):
            return self._send(404, "text/html; charset=utf-8", "<h1>There is no such page.</h1>")
        return self._send(
            200,
            "text/html; charset=utf-8",
            f"<h1>{escape(page.title)}</h1><pre>{escape(page.text)}</pre>",
        )

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


def _number(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:7], 16)


def _title(name: str) -> str:
    spaced = " ".join(normalize("NFC", name).replace("_", " ").split())
    return spaced[:1].upper() + spaced[1:]


def _followed(pages: dict[str, _LocalPage], title: str, passed: dict[str, str]) -> str:
    """Title after following redirects, which are added to `passed`. If the redirects form a cycle,
    any title of the cycle.
    """
    while title in pages and title not in passed and (to := _REDIRECT.match(pages[title].text)):
        passed[title] = _title(to[1])
        title = passed[title]
    return title


def _found(pages: dict[str, _LocalPage], asked: dict[str, str]) -> list[dict[str, Any]]:
    """Hits for a search: pages that have all the words. Pages where the words are the largest share
    of the text come first. With `srwhat=nearmatch`, the only hit is the page with this title.
    """
    query = _title(asked.get("srsearch", "")).casefold()
    words = set[str]()
    found = [page for page in pages.values() if page.title.casefold() == query]
    if asked.get("srwhat") != "nearmatch":
        words = set(_WORD.findall(query))
        held = {
            page: _WORD.findall(page.text.casefold())
            for page in pages.values()
            if not _REDIRECT.match(page.text)
        }
        found = [page for page, there in held.items() if words and words <= set(there)]
        found.sort(key=lambda page: -sum(map(held[page].count, words)) / len(held[page]))
    hits = list[dict[str, Any]]()
    for page in found:
        places = (
            word.start() for word in _WORD.finditer(page.text) if word.group().casefold() in words
        )
        at = next(places, 0)
        snippet = escape(page.text[max(0, at - 80) : at + 80])
        hits.append({"pageid": _number(page.title), "title": page.title, "snippet": snippet})
    return hits
