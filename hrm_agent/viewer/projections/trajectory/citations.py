"""Citations of an answer, each checked against the text of its source in the state.

Stores are untrusted. A citation is shown as not verified if its source is missing, if its span is
outside of the text, or if the text of the span differs from the quote.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from hrm_agent.answers.final_answer import own_text
from hrm_agent.retrieval.citations.quotes import CITATION_LIST
from hrm_agent.store.browse.state import Written, shown_channels
from hrm_agent.viewer.json_text import NotThere, cut_text, foreign, short
from hrm_agent.viewer.projections.trajectory.moments import plain
from hrm_agent.viewer.projections.trajectory.threads import header_of

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["citations", "source", "sources_of"]

_AROUND = 1_500
"""Number of characters that are shown on either side of a span."""
_LONGEST_SPAN = 20_000
_MOST = 500
"""Maximum number of citations, and of sources."""
_MARK = re.compile(r"\[(\d{1,4})\]")
_LIST = f"{CITATION_LIST}[1] "
_MOST_PARTS = 2_000

Table = dict[str, Any]


def citations(place: Place, id: str) -> dict[str, Any]:  # noqa: A002  the query value's name
    """`GET citations`: citations of a trajectory's answer, and its sources."""
    header = header_of(place, id)
    values = _values(place, header.thread_id)
    listed: Any = values.get("citations")
    held = cast("list[Any]", listed) if isinstance(listed, list) else []
    cited = [_fields(each) for each in held[:_MOST] if isinstance(each, dict)]
    sources = _sources(values)
    answer = header.answer or ""
    shown = answer.rpartition(_LIST)[0] if cited and _LIST in answer else answer
    item = f"trajectory:{header.id}"
    names = {str(each.get("source")) for each in cited}
    rows: list[dict[str, Any]] = []
    for number, each in enumerate(cited, start=1):
        name = str(each.get("source"))
        quote = each.get("quote")
        source = sources.get(name, {})
        start = _place(each.get("start"))
        end = _place(each.get("end"))
        rows.append(
            {
                "number": number,
                "source": name,
                "title": short(_title(source, name)),
                "url": _url(each.get("url") or source.get("url")),
                "start": foreign(start),
                "end": foreign(end),
                "quote": short(quote) if isinstance(quote, str) else None,
                "verified": _verified(source, start, end, quote) if name in sources else False,
            }
        )
    return {
        "answer": cut_text(header.answer, item, "answer"),
        "parts": _parts(own_text(shown), len(cited)),
        "citations": rows,
        "sources": [
            {
                "id": name,
                "title": short(_title(source, name)),
                "url": _url(source.get("url")),
                "chars": len(_text(source)),
                "cited": name in names,
            }
            for name, source in sources.items()
        ],
    }


def source(place: Place, id: str, source: str, start: int = 0, end: int = 0) -> dict[str, Any]:  # noqa: A002
    """`GET source`: a span of a source with the text around it."""
    found = sources_of(place, id).get(source)
    if found is None:
        raise NotThere(
            f"The state has no source {source[:80]!r}.",
            "It was removed from the state, or never in it.",
        )
    text = _text(found)
    start = min(start, len(text))
    end = min(max(end, start), len(text), start + _LONGEST_SPAN)
    return {
        "title": short(_title(found, source)),
        "url": _url(found.get("url")),
        "before": text[max(start - _AROUND, 0) : start],
        "span": text[start:end],
        "after": text[end : end + _AROUND],
        "start": start,
        "end": end,
        "chars": len(text),
        "text": cut_text(text, f"source:{id}:{source}", "text"),
    }


def sources_of(place: Place, id_: str) -> dict[str, Table]:
    """Sources in the newest state of a trajectory's thread."""
    return _sources(_values(place, header_of(place, id_).thread_id))


def _values(place: Place, thread_id: str) -> Table:
    found = shown_channels(place.store(), thread_id, names=("citations", "sources"))
    values: Table = {} if found is None else dict(found.checkpoint["channel_values"])
    if any(isinstance(value, Written) for value in values.values()):
        raise NotThere(
            "The citations and sources of this thread cannot be read without its graph.",
            f"Run `hrm-agent show {thread_id}`, which loads the graph.",
        )
    return {name: plain(value) for name, value in values.items()}


def _sources(values: Table) -> dict[str, Table]:
    held: Any = values.get("sources")
    items = cast("dict[Any, Any]", held) if isinstance(held, dict) else {}
    return {
        str(name): _fields(item)
        for name, item in [*items.items()][:_MOST]
        if isinstance(item, dict)
    }


def _fields(value: Any) -> Table:
    """Fields of an object, also if its type is not loaded."""
    found = cast("Table", value)
    return cast("Table", found["made_of"]) if isinstance(found.get("made_of"), dict) else found


def _verified(source: Table, start: int | None, end: int | None, quote: Any) -> bool | None:
    """True if this span of the source's text equals the quote (None without a quote)."""
    if not isinstance(quote, str) or not quote:
        return None
    text = _text(source)
    return (
        start is not None
        and end is not None
        and 0 <= start < end <= len(text)
        and text[start:end] == quote
    )


def _place(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(source: Table) -> str:
    text = source.get("text")
    return text if isinstance(text, str) else ""


def _title(source: Table, name: str) -> str:
    return str(source.get("title") or source.get("file") or name)


def _url(value: Any) -> str | None:
    """Address for a link (None for schemes other than http and https)."""
    if not isinstance(value, str) or len(value) > 2_000:
        return None
    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    return value if parts.scheme in ("http", "https") and parts.hostname else None


def _parts(text: str, count: int) -> list[dict[str, Any]]:
    """Parts of the answer. Each mark `[N]` of one of the `count` citations is a part."""
    found: list[dict[str, Any]] = []
    at = 0
    for mark in _MARK.finditer(text):
        number = int(mark[1])
        if not 1 <= number <= count or len(found) >= _MOST_PARTS:
            continue
        if mark.start() > at:
            found.append({"text": text[at : mark.start()]})
        found.append({"text": mark[0], "citation": number})
        at = mark.end()
    return [*found, {"text": text[at:]}] if at < len(text) else found
