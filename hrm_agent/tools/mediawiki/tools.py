"""A wiki as two tools of a model.

A page can be longer than a conversation: it is shown in stretches, and what is said of the rest lets a model go where
it wants to. The artifact of each answer says in JSON what was shown, for a graph that cites.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from langchain_core.tools import BaseTool, StructuredTool

from hrm_agent.tools.failures import ToolFailure
from hrm_agent.tools.mediawiki.io_loop import the_loop
from hrm_agent.tools.mediawiki.pages import Page, SearchHit
from hrm_agent.trajectory import ToolStatus

if TYPE_CHECKING:
    from hrm_agent.tools.mediawiki.client import MediaWiki

__all__ = ["wiki_tools"]

_SHOWN_OF_A_HIT = 400
_SHOWN_OF_A_HEADING = 80
_SECTIONS_NAMED = 40


def wiki_tools(wiki: MediaWiki, page_characters: int) -> list[BaseTool]:
    """`wiki_search` and `wiki_page`."""

    async def wiki_search(query: str) -> tuple[str, list[dict[str, Any]]]:
        """Search a wiki for pages whose text has all words of the query. Few words find more."""
        found = await wiki.asearch(query)
        return _listed(found), [{"title": one.title, "url": one.url} for one in found]

    async def wiki_page(title: str, start: int = 0) -> tuple[str, dict[str, Any]]:
        """Read the page of a wiki with this title; of a long one a stretch, from the character `start`."""
        page = await wiki.apage(title)
        if start < 0 or start >= max(1, len(page.text)):
            raise ToolFailure(f"The page has {len(page.text)} characters; start is {start}.", ToolStatus.INVALID_CALL)
        end = min(len(page.text), start + page_characters)
        shown = {"title": page.title, "url": page.permanent_url, "revision": page.revision, "start": start, "end": end}
        return f"{page.title} <{page.permanent_url}>\n\n{page.text[start:end]}{_rest(page, start, end)}", shown

    return [_tool(wiki_search), _tool(wiki_page)]


def _tool(function: Callable[..., Coroutine[Any, Any, Any]]) -> BaseTool:
    """For threads as well: they wait for the same coroutine."""
    tool = StructuredTool.from_function(coroutine=function, response_format="content_and_artifact")
    tool.func = lambda **arguments: the_loop().run(function(**arguments))
    return tool


def _listed(found: list[SearchHit]) -> str:
    lines = [f"{one.title} <{one.url}>: {(one.snippet or one.intro)[:_SHOWN_OF_A_HIT]}" for one in found]
    return "\n".join(lines) or "No page has these words."


def _rest(page: Page, start: int, end: int) -> str:
    """What there is besides the stretch that is shown; nothing if it is all."""
    if end - start == len(page.text):
        return ""
    sections = [
        f"{section.title[:_SHOWN_OF_A_HEADING]} at {section.start}" for section in page.sections if section.title
    ]
    places = f" Sections: {'; '.join(sections[:_SECTIONS_NAMED])}." if sections else ""
    further = f" Go on with start={end}." if end < len(page.text) else ""
    return f"\n\n[Characters {start} to {end} of {len(page.text)}.{places}{further}]"
