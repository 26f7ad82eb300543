"""What a wiki gives: pages that were found, and the text of one at a revision, into which citations
point.

Positions count characters of `Page.text`, which is as the wiki gave it: nothing is normalised, so
that a quote is found where it stands. Headings are lines `== so ==`, with as many signs as their
level.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass

__all__ = ["Page", "Passage", "SearchHit", "Section"]

_HEADING = re.compile(r"^(={2,6})([^=\n].*)\1$", re.MULTILINE)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""Chinese and Japanese are written without spaces: each sign is a word."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A page that a search found."""

    title: str
    """The page's own: a redirect that was found has been followed."""
    url: str
    """Address of the page."""
    snippet: str
    """Around the words that were found, with the markup of the page's source; empty where the wiki
    gives none.
    """
    intro: str = ""
    """The text before the page's first heading;
    empty where the wiki has no extension TextExtracts.
    """


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a page: `page.text[start:end] == text`."""

    start: int
    """First character in the page's text."""
    end: int
    """One past the last character."""
    text: str
    """`page.text[start:end]`, to the character."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what follows up to the next heading of any level: `page.text[start:end]`."""

    title: str
    """Empty for what stands before the first heading."""
    level: int
    """2 for a section, 3 for a part of one; 1 for what stands before the first heading."""
    start: int
    """Where the heading begins in the page's text."""
    end: int
    """Where the next heading begins, or the text ends."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it was at one revision."""

    title: str
    """The page's own title: a redirect has been followed."""
    url: str
    """Address of the page, whose text may change."""
    revision: int
    """The wiki's number of the revision."""
    text: str
    """Plain text of the whole page."""

    @property
    def permanent_url(self) -> str:
        """The page at this revision, whatever becomes of it."""
        return f"{self.url}{'&' if '?' in self.url else '?'}oldid={self.revision}"

    @property
    def sections(self) -> list[Section]:
        """Side by side over the whole text, in its order."""
        found = list(_HEADING.finditer(self.text))
        ends = [heading.start() for heading in found] + [len(self.text)]
        intro = [Section("", 1, 0, ends[0])] if ends[0] else []
        return intro + [
            Section(heading[2].strip(), len(heading[1]), heading.start(), end)
            for heading, end in zip(found, ends[1:], strict=True)
        ]

    def passage(self, words: str, size: int = 600) -> Passage:
        """The stretch of at most about `size` characters that has most of the `words`; the
        beginning if it has none.

        `words`: a query, or the snippet of a search. It ends where a word does.
        """
        wanted = {word.casefold() for word in _WORD.findall(words)}
        places = [(m.start(), m.group().casefold()) for m in _WORD.finditer(self.text)]
        hits = [(at, word) for at, word in places if word in wanted]
        first, last = _densest(hits, size)
        return self._around(first, last, size)

    def _around(self, first: int, last: int, size: int) -> Passage:
        """From the beginning of the line to the end of the section, as far as there is room."""
        spare = max(0, size - (last - first)) // 2
        start = max(self.text.rfind("\n", 0, first) + 1, _at_space(self.text, first - spare, -1))
        heading, room = _HEADING.search(self.text, last), start + max(size, last - start)
        end = heading.start() if heading else len(self.text)
        text = self.text[start : min(end, _at_space(self.text, room, 1))].rstrip()
        return Passage(start, start + len(text), text)


def _densest(hits: list[tuple[int, str]], size: int) -> tuple[int, int]:
    """Start and end of where most different words stand within `size` characters,
    closest together.
    """
    best, where, window, counts = (0, 0), (0, 0), deque[tuple[int, str]](), Counter[str]()
    for at, word in hits:
        window.append((at, word))
        counts[word] += 1
        while counts[window[0][1]] > 1 or at - window[0][0] > size:
            _, left = window.popleft()
            counts[left] -= 1
            if not counts[left]:
                del counts[left]
        if (len(counts), window[0][0] - at) > best:
            best, where = (len(counts), window[0][0] - at), (window[0][0], at + len(word))
    return where


def _at_space(text: str, at: int, step: int) -> int:
    """To the edge of a word, by at most 40 characters: not every script has spaces."""
    at = min(max(at, 0), len(text))
    for moved in range(at, at + 40 * step, step):
        if not 0 < moved < len(text):
            return min(max(moved, 0), len(text))
        before, after = text[moved - 1].isspace(), text[moved].isspace()
        if before != after and before == (step < 0):
            return moved
    return at
