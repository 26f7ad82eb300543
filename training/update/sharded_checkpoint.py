"""Checkpoints to which each rank writes its share, and which any number of ranks can read, in
torch's distributed format.

    CHECKPOINT/sharded/     .metadata, which share of which tensor lies where, and a file of each rank

Tensors are named after the weights that they belong to. They can therefore be read by ranks with
other shares than those that wrote them, and by a process without a process group. The files are
listed in the checkpoint's manifest (`hrm_agent.training.checkpoints`) like all others.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from hrm_agent.training.update.sharded_weights import held_by, refresh

__all__ = ["is_sharded", "read_sharded", "write_sharded"]

_FOLDER = "sharded"
_WEIGHT, _STATE = "weight", "state"


def is_sharded(folder: Path) -> bool:
    """True if a checkpoint is in this format."""
    return (folder / _FOLDER).is_dir()


def write_sharded(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Write weights and optimiser state, each rank its share. All ranks have to call it."""
    state: dict[str, Any] = {}
    for name, weight in held_by(model, optimizer):
        state[f"{_WEIGHT}/{name}"] = weight
        for key, value in optimizer.state.get(weight, {}).items():
            state[f"{_STATE}/{key}/{name}"] = value
    save(state, checkpoint_id=folder / _FOLDER)


@torch.no_grad()
def read_sharded(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Read the data of `write_sharded`, from any number of ranks. All ranks have to call it."""
    written = FileSystemReader(folder / _FOLDER).read_metadata().state_dict_metadata
    held = dict(held_by(model, optimizer))
    optimizer.state.clear()
    state: dict[str, Any] = {f"{_WEIGHT}/{name}": weight.detach() for name, weight in held.items()}
    for entry in (each for each in written if each.startswith(f"{_STATE}/")):
        _, key, name = entry.split("/", 2)
        of_weight = written[entry].size == held[name].shape  # pyright: ignore[reportAttributeAccessIssue]
        value: Tensor = torch.zeros_like(held[name]) if of_weight else torch.zeros(())
        state[entry] = optimizer.state[held[name]][key] = value
    with warnings.catch_warnings():
        # a warning that there is no process group, in a process that needs none
        warnings.simplefilter("ignore", UserWarning)
        load(state, checkpoint_id=folder / _FOLDER, no_dist=not distributed.is_initialized())
    refresh(optimizer)
