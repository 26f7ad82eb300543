"""Check of the citations in a model's text against the sources. Only an exact span of a source is a
citation.

A model cites by quoting: `Whales eat krill [S1: "feeds almost exclusively on krill"].` It gives no
positions, since models cannot count characters. `hrm_agent.retrieval.citations.marks` finds
citations in any form. This module searches each quote in the source that the citation names. An
exact match is a citation. If a match differs in white space, quotation marks or dashes only, the
quote is corrected to the source's own characters. If a quote has an omission (`...`), each part
becomes a citation. If a quote is found in another source only, its citation gets that source's
name. Every other quote counts as fabricated, whatever the reason.

The text shown to the user has a mark, `[1]`, in place of each citation, and the list of citations
at its end. Nothing else in it looks like a mark: invalid citations are removed, and numbers in
brackets, which may belong to the text, become `(1)`. A model's own list of sources is removed with
its quotes, since they belong to no sentence.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# before Python 3.12, `TypedDict` of `typing` is not enough for LangGraph's JSON schemas
from typing_extensions import TypedDict

from hrm_agent.answers.final_answer import own_text
from hrm_agent.answers.typed_reply import one_line
from hrm_agent.basics.unicode import without_surrogates
from hrm_agent.retrieval.chunking.sentences import Prose
from hrm_agent.retrieval.citations.marks import (
    CitedWords,
    Mark,
    find_lists,
    find_marks,
    plain_brackets,
)
from hrm_agent.retrieval.citations.quotes import CITATION_LIST, Citation, QuotableText

__all__ = ["NOT_ANSWERED", "CheckedText", "CitedSource", "Statement", "check", "quoted_again"]

NOT_ANSWERED = "NOT ANSWERED"
"""Prefix of an answer that was not found in the sources."""
MAX_TEXT = 40_000
"""Maximum characters of an answer. The rest is not read."""
SHORTEST_QUOTE = 10
"""Minimum bytes of a quote. A shorter quote could be anywhere."""
MAX_CITATIONS, MAX_LOOKUPS = 100, 400
"""Maximum number of valid citations of an answer, and maximum number of quotes that are searched.
"""
MAX_SHOWN = 200
"""Maximum characters of a quote in the list."""
_SPACED = re.compile(r"[ \t]{1,4}(?=[.,;:!?](?:\s|\Z))")
PASSES = 4
"""Maximum number of passes over a text until it has no more marks."""
_OWN_LIST = "the text: a list of sources of its own was left out"
_PLACE = re.compile("\ue000(\\d+)\ue001")
_NO_PLACES = str.maketrans("\ue000\ue001", "\ufffd\ufffd")
_NO_BRACKETS = str.maketrans("[［【〔〖〚⟦❲⁅]］】〕〗〛⟧❳⁆", "(" * 9 + ")" * 9)
_OMISSION = re.compile(r"\s*(?:\[\s*(?:\.{3}|…)\s*\]|\.{3}|…)\s*")
_BETWEEN = re.compile(r"""["”»]\s{0,3}(?:[;,&]|and)\s{0,3}["“«]""")
_STOPS = " \n.,;:!?…"
"""Characters that a model may append to a quote although the source continues differently."""
_SAYS_NOT = re.compile(
    rf"\W*{NOT_ANSWERED.replace(' ', '[ _]')}(?!\w)[\s.:;,!*)\]”»-]*", re.IGNORECASE
)

_Part = str | Citation


class CitedSource(TypedDict):
    """Fields of a source that citations need. A source may have more."""

    title: str
    """Title, in one line."""
    url: str
    """Address of the source (empty without one)."""
    text: str
    """Whole text, in which quotes are searched."""
    offset: int
    """Position in the page or file at which the text begins."""


class Statement(NamedTuple):
    """Sentence of a text with its citations."""

    claim: str
    """Sentence without its marks, in one line."""
    citations: tuple[Citation, ...]
    """Citations of the sentence, in the order of the marks."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that is equal for statements with the same claim and citations."""
        return self.claim, *map(_key, self.citations)


@dataclass(frozen=True, slots=True)
class CheckedText:
    """Text of a model after its citations were checked against the sources."""

    text: str
    """Text with marks in place of citations, and the list of citations at its end."""
    citations: tuple[Citation, ...]
    """Citations. The first is `[1]`."""
    problems: tuple[str, ...]
    """Problems of invalid citations, as feedback for the model."""
    mended: tuple[str, ...]
    """Corrections made to citations, for the log."""
    denies: bool
    """True if the text begins with `NOT_ANSWERED`."""
    body: str
    """Text without the list."""
    statements: tuple[Statement, ...]
    """Sentences with citations."""
    refused: tuple[Statement, ...]
    """Statements whose valid citations were removed, since the caller of `check` refused these
    statements.
    """


def check(
    text: str, sources: Mapping[str, CitedSource], refused: Collection[Any] = ()
) -> CheckedText:
    """Resolve all citations of a model's text. `refused`: keys of statements whose citations are
    removed.
    """
    own = _own(text)
    denies = _SAYS_NOT.match(own)
    book = _Book(sources)
    parts = book.parts(own[denies.end() :] if denies else own)
    cited = _by_sentence(parts)
    dropped = {
        number for statement, numbers in cited if statement.key in refused for number in numbers
    }
    kept = [part for number, part in enumerate(parts) if number not in dropped]
    citations = list({_key(part): part for part in kept if not isinstance(part, str)}.values())
    numbers = {_key(one): number for number, one in enumerate(citations, start=1)}
    body = _joined(kept, lambda one: f"[{numbers[_key(one)]}]")
    lines = list[str]()
    for number, one in enumerate(citations, start=1):
        source = sources[one["source"]]
        first, last = (source["offset"] + at for at in (one["start"], one["end"]))
        place = f" <{one['url']}>" if one["url"] else ""
        shown = one_line(one["quote"], MAX_SHOWN)
        lines.append(f'[{number}] {source["title"]}, {first}-{last}{place}: "{shown}"')
    listed = "\n".join(lines)
    return CheckedText(
        text=f"{body}{CITATION_LIST}{listed}" if listed else body,
        citations=tuple(citations),
        problems=tuple(book.problems),
        mended=tuple(book.mended),
        denies=denies is not None,
        body=body,
        statements=tuple(statement for statement, _ in cited if statement.key not in refused),
        refused=tuple(statement for statement, _ in cited if statement.key in refused),
    )


def quoted_again(text: str, sources: Mapping[str, CitedSource], names: Mapping[str, str]) -> str:
    """Return a searcher's text with its valid citations in exact form and without invalid ones.

    `names` maps the searcher's names of sources to their new names.
    """
    parts = _Book(sources).parts(_own(text))
    return _joined(
        parts, lambda one: f'[{names.get(one["source"], one["source"])}: "{one["quote"]}"]'
    )


def _own(text: str) -> str:
    return plain_brackets(without_surrogates(own_text(text[: 4 * MAX_TEXT]))[:MAX_TEXT]).strip()


class _Book:
    """Resolver of citations that collects their problems and corrections."""

    def __init__(self, sources: Mapping[str, CitedSource]) -> None:
        self._sources = sources
        self._texts = {name: QuotableText(source["text"]) for name, source in sources.items()}
        titles = [source["title"].casefold() for source in sources.values()]
        self._titles = {
            t: name for t, name in zip(titles, sources, strict=True) if titles.count(t) == 1
        }
        self._found: dict[tuple[tuple[str, ...], str], list[Citation]] = {}
        self._standing = 0
        self._cited: list[Citation] = []
        self.problems: list[str] = []
        self.mended: list[str] = []

    def parts(self, text: str) -> list[_Part]:
        """Return the text as parts, with its citations resolved and without anything else that
        looks like a citation.

        Removing a mark may create a new mark, as in `[ [S9]1]`, so the text is scanned again. If a
        text still changes after `PASSES` passes, it was made to do so, and all its brackets are
        replaced by parentheses.
        """
        text = text.translate(_NO_PLACES)
        for _ in range(PASSES):
            before = text
            text = self._without_lists(text)
            if text == before:
                break
        else:
            text = text.translate(_NO_BRACKETS)
        pieces = _PLACE.split(text)
        return [
            self._cited[int(piece)] if n % 2 else piece
            for n, piece in enumerate(pieces)
            if n % 2 or piece
        ]

    def _without_lists(self, text: str) -> str:
        """Resolve citations outside of the text's own lists of sources. Remove the lists with their
        citations.
        """
        lists = find_lists(text)
        begins = [0, *(end for _, end in lists)]
        ends = [*(start for start, _ in lists), len(text)]
        outside = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
        if not lists or not "".join(outside).strip():
            return self._resolved_in(text)
        self.mended += [] if _OWN_LIST in self.mended else [_OWN_LIST]
        resolved = "".join(map(self._resolved_in, outside)).rstrip()
        listed = [
            int(found[1])
            for span in lists
            for found in _PLACE.finditer(self._resolved_in(text[slice(*span)]))
        ]
        for number in dict.fromkeys(listed):
            if f"\ue000{number}\ue001" not in resolved:
                one = self._cited[number]
                said = f'[{one["source"]}: "{one_line(one["quote"], 120)}"]'
                self.problems.append(
                    f"{said}: it stands in a list; put it behind the statement that it supports"
                )
        return resolved

    def _resolved_in(self, text: str) -> str:
        """Replace each valid citation by a placeholder with its number."""
        parts = list[str]()
        at = 0
        for mark in find_marks(text, self._titles):
            cited = "".join(map(self._place_of, self._resolved(text, mark)))
            before = text[at : mark.start]
            after = mark.end
            if (
                not cited
                and not mark.instead
                and before.endswith("(")
                and text[after : after + 1] == ")"
            ):
                # without the mark, the parentheses would be empty
                before = before[:-1].rstrip(" \t")
                after = after + 1
            # `[text](1)` would be a link
            apart = " " if mark.instead and before.endswith("]") else ""
            parts += [before, f" {cited}" if cited else f"{apart}{mark.instead}"]
            at = after
        return "".join([*parts, text[at:]])

    def _place_of(self, one: Citation) -> str:
        numbers = {_key(known): number for number, known in enumerate(self._cited)}
        number = numbers.get(_key(one), len(self._cited))
        self._cited += [one] if number == len(self._cited) else []
        return f"\ue000{number}\ue001"

    def _resolved(self, text: str, mark: Mark) -> list[Citation]:
        found: list[Citation] = []
        for cited in mark.cited:
            places = self._places(cited)
            if isinstance(places, list):
                found += places
            elif not mark.instead:
                said = (
                    f'[{", ".join(cited.names)}: "{one_line(cited.quotes[0], 120)}"]:'
                    if cited.quotes
                    else ""
                )
                problem = f"{said or one_line(text[mark.start : mark.end], 80)} {places}"
                self.problems.append(_PLACE.sub("", problem))
        return found

    def _places(self, cited: CitedWords) -> list[Citation] | str:
        """Return a citation for each part of the quoted words, or the problem with them as text."""
        if not any(quote.strip() for quote in cited.quotes):
            return "it quotes no words" if cited.quotes else "quotes no words"
        if self._standing >= MAX_CITATIONS or len(self._found) >= MAX_LOOKUPS:
            return "there are too many citations"
        for quote in cited.quotes:
            if (cited.names, quote) not in self._found:
                self._found[cited.names, quote] = self._quoted(cited.names, quote)
                self._standing += len(self._found[cited.names, quote])
            if places := self._found[cited.names, quote]:
                return places
        if all(len(quote.strip().encode()) < SHORTEST_QUOTE for quote in cited.quotes):
            return "it is too short to tell where it stands; quote more words"
        unknown = [name for name in cited.names if name not in self._sources]
        known = ", ".join(self._sources) or "none"
        return (
            f"there is no source {unknown[0]}, only {known}"
            if unknown
            else "no source has these words"
        )

    def _quoted(self, names: Sequence[str], quote: str) -> list[Citation]:
        """Citations of the whole quote, or else of its parts between omissions or quotation marks
        (empty if not all are found).
        """
        for parts in (
            [quote],
            [quote.rstrip(_STOPS)],
            _OMISSION.split(quote),
            _BETWEEN.split(quote),
        ):
            parts = [part.strip() for part in parts if part.strip()]
            if min((len(part.encode()) for part in parts), default=0) < SHORTEST_QUOTE:
                continue
            places = [self._named(names, part) or self._elsewhere(names, part) for part in parts]
            if all(places):
                return [place for found in places for place in found]
        return []

    def _named(self, names: Sequence[str], quote: str) -> list[Citation]:
        return [
            self._citation(name, name, quote, span)
            for name in names
            if name in self._sources and (span := self._texts[name].find(quote))
        ]

    def _elsewhere(self, names: Sequence[str], quote: str) -> list[Citation]:
        others = [(name, span) for name, text in self._texts.items() if (span := text.find(quote))]
        if len({self._sources[other]["title"] for other, _ in others}) != 1:
            return []
        name, span = others[0]
        return [self._citation(names[0] if names else "", name, quote, span)]

    def _citation(self, said: str, name: str, quote: str, span: tuple[int, int]) -> Citation:
        source = self._sources[name]
        words = source["text"][slice(*span)]
        if said != name:
            self.mended.append(f'[{said}: "{one_line(quote, 80)}"] stands in {name}')
        elif words != quote:
            self.mended.append(
                f'[{name}: "{one_line(quote, 80)}"] was put in the source\'s own characters'
            )
        return Citation(source=name, start=span[0], end=span[1], quote=words, url=source["url"])


def _key(one: Citation) -> tuple[str, int, int]:
    return one["source"], one["start"], one["end"]


def _by_sentence(parts: Sequence[_Part]) -> list[tuple[Statement, list[int]]]:
    """Sentences with citations, each with the indices of its citations in `parts`."""
    text = ""
    marks = list[tuple[int, int]]()
    for number, part in enumerate(parts):
        if isinstance(part, str):
            text += part
        else:
            text = text.rstrip(" \t")
            marks.append((len(text.rstrip()) - 1, number))
    if not marks:
        return []
    lines = [found.end() for found in re.finditer(r"\n", text)]
    ends = sorted({0, *map(int, Prose(text).sentences), *lines, len(text)})
    found: dict[int, list[int]] = {}
    for at, number in marks:
        found.setdefault(bisect_right(ends, max(at, 0)), []).append(number)
    statements: list[tuple[Statement, list[int]]] = []
    for end, numbers in found.items():
        claim = " ".join(text[ends[end - 1] : ends[end] if end < len(ends) else None].split())
        chosen = [parts[number] for number in numbers]
        cited = tuple(part for part in chosen if not isinstance(part, str))
        statements.append((Statement(claim, cited), numbers))
    return statements


def _joined(parts: Iterable[_Part], shown: Callable[[Citation], str]) -> str:
    """Join the parts. Following text must not turn a mark into a link or a link definition."""
    text = ""
    for part in parts:
        piece = part if isinstance(part, str) else shown(part)
        if text.endswith("]") and isinstance(part, str):
            begins_line = text.rpartition("\n")[2].lstrip().startswith("[")
            piece = piece.removeprefix(":") if begins_line else piece
            piece = f" {piece}" if piece.startswith(("(", "[")) else piece
        text += piece
    return _SPACED.sub("", text).strip()
