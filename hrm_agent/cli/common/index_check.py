"""An index of documents that a run is told to search, looked at before the run begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["refuse_missing_index"]


def refuse_missing_index(context: Any, given: Mapping[str, Any]) -> None:
    """Raise where the research agent's index cannot be opened.

    Each search would fail, and the answer would be that the sources have none. `context`: the run
    context made of the options `given`. For new runs only: what is on record needs no index.
    """
    if "index" not in given:
        return
    from hrm_agent.graphs.research.state import ResearchContext
    from hrm_agent.retrieval.index.database import DocumentIndex

    if isinstance(context, ResearchContext) and context.index:
        DocumentIndex(context.index).close()
