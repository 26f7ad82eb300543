"""Accelerators that change no number of a training.

Accelerate takes settings from environment variables (set by `accelerate launch` and by its
configuration file), and one process has one state for all trainers. TRL's trainers, for example,
leave mixed precision in bfloat16. An update with such settings would compute other log-probs than
the engine that sampled, or scale the gradient.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.utils import DynamoBackend

from hrm_agent.errors import ConfigError

__all__ = ["exact_accelerator"]


def exact_accelerator(**settings: Any) -> Accelerator:
    """Accelerator with `settings`, with neither mixed precision nor gradient accumulation nor
    compilation.

    Raises `ConfigError` if the environment or an earlier trainer in this process has set one of
    these, or something that accelerate does not take.
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
            f"Accelerate is set to {', '.join(changed)}, which would change the numbers of this"
            " training.",
            "Leave it out of `accelerate launch`, of its configuration file and of variables named"
            " ACCELERATE_*, and train in a process of its own if another trainer ran in this one."
            " --dtype bfloat16 trains in bfloat16.",
        )
    return accelerator
