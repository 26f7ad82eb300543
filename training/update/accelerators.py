"""Accelerators without settings that change the results of a training.

Accelerate reads settings from environment variables, which `accelerate launch` sets, and shares one
state among all trainers of a process. TRL's trainers, for example, set mixed precision to bfloat16.
With such settings, an update would compute other log-probs than the sampling engine, or scale the
gradient.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.utils import DynamoBackend

from hrm_agent.errors import ConfigError

__all__ = ["exact_accelerator"]


def exact_accelerator(**settings: Any) -> Accelerator:
    """Accelerator without mixed precision, gradient accumulation and compilation. `settings` are
    passed to `Accelerator`.

    Raises `ConfigError` if the environment or an earlier trainer of this process has enabled one of
    these, or if accelerate rejects the environment.
    """
    try:
        accelerator = Accelerator(**settings)
    except Exception as error:  # accelerate raises many kinds for wrong variables
        raise ConfigError(
            f"Accelerate cannot be set up: {' '.join(str(error).split())[:300]}",
            "Look at the variables named ACCELERATE_*, and at accelerate's configuration file.",
        ) from error
    compiled_by: Any = accelerator.state.dynamo_plugin
    found = {
        "mixed_precision": (accelerator.mixed_precision, "no"),
        "gradient_accumulation_steps": (accelerator.gradient_accumulation_steps, 1),
        "dynamo_backend": (compiled_by.backend.value, DynamoBackend.NO.value),
    }
    changed = [f"{name} = {value}" for name, (value, plain) in found.items() if value != plain]
    if changed:
        raise ConfigError(
            f"Accelerate is set to {', '.join(changed)}, which would change the results of this"
            " training.",
            "Remove it from `accelerate launch`, its configuration file and variables named"
            " ACCELERATE_*. If another trainer ran in this process, train in a new one."
            " --dtype bfloat16 trains in bfloat16.",
        )
    return accelerator
