"""The policy under training: weights, optimiser and version, and the engine that samples from the same weights.

In one process the engine and the trainer share one module, so that publishing version n + 1 is a matter of telling
the engine to forget its cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_model

from hrm_agent.files import read_whole, replacing
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.load_weights import load_pretrained
from hrm_agent.models.policy_loader import model_folder
from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.checkpoints import Checkpoints
from hrm_agent.training.configs import GrpoConfig
from hrm_agent.training.objectives import LossOptions
from hrm_agent.training.optimizer_step import OptimOptions, policy_update
from hrm_agent.training.schedule import Schedule, dropout_seed, refuse_other_course
from hrm_agent.training.sft import save_policy
from hrm_agent.trajectory import derive_seed

__all__ = ["TrainablePolicy"]

_OPTIMIZER = "optimizer.pt"
_STATE = "state.json"
_SCHEDULE = "schedule.json"
"""How many steps the run is to take. A checkpoint says so, too, but steps after it may be those of a longer run."""


class TrainablePolicy:
    """A causal LM with its optimiser, its version, and its engine."""

    def __init__(self, config: GrpoConfig, accelerator: Accelerator) -> None:
        """`config.policy` must name weights on this machine."""
        self.name = config.policy
        self.accelerator = accelerator
        # AdamW needs single precision: at a learning rate of 1e-6 an update is lost in the rounding of half precision.
        model, self.tokenizer = load_pretrained(model_folder(self.name), dtype="float32")
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay,
        )
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.engine = TransformersEngine(accelerator.unwrap_model(self.model), self.tokenizer, name=self.name)
        self._config = config

    @property
    def version(self) -> int:
        """Number of optimiser steps behind the weights."""
        return self.engine.policy_version

    def update(self, batches: Sequence[MicroBatch]) -> dict[str, Any]:
        """One optimiser step, then version n + 1 on the engine, whether or not there was anything to learn."""
        config = self._config
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * self._schedule.share(self.version)
        with dropout_seed(derive_seed(config.seed, "dropout", self.version)):
            metrics = policy_update(
                self.model,
                self.optimizer,
                batches,
                loss=LossOptions(clip_low=config.clip_low, clip_high=config.clip_high),
                optim=OptimOptions(max_grad_norm=config.max_grad_norm),
                accelerator=self.accelerator,
                version=self.version,
            )
        self.engine.publish(self.version + 1)
        return metrics

    def save(self, folder: Path) -> None:
        """Save weights, tokenizer and chat template in Hugging Face's layout, with a card that says whence they are."""
        card = f"# {self.name}, trained\n\n{self.version} steps of reinforcement learning with\n\n```json\n"
        card += f"{self._config.model_dump_json(indent=2)}\n```\n"
        save_policy(self.accelerator.unwrap_model(self.model), self.tokenizer, folder, card)

    def checkpoint(self, run: Path) -> None:
        """Keep everything that the next step depends on, where a checkpoint is due."""
        checkpoints = self._checkpoints(run)
        if checkpoints.is_due(self.version, self._config.steps):
            checkpoints.save(self.version, self._write)

    def restore(self, run: Path, with_rollouts: Callable[[], int] = lambda: 0) -> GrpoConfig:
        """Go on from the newest whole checkpoint of the run, if there is one; how the run is configured.

        `with_rollouts`: how many steps are behind the newest rollouts on record, which are not sampled again. Runs of
        earlier versions drew their tasks from one block of all of them, and go on so (a `mix:` of tasks does not: they
        drew from it in another way). Raises `RunError` where no checkpoint is whole, or where the steps that were taken
        are not the first of those that are asked for now.
        """
        checkpoints = self._checkpoints(run)
        state = checkpoints.restore(self._read)
        version, config = int(state["version"]) if state else 0, self._config
        before = _steps_before(run) or int((state or {}).get("steps", config.steps))
        if before != config.steps:
            taken = max(version, checkpoints.newest_step, with_rollouts())
            refuse_other_course(self._schedule, before, taken, run)
        with replacing(run / _SCHEDULE) as part:
            part.write_text(json.dumps({"steps": config.steps}), encoding="utf-8")
        if state is None:
            return config
        block = int(state.get("shuffle_block", config.steps * config.prompts_per_step))
        self._config = config.model_copy(update={"shuffle_block": block})
        self.engine.publish(version)
        return self._config

    @property
    def _schedule(self) -> Schedule:
        return Schedule(self._config.steps, self._config.warmup_steps, self._config.cooldown)

    def _checkpoints(self, run: Path) -> Checkpoints:
        return Checkpoints(run, keep=self._config.checkpoints, every=self._config.checkpoint_every)

    def _write(self, folder: Path) -> None:
        self.save(folder)
        torch.save(self.optimizer.state_dict(), folder / _OPTIMIZER)
        state = {"version": self.version, **self._config.model_dump(include={"steps", "shuffle_block"})}
        (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")

    def _read(self, folder: Path) -> dict[str, Any]:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        optimizer = torch.load(folder / _OPTIMIZER, weights_only=True)
        load_model(self.accelerator.unwrap_model(self.model), folder / "model.safetensors")
        self.optimizer.load_state_dict(optimizer)
        return {"version": int(state["version"]), **state}


def _steps_before(run: Path) -> int | None:
    """`steps` of the run when it was last resumed; None for a new run, or one of an earlier version."""
    text = read_whole(run / _SCHEDULE)
    return int(json.loads(text)["steps"]) if text is not None else None
