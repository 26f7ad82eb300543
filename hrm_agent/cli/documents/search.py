"""`hrm-agent search`: what an index finds for a question, with the spans that a citation would name."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.documents.index import DEFAULT_INDEX
from hrm_agent.cli.main import main
from hrm_agent.retrieval.index.database import DocumentIndex
from hrm_agent.retrieval.index.fusion import MODES, Hit
from hrm_agent.retrieval.index.reading import DocumentKind
from hrm_agent.retrieval.terms import phrases_of

__all__ = ["run"]

_AROUND = 320
"""Characters of a hit that are shown to people; --json has all of it."""


def run(words: list[str]) -> int:
    """1 if nothing was found."""
    arguments = _parser().read(words)
    question, output = " ".join(arguments.question), Output(as_json=arguments.json)
    with DocumentIndex(arguments.store, embeddings=arguments.vectors) as index:
        hits = index.search(question, arguments.k, arguments.mode)
        pages = [_page(index, hit) for hit in hits]
    rows = [{**asdict(hit), "page": page} for hit, page in zip(hits, pages, strict=True)]
    output.result({"question": question, "mode": arguments.mode, "hits": rows})
    for number, (hit, page) in enumerate(zip(hits, pages, strict=True), start=1):
        output.say(f"{number}. {_place(hit, page)}", "bold")
        output.say(f"   {_around(hit.text, question)}\n")
    if not hits:
        output.say(f"Nothing was found in {arguments.store}.")
    return 0 if hits else 1


def _parser() -> Parser:
    parser = Parser("search", "Search an index of documents, made by `hrm-agent index`.")
    parser.add_argument(
        "question", nargs="+", metavar="WORDS", help="the question, in plain words; there is no query syntax"
    )
    parser.add_argument("--store", type=Path, default=DEFAULT_INDEX, metavar="FILE", help=f"index [{DEFAULT_INDEX}]")
    parser.add_argument("-k", type=int, default=5, metavar="N", help="number of hits [5]")
    parser.add_argument("--mode", choices=MODES, default="words", help="what ranks the chunks [words]")
    parser.add_argument(
        "--vectors",
        metavar="NAME",
        help="package.module:attribute of your own embeddings, if the index was made with them",
    )
    return parser


def _place(hit: Hit, page: int | None) -> str:
    at = f"{hit.file} {hit.start}-{hit.end}" + (f", page {page}" if page else "")
    ranks = [f"{name} {rank}" for name, rank in (("words", hit.words_rank), ("vectors", hit.vectors_rank)) if rank]
    return f"{at}  score {hit.score:.4g} ({', '.join(ranks)})"


def _page(index: DocumentIndex, hit: Hit) -> int | None:
    """Of a PDF, whose pages are kept apart by form feeds."""
    stored = index.document(hit.file)
    return stored.text.count("\f", 0, hit.start) + 1 if stored and stored.kind is DocumentKind.PDF else None


def _around(text: str, question: str) -> str:
    """The part of a hit that has most of the question's words."""
    folded = text.casefold()
    asked = [phrase for phrase in phrases_of(question) if len(phrase) > 2 or not phrase.isascii()]
    starts = sorted({0, *(place for phrase in asked if (place := folded.find(phrase)) > 0)})
    best = max(starts, key=lambda start: sum(phrase in folded[start : start + _AROUND] for phrase in asked))
    first = max(min(best - 40, len(text) - _AROUND), 0)
    shown = " ".join(text[first : first + _AROUND].split())
    return f"{'… ' if first else ''}{shown}{' …' if first + _AROUND < len(text) else ''}"


if __name__ == "__main__":
    sys.exit(main(["search", *sys.argv[1:]]))
