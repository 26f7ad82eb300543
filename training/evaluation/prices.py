"""Cost of runs: the tokens that models report times a price per million, or the cost that a
provider reports.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hrm_agent.errors import ConfigError
from hrm_agent.trajectory import Call, CallUsage

__all__ = ["Price", "Prices", "cost_of", "read_prices", "reported_cost", "usage"]

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Prices per million tokens, in any currency."""

    read: float
    """Price of a million prompt tokens."""
    sampled: float
    """Price of a million completion tokens."""

    def of(self, read: int, sampled: int) -> float:
        return (read * self.read + sampled * self.sampled) / _MILLION


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by model."""

    by_model: Mapping[str, Price]
    """Price by the model name of a call. The price of the empty name applies to all models that are
    not listed.
    """

    def find(self, model: str) -> Price | None:
        return self.by_model.get(model) or self.by_model.get("")


def read_prices(texts: Iterable[str]) -> Prices:
    """Parse prices: `PROMPT,COMPLETION` for all models, `MODEL=PROMPT,COMPLETION` for one. Raises
    `ConfigError`.
    """
    prices: dict[str, Price] = {}
    for text in texts:
        model, _, numbers = text.rpartition("=")
        match = re.fullmatch(r"([0-9]*\.?[0-9]+),([0-9]*\.?[0-9]+)", numbers.strip())
        if match is None:
            raise ConfigError(
                f"--price {text!r} is not a price.",
                "Write the prices of a million prompt and completion tokens, as --price 0.15,0.60"
                " or --price MODEL=0.15,0.60.",
            )
        prices[model] = Price(float(match[1]), float(match[2]))
    return Prices(prices)


def cost_of(tokens: Mapping[tuple[str, str], int], prices: Prices) -> float | None:
    """Cost of tokens by (model, kind), where kind is `read` or `sampled` (None if a model has no
    price).
    """
    cost = 0.0
    for model in {model for model, _ in tokens}:
        price = prices.find(model)
        if price is None:
            return None
        cost += price.of(tokens.get((model, "read"), 0), tokens.get((model, "sampled"), 0))
    return cost


def usage(call: Call) -> tuple[int, int]:
    """Numbers of prompt tokens and completion tokens that the model reported (0 if it reported
    none).
    """
    used = call.used or CallUsage()
    return used.input_tokens or 0, used.output_tokens or 0


def reported_cost(call: Call) -> float:
    """Cost reported by the provider (nan if none)."""
    cost = call.used.cost if call.used is not None else None
    return math.nan if cost is None else cost
