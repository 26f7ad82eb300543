"""A wiki of a few pages, served by a thread of this process. It answers as MediaWiki does, until a
test sets another answer.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from hrm_agent.tools.mediawiki import MediaWiki

PAGES = {
    "Blue whale": (
        "The blue whale is a marine mammal.\n\nReaching a length of 29.9 m, it is the largest"
        " animal known to have ever existed. Its diet consists almost exclusively of krill."
    ),
    "Krill": (
        "Krill are small crustaceans.\n\nMost krill species display large daily vertical"
        " migrations. They feed near the surface at night, and in deeper waters during the day."
    ),
    "Ðắk Lắk/Größe 🐋": "Die Größe eines Blauwals beträgt bis zu 33 Meter – “mehr” als ein Haus.",
}


class Patience:
    """Opener of wikis, each once, with `seconds` as the time-out of an answer. A test makes it
    short only if it expects no answer.
    """

    def __init__(self, attempts: int) -> None:
        self.seconds = 60.0
        self._attempts = attempts
        self._opened: dict[str, MediaWiki] = {}

    def open_wiki(self, url: str, user_agent: str, cache: str | None) -> MediaWiki:
        options: dict[str, Any] = {"timeout": 60.0, "attempts": self._attempts}
        opened = self._opened.setdefault(
            url, MediaWiki(url, user_agent=user_agent, cache=cache, **options)
        )
        opened._asker._patience = self.seconds
        return opened


class SmallWiki:
    """Wiki that keeps its `requests`. `status` is the HTTP status of its answers; with None it
    hangs.
    """

    def __init__(self, pages: dict[str, str] | None = None) -> None:
        self.pages = dict(PAGES if pages is None else pages)
        self.requests: list[dict[str, str]] = []
        self.status: int | None = 200
        self._over = threading.Event()
        wiki = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {
                    name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()
                }
                wiki.requests.append(query)
                if wiki.status is None:
                    wiki._over.wait(600)
                body = (
                    json.dumps(wiki.answer(query)).encode()
                    if wiki.status == 200
                    else b"<h1>no</h1>"
                )
                self.send_response(wiki.status or 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Be quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/api.php"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, query: dict[str, str]) -> dict[str, Any]:
        titles = list(self.pages)
        if query.get("list") == "search":
            words = query["srsearch"].casefold().split()
            found = [
                t
                for t in titles
                if all(word in f"{t} {self.pages[t]}".casefold() for word in words)
            ]
            rows = [
                {"pageid": titles.index(t) + 1, "title": t, "snippet": self.pages[t][:40]}
                for t in found
            ]
            return {"query": {"search": rows if query.get("srwhat") == "text" else []}}
        if "pageids" in query:
            wanted = [titles[int(number) - 1] for number in query["pageids"].split("|")]
        else:
            wanted = [query["titles"]]
        return {"query": {"pages": [self._row(title) for title in wanted]}}

    def _row(self, title: str) -> dict[str, Any]:
        if title not in self.pages:
            return {"title": title, "missing": True}
        url = f"http://wiki.test/wiki/{quote(title.replace(' ', '_'))}"
        number = list(self.pages).index(title) + 1
        row = {
            "pageid": number,
            "ns": 0,
            "title": title,
            "lastrevid": 100 + number,
            "canonicalurl": url,
        }
        return row | {"extract": self.pages[title]}
