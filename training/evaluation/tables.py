"""What was measured, as rows of names and values: printed, written into files and shown in notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hrm_agent.intervals import Estimate
from hrm_agent.training.evaluation.statistics import shown_ks

if TYPE_CHECKING:
    from hrm_agent.training.evaluation.compare import Comparison
    from hrm_agent.training.evaluation.evaluate import Evaluation

__all__ = ["Row", "comparison_lines", "comparison_rows", "interval_text", "plain_text", "summary"]

_NAMED = 20
"""Problems of a comparison that are named in the text; all of them stand in the JSON."""

_NOT_REPORTED = "not reported"
"""Of a hosted model whose provider gives no counts, as hrm_agent.trajectory.words says of a single run."""

Row = Sequence[object]


def summary(found: Evaluation) -> list[tuple[str, object]]:
    """The measures of an evaluation with their values, as people read them."""
    rows: list[tuple[str, object]] = [("problems", found.problems), ("trajectories", found.trajectories)]
    rows += [("left out: completed, without a score", found.without_score)] if found.without_score else []
    rows += [(f"pass@{k}", interval_text(found.pass_at[k])) for k in shown_ks(found.samples)] or [("pass@1", math.nan)]
    rows += [(f"majority@{k}", interval_text(found.majority_at[k])) for k in shown_ks(found.samples) if k > 1]
    rows += [(f"reward {name}", interval_text(estimate)) for name, estimate in found.rewards.items()]
    known = bool(found.read_tokens or found.sampled_tokens) or found.without_call == found.trajectories
    counts = f"{found.read_tokens:,}, {found.sampled_tokens:,}"
    rows += [
        ("tool error among the correct", found.correct_with_tool_error),
        ("tool errors, share of tool calls", found.tool_error_share),
        ("tool calls, mean", found.mean_tool_calls),
        ("completion tokens, mean", found.mean_sampled_tokens if known else _NOT_REPORTED),
        ("prompt tokens, completion tokens", counts if known else _NOT_REPORTED),
        ("wall time, seconds", found.seconds.wall),
        ("a trajectory: from start to end, models, tools", _times(found)),
        ("statuses", _counts(found.statuses)),
        ("run once more, failed by a machine", found.run_again),
        ("stop reasons", _counts(found.stop_reasons)),
        ("right, but truncated", found.truncated_correct),
        ("ended before any model call", found.without_call),
    ]
    costs = (("cost, by the prices given", found.cost), ("cost, as reported", found.reported_cost))
    return rows + [(name, f"{cost:.6g}") for name, cost in costs if cost is not None]


def comparison_rows(found: Comparison) -> list[Row]:
    """Both sides and their difference, measure by measure."""
    a, b = found.a, found.b
    return [
        ("trajectories", a.trajectories, b.trajectories, ""),
        ("pass@1", interval_text(a.pass_at_1), interval_text(b.pass_at_1), interval_text(found.difference, sign=True)),
        (
            "completion tokens",
            plain_text(a.sampled_tokens or _NOT_REPORTED),
            plain_text(b.sampled_tokens or _NOT_REPORTED),
            interval_text(found.sampled_tokens, sign=True) if a.sampled_tokens and b.sampled_tokens else "",
        ),
        (
            "tool errors",
            plain_text(a.tool_errors),
            plain_text(b.tool_errors),
            interval_text(found.tool_errors, sign=True),
        ),
    ]


def comparison_lines(found: Comparison) -> list[str]:
    """What follows from the table, in words."""
    word = "beyond chance" if found.certain else "within what chance gives"
    lines = [
        f"{found.problems} problems are in both.",
        f"The difference of pass@1 is {word}: p = {found.p_value:.2g} ({found.test}).",
        f"B is right oftener on {len(found.better)}, A on {len(found.worse)}.",
    ]
    for name, ids in (("A", found.only_a), ("B", found.only_b)):
        if ids:
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            lines.append(f"Only in {name}, left out: {', '.join(ids[:_NAMED])}{more}.")
    return lines


def plain_text(value: object) -> str:
    """A value in one line; what is not finite is none."""
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "none"
    return " ".join(str(value).split())


def interval_text(found: Estimate, *, sign: bool = False) -> str:
    """A mean with its interval."""
    form = "+.3f" if sign else ".3f"
    return f"{found.value:{form}}  (95 % interval {found.low:{form}} to {found.high:{form}})"


def _times(found: Evaluation) -> str:
    seconds = found.seconds
    return ", ".join(f"{plain_text(value)} s" for value in (seconds.trajectory, seconds.model, seconds.tool))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
