"""A real browser on the pages of `hrm-agent view`: Debian's Chromium, driven by Playwright.

Every page that is opened is watched. The test fails at its end if a page has logged an error or a
warning to the console (the content security policy's included), raised an exception, or sent a
request to another origin. `Browsing.check` looks for serious faults of accessibility (by axe) and
for a page that is wider than its window, and keeps a screenshot in `build/screenshots`.

Wait by locators and `expect`, which poll from outside of the page. `wait_for_function` polls inside
the page by `eval`, which the content security policy refuses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

__all__ = ["MISSING", "SCREENSHOTS", "Browsing", "Site", "find_browser", "open_browser"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "There is no Chromium: run `tests/install tests`."
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
_PATIENCE = 30_000
"""Longest wait for a locator, in milliseconds. It is long because the tests share the
processors.
"""
_AXE = """async () => {
  const { violations } = await axe.run(document, { preload: false, resultTypes: ["violations"] });
  return violations.filter((one) => one.impact === "serious" || one.impact === "critical")
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3).join(" | ")}`);
}"""


def find_browser() -> str | None:
    """Path of Chromium (None if it is missing)."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser for some tests of one module. While it is open, no test of the same process can be
    a coroutine.
    """
    from playwright.sync_api import sync_playwright

    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    offline = [
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--disable-background-networking",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=[*root, *offline])
        yield browser
        browser.close()


class Site:
    """A running viewer, or a copy in a file."""

    def __init__(self, browsing: Browsing, base: str, place: str, fragment: str) -> None:
        self._browsing = browsing
        self._base = base
        self._fragment = fragment
        """Fragment of the address that opens the viewer (empty for a copy in a file)."""
        self.place = place
        """Id of the first place."""

    def open(self, route: str, width: int = 1440, theme: str = "light", **params: Any) -> Page:
        """Open a new, watched page on a route. Query values are `params`."""
        page = self._browsing.new_page(self._base, width, theme)
        page.goto(self._base + self._fragment)
        return self.go(page, route, **params)

    def go(self, page: Page, route: str, **params: Any) -> Page:
        """Move a page to another route, as by a link."""
        from playwright.sync_api import expect

        path = "" if route == "runs" else route
        page.evaluate("hash => { location.hash = hash }", f"#/{path}?{urlencode(params)}")
        expect(page.locator("h1")).to_be_visible()
        return page


class Browsing:
    """Opens viewers and pages for one test, and closes them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self._servers: list[subprocess.Popen[str]] = []
        self.problems: list[str] = []
        """Problems that the consoles and requests of all pages have reported so far."""

    def serve(self, *places: Path, allow_fork: bool = False) -> Site:
        """Start `hrm-agent view` on these places, in a separate process."""
        words = [sys.executable, "-m", "hrm_agent", "view", *map(str, places), "--no-browser"]
        words += ["--allow-fork"] if allow_fork else []
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        self._servers.append(server)
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None, "the viewer has not started"
        base, _, fragment = address[0].partition("#")
        return Site(self, base, places[0].name, f"#{fragment}")

    def export(self, place: Path, file: Path, *words: str) -> Site:
        """Export a copy of one place to a file."""
        command = [
            sys.executable,
            "-m",
            "hrm_agent",
            "view",
            str(place),
            "--export",
            str(file),
            *words,
        ]
        subprocess.run(command, check=True, capture_output=True)
        return Site(self, f"file://{file}", place.name, "")

    def new_page(self, base: str, width: int = 1440, theme: str = "light") -> Page:
        """A watched, empty page."""
        from playwright.sync_api import expect

        context = self._browser.new_context(
            viewport={"width": width, "height": 900 if width > 700 else 844},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(_PATIENCE)
        expect.set_options(timeout=_PATIENCE)
        self._contexts.append(context)
        page = context.new_page()
        origin = urlsplit(base)[:2]

        def told(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.problems.append(f"console {message.type}: {message.text}")

        def asked(request: Request) -> None:
            if urlsplit(request.url)[:2] != origin and not request.url.startswith(
                ("data:", "blob:")
            ):
                self.problems.append(f"request to {request.url}")

        page.on("console", told)
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("request", asked)
        return page

    def check(self, page: Page, name: str) -> None:
        """Fail on problems that the pages have reported so far, on serious faults that axe finds,
        and on a page wider than its window.
        """
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name.replace(' ', '-')}.png")
        page.evaluate(axe_source())
        faults = page.evaluate(_AXE)
        assert not faults, f"{name}: {faults}"
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (
            "wider than the window"
        )
        assert not self.problems, f"{name}: {self.problems}"

    def close(self) -> None:
        """Close pages and servers. Fail on problems that a page has reported."""
        for context in self._contexts:
            context.close()
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.wait(30)
            if server.stdout is not None:
                server.stdout.close()
        assert not self.problems, self.problems


def axe_source() -> str:
    """Source of axe. It is evaluated from outside, since the page's policy refuses added
    scripts.
    """
    import axe_playwright_python

    return next(Path(axe_playwright_python.__file__).parent.glob("axe*.js")).read_text()
