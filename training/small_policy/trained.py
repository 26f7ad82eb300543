"""Trained policy: the cold start after reinforcement learning on the tool loop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from hrm_agent.models.model_facts import ModelFacts, ModelSize
from hrm_agent.training.checkpoints import MANIFEST
from hrm_agent.training.config.commands import DemoConfig, GrpoConfig
from hrm_agent.training.config.fitted import fit_grpo
from hrm_agent.training.config.rules import with_values
from hrm_agent.training.grpo import train
from hrm_agent.training.small_policy.architecture import SMALL_DEFAULTS

__all__ = ["REINFORCEMENT", "build_trained", "card_of"]

_SMALL = ModelFacts(SMALL_DEFAULTS, ModelSize)
_DEMO = DemoConfig().train
REINFORCEMENT = with_values(_DEMO, fit_grpo(_DEMO, _SMALL).values)
"""Recipe, which is that of the demo. The caller replaces start and seed. The learning rate is high,
so that few steps are needed, since each step costs the roles a little. It falls in most of the
steps, because at the full rate each step moves the figures by some hundredths.
"""
CARD = Path(__file__).with_name("trained_card.md")


def build_trained(
    start: Path,
    out: Path,
    run: Path,
    seed: int = 0,
    progress: Callable[[dict[str, float]], None] | None = None,
) -> None:
    """Train the policy in `start` and save the result to `out`. The training is
    recorded in `run`.
    """
    config = REINFORCEMENT.model_copy(update={"policy": str(start), "seed": seed})
    model = asyncio.run(train(config, run, on_step=progress))
    # the manifest is left out, since it is of the README that is replaced below
    shutil.copytree(model, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
    (out / "README.md").write_text(card_of(config), encoding="utf-8")


def card_of(config: GrpoConfig) -> str:
    """Card of a policy that `config` has trained."""
    return CARD.read_text(encoding="utf-8").format(
        config=config, loss=config.loss.model_dump(mode="json")
    )
