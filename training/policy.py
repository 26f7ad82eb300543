"""The policy under training: weights, optimiser and version, and the engine that samples from the same weights.

In one process the engine and the trainer share one module, so that publishing version n + 1 is a matter of telling
the engine to forget its cache. A checkpoint is a folder that appears under its final name only when it is whole: a
kill at any moment leaves either the old one or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_model

from hrm_agent.errors import RunError
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.load_weights import load_pretrained
from hrm_agent.models.policy_loader import model_folder
from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.configs import GrpoConfig
from hrm_agent.training.optimizer_step import policy_update
from hrm_agent.training.schedule import trapezoid
from hrm_agent.training.sft import save_policy

__all__ = ["TrainablePolicy"]

_OPTIMIZER = "optimizer.pt"
_STATE = "state.json"


class TrainablePolicy:
    """A causal LM with its optimiser, its version, and its engine."""

    def __init__(self, config: GrpoConfig, accelerator: Accelerator) -> None:
        """`config.policy` must name weights on this machine."""
        self.name = config.policy
        self.accelerator = accelerator
        # AdamW needs single precision: at a learning rate of 1e-6 an update is lost in the rounding of half precision.
        model, self.tokenizer = load_pretrained(model_folder(self.name), dtype="float32")
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.engine = TransformersEngine(accelerator.unwrap_model(self.model), self.tokenizer, name=self.name)
        self._config = config

    @property
    def version(self) -> int:
        """Number of optimiser steps behind the weights."""
        return self.engine.policy_version

    def update(self, batches: Sequence[MicroBatch]) -> dict[str, float]:
        """One optimiser step, then version n + 1 on the engine."""
        config = self._config
        share = trapezoid(self.version, config.steps, config.warmup_steps, config.cooldown)
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * share
        metrics = policy_update(
            self.model,
            self.optimizer,
            batches,
            accelerator=self.accelerator,
            max_grad_norm=config.max_grad_norm,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            on_policy=True,
        )
        self.engine.publish(self.version + 1)
        return metrics

    def save(self, folder: Path) -> None:
        """Save weights, tokenizer and chat template in Hugging Face's layout, with a card that says whence they are."""
        card = f"# {self.name}, trained\n\n{self.version} steps of reinforcement learning with\n\n```json\n"
        card += f"{self._config.model_dump_json(indent=2)}\n```\n"
        save_policy(self.accelerator.unwrap_model(self.model), self.tokenizer, folder, card)

    def checkpoint(self, folder: Path) -> None:
        """Save everything that the next step depends on, in place of the previous checkpoint."""
        fresh, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
        shutil.rmtree(fresh, ignore_errors=True)
        self.save(fresh)
        torch.save(self.optimizer.state_dict(), fresh / _OPTIMIZER)
        (fresh / _STATE).write_text(json.dumps({"version": self.version}))
        for path in (*fresh.iterdir(), fresh):
            _sync(path)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

    def restore(self, folder: Path) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        found = folder if folder.exists() else folder.with_name(folder.name + ".old")
        if not found.exists():
            return
        try:
            state = json.loads((found / _STATE).read_text())
            load_model(self.accelerator.unwrap_model(self.model), found / "model.safetensors")
            self.optimizer.load_state_dict(torch.load(found / _OPTIMIZER, weights_only=True))
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise RunError(
                f"The checkpoint {found} cannot be read: {error}.", "Start a new run in another folder."
            ) from error
        self.engine.publish(int(state["version"]))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
