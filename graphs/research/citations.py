"""Citations in a model's text, held against the sources: exact spans, or none.

A model cites by quoting: `Whales eat krill [S1: "feeds almost exclusively on krill"].` It gives no positions, which it
could not count. Each quote is looked for in the source that it names. What stands there to the character is a citation;
what stands there but for white space, quotation marks and dashes is mended to the source's own characters; an omission
(`...`) makes a citation of each part. A quote that stands in another source alone is moved there. All else is
fabricated, whatever the reason.

The text that a person reads has a mark in the place of each citation, `[1]`, and the list of them at its end. A model
that writes such marks itself, or a list, has cited nothing: its marks become `(1)`.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hrm_agent.answers.final_answer import own_text
from hrm_agent.answers.typed_reply import one_line
from hrm_agent.graphs.research.sources import CitedSpan, Source
from hrm_agent.unicode import without_surrogates

__all__ = ["LIST", "NOT_ANSWERED", "CheckedText", "check", "quoted_again"]

NOT_ANSWERED = "NOT ANSWERED"
"""Prefix of an answer that was not found in the sources."""
LIST = "\n\nSources:\n"
"""Between an answer and the list of its citations."""
MAX_TEXT = 40_000
"""Characters of an answer; what comes later is not read."""
LONGEST_QUOTE, SHORTEST_QUOTE = 1000, 10
"""Characters, and bytes: what is shorter could stand anywhere."""
MAX_CITATIONS = 100
"""Of an answer."""
MAX_SHOWN = 200
"""Characters of a quote in the list."""
_OPENING = re.compile(r"[ \t]{0,4}([\[(])(?=\s{0,4}S\d{1,6}\b)")
_NAME = re.compile(r"""\s{0,4}(?P<name>S\d{1,6})\b[^"“”«»\[\]()\n]{0,60}["“«]""")
_CLOSING = r"""["”»]\s{0,4}(?P<end>%s|[;,]\s{0,4}(?=S\d{1,6}\b))"""
_CLOSINGS = {"[": re.compile(_CLOSING % r"\]"), "(": re.compile(_CLOSING % r"\)")}
"""What ends a quote: the bracket, or the next citation in it. A quotation mark alone may be the quote's own."""
_BARE = re.compile(r"[ \t]{0,4}\[S\d{1,6}\b[^\[\]\n]{0,200}\]")
_UNCLOSED = re.compile(r"[ \t]{0,4}\[S\d{1,6}\b[^\[\]]{0,1000}\Z")
_SPACED = re.compile(r"[ \t]{1,4}(?=[.,;:!?](?:\s|\Z))")
_WORDS = re.compile(r"\S+")
_MARK = re.compile(r"\[(\d{1,4})\]")
_OMISSION = re.compile(r"\s*(?:\[\s*(?:\.{3}|…)\s*\]|\.{3}|…)\s*")
_SAYS_NOT = re.compile(rf"\W*{NOT_ANSWERED.replace(' ', '[ _]')}\W*", re.IGNORECASE)
_ALIKE = str.maketrans("’‘ʼ`´“”„«»‐‑‒–—−", "'''''\"\"\"\"\"------")
"""Characters that a model writes for one another."""


@dataclass(frozen=True, slots=True)
class CheckedText:
    """What a text comes to when its citations are held against the sources."""

    text: str
    """With marks in the place of citations, and the list of them at its end."""
    citations: tuple[CitedSpan, ...]
    """The first is `[1]`."""
    problems: tuple[str, ...]
    """What is wrong with citations that do not stand, for the model that wrote them."""
    mended: tuple[str, ...]
    """What was put right, for the record."""
    denies: bool
    """It says that the sources have no answer."""
    body: str
    """The text without the list."""


def check(text: str, sources: Mapping[str, Source]) -> CheckedText:
    """Resolve all citations of a model's text."""
    own = _own(text)
    denies = _SAYS_NOT.match(own)
    book = _Book(sources)
    body = book.rendered(own[denies.end() :] if denies else own)
    listed = book.listed()
    whole = f"{body}{LIST}{listed}" if listed else body
    return CheckedText(whole, tuple(book.citations), tuple(book.problems), tuple(book.mended), denies is not None, body)


def quoted_again(text: str, sources: Mapping[str, Source], names: Mapping[str, str]) -> str:
    """A searcher's text with its citations in exact form, and without those that do not stand.

    `names`: by those that the searcher knew the sources by, the ones that they are to have.
    """
    return _Book(sources, names).rendered(_own(text))


def _own(text: str) -> str:
    return without_surrogates(own_text(text[: 4 * MAX_TEXT]))[:MAX_TEXT].strip()


class _Book:
    """Numbers citations as they come."""

    def __init__(self, sources: Mapping[str, Source], names: Mapping[str, str] | None = None) -> None:
        """`names`: citations are written as a model writes them, not as marks, and name the sources so."""
        self._sources, self._names = sources, names
        self.citations: list[CitedSpan] = []
        self.problems: list[str] = []
        self.mended: list[str] = []

    def rendered(self, text: str) -> str:
        """The text with its citations resolved, and nothing in it that only looks like one."""
        parts: list[str] = []
        brackets = _Brackets(text)
        done = at = 0
        while opening := _OPENING.search(text, at):
            cited, at = brackets.citations(opening)
            if cited:
                marks = "".join(self._resolved(name, quote) for name, quote in cited)
                parts += [self._plain(text[done : opening.start()]), f" {marks}" if marks else ""]
                done = at
        parts.append(self._plain(_UNCLOSED.sub("", text[done:])))
        return _SPACED.sub("", "".join(parts)).strip()

    def listed(self) -> str:
        return "\n".join(f"[{n}] {self._described(one)}" for n, one in enumerate(self.citations, start=1))

    def _plain(self, text: str) -> str:
        for bare in _BARE.findall(text):
            self.problems.append(f"{one_line(bare, 80)} quotes no words")
        return _MARK.sub(r"(\1)", _BARE.sub("", text))

    def _resolved(self, name: str, quote: str) -> str:
        places = self._places(name, quote)
        if isinstance(places, str):
            self.problems.append(f'[{name}: "{one_line(quote, 120)}"]: {places}')
            return ""
        return "".join(self._mark(*place) for place in places)

    def _places(self, name: str, quote: str) -> list[tuple[str, int, int]] | str:
        """Where a quote stands: source, start, end, one for each part of it; or what is wrong with it."""
        if not quote.strip():
            return "it quotes no words"
        if len(self.citations) >= MAX_CITATIONS:
            return "there are too many citations"
        for parts in ([quote], _OMISSION.split(quote)):
            parts = [part.strip() for part in parts if part.strip()]
            if min((len(part.encode()) for part in parts), default=0) < SHORTEST_QUOTE:
                continue
            places = [self._place(name, part) for part in parts]
            if places and all(places):
                return [place for place in places if place]
        if len(quote.strip().encode()) < SHORTEST_QUOTE:
            return "it is too short to tell where it stands; quote more words"
        known = ", ".join(self._sources) or "none"
        return "no source has these words" if name in self._sources else f"there is no source {name}, only {known}"

    def _place(self, name: str, quote: str) -> tuple[str, int, int] | None:
        if name in self._sources and (span := _span(self._sources[name]["text"], quote)):
            self._remark(name, name, quote, span)
            return name, *span
        others = [(n, span) for n, source in self._sources.items() if (span := _span(source["text"], quote))]
        if len({self._sources[other]["title"] for other, _ in others}) != 1:
            return None
        found = others[0]
        self._remark(name, found[0], quote, found[1])
        return found[0], *found[1]

    def _remark(self, said: str, name: str, quote: str, span: tuple[int, int]) -> None:
        if said != name:
            self.mended.append(f'[{said}: "{one_line(quote, 80)}"] stands in {name}')
        elif self._sources[name]["text"][slice(*span)] != quote:
            self.mended.append(f'[{name}: "{one_line(quote, 80)}"] was put in the source\'s own characters')

    def _mark(self, name: str, start: int, end: int) -> str:
        source = self._sources[name]
        cited = CitedSpan(source=name, start=start, end=end, quote=source["text"][start:end], url=source["url"])
        if cited not in self.citations:
            self.citations.append(cited)
        if self._names is not None:
            return f'[{self._names.get(name, name)}: "{cited["quote"]}"]'
        return f"[{self.citations.index(cited) + 1}]"

    def _described(self, cited: CitedSpan) -> str:
        source = self._sources[cited["source"]]
        first, last = (source["offset"] + at for at in (cited["start"], cited["end"]))
        place = f" <{cited['url']}>" if cited["url"] else ""
        return f'{source["title"]}, {first}-{last}{place}: "{one_line(cited["quote"], MAX_SHOWN)}"'


class _Brackets:
    """Finds the citations in the brackets of a text, in one pass over what could end one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._closings = {mark: list(pattern.finditer(text)) for mark, pattern in _CLOSINGS.items()}

    def citations(self, opening: re.Match[str]) -> tuple[list[tuple[str, str]], int]:
        """Names and quotes in a bracket, and where the text goes on; none where it holds no citation."""
        closings, at, found = self._closings[opening[1]], opening.end(), list[tuple[str, str]]()
        while name := _NAME.match(self._text, at):
            number = bisect_left(closings, name.end(), key=lambda closing: closing.start())
            if number == len(closings) or closings[number].start() - name.end() > LONGEST_QUOTE:
                break
            found.append((name["name"], self._text[name.end() : closings[number].start()]))
            at = closings[number].end()
            if closings[number]["end"] in "])":
                break
        return found, at


def _span(text: str, quote: str) -> tuple[int, int] | None:
    """Where a quote stands in a text: to the character, or but for white space and typography."""
    at = text.find(quote)
    if at >= 0:
        return at, at + len(quote)
    normal, places = _normal(text)
    wanted, _ = _normal(quote)
    at = normal.find(wanted)
    return (places[at], places[at + len(wanted) - 1] + 1) if at >= 0 and wanted else None


@lru_cache(maxsize=16)
def _normal(text: str) -> tuple[str, array[int]]:
    """`text` with one space between words and plain typography; and where each of its characters stands in it."""
    words, places = list[str](), array("I")
    for word in _WORDS.finditer(text):
        if words:
            places.append(word.start() - 1)
        words.append(word[0].translate(_ALIKE))
        places.extend(range(*word.span()))
    return " ".join(words), places
