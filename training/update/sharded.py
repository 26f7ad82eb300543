"""Weights sharded over ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`), and their
checkpoints.

The sharded module is a copy. The original module stays whole on each rank: the engine samples with
it, and its weights are saved. After an update the shares are gathered into the original, one tensor
after the other.

Sharded weights are in single precision. If the policy is in bfloat16, layers are rounded when they
are gathered for a forward pass, as with masters (`hrm_agent.training.update.optimizers`). So the
forward pass uses the same rounded numbers as the engine.

Each rank writes its share to a checkpoint in torch's distributed format, which any number of ranks
can read.

    CHECKPOINT/sharded/     .metadata, which share of which tensor lies where, and a file of each rank

Stored tensors are named after the weights that they belong to. Therefore ranks with other shares
can read them, and so can a process without a process group. The files are listed in the
checkpoint's manifest (`hrm_agent.training.checkpoints`) like all others.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from hrm_agent.training.update.optimizers import OnMasters

__all__ = [
    "gather",
    "held_by",
    "is_sharded",
    "put",
    "read_sharded",
    "refresh",
    "shard",
    "take_whole",
    "write_sharded",
]


def shard(model: Any, *, ranks: int, device: torch.device) -> Any:
    """Copy of `model` in single precision, of which each rank holds a share. Gradients of `model`
    itself are switched off.

    Each layer is a unit that is gathered when the layer runs. All parts outside of the layers are
    one further unit.
    """
    dtype = next(model.parameters()).dtype
    sharded = copy.deepcopy(model).float()
    model.requires_grad_(False)
    mesh = init_device_mesh(device.type, (ranks,))
    rounded = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32
    )
    units: set[str] = set(getattr(model, "_no_split_modules", None) or ())
    for layer in [each for each in sharded.modules() if type(each).__name__ in units]:
        fully_shard(layer, mesh=mesh, mp_policy=rounded)
    return fully_shard(sharded, mesh=mesh, mp_policy=rounded)


@torch.no_grad()
def gather(sharded: nn.Module, whole: nn.Module) -> None:
    """Copy all weights of `sharded` into the module `whole`. All ranks have to call this."""
    targets = dict(whole.named_parameters())
    for name, weight in sharded.named_parameters():
        targets[name].copy_(weight.full_tensor() if isinstance(weight, DTensor) else weight)


@torch.no_grad()
def put(whole: Tensor, place: Tensor) -> None:
    """Copy a whole tensor to `place`. If `place` is sharded, copy this rank's share only."""
    if isinstance(place, DTensor):
        own = distribute_tensor(
            whole.to(place.to_local().device),
            place.device_mesh,
            place.placements,
            src_data_rank=None,
        )
        place.to_local().copy_(own.to_local())
    else:
        place.copy_(whole)


def take_whole(
    sharded: nn.Module, optimizer: Optimizer, whole: nn.Module, kept: dict[str, Any]
) -> None:
    """Load into `sharded` and `optimizer` what a single process has saved: the weights of `whole`,
    and the state dict `kept` of its optimiser.
    """
    trained = [name for name, _ in whole.named_parameters()]
    masters = dict(zip(trained, kept.get("masters", ()), strict=False))
    weights = dict(whole.named_parameters())
    for name, weight in sharded.named_parameters():
        put(masters.get(name, weights[name]), weight)
    places = [weight for _, weight in held_by(sharded, optimizer)]
    optimizer.state.clear()
    for index, state in cast("dict[int, dict[str, Any]]", kept["state"]).items():
        place = places[index]
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == place.shape:
                own = torch.zeros_like(place)
                put(value, own)
                optimizer.state[place][key] = own
            else:
                optimizer.state[place][key] = value


def held_by(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Tensors that the optimiser changes (weights, or their masters if there are any), with the
    names of the weights in the model.
    """
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    held: Iterable[Tensor] = [
        weight for group in optimizer.param_groups for weight in group["params"]
    ]
    return zip(trained, held, strict=True)


def refresh(optimizer: Optimizer) -> None:
    """Round masters to the weights, after the masters were changed from outside."""
    inner = getattr(optimizer, "optimizer", optimizer)  # inside Accelerate's wrapper
    if isinstance(inner, OnMasters):
        inner.load_state_dict(inner.state_dict())


_FOLDER = "sharded"
_WEIGHT, _STATE = "weight", "state"


def is_sharded(folder: Path) -> bool:
    """True if a checkpoint is in this format."""
    return (folder / _FOLDER).is_dir()


def write_sharded(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Write weights and optimiser state. Each rank writes its share, so all ranks have to call
    this.
    """
    state: dict[str, Any] = {}
    for name, weight in held_by(model, optimizer):
        state[f"{_WEIGHT}/{name}"] = weight
        for key, value in optimizer.state.get(weight, {}).items():
            state[f"{_STATE}/{key}/{name}"] = value
    save(state, checkpoint_id=folder / _FOLDER)


@torch.no_grad()
def read_sharded(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Read what any number of ranks have written by `write_sharded`. All ranks have to
    call this.
    """
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
        # torch warns that there is no process group, but here none is needed
        warnings.simplefilter("ignore", UserWarning)
        load(state, checkpoint_id=folder / _FOLDER, no_dist=not distributed.is_initialized())
    refresh(optimizer)
