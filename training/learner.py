"""The policy under training: weights, optimiser and version, and the engine that samples from the same weights.

In one process the engine and the trainer share one module, so that publishing version n + 1 is a matter of telling
the engine to forget its cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.training.adam import make_adamw
from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.configs import GrpoConfig
from hrm_agent.training.objectives import LossOptions
from hrm_agent.training.optimizer_step import OptimOptions, policy_update
from hrm_agent.training.schedule import dropout_seed
from hrm_agent.training.trained_policy import TrainedPolicy
from hrm_agent.trajectory import derive_seed

__all__ = ["Learner"]

_OPTIMIZER = "optimizer.pt"


class Learner:
    """A causal LM with its optimiser, its version, and its engine."""

    def __init__(self, config: GrpoConfig, accelerator: Accelerator) -> None:
        """`config.policy` must name weights on this machine."""
        self.name = config.policy
        self.accelerator = accelerator
        optim = config.optim
        self._policy = TrainedPolicy.load(
            self.name,
            config.adapter,
            dtype=optim.dtype,
            device=accelerator.device,
            seed=derive_seed(config.seed, "adapter"),
        )
        if optim.gradient_checkpointing:
            self._policy.recompute_activations()
        model, self.tokenizer = self._policy.model, self._policy.tokenizer
        self.model, self.optimizer = accelerator.prepare(model, make_adamw(model, optim))
        self.engine = TransformersEngine(accelerator.unwrap_model(self.model), self.tokenizer, name=self.name)
        self._config = config
        self._reference = self._policy.reference() if config.loss.kl_coef else None

    @property
    def version(self) -> int:
        """Number of optimiser steps behind the weights."""
        return self.engine.policy_version

    def update(self, batches: Sequence[MicroBatch] | Sequence[Sequence[MicroBatch]], rate: float) -> dict[str, Any]:
        """Learn from a step's batches, then version n + 1 on the engine, whether or not there was anything to learn."""
        config = self._config
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with dropout_seed(derive_seed(config.seed, "dropout", self.version)):
            metrics = policy_update(
                self.model,
                self.optimizer,
                batches,
                loss=LossOptions(**{each.name: getattr(config.loss, each.name) for each in fields(LossOptions)}),
                optim=OptimOptions(epochs=config.optim.epochs, max_grad_norm=config.optim.max_grad_norm),
                accelerator=self.accelerator,
                reference=self._reference,
                version=self.version,
            )
        self.engine.publish(self.version + 1)
        return {**metrics, "learning_rate": rate}

    def begin_optimizer_afresh(self) -> None:
        """Forget the means of past gradients."""
        self.optimizer.state.clear()

    def save(self, folder: Path) -> None:
        """Save weights, tokenizer and chat template in Hugging Face's layout, with a card that says whence they are.

        Where an adapter is trained, it alone is saved.
        """
        card = f"# {self.name}, trained\n\n{self.version} steps of reinforcement learning with\n\n```json\n"
        card += f"{self._config.model_dump_json(indent=2)}\n```\n"
        self._policy.save(folder, card)

    def write(self, folder: Path) -> None:
        """Weights and optimiser, for a checkpoint."""
        self.save(folder)
        torch.save(self.optimizer.state_dict(), folder / _OPTIMIZER)

    def read(self, folder: Path, version: int) -> None:
        """Go on from what `write` wrote, as `version`."""
        optimizer = torch.load(folder / _OPTIMIZER, weights_only=True)
        self._policy.read(folder)
        self.optimizer.load_state_dict(optimizer)
        self.engine.publish(version)
