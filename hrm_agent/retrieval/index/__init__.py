"""Index of the user's documents: search by words or vectors, with hits that are exact spans, which
`retrieval.citations` checks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrm_agent.retrieval.index.database import DocumentIndex, Hit
    from hrm_agent.retrieval.index.folder import Chunking, index_folder, remove_folder
    from hrm_agent.retrieval.index.reading import read_document
    from hrm_agent.retrieval.index.retriever import IndexRetriever
    from hrm_agent.retrieval.index.walk import files_in

__all__ = [
    "Chunking",
    "DocumentIndex",
    "Hit",
    "IndexRetriever",
    "files_in",
    "index_folder",
    "read_document",
    "remove_folder",
]

_HOMES = {
    "Chunking": "folder",
    "DocumentIndex": "database",
    "Hit": "database",
    "IndexRetriever": "retriever",
    "files_in": "walk",
    "index_folder": "folder",
    "read_document": "reading",
    "remove_folder": "folder",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use, since the retriever imports LangChain, which is slow."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
