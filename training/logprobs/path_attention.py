"""Attention in which each token sees the tokens on its path to the root, and no others.

Tokens stand in one sequence. A *run* is a stretch of it in which each token follows the one before; the first token of
a run follows none, or one within an earlier run. So the keys that a run needs are a few intervals of the sequence and
the run itself, which are laid side by side; queries are taken in blocks, each with the keys up to its end. What is
computed is what is needed, but half a block on the diagonal: the cost grows with the tokens times the length of their
paths, not with the square of all tokens, and no mask is larger than a block.

Query heads that share a key head are laid below each other as if they were more queries. Probabilities are kept for
the backward pass while they are few, and computed again if they are many. Forward and backward are written out because
on a CPU this takes half the time of the flash kernel, which has an overhead for each short sequence (measured for rows
of 130 tokens, 4 heads of 32: 0.58 ms against 0.99 ms a row and layer).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Run", "path_attention", "runs_of"]

BLOCK = 128
"""Most queries of a block."""
KEPT_ELEMENTS = 2**23
"""Most probabilities that a layer keeps for its backward pass: 32 MiB in single precision."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that follow each other, and what is before them."""

    start: int
    """Index of the first token."""
    stop: int
    """Index behind the last one."""
    prefix: tuple[tuple[int, int], ...]
    """Intervals of the tokens before it, from the root on."""

    @property
    def prefix_tokens(self) -> int:
        return sum(stop - start for start, stop in self.prefix)

    @property
    def blocks(self) -> Iterator[tuple[int, int]]:
        """The run in parts of like size."""
        size = self.stop - self.start
        count = -(-size // BLOCK)
        bounds = [self.start + size * i // count for i in range(count + 1)]
        return pairwise(bounds)


def runs_of(parents: np.ndarray) -> tuple[Run, ...]:
    """The runs of a sequence in which `parents[i]` is the index of the token before i, -1 for none.

    Raises `ValueError` where a token stands before the one that it follows.
    """
    index = np.arange(len(parents))
    if (parents >= index).any():
        raise ValueError("a token stands before the one that it follows")
    starts = np.flatnonzero((parents != index - 1) | (index == 0))
    bounds = [*starts.tolist(), len(parents)]
    runs: list[Run] = []
    for number, start in enumerate(bounds[:-1]):
        before, prefix = int(parents[start]), ()
        if before >= 0:
            earlier = runs[int(np.searchsorted(starts, before, side="right")) - 1]
            prefix = (*earlier.prefix, (earlier.start, before + 1))
        runs.append(Run(start, bounds[number + 1], prefix))
    return tuple(runs)


def path_attention(
    query_HND: Float[Tensor, "H N D"],
    key_GND: Float[Tensor, "G N D"],
    value_GND: Float[Tensor, "G N D"],
    runs: Sequence[Run],
    scale: float,
) -> Float[Tensor, "N H D"]:
    """Softmax of scaled products along the paths; H is a multiple of G."""
    return _PathAttention.apply(query_HND, key_GND, value_GND, runs, scale)  # type: ignore[no-any-return]


class _PathAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, runs: Sequence[Run], scale: float) -> Tensor:
        heads, tokens, size = query.shape
        shared = key.shape[0]
        query = (query * scale).unflatten(0, (shared, heads // shared))
        out = query.new_empty(tokens, shared, heads // shared, value.shape[-1])
        kept: list[Tensor] = []
        ctx.keeps = any(ctx.needs_input_grad) and heads * _products(runs) <= KEPT_ELEMENTS
        for run in runs:
            keys, values = _along(key, run), _along(value, run)
            for start, stop in run.blocks:
                seen = run.prefix_tokens + stop - run.start
                queries = query[:, :, start:stop].reshape(shared, -1, size)
                found = _probabilities(queries, keys[:, :seen], stop - start)
                block = torch.bmm(found, values[:, :seen]).view(shared, -1, stop - start, value.shape[-1])
                out[start:stop] = block.permute(2, 0, 1, 3)
                if ctx.keeps:
                    kept.append(found)
        ctx.save_for_backward(query, key, value, *kept)
        ctx.runs, ctx.scale = runs, scale
        return out.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, *kept = ctx.saved_tensors
        shared, groups, _, size = query.shape
        grad_out = grads[0].unflatten(1, (shared, groups)).permute(1, 2, 0, 3)
        grad_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        blocks = iter(kept)
        for run in ctx.runs:
            keys, values = _along(key, run), _along(value, run)
            grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
            for start, stop in run.blocks:
                seen = run.prefix_tokens + stop - run.start
                queries = query[:, :, start:stop].reshape(shared, -1, size)
                found = next(blocks) if ctx.keeps else _probabilities(queries, keys[:, :seen], stop - start)
                grad_block = grad_out[:, :, start:stop].reshape(shared, -1, values.shape[-1])
                grad_values[:, :seen] += torch.bmm(found.transpose(1, 2), grad_block)
                grad_found = torch.bmm(grad_block, values[:, :seen].transpose(1, 2))
                grad_scores = torch.ops.aten._softmax_backward_data(grad_found, found, -1, found.dtype)
                grad_query[:, :, start:stop] = torch.bmm(grad_scores, keys[:, :seen]).view(shared, groups, -1, size)
                grad_keys[:, :seen] += torch.bmm(grad_scores.transpose(1, 2), queries)
            _spread(grad_keys, grad_key, run)
            _spread(grad_values, grad_value, run)
        return grad_query.flatten(0, 1).mul_(ctx.scale), grad_key, grad_value, None, None


def _products(runs: Sequence[Run]) -> int:
    """Pairs of a query and a key."""
    blocks = ((run, start, stop) for run in runs for start, stop in run.blocks)
    return sum((stop - start) * (run.prefix_tokens + stop - run.start) for run, start, stop in blocks)


def _probabilities(queries: Tensor, keys: Tensor, count: int) -> Tensor:
    """Of a block whose last `count` keys are its own tokens, those of each head below each other."""
    scores = torch.bmm(queries, keys.transpose(1, 2))
    own = scores.unflatten(1, (-1, count))[..., -count:]
    own += torch.full((count, count), -torch.inf, dtype=scores.dtype, device=scores.device).triu_(1)
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(queries.dtype)


def _along(states: Tensor, run: Run) -> Tensor:
    """Keys or values of the path of a run, its own at the end."""
    parts = [states[:, start:stop] for start, stop in (*run.prefix, (run.start, run.stop))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _spread(grads: Tensor, onto: Tensor, run: Run) -> None:
    """Add gradients of a path where its tokens stand: the inverse of `_along`."""
    place = 0
    for start, stop in (*run.prefix, (run.start, run.stop)):
        onto[:, start:stop] += grads[:, place : place + stop - start]
        place += stop - start
