"""LoRA adapters by role on one model. Each token of a forward pass uses one adapter.

A graph's roles share the model's own weights, and each may have its own adapter. The engine answers
requests of all roles in one batch, so one pass has tokens of several roles. Each token has the
number of its adapter, and every layer multiplies the tokens of one adapter together. The term that
an adapter adds for a token depends on that token alone, so tokens do not affect each other. A
trainer forwards tokens of one role at a time, through the same layers.

PEFT inserts the layers, with one set of weights for each adapter. PEFT's computation of adapter
terms is switched off permanently, and a hook adds the terms that the route selects. PEFT's own
support for several adapters in a batch cannot be used: it selects adapters by the first dimension,
while the engine has all tokens in one row. A replica of the model
(`hrm_agent.models.local.packed_attention`) has its own route on the same weights.

Files have PEFT's format. A folder has the shared adapter, and a subfolder for each role with its
own adapter. Each subfolder is also a complete adapter by itself.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hrm_agent.errors import ModelError
from hrm_agent.models.local.kv_cache import tensor_on

__all__ = [
    "WEIGHTS_FILE",
    "AdapterRoute",
    "put_adapters",
    "read_adapter",
    "route_of",
    "write_adapter",
]

WEIGHTS_FILE = "adapter_model.safetensors"
"""Name of PEFT's file of an adapter's weights."""
_PREFIX = "base_model.model."
_SHARED = "default"


class AdapterRoute:
    """Route of tokens through adapters, in all layers of one model. For one thread at a time."""

    def __init__(self, roles: Sequence[str]) -> None:
        """`roles`: roles that have their own adapter. All other roles share one adapter."""
        self.roles = tuple(roles)
        self._parts: list[tuple[str, Tensor | None]] = [(_SHARED, None)]
        self._tokens = 0

    def number(self, role: str) -> int:
        """Number of a role's adapter (0 for the shared adapter)."""
        return self.roles.index(role) + 1 if role in self.roles else 0

    def names(self) -> dict[str, str]:
        """Names of adapters in the model by role (the shared adapter is under the empty role)."""
        return {"": _SHARED} | {
            role: _name(number) for number, role in enumerate(self.roles, start=1)
        }

    def all_through(self, role: str) -> None:
        """Route all tokens through a role's adapter, until another route is set. A block would end
        too early for a backward pass that computes layers again, since it needs the same route.
        """
        self._parts = [(_name(self.number(role)), None)]

    def by_token(self, adapters_T: np.ndarray[Any, Any], device: torch.device) -> None:
        """Route the tokens of the next pass, [1, T], through adapters by their numbers."""
        numbers = np.unique(adapters_T)
        if len(numbers) == 1:
            self._parts = [(_name(int(numbers[0])), None)]
            return
        self._tokens = len(adapters_T)
        self._parts = [
            (_name(int(n)), tensor_on(device, np.flatnonzero(adapters_T == n))) for n in numbers
        ]

    @contextmanager
    def off(self) -> Generator[None]:
        """Switch adapters off inside the block."""
        parts = self._parts
        self._parts = []
        try:
            yield
        finally:
            self._parts = parts

    def add(self, layer: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Forward hook of a layer: its output plus the adapters' terms."""
        given: Tensor = inputs[0]
        for name, places in self._parts:
            if places is None:
                output = output + _added(layer, name, given, output.dtype)
                continue
            if given.shape[:-1] != (1, self._tokens):
                raise ModelError(
                    "A layer of the model does not get exactly the tokens of the pass (layers of"
                    " experts do not, for example), so it cannot use the adapter of each token's"
                    " role.",
                    "Leave the layer out of lora_targets.",
                )
            output = output.index_add(
                1, places, _added(layer, name, given[:, places], output.dtype)
            )
        return output


def _name(number: int) -> str:
    """Name of an adapter in the model. A role's name may have a dot, which a module's name may
    not.
    """
    return f"role_{number}" if number else _SHARED


def _added(layer: Any, name: str, given: Tensor, dtype: torch.dtype) -> Tensor:
    first: nn.Linear = layer.lora_A[name]
    inner = first(layer.lora_dropout[name](given.to(first.weight.dtype)))
    return (layer.lora_B[name](inner) * layer.scaling[name]).to(dtype)


def route_of(model: nn.Module) -> AdapterRoute | None:
    """Route of a model with adapters by role, which may be inside a wrapper for several ranks (None
    for any other model).
    """
    return getattr(getattr(model, "module", model), "adapter_route", None)


def put_adapters(model: Any, configs: Sequence[Any], roles: Sequence[str]) -> AdapterRoute:
    """Insert new adapters into a model. `configs`: PEFT's configurations, of the shared adapter
    first, then of `roles` in their order.

    Raises `ModelError` for an adapter on a layer that cannot distinguish roles. Errors of PEFT are
    raised as they are.
    """
    import peft

    route = AdapterRoute(roles)
    wrapped: Any = None
    for name, config in zip(route.names().values(), configs, strict=True):
        if wrapped is None:
            wrapped = peft.get_peft_model(model, config, adapter_name=name)
        else:
            wrapped.add_adapter(name, config)
    for path, layer in _layers(model):
        if not isinstance(layer.base_layer, nn.Linear) or layer.base_layer is _own_layer(
            model.get_output_embeddings()
        ):
            raise ModelError(
                f"Adapters of several roles cannot be on {path!r}: it is not a linear layer inside"
                " the model.",
                "Name linear layers other than the output layer as lora_targets.",
            )
        layer._disable_adapters = True
        layer.register_forward_hook(route.add)
    for name, weight in model.named_parameters():
        weight.requires_grad_(".lora_" in name)
    model.adapter_route = route
    return route


def _layers(model: nn.Module) -> list[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return [(path, layer) for path, layer in model.named_modules() if isinstance(layer, LoraLayer)]


def _own_layer(layer: Any) -> Any:
    return getattr(layer, "base_layer", layer)


def _weights(model: nn.Module, name: str) -> dict[str, Tensor]:
    """Weights of an adapter, under their names in PEFT's file."""
    return {
        f"{_PREFIX}{path}.{part}.weight": getattr(layer, part)[name].weight
        for path, layer in _layers(model)
        for part in ("lora_A", "lora_B")
        if name in getattr(layer, part)
    }


def write_adapter(model: nn.Module, name: str, folder: Path) -> None:
    """Write the weights of an adapter in PEFT's format."""
    kept = {
        key: weight.detach().cpu().contiguous() for key, weight in _weights(model, name).items()
    }
    save_file(kept, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def read_adapter(model: nn.Module, name: str, folder: Path) -> None:
    """Read weights from a folder. Raises `ModelError` if they belong to another adapter."""
    given = load_file(folder / WEIGHTS_FILE)
    own = _weights(model, name)
    shapes = [{key: weight.shape for key, weight in weights.items()} for weights in (given, own)]
    if shapes[0] != shapes[1]:
        key = min(
            key for key in given.keys() | own.keys() if shapes[0].get(key) != shapes[1].get(key)
        )
        raise ModelError(
            f"The adapter in {folder} does not fit the model's adapter: {key!r} differs, for"
            " example."
        )
    with torch.no_grad():
        for key, weight in given.items():
            own[key].copy_(weight)
