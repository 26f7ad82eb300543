"""AdamW as reinforcement learning takes it: in single precision, with its state in 8 bits, or on masters.

| | memory of a weight, in bytes: weight, gradient, state |
|---|---|
| adamw, float32 | 4 + 4 + 8 |
| adamw8bit, float32 | 4 + 4 + 2 |
| adamw, bfloat16 | 2 + 2 + 12: a master of the weight, and the state |
| adamw8bit, bfloat16 | 2 + 2 + 6 |

Weights in bfloat16 need masters: an update of a thousandth is lost in their rounding (3 digits), and at the learning
rates of reinforcement learning all of them are. The weights themselves are rounded, and not only what is computed with
them (as autocast does): so the engine, which shares them, samples by the very numbers that are trained, its cache is
half as large, and what is saved is what was evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from hrm_agent.models.local.load_weights import need_package, quiet_libraries
from hrm_agent.training.config_parts import OptimPart
from hrm_agent.training.fitted_config import decided

__all__ = ["AdamW8bit", "OnMasters", "make_adamw"]

_BLOCK = 256
"""Numbers that are quantized by one scale."""
_SMALL = 4096
"""Tensors of fewer numbers (norms, biases) keep their state in single precision: it is nothing, and matters more."""


def make_adamw(model: nn.Module, optim: OptimPart) -> Optimizer:
    """The optimiser of what the model trains. Raises `ModelError` where its library is missing."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options: dict[str, Any] = {
        "lr": decided(optim.learning_rate, "learning_rate"),
        "betas": (optim.adam_beta1, optim.adam_beta2),
        "weight_decay": optim.weight_decay,
    }
    kind = AdamW8bit if optim.optimizer == "adamw8bit" else AdamW
    if all(parameter.dtype == torch.float32 for parameter in trained):
        return kind(trained, **options)
    return OnMasters(trained, lambda masters: kind(masters, **options))


class AdamW8bit(Optimizer):
    """AdamW that keeps its means of gradients and of their squares in 8 bits between steps, by bitsandbytes.

    Only bitsandbytes' quantization is taken, block by block on a scale with many steps near 0: its own optimiser runs
    on a GPU alone. Of squares the root is kept, so that both means have the range of gradients: squares themselves
    would be rounded to 0 under means that are not, and the step would be that mean over epsilon.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        need_package("bitsandbytes", "quant", "optimizer = adamw8bit")
        quiet_libraries()
        import_module("bitsandbytes")  # registers the operators that are called below
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step for everything that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, weight.grad.float(), group)
        return loss

    def _step(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        steps = state["step"] = state.get("step", 0) + 1
        mean = self._read(state, "mean", gradient).lerp_(gradient, 1 - beta1)
        square = self._read(state, "root", gradient).square_().lerp_(gradient.square(), 1 - beta2)
        root = square.sqrt_()
        size = group["lr"] / (1 - beta1**steps)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, root / math.sqrt(1 - beta2**steps) + group["eps"], value=-size)
        self._keep(state, "mean", mean)
        self._keep(state, "root", root)

    def _read(self, state: dict[str, Any], name: str, like: Tensor) -> Tensor:
        kept: Tensor | None = state.get(name)
        if kept is None:
            return torch.zeros_like(like)
        if kept.dtype != torch.uint8:
            return kept
        scales = state[f"{name}_scales"]
        library: Any = torch.ops.bitsandbytes
        return library.dequantize_blockwise.default(kept, scales, _code(name, like.device), _BLOCK, torch.float32)

    def _keep(self, state: dict[str, Any], name: str, value: Tensor) -> None:
        if value.numel() < _SMALL:
            state[name] = value
            return
        library: Any = torch.ops.bitsandbytes
        state[name], state[f"{name}_scales"] = library.quantize_blockwise.default(
            value, _code(name, value.device), _BLOCK
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave; torch's own would turn 8 bits into the type of the weights."""
        super().load_state_dict(state_dict)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for index, kept in state_dict["state"].items():
            weight = weights[index]
            self.state[weight] = {
                name: value.to(weight.device) if isinstance(value, Tensor) else value for name, value in kept.items()
            }


_codes: dict[tuple[bool, torch.device], Tensor] = {}


def _code(name: str, device: torch.device) -> Tensor:
    """The 256 numbers that 8 bits stand for; a root needs no sign."""
    signed = name == "mean"
    if (signed, device) not in _codes:
        from bitsandbytes.functional import create_dynamic_map

        _codes[signed, device] = create_dynamic_map(signed=signed).to(device)
    return _codes[signed, device]


class OnMasters(Optimizer):
    """Another optimiser, on copies of the weights in single precision; after a step the weights are those, rounded."""

    def __init__(self, weights: Iterable[nn.Parameter], make: Callable[[list[nn.Parameter]], Optimizer]) -> None:
        self._weights = list(weights)
        self._masters = [nn.Parameter(weight.detach().float().clone()) for weight in self._weights]
        self._inner = make(self._masters)
        super().__init__(self._masters, {})
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A step of the masters by the weights' gradients."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        self._inner.step()
        self._inner.zero_grad(set_to_none=True)
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.copy_(master)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the weights."""
        for weight in self._weights:
            if set_to_none or weight.grad is None:
                weight.grad = None
            else:
                weight.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Of the optimiser within, and the masters."""
        return self._inner.state_dict() | {"masters": [master.detach() for master in self._masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._inner.load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        for weight, master, kept in zip(self._weights, self._masters, state_dict["masters"], strict=True):
            master.copy_(kept)
            weight.copy_(master)
        self._share()
