"""Rollouts of a step: their lengths, numbers of tool calls and tool delays.

Lengths are heavy-tailed and similar within a group: a log-normal, truncated at the limit, half of
whose log-variance belongs to the prompt (Seer, arXiv 2511.14617). A tool's delay is log-normal,
too. All are drawn from one seed, so that every policy gets the same work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Workload:
    """Distribution of the rollouts. The defaults are those of stage two of rStar2-Agent, as far as
    its paper gives them.
    """

    groups: int = 512
    group_size: int = 32
    prompt_tokens: int = 200
    mean_response: float = 5_000
    """Mean tokens after the prompt, tool results included, after truncation."""
    max_response: int = 12_000
    sigma: float = 0.7
    """Standard deviation of the logarithm of the response, before truncation."""
    group_share: float = 0.5
    """Share of the log-variance that rollouts of one prompt have in common."""
    calls: float = 2.7
    """Mean number of tool calls of a rollout. The number is drawn from a Poisson distribution, with
    at most `max_calls`.
    """
    max_calls: int = 10
    tool_tokens: int = 100
    """Mean tokens of a tool's result. The number is drawn from half to one and a half times the
    mean.
    """
    tool_seconds: float = 0.3
    """Mean delay of a call before truncation."""
    tool_sigma: float = 1.5
    tool_max_seconds: float = 10.0

    @property
    def count(self) -> int:
        return self.groups * self.group_size

    def times(self, factor: float) -> Workload:
        """Workload with `factor` times the groups."""
        return replace(self, groups=max(1, round(self.groups * factor)))


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens that a rollout samples in one turn, and the tool call after them. The last turn has no
    tool call.
    """

    sampled: int
    tool_tokens: int
    tool_seconds: float


@dataclass(frozen=True, slots=True)
class Planned:
    """Rollout whose lengths only the simulator knows."""

    name: str
    group: str
    prompt_tokens: int
    turns: tuple[Turn, ...]

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.sampled for turn in self.turns)

    @property
    def response_tokens(self) -> int:
        return sum(turn.sampled + turn.tool_tokens for turn in self.turns)


def responses(work: Workload, chance: np.random.Generator) -> Any:
    """Lengths after the prompt, by group and rollout."""
    median = _median(work)
    shared = chance.standard_normal((work.groups, 1)) * work.group_share**0.5
    own = chance.standard_normal((work.groups, work.group_size)) * (1 - work.group_share) ** 0.5
    lengths = median * np.exp(work.sigma * (shared + own))
    return np.clip(np.rint(lengths), 1, work.max_response).astype(int)


def drawn(work: Workload, seed: int) -> list[Planned]:
    """All rollouts of a step, group by group."""
    chance = np.random.default_rng(seed)
    lengths = responses(work, chance)
    return [
        Planned(f"{g}-{i}", str(g), work.prompt_tokens, _turns(work, int(lengths[g, i]), chance))
        for g in range(work.groups)
        for i in range(work.group_size)
    ]


def _turns(work: Workload, length: int, chance: np.random.Generator) -> tuple[Turn, ...]:
    calls = min(
        int(chance.poisson(work.calls)), work.max_calls, length // (2 * work.tool_tokens + 1)
    )
    tools = chance.integers(work.tool_tokens // 2, work.tool_tokens * 3 // 2 + 1, calls)
    seconds = work.tool_seconds * np.exp(
        work.tool_sigma * chance.standard_normal(calls) - work.tool_sigma**2 / 2
    )
    sampled = length - int(tools.sum())
    cuts = (
        np.sort(chance.choice(sampled - 1, calls, replace=False) + 1) if calls else np.empty(0, int)
    )
    pieces = np.diff(np.concatenate([[0], cuts, [sampled]]))
    after = [*zip(tools, np.minimum(seconds, work.tool_max_seconds), strict=True), (0, 0.0)]
    return tuple(
        Turn(int(n), int(tokens), float(s)) for n, (tokens, s) in zip(pieces, after, strict=True)
    )


def _median(work: Workload) -> float:
    """Median of the log-normal whose mean after truncation is `mean_response`."""
    quantiles = np.exp(
        work.sigma * np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)])
    )
    low, high = work.mean_response / 8, float(work.max_response)
    for _ in range(60):
        middle = (low + high) / 2
        short = np.minimum(middle * quantiles, work.max_response).mean() < work.mean_response
        low, high = (middle, high) if short else (low, middle)
    return low
