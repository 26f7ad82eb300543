"""Tools of a searcher, which search a wiki and read its pages, search and read the user's
documents, or are the user's tools.

A tool returns two parts, like LangChain's `content_and_artifact`: the text for the model, and the
whole sources from which the text was made. Both are recorded, so that a replay has the sources
without the wiki. Wiki and index are opened only when a call runs, since a call that is answered
from the record needs neither.

The output of a user's tool is text of a third party, so it is made a source and shown to the model
in a frame. Each document of a retriever is a source; any other output is one source as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from langchain_core.documents import Document
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.answers.typed_reply import one_line
from hrm_agent.errors import ConfigError
from hrm_agent.graphs.research.sources import (
    Source,
    display,
    display_hits,
    new_source,
    renamed,
    scheme,
)
from hrm_agent.graphs.research.state import ResearchContext
from hrm_agent.retrieval import index as documents
from hrm_agent.tools import ToolFailure
from hrm_agent.tools.load_tools import as_tools, load_tools
from hrm_agent.tools.mediawiki import open_wiki
from hrm_agent.tools.own_tool import LIMIT_REACHED, own_tool
from hrm_agent.trajectory import ToolStatus, content_hash

__all__ = ["IDS_OF_A_CALL", "Toolbox"]

SEARCHES = ("wiki_search", "documents_search")
READS = ("wiki_page", "documents_read")
IDS_OF_A_CALL = 5
"""Maximum number of sources of one call, which is also the number of hits of a document search."""
MAX_SNIPPET = 300
"""Maximum number of characters of a title or a snippet."""
Result = tuple[str, list[Source]]


class Toolbox:
    """Tools of one context: for the wiki, for documents, and the user's."""

    def __init__(self, context: ResearchContext, held: Sequence[BaseTool] = ()) -> None:
        """Raise `ConfigError` if two tools share a name, or if there is no tool. `held`: tools of
        the graph.
        """
        self._context = context
        self._ours = [*(("wiki_search", "wiki_page") if context.wiki else ())]
        self._ours += ("documents_search", "documents_read") if context.index else ()
        self._own = as_tools([*map(_pattern, self._ours), *held, *load_tools(context.tools)])[
            len(self._ours) :
        ]
        if not self._ours and not self._own:
            raise ConfigError(
                "The research agent has nothing to search.", "Give it a wiki, an index, or tools."
            )

    def descriptions(self) -> list[dict[str, Any]]:
        """Descriptions of the tools for a model."""
        return [
            *map(_description, self._ours),
            *(convert_to_openai_tool(tool) for tool in self._own),
        ]

    def tools(self, about: str, first_id: int, before: Sequence[str]) -> list[BaseTool]:
        """Tools that answer a call.

        `about`: question by which passages are chosen. `first_id`: number of the first new source.
        `before`: names of the tools in all earlier calls. A tool that has reached its limit refuses
        the call.
        """
        reader = _PageReader(self._context, about, first_id)
        own = [tool.name for tool in self._own]
        limits = {SEARCHES: self._context.max_searches, READS: self._context.max_pages}
        limits |= {(*own,): self._context.max_tool_calls} if own else {}
        spent = {
            name
            for names, most in limits.items()
            if sum(n in names for n in before) >= most
            for name in names
        }
        ours = [(_pattern(name), getattr(reader, name)) for name in self._ours]
        return [
            *(
                tool.model_copy(update={"coroutine": _refused if tool.name in spent else run})
                for tool, run in ours
            ),
            *(
                own_tool(tool, reader.own, self._context.max_tool_seconds, tool.name in spent)
                for tool in self._own
            ),
        ]


@lru_cache
def _description(name: str) -> dict[str, Any]:
    return convert_to_openai_tool(_pattern(name))


@lru_cache
def _pattern(name: str) -> BaseTool:
    """Tool that cannot be run, made once. It gives the description for a model, and is the template
    of the tools that run.
    """
    method = getattr(_PageReader(None, "", 0), name)  # pyright: ignore[reportArgumentType]
    return StructuredTool.from_function(coroutine=method, response_format="content_and_artifact")


async def _refused(**_: Any) -> Result:
    raise ToolFailure(LIMIT_REACHED, ToolStatus.DENIED)


@dataclass(frozen=True)
class _PageReader:
    context: ResearchContext
    about: str
    """Text of the question. Passages with words of it are shown."""
    first_id: int
    """Number of the first new source: 7 names it `S7`."""

    # Docstrings of tools are their descriptions for the model, which are hashed into each request.
    async def wiki_search(self, query: str) -> Result:
        """Search the wiki for pages whose text has the words of the query. Few words find more."""
        found = await self._wiki().asearch(query)
        lines = list[str]()
        for hit in found:
            title = one_line(hit.title, MAX_SNIPPET)
            snippet = one_line(hit.snippet or hit.intro, MAX_SNIPPET)
            lines.append(f"{title}: {snippet}" if snippet else title)
        return "\n".join(lines) or "No page has these words. Try fewer or other words.", []

    async def wiki_page(self, title: str, about: str = "") -> Result:
        """Read the page of the wiki with this title: its beginning and what it says about the words of `about`."""
        page = await self._wiki().apage(title)
        return await self._shown(
            page.title, page.text, about, url=page.permanent_url, revision=page.revision
        )

    async def documents_search(self, query: str) -> Result:
        """Search the person's own documents; gives the passages that have most of the query's words."""
        return await asyncio.to_thread(self._found, query)

    async def documents_read(self, file: str, about: str = "") -> Result:
        """Read one of the person's own documents: its beginning and what it says about the words of `about`."""
        stored = await asyncio.to_thread(self._document, file)
        if stored is None:
            raise ToolFailure(
                f"There is no document {file!r}. Search for it by words of its text.",
                ToolStatus.ERROR,
            )
        return await self._shown(file, stored.text, about, file=file, revision=stored.revision)

    async def _shown(self, title: str, text: str, about: str, **where: Any) -> Result:
        source = self._named(0, new_source(title, text, **where))
        shown = self.context.max_source_chars
        # in a thread, since dividing a long text into passages takes a moment
        return await asyncio.to_thread(display, source, f"{about} {self.about}", shown), [source]

    def own(self, documents: Sequence[Document]) -> Result:
        """Output of a user's tool, as sources."""
        found = [_source_of(document) for document in documents if document.page_content.strip()][
            :IDS_OF_A_CALL
        ]
        named = [self._named(number, source) for number, source in enumerate(found)]
        share = self.context.max_source_chars // max(len(named), 1)
        left = len(documents) - len(named)
        shown = [display(source, self.about, share) for source in named] or ["Nothing was found."]
        return (
            "\n\n".join([*shown, *([f"{left} more are not shown."] if left and named else [])]),
            named,
        )

    def _wiki(self) -> Any:
        return open_wiki(self.context.wiki or "", self.context.user_agent, self.context.cache)

    def _found(self, query: str) -> Result:
        with documents.DocumentIndex(self.context.index or "") as index:
            mode: Any = self.context.index_mode
            hits = index.search(query, IDS_OF_A_CALL, mode)
        sources = [
            self._named(
                n, new_source(h.file, h.text, file=h.file, revision=h.revision, offset=h.start)
            )
            for n, h in enumerate(hits)
        ]
        shown = display_hits(sources, hits, f"{query} {self.about}", self.context.max_source_chars)
        return shown or "No document has these words.", sources

    def _document(self, file: str) -> Any:
        with documents.DocumentIndex(self.context.index or "") as index:
            return index.document(file)

    def _named(self, number: int, source: Source) -> Source:
        return renamed(source, f"S{self.first_id + number}")


def _source_of(document: Document) -> Source:
    """Source made of a LangChain document. Title and place are read from the metadata keys that
    LangChain's loaders and splitters use.
    """
    known: dict[str, Any] = {
        name: value for name, value in document.metadata.items() if value not in (None, "")
    }
    places = [
        str(known[name]) for name in ("url", "source", "link", "file_path", "path") if name in known
    ]
    url = next(
        (place for place in places if scheme(place) and place.startswith(("http://", "https://"))),
        "",
    )
    file = next((one_line(place, MAX_SNIPPET) for place in places if scheme(place) == ""), "")
    page = known.get(
        "page_label", known["page"] + 1 if isinstance(known.get("page"), int) else known.get("page")
    )
    title = str(known.get("title") or file or url or document.id or "document")
    title = title if page is None else f"{title}, page {page}"
    start = known.get("start_index")
    offset = start if isinstance(start, int) and start > 0 else 0
    text = document.page_content
    revision = content_hash(document.page_content)[:16]
    return new_source(title, text, url=url, file=file, revision=revision, offset=offset)
