"""Client for any MediaWiki: search its texts, read a page, cite it at a revision.

    wiki = open_wiki("en", user_agent="whales/1.0 (ann@example.org)", cache="runs/wiki")
    page = wiki.page("Blue whale")

`open_wiki` takes the URL of an `api.php`, or the language of a Wikipedia. Threads and event loops
may share its result. `search` and `page` have async versions, `asearch` and `apage`.
"""

from hrm_agent.tools.mediawiki.client import MediaWiki, open_wiki
from hrm_agent.tools.mediawiki.pages import Page, Passage, SearchHit, Section

__all__ = ["MediaWiki", "Page", "Passage", "SearchHit", "Section", "open_wiki"]
