"""Iteration costs of an engine, measured in a few seconds before it takes rollouts.

Two slopes are measured. Iterations with more and more sequences show the fixed cost and the cost of
each added sequence. The latter is mostly the server's bookkeeping, since even a slow engine reads
its weights for 16 sequences as fast as for one. A recomputed token costs something else, which
prompts of growing length show.

Whole requests are timed, as the client sees them. A call that samples 1 + k tokens takes k
iterations longer than a call that samples 1, and the time to send and to wait cancels out. The
server's histograms would make this subtraction unnecessary, but their buckets are too coarse. The
shortest time of a call counts, since other load of the machine only makes a call longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

__all__ = ["Ask", "IterationCosts", "fit_iterations", "measure_costs", "random_prompt"]


@dataclass(frozen=True, slots=True)
class IterationCosts:
    """Measured costs of an engine's iterations: about max(weights, sequences x token) +
    overhead.
    """

    weights_s: float
    """Seconds to read the weights once, for any number of sequences."""
    overhead_s: float
    """Fixed overhead of an iteration in seconds."""
    token_s: float
    """Seconds that each sequence adds for the token that it samples."""
    prompt_token_s: float
    """Seconds of computation per token of a long prompt, and per recomputed token."""

    def recompute_share(self, sequences: float) -> float:
        """Ratio of the time to recompute one token of each of `sequences` to an iteration that
        samples one.
        """
        iteration = max(self.weights_s, self.token_s * sequences) + self.overhead_s
        return self.prompt_token_s * sequences / iteration


Ask = Callable[[Sequence[Sequence[int]], int], float]
"""Send several prompts at once, and return the seconds until each has the given number of sampled
tokens.
"""

_SEQUENCES = (1, 4, 16)
_PROMPT = 8
"""Tokens of a short prompt: fewer than a cache block holds, so that no call finds a prompt of an
earlier call in the cache.
"""
_ITERATIONS = (4, 16)
"""Minimum and maximum number of iterations. Between the two, the number is chosen so that the
iterations with one sequence take `_ITERATIONS_SECONDS`.
"""
_ITERATIONS_SECONDS = 0.4
_PROMPTS = (16, 1_024)
"""Tokens of the first prompt and of the longest. With a thousand tokens any GPU takes longer to
compute than to read its weights.
"""
_PROMPT_SECONDS = 0.25
"""Seconds longer than the first prompt after which prompts stop growing."""
_BUDGET_SECONDS = 2.0
"""Time budget of each slope, up to which sizes and repeats are added."""
_REPEATS = 5
_TINY = 1e-9
Call = TypeVar("Call")
_CHANCE = random.Random()


def random_prompt(tokens: int) -> list[int]:
    """Random prompt, which no cache contains, of ids that every vocabulary has."""
    return [_CHANCE.randrange(3, 250) for _ in range(tokens)]


def fit_iterations(seconds: Mapping[int, float]) -> IterationCosts:
    """Fit iteration costs to seconds by number of sequences: a line, whose slope is the cost of a
    sequence.

    `weights_s` and `overhead_s` are each only as precise as the difference between the time of one
    sequence and the line's intercept; their sum is right. A slope of 0 or less is noise and
    replaced by a tiny one, as is the slope of a single point. A token of a prompt is assumed to
    cost as much as a sampled token.
    """
    mean_n = sum(seconds) / len(seconds)
    mean_s = sum(seconds.values()) / len(seconds)
    spread = sum((n - mean_n) ** 2 for n in seconds)
    slope = sum((n - mean_n) * (s - mean_s) for n, s in seconds.items()) / spread if spread else 0.0
    overhead = max(0.0, mean_s - max(0.0, slope) * mean_n)
    token = max(_TINY, slope)
    return IterationCosts(max(_TINY, seconds[min(seconds)] - overhead), overhead, token, token)


def measure_costs(
    ask: Ask, *, max_running: int, kv_tokens: int, max_length: int | None
) -> IterationCosts:
    """Measure the costs of an idle engine with the given limits; this takes some seconds.

    A slow engine gets fewer tokens, fewer sequences and fewer requests.
    """
    ask([random_prompt(_PROMPT)], 2)  # the first call may be slow
    fewest, most = _ITERATIONS
    pace = max(_TINY, ask([random_prompt(_PROMPT)], 1 + fewest)) / (1 + fewest)
    steps = round(min(most, max(fewest, _ITERATIONS_SECONDS / pace)))
    room = max(1, min(max_running, kv_tokens // (2 * (_PROMPT + 1 + steps))))
    iterations = fit_iterations(
        _by_sequences(ask, sorted({min(n, room) for n in _SEQUENCES}), steps)
    )
    longest = min(_PROMPTS[1], kv_tokens // 2, (max_length or kv_tokens) - 1)
    return replace(iterations, prompt_token_s=_prompt_token(ask, longest) or iterations.token_s)


def _by_sequences(ask: Ask, sizes: Sequence[int], steps: int) -> dict[int, float]:
    """Seconds per iteration by number of sequences, as far as the budget allows."""

    def seconds(call: tuple[int, int]) -> float:
        n, sampled = call
        return ask([random_prompt(_PROMPT) for _ in range(n)], sampled)

    found = _shortest([(n, sampled) for n in sizes for sampled in (1, 1 + steps)], seconds)
    return {
        n: max(_TINY, found[n, 1 + steps] - found[n, 1]) / steps
        for n in sizes
        if (n, 1 + steps) in found
    }


def _prompt_token(ask: Ask, longest: int) -> float | None:
    """Seconds that each token adds to the time of a long prompt (None if no two lengths fit)."""

    def seconds(tokens: int) -> float:
        return ask([random_prompt(tokens)], 1)

    tokens = _PROMPTS[0]
    first = taken = seconds(tokens)
    while taken < first + _PROMPT_SECONDS and 2 * tokens <= longest:
        tokens *= 2
        taken = seconds(tokens)
    if tokens == _PROMPTS[0]:
        return None
    found = _shortest([tokens // 2, tokens], seconds)
    return max(_TINY, (found[tokens] - found[tokens // 2]) / (tokens - tokens // 2))


def _shortest(calls: Sequence[Call], seconds: Callable[[Call], float]) -> dict[Call, float]:
    """Shortest time of each call, measured in rounds. The first two calls are made regardless of
    the budget.
    """
    found: dict[Call, float] = {}
    spent = 0.0
    for number, call in enumerate([*calls] * _REPEATS):
        if number >= 2 and spent > _BUDGET_SECONDS:
            break
        taken = seconds(call)
        found[call], spent = min(taken, found.get(call, taken)), spent + taken
    return found
