"""Whether this is one of several processes of a training.

Asked of the environment, as launchers set it: Accelerate joins processes without an accelerator only if it is told to,
so its own count is 1 in each of them.
"""

from __future__ import annotations

import os

from hrm_agent.errors import ConfigError

__all__ = ["is_first_process", "require_one_process"]

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""torchrun and accelerate launch; three kinds of mpirun."""


def require_one_process() -> None:
    """Raise `ConfigError` in a process that was started as one of several."""
    count = _first(_SIZES)
    if count > 1:
        raise ConfigError(
            f"Reinforcement learning runs in one process, and {count} were started: they would share no rollouts.",
            "Start it without torchrun, accelerate launch or mpirun.",
        )


def is_first_process() -> bool:
    """False in processes whose messages would repeat those of the first one.

    A rank without a number of processes is left over in the environment: nobody else is there to say anything.
    """
    return _first(_SIZES) <= 1 or _first(_RANKS) == 0


def _first(names: tuple[str, ...]) -> int:
    found = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in found if value.isdecimal()), 0)
