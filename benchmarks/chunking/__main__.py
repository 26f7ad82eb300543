"""Cost of cutting a text relative to tokenizing it once, and faults of the chunks.

    python -m benchmarks.chunking [--megabytes 0.5] [--fuzz 10000] [--quick] [--json FILE]

`passes` is the CPU time of a way of cutting over the floor: the time to count the text's tokens
once with the same tokenizer. Libraries count with that tokenizer, too. Chunks of 512 tokens, 15 %
overlap, on the docstrings of numpy, langchain-core and langgraph. tiktoken's vocabularies are
measured if they are on disk (TIKTOKEN_CACHE_DIR).

`pairs with 10-20 %`: neighbours that share this part of the limit; libraries' wrong spans are
corrected first. `fuzz`: texts of characters that Unicode joins, hides or reserves, cut by all
strategies and tokenizers, with and without overlap; the chunks are checked by code that shares
nothing with the chunker. `Pk`: how well topic boundaries are found
(`benchmarks.chunking.segments`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from benchmarks.chunking.check import faults, tally
from benchmarks.chunking.fuzz import fuzz_text
from benchmarks.chunking.libraries import LIBRARIES
from benchmarks.chunking.segments import Segmented, boundaries, documents, pk, segmented
from benchmarks.chunking.ways import Row, cpu, cut, documentation, measured, shared_data, tokenizers
from hrm_agent.errors import HrmError
from hrm_agent.retrieval import STRATEGIES, Tokenizer, chunk_text

_PAGES = Path(__file__).parents[2] / "docs"
_SIZES = (24, 48, 64, 128)
"""Token limits for fuzz texts. The smallest holds any code point of any tokenizer."""


def speed(text: str, known: dict[str, Tokenizer]) -> list[Row]:
    compared = {
        "pieces",
        "tiktoken cl100k_base" if "tiktoken cl100k_base" in known else "tokenizers, byte pairs",
    }
    ways = [
        (called, name)
        for called in known
        for name in (*STRATEGIES, *(LIBRARIES if called in compared else ()))
    ]
    return [{"tokenizer": called, **measured(text, name, known[called])} for called, name in ways]


def fuzzed(known: dict[str, Tokenizer], count: int) -> list[Row]:
    """Rows with the number of texts, out of `count`, that are cut without a fault."""
    rows: list[Row] = []
    for label, overlaps in (("without overlap", [0.0]), ("with overlap", [0.1, 0.15, 0.2, 0.5])):
        right = sum(_is_right(seed, list(known.values()), overlaps) for seed in range(count))
        rows.append({"way": "ours", "overlap": label, "texts": count, "right": right})
    few = min(count, 300)
    for name in LIBRARIES:
        for label, overlap in (("without overlap", 0.0), ("with overlap", 0.15)):
            right = sum(
                _library_is_right(seed, name, known["pieces"], overlap) for seed in range(few)
            )
            rows.append({"way": name, "overlap": label, "texts": few, "right": right})
    return rows


def _is_right(seed: int, known: Sequence[Tokenizer], overlaps: Sequence[float]) -> bool:
    """True if a text is cut without a fault. The seed chooses strategy and tokenizer, so that all
    pairs occur equally often.
    """
    text, rng = fuzz_text(seed), random.Random(seed)
    strategy, tokenizer = (
        [*STRATEGIES][seed % len(STRATEGIES)],
        known[seed // len(STRATEGIES) % len(known)],
    )
    size, overlap = rng.choice(_SIZES), rng.choice(overlaps)
    return not faults(
        text, chunk_text(text, strategy, tokenizer, size=size, overlap=overlap), tokenizer, size
    )


def _library_is_right(seed: int, name: str, tokenizer: Tokenizer, overlap: float) -> bool:
    """True if a library's chunks have no fault. White space may be missing. An error counts as a
    fault.
    """
    text = fuzz_text(seed)
    try:
        return tally(text, cut(text, name, tokenizer, 48, overlap), tokenizer, 48).total == 0
    except HrmError:
        return False


def without_spaces(known: dict[str, Tokenizer], size: int) -> list[Row]:
    rows: list[Row] = []
    for called in (name for name in known if name == "pieces" or name.startswith("tiktoken")):
        for unit in ("x", "日本語", "\n"):
            text = unit * (size // len(unit.encode()))
            if unit == "x" and called != "pieces":
                text = text[:100_000]  # tiktoken is too slow on one long word
            floor, _ = cpu(lambda: known[called].count(text))  # noqa: B023
            seconds, chunks = cpu(lambda: chunk_text(text, tokenizer=known[called]))  # noqa: B023
            row = {
                "tokenizer": called,
                "text": repr(unit),
                "MB": len(text.encode()) / 1e6,
                "seconds": seconds,
            }
            rows.append({**row, "passes": seconds / floor, "chunks": len(chunks)})
    return rows


def topics(count: int) -> list[Row]:
    """Mean Pk over `count` texts (empty without the shared corpora)."""
    if (data := shared_data()) is None:
        return []
    rows: list[Row] = []
    held_out = documents(data, _PAGES)[1::2]
    for sizes in ((5, 20), (3, 14)):
        texts = [segmented(held_out, seed, sizes) for seed in range(count)]
        label = f"{sizes[0]}-{sizes[1]} sentences"
        rows.append(
            {"passages": label, "way": "no boundary", **_scored(texts, [[] for _ in texts], 0.0)}
        )
        seconds, found = cpu(lambda: [boundaries(given.text) for given in texts], repeats=1)  # noqa: B023
        rows.append({"passages": label, "way": "words", **_scored(texts, found, seconds)})
        if find_spec("wordllama"):
            from hrm_agent.retrieval.embeddings import StaticEmbeddings

            static = StaticEmbeddings()
            seconds, found = cpu(
                lambda: [boundaries(given.text, static) for given in texts],  # noqa: B023
                repeats=1,
            )
            rows.append(
                {"passages": label, "way": "static vectors", **_scored(texts, found, seconds)}
            )
    return rows


def _scored(texts: Sequence[Segmented], found: Sequence[Sequence[int]], seconds: float) -> Row:
    return {
        "Pk": fmean(pk(text, places) for text, places in zip(texts, found, strict=True)),
        "CPU s": seconds,
    }


def goals(speeds: list[Row], fuzz: list[Row], spaces: list[Row], found: list[Row]) -> list[Row]:
    rows: list[Row] = []
    for called in dict.fromkeys(row["tokenizer"] for row in speeds):
        ours = [
            row for row in speeds if row["tokenizer"] == called and not row.get("library", True)
        ]
        default = next(row for row in ours if row["way"] == "recursive")
        rows.append(_goal(f"{called}: passes of `recursive`", default["passes"], "<=", 2.0))
        least = min(
            row["pairs with 10-20 %"]
            for row in ours
            if row["way"] in ("sliding", "recursive", "sentence")
        )
        rows.append(_goal(f"{called}: least share of pairs with 10-20 %", least, ">=", 0.95))
        rows.append(
            _goal(
                f"{called}: wrong spans",
                sum(row["wrong spans"] + row["over limit"] for row in ours),
                "<=",
                0,
            )
        )
    rows += [
        _goal(f"fuzz texts right, {r['overlap']}", r["right"], ">=", r["texts"])
        for r in fuzz
        if r["way"] == "ours"
    ]
    rows += [
        _goal(f"{r['tokenizer']}: passes of {r['text']} alone", r["passes"], "<=", 3.0)
        for r in spaces
    ]
    bounds = {"words": 0.25, "static vectors": 0.20}
    return rows + [
        _goal(f"Pk by {r['way']}, {r['passages']}", r["Pk"], "<=", bounds[r["way"]])
        for r in found
        if r["way"] in bounds
    ]


def _goal(name: str, value: float, sign: str, bound: float) -> Row:
    return {
        "goal": name,
        "value": value,
        "bound": f"{sign} {bound}",
        "met": value <= bound if sign == "<=" else value >= bound,
    }


def show(title: str, rows: list[Row]) -> None:
    columns = [
        name
        for name in dict.fromkeys(key for row in rows for key in row)
        if name not in ("library", "problem")
    ]
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        shown = (row.get(name, row.get("problem", "")) for name in columns)
        table.add_row(
            *(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in shown)
        )
    Console(width=max(140, Console().width)).print(table)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=0.5, help="of documentation, 3 at most")
    parser.add_argument(
        "--fuzz", type=int, default=10_000, help="texts, each cut with overlap and without"
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of everything")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    scale = 0.2 if options.quick else 1.0
    text = documentation(int(options.megabytes * 1e6 * scale))
    with tempfile.TemporaryDirectory() as folder:
        known = tokenizers(text, Path(folder))
        tables = {
            "speed": speed(text, known),
            "fuzz": fuzzed(known, int(options.fuzz * scale)),
            "without spaces": without_spaces(known, int(5e6 * scale)),
            "topics": topics(int(100 * scale)),
        }
    tables["goals"] = goals(*tables.values())
    for title, rows in tables.items():
        if rows:
            show(title, rows)
    if options.json is not None:
        settings = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": os.getloadavg(),
            "characters": len(text),
            "fuzz": int(options.fuzz * scale),
        }
        options.json.write_text(json.dumps({"settings": settings, **tables}, indent=2) + "\n")


if __name__ == "__main__":
    main()
