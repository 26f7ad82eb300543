"""`hrm-agent search`: hits of an index for a question, with the spans that a citation would
name.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.documents.index import DEFAULT_INDEX, renewal
from hrm_agent.cli.main import main
from hrm_agent.retrieval.index.database import DocumentIndex
from hrm_agent.retrieval.index.fusion import MODES, Hit
from hrm_agent.retrieval.terms import phrases_of, term_spans

__all__ = ["run"]

_AROUND = 320
"""Number of characters of a hit that are shown to people. --json has the whole hit."""


def run(words: list[str]) -> int:
    """Return 1 if nothing was found."""
    parser = Parser("search", "Search an index of documents, made by `hrm-agent index`.")
    parser.add_argument(
        "question",
        nargs="+",
        metavar="WORDS",
        help="the question, in plain words; there is no query syntax",
    )
    parser.add_argument(
        "--store", type=Path, default=DEFAULT_INDEX, metavar="FILE", help=f"index [{DEFAULT_INDEX}]"
    )
    parser.add_argument("-k", type=int, default=5, metavar="N", help="number of hits [5]")
    parser.add_argument(
        "--mode", choices=MODES, default="words", help="what ranks the chunks [words]"
    )
    parser.add_argument(
        "--vectors",
        metavar="NAME",
        help="package.module:attribute of your own embeddings, if the index was made with them",
    )
    arguments = parser.read(words)
    question = " ".join(arguments.question)
    output = Output(as_json=arguments.json)
    with DocumentIndex(arguments.store, embeddings=arguments.vectors) as index:
        for line in renewal(index):
            print(line, file=sys.stderr)
        hits = index.search(question, arguments.k, arguments.mode)
    output.result(
        {"question": question, "mode": arguments.mode, "hits": [asdict(hit) for hit in hits]}
    )
    for number, hit in enumerate(hits, start=1):
        at = f"{hit.file} {hit.start}-{hit.end}" + (f", page {hit.page}" if hit.page else "")
        ranks = [
            f"{name} {rank}"
            for name, rank in (("words", hit.words_rank), ("vectors", hit.vectors_rank))
            if rank
        ]
        place = f"{at}  score {hit.score:.4g} ({', '.join(ranks)})"
        output.say(f"{number}. {place}", "bold")
        output.say(f"   {_around(hit, question)}\n")
    if not hits:
        output.say(f"Nothing was found in {arguments.store}.")
    return 0 if hits else 1


def _around(hit: Hit, question: str) -> str:
    """Part of a hit with as many of the question's words as possible."""
    text = hit.text
    asked = {term for phrase in phrases_of(question, [hit.language]) for term in phrase}
    asked = {term for term in asked if len(term) > 2 or not term.isascii()}
    found = [
        (start, terms & asked)
        for start, _, terms in term_spans(text, [hit.language])
        if terms & asked
    ]

    def words_from(start: int) -> int:
        return len({term for at, terms in found if start <= at < start + _AROUND for term in terms})

    best = max([0, *(start for start, _ in found)], key=words_from)
    first = max(min(best - 40, len(text) - _AROUND), 0)
    shown = " ".join(text[first : first + _AROUND].split())
    return f"{'… ' if first else ''}{shown}{' …' if first + _AROUND < len(text) else ''}"


if __name__ == "__main__":
    sys.exit(main(["search", *sys.argv[1:]]))
