"""What an iteration of an engine costs, measured in a few seconds before the engine takes rollouts.

Two slopes. Iterations with more and more sequences say what one costs anyway, and what each
sequence adds: mostly the server's own work, since even a slow engine reads its weights for 16 as
fast as for one. What a token costs that is computed again is another thing, and prompts of growing
length say it.

Times are those of whole requests, as the client sees them: a call that samples 1 + k tokens takes k
iterations longer than one that samples 1, and sending and waiting are in both. A server's own
histograms would spare the subtraction, but their buckets are as coarse as what is to be measured.
The shortest time of a call counts: what else a machine does can only add to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

__all__ = ["Ask", "IterationCosts", "fit_iterations", "measure_costs", "random_prompt"]


@dataclass(frozen=True, slots=True)
class IterationCosts:
    """What an engine's iterations cost, measured: about max(weights,
    sequences x token) + overhead.
    """

    weights_s: float
    """Seconds to read the weights once, which one sequence pays as well as many."""
    overhead_s: float
    """Seconds that an iteration takes beside that, whatever is in it."""
    token_s: float
    """Seconds that each sequence adds for the token that it samples."""
    prompt_token_s: float
    """Seconds of computation for a token of a long prompt, as for each that is computed again."""

    def recompute_share(self, sequences: float) -> float:
        """What one token more of each of `sequences` costs, computed again, over an iteration that
        samples one.
        """
        iteration = max(self.weights_s, self.token_s * sequences) + self.overhead_s
        return self.prompt_token_s * sequences / iteration


Ask = Callable[[Sequence[Sequence[int]], int], float]
"""Asks for several prompts at once; seconds until each has so many sampled tokens."""

_SEQUENCES = (1, 4, 16)
_PROMPT = 8
"""Tokens: less than a block of a cache, so that no call finds what another has left."""
_ITERATIONS = (4, 16)
"""The fewest and the most, as many as take `_ITERATIONS_SECONDS` with one sequence."""
_ITERATIONS_SECONDS = 0.4
_PROMPTS = (16, 1_024)
"""Tokens of the first prompt and of the longest: at a thousand any GPU computes for longer than it
reads.
"""
_PROMPT_SECONDS = 0.25
"""Prompts grow until one takes so much longer than the first."""
_BUDGET_SECONDS = 2.0
"""Of each slope: sizes and repeats are added until so much is spent."""
_REPEATS = 5
_TINY = 1e-9
Call = TypeVar("Call")
_CHANCE = random.Random()


def random_prompt(tokens: int) -> list[int]:
    """Of ids that every vocabulary has; no cache has seen it."""
    return [_CHANCE.randrange(3, 250) for _ in range(tokens)]


def fit_iterations(seconds: Mapping[int, float]) -> IterationCosts:
    """What costs an iteration has, by those of a number of sequences: a line, whose slope is what a
    sequence adds.

    Seconds to read the weights and the rest are told apart no further than one sequence and the
    line's beginning are; their sum is right. A slope of 0 or less is noise, and taken as tiny, as
    is that of a single point. A prompt's token is taken to cost what a sampled one does.
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
    """Ask an idle engine, whose limits are given, until its costs are known: some seconds.

    A slow one is asked for fewer tokens, with fewer sequences, and less often.
    """
    ask([random_prompt(_PROMPT)], 2)  # what is slow only once
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
    """Seconds of an iteration, with one sequence and with more as far as the budget goes."""

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
    """Seconds that a token adds to a long prompt; None where no two lengths fit."""

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
    """The shortest time of each call, in rounds; the first two are made whatever they take."""
    found: dict[Call, float] = {}
    spent = 0.0
    for number, call in enumerate([*calls] * _REPEATS):
        if number >= 2 and spent > _BUDGET_SECONDS:
            break
        taken = seconds(call)
        found[call], spent = min(taken, found.get(call, taken)), spent + taken
    return found
