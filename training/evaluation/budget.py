"""Budget of model calls, in tokens or in money, that is never exceeded.

Before a request is sent, the most that it can cost is reserved: its prompt tokens (for a provider's
model, its bytes) and its limit of completion tokens. The reservation is written to a file first, so
that it counts even if the process is killed while the provider answers. When the answer is
recorded, its reported tokens replace the reservation. A request that fails, or whose provider
reports no tokens, counts as reserved.

A request that does not fit waits while others are open. If none is open, the budget is used up, and
no request is sent any more.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hrm_agent.errors import ConfigError, RunError
from hrm_agent.training.evaluation.prices import Prices, usage
from hrm_agent.trajectory import Call, RequestSize

__all__ = ["BudgetUsedUp", "Meter", "RequestBudget", "RequestTotal", "read_budget"]


@dataclass(frozen=True, slots=True)
class RequestBudget:
    """Limit of the total of all requests."""

    amount: float
    """Number of tokens, or money in the currency of the prices."""
    tokens: bool
    """True for tokens (prompt and completion), False for money."""

    def __str__(self) -> str:
        return f"{self.amount:,.0f} tokens" if self.tokens else f"{self.amount:g}"


class BudgetUsedUp(RunError):
    """The next request could exceed the budget."""


class RequestTotal(NamedTuple):
    """Tokens of requests that were sent."""

    read: int = 0
    """Prompt tokens."""
    sampled: int = 0
    """Completion tokens."""
    cost: float = 0.0
    """Money by the prices; nan if a model has no price."""

    @property
    def tokens(self) -> int:
        return self.read + self.sampled


def read_budget(text: str) -> RequestBudget:
    """Parse `2.50` (money) or `200000tokens`. Raises `ConfigError`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) ?(tokens)?", text.strip())
    if match is None or not (amount := float(match[1])) > 0:
        raise ConfigError(
            f"--budget {text!r} is not an amount.",
            "Write an amount of money, as --budget 2.50, or of tokens, as --budget 200000tokens.",
        )
    return RequestBudget(amount, tokens=match[2] is not None)


class _Reserved(NamedTuple):
    model: str
    read: int
    sampled: int | None
    engine: bool


class Meter:
    """Requests of a run: their total, and the budget. Thread-safe."""

    def __init__(
        self,
        file: Path,
        prices: Prices,
        budget: RequestBudget | None,
        answered: Callable[[Sequence[str]], Iterable[Call]],
        *,
        own_models: bool = False,
    ) -> None:
        """Read the requests of earlier processes from `file`. `answered`: function that reads those
        of the given calls that are on record. `own_models`: True to hold models that the graph
        holds itself to the budget. False to refuse them under one.
        """
        self._file = file
        self._prices = prices
        self._budget = budget
        self._own_models = own_models
        self._lock = threading.Lock()
        self._open: dict[str, _Reserved] = {}
        self._lost: defaultdict[str, list[_Reserved]] = defaultdict(list)
        """Reservations of requests without an answer on record, by call id."""
        """Ranks of the requests that wait, by call id."""
        self._settled: dict[str, RequestTotal] = {}
        self._models = set[str]()
        self._spent = 0.0
        """Total of the requests that are not open, in the unit of the budget."""
        self.closed = False
        """True once a request was refused, or `close` was called. No further request is accepted."""
        self.kept_back = 0.0
        """Part of the budget that no request may use for now, in the budget's unit."""
        for call_id, reserved in _read(file):
            self._models.add(reserved.model)
            self._lost[call_id].append(reserved)
        for call in answered([*self._lost]):
            self._settle(call, self._lost[call.id].pop())
        lost = [each for many in self._lost.values() for each in many]
        if budget is not None and any(each.sampled is None for each in lost):
            raise RunError(
                f"{file} has a request without a limit of completion tokens and without an answer,"
                " so that it is not known how much of the budget is left.",
                "Begin anew in another folder: --out.",
            )
        self._spent += sum(self._in_budget(self._most(each)) for each in lost)

    @property
    def limited(self) -> bool:
        """True if there is a budget."""
        return self._budget is not None

    @property
    def models(self) -> set[str]:
        """Names of the models that were asked."""
        with self._lock:
            return set(self._models)

    def asked(self, call_ids: Iterable[str]) -> RequestTotal:
        """Total of those of the given calls that were asked and answered."""
        with self._lock:
            return _sum(self._settled[each] for each in call_ids if each in self._settled)

    def was_asked(self, call_id: str) -> bool:
        with self._lock:
            return call_id in self._settled or bool(self._lost.get(call_id))

    @property
    def requests(self) -> int:
        """Number of requests that were sent, with those that got no answer."""
        with self._lock:
            return len(self._settled) + len(self._open) + sum(map(len, self._lost.values()))

    @property
    def total(self) -> RequestTotal:
        """Total of all requests. Those without an answer count as reserved."""
        with self._lock:
            without = (*self._open.values(), *(r for many in self._lost.values() for r in many))
            return _sum((*self._settled.values(), *map(self._most, without)))

    def reserve(self, request: RequestSize) -> bool:
        """Reserve a request's tokens. Returns False if it has to wait for the end of others. Raises
        `BudgetUsedUp` if it could exceed the budget, and `ConfigError` if its maximum is unknown.
        """
        reserved = _Reserved(request.model, request.read, request.sampled, request.engine)
        if self._budget is not None:
            self._refuse_unknown(request, self._budget)
        with self._lock:
            if self.closed:
                raise self._refusal()
            if self._budget is not None:
                held = (*self._open.values(), reserved)
                most = self._spent + sum(self._in_budget(self._most(each)) for each in held)
                if most > self._budget.amount - self.kept_back:
                    if self._open:
                        return False
                    self.closed = True
                    raise self._refusal()
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"call": request.call_id, **reserved._asdict()}) + "\n")
            self._models.add(request.model)
            self._open[request.call_id] = reserved
            return True

    def close(self) -> None:
        """Refuse all further requests. Open ones can still be settled."""
        with self._lock:
            self.closed = True

    def reopen(self) -> None:
        """Accept requests again that fit into the budget."""
        with self._lock:
            self.closed = False

    def settle(self, call: Call) -> None:
        """Replace the reservation of an answered call by its tokens."""
        with self._lock:
            if (reserved := self._open.pop(call.id, None)) is not None:
                self._settle(call, reserved)

    def lose(self, call_id: str) -> None:
        """Close the reservation of a request that has no answer. It counts as reserved."""
        with self._lock:
            if (reserved := self._open.pop(call_id, None)) is not None:
                self._lost[call_id].append(reserved)
                self._spent += self._in_budget(self._most(reserved))

    def _settle(self, call: Call, reserved: _Reserved) -> None:
        used = call.used
        reported = (
            used is not None and used.input_tokens is not None and used.output_tokens is not None
        )
        asked = self._most(reserved)
        if reported:
            read, sampled = usage(call)
            asked = RequestTotal(read, sampled, self._cost(reserved, read, sampled))
        self._settled[call.id] = asked
        self._spent += self._in_budget(asked)

    def _most(self, reserved: _Reserved) -> RequestTotal:
        read = reserved.read
        sampled = reserved.sampled
        if sampled is None:  # asked without a budget
            return RequestTotal(read, 0, math.nan)
        return RequestTotal(read, sampled, self._cost(reserved, read, sampled))

    def _cost(self, reserved: _Reserved, read: int, sampled: int) -> float:
        price = self._prices.find(reserved.model)
        if price is not None:
            return price.of(read, sampled)
        return 0.0 if reserved.engine else math.nan

    def _in_budget(self, asked: RequestTotal) -> float:
        """Total in the unit of the budget. If it is not known, nothing more may be asked."""
        if self._budget is not None and self._budget.tokens:
            return float(asked.tokens)
        return math.inf if math.isnan(asked.cost) else asked.cost

    def _refuse_unknown(self, request: RequestSize, budget: RequestBudget) -> None:
        if not request.by_policy and not self._own_models:
            raise ConfigError(
                f"The graph asks {request.model}, a model of its own, which is not held to a"
                " budget.",
                "Leave out --budget, or let the graph take its model from policy().",
            )
        if request.retries:
            raise ConfigError(
                f"The most that a request to {request.model} can cost is not known: its client may"
                " repeat a failed request by itself.",
                "Make the graph's model with max_retries=0, or leave out --budget.",
            )
        if not request.text_only:
            raise ConfigError(
                f"The most that a request to {request.model} can cost is not known: it has parts"
                " other than text (images, audio or files).",
                "Leave out --budget.",
            )
        if request.sampled is None:
            raise ConfigError(
                f"The most that a request to {request.model} can cost is not known: it has no limit"
                " of completion tokens.",
                "Set one: --max-tokens 1024. Roles that are not swapped have the limit of the"
                " recorded run, and a model that the graph holds itself its own, max_tokens=1024.",
            )
        priced = request.engine or self._prices.find(request.model) is not None
        if not budget.tokens and not priced:
            raise ConfigError(
                f"The price of {request.model} is not known.",
                f"Name it: --price {request.model}=0.15,0.60 (a million prompt tokens, a million"
                " completion tokens), or limit the tokens: --budget 200000tokens.",
            )

    def _refusal(self) -> BudgetUsedUp:
        return BudgetUsedUp(
            f"The next request could exceed the budget of {self._budget}.",
            "Name a larger --budget. What is recorded is not asked again.",
        )


def _sum(each: Iterable[RequestTotal]) -> RequestTotal:
    found = [*each]
    return RequestTotal(
        sum(one.read for one in found),
        sum(one.sampled for one in found),
        sum(one.cost for one in found),
    )


def _read(file: Path) -> Iterable[tuple[str, _Reserved]]:
    """Requests in a file. An incomplete last line is of a request that was not sent."""
    if not file.exists():
        return
    lines = file.read_text(encoding="utf-8").split("\n")
    if lines[-1]:
        file.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
    for number, line in enumerate(lines[:-1], 1):
        try:
            found: Mapping[str, object] = json.loads(line)
            yield _entry(found)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"Line {number} of {file} is damaged: {error}.",
                "What was asked is not known. Begin anew in another folder: --out.",
            ) from error


def _entry(found: Mapping[str, object]) -> tuple[str, _Reserved]:
    call, model, read, sampled, engine = (
        found[name] for name in ("call", "model", "read", "sampled", "engine")
    )
    if not (
        isinstance(call, str)
        and isinstance(model, str)
        and isinstance(read, int)
        and read >= 0
        and (sampled is None or (isinstance(sampled, int) and sampled >= 0))
        and isinstance(engine, bool)
    ):
        raise TypeError("a field has another type")
    return call, _Reserved(model, read, sampled, engine)
