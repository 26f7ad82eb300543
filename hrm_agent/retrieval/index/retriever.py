"""LangChain retriever of an index, for chains, tools (`create_retriever_tool`) and evaluations."""

from __future__ import annotations

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from hrm_agent.retrieval.index.database import DocumentIndex
from hrm_agent.retrieval.index.fusion import Mode

__all__ = ["IndexRetriever"]


class IndexRetriever(BaseRetriever):
    """Retriever of an index's best chunks. `metadata` has file, start, end and revision (for
    `resolve`), page, score and ranks.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: DocumentIndex
    """Open index."""
    k: int = Field(default=5, ge=1)
    """Number of chunks for each question."""
    mode: Mode = "words"
    """Ranking of chunks: `words`, `vectors` or `hybrid`."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [
            Document(
                hit.text,
                id=f"{hit.file}#{hit.start}-{hit.end}@{hit.revision}",
                metadata={
                    "file": hit.file,
                    "start": hit.start,
                    "end": hit.end,
                    "revision": hit.revision,
                    "score": hit.score,
                    "words_rank": hit.words_rank,
                    "vectors_rank": hit.vectors_rank,
                    "page": hit.page,
                },
            )
            for hit in self.index.search(query, self.k, self.mode)
        ]
