"""Objects of a retraced session: their attributes, calls and changes."""

from __future__ import annotations

import ast
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from hrm_agent.training.select.retracing.given import (
    CALCULATES,
    MODULES,
    NOISY_ATTRIBUTES,
    REWRITES,
    WRITERS,
    TooLarge,
    apply,
    is_plain,
    method,
)
from hrm_agent.training.select.retracing.values import (
    CALCULATED,
    FAILS,
    GIVEN,
    READ,
    UNKNOWN,
    Function,
    Module,
    Scopes,
    TooLong,
    Value,
    highest,
)

__all__ = ["Objects"]

_DEEPEST = 12


class Objects(ABC):
    """Objects of a snippet, by their names in the current scopes."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.scopes: Scopes = [{}]
        self.shown: list[Value] = []
        self.steps = 0
        self.depth = 0
        self.control = GIVEN
        """Highest kind among the conditions under which the current code is reached."""

    @abstractmethod
    def value(self, node: ast.expr) -> Value:
        """Value of an expression."""

    @abstractmethod
    def enter(self, function: Function, local: dict[str, Value]) -> Value:
        """Value returned by the body of a function."""

    def tick(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TooLong

    def items(self, value: Value) -> Iterator[Value]:
        """Items of an iterable (a single unknown item if the iterable is not known)."""
        known = value.known
        if isinstance(known, range) and len(known) > 10_000:
            raise TooLong
        if not isinstance(known, (bytes, dict, frozenset, list, range, set, str, tuple)):
            yield Value(value.kind)
            return
        for item in list(cast("Iterable[Any]", known)):
            self.tick()
            yield Value(value.kind, item)

    def attribute_of(self, base: Value, name: str) -> Value:
        """`base.name`."""
        known = base.known
        if (name.startswith("__") and name.endswith("__")) or name in NOISY_ATTRIBUTES:
            return Value(GIVEN)
        if isinstance(known, Module):
            own = MODULES.get(known.name, {})
            written = known.name in WRITERS or f"{known.name}.{name}" in WRITERS
            if name in own:
                return Value(GIVEN, own[name])
            return Value(GIVEN if written else CALCULATED, own_word="module")
        if base.is_noise:
            return Value(GIVEN)
        if base.own_word == "module":
            return Value(base.kind, own_word="module")
        bound = method(known, name)
        if bound is not None:
            return Value(base.kind, bound)
        numeric = isinstance(known, (int, float, complex)) and name in ("real", "imag")
        return (
            Value(base.kind, getattr(known, name)) if numeric else Value(max(base.kind, CALCULATED))
        )

    def invoke(self, function: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
        """`function(*args, **keywords)`."""
        known = function.known
        if isinstance(known, Function):
            return self._entered(known, args, keywords)
        if known in (map, filter) and len(args) == 2:
            return self._mapped(args[0], args[1], chooses=known is filter)
        if known is functools.reduce and len(args) > 1:
            found, *rest = [*args[2:3], *self.items(args[1])] or [Value(GIVEN)]
            for item in rest:
                found = self.invoke(args[0], [found, item], {})
            return found
        if known is next and args:
            return next(self.items(args[0]), Value(args[0].kind))
        if known is iter and args:
            return args[0]
        if known is UNKNOWN:
            values = [*args, *keywords.values()]
            return Value(
                max(highest(function, *values), READ if self._reads(None, values) else GIVEN)
            )
        if not callable(known):
            return Value(max(CALCULATED, highest(function, *args)))
        found = self.applied(known, args, keywords)
        return found if found.kind >= function.kind else Value(function.kind, found.known)

    def _mapped(self, function: Value, items: Value, *, chooses: bool) -> Value:
        values: list[Value] = []
        kind = items.kind
        for item in self.items(items):
            value = self.invoke(function, [item], {}) if function.known is not None else item
            kind = max(kind, value.kind)
            values += (
                [value] if not chooses else [item] if not value.is_known or value.known else []
            )
        known = all(each.is_known for each in values)
        return Value(
            max(kind, CALCULATED) if chooses else kind,
            [each.known for each in values] if known else UNKNOWN,
        )

    def _entered(self, function: Function, args: list[Value], keywords: dict[str, Value]) -> Value:
        spec = function.node.args
        names = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        local = {
            each.arg: Value(CALCULATED)
            for each in (*spec.kwonlyargs, spec.vararg, spec.kwarg)
            if each is not None
        }
        local |= {
            name: self.value(each)
            for name, each in zip(names[::-1], spec.defaults[::-1], strict=False)
        }
        local |= dict(zip(names, args, strict=False)) | keywords
        if spec.vararg is not None and all(each.is_known for each in args):
            rest = args[len(names) :]
            local[spec.vararg.arg] = Value(highest(*rest), tuple(each.known for each in rest))
        if self.depth >= _DEEPEST:
            raise TooLong
        self.depth += 1
        scopes = self.scopes
        self.scopes = [*function.scopes, local]
        found = self.enter(function, local)
        self.scopes = scopes
        self.depth -= 1
        return found

    def change(self, base: Value, name: str, args: list[Value]) -> Value:
        """Call a method of `base` that changes it."""
        base.kind = max([base.kind, self.control, *(each.kind for each in args)])
        base.own_word = ""
        change = (
            getattr(base.known, name, None)
            if isinstance(base.known, (bytearray, dict, list, set))
            else None
        )
        if change is None or not all(each.is_known for each in args):
            base.known = UNKNOWN
            return Value(base.kind)
        return self.applied(change, args)

    def applied(
        self, function: Any, args: Sequence[Value], keywords: dict[str, Value] | None = None
    ) -> Value:
        every = [*args, *(keywords or {}).values()]
        kind = max(highest(*every), READ if self._reads(function, every) else GIVEN)
        if function in CALCULATES:
            kind = max(kind, GIVEN if all(each.is_noise for each in every) else CALCULATED)
        if not all(each.is_known for each in every):
            return Value(kind)
        try:
            named = {name: each.known for name, each in (keywords or {}).items()}
            return Value(kind, apply(function, [each.known for each in args], named))
        except TooLarge as error:
            if any(isinstance(each.known, range) for each in every):
                raise TooLong from error
            return Value(kind)
        except FAILS:
            return Value(GIVEN)

    def _reads(self, function: Any, values: Sequence[Value]) -> bool:
        """True if the call tells something about words or lists of the problem."""
        if not self.problem or function in REWRITES:
            return False
        own = getattr(function, "__self__", None)
        return any(self._is_of_problem(each) for each in (own, *(value.known for value in values)))

    def _is_of_problem(self, value: Any) -> bool:
        if isinstance(value, str):
            return len(value) > 2 and value in self.problem
        if (
            not isinstance(value, (list, tuple))
            or not is_plain(value)
            or not 2 < len(items := cast("list[Any]", value)) < 100
        ):
            return False
        return 2 < len(items) < 100 and all(
            isinstance(each, (int, float, str)) and str(each) in self.problem for each in items
        )
