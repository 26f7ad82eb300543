"""Evaluation of configurations on questions, each compared with a baseline.

Measures are means over questions, and intervals come from resampling questions
(`hrm_agent.basics.intervals`). A difference is taken question by question, so that the difficulty
of a question cancels out. Intervals are not corrected for multiple comparisons: of twenty
configurations that are as good as the baseline, expect one whose interval leaves out 0 by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_quality.configurations import Configuration
from benchmarks.retrieval_quality.questions import QuestionSet, RetrievalQuestion
from benchmarks.retrieval_quality.ranking import RankedPiece, Ranking, depth_for, rank, within
from benchmarks.retrieval_quality.spans import overlap, reciprocal_rank
from hrm_agent.basics.intervals import Estimate, bootstrapped
from hrm_agent.errors import ConfigError
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["ALL", "MEASURES", "Result", "RetrievalEvaluation", "Score", "Settings", "evaluate"]

ALL = "all"
"""Key of the scores over all corpora, beside the corpora's names."""
MEASURES = ("recall", "precision", "iou", "budget_recall", "budget_precision", "budget_iou", "mrr")
"""Names of the measures: the first three over the best k chunks, the next three over a budget of
tokens.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an evaluation."""

    k: int = 5
    """Number of best chunks that are shown."""
    budget: int = 2560
    """Budget of the budget measures, in tokens. They show the best chunks that fit, instead of k
    chunks.
    """
    tokenizer: str = DEFAULT_TOKENIZER
    """Tokenizer in whose tokens sizes, overlaps and the budget count."""
    embeddings: str = "static"
    """Embeddings for the modes that rank by vectors, as for `hrm-agent index`."""
    apart: bool = False
    """True if each corpus has its own index."""
    resamples: int = 10_000
    """Number of bootstrap samples for an interval."""
    seed: int = 0
    """Seed of the resampling."""

    def check(self) -> None:
        for name in ("k", "budget", "resamples"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1.")


@dataclass(frozen=True, slots=True)
class Score:
    """Measure of a configuration."""

    value: Estimate
    """Mean over questions, with its interval."""
    less_base: Estimate
    """Mean difference to the baseline over questions. Its interval has zero width if both
    configurations agree on all questions.
    """


@dataclass(frozen=True, slots=True)
class Result:
    """Scores of one configuration."""

    configuration: Configuration
    """Configuration that was measured."""
    chunks: int
    """Number of chunks of all corpora."""
    mean_tokens: float
    """Mean tokens of a chunk."""
    wrong_spans: int
    """Number of chunks whose span is not their text. They are shown, but count as no answer."""
    scores: Mapping[str, Mapping[str, Score]]
    """Scores by `all` or corpus, then by measure."""


@dataclass(frozen=True, slots=True)
class RetrievalEvaluation:
    """Results of all configurations, with the baseline first."""

    questions: Mapping[str, int]
    """Number of questions by corpus, without corpora that have none."""
    settings: Settings
    """Settings of the evaluation."""
    results: Sequence[Result]
    """Result of each configuration, the baseline first."""


def evaluate(
    questions: QuestionSet,
    configurations: Sequence[Configuration],
    base: Configuration,
    settings: Settings | None = None,
) -> RetrievalEvaluation:
    """Measure `base` and every other configuration. Duplicates are measured once."""
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
    """Values of one question, in the order of `MEASURES`."""
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
    """Scores of each configuration by `all` or corpus, with the baseline first."""
    values_CQM = np.array(measured)
    corpora = dict.fromkeys(question.corpus for question in questions)
    chosen = {ALL: values_CQM}
    if len(corpora) > 1:
        for name in corpora:
            chosen[name] = values_CQM[:, [question.corpus == name for question in questions]]
    return {name: _estimates(values, settings) for name, values in chosen.items()}


def _estimates(values_CQM: NDArray[np.float64], settings: Settings) -> list[dict[str, Score]]:
    """Scores of each configuration. All measures of all configurations use the same draws of
    questions.
    """
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
