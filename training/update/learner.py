"""Policy under training: weights, optimiser and version, and the engine that samples from the same
weights.

In one process the engine and the trainer share a module, so that publishing version n + 1 only
makes the engine drop its cache. If rollouts run while the weights change, the engine has a copy of
the trained weights, which publishing updates between two of the engine's steps. If servers sample,
publishing sends them the weights.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from hrm_agent.models import Engine
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.model_string import parse_model
from hrm_agent.models.restarting import RestartingEngine
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.fitted import fit
from hrm_agent.training.update.batch import ForwardName, MicroBatch
from hrm_agent.training.update.difference_bound import difference_bound
from hrm_agent.training.update.gradients import SkippedSteps
from hrm_agent.training.update.logprobs.packed import usable_forward
from hrm_agent.training.update.model_mode import as_it_answers
from hrm_agent.training.update.objectives import LossOptions, loss_options
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from hrm_agent.training.update.optimizers import make_adamw
from hrm_agent.training.update.schedule import dropout_seed
from hrm_agent.training.update.sharded import is_sharded, read_sharded
from hrm_agent.training.update.trained_policy import TrainedPolicy, copy_of_trained
from hrm_agent.trajectory import derive_seed

__all__ = ["OPTIMIZER_FILE", "Learner"]

OPTIMIZER_FILE = "optimizer.pt"
"""File of the optimiser's state dict, in a checkpoint of whole weights."""


class Learner:
    """Causal LM with its optimiser, its version, and its engine."""

    def __init__(
        self, config: GrpoConfig, accelerator: Accelerator, folder: Path | None = None
    ) -> None:
        """`config.policy` must name weights on this machine. `folder`: folder of the run, to which
        servers write their logs.
        """
        config = fit(config)
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
        model = self._policy.model
        self.codec = self._policy.codec
        self._config = config
        self.forward: ForwardName = usable_forward(
            model, config.loss.forward, quiet=not accelerator.is_main_process
        )
        """Forward pass of rows: the one in the configuration, or padded if the model does not
        support it.
        """
        self.model, self.optimizer = self._prepared(model)
        self.version = 0
        """Number of optimiser steps behind the weights."""
        self.skipped = SkippedSteps()
        """Counter of this process's updates, and of those skipped because of a
        non-finite gradient.
        """
        self._folder = folder
        self.reference = self._policy.reference() if config.loss.kl_coef else None
        """Initial policy (None if the loss has no KL term)."""
        self.teachers = self._policy.teachers(
            config.loss,
            {each.name: each.teacher for each in config.families if each.teacher is not None},
            config.adapter.lora_roles,
        )
        """Models that teach the policy (None without a teacher)."""

    def _prepared(self, model: Any) -> tuple[Any, Any]:
        """Model and optimiser, prepared by the accelerator."""
        return self.accelerator.prepare(model, make_adamw(model, self._config.optim))

    @cached_property
    def engine(self) -> Engine:
        """Engine, created at first use. A training that samples nothing never creates it."""
        rollout = self._config.rollout
        if self._on_servers:
            from hrm_agent.training.engines.open import open_fleet

            assert self._folder is not None, "servers write their logs to the run's folder"
            engine: Engine = open_fleet(self._config, self._folder, self.codec, self._score)
        else:
            model = self.accelerator.unwrap_model(self.model)
            model = copy_of_trained(model) if rollout.versions_behind else model
            engine = TransformersEngine(model, self.codec, name=self.name)
            if rollout.on_publish == "abort":
                engine = RestartingEngine(engine)
        self._publish_to(engine)
        return engine

    def publish(self, version: int) -> None:
        """Publish the current weights as `version`, also to the engine if it was created."""
        self.version = version
        if "engine" in self.__dict__:
            self._publish_to(self.engine)

    def engine_metrics(self) -> dict[str, float]:
        """Metrics of the servers that sample (empty if this process samples)."""
        engine: Any = self.__dict__.get("engine")
        return dict(engine.metrics()) if self._on_servers and engine is not None else {}

    def formats(self) -> dict[str, float]:
        """Number format of trainer or engine -> difference of log-probs that it allows."""
        own = parse_model(self.name).options.load or ""
        found = {(self._config.optim.dtype, own)}
        if self._on_servers:
            found |= self.engine.formats()  # type: ignore[attr-defined]
        return {"/".join(each).strip("/"): difference_bound(*each) for each in sorted(found)}

    def vouch(self) -> None:
        """Raise `ModelError` if the servers that sample have had other weights than those
        published.
        """
        engine: Any = self.__dict__.get("engine")
        if self._on_servers and engine is not None:
            engine.vouch()

    def _free_cache(self) -> None:
        """Free the memory in which this process samples, so that the update can use it. While
        weights change under running rollouts, the cache is in use.
        """
        engine: Any = self.__dict__.get("engine")
        if engine is None or self._on_servers or self._config.rollout.versions_behind:
            return
        engine.free_cache()
        _return_freed_memory()

    @property
    def _on_servers(self) -> bool:
        return self._config.engines.engine == "vllm"

    def _publish_to(self, engine: Engine) -> None:
        model = self._policy.model
        adapter = self._policy.adapter
        if self._on_servers:
            engine.publish(
                self.version, dict(model.named_parameters()) if adapter is None else adapter.save
            )
        else:  # the engine shares the weights, or has a copy
            engine.publish(
                self.version, model.state_dict() if self._config.rollout.versions_behind else None
            )

    @torch.no_grad()
    def _score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-prob of each token of a text except the first, at temperature 1."""
        model = self._policy.model
        ids = torch.tensor([list(token_ids)], device=self.accelerator.device)
        with as_it_answers(model):
            logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
        return logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()

    def update(
        self, batches: Sequence[MicroBatch] | Sequence[Sequence[MicroBatch]], rate: float
    ) -> dict[str, Any]:
        """Train on a step's batches, then publish version n + 1, even if no token was trained."""
        config = self._config
        self._free_cache()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.loss_options(batches)
        rank = self.accelerator.process_index
        with dropout_seed(
            derive_seed(config.seed, "dropout", self.version, *((rank,) if rank else ()))
        ):
            metrics = policy_update(
                self.model,
                self.optimizer,
                batches,
                loss=loss,
                optim=OptimOptions(
                    epochs=config.optim.epochs, max_grad_norm=config.optim.max_grad_norm
                ),
                accelerator=self.accelerator,
                reference=self.reference,
                teacher=self.teachers,
                version=self.version,
            )
        _return_freed_memory()
        if metrics["trained_tokens"]:
            self.skipped.count(stepped=bool(metrics["stepped"]))
        self.publish(self.version + 1)
        return {**metrics, "learning_rate": rate}

    def loss_options(
        self, batches: Sequence[MicroBatch] | Sequence[Sequence[MicroBatch]]
    ) -> LossOptions:
        """Loss options for the batches of a step."""
        del batches
        return loss_options(self._config.loss)

    def begin_optimizer_afresh(self) -> None:
        """Reset the optimiser's means of past gradients."""
        self.optimizer.state.clear()

    def save(self, folder: Path) -> None:
        """Save weights, tokenizer and chat template in Hugging Face's layout, with a card that
        describes the origin of the weights.

        If an adapter is trained, only the adapter is saved.
        """
        card = (
            f"# {self.name}, trained\n\n{self.version} steps of reinforcement learning"
            " with\n\n```json\n"
        )
        card += f"{self._config.model_dump_json(indent=2)}\n```\n"
        self._policy.save(folder, card)

    def write(self, folder: Path) -> None:
        """Write weights and optimiser for a checkpoint."""
        self.save(folder)
        torch.save(self.optimizer.state_dict(), folder / OPTIMIZER_FILE)

    def read(self, folder: Path, version: int) -> None:
        """Read a checkpoint as `version`. It was written by `write`, in one process or by several
        ranks.
        """
        if is_sharded(folder):
            read_sharded(folder, self._policy.model, self.optimizer)
            self.publish(version)
            return
        optimizer = torch.load(folder / OPTIMIZER_FILE, weights_only=True)
        self._policy.read(folder)
        self.optimizer.load_state_dict(optimizer)
        self.publish(version)


def _return_freed_memory() -> None:
    """Give what this process has freed back to the system. glibc keeps smaller pieces, and each
    thread's for that thread.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
