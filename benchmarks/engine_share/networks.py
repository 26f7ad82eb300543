"""Networks of several sizes with random weights, and an engine that returns recorded answers.

A random network would never call a tool. So the network runs in full and samples as always, then
the recorded token replaces the sampled one, in the cache and for the caller. Every size has the
same conversations, token by token.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np

from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.testing import tiny_network

__all__ = ["SIZES", "Recorded", "RecordedEngine", "network"]

Recorded = dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
"""Prompts and answers by the request's seed, which is unique."""

SIZES: dict[str, dict[str, int]] = {
    "0.5M": {},
    "5M": {"hidden_size": 256, "num_hidden_layers": 6},
    "25M": {"hidden_size": 512, "num_hidden_layers": 8},
    "100M": {"hidden_size": 768, "num_hidden_layers": 14},
}
"""Changes to the shipped policy's configuration, by size. The feed-forward layer is three times as
wide as the hidden one, as in the shipped policy. A head has 64 numbers, and two heads share keys
and values.
"""


def network(size: str) -> Any:
    """Qwen3 with random weights in float32."""
    changed: dict[str, Any] = dict(SIZES[size])
    if changed:
        hidden, layers = changed["hidden_size"], changed["num_hidden_layers"]
        changed |= {
            "intermediate_size": 3 * hidden,
            "head_dim": 64,
            "layer_types": ["full_attention"] * layers,
        }
        changed |= {"num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 128}
    return tiny_network(**changed)


class RecordedEngine(TransformersEngine):
    """Engine that does its full work, and returns recorded answers."""

    def __init__(self, size: str, codec: Any, recorded: Recorded, threads: int) -> None:
        super().__init__(network(size), codec, name=size, threads=threads)
        self.recorded = recorded
        self.steps = 0

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Submit a request. Raise `RuntimeError` if its prompt differs from the recorded one, e.g.
        by another tool result.
        """
        seed = request.sampling.seed
        if seed is None or self.recorded[seed][0] != request.prompt_ids:
            raise RuntimeError("The prompt differs from the recorded one.")
        return super().submit(request)

    def _end_answers(self, row_S: Any, token_S: Any) -> None:
        rows = self._rows
        self.steps += 1
        newest_S = rows.known[row_S] - 1
        places = zip(row_S.tolist(), (newest_S - rows.start[row_S]).tolist(), strict=True)
        answers = [
            self.recorded[rows.jobs[row].request.sampling.seed][1][place] for row, place in places
        ]
        recorded_S = np.asarray(answers, token_S.dtype)
        rows.tokens[row_S, newest_S] = recorded_S
        super()._end_answers(row_S, recorded_S)
