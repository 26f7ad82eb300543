"""Arithmetic that a piece of work needs, and the arithmetic and the memory traffic that the machine
reaches.

A product of matrices [m, k] and [k, n] takes 2 m k n operations (FLOP). A forward pass takes, for
each token, 2 operations for each weight of the layers and 4 for each query head, number of a head
and visible position, and for each predicted token 2 for each weight of the output layer. The
backward pass takes twice as many: one product for the gradient of a layer's input, one for that of
its weight. If the layers' weights are frozen, as below an adapter, the latter is not needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch

from benchmarks.engine import settle

__all__ = ["FORWARD_AND_BACKWARD", "FROZEN", "Network", "measured_rates", "prompts_and_steps"]

FORWARD_AND_BACKWARD = 3
"""Operations of a training step for each operation of its forward pass."""
FROZEN = 2
"""Operations of such a step if the layers' weights are frozen."""
_SIZE, _SIZE_ON_GPU = 2048, 8192
_COPIED_BYTES = 1 << 28
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Network:
    """Sizes of a network that decide its arithmetic."""

    layer_weights: int
    """Number of weights in the matrices of all layers."""
    output_weights: int
    """Number of weights of the output layer."""
    attention: int
    """Layers times query heads times numbers of a head."""

    @classmethod
    def of(cls, config: Any) -> Self:
        """Sizes of a network of attention and gated feed-forward layers."""
        hidden, layers, heads = (
            config.hidden_size,
            config.num_hidden_layers,
            config.num_attention_heads,
        )
        head = getattr(config, "head_dim", None) or hidden // heads
        attending = 2 * hidden * head * (heads + config.num_key_value_heads)
        fed_forward = 3 * hidden * config.intermediate_size
        return cls(
            layers * (attending + fed_forward), hidden * config.vocab_size, layers * heads * head
        )

    def forward(self, tokens: int, visible: int, predicted: int) -> float:
        """Operations of a forward pass. `visible`: sum over the tokens of the positions that each
        sees.
        """
        return (
            2.0 * self.layer_weights * tokens
            + 4.0 * self.attention * visible
            + 2.0 * self.output_weights * predicted
        )

    def weight_bytes(self, size: int) -> int:
        """Bytes of all weights that a step of sampling reads, at `size` bytes a weight."""
        return size * (self.layer_weights + self.output_weights)


def prompts_and_steps(
    network: Network, prompts: list[list[int]], tokens: int
) -> tuple[float, float]:
    """Operations of the prompts, each distinct one once, up to the first token of every answer, and
    operations of all further tokens.
    """
    lengths = [len(each) for each in {tuple(each) for each in prompts}]
    visible = sum(length * (length + 1) // 2 for length in lengths)
    first = network.forward(sum(lengths), visible, len(prompts))
    more = [len(each) + step for each in prompts for step in range(1, tokens)]
    return first, network.forward(len(more), sum(more), len(more))


def measured_rates(format_: str, device: str = "cpu") -> dict[str, float]:
    """Rates of a device, of a CPU with torch's current number of threads: operations of a large
    matrix product in a number format, by seconds of the clock and by CPU seconds, and bytes that a
    copy reads and writes in a second.
    """
    dtype = getattr(torch, format_)
    size = _SIZE if device == "cpu" else _SIZE_ON_GPU
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    products = [_timed(lambda: torch.mm(left, right)) for _ in range(_REPEATS)]
    copies = [_timed(lambda: target.copy_(source)) for _ in range(_REPEATS)]
    return {
        "flop_s": 2.0 * size**3 / min(wall for wall, _ in products),
        "flop_cpu_s": 2.0 * size**3 / min(cpu for _, cpu in products),
        "bytes_s": 2 * _COPIED_BYTES / min(wall for wall, _ in copies),
    }


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    settle()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    settle()
    return time.perf_counter() - wall, time.process_time() - cpu
