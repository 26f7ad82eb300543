"""Usage of model calls, and the budget that remains.

Usage is computed only from recorded answers: their number, sampled tokens, start and end times, and
price. If a node read a clock instead, it would decide differently in a replay.

Time is the time during which recorded model and tool calls of this run were running, where parallel
calls count once. Pauses do not count: the time between a kill and the resume, the time while a
person is asked, and the time before a fork.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.config import get_config

# before Python 3.12, LangGraph's JSON schemas need the TypedDict of typing_extensions
from typing_extensions import TypedDict

from hrm_agent.errors import ConfigError
from hrm_agent.models.call_recording import ENDED_AT, STARTED_AT, THREAD_ID
from hrm_agent.trajectory import StopReason, active_recording

__all__ = [
    "BudgetShare",
    "LoopBudget",
    "Prices",
    "Remaining",
    "Usage",
    "merge_usage",
    "refuse_limits",
    "remaining",
    "reset_usage",
    "sampled_tokens",
    "seconds_of",
    "seconds_worked",
    "spent_on",
]

_SPANS = 32
"""Number of newest time spans that are kept separately, since later spans may overlap with them. Of
older spans only the sum is kept.
"""
Prices = Mapping[str, tuple[float, float]]
"""Model name as in the model's answers (`*` for all others) -> prices of a million prompt tokens
and of a million completion tokens.
"""


class Usage(TypedDict, total=False):
    """Usage of a run so far (empty before its first call)."""

    calls: int
    """Model calls made."""
    tokens: int
    """Completion tokens sampled."""
    cost: float
    """Price of the calls, in the currency of the prices."""
    thread: str
    """Thread on which the time was spent (empty outside of threads)."""
    spans: list[list[float]]
    """Newest time spans in which models or tools were running, as Unix times (start, end), in order
    and without overlaps.
    """
    seconds: float
    """Sum of the time spans before `spans`, in seconds."""
    anew: bool
    """True if a new run begins, so that this usage replaces the thread's earlier usage instead of
    being added to it.
    """


@dataclass(frozen=True, slots=True)
class Remaining:
    """Budget that is left."""

    calls: int
    """Model calls left."""
    tokens: int
    """Completion tokens left."""
    seconds: float
    """Time left during which models and tools may be running, in seconds."""
    cost: float | None
    """Money left, in the currency of the prices (None: no limit)."""

    def used_up(self, *, calls: int = 0) -> StopReason | None:
        """First limit that is reached (None if no limit is). `calls`: number of calls that are
        reserved for later.
        """
        if self.calls <= calls:
            return StopReason.MAX_CALLS
        if self.tokens <= 0:
            return StopReason.MAX_TOKENS
        if self.seconds <= 0:
            return StopReason.MAX_SECONDS
        return StopReason.MAX_COST if self.cost is not None and self.cost <= 0 else None

    def share(self, parts: int, *, calls: int = 0) -> Remaining:
        """Budget of each of `parts` parallel branches. Time is not divided. `calls`: number of
        calls that are reserved for later.
        """
        cost = None if self.cost is None else self.cost / parts
        return Remaining((self.calls - calls) // parts, self.tokens // parts, self.seconds, cost)

    def shares(self, parts: int, *, calls: int, answer_tokens: int) -> list[BudgetShare]:
        """Budgets, as plain data, of as many parallel branches as the budget allows, at most
        `parts`.

        `calls`, `answer_tokens`: calls and tokens that are reserved for later. Of the tokens, at
        most half are reserved.
        """
        if self.used_up(calls=calls):
            return []
        left = replace(self, tokens=self.tokens - min(answer_tokens, self.tokens // 2))
        count = min(parts, left.calls - calls, left.tokens)
        share = left.share(max(count, 1), calls=calls)
        task = BudgetShare(
            tokens=share.tokens, turns=share.calls, seconds=share.seconds, cost=share.cost
        )
        return [task] * max(count, 0)


class BudgetShare(TypedDict):
    """Budget of one of several parallel branches, as LangGraph sends it."""

    tokens: int
    """Completion tokens."""
    turns: int
    """Model calls."""
    seconds: float
    """Time during which models and tools are running, in seconds."""
    cost: float | None
    """Money, in the currency of the prices (None: no limit)."""


@dataclass(frozen=True, slots=True)
class LoopBudget:
    """Budget of one loop of answers and tool calls."""

    max_turns: int
    """Model calls, the last one included."""
    max_tokens: int
    """Completion tokens over all turns."""
    max_seconds: float
    """Time during which models and tools are running, in seconds."""
    max_cost: float | None = None
    """Money, in the currency of the prices (None: no limit)."""
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])
    """Model name as in the model's answers (`*` for all others) -> prices of a million prompt
    tokens and of a million completion tokens.
    """

    @classmethod
    def of(cls, share: BudgetShare, max_turns: int, prices: Prices) -> LoopBudget:
        """Budget of a branch from its share, with at most `max_turns` calls."""
        return cls(
            min(max_turns, share["turns"]), share["tokens"], share["seconds"], share["cost"], prices
        )


class BudgetLimits(Protocol):
    """Budgets of a run context."""

    @property
    def max_calls(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_seconds(self) -> float: ...
    @property
    def max_cost(self) -> float | None: ...


def remaining(limits: BudgetLimits, spent: Usage) -> Remaining:
    """Limits minus usage."""
    return Remaining(
        limits.max_calls - spent.get("calls", 0),
        limits.max_tokens - spent.get("tokens", 0),
        limits.max_seconds - seconds_of(spent),
        None if limits.max_cost is None else limits.max_cost - spent.get("cost", 0.0),
    )


def spent_on(messages: Iterable[BaseMessage], prices: Prices) -> Usage:
    """Usage of the answers among `messages`, with the time of answers and tool results."""
    messages = list(messages)
    answers = [message for message in messages if isinstance(message, AIMessage)]
    spent = Usage(
        calls=len(answers),
        tokens=sampled_tokens(answers),
        cost=sum(_cost(a, prices) for a in answers),
    )
    thread, spans = _work(messages)
    return spent | Usage(thread=thread, spans=spans) if spans else spent


def seconds_worked(messages: Iterable[BaseMessage]) -> float:
    """Seconds during which the models and tools that made `messages` were running, on the thread of
    the newest message that has times.
    """
    return _length(_work(messages)[1])


def _work(messages: Iterable[BaseMessage]) -> tuple[str, list[list[float]]]:
    """Thread of the newest message that has times, and time spans of all messages of
    this thread.
    """
    told = [
        message.response_metadata for message in messages if STARTED_AT in message.response_metadata
    ]
    thread = told[-1].get(THREAD_ID, "") if told else ""
    return thread, _joined(
        [[one[STARTED_AT], one[ENDED_AT]] for one in told if one.get(THREAD_ID, "") == thread]
    )


def _joined(spans: Iterable[list[float]]) -> list[list[float]]:
    """Time spans in order, in which overlapping spans are joined."""
    found: list[list[float]] = []
    for began, ended in sorted(spans):
        if found and began <= found[-1][1]:
            found[-1][1] = max(found[-1][1], ended)
        else:
            found.append([began, ended])
    return found


def _length(spans: Iterable[list[float]]) -> float:
    return sum(ended - began for began, ended in spans)


def merge_usage(old: Usage, new: Usage) -> Usage:
    """Sum of two usages (only `new` if that begins a new run). Time that was spent on another
    thread, before a fork, is not counted.
    """
    if not old or new.get("anew"):
        return new
    both = Usage(
        calls=old.get("calls", 0) + new.get("calls", 0),
        tokens=old.get("tokens", 0) + new.get("tokens", 0),
        cost=old.get("cost", 0.0) + new.get("cost", 0.0),
    )
    timed = [spent for spent in (old, new) if "thread" in spent]
    if not timed:
        return both if (earlier := _earlier_seconds(old)) == 0 else both | Usage(seconds=earlier)
    thread = timed[-1].get("thread", "")
    timed = [spent for spent in timed if spent.get("thread") == thread]
    spans = _joined(span for spent in timed for span in spent.get("spans", ()))
    settled = sum(spent.get("seconds", 0.0) for spent in timed) + _length(spans[:-_SPANS])
    if "thread" not in old:
        settled += _earlier_seconds(old)
    return both | Usage(thread=thread, spans=spans[-_SPANS:], seconds=settled)


def seconds_of(spent: Usage) -> float:
    """Time used so far on the running task's thread, in seconds."""
    here = _running_thread()
    if here and spent.get("thread", here) != here:
        return 0.0
    return (
        _earlier_seconds(spent)
        if "thread" not in spent
        else spent.get("seconds", 0.0) + _length(spent.get("spans", ()))
    )


def _earlier_seconds(spent: Usage) -> float:
    """Seconds of a usage without a thread. An earlier version stored them as the time from the
    first call to the last.
    """
    told = cast("Mapping[str, float]", spent)
    return told.get("seconds", 0.0) + told.get("ended", 0.0) - told.get("began", 0.0)


def _running_thread() -> str:
    """Thread to which the current step belongs (empty outside of a graph with a thread)."""
    try:
        metadata: Mapping[str, Any] = get_config().get("metadata") or {}
    except RuntimeError:
        return ""
    thread = str(metadata.get("thread_id", ""))
    return (
        active_recording().thread_of_step(thread, int(metadata.get("langgraph_step", 0)))
        if thread
        else ""
    )


def reset_usage(spent: Usage) -> Usage:
    """Mark a usage so that `merge_usage` replaces the thread's earlier usage by it."""
    return spent | Usage(anew=True)


def refuse_limits(given: Any, **least: float) -> None:
    """Raise `ConfigError` for a limit that is not a number, or is below its minimum in `least`. If
    the minimum is an int, the limit must be a whole number.

    `max_cost` and `compact_at` may be None. Prices are checked, too.
    """
    for name, lowest in least.items():
        value = getattr(given, name)
        whole = isinstance(lowest, int)
        if not (_is_number(value, whole) and value >= lowest) and not (
            name in ("max_cost", "compact_at") and value is None
        ):
            kind = "a whole number" if whole else "a number"
            raise ConfigError(f"{name} is {value!r}.", f"Give {kind} of {lowest:g} or more.")
    for model, price in given.prices.items():
        if not (
            isinstance(price, (list, tuple))
            and len(price) == 2
            and all(_is_number(p, False) for p in price)
        ):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            raise ConfigError(
                f"The price of {model!r} is {price!r}.",
                "Give two numbers: the prices of a million prompt tokens and completion tokens.",
            )


def _is_number(value: Any, whole: bool) -> bool:
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)


def sampled_tokens(messages: Iterable[BaseMessage]) -> int:
    """Completion tokens of all answers. An answer without usage metadata counts as 0."""
    usages = [message.usage_metadata for message in messages if isinstance(message, AIMessage)]
    return sum(usage["output_tokens"] for usage in usages if usage)


def _cost(answer: AIMessage, prices: Prices) -> float:
    """Cost of an answer as its provider reports it, else by the price list."""
    usage: Any = answer.response_metadata.get("token_usage")
    said = cast("Mapping[str, Any]", usage).get("cost") if isinstance(usage, Mapping) else None
    if isinstance(said, (int, float)):
        return float(said)
    price = prices.get(str(answer.response_metadata.get("model_name")), prices.get("*"))
    if price is None or answer.usage_metadata is None:
        return 0.0
    tokens = answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]
    return sum(number * each for number, each in zip(tokens, price, strict=True)) / 1e6
