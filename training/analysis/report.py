"""Analysis of a run, and its report. The store is read once, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hrm_agent.errors import RunError
from hrm_agent.training.analysis.entropy import CallEntropy
from hrm_agent.training.analysis.facts import (
    ErrorClass,
    LengthBin,
    RolloutFacts,
    StepMetrics,
    ToolErrorRow,
    error_classes,
    length_bins,
    parts_of,
    read_part,
    tool_error_rows,
)
from hrm_agent.training.analysis.forking import (
    ReflectionReport,
    TokenRow,
    fork_threshold,
    forking_indices,
    reflection_indices,
    reflections,
    token_rows,
)
from hrm_agent.training.analysis.selection import (
    DropRow,
    SelectedShare,
    drop_rows,
    selected_shares,
)
from hrm_agent.training.analysis.token_sample import (
    AnalysedTokens,
    PartEntropy,
    TokenOptions,
    WeightsUse,
    analysed_tokens,
    chosen_parts,
)
from hrm_agent.training.records.runs import RecordedRuns

__all__ = ["SCHEMA", "AnalysisReport", "MarkedCall", "TokenReport", "analyse"]

SCHEMA = 2
"""Schema version of `report.json` and `tokens.jsonl`."""
_QUANTILES = (0.5, 0.8, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Results on the entropies of completion tokens."""

    limit: int
    """Maximum number of rollouts of each part."""
    seed: int
    """Seed of the draw of rollouts."""
    rollouts: int
    """Number of rollouts drawn."""
    calls: int
    """Number of calls of these rollouts whose tokens were analysed."""
    tokens: int
    """Number of completion tokens of these calls."""
    mean_entropy: float
    """Mean entropy in nats."""
    quantiles: dict[str, float]
    """Entropy in nats by quantile."""
    share: float
    """Share of completion tokens that are called forking tokens."""
    threshold: float
    """Entropy in nats above which tokens are forking tokens."""
    window: int
    """Number of first completion tokens of a call that are searched for reflection tokens."""
    weights: tuple[WeightsUse, ...]
    """Weights that computed the entropies, and the samplers of the tokens."""
    parts: tuple[PartEntropy, ...]
    """Entropy by part of the run."""
    forking: tuple[TokenRow, ...]
    """Forking tokens by text, most common first."""
    reflection: tuple[ReflectionReport, ...]
    """First tokens of calls: after tool errors, after other tool responses, after none."""


@dataclass(frozen=True, slots=True)
class AnalysisReport:
    """All numbers of an analysis."""

    schema_version: int
    """Schema version of this report."""
    run: str
    """Name by which the user gave the run."""
    rollouts: int
    """Number of rollouts counted."""
    left_out: dict[str, int]
    """Reason -> number of rollouts left out, or of calls of drawn rollouts."""
    missing: dict[str, str]
    """Missing part of the analysis -> reason why it is missing."""
    tokens: TokenReport | None
    """Results on tokens (None if `missing` has the reason)."""
    tool_errors: tuple[ToolErrorRow, ...]
    """Tool calls by part."""
    error_classes: tuple[ErrorClass, ...]
    """Exceptions of the whole run, by class."""
    length_bins: tuple[LengthBin, ...]
    """Accuracy by completion tokens."""
    selection: tuple[SelectedShare, ...]
    """Comparison of all rollouts of the training with the kept rollouts (empty without a
    selection).
    """
    drops: tuple[DropRow, ...]
    """Rollouts left out, by reason."""


@dataclass(frozen=True, slots=True)
class MarkedCall:
    """Tokens of one analysed call with their marks: a line of `tokens.jsonl`."""

    call: CallEntropy
    """Entropies of the call."""
    forking: tuple[int, ...]
    """Indices of forking tokens."""
    reflection: tuple[int, ...]
    """Indices of reflection tokens."""


def analyse(
    runs: RecordedRuns,
    options: TokenOptions,
    *,
    with_tokens: bool = True,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> tuple[AnalysisReport, list[MarkedCall]]:
    """Return the report, and the calls whose tokens were analysed. Raises `RunError` if no run has
    ended.

    `on_progress`: called with the current activity, the number of finished rollouts, and the number
    of all rollouts.
    """
    left_out: dict[str, int] = {}
    parts = parts_of(runs, left_out)
    total = sum(len(part.headers) for part in parts)
    if not total:
        raise RunError(
            f"There is no ended run on record in {runs.where}.",
            "`hrm-agent history --store PATH` lists the runs of a store. For a training on"
            " records, name the record itself.",
        )
    folder = Path(runs.where)
    chosen = chosen_parts(parts, folder, options) if with_tokens else []
    facts: list[RolloutFacts] = []
    metrics: dict[str, StepMetrics] = {}
    for part in parts:
        of_part, metrics[part.name] = read_part(runs, part, left_out)
        facts += of_part
        on_progress("", len(facts), total)
    found = analysed_tokens(
        runs, chosen, folder, options, lambda name: on_progress(f"tokens by {name}", total, total)
    )
    tokens: TokenReport | None = None
    marked: list[MarkedCall] = []
    if found.calls:
        calls = found.calls
        texts = found.texts
        entropies = np.concatenate([call.entropies[call.sampled] for call in calls])
        threshold = fork_threshold(calls, options.share)
        tokens = TokenReport(
            limit=options.limit,
            seed=options.seed,
            rollouts=found.rollouts,
            calls=len(calls),
            tokens=len(entropies),
            mean_entropy=float(entropies.mean()) if len(entropies) else math.nan,
            quantiles={
                f"{q:g}": float(np.quantile(entropies, q)) if len(entropies) else math.nan
                for q in _QUANTILES
            },
            share=options.share,
            threshold=threshold,
            window=options.window,
            weights=tuple(found.uses),
            parts=tuple(found.parts),
            forking=tuple(token_rows(calls, texts, lambda call: forking_indices(call, threshold))),
            reflection=tuple(reflections(calls, texts, threshold, options.window)),
        )
        marked = [
            MarkedCall(
                call=call,
                forking=tuple(forking_indices(call, threshold)),
                reflection=tuple(reflection_indices(call, threshold, options.window)),
            )
            for call in calls
        ]
    left_out |= {f"calls: {why}": count for why, count in found.left_out.items() if count}
    report = AnalysisReport(
        schema_version=SCHEMA,
        run=runs.where,
        rollouts=len(facts),
        left_out=left_out,
        missing=_missing(facts, found, with_tokens=with_tokens),
        tokens=tokens,
        tool_errors=tuple(tool_error_rows(facts, metrics)),
        error_classes=tuple(error_classes(facts)),
        length_bins=tuple(length_bins(facts)),
        selection=tuple(selected_shares(facts)),
        drops=tuple(drop_rows(facts)),
    )
    return report, marked


def _missing(
    facts: Sequence[RolloutFacts], found: AnalysedTokens, *, with_tokens: bool
) -> dict[str, str]:
    """Missing parts of the analysis -> reason why they are missing."""
    missing: dict[str, str] = {}
    if not with_tokens:
        missing["tokens"] = "they were not asked for (--no-tokens)"
    elif not found.calls:
        why = ", ".join(
            f"{count} calls: {reason}" for reason, count in found.left_out.items() if count
        )
        missing["tokens"] = why or "no call was made"
    if not any(each.statuses for each in facts):
        missing["tool errors"] = "no tool was called"
    if not any(each.scored for each in facts):
        missing["accuracy"] = "nothing was scored: `hrm-agent rescore` does it"
    if not any(each.tokens is not None for each in facts):
        missing["lengths"] = "no completion tokens were reported"
    if not any(each.verdict for each in facts):
        missing["selection"] = "nothing was selected: this is no training"
    return missing
