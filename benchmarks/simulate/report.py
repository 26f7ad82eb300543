"""Tables and pictures of simulations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from benchmarks.simulate.cases import Case
from benchmarks.simulate.fleet import Outcome
from hrm_agent.basics.plotting import new_figure, save_figure

BYTES_A_ROLLOUT = 13_500
"""Bytes in the store for a rollout of the demo with 1.9 calls and a few hundred tokens: state,
messages, tool calls.
"""
BYTES_A_TOKEN = 24
"""Bytes in the journal per token of a long call: ids, log-probs and text (docs/store.md: 25 calls
of 1,000 tokens take 0.61 MB).
"""

Found = Sequence[tuple[Case, Outcome]]


def _times(found: Found, policy: str, like: Case) -> float | None:
    """Seconds of a policy on the same work."""
    same = [o.seconds for case, o in found if case.policy == policy and _work(case) == _work(like)]
    return min(same) if same else None


def _work(case: Case) -> tuple[object, ...]:
    return case.work, case.seed, case.tightness, case.engines


def _over(other: float | None, seconds: float) -> str:
    return "-" if other is None else f"{other / seconds:.2f}"


def compared(found: Found) -> Table:
    """Table of policies compared with one another. A ratio above 1 is the speed-up of the row."""
    table = Table(title="Policies")
    names = (
        "tightness,seed,policy,seconds,share,idle,recomputed,preempted,moved,x rollouts,x prompts,x"
        " best limit"
    )
    for name in names.split(","):
        table.add_column(name, no_wrap=True)
    for case, outcome in found:
        ratios = [
            _over(_times(found, policy, case), outcome.seconds)
            for policy in ("static_rollouts", "static_prompts", "fixed_limit")
        ]
        figures = [
            f"{case.tightness:g}",
            str(case.seed),
            case.label,
            f"{outcome.seconds:,.0f}",
            f"{outcome.share:.3f}",
        ]
        figures += [
            f"{outcome.idle:.1%}",
            f"{outcome.recomputed:.1%}",
            f"{outcome.preemptions:,}",
            f"{outcome.moves:,}",
        ]
        table.add_row(*figures, *ratios)
    return table


def store_bytes(case: Case, outcome: Outcome) -> float:
    """Bytes that a step writes: a constant per rollout, and a constant per token."""
    return case.work.count * BYTES_A_ROLLOUT + outcome.tokens * BYTES_A_TOKEN


def costs(found: Found) -> Table:
    """Table of the load of a step on engines, environment and store."""
    table = Table(title="A step")
    names = (
        "engines,limit,policy,seconds,idle,preempted,calls,calls/s,most/s,at once,store"
        " MB/s,scheduler us"
    )
    for name in names.split(","):
        table.add_column(name, no_wrap=True)
    for case, outcome in found:
        table.add_row(
            str(case.engines),
            f"{case.work.max_response:,}",
            case.label,
            f"{outcome.seconds:,.0f}",
            f"{outcome.idle:.1%}",
            f"{outcome.preemptions:,}",
            f"{outcome.calls:,}",
            f"{outcome.calls / outcome.seconds:,.0f}",
            f"{outcome.calls_in_a_second:,}",
            f"{outcome.calls_at_once:,}",
            f"{store_bytes(case, outcome) / outcome.seconds / 1e6:.1f}",
            f"{outcome.microseconds:.0f}",
        )
    return table


def draw_shares(found: Found, path: Path) -> None:
    """Draw the share (lower bound over time) against tightness, one line per policy. Of the fixed
    limits the best is drawn.
    """
    figure = new_figure(8, 4.5, "Simulated: share of the least possible time of a step")
    axes = figure.add_subplot()
    for label in dict.fromkeys(_line(case) for case, _ in found):
        own = [(case.tightness, outcome.share) for case, outcome in found if _line(case) == label]
        across = sorted({tightness for tightness, _ in own})
        pick = max if label.startswith("fixed_limit") else statistics.mean
        heights = [pick(share for each, share in own if each == tightness) for tightness in across]
        axes.plot(across, heights, "-o", label=label)
    axes.set(
        xscale="log",
        xlabel="tightness: tokens of all caches / tokens of all rollouts",
        ylabel="share",
        ylim=(0, 1),
    )
    ticks = sorted({case.tightness for case, _ in found})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    save_figure(figure, path, None)


def _line(case: Case) -> str:
    return "fixed_limit, the best" if case.policy == "fixed_limit" else case.label


def draw_engines(found: Found, path: Path) -> None:
    """Draw the running sequences of each engine over a step, one picture per policy with a
    timeline.
    """
    watched = [(case, outcome) for case, outcome in found if outcome.timeline]
    figure = new_figure(
        8, 1.2 + 1.7 * len(watched), "Simulated: running sequences, one line an engine"
    )
    end = max(outcome.seconds for _, outcome in watched)
    top = max(case.model.max_running for case, _ in watched)
    for place, (case, outcome) in enumerate(watched):
        axes = figure.add_subplot(len(watched), 1, place + 1)
        picture = np.array(outcome.timeline).T
        extent = (0.0, outcome.seconds, 0.0, float(case.engines))
        image = axes.imshow(
            picture,
            aspect="auto",
            extent=extent,
            vmin=0,
            vmax=top,
            cmap="magma",
            interpolation="none",
        )
        axes.set(xlim=(0, end), ylabel=case.policy.replace("_", " "))
        axes.set_yticks([])
        figure.colorbar(image, ax=axes)
    figure.supxlabel("seconds")
    save_figure(figure, path, None)
