"""Sources: what they are, which passages of them a model is shown, and in which frame.

A page is longer than what a model should read of it. It is cut into passages, spans of its text; a model is shown the
first one, which says what the page is about, and those that share most with the question (BM25 within the page), in
the order of the text, with `[...]` where some are left out. The whole text is kept, so that whatever is quoted can be
found again to the character.

A source is somebody else's text. It stands in a frame, `<source S1 0f3a>` to `</source S1 0f3a>`, whose word does not
occur in it: no text can close its own frame and go on in the voice of the person or of another source.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from urllib.parse import urlsplit

from typing_extensions import TypedDict  # typing's has too little for LangGraph's JSON schemas before Python 3.12

from hrm_agent.answers.typed_reply import one_line
from hrm_agent.retrieval.chunking.chunker import chunk_text
from hrm_agent.unicode import replace_surrogates

__all__ = ["CitedSpan", "Source", "display", "evidence", "new_source", "renamed", "same_source"]

PASSAGE_TOKENS = 128
MAX_TITLE, MAX_TEXT = 300, 500_000
"""Characters; what comes later is neither shown nor quoted."""
GAP = "[...]"
Span = tuple[int, int]
_FIRST, _FILL = 1e6, 1e-6
"""A score above all others, and one below."""
_SHARE = 1 / 3
"""Of the best passage's score: less is by chance."""
_K, _B = 1.2, 0.75
"""BM25's usual constants."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_]+")
"""A word; in scripts without spaces, a character."""
# fmt: off
_COMMON = {
    "a", "an", "and", "are", "as", "at", "be", "by", "did", "do", "does", "for", "from", "how", "in", "is", "it", "its",
    "of", "on", "or", "that", "the", "this", "to", "was", "what", "when", "where", "which", "who", "why", "with",
}
# fmt: on


class Source(TypedDict):
    """A text that was read, as it was then."""

    id: str
    title: str
    url: str
    """Of this revision, whatever becomes of the page; empty for a file."""
    revision: str
    """The page's revision, or the hash of the file's text."""
    file: str
    """Path inside the indexed folder; empty for a page."""
    text: str
    offset: int
    """Where in the page or the file the text begins: a source may be a part of it."""


class CitedSpan(TypedDict):
    """`sources[source]["text"][start:end] == quote`."""

    source: str
    start: int
    end: int
    quote: str
    url: str


def new_source(
    title: str, text: str, *, url: str = "", revision: object = "", file: str = "", offset: int = 0
) -> Source:
    """A source that has no name yet. Addresses other than of the web are left out."""
    safe = url if urlsplit(url).scheme in ("http", "https") and not re.search(r"[\s<>]", url) else ""
    text = replace_surrogates(text[:MAX_TEXT]).replace("\0", "\ufffd")  # not every store takes it
    title = one_line(title, MAX_TITLE) or "untitled"
    return Source(id="", title=title, url=safe, revision=str(revision), file=file, text=text, offset=offset)


def renamed(source: Source, name: str) -> Source:
    copy = source.copy()
    copy["id"] = name
    return copy


def same_source(one: Source, other: Source) -> bool:
    """They are the same part of the same revision."""
    return renamed(one, "") == renamed(other, "")


def _terms(text: str) -> list[str]:
    """Words for comparison. A plural and its singular count as one."""
    words = (word.casefold() for word in _WORD.findall(text))
    return [word.removesuffix("s") if len(word) > 3 else word for word in words if word not in _COMMON]


class _Passages:
    """The passages of one text, ready to be asked."""

    def __init__(self, text: str) -> None:
        self.spans = [
            (chunk.start, chunk.end) for chunk in chunk_text(text, "recursive", size=PASSAGE_TOKENS, overlap=0.0)
        ]
        self._counts = [Counter(_terms(text[start:end])) for start, end in self.spans]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._in = Counter(term for counts in self._counts for term in counts)

    def scores(self, about: Iterable[str]) -> list[float]:
        """BM25 of each passage."""
        mean = sum(self._lengths) / max(len(self._lengths), 1) or 1.0
        wanted = [(term, self._rarity(term)) for term in dict.fromkeys(about) if term in self._in]
        return [
            sum(
                rare * n * (_K + 1) / (n + _K * (1 - _B + _B * length / mean))
                for term, rare in wanted
                if (n := c[term])
            )
            for c, length in zip(self._counts, self._lengths, strict=True)
        ]

    def _rarity(self, term: str) -> float:
        number = self._in[term]
        return math.log(1 + (len(self.spans) - number + 0.5) / (number + 0.5))


@lru_cache(maxsize=32)
def _passages(text: str) -> _Passages:
    return _Passages(text)


def display(source: Source, about: str, limit: int) -> str:
    """A source in its frame, as a model is shown it: at most about `limit` characters of its text."""
    (first, _), *others = _scored(source, _terms(about)) or [((0, 0), 0.0)]
    ranked = [first, *(span for span, _ in sorted(others, key=lambda one: -one[1]))]
    return _framed(source, _chosen(source["text"], ranked, limit))


def evidence(sources: Mapping[str, Source], about: str, read: Mapping[str, Sequence[int]], limit: int) -> str:
    """The passages of all sources that matter for a question, in their frames; empty if none does.

    `read`: the sources of this turn, each with the places that were quoted of it. Those passages go first; after them
    what has words of the question, of other sources only what has many; what is left over goes to the sources of this
    turn from their beginning.
    """
    terms = _terms(about)
    scored = {name: _scored(source, terms) for name, source in sources.items()}
    least = _SHARE * max((score for passages in scored.values() for _, score in passages), default=0.0)
    rated: list[tuple[float, str, Span]] = []
    for name, passages in scored.items():
        for number, (span, score) in enumerate(passages):
            if name in read:
                quoted = any(span[0] <= at < span[1] for at in read[name])
                rated.append((score + _FIRST * quoted + _FILL / (1 + number), name, span))
            elif score > 0 and score >= least:
                rated.append((score, name, span))
    chosen: dict[str, list[Span]] = {}
    for _, name, span in sorted(rated, key=lambda one: -one[0]):
        if span[1] - span[0] <= limit:
            chosen.setdefault(name, []).append(span)
            limit -= span[1] - span[0]
    return "\n\n".join(_framed(sources[name], sorted(spans)) for name, spans in chosen.items())


def _scored(source: Source, terms: Sequence[str]) -> list[tuple[Span, float]]:
    passages = _passages(source["text"])
    return list(zip(passages.spans, passages.scores(terms), strict=True))


def _chosen(text: str, ranked: Sequence[Span], limit: int) -> list[Span]:
    """The best passages that fit, in the order of the text; where none does, the beginning."""
    if len(text) <= limit:
        return [(0, len(text))]
    chosen: list[Span] = []
    for start, end in ranked:
        if end - start <= limit:
            chosen.append((start, end))
            limit -= end - start
    return sorted(chosen) or [(0, limit)]


def _framed(source: Source, spans: Sequence[Span]) -> str:
    text = source["text"]
    shown, at = "", 0
    for start, end in spans:
        shown += (f"\n{GAP}\n" if start > at else "") + text[start:end]
        at = end
    shown += f"\n{GAP}" if at < len(text) else ""
    name = f"{source['id']} {_word_not_in(source['title'] + shown)}"
    place = source["url"] or source["file"]
    return f"<source {name}> {source['title']} ({place})\n{shown.strip()}\n</source {name}>"


def _word_not_in(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return next(word for n in count() if (word := digest[n : n + 4] if n < 60 else str(n)) not in text)
