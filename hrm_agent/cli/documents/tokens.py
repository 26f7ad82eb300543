"""`hrm-agent tokens`: compares tokenizers on your texts, and trains a vocabulary on them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Advance, Output, progress
from hrm_agent.cli.common.text_files import HeldOut, Texts
from hrm_agent.cli.main import main
from hrm_agent.errors import ConfigError, HrmError, nearest
from hrm_agent.retrieval.tokenizers.base import Tokenizer
from hrm_agent.retrieval.tokenizers.load import load_tokenizer, tokenizers_at_hand
from hrm_agent.retrieval.tokenizers.statistics import TokenStatistics, measure
from hrm_agent.retrieval.tokenizers.training import (
    train_tokenizer,
    vocabulary_file,
    vocabulary_name,
)

__all__ = ["run"]

_MEGABYTE = 1_000_000


def run(words: list[str]) -> int:
    parser = Parser(
        "tokens", "Compare tokenizers on texts, or learn a vocabulary from them and compare it."
    )
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="text, Markdown, HTML or PDF"
    )
    parser.add_argument(
        "--tokenizer", action="append", metavar="NAME",
        help="word, character, pieces, hf:NAME_OR_FILE, tiktoken:NAME_OR_FILE or sentencepiece:FILE; may be repeated "
        "[all that need no download]",
    )  # fmt: skip
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="[NAME=]DOLLARS",
        help="price of a million tokens; may be repeated",
    )
    group = parser.add_argument_group(
        "learn a vocabulary, and compare it on a tenth of the text held out from it"
    )
    group.add_argument(
        "--train", metavar="KIND", help="bpe, sentencepiece-bpe, unigram, word or wordpiece"
    )
    group.add_argument(
        "--vocab",
        type=int,
        default=8_000,
        metavar="TOKENS",
        help="most tokens of the vocabulary [8000]",
    )
    group.add_argument(
        "--out", type=Path, metavar="PATH", help="a folder, or a file *.json, *.model, *.tiktoken"
    )
    group.add_argument(
        "--train-mb",
        type=float,
        default=10,
        metavar="MB",
        help="learn from this much, spread evenly over the text [10]",
    )
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    if (arguments.train is None) != (arguments.out is None):
        raise ConfigError(
            "--train and --out can only be given together.",
            "Example: --train bpe --out vocabulary/",
        )
    if not arguments.train_mb > 0:
        raise ConfigError(
            f"--train-mb {arguments.train_mb:g} gives no text to learn from.",
            "Give --train-mb a number above 0.",
        )
    file = vocabulary_file(arguments.train, arguments.out) if arguments.train else None
    own = [] if file is None else [vocabulary_name(arguments.train, file)]
    tokenizers = [one for one in _chosen(arguments.tokenizer) if one.name not in own]
    # Dollars per million tokens, by tokenizer. A price without a name applies to the
    # tokenizers that no other price names.
    names = own + [one.name for one in tokenizers]
    named: dict[str, float] = {}
    for word in arguments.price:
        name, _, dollars = word.rpartition("=")
        if name and name not in names:
            raise ConfigError(
                f"--price {word}: the tokenizer {name!r} is not compared.", nearest(name, names)
            )
        try:
            price = float(dollars)
        except ValueError:
            price = math.nan
        if not 0 <= price < math.inf:
            raise ConfigError(
                f"--price {word}: {dollars!r} is not a price.",
                "Write 2.5 for $2.50 a million tokens.",
            )
        named[name] = price
    general = named.pop("", None)
    prices = named if general is None else dict.fromkeys(names, general) | named
    texts = Texts(arguments.files)
    held = None
    learnt = 0
    if file is not None:
        held = HeldOut.of(texts, most=round(arguments.train_mb * _MEGABYTE))
        pieces = list(held.learnt())
        learnt = sum(map(len, pieces))
        print(
            f"learning at most {arguments.vocab:,} {arguments.train} tokens from {learnt:,} characters",
            file=sys.stderr,
        )
        tokenizers.insert(0, train_tokenizer(arguments.train, pieces, file, size=arguments.vocab))
    found = _measured(tokenizers, texts if held is None else held)
    rows = [_record(numbers, prices) for numbers in found]
    output.result(_whole(arguments.files, found[0], held, learnt) | {"tokenizers": rows})
    _head(output, arguments.files, found[0], held, learnt)
    columns = [
        "tokenizer",
        "tokens",
        "chars/token",
        "tokens/word",
        "unknown",
        "bytes",
        "round trip",
        "MB/s",
    ]
    priced = any(row["dollars"] is not None for row in rows)
    output.table(
        [*columns, "dollars"] if priced else columns,
        [_cells(row)[: 9 if priced else 8] for row in rows],
    )
    return 0


def _chosen(names: Sequence[str] | None) -> Iterator[Tokenizer]:
    """Tokenizers in `names`, each once (None: all available tokenizers, except those with a damaged
    file).
    """
    for name in dict.fromkeys(names or tokenizers_at_hand()):
        try:
            yield load_tokenizer(name)
        except HrmError as error:
            if names:
                raise
            print(f"left out {name}: {error.message}", file=sys.stderr)


def _measured(tokenizers: Sequence[Tokenizer], texts: Texts | HeldOut) -> list[TokenStatistics]:
    total = math.ceil(
        (texts.bytes if isinstance(texts, Texts) else texts.texts.bytes / texts.every) / _MEGABYTE
    )
    pieces: Callable[[], Iterable[str]] = texts.pieces if isinstance(texts, Texts) else texts.held
    with progress("measuring, MB", total * len(tokenizers)) as advance:
        found = [
            _one(tokenizer, pieces(), number * total, advance)
            for number, tokenizer in enumerate(tokenizers)
        ]
        advance("", total * len(tokenizers))
    return found


def _one(
    tokenizer: Tokenizer, pieces: Iterable[str], before: int, advance: Advance
) -> TokenStatistics:
    done = 0

    def on_text(text: str) -> None:
        nonlocal done
        done += len(text)
        advance(tokenizer.name, before + done // _MEGABYTE)

    return measure(tokenizer, pieces, on_text)


def _record(numbers: TokenStatistics, prices: dict[str, float]) -> dict[str, Any]:
    tally = numbers.tally
    price = prices.get(numbers.tokenizer)
    return {
        "tokenizer": numbers.tokenizer,
        "tokens": tally.tokens,
        "characters_per_token": tally.characters_per_token,
        "tokens_per_word": tally.tokens_per_word,
        "unknown_rate": tally.unknown_rate,
        "byte_rate": tally.byte_rate,
        "round_trip": numbers.round_trip,
        "megabytes_per_second": numbers.megabytes_per_second,
        "dollars": None if price is None else numbers.cost(price),
    }


def _whole(
    files: Sequence[Path], numbers: TokenStatistics, held: HeldOut | None, learnt: int
) -> dict[str, Any]:
    """Facts about the measured and the training text."""
    return {
        "files": [str(file) for file in files],
        "characters": numbers.tally.characters,
        "bytes": numbers.bytes,
        "words": numbers.tally.words,
        "held_out": (
            held and {"every": held.every, "blocks": held.blocks, "block_characters": held.size}
        ),
        "learnt_characters": learnt or None,
    }


def _head(
    output: Output,
    files: Sequence[Path],
    numbers: TokenStatistics,
    held: HeldOut | None,
    learnt: int,
) -> None:
    name = str(files[0]) if len(files) == 1 else f"{len(files)} files"
    size = f"{numbers.tally.characters:,} characters, {numbers.tally.words:,} words"
    if held is None:
        output.say(f"{name}: {size}")
        return
    part = (
        f"one in {held.every} of {held.blocks} blocks"
        if held.blocks >= held.every
        else "the last block"
    )
    output.say(f"{name}, {part} of about {held.size:,} characters, held out: {size}")
    output.say(f"{numbers.tokenizer} was learnt from {learnt:,} other characters")


def _cells(row: dict[str, Any]) -> list[object]:
    def number(key: str, form: str) -> str:
        return "" if row[key] is None else format(row[key], form)

    return [
        row["tokenizer"],
        number("tokens", ",d"),
        number("characters_per_token", ".2f"),
        number("tokens_per_word", ".2f"),
        number("unknown_rate", ".2%"),
        number("byte_rate", ".2%"),
        row["round_trip"],
        number("megabytes_per_second", ".1f"),
        number("dollars", ",.4f"),
    ]


if __name__ == "__main__":
    sys.exit(main(["tokens", *sys.argv[1:]]))
