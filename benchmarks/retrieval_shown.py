"""Share of the found answers that a search shows to its readers: the searcher, and the writer.

    python -m benchmarks.retrieval_shown [DIR] [--quick] [--strategy NAME] [--size TOKENS] [--limit N] [--json FILE]

An index may find an answer that a searcher does not see, since five hits are longer than the text
that a searcher is shown. DIR has corpora and questions in the form of
`benchmarks.retrieval_quality` (by default the shared corpora). Each question is asked with the
research agent's own tool, `documents_search`; the text of its reply is located in the hits,
character by character. Without DIR and the shared corpora the questions are sentences of this
project's pages with every third word left out.

Recall is the share of an answer's characters, a mean over questions; its interval comes from
resampling questions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.chunking.ways import shared_data
from benchmarks.retrieval_quality.questions import QuestionSet, RetrievalQuestion, read_questions
from benchmarks.retrieval_quality.spans import Piece, overlap
from hrm_agent.basics.intervals import bootstrapped
from hrm_agent.graphs.research.sources import GAP, Source, evidence
from hrm_agent.graphs.research.state import ResearchContext
from hrm_agent.graphs.research.tools import Toolbox
from hrm_agent.retrieval.index import Chunking, DocumentIndex
from hrm_agent.retrieval.index.reading import Document, DocumentKind

PAGES = Path(__file__).parents[1] / "docs"
SENTENCE = re.compile(r"(?<=[.:] )[A-Z][^.:|`*\n]{60,200}\.")


@dataclass(frozen=True)
class Shown:
    """Shares of one question's answer."""

    hits: float
    """Share in the complete hits."""
    searcher: float
    """Share in the hits' text in the tool's reply."""
    writer: float
    """Share in the hits' text that the writer is shown."""
    characters: int
    """Characters of the tool's reply."""


def measured(
    questions: QuestionSet, context: ResearchContext, chunking: Chunking, every: int = 1
) -> list[Shown]:
    """Search every n-th question in one index of all corpora, which is created at
    `context.index`.
    """
    with DocumentIndex(context.index or "", create=True) as index:
        for name, document in questions.documents.items():
            index.put(name, name, document, chunking(document))
    return [asyncio.run(_asked(question, context)) for question in questions.questions[::every]]


async def _asked(question: RetrievalQuestion, context: ResearchContext) -> Shown:
    (tool,) = (
        one
        for one in Toolbox(context).tools(question.text, 1, ())
        if one.name == "documents_search"
    )
    call = {"type": "tool_call", "id": "1", "name": tool.name, "args": {"query": question.text}}
    message = await tool.ainvoke(call)
    sources: Sequence[Source] = message.artifact
    read = {source["id"]: () for source in sources}
    written = evidence(
        {one["id"]: one for one in sources}, question.text, read, context.max_context_chars
    )
    whole = [_piece(source, 0, len(source["text"])) for source in sources]
    pieces = [
        whole,
        *(
            [piece for one in sources for piece in shown(text, one)]
            for text in (message.content, written)
        ),
    ]
    recalls = (overlap(some, question.corpus, question.references).recall for some in pieces)
    return Shown(*recalls, characters=len(message.content))


def shown(text: str, source: Source) -> Iterator[Piece]:
    """Parts of a source that its frame shows."""
    frame = re.search(
        rf"<source ({source['id']} \w+)> [^\n]*\n(.*?)\n</source \1>", text, re.DOTALL
    )
    after = 0
    for part in frame[2].split(GAP) if frame else ():
        if (stripped := part.strip()) and (at := source["text"].find(stripped, after)) >= 0:
            after = at + len(stripped)
            yield _piece(source, at, after)


def _piece(source: Source, start: int, end: int) -> Piece:
    return Piece(source["file"], source["offset"] + start, source["offset"] + end, 0)


def of_pages(folder: Path) -> QuestionSet:
    documents = {
        path.stem: Document(path.read_text(encoding="utf-8"), DocumentKind.MARKDOWN)
        for path in folder.glob("*.md")
    }
    questions = [
        RetrievalQuestion(name, _two_words_in_three(match[0]), (match.span(),))
        for name, document in sorted(documents.items())
        for match in SENTENCE.finditer(document.text)
    ]
    return QuestionSet(documents, tuple(questions))


def _two_words_in_three(sentence: str) -> str:
    return " ".join(word for number, word in enumerate(sentence.split()) if number % 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=shared_data())
    parser.add_argument("--quick", action="store_true", help="one question in ten")
    parser.add_argument("--strategy", default=Chunking().strategy)
    parser.add_argument("--size", type=int, default=Chunking().size)
    most = ResearchContext(index="x").max_source_chars
    parser.add_argument(
        "--limit", type=int, default=most, help=f"characters for the searcher [{most}]"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    questions = read_questions(arguments.folder) if arguments.folder else of_pages(PAGES)
    chunking = Chunking(arguments.strategy, size=arguments.size)
    with tempfile.TemporaryDirectory() as folder:
        context = ResearchContext(index=f"{folder}/index.db", max_source_chars=arguments.limit)
        rows = measured(questions, context, chunking, every=10 if arguments.quick else 1)
    columns = [[getattr(row, name) for row in rows] for name in ("hits", "searcher", "writer")]
    found = dict(
        zip(
            ("hits", "searcher", "writer"),
            bootstrapped(columns, seed=0, resamples=10_000),
            strict=True,
        )
    )
    print(
        f"{len(rows)} questions, {chunking.strategy} {chunking.size}, {arguments.limit:,}"
        " characters for the searcher"
    )
    for name, estimate in found.items():
        share = estimate.value / found["hits"].value
        print(
            f"{name:10}{estimate.value:7.3f} [{estimate.low:.3f}, {estimate.high:.3f}]  "
            f" {share:.3f} of the hits'"
        )
    if arguments.json:
        settings = {"questions": len(rows), "limit": arguments.limit, "chunking": asdict(chunking)}
        recall = {name: asdict(estimate) for name, estimate in found.items()}
        length = fmean(row.characters for row in rows)
        arguments.json.write_text(
            json.dumps({**settings, "recall": recall, "mean_characters": length}, indent=1)
        )


if __name__ == "__main__":
    main()
