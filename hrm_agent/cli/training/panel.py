"""Status of a training run, in lines that fit a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrm_agent.training.config.commands import GrpoConfig

__all__ = ["panel"]

WIDTH = 80
_MANY = 0.5
"""Share of groups without a signal from which the panel gives advice."""


def panel(row: Mapping[str, Any], config: GrpoConfig) -> list[str]:
    """Lines of the newest step: accuracy, selection, and advice if little was selected."""
    from hrm_agent.training.select.verdicts import advice

    stage = ""
    if config.stages:
        number = int(row["stage"])
        stage = (
            f"stage {number + 1} of {len(config.stages)} {config.stages[number].name}".rstrip()
            + "; "
        )
    held_out = _pair("held-out", row.get("eval/correct"), f"best {_number(row.get('eval/best'))}")
    tools = f"tool errors {_number(row.get('rollout/correct_with_tool_error'))} of them"
    kept = f"kept {_number(row['select/kept'], 0)} of {_number(row['rollout/count'], 0)} rollouts"
    tokens, entropy = (
        _number(row["rollout/sampled_tokens"], 0),
        _number(row.get("entropy_estimate")),
    )
    right = f"{stage}correct {_number(row['rollout/correct'])}"
    lines = [
        ", ".join(filter(None, [right, held_out, tools])),
        f"tokens {tokens}, {kept}, entropy {entropy}, rate {row['learning_rate']:.1e}",
    ]
    rejected = row.get("select/groups_rejected") or 0.0
    if rejected >= _MANY:
        lines.append(f"{rejected:.0%} of the groups have no signal. {advice([dict(row)])}")
    elif row.get("select/unfilled") and config.rollout.refill:
        lines.append(
            f"{row['select/unfilled']:.0f} groups are lacking, in spite of {config.rollout.refill}"
            " refills"
        )
    if row.get("skipped"):
        lines.append(f"skipped: {row['skipped']}")
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines]


def _pair(name: str, value: Any, more: str) -> str:
    return f"{name} {_number(value)} ({more})" if value is not None else ""


def _number(value: Any, places: int = 3) -> str:
    return f"{value:.{places}f}" if isinstance(value, (int, float)) and isfinite(value) else "none"
