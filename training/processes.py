"""Whether this is one of several processes of a training, and whether they were started as they have to be.

Asked of the environment, as launchers set it: Accelerate joins processes without an accelerator only if it is told to,
so its own count is 1 in each of them.
"""

from __future__ import annotations

import os

from hrm_agent.errors import ConfigError

__all__ = ["is_first_process", "require_one_process", "require_ranks", "wait_for_all"]

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""torchrun and accelerate launch; three kinds of mpirun."""
_JOINED_BY = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_ACCELERATE = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
TORCHRUN = "torchrun --nproc_per_node 2 -m hrm_agent train rl --sharding ddp ..."


def require_one_process() -> None:
    """Raise `ConfigError` in a process that was started as one of several."""
    count = _first(_SIZES)
    if count > 1:
        raise ConfigError(
            f"This runs in one process, and {count} were started: they would share nothing.",
            "Start it without torchrun, accelerate launch or mpirun; `train rl` runs in several that are told how to "
            "train together: --sharding ddp, or fsdp2.",
        )


def require_ranks(sharding: str) -> int:
    """The number of processes of a training that was asked to be sharded so.

    Raises `ConfigError` where they were started otherwise than the training needs.
    """
    if sharding == "none":
        require_one_process()
        return 1
    count = _first(_SIZES)
    if "WORLD_SIZE" not in os.environ:
        if count:
            raise ConfigError(
                f"sharding = {sharding}, and mpirun started these {count} processes.", f"Start them by {TORCHRUN}"
            )
        raise ConfigError(
            f"sharding = {sharding} is for several processes, and this one was started by itself (on a machine without "
            "an accelerator `accelerate launch` starts one, whatever number it is given).",
            f"Start them by {TORCHRUN}; or go on in one process: --sharding none.",
        )
    lacking = [name for name in _JOINED_BY if name not in os.environ]
    if lacking:
        raise ConfigError(
            f"{count} processes were started, and {', '.join(lacking)} is not set: they cannot find each other.",
            f"Start them by {TORCHRUN}",
        )
    for name in _OF_ACCELERATE:
        if os.environ.get(name, "").lower() == "true":
            raise ConfigError(
                f"accelerate launch was told of a way of its own to share the weights ({name}), and sharding = "
                f"{sharding} is another.",
                "Leave it out of accelerate's configuration: `accelerate launch --num_processes 2 -m hrm_agent ...`.",
            )
    return count


def is_first_process() -> bool:
    """False in processes whose messages would repeat those of the first one.

    A rank without a number of processes is left over in the environment: nobody else is there to say anything.
    """
    return _first(_SIZES) <= 1 or _first(_RANKS) == 0


def wait_for_all() -> None:
    """Wait until every process of this training has called this."""
    if _first(_SIZES) > 1:
        import torch
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def _first(names: tuple[str, ...]) -> int:
    found = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in found if value.isdecimal()), 0)
