"""Opens the vLLM servers that sample a training's rollouts, as configured."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hrm_agent.errors import ConfigError
from hrm_agent.models.codec.chat_template import PolicyCodec
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.vllm.launch import LaunchOptions
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.fitted import decided
from hrm_agent.training.engines.fleet import EngineFleet
from hrm_agent.training.engines.policies import scheduling_policy
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.training.engines.server import FleetOptions

__all__ = ["open_fleet"]


def open_fleet(
    config: GrpoConfig,
    folder: Path,
    codec: PolicyCodec,
    score: Callable[[Sequence[int]], list[float]],
) -> EngineFleet:
    """Start or find the servers of a run. They have no weights of the trainer yet. Raises
    `ModelError`, or `ConfigError` for adapters of several roles.

    `folder`: the run's folder. `score`: the trainer's log-prob of each token of a text but the
    first.
    """
    engines = config.engines
    adapter = config.adapter
    if adapter.lora_roles:
        raise ConfigError(
            "engine vllm takes one adapter at a time, and lora_roles names several.",
            "Leave lora_roles out.",
        )
    rank = adapter.lora_rank
    model = model_folder(config.policy, adapter=rank > 0)
    arguments = engines.server_options
    # vLLM has to know the largest adapter rank when it starts
    if rank and not any(option.startswith("--max-lora-rank") for option in arguments):
        known = next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)
        arguments = (*arguments, "--max-lora-rank", str(known), "--max-loras", "2")
    options = FleetOptions(
        run=folder,
        servers=engines.servers,
        launch=LaunchOptions(
            model=model,
            python=engines.server_python,
            arguments=arguments,
            adapters=bool(rank),
            devices=_devices(),
        ),
        count=engines.own,
        tokenizer=model,
        weights=Path(engines.weights_folder) if engines.weights_folder else None,
        collective=engines.weights_by == "collective",
        address=engines.weights_address,
        tolerance=engines.publish_tolerance,
        unproved=engines.unproved_weights,
        base=Path(model) if rank else None,
        patience=engines.server_patience,
        abort=config.rollout.on_publish == "abort",
    )
    limits: dict[str, int] = {}
    if engines.assign == "safe_maximum":
        each = (config.of_family(name) for name in ("", *(own.name for own in config.families)))
        of_rollout = [own.context.get("max_tokens", own.max_tokens) for own in each]
        limits["max_response_tokens"] = max(int(decided(n, "max_tokens")) for n in of_rollout)
    scheduler = RolloutScheduler(scheduling_policy(engines.assign, **limits), seed=config.seed)
    return EngineFleet(config.policy, codec, options, scheduler, score)


def _devices() -> tuple[str, ...]:
    """GPUs available to this process. The servers take them in turn."""
    import torch

    if not torch.cuda.is_available():
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        tuple(visible.split(","))
        if visible
        else tuple(str(number) for number in range(torch.cuda.device_count()))
    )
