"""Chunking and ranking methods, compared by how much of the answers to questions they retrieve.

    python -m benchmarks.retrieval_quality [DIR] [--strategy NAME ...] [--size TOKENS ...] [--mode MODE ...]

DIR has corpora (`*.md`, `*.txt`) and `questions.jsonl` (`benchmarks.retrieval_quality.questions`).
Without DIR and the shared corpora the questions are sentences of this project's pages with every
third word left out. Strategies, sizes and modes are combined. Strategies are `default` (cut like
`hrm-agent index`), those of `hrm-agent chunk`, and the splitters of other libraries.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.chunking.ways import shared_data
from benchmarks.retrieval_quality.configurations import DEFAULT, Configuration
from benchmarks.retrieval_quality.evaluate import (
    ALL,
    Result,
    RetrievalEvaluation,
    Score,
    Settings,
    evaluate,
)
from benchmarks.retrieval_quality.questions import QuestionSet, read_questions
from benchmarks.retrieval_shown import PAGES, of_pages
from hrm_agent.errors import HrmError
from hrm_agent.retrieval.chunking.chunker import DEFAULT_OVERLAP, DEFAULT_SIZE, STRATEGIES
from hrm_agent.retrieval.index.fusion import MODES

BASE = "langchain-located:512/64:words"
USUAL = (DEFAULT, "langchain", *(name for name in STRATEGIES if name != "code"))
LEGEND = (
    "Shares of characters in %, means over questions. Beside them: less the baseline (the first"
    " line), question by question, with its 95 % interval; * where that leaves out 0; = where the"
    " two agree on every question. Wrong: chunks whose span is not their text, which answer"
    " nothing."
)
QUICK = 20
"""Number of questions with `--quick`."""


def tables(found: RetrievalEvaluation) -> Iterator[Table]:
    """Tables for k chunks, for the token budget, for chunks and ranks, and by corpus if there are
    several.
    """
    k, budget = found.settings.k, found.settings.budget
    place = "an index for each corpus" if found.settings.apart else "one index of all corpora"
    questions = sum(found.questions.values())
    shown = ("configuration", "recall", "", "precision", "IoU", "")
    yield table(
        f"The best {k} chunks ({questions} questions, {place})",
        shown,
        [shares(result, "") for result in found.results],
    )
    yield table(
        f"The best {budget:,} tokens",
        shown,
        [shares(result, "budget_") for result in found.results],
    )
    yield table(
        "Chunks, their mean tokens, and the rank of the answer",
        ("configuration", "chunks", "tokens", "wrong", "MRR", ""),
        [
            [
                str(result.configuration),
                str(result.chunks),
                f"{result.mean_tokens:.0f}",
                str(result.wrong_spans),
                *both(result.scores[ALL]["mrr"]),
            ]
            for result in found.results
        ],
    )
    if len(found.questions) > 1:
        columns = ("configuration", *(name for corpus in found.questions for name in (corpus, "")))
        for measure, title in (
            ("recall", f"Recall of {k} chunks"),
            ("budget_iou", f"IoU of {budget:,} tokens"),
        ):
            rows = [
                [
                    str(result.configuration),
                    *(
                        cell
                        for corpus in found.questions
                        for cell in both(result.scores[corpus][measure])
                    ),
                ]
                for result in found.results
            ]
            yield table(f"{title}, by corpus", columns, rows)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(*columns, title=title, title_justify="left")
    for row in rows:
        made.add_row(*row)
    return made


def shares(result: Result, kind: str) -> list[str]:
    scores = result.scores[ALL]
    precision = f"{100 * scores[f'{kind}precision'].value.value:.2f}"
    return [
        str(result.configuration),
        *both(scores[f"{kind}recall"]),
        precision,
        *both(scores[f"{kind}iou"]),
    ]


def both(score: Score) -> tuple[str, str]:
    """Value, and its difference to the baseline with its interval."""
    value, less = f"{100 * score.value.value:.2f}", score.less_base
    if less.value == less.low == less.high == 0:
        return value, "="
    star = "*" if less.low > 0 or less.high < 0 else " "
    return value, f"{100 * less.value:+.2f} [{100 * less.low:+.2f}, {100 * less.high:+.2f}]{star}"


def record(found: RetrievalEvaluation, source: str) -> dict[str, Any]:
    """Whole evaluation as plain values."""
    results = [
        {**asdict(result), "configuration": str(result.configuration)} for result in found.results
    ]
    return {"source": source, **asdict(found), "results": results}


def configurations(arguments: argparse.Namespace) -> Iterator[Configuration]:
    for mode, size, strategy in product(arguments.mode, arguments.size, arguments.strategy):
        overlap = 0.0 if strategy == "fixed" else arguments.overlap
        yield Configuration(strategy, size, round(size * overlap), mode)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = Settings()
    parser.add_argument("folder", type=Path, nargs="?", default=shared_data(), metavar="DIR")
    parser.add_argument("--strategy", nargs="+", default=USUAL, metavar="NAME")
    parser.add_argument("--size", nargs="+", type=int, default=[DEFAULT_SIZE], metavar="TOKENS")
    parser.add_argument("--overlap", type=float, default=DEFAULT_OVERLAP, metavar="SHARE")
    parser.add_argument("--mode", nargs="+", default=["words"], metavar="|".join(MODES))
    parser.add_argument("--base", default=BASE, help=f"baseline [{BASE}]")
    parser.add_argument("--k", type=int, default=usual.k, help=f"chunks shown [{usual.k}]")
    parser.add_argument("--budget", type=int, default=usual.budget, help=f"tokens [{usual.budget}]")
    parser.add_argument("--tokenizer", default=usual.tokenizer)
    parser.add_argument("--embeddings", default=usual.embeddings, help="for vectors and hybrid")
    parser.add_argument("--apart", action="store_true", help="an index for each corpus")
    parser.add_argument("--resamples", type=int, default=usual.resamples)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} questions")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    try:
        questions = read_questions(arguments.folder) if arguments.folder else of_pages(PAGES)
        if arguments.quick:
            questions = QuestionSet(questions.documents, questions.questions[:QUICK])
        chosen = {key: value for key, value in vars(arguments).items() if key in Settings.__slots__}
        base = Configuration.read(arguments.base)
        found = evaluate(questions, list(configurations(arguments)), base, Settings(**chosen))
    except HrmError as error:
        raise SystemExit(str(error)) from error
    console = Console(width=max(140, Console().width))
    for made in tables(found):
        console.print(made)
    console.print(LEGEND)
    if arguments.json is not None:
        source = str(arguments.folder or PAGES)
        arguments.json.write_text(json.dumps(record(found, source), indent=2) + "\n")


if __name__ == "__main__":
    main()
