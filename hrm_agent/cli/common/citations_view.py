"""Display of an answer's citations: a list of them with addresses, or one cited span in its text.

It works for any graph whose state has `sources` and `citations` in the form of
`hrm_agent.graphs.research`. `sources` are texts by id, each `{"title", "url", "file", "text"}`.
`citations` point into these texts, each `{"source", "start", "end", "quote", "url"}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from hrm_agent.errors import RunError
from hrm_agent.retrieval.citations.quotes import CITATION_LIST
from hrm_agent.store import RunStore
from hrm_agent.store.browse.state import newest_plain_channels
from hrm_agent.store.values.plain_reader import NeedsItsType

__all__ = [
    "citation_lines",
    "cited_lines",
    "source_data",
    "source_lines",
    "values_of",
    "without_list",
]

_AROUND = 300
"""Number of characters shown before and after a span."""
_LIST = f"{CITATION_LIST}[1] "
_SHOWN = 160
"""Number of characters of a quote in a list."""
StyledLine = tuple[str, str]
"""Text and style."""


def values_of(store: RunStore, thread: str, graph: str) -> Mapping[str, Any]:
    """Citations and sources in the newest state of a thread. They are read without the graph's code
    if they have no types of the graph.
    """
    with suppress(NeedsItsType):
        return newest_plain_channels(store, thread, ("citations", "sources"))
    # this imports LangGraph, which plain values do not need
    from hrm_agent.runtime.newest_state import newest_state

    return newest_state(store, thread, graph) or {}


def source_data(values: Mapping[str, Any]) -> dict[str, Any]:
    """Citations and sources of a state, as JSON."""
    return {"citations": _citations(values), "sources": _sources(values)}


def citation_lines(values: Mapping[str, Any]) -> Iterator[StyledLine]:
    """Citations of the newest answer, one a line."""
    for number, cited in enumerate(_citations(values), start=1):
        source = _sources(values).get(str(cited.get("source")), {})
        yield f"[{number}] {_where(source, cited)}", ""
        line = " ".join(str(cited.get("quote", "")).split())
        quote = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
        yield f'    "{quote}"', "dim"


def source_lines(values: Mapping[str, Any]) -> Iterator[StyledLine]:
    """Lines of the citations, then of all sources in the state."""
    citations = _citations(values)
    sources = _sources(values)
    if not citations and not sources:
        yield "There are no sources.", ""
        return
    yield from citation_lines(values)
    yield f"{len(sources)} remembered:" if sources else "No source is remembered.", "bold"
    cited = {str(one.get("source")) for one in citations}
    for name, source in sources.items():
        length = f"{len(str(source.get('text', '')))} characters"
        yield f"  {name}  {_where(source, {})}  {length}{', cited' if name in cited else ''}", ""


def cited_lines(values: Mapping[str, Any], wanted: str) -> Iterator[StyledLine]:
    """Lines of a citation with the text around it, or of a whole source. `wanted`: number of a
    citation, or name of a source.
    """
    citations = _citations(values)
    sources = _sources(values)
    if wanted in sources:
        yield f"{wanted}  {_where(sources[wanted], {})}", "bold"
        yield str(sources[wanted].get("text", "")), ""
        return
    if not wanted.isdecimal() or not 1 <= int(wanted) <= len(citations):
        known = [*([f"1 to {len(citations)}"] if citations else []), *sources]
        raise RunError(
            f"The newest answer has no citation {wanted!r}.",
            f"Known: {', '.join(known) or 'none'}.",
        )
    cited = citations[int(wanted) - 1]
    source = sources.get(str(cited.get("source")), {})
    start = int(cited.get("start", 0))
    end = int(cited.get("end", 0))
    text = str(source.get("text", ""))
    yield f"[{wanted}] {_where(source, cited)}", "bold"
    yield f"characters {start} to {end} of {len(text)}", "dim"
    yield (
        ("... " if start > _AROUND else "") + text[max(start - _AROUND, 0) : start].lstrip(),
        "dim",
    )
    yield text[start:end] or str(cited.get("quote", "")), "bold green"
    yield text[end : end + _AROUND].rstrip() + (" ..." if len(text) > end + _AROUND else ""), "dim"


def without_list(answer: str, values: Mapping[str, Any]) -> str:
    """Answer without the list of citations at its end, for views that show the list separately."""
    return answer.rpartition(_LIST)[0] if _citations(values) and _LIST in answer else answer


def _citations(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: Any = values.get("citations")
    items = cast("Sequence[Any]", found) if isinstance(found, (list, tuple)) else ()
    return [dict(cast("Mapping[str, Any]", item)) for item in items if isinstance(item, Mapping)]


def _sources(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: Any = values.get("sources")
    items: dict[Any, Any] = (
        dict(cast("Mapping[Any, Any]", found)) if isinstance(found, Mapping) else {}
    )
    return {
        str(name): dict(source) for name, source in items.items() if isinstance(source, Mapping)
    }


def _where(source: Mapping[str, Any], cited: Mapping[str, Any]) -> str:
    """Title and address of a source."""
    title = str(source.get("title") or source.get("file") or cited.get("source") or "a source")
    address = str(cited.get("url") or source.get("url") or source.get("file") or "")
    return title if address in ("", title) else f"{title}  {address}"
