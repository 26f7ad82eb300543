"""Reports of an evaluation: tables, and the files `results.json` for programs, `results.md` for
people, `results.png`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import json_line, replacing
from hrm_agent.retrieval.evaluation.evaluate import ALL, Result, RetrievalEvaluation, Score

__all__ = ["LEGEND", "markdown", "record", "tables", "write_results"]

LEGEND = (
    "Shares of characters in %, means over questions. Beside them: less the baseline (the first"
    " line), question by question, with its 95 % interval; * where that leaves out 0; = where the"
    " two agree on every question. Wrong: chunks whose span is not their text, which answer"
    " nothing."
)
Table = tuple[str, Sequence[str], list[list[str]]]
"""Title, columns, rows."""


def record(found: RetrievalEvaluation, source: str) -> dict[str, Any]:
    """Whole evaluation as plain values."""
    results = [
        {**asdict(result), "configuration": str(result.configuration)} for result in found.results
    ]
    return {
        "source": source,
        "base": results[0]["configuration"],
        **asdict(found),
        "results": results,
    }


def tables(found: RetrievalEvaluation) -> list[Table]:
    """Tables for k chunks, for the token budget, for chunks and ranks, and by corpus if there are
    several.
    """
    k, budget = found.settings.k, found.settings.budget
    place = "an index for each corpus" if found.settings.apart else "one index of all corpora"
    shown = ("configuration", "recall", "", "precision", "IoU", "")
    ranked = ("configuration", "chunks", "tokens", "wrong", "MRR", "")
    made: list[Table] = [
        (
            f"The best {k} chunks ({sum(found.questions.values())} questions, {place})",
            shown,
            [_shown(r, "") for r in found.results],
        ),
        (
            f"The best {budget:,} tokens",
            shown,
            [_shown(result, "budget_") for result in found.results],
        ),
        (
            "Chunks, their mean tokens, and the rank of the answer",
            ranked,
            [_ranked(result) for result in found.results],
        ),
    ]
    if len(found.questions) > 1:
        columns = ("configuration", *(name for corpus in found.questions for name in (corpus, "")))
        for measure, title in (
            ("recall", f"Recall of {k} chunks"),
            ("budget_iou", f"IoU of {budget:,} tokens"),
        ):
            rows = [_corpus_row(result, list(found.questions), measure) for result in found.results]
            made.append((f"{title}, by corpus", columns, rows))
    return made


def _shown(result: Result, kind: str) -> list[str]:
    scores = result.scores[ALL]
    recall, iou = _both(scores[f"{kind}recall"]), _both(scores[f"{kind}iou"])
    return [
        str(result.configuration),
        *recall,
        _percent(scores[f"{kind}precision"].value.value),
        *iou,
    ]


def _ranked(result: Result) -> list[str]:
    sizes = [str(result.chunks), f"{result.mean_tokens:.0f}", str(result.wrong_spans)]
    return [str(result.configuration), *sizes, *_both(result.scores[ALL]["mrr"])]


def _corpus_row(result: Result, corpora: Sequence[str], measure: str) -> list[str]:
    return [
        str(result.configuration),
        *(cell for name in corpora for cell in _both(result.scores[name][measure])),
    ]


def _both(score: Score) -> tuple[str, str]:
    """Value, and its difference to the baseline with its interval."""
    less = score.less_base
    if less.value == less.low == less.high == 0:
        return _percent(score.value.value), "="
    star = "*" if less.low > 0 or less.high < 0 else " "
    return (
        _percent(score.value.value),
        f"{100 * less.value:+.2f} [{100 * less.low:+.2f}, {100 * less.high:+.2f}]{star}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def markdown(found: RetrievalEvaluation, source: str) -> str:
    """Evaluation as a Markdown page."""
    asked = ", ".join(f"{name} {count}" for name, count in found.questions.items())
    settings = "\n".join(f"* {name}: `{value}`" for name, value in asdict(found.settings).items())
    parts = [f"# Retrieval on {source}", f"Questions: {asked}.", LEGEND.replace("*", "\\*")]
    for title, columns, rows in tables(found):
        parts += [f"## {title}", "\n".join(_lines(columns, rows))]
    return "\n\n".join([*parts, "## Settings", settings]) + "\n"


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (columns, ["---"] * len(columns), *rows):
        yield "| " + " | ".join(cell.strip().replace("*", "\\*") for cell in row) + " |"


def write_results(found: RetrievalEvaluation, folder: Path, source: str) -> list[Path]:
    """Write the files into `folder` and return their paths. Without matplotlib there is no
    picture.
    """
    plain = json.loads(json_line(record(found, source)))
    written = [
        _write(folder / "results.json", json.dumps(plain, ensure_ascii=False, indent=2) + "\n")
    ]
    written.append(_write(folder / "results.md", markdown(found, source)))
    if find_spec("matplotlib") is not None:
        from hrm_agent.retrieval.evaluation.plot import draw

        with replacing(folder / "results.png") as part:
            draw(found, part, source)
        written.append(folder / "results.png")
    return written


def _write(path: Path, text: str) -> Path:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path
