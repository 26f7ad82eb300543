"""Sources, and the framed passages of them that are shown to a model.

A page is longer than a model should read, so it is divided into passages, which are spans of its
text. A model is shown the first passage, which describes the page, and the passages that match the
question best (BM25 within the page). They are in the order of the text, with `[...]` for omitted
parts. Hits of a search are already parts of a document, and their beginnings describe nothing. Of
hits, a model is shown the best matches with the question (`display_hits`), and the writer sees
whole hits while there is room. The whole text of a source is kept, so that each quote can be found
in it to the character.

A source is text of a third party. It is shown in a frame, `<source S1 0f3a>` to `</source S1
0f3a>`, with a code word (`0f3a`) that does not occur in the text. So the text cannot close the
frame and pretend to be the person or another source.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import count
from urllib.parse import urlsplit

# before Python 3.12, LangGraph's JSON schemas need the TypedDict of typing_extensions
from typing_extensions import TypedDict

from hrm_agent.answers.typed_reply import one_line
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.retrieval.passages import Extract, best_passages, scored_passages

__all__ = [
    "Source",
    "around",
    "display",
    "display_hits",
    "evidence",
    "new_source",
    "renamed",
    "same_source",
    "scheme",
]

MAX_TITLE, MAX_TEXT = 300, 500_000
"""Maximum numbers of characters of a title and of a text. The rest is cut off, so it is neither
shown nor quoted.
"""
GAP = "[...]"
Span = tuple[int, int]
_FIRST, _FILL = 1e6, 1e-6
"""Addition to a score that puts a passage before all others, and score of passages that are chosen
last.
"""
_SHARE = 1 / 3
"""Minimum score of a passage, as a share of the best passage's score. A lower score may be due to
chance.
"""
_WHOLE = 1 / 6
"""Share of the writer's room. A source of this turn that is not longer (such as a hit) counts as
one passage, so that it is shown whole while whole sources fit.
"""


class Source(TypedDict):
    """Snapshot of a source text."""

    id: str
    """Name by which the conversation cites the source: `S1`, `S2` and so on (empty until it has a
    name).
    """
    title: str
    """Title of the page, or path of the file, in one line."""
    url: str
    """URL of this revision of a page, which stays valid when the page changes (empty
    for a file).
    """
    revision: str
    """Revision of the page, or hash of the file's text."""
    file: str
    """Path inside the indexed folder (empty for a page)."""
    text: str
    """Whole text, so that a quote can be found again."""
    offset: int
    """Offset of the text in its page or file, since a source may be a part of it."""


def new_source(
    title: str, text: str, *, url: str = "", revision: object = "", file: str = "", offset: int = 0
) -> Source:
    """Return a source without a name. A URL is dropped if its scheme is not http or https."""
    safe = (
        url
        if scheme(url) in ("http", "https") and not re.search(r"[\s<>\ud800-\udfff]", url)
        else ""
    )
    text = replace_surrogates(text[:MAX_TEXT]).replace("\0", "\ufffd")  # some stores reject NUL
    title = one_line(replace_surrogates(title), MAX_TITLE) or "untitled"
    file = replace_surrogates(file)
    return Source(
        id="", title=title, url=safe, revision=str(revision), file=file, text=text, offset=offset
    )


def scheme(place: str) -> str | None:
    """Scheme of an address (empty if it has no scheme, None if it cannot be parsed)."""
    try:
        return urlsplit(place).scheme
    except ValueError:
        return None


def renamed(source: Source, name: str) -> Source:
    copy = source.copy()
    copy["id"] = name
    return copy


def same_source(one: Source, other: Source) -> bool:
    """True if both sources are the same part of the same revision."""
    return renamed(one, "") == renamed(other, "")


def display(source: Source, about: str, limit: int) -> str:
    """Framed source as it is shown to a model, with at most about `limit` characters of text."""
    text = source["text"]
    if len(text) <= limit:
        return _framed(source, [(0, len(text))])
    (first, _), *others = scored_passages(text, about) or [((0, 0), 0.0)]
    chosen: list[Span] = []
    for start, end in [first, *(span for span, _ in sorted(others, key=lambda one: -one[1]))]:
        if end - start <= limit:
            chosen.append((start, end))
            limit -= end - start
    return _framed(source, sorted(chosen) or [(0, limit)])


def display_hits(sources: Sequence[Source], hits: Sequence[Extract], about: str, limit: int) -> str:
    """Framed hits of one search, with at most `limit` characters of text in total."""
    chosen = best_passages(hits, about, limit)
    return "\n\n".join(
        _framed(source, spans) for source, spans in zip(sources, chosen, strict=True)
    )


def evidence(
    sources: Mapping[str, Source], about: str, read: Mapping[str, Sequence[int]], limit: int
) -> str:
    """Framed passages of all sources that are relevant to a question (empty if there are none).

    `read`: name of each source of this turn -> offsets of its quotes. Quoted passages are chosen
    first, then passages with words of the question (of other sources only those with many such
    words). The remaining room is filled with the beginnings of this turn's sources. A short source
    of this turn counts as one passage while it fits as a whole.
    """
    scored = {name: scored_passages(source["text"], about) for name, source in sources.items()}
    least = _SHARE * max(
        (score for passages in scored.values() for _, score in passages), default=0.0
    )
    rated: list[tuple[float, str, Span]] = []
    for name, passages in scored.items():
        if name in read and passages and len(sources[name]["text"]) <= _WHOLE * limit:
            best = max(score for _, score in passages)
            rated.append(
                (best + _FIRST * bool(read[name]) + _FILL, name, (0, len(sources[name]["text"])))
            )
        for number, (span, score) in enumerate(passages):
            if name in read:
                quoted = any(span[0] <= at < span[1] for at in read[name])
                rated.append((score + _FIRST * quoted + _FILL / (1 + number), name, span))
            elif score > 0 and score >= least:
                rated.append((score, name, span))
    chosen: dict[str, list[Span]] = {}
    for _, name, span in sorted(rated, key=lambda one: -one[0]):
        is_new = not any(one[0] <= span[0] and span[1] <= one[1] for one in chosen.get(name, ()))
        if is_new and span[1] - span[0] <= limit:
            chosen.setdefault(name, []).append(span)
            limit -= span[1] - span[0]
    return "\n\n".join(_framed(sources[name], sorted(spans)) for name, spans in chosen.items())


def around(source: Source, start: int, end: int, characters: int) -> str:
    """Framed span of a source, marked by `>>>` and `<<<`, with up to `characters` characters on
    either side.
    """
    text = source["text"]
    before = text[max(start - characters, 0) : start]
    after = text[end : end + characters]
    copy = source.copy()
    copy["text"] = f"{before}>>>{text[start:end]}<<<{after}"
    return _framed(copy, [(0, len(copy["text"]))])


def _framed(source: Source, spans: Sequence[Span]) -> str:
    text = source["text"]
    shown = ""
    at = 0
    for start, end in spans:
        shown += (f"\n{GAP}\n" if start > at else "") + text[start:end]
        at = end
    shown += f"\n{GAP}" if at < len(text) else ""
    told = source["title"] + shown
    digest = hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()
    words = (digest[n : n + 4] if n < 60 else str(n) for n in count())
    name = f"{source['id']} {next(word for word in words if word not in told)}"
    place = source["url"] or source["file"]
    return f"<source {name}> {source['title']} ({place})\n{shown.strip()}\n</source {name}>"
