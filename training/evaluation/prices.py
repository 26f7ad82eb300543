"""What runs cost: tokens as the models reported them, times a price a million; or what a provider
says itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hrm_agent.errors import ConfigError
from hrm_agent.trajectory import Call, CallUsage

__all__ = ["Price", "Prices", "read_prices", "reported_cost", "usage"]

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens, in any currency."""

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
    """By the name that stands on the call; the empty name is that of all others."""

    def find(self, model: str) -> Price | None:
        return self.by_model.get(model) or self.by_model.get("")


def read_prices(texts: Iterable[str]) -> Prices:
    """`PROMPT,COMPLETION` for all models, `MODEL=PROMPT,COMPLETION` for one.
    Raises `ConfigError`.
    """
    return Prices(dict(_price(text) for text in texts))


def _price(text: str) -> tuple[str, Price]:
    model, _, numbers = text.rpartition("=")
    match = re.fullmatch(r"([0-9]*\.?[0-9]+),([0-9]*\.?[0-9]+)", numbers.strip())
    if match is None:
        raise ConfigError(
            f"--price {text!r} is not a price.",
            "Write PROMPT,COMPLETION, prices of a million tokens: --price 0.15,0.60, or --price"
            " MODEL=0.15,0.60.",
        )
    return model, Price(float(match[1]), float(match[2]))


def usage(call: Call) -> tuple[int, int]:
    """Tokens that the model read, as it reported them (0 where it did not), and those that it
    sampled.
    """
    used = call.used or CallUsage()
    return used.input_tokens or 0, used.output_tokens or 0


def reported_cost(call: Call) -> float:
    """The provider's own figure; nan where it gives none."""
    cost = call.used.cost if call.used is not None else None
    return math.nan if cost is None else cost
