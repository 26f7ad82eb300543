"""The tools of a searcher: search a wiki, read its pages; search one's own documents, read them.

What a tool returns has two halves, as LangChain's `content_and_artifact` has it: the text that the model is shown, and
the sources that it was shown parts of, whole. Both are on record, so that a replay has the sources without the wiki.
Nothing is opened before a call is run: a call that is answered from the record needs neither the wiki nor the index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.answers.typed_reply import one_line
from hrm_agent.graphs.research.sources import Source, display, new_source, renamed
from hrm_agent.graphs.research.state import ResearchContext
from hrm_agent.retrieval import index as documents
from hrm_agent.tools import ToolFailure
from hrm_agent.tools.mediawiki import SearchHit, open_wiki
from hrm_agent.trajectory import ToolStatus

__all__ = ["IDS_OF_A_CALL", "READS", "SEARCHES", "offered_tools", "research_tools"]

SEARCHES = ("wiki_search", "documents_search")
READS = ("wiki_page", "documents_read")
IDS_OF_A_CALL = 5
"""Sources of one call at most: hits of one search of documents."""
MAX_SNIPPET = 300
"""Characters."""
Result = tuple[str, list[Source]]


def research_tools(context: ResearchContext, about: str, first_id: int, spent: Sequence[str] = ()) -> list[BaseTool]:
    """The tools that the context gives.

    `about`: the question that sources are read for. `first_id`: the number of the first new source. `spent`: names of
    tools that have been used as often as they may; they answer that they have.
    """
    reader = _PageReader(context, about, first_id)
    return [
        _pattern(name).model_copy(update={"coroutine": _refused if name in spent else getattr(reader, name)})
        for name in _names(context)
    ]


def offered_tools(context: ResearchContext) -> list[dict[str, Any]]:
    """The same as a model is told of them."""
    return [_description(name) for name in _names(context)]


def _names(context: ResearchContext) -> Iterator[str]:
    if context.wiki:
        yield from ("wiki_search", "wiki_page")
    if context.index:
        yield from ("documents_search", "documents_read")


@lru_cache
def _description(name: str) -> dict[str, Any]:
    return convert_to_openai_tool(_pattern(name))


@lru_cache
def _pattern(name: str) -> BaseTool:
    """The tool without a reader behind it: what a model is told of it is made once."""
    method = getattr(_PageReader(None, "", 0), name)  # pyright: ignore[reportArgumentType]
    return StructuredTool.from_function(coroutine=method, response_format="content_and_artifact")


async def _refused(**_: Any) -> Result:
    raise ToolFailure("The limit for this is reached. End with what you have found.", ToolStatus.DENIED)


@dataclass(frozen=True)
class _PageReader:
    context: ResearchContext
    about: str
    """The question that is searched for: passages that have its words are shown."""
    first_id: int
    """Number of the first new source: 7 names it `S7`."""

    async def wiki_search(self, query: str) -> Result:
        """Search the wiki for pages whose text has the words of the query. Few words find more."""
        found = await self._wiki().asearch(query)
        return "\n".join(map(_line, found)) or "No page has these words. Try fewer or other words.", []

    async def wiki_page(self, title: str, about: str = "") -> Result:
        """Read the page of the wiki with this title: its beginning and what it says about the words of `about`."""
        page = await self._wiki().apage(title)
        return await self._shown(page.title, page.text, about, url=page.permanent_url, revision=page.revision)

    async def documents_search(self, query: str) -> Result:
        """Search the person's own documents; gives the passages that have most of the query's words."""
        hits = await asyncio.to_thread(self._hits, query)
        share = self.context.max_source_chars // max(len(hits), 1)
        return "\n\n".join(display(hit, query, share) for hit in hits) or "No document has these words.", hits

    async def documents_read(self, file: str, about: str = "") -> Result:
        """Read one of the person's own documents: its beginning and what it says about the words of `about`."""
        stored = await asyncio.to_thread(self._document, file)
        if stored is None:
            raise ToolFailure(f"There is no document {file!r}. Search for it by words of its text.", ToolStatus.ERROR)
        return await self._shown(file, stored.text, about, file=file, revision=stored.revision)

    async def _shown(self, title: str, text: str, about: str, **where: Any) -> Result:
        source = self._named(0, new_source(title, text, **where))
        shown = self.context.max_source_chars
        # A long text is cut into passages, which takes a moment.
        return await asyncio.to_thread(display, source, f"{about} {self.about}", shown), [source]

    def _wiki(self) -> Any:
        return open_wiki(self.context.wiki or "", self.context.user_agent, self.context.cache)

    def _hits(self, query: str) -> list[Source]:
        with documents.DocumentIndex(self.context.index or "") as index:
            mode: Any = self.context.index_mode
            hits = index.search(query, IDS_OF_A_CALL, mode)
        return [
            self._named(n, new_source(h.file, h.text, file=h.file, revision=h.revision, offset=h.start))
            for n, h in enumerate(hits)
        ]

    def _document(self, file: str) -> Any:
        with documents.DocumentIndex(self.context.index or "") as index:
            return index.document(file)

    def _named(self, number: int, source: Source) -> Source:
        return renamed(source, f"S{self.first_id + number}")


def _line(found: SearchHit) -> str:
    snippet = one_line(found.snippet or found.intro, MAX_SNIPPET)
    return f"{one_line(found.title, MAX_SNIPPET)}: {snippet}" if snippet else one_line(found.title, MAX_SNIPPET)
