"""Optimisers. Reinforcement learning uses AdamW (in single precision, with its state in 8 bits, or
on masters). Supervised fine-tuning uses AdamW, or Muon for the matrices of the layers and AdamW for
the rest.

| | memory of a weight, in bytes: weight, gradient, state |
|---|---|
| adamw, float32 | 4 + 4 + 8 |
| adamw8bit, float32 | 4 + 4 + 2 |
| adamw, bfloat16 | 2 + 2 + 12: a master of the weight, and the state |
| adamw8bit, bfloat16 | 2 + 2 + 6 |

Weights in bfloat16 need masters (copies in single precision). bfloat16 has 3 digits, so an update
of a thousandth of a weight is lost by rounding, and at the learning rates of reinforcement learning
all updates are that small. The weights themselves are rounded, not only the computation with them,
as autocast does. Thus the engine, which shares the weights, samples with exactly the numbers that
are trained, its cache is half as large, and the saved weights are those that were evaluated.

Muon (Keller Jordan, 2024) takes a step of the same size in every direction of a matrix. It steps
along the momentum of the gradient with all singular values brought near 1. A few rounds of a
polynomial do this without a decomposition. A small model trained from scratch learns to copy in 500
steps, after which AdamW has not begun to.

torch 2.13 has a Muon, too, but computes these rounds in bfloat16. On a CPU without bfloat16
instructions this takes 0.31 s a step for half a million parameters, against 0.02 s in single
precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers import PreTrainedModel

from hrm_agent.models.loading.load_weights import need_package, quiet_libraries
from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.config.fitted import decided
from hrm_agent.training.config.parts import OptimPart

__all__ = [
    "AdamW8bit",
    "Moments",
    "Muon",
    "OnMasters",
    "RunningMean",
    "make_adamw",
    "make_optimizers",
    "moments_of",
    "orthogonalised",
]

_BLOCK = 256
"""Number of elements that share a quantization scale."""
_SMALL = 4096
"""Minimum size of a tensor whose state is quantized. The state of smaller tensors (norms, biases)
stays in single precision, since it needs little memory and its precision matters more.
"""


def make_adamw(model: nn.Module, optim: OptimPart) -> Optimizer:
    """Optimiser of the model's trained weights. Raises `ModelError` if the optimiser's library is
    missing.
    """
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


class Moments(NamedTuple):
    """AdamW's means of the gradients of one weight."""

    mean: Tensor
    """Running mean of the gradients, without bias correction."""
    root: Tensor
    """Root of the running mean of squared gradients, bias-corrected, plus epsilon."""
    steps: int
    """Number of optimiser steps with a gradient of this weight."""


def moments_of(optimizer: Optimizer) -> list[Moments | None]:
    """Moments of each trained weight, in the order of the model's weights (None for a weight
    without a gradient so far). `optimizer` was made by `make_adamw`.
    """
    found: list[Moments | None] = []
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state: dict[str, Any] = optimizer.state.get(weight, {})
            if not state:
                found.append(None)
                continue
            steps = int(state["step"])
            if "exp_avg" in state:
                mean = state["exp_avg"]
                root = state["exp_avg_sq"].sqrt()
            else:
                mean = _dequantized(state, "mean", weight)
                root = _dequantized(state, "root", weight)
            corrected = root / math.sqrt(1 - group["betas"][1] ** steps)
            found.append(Moments(mean, corrected + group["eps"], steps))
    return found


class AdamW8bit(Optimizer):
    """AdamW that between steps stores its means of gradients and of squared gradients in 8 bits.

    The means are quantized by bitsandbytes, block by block on a scale with many steps near 0. Its
    optimiser is not used, since that runs on a GPU only. Instead of the mean of squares its root is
    stored, so that both stored tensors have the range of gradients. A stored mean of squares would
    be rounded to 0 where the mean of gradients is not, and the step would be that mean over
    epsilon.
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
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step for every weight that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, weight.grad.float(), group)
        return loss

    def _step(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        steps = state["step"] = state.get("step", 0) + 1
        mean = _dequantized(state, "mean", gradient).lerp_(gradient, 1 - beta1)
        square = _dequantized(state, "root", gradient).square_().lerp_(gradient.square(), 1 - beta2)
        root = square.sqrt_()
        size = group["lr"] / (1 - beta1**steps)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, root / math.sqrt(1 - beta2**steps) + group["eps"], value=-size)
        self._keep(state, "mean", mean)
        self._keep(state, "root", root)

    def _keep(self, state: dict[str, Any], name: str, value: Tensor) -> None:
        if value.numel() < _SMALL:
            state[name] = value
            return
        library: Any = torch.ops.bitsandbytes
        state[name], state[f"{name}_scales"] = library.quantize_blockwise.default(
            value, _code(name, value.device), _BLOCK
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of `state_dict`. torch's method alone would convert 8-bit tensors to
        the dtype of the weights.
        """
        super().load_state_dict(state_dict)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for index, kept in state_dict["state"].items():
            weight = weights[index]
            self.state[weight] = {
                name: value.to(weight.device) if isinstance(value, Tensor) else value
                for name, value in kept.items()
            }


def _dequantized(state: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """Mean that `AdamW8bit` keeps in 8 bits."""
    kept: Tensor | None = state.get(name)
    if kept is None:
        return torch.zeros_like(like)
    if kept.dtype != torch.uint8:
        return kept
    scales = state[f"{name}_scales"]
    library: Any = torch.ops.bitsandbytes
    return library.dequantize_blockwise.default(
        kept, scales, _code(name, like.device), _BLOCK, torch.float32
    )


_codes: dict[tuple[bool, torch.device], Tensor] = {}


def _code(name: str, device: torch.device) -> Tensor:
    """Codebook of 256 values for 8 bits. It is unsigned for the roots of squares."""
    signed = name == "mean"
    if (signed, device) not in _codes:
        from bitsandbytes.functional import create_dynamic_map

        _codes[signed, device] = create_dynamic_map(signed=signed).to(device)
    return _codes[signed, device]


class OnMasters(Optimizer):
    """Runs another optimiser on copies of the weights in single precision (masters). After a step
    the masters are rounded to the weights.
    """

    def __init__(
        self, weights: Iterable[nn.Parameter], make: Callable[[list[nn.Parameter]], Optimizer]
    ) -> None:
        self._weights = list(weights)
        self._masters = [nn.Parameter(weight.detach().float().clone()) for weight in self._weights]
        self._inner = make(self._masters)
        super().__init__(self._masters, {})
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step of the masters with the weights' gradients."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        self._inner.step()
        self._inner.zero_grad(set_to_none=True)
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.copy_(master)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of the weights."""
        for weight in self._weights:
            if set_to_none or weight.grad is None:
                weight.grad = None
            else:
                weight.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """State of the inner optimiser, and the masters."""
        return self._inner.state_dict() | {"masters": [master.detach() for master in self._masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._inner.load_state_dict(
            {name: value for name, value in state_dict.items() if name != "masters"}
        )
        for weight, master, kept in zip(
            self._weights, self._masters, state_dict["masters"], strict=True
        ):
            master.copy_(kept)
            weight.copy_(master)
        self._share()


ROUNDS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Coefficients of ax + bx^3 + cx^5 by Muon's author, with which five rounds bring singular values
above 0.01 to between about 0.7 and 1.2.
"""


class Muon(torch.optim.Optimizer):
    """Muon, for matrices only, with Nesterov's `momentum`. Weight decay is decoupled,
    as in AdamW.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step for every matrix that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._step(matrix, group)
        return loss

    def _step(self, matrix: Tensor, group: dict[str, Any]) -> None:
        gradient = matrix.grad
        state = self.state[matrix]
        assert gradient is not None
        mean = state.setdefault("momentum", torch.zeros_like(gradient))
        mean.lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalised(gradient.lerp(mean, group["momentum"]))
        rows, columns = matrix.shape
        size = group["lr"] * max(1.0, rows / columns) ** 0.5
        matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(
            direction.to(matrix.dtype), alpha=-size
        )


def orthogonalised(matrix: Tensor) -> Tensor:
    """Matrix with its singular values brought near 1, in single precision."""
    tall = matrix.size(0) > matrix.size(1)
    x = (matrix.T if tall else matrix).float()
    x = x / (x.norm() + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.T if tall else x


def make_optimizers(model: PreTrainedModel, config: SftConfig) -> list[torch.optim.Optimizer]:
    """Optimisers of a run, each with the parameters that it trains."""
    ends = {
        id(part.weight)
        for part in (model.get_input_embeddings(), model.get_output_embeddings())
        if part
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    muon = config.optimizer == "muon"
    matrices = [
        parameter
        for parameter in trained
        if muon and parameter.ndim == 2 and id(parameter) not in ends
    ]
    taken = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in trained if id(parameter) not in taken]
    found: list[torch.optim.Optimizer] = []
    if matrices:
        matrix_rate = decided(config.matrix_learning_rate, "matrix_learning_rate")
        found.append(Muon(matrices, lr=matrix_rate, weight_decay=config.weight_decay))
    if rest:
        rate = decided(config.learning_rate, "learning_rate")
        decay = config.weight_decay
        found.append(
            torch.optim.AdamW(rest, lr=rate, weight_decay=decay, betas=(0.9, 0.98), fused=True)
        )
    return found


class RunningMean:
    """Exponentially weighted mean of a model's trained weights, which averages out the noise of the
    last steps.

    The decay is faster in the first steps, so that the initial weights leave no trace.
    """

    def __init__(self, model: PreTrainedModel, decay: float) -> None:
        self._weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._means = [weight.detach().clone() for weight in self._weights]
        self._decay = decay
        self._steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights in the mean."""
        self._steps += 1
        kept = min(self._decay, self._steps / (9 + self._steps))
        for mean, weight in zip(self._means, self._weights, strict=True):
            mean.lerp_(weight, 1 - kept)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"means": self._means, "steps": self._steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        for mean, kept in zip(self._means, state["means"], strict=True):
            mean.copy_(kept)
        self._steps = int(state["steps"])

    @torch.no_grad()
    def take_place(self) -> None:
        """Replace the weights by the mean."""
        for mean, weight in zip(self._means, self._weights, strict=True):
            weight.copy_(mean)
