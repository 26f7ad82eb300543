"""Figures in a model card: of this build, and their spread over other builds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.small_policy.figures import EVAL_SEED, Figures, RoleFigures
from benchmarks.small_policy.inputs import Inputs, inputs_of_card

__all__ = [
    "SPREAD",
    "faults_of_card",
    "figures_of_card",
    "figures_text",
    "read_spread",
    "roles_text",
    "spread_text",
]

SPREAD = Path(__file__).with_name("spread.json")
"""Figures found by `benchmarks.small_policy.spread`."""

_ROW = re.compile(r"^\| (\w+) \| [\d.]+ \| (\d+) \| ([\d.]+) \([^|]*\| ([\d.]+) \|$", re.MULTILINE)

_FAULT = re.compile(r"^\| `(\w+)` \| (\d+) \| (\d+) \| [\d.]+ \|$", re.MULTILINE)


def figures_text(found: Mapping[str, Figures]) -> str:
    """Table of this build's figures."""
    rows = [_row(graph, figures) for graph, figures in found.items()]
    head = (
        f"\n**Figures** on held-out problems (seed {EVAL_SEED}), through the graphs of this"
        " package.\n\n"
    )
    columns = (
        "| graph | temperature | rollouts | correct (95 % interval) | of these with a tool error |"
    )
    return head + "\n".join([columns, "|---|---|---|---|---|", *rows]) + "\n"


def _row(graph: str, found: Figures) -> str:
    low, high = found.interval
    share = f"{found.correct:.3f} ({low:.3f} to {high:.3f})"
    return (
        f"| {graph} | {found.temperature} | {found.rollouts} | {share} | {found.tool_errors:.3f} |"
    )


def figures_of_card(card: str) -> dict[str, tuple[int, float, float]]:
    """Figures by graph: rollouts, share of correct answers, and share of the correct ones with a
    tool error.
    """
    return {
        graph: (int(count), float(right), float(errors))
        for graph, count, right, errors in _ROW.findall(card)
    }


def roles_text(found: RoleFigures) -> str:
    """Text for the card of a policy whose roles make faults: its figures, and the frequency of each
    fault.
    """
    low, high = found.greedy.interval
    greedy = (
        f"At temperature 0 {found.greedy.correct:.3f} ({low:.3f} to {high:.3f}) of the same"
        " problems are solved."
    )
    head = (
        "\n**Faults** in the hierarchical graph at temperature 1"
        " (`training/small_policy/fault_counts.py`).\n\n"
    )
    rows = [
        f"| `{name}` | {fault.made} | {fault.chances} | {fault.share:.3f} |"
        for name, fault in found.faults.items()
    ]
    table = "\n".join(["| fault | made | of so many chances | share |", "|---|---|---|---|", *rows])
    return f"{figures_text(found.by_graph)}\n{greedy}\n{head}{table}\n"


def faults_of_card(card: str) -> dict[str, tuple[int, int]]:
    """Counts by fault: how often it was made, and how often it could have been made."""
    return {name: (int(made), int(chances)) for name, made, chances in _FAULT.findall(card)}


def read_spread() -> dict[str, Any]:
    """Figures of the builds from several seeds, on several instruction sets."""
    return json.loads(SPREAD.read_text(encoding="utf-8"))


def spread_text(policy: str, inputs: Inputs) -> str:
    """Text with the spread of the figures over several builds, if these were made from the same
    inputs.
    """
    found = read_spread().get(policy) if SPREAD.exists() else None
    made_from = inputs_of_card(found["inputs"]) if found else None
    if found is None or made_from is None or not made_from.agree_with(inputs):
        return (
            "\nThis is one build: how far others from the same recipe lie from it was not"
            " measured.\n"
        )
    head = f"\n**Spread** over {found['builds']}.\n\n"
    columns = "| figure | mean | standard deviation | smallest | largest |"
    rows = [
        f"| {name} | {row['mean']:.3f} | {row['deviation']:.3f} | {row['smallest']:.3f} |"
        f" {row['largest']:.3f} |"
        for name, row in found["figures"].items()
    ]
    return head + "\n".join([columns, "|---|---|---|---|---|", *rows]) + "\n"
