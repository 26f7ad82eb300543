"""Which layers in 4 bits are multiplied packed on a CPU.

Where a CPU has AVX512-BF16, bitsandbytes rearranges the weight of a 4-bit layer at its first answer and multiplies by
it as it lies, 5 to 50 times as fast. It does so with every layer, and that goes wrong in three ways. They are seen
to here, by the layer's own flag and two hooks:

* It takes layers only whose rows are a multiple of 32 and whose columns are one of the block (64). Others fail.
* It computes in bfloat16, whatever the layer was told to. A layer that computes in another type is not given to it, so
  that log-probs in float32 are the same on every CPU.
* What is packed passes no gradient on, and cannot be saved: before either, the weight is laid out again as it was. Its
  scales stay rounded to bfloat16 then, as they were for the answers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

__all__ = ["choose_kernels", "has_packed_kernel", "takes_packed"]

_ROWS = 32
"""That the kernel takes at a time."""


def choose_kernels(model: Any, kernel: str = "auto") -> int:
    """Let layers be packed that can be, if the CPU has the kernel and `kernel` is not `plain`; how many those are."""
    from bitsandbytes.nn.modules import Linear4bit

    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, Linear4bit)]
    allowed = kernel != "plain" and has_packed_kernel()
    for layer in layers:
        state = layer.weight.quant_state
        packs = allowed and takes_packed(tuple(state.shape), state.blocksize, layer.compute_dtype, nested=state.nested)
        layer.support_avx512bf16_for_cpu = packs
        if packs:
            layer.register_forward_pre_hook(_before_forward)
            layer.register_state_dict_pre_hook(_before_saving)
    return sum(layer.support_avx512bf16_for_cpu for layer in layers)


def has_packed_kernel() -> bool:
    """Whether bitsandbytes has found AVX512-BF16."""
    from bitsandbytes.functional import has_avx512bf16

    return bool(has_avx512bf16())


def takes_packed(shape: tuple[int, ...], block: int, computes: torch.dtype | None, *, nested: bool = False) -> bool:
    """Whether the kernel can take a layer of [rows, columns] as it is asked to compute. `nested`: scales in 8 bits."""
    fits = len(shape) == 2 and shape[0] % _ROWS == 0 and shape[1] % block == 0
    return fits and computes is torch.bfloat16 and not nested


def _before_forward(layer: Any, given: tuple[Any, ...]) -> None:
    if layer.training or given[0].requires_grad:
        _unpack(layer)


def _before_saving(layer: Any, prefix: str, keep_vars: bool) -> None:
    del prefix, keep_vars
    _unpack(layer)


def _unpack(layer: Any) -> None:
    """As it was loaded. The library's own way back leaves the scales where packing has put them."""
    library: Any = import_module("bitsandbytes.functional")
    state = layer.weight.quant_state
    if getattr(state, "packing_format_for_cpu", False):
        layer.weight.data, _ = library._convert_weight_packed_for_cpu_inverse(layer.weight.data, state)
        state.absmax = state.absmax.T.reshape(-1).float()
