"""`hrm-agent chunk`: the chunks of a text."""

from __future__ import annotations

import sys
from pathlib import Path

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.text_files import read_whole
from hrm_agent.cli.main import main
from hrm_agent.retrieval.chunking.chunker import (
    DEFAULT_OVERLAP,
    DEFAULT_SIZE,
    DEFAULT_STRATEGY,
    STRATEGIES,
    chunk_text,
)
from hrm_agent.retrieval.index.reading import MAX_BYTES, DocumentKind
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["run"]

_BEGINNING = 60
"""Number of first characters of a chunk that are shown."""


def run(words: list[str]) -> int:
    parser = Parser("chunk", "Cut a text into chunks, each an exact span of it, and show them.")
    parser.add_argument("file", type=Path, metavar="FILE", help="text, Markdown, HTML or PDF")
    parser.add_argument(
        "--strategy",
        metavar="NAME",
        help=f"{', '.join(STRATEGIES)} [markdown for Markdown, else {DEFAULT_STRATEGY}]",
    )
    parser.add_argument(
        "--tokenizer",
        default=DEFAULT_TOKENIZER,
        metavar="NAME",
        help=f"tokenizer that sizes are counted with [{DEFAULT_TOKENIZER}]",
    )
    parser.add_argument(
        "--size",
        type=int,
        default=DEFAULT_SIZE,
        metavar="TOKENS",
        help=f"most tokens of a chunk [{DEFAULT_SIZE}]",
    )
    parser.add_argument(
        "--overlap",
        type=float,
        default=DEFAULT_OVERLAP,
        metavar="SHARE",
        help=f"share of the size that neighbours have in common [{DEFAULT_OVERLAP}]",
    )
    largest = MAX_BYTES // 2**20
    parser.add_argument(
        "--max-mb", type=float, default=largest, metavar="MB", help=f"largest file read [{largest}]"
    )
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    tokenizer = load_tokenizer(arguments.tokenizer)
    document = read_whole(arguments.file, int(arguments.max_mb * 2**20))
    text = document.text
    is_markdown = document.kind is DocumentKind.MARKDOWN
    strategy = arguments.strategy or ("markdown" if is_markdown else DEFAULT_STRATEGY)
    settings = {"size": arguments.size, "overlap": arguments.overlap}
    rows = list[dict[str, object]]()
    cells = list[tuple[object, ...]]()
    before = 0
    for chunk in chunk_text(text, strategy, tokenizer, **settings):
        shared = tokenizer.count(text[chunk.start : before]) if chunk.start < before else 0
        before = chunk.end
        span = {"start": chunk.start, "end": chunk.end, "tokens": chunk.tokens}
        beginning = " ".join(chunk.text[: 4 * _BEGINNING].split())
        if len(beginning) > _BEGINNING:
            beginning = f"{beginning[: _BEGINNING - 1]}…"
        cells.append((len(rows), f"{chunk.start}:{chunk.end}", chunk.tokens, shared, beginning))
        rows.append({"index": len(rows), **span, "overlap": shared, "text": chunk.text})
    output.result(
        {
            "file": str(arguments.file),
            "characters": len(text),
            "revision": document.revision,
            "tokenizer": arguments.tokenizer,
            **settings,
            "strategy": strategy,
            "chunks": rows,
        }
    )
    output.table(("chunk", "span", "tokens", "overlap", "begins"), cells)
    output.say(
        f"{len(rows)} chunks by {strategy}, of at most {arguments.size} tokens of {tokenizer.name}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(["chunk", *sys.argv[1:]]))
