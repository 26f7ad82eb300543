"""`hrm-agent chunk`: the chunks of a text, or a comparison of all strategies with a picture."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.cli.common.text_files import read_whole
from hrm_agent.cli.main import main
from hrm_agent.errors import ConfigError, RetrievalError
from hrm_agent.retrieval.chunking.chunker import (
    DEFAULT_OVERLAP,
    DEFAULT_SIZE,
    DEFAULT_STRATEGY,
    STRATEGIES,
)
from hrm_agent.retrieval.chunking.comparison import Cutting, compare, splitters_at_hand
from hrm_agent.retrieval.chunking.plot import Window, draw, lane, window
from hrm_agent.retrieval.index.reading import MAX_BYTES, Document, DocumentKind
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["run"]

_BEGINNING = 60
"""Number of characters shown of a chunk."""
_LEGEND = """\
mean, most, overlap: tokens; over: chunks over the limit; wrong: spans that are not the chunk's text; torn: graphemes;
lost: characters in no chunk; sentences, words: chunks that end inside of one; passes: of the tokenizer"""
_STYLES = {"a": ("█", "blue"), "b": ("░", "bright_cyan"), "x": ("▒", "yellow"), " ": (" ", "")}
_ASCII = {"a": "#", "b": ".", "x": "x", " ": " "}


def run(words: list[str]) -> int:
    arguments = _parser().read(words)
    output = Output(as_json=arguments.json)
    tokenizer = load_tokenizer(arguments.tokenizer)
    document = read_whole(arguments.file, int(arguments.max_mb * 2**20))
    if arguments.compare:
        _compare(arguments, output, document, tokenizer)
    else:
        _list(arguments, output, document, tokenizer)
    return 0


def _parser() -> Parser:
    parser = Parser("chunk", "Cut a text into chunks, each an exact span of it, and show them.")
    parser.add_argument("file", type=Path, metavar="FILE", help="text, Markdown, HTML or PDF")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="strategies and other libraries' splitters side by side",
    )
    parser.add_argument(
        "--strategy", action="append", metavar="NAME",
        help=f"{', '.join(STRATEGIES)}; with --compare it may be repeated, and be a library's "
        "[markdown for Markdown, else semantic; with --compare all that are installed]",
    )  # fmt: skip
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
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it as PNG, SVG or PDF")
    parser.add_argument(
        "--span", metavar="START:END", help="characters that are drawn [as far as 24 chunks reach]"
    )
    largest = MAX_BYTES // 2**20
    parser.add_argument(
        "--max-mb", type=float, default=largest, metavar="MB", help=f"largest file read [{largest}]"
    )
    return parser


def _list(arguments: Arguments, output: Output, document: Document, tokenizer: Tokenizer) -> None:
    names = arguments.strategy or [
        "markdown" if document.kind is DocumentKind.MARKDOWN else DEFAULT_STRATEGY
    ]
    if len(names) > 1:
        raise ConfigError(
            "A text is cut by one strategy at a time.", "Add --compare to see several."
        )
    (cutting,) = _cut(arguments, document, tokenizer, names)
    if cutting.problem:
        raise RetrievalError(cutting.problem, "Name one of our own strategies.")
    _picture(arguments, document, [cutting])
    rows = list(_chunks(cutting))
    output.result({**_settings(arguments, document), "strategy": cutting.name, "chunks": rows})
    cells = [
        (
            row["index"],
            f"{row['start']}:{row['end']}",
            row["tokens"],
            row["overlap"],
            _shown(row["text"]),
        )
        for row in rows
    ]
    output.table(("chunk", "span", "tokens", "overlap", "begins"), cells)
    output.say(
        f"{len(rows)} chunks by {cutting.name}, of at most {arguments.size} tokens of"
        f" {tokenizer.name}"
    )


def _compare(
    arguments: Arguments, output: Output, document: Document, tokenizer: Tokenizer
) -> None:
    cuttings = _cut(arguments, document, tokenizer, arguments.strategy or splitters_at_hand())
    _picture(arguments, document, cuttings)
    tokens, floor = _floor(tokenizer, document.text)
    rows = [_row(cutting, document.text, floor) for cutting in cuttings]
    output.result({**_settings(arguments, document), "tokens": tokens, "strategies": rows})
    output.say(
        f"{arguments.file}: {len(document.text):,} characters, {tokens:,} tokens of"
        f" {tokenizer.name}"
    )
    columns = (
        "strategy", "chunks", "mean", "most", "overlap", "over", "wrong", "torn", "lost", "sentences", "words", "MB/s",
        "passes",
    )  # fmt: skip
    output.table(columns, [_cells(row) for row in rows])
    output.say(_LEGEND)
    for row in rows:
        if row["problem"]:
            output.say(f"{row['strategy']}: {row['problem']}")
    output.say()
    _lanes(output, document, cuttings, _window(arguments, document, cuttings))


def _cut(
    arguments: Arguments, document: Document, tokenizer: Tokenizer, names: Sequence[str]
) -> list[Cutting]:
    with progress("cutting", len(names)) as advance:
        return compare(
            document.text,
            names,
            tokenizer,
            size=arguments.size,
            overlap=arguments.overlap,
            on_name=advance,
        )


def _floor(tokenizer: Tokenizer, text: str) -> tuple[int, float]:
    """Tokens of the text, and the CPU time of one pass over it: the minimum cost of chunking."""
    begun = time.process_time()
    tokens = len(tokenizer.offsets(text))
    return tokens, time.process_time() - begun


def _settings(arguments: Arguments, document: Document) -> dict[str, Any]:
    return {
        "file": str(arguments.file),
        "characters": len(document.text),
        "revision": document.revision,
        "tokenizer": arguments.tokenizer,
        "size": arguments.size,
        "overlap": arguments.overlap,
    }


def _chunks(cutting: Cutting) -> Iterator[dict[str, Any]]:
    for number, (chunk, shared) in enumerate(
        zip(cutting.chunks, [0, *cutting.overlaps], strict=False)
    ):
        span = {"start": chunk.start, "end": chunk.end, "tokens": chunk.tokens}
        yield {"index": number, **span, "overlap": shared, "text": chunk.text}


def _shown(text: str) -> str:
    beginning = " ".join(text[: 4 * _BEGINNING].split())
    return beginning if len(beginning) <= _BEGINNING else f"{beginning[: _BEGINNING - 1]}…"


def _row(cutting: Cutting, text: str, floor: float) -> dict[str, Any]:
    """`floor`: seconds of one pass of the tokenizer over the text."""
    size = len(text.encode())
    return {
        "strategy": cutting.name,
        "chunks": len(cutting.chunks),
        "mean_tokens": cutting.mean_tokens,
        "most_tokens": cutting.most_tokens,
        "mean_overlap": cutting.mean_overlap,
        "over_limit": cutting.faults.over_limit,
        "wrong_spans": cutting.faults.wrong_spans,
        "cut_graphemes": cutting.faults.cut_graphemes,
        "lost_characters": cutting.faults.lost,
        "cut_sentences": cutting.cut_sentences,
        "cut_words": cutting.cut_words,
        "megabytes_per_second": size / 1e6 / cutting.seconds if cutting.seconds else None,
        "passes": cutting.seconds / floor if floor else None,
        "problem": cutting.problem,
    }


def _cells(row: dict[str, Any]) -> Sequence[object]:
    if not row["chunks"]:
        return [row["strategy"], 0]
    rounded = {"mean_tokens": 0, "mean_overlap": 1, "megabytes_per_second": 1, "passes": 1}
    values = {
        key: row[key] if row[key] is None else f"{row[key]:,.{digits}f}"
        for key, digits in rounded.items()
    }
    return list((row | values).values())[:-1]


def _window(arguments: Arguments, document: Document, cuttings: Sequence[Cutting]) -> Window:
    if arguments.span is None:
        return window(document.text, cuttings)
    first, _, last = arguments.span.partition(":")
    length = len(document.text)
    if first.isdecimal() and last.isdecimal() and int(first) < min(int(last), length):
        return int(first), min(int(last), length)
    raise ConfigError(
        f"--span {arguments.span} is not a part of a text of {length} characters.",
        "Example: 0:10000",
    )


def _lanes(output: Output, document: Document, cuttings: Sequence[Cutting], shown: Window) -> None:
    """Print the picture for a terminal."""
    console = output.console
    if output.as_json or not document.text:
        return
    column = max(len(cutting.name) for cutting in cuttings) + 1
    cells = max(min(console.width, 200) - column - 1, 10)
    plain = not console.encoding.lower().startswith("utf")
    for cutting in cuttings:
        line = Text(f"{cutting.name:{column}}")
        for mark in lane(cutting, shown, cells):
            sign, style = _STYLES[mark]
            line.append(_ASCII[mark] if plain else sign, style=style)
        console.print(line, no_wrap=True)
    signs = _ASCII if plain else {mark: sign for mark, (sign, _) in _STYLES.items()}
    output.say(
        f"{'':{column}}characters {shown[0]:,} to {shown[1]:,}: {signs['a']} a chunk, {signs['b']}"
        f" the next one, {signs['x']} in both"
    )


def _picture(arguments: Arguments, document: Document, cuttings: Sequence[Cutting]) -> None:
    """Draw the picture file before anything is printed, so that no error follows printed
    results.
    """
    if arguments.picture is not None:
        title = (
            f"{arguments.file.name}: chunks of at most {arguments.size} tokens of"
            f" {arguments.tokenizer}"
        )
        draw(
            document.text,
            cuttings,
            arguments.picture,
            title,
            _window(arguments, document, cuttings),
        )


if __name__ == "__main__":
    sys.exit(main(["chunk", *sys.argv[1:]]))
