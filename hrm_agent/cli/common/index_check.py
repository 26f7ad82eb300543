"""Check of a run's document index before the run begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["refuse_missing_index"]


def refuse_missing_index(context: Any, given: Mapping[str, Any]) -> None:
    """Raise an `HrmError` if the research agent's index cannot be opened.

    Without this check, each search would fail, and the agent would answer that the sources have no
    answer. `context`: run context made of the options `given`. Only new runs need this check, since
    recorded answers need no index.
    """
    if "index" not in given:
        return
    from hrm_agent.graphs.research.state import ResearchContext
    from hrm_agent.retrieval.index.database import DocumentIndex

    if isinstance(context, ResearchContext) and context.index:
        DocumentIndex(context.index).close()
