"""Configurations measured on questions, each against a baseline.

A question is the unit: measures are means over questions, intervals come from resampling them
(`hrm_agent.basics.intervals`), and a difference is taken question by question, so that how hard a
question is cancels out. Every interval speaks for itself alone: of twenty configurations that are
all as good as the baseline, one is beyond it by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from hrm_agent.basics.intervals import Estimate, bootstrapped
from hrm_agent.errors import ConfigError
from hrm_agent.retrieval.evaluation.configurations import Configuration
from hrm_agent.retrieval.evaluation.questions import QuestionSet, RetrievalQuestion
from hrm_agent.retrieval.evaluation.ranking import RankedPiece, Ranking, depth_for, rank, within
from hrm_agent.retrieval.evaluation.spans import overlap, reciprocal_rank
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["ALL", "MEASURES", "Result", "RetrievalEvaluation", "Score", "Settings", "evaluate"]

ALL = "all"
"""The corpora together, among their names."""
MEASURES = ("recall", "precision", "iou", "budget_recall", "budget_precision", "budget_iou", "mrr")
"""The first three over the best k chunks, the next over what a budget of tokens pays for."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How is measured."""

    k: int = 5
    """Chunks that are shown."""
    budget: int = 2560
    """Tokens that are shown, where chunks are cut off at a number of tokens instead."""
    tokenizer: str = DEFAULT_TOKENIZER
    """What sizes, overlaps and the budget are counted with."""
    embeddings: str = "static"
    """Embeddings for the modes that rank by vectors, as `hrm-agent index` takes them."""
    apart: bool = False
    """Each corpus in an index of its own."""
    resamples: int = 10_000
    """Bootstrap samples that an interval is taken from."""
    seed: int = 0
    """Of the resampling."""

    def check(self) -> None:
        for name in ("k", "budget", "resamples"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1.")


@dataclass(frozen=True, slots=True)
class Score:
    """A measure of a configuration."""

    value: Estimate
    """Mean over questions, with its interval."""
    less_base: Estimate
    """Mean of the differences to the baseline, question by question. Zero width where the two agree
    on all of them.
    """


@dataclass(frozen=True, slots=True)
class Result:
    """One configuration."""

    configuration: Configuration
    """How texts were cut and chunks ranked."""
    chunks: int
    """Number of chunks of all corpora."""
    mean_tokens: float
    """Of a chunk."""
    wrong_spans: int
    """Chunks whose span is not their text; they are shown, and answer nothing."""
    scores: Mapping[str, Mapping[str, Score]]
    """`all` or a corpus -> measure -> score."""


@dataclass(frozen=True, slots=True)
class RetrievalEvaluation:
    """All configurations; the first is the baseline."""

    questions: Mapping[str, int]
    """Corpus -> its questions, of those that have any."""
    settings: Settings
    """How was measured."""
    results: Sequence[Result]
    """One for each configuration, the baseline first."""


def evaluate(
    questions: QuestionSet,
    configurations: Sequence[Configuration],
    base: Configuration,
    settings: Settings | None = None,
    on_result: Callable[[Configuration], None] = lambda configuration: None,
) -> RetrievalEvaluation:
    """Measure `base` and every configuration; one that is named twice, or is the base, is measured
    once.
    """
    (settings := settings or Settings()).check()
    measured: dict[Configuration, tuple[Ranking, list[list[float]]]] = {}
    tokenizer = load_tokenizer(settings.tokenizer)
    for configuration in dict.fromkeys([base, *configurations]):
        depth = depth_for(settings.k, settings.budget, configuration.size)
        ranking = rank(
            questions,
            configuration,
            tokenizer,
            depth,
            apart=settings.apart,
            embeddings=settings.embeddings,
        )
        scored = zip(questions.questions, ranking.found, strict=True)
        rows = [_measures(question, found, settings, tokenizer) for question, found in scored]
        measured[configuration] = ranking, rows
        on_result(configuration)
    scores = _scores(questions.questions, [rows for _, rows in measured.values()], settings)
    results = [
        Result(
            configuration,
            len(ranking.tokens),
            fmean(ranking.tokens) if ranking.tokens else 0.0,
            ranking.wrong,
            {corpus: found[number] for corpus, found in scores.items()},
        )
        for number, (configuration, (ranking, _)) in enumerate(measured.items())
    ]
    counted = Counter(question.corpus for question in questions.questions)
    return RetrievalEvaluation(
        {name: counted[name] for name in questions.documents if counted[name]}, settings, results
    )


def _measures(
    question: RetrievalQuestion,
    found: Sequence[RankedPiece],
    settings: Settings,
    tokenizer: Tokenizer,
) -> list[float]:
    """One number for each of `MEASURES`."""
    pieces = [hit.piece for hit in found]
    best = overlap(pieces[: settings.k], question.corpus, question.references)
    paid = overlap(within(found, settings.budget, tokenizer), question.corpus, question.references)
    first = reciprocal_rank(pieces, question.corpus, question.references)
    return [best.recall, best.precision, best.iou, paid.recall, paid.precision, paid.iou, first]


def _scores(
    questions: Sequence[RetrievalQuestion],
    measured: Sequence[Sequence[Sequence[float]]],
    settings: Settings,
) -> dict[str, list[dict[str, Score]]]:
    """`all` or corpus -> the scores of each configuration, the first of which is the baseline."""
    values_CQM = np.array(measured)
    corpora = dict.fromkeys(question.corpus for question in questions)
    chosen = {ALL: values_CQM}
    if len(corpora) > 1:
        for name in corpora:
            chosen[name] = values_CQM[:, [question.corpus == name for question in questions]]
    return {name: _estimates(values, settings) for name, values in chosen.items()}


def _estimates(values_CQM: NDArray[np.float64], settings: Settings) -> list[dict[str, Score]]:
    """All measures of all configurations see the same draws of questions."""
    seed, resamples, questions = settings.seed, settings.resamples, values_CQM.shape[1]
    columns, less = (
        values.transpose(0, 2, 1).reshape(-1, questions).tolist()
        for values in (values_CQM, values_CQM - values_CQM[0])
    )
    here = bootstrapped(columns, seed=seed, resamples=resamples)
    differences = bootstrapped(less, seed=seed, resamples=resamples, shares=False)
    scores = [Score(*pair) for pair in zip(here, differences, strict=True)]
    width = len(MEASURES)
    return [
        dict(zip(MEASURES, scores[at : at + width], strict=True))
        for at in range(0, len(scores), width)
    ]
