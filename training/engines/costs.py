"""Iteration costs of an engine, measured in a few seconds before it takes rollouts.

There are two slopes. Iterations with more and more sequences show the fixed cost, and what each
sequence adds: mostly the server's own work, since even a slow engine reads its weights for 16 as
fast as for one. The cost of a recomputed token differs, and is measured by prompts of growing
length.

Times are those of whole requests, as the client sees them: a call that samples 1 + k tokens takes k
iterations longer than one that samples 1, and sending and waiting are in both. A server's own
histograms would spare the subtraction, but their buckets are too coarse. The shortest time of a
call counts, since other load of a machine can only add to it.
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
"""Tokens of a short prompt: less than a cache block, so that no call finds what another has left.
"""
_ITERATIONS = (4, 16)
"""Minimum and maximum number of iterations. Between them, as many as take `_ITERATIONS_SECONDS`
with one sequence.
"""
_ITERATIONS_SECONDS = 0.4
_PROMPTS = (16, 1_024)
"""Tokens of the first prompt and of the longest. At a thousand any GPU computes for longer than it
reads.
"""
_PROMPT_SECONDS = 0.25
"""Time over the first prompt's at which prompts stop growing."""
_BUDGET_SECONDS = 2.0
"""Time budget of each slope, up to which sizes and repeats are added."""
_REPEATS = 5
_TINY = 1e-9
Call = TypeVar("Call")
_CHANCE = random.Random()


def random_prompt(tokens: int) -> list[int]:
    """Random prompt of ids that every vocabulary has, which no cache contains."""
    return [_CHANCE.randrange(3, 250) for _ in range(tokens)]


def fit_iterations(seconds: Mapping[int, float]) -> IterationCosts:
    """Fit iteration costs to seconds by number of sequences: a line, whose slope is the cost of a
    sequence.

    The split between reading the weights and the overhead is only as precise as the difference
    between one sequence and the line's intercept; their sum is right. A slope of 0 or less is
    noise, and taken as tiny, as is the slope of a single point. A prompt's token is assumed to cost
    what a sampled one does.
    """
    mean_n, mean_s = sum(seconds) / len(seconds), sum(seconds.values()) / len(seconds)
    spread = sum((n - mean_n) ** 2 for n in seconds)
    slope = sum((n - mean_n) * (s - mean_s) for n, s in seconds.items()) / spread if spread else 0.0
    overhead = max(0.0, mean_s - max(0.0, slope) * mean_n)
    token = max(_TINY, slope)
    return IterationCosts(max(_TINY, seconds[min(seconds)] - overhead), overhead, token, token)


def measure_costs(
    ask: Ask, *, max_running: int, kv_tokens: int, max_length: int | None
) -> IterationCosts:
    """Measure the costs of an idle engine with the given limits, in some seconds.

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
    """Seconds that a token adds to a long prompt (None if no two lengths fit)."""

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
