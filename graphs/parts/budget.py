"""What answers have cost, and what remains of a budget.

All of it is computed from recorded answers: their number, sampled tokens, start and end times, and price. A node that
read a clock would decide differently in a replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from langchain_core.messages import AIMessage, BaseMessage
from typing_extensions import TypedDict  # typing's has too little for LangGraph's JSON schemas before Python 3.12

from hrm_agent.errors import ConfigError
from hrm_agent.models.call_recording import ENDED_AT, STARTED_AT
from hrm_agent.trajectory import StopReason

__all__ = [
    "Prices",
    "Remaining",
    "Usage",
    "merge_usage",
    "refuse_limits",
    "remaining",
    "reset_usage",
    "sampled_tokens",
    "seconds_of",
    "spent_on",
    "stop_clock",
]

Prices = Mapping[str, tuple[float, float]]
"""Model name as in its answers, or `*` for others -> prices of a million prompt tokens and completion tokens."""


class Usage(TypedDict, total=False):
    """What a run has used so far; empty before its first call."""

    calls: int
    """Model calls made."""
    tokens: int
    """Completion tokens sampled."""
    cost: float
    """In the currency of the prices."""
    began: float
    """Unix time at which the first call started."""
    ended: float
    """Unix time at which the last call ended."""
    seconds: float
    """Time used before `began`, if the run has waited for a person since."""
    anew: bool
    """Replaces the thread's earlier usage instead of adding to it: a new run begins."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What may still be used."""

    calls: int
    """Model calls left."""
    tokens: int
    """Completion tokens left."""
    seconds: float
    """Wall-clock time left, in seconds."""
    cost: float | None
    """Money left, in the currency of the prices; None: no limit."""

    def used_up(self, *, calls: int = 0) -> StopReason | None:
        """The first limit that is reached. `calls`: kept back for later."""
        if self.calls <= calls:
            return StopReason.MAX_CALLS
        if self.tokens <= 0:
            return StopReason.MAX_TOKENS
        if self.seconds <= 0:
            return StopReason.MAX_SECONDS
        return StopReason.MAX_COST if self.cost is not None and self.cost <= 0 else None

    def share(self, parts: int, *, calls: int = 0) -> Remaining:
        """The budget of each of `parts` parallel branches; time is not divided."""
        cost = None if self.cost is None else self.cost / parts
        return Remaining((self.calls - calls) // parts, self.tokens // parts, self.seconds, cost)


class BudgetLimits(Protocol):
    """The budgets of a run context."""

    @property
    def max_calls(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_seconds(self) -> float: ...
    @property
    def max_cost(self) -> float | None: ...


def remaining(limits: BudgetLimits, spent: Usage) -> Remaining:
    """The limits less what was spent."""
    return Remaining(
        limits.max_calls - spent.get("calls", 0),
        limits.max_tokens - spent.get("tokens", 0),
        limits.max_seconds - seconds_of(spent),
        None if limits.max_cost is None else limits.max_cost - spent.get("cost", 0.0),
    )


def spent_on(messages: Iterable[BaseMessage], prices: Prices) -> Usage:
    """What the answers among `messages` have cost."""
    answers = [message for message in messages if isinstance(message, AIMessage)]
    told = [answer.response_metadata for answer in answers if STARTED_AT in answer.response_metadata]
    spent = Usage(calls=len(answers), tokens=sampled_tokens(answers), cost=sum(_cost(a, prices) for a in answers))
    if told:
        spent |= Usage(began=min(one[STARTED_AT] for one in told), ended=max(one[ENDED_AT] for one in told))
    return spent


def merge_usage(old: Usage, new: Usage) -> Usage:
    """Both together."""
    if not old or new.get("anew"):
        return new
    both = Usage(
        calls=old.get("calls", 0) + new.get("calls", 0),
        tokens=old.get("tokens", 0) + new.get("tokens", 0),
        cost=old.get("cost", 0.0) + new.get("cost", 0.0),
    )
    if began := [spent["began"] for spent in (old, new) if "began" in spent]:
        both |= Usage(began=min(began), ended=max(spent["ended"] for spent in (old, new) if "ended" in spent))
    if waited := [spent["seconds"] for spent in (old, new) if "seconds" in spent]:
        both |= Usage(seconds=sum(waited))
    return both


def seconds_of(spent: Usage) -> float:
    """Time used so far, in seconds."""
    return spent.get("seconds", 0.0) + spent.get("ended", 0.0) - spent.get("began", 0.0)


def stop_clock(spent: Usage) -> Usage:
    """The same usage with its clock stopped until the next call."""
    return Usage(
        calls=spent.get("calls", 0),
        tokens=spent.get("tokens", 0),
        cost=spent.get("cost", 0.0),
        seconds=seconds_of(spent),
        anew=True,
    )


def reset_usage(spent: Usage) -> Usage:
    """The same usage, marked so that `merge_usage` puts it in the place of the thread's earlier usage."""
    return spent | Usage(anew=True)


def refuse_limits(given: Any, **least: float) -> None:
    """Raise `ConfigError` for a limit that is not a number, or below its least value (an int wants a whole number).

    `max_cost` may be None. The prices are checked too.
    """
    for name, lowest in least.items():
        value, whole = getattr(given, name), isinstance(lowest, int)
        if not (_is_number(value, whole) and value >= lowest) and not (name == "max_cost" and value is None):
            kind = "a whole number" if whole else "a number"
            raise ConfigError(f"{name} is {value!r}.", f"Give {kind} of {lowest:g} or more.")
    for model, price in given.prices.items():
        if not (isinstance(price, (list, tuple)) and len(price) == 2 and all(_is_number(p, False) for p in price)):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            raise ConfigError(
                f"The price of {model!r} is {price!r}.",
                "Give two numbers: the prices of a million prompt tokens and completion tokens.",
            )


def _is_number(value: Any, whole: bool) -> bool:
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)


def sampled_tokens(messages: Iterable[BaseMessage]) -> int:
    """Over all answers; one without usage metadata counts as 0."""
    usages = [message.usage_metadata for message in messages if isinstance(message, AIMessage)]
    return sum(usage["output_tokens"] for usage in usages if usage)


def _cost(answer: AIMessage, prices: Prices) -> float:
    """The provider's own figure, else by the price list."""
    usage: Any = answer.response_metadata.get("token_usage")
    said = cast("Mapping[str, Any]", usage).get("cost") if isinstance(usage, Mapping) else None
    if isinstance(said, (int, float)):
        return float(said)
    price = prices.get(str(answer.response_metadata.get("model_name")), prices.get("*"))
    if price is None or answer.usage_metadata is None:
        return 0.0
    tokens = answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]
    return sum(number * each for number, each in zip(tokens, price, strict=True)) / 1e6
