"""Pages of a wiki: search hits, and the text of a page at a revision, into which citations point.

Positions count characters of `Page.text`. The text is exactly as the wiki returned it, so a quote
is found at its position. Headings are lines `== Title ==`, with as many signs as their level.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass

__all__ = ["Page", "Passage", "SearchHit", "Section"]

_HEADING = re.compile(r"^(={2,6})([^=\n].*)\1$", re.MULTILINE)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""Words of a text. Chinese and Japanese are written without spaces, so each of their characters
counts as a word.
"""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """Page that a search found."""

    title: str
    """Title of the page, after redirects."""
    url: str
    """URL of the page."""
    snippet: str
    """Text around the words that were found, with the markup of the page's source. Empty if the
    wiki returns none.
    """
    intro: str = ""
    """Text before the page's first heading. Empty if the wiki lacks the extension TextExtracts."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a page: `page.text[start:end] == text`."""

    start: int
    """Position of the first character in the page's text."""
    end: int
    """Position after the last character."""
    text: str
    """Exact text, `page.text[start:end]`."""


@dataclass(frozen=True, slots=True)
class Section:
    """Heading and the text up to the next heading of any level: `page.text[start:end]`."""

    title: str
    """Text of the heading. Empty for the text before the first heading."""
    level: int
    """Level of the heading: 2 for a section, 3 for a part of one, 1 for the text before the first
    heading.
    """
    start: int
    """Position of the heading in the page's text."""
    end: int
    """Position of the next heading, or of the end of the text."""


@dataclass(frozen=True, slots=True)
class Page:
    """Snapshot of a page at one revision."""

    title: str
    """Title of the page, after redirects."""
    url: str
    """URL of the page, whose text may change."""
    revision: int
    """MediaWiki's id of the revision."""
    text: str
    """Plain text of the whole page."""

    @property
    def permanent_url(self) -> str:
        """URL of the page at this revision."""
        return f"{self.url}{'&' if '?' in self.url else '?'}oldid={self.revision}"

    @property
    def sections(self) -> list[Section]:
        """Sections of the page in order. Together they cover the whole text."""
        found = list(_HEADING.finditer(self.text))
        ends = [heading.start() for heading in found] + [len(self.text)]
        intro = [Section("", 1, 0, ends[0])] if ends[0] else []
        return intro + [
            Section(heading[2].strip(), len(heading[1]), heading.start(), end)
            for heading, end in zip(found, ends[1:], strict=True)
        ]

    def passage(self, words: str, size: int = 600) -> Passage:
        """Passage of at most about `size` characters that has as many of the `words` as possible.
        If none occurs, it is the start of the page.

        `words`: a query, or the snippet of a search. The passage ends at the end of a word.
        """
        wanted = {word.casefold() for word in _WORD.findall(words)}
        places = [(m.start(), m.group().casefold()) for m in _WORD.finditer(self.text)]
        hits = [(at, word) for at, word in places if word in wanted]
        first, last = _densest(hits, size)
        # the passage begins at the start of the line and ends with the section, if there is room
        spare = max(0, size - (last - first)) // 2
        start = max(self.text.rfind("\n", 0, first) + 1, _at_space(self.text, first - spare, -1))
        heading = _HEADING.search(self.text, last)
        room = start + max(size, last - start)
        end = heading.start() if heading else len(self.text)
        text = self.text[start : min(end, _at_space(self.text, room, 1))].rstrip()
        return Passage(start, start + len(text), text)


def _densest(hits: list[tuple[int, str]], size: int) -> tuple[int, int]:
    """Start and end of the span that has the most different words within `size` characters. Among
    equals it is the shortest.
    """
    best = (0, 0)
    where = (0, 0)
    window = deque[tuple[int, str]]()
    counts = Counter[str]()
    for at, word in hits:
        window.append((at, word))
        counts[word] += 1
        while counts[window[0][1]] > 1 or at - window[0][0] > size:
            _, left = window.popleft()
            counts[left] -= 1
            if not counts[left]:
                del counts[left]
        if (len(counts), window[0][0] - at) > best:
            best = (len(counts), window[0][0] - at)
            where = (window[0][0], at + len(word))
    return where


def _at_space(text: str, at: int, step: int) -> int:
    """Position of the next word edge in direction `step`. If there is none within 40 characters,
    which is usual in scripts without spaces, `at` itself.
    """
    at = min(max(at, 0), len(text))
    for moved in range(at, at + 40 * step, step):
        if not 0 < moved < len(text):
            return min(max(moved, 0), len(text))
        before = text[moved - 1].isspace()
        after = text[moved].isspace()
        if before != after and before == (step < 0):
            return moved
    return at
