"""Steps that only sample, with shapes that repeat, so that a GPU can replay them as a CUDA graph.

A step of sampling launches some hundred kernels, and on a fast GPU the launches take longer than a
small model's arithmetic. A CUDA graph launches all kernels at once, but only with the shapes and
addresses that it was captured with. Therefore the number of rows is rounded up to a power of two,
each row reads the whole length of the cache, and tokens, positions and rows come in one buffer, from
which everything else follows on the device.

Rows that fill up the number write where the first row's next token will be, which overwrites it,
and their logits are dropped. On a CPU, the same steps run without a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hrm_agent.models.local.cache_rows import StepInput
from hrm_agent.models.local.kv_cache import KVPool
from hrm_agent.models.local.packed_attention import Mask, Masks, PackedStep

__all__ = ["CapturedSteps", "Forward"]

Forward = Callable[[Tensor, Tensor, PackedStep, Tensor], Tensor]
"""Logits [kept, vocabulary] of token ids [1, tokens] at positions [1, tokens] in a packed step, at
the tokens with the last argument's indices.
"""
_cuda: Any = torch.cuda


class CapturedSteps:
    """Sampling steps of an engine, by their number of rows and the size of the cache."""

    def __init__(self, forward: Forward, pool: KVPool, windows: Sequence[int | None]) -> None:
        """`windows`: as in `hrm_agent.models.local.cache_rows.Rows`."""
        self._forward = forward
        self._pool = pool
        self._windows = windows
        self._replays: dict[int, Callable[[Tensor], Tensor]] = {}
        self._captured_for = self._pool.resized
        self._memory: Any = None
        self._possible = True

    def logits(self, step: StepInput) -> Tensor | None:
        """Logits [rows, vocabulary] of a step (None if it cannot be captured)."""
        count = step.step.sampling
        if step.step.feeding is not None or not count or not self._possible:
            return None
        rows = min(1 << (count - 1).bit_length(), self._pool.rows)
        given = torch.zeros(3, rows, dtype=torch.int64, device=step.ids_1T.device)
        given[1] = step.positions_1T[0, 0] + 1
        given[0, :count], given[1, :count] = step.ids_1T[0], step.positions_1T[0]
        torch.arange(count, out=given[2, :count])
        replay = self._replay(rows, given)
        return None if replay is None else replay(given)[:count]

    def _replay(self, rows: int, given: Tensor) -> Callable[[Tensor], Tensor] | None:
        if self._pool.resized != self._captured_for:
            self._replays.clear()
            self._memory = None
            self._captured_for = self._pool.resized
        if rows not in self._replays:
            if not given.is_cuda:
                self._replays[rows] = self._run
            elif (graph := self._capture(given)) is not None:
                self._replays[rows] = graph
        return self._replays.get(rows)

    def _run(self, given: Tensor) -> Tensor:
        """Logits of tokens, positions and rows [3, rows]."""
        ids, positions, rows = given
        length = self._pool.length
        written = {
            heads: (
                (rows * (heads * length) + positions)[:, None]
                + torch.arange(heads, device=given.device) * length
            ).reshape(-1)
            for heads in self._pool.shape.heads
        }
        masks = {
            window: Masks((self._mask(positions, window),), None) for window in set(self._windows)
        }
        count = given.shape[1]
        step = PackedStep(
            self._pool, written, count, None, tuple(masks[each] for each in self._windows)
        )
        kept = torch.arange(count, device=given.device)
        return self._forward(ids[None], positions[None], step, kept)

    def _mask(self, positions: Tensor, window: int | None) -> Mask:
        seen = torch.arange(self._pool.length, device=positions.device)
        hidden = seen > positions[:, None]
        if window is not None:
            hidden |= seen <= positions[:, None] - window
        values = torch.zeros(hidden.shape, dtype=self._pool.shape.dtype, device=positions.device)
        values.masked_fill_(hidden, float("-inf"))
        return Mask(slice(0, len(positions)), slice(0, self._pool.length), values[:, None, None])

    def _capture(self, given: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Graph of a step (None if the model does what a graph cannot hold, such as waiting for the
        device; then no further step is captured).
        """
        held = given.clone()
        graph = _cuda.CUDAGraph()
        stream = _cuda.Stream()
        try:
            stream.wait_stream(_cuda.current_stream())
            with _cuda.stream(stream):
                self._run(held)  # chooses kernels and allocates, which a capture must not do
            _cuda.current_stream().wait_stream(stream)
            with _cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                logits = self._run(held)
        except RuntimeError as error:
            self._possible = False
            warnings.warn(f"Sampling goes on without CUDA graphs: {error}", stacklevel=2)
            return None
        self._memory = graph.pool()

        def replay(new: Tensor) -> Tensor:
            held.copy_(new)
            graph.replay()
            return logits

        return replay
