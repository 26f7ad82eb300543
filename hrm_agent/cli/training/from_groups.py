"""Training data of `train rl --from`: recorded groups of rollouts, selected once, when a run
starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hrm_agent.errors import RunError
from hrm_agent.models.slow_start import told_if_slow

if TYPE_CHECKING:
    from hrm_agent.training.config.commands import GrpoConfig

__all__ = ["chosen_groups"]


def chosen_groups(
    config: GrpoConfig, folder: Path, *, one_pass: bool
) -> tuple[GrpoConfig, list[str]]:
    """Configuration with absolute paths, and with the steps of `one_pass` if requested, and lines
    to print about it.

    Raises `TaskError`, before a folder is created, if there is no group to learn from.
    """
    with told_if_slow("loading torch; the first time this takes up to a minute"):
        from hrm_agent.training.records.groups import kept_groups, select_groups
        from hrm_agent.training.records.offline import own_store

    whole = tuple(
        where if "://" in where else str(Path(where).resolve()) for where in config.source
    )
    config = config.but(on_record=True, source=whole)
    groups = kept_groups(folder)
    if groups is not None and groups.sources != whole:
        raise RunError(
            f"The run in {folder} learns from {', '.join(groups.sources)}.",
            "Name another folder with --out.",
        )
    groups = groups or select_groups(config, own_store(config, folder))
    if one_pass:
        config = config.but(
            on_record=True, steps=groups.steps_of_pass(config.rollout.prompts_per_step)
        )
    return config, groups.lines(config.steps, config.rollout.prompts_per_step)
