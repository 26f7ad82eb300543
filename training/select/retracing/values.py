"""Values of a retraced snippet, and results of operations that need no arithmetic."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, cast

from hrm_agent.training.select.retracing.given import is_plain

__all__ = [
    "CALCULATED",
    "FAILS",
    "GIVEN",
    "LONG",
    "READ",
    "UNKNOWN",
    "Function",
    "Module",
    "Scopes",
    "TooLong",
    "Value",
    "collected",
    "highest",
    "is_step",
    "parts",
    "same_value",
]

GIVEN, CALCULATED, READ, LONG = range(4)
"""Kinds of values, in ascending order. A value made of several values has the highest of their
kinds, or a higher one.
"""
UNKNOWN: Any = object()
"""Marker of a value that is not known."""
FAILS = (Exception,)
"""Errors of called functions. A call may raise anything, since its arguments come from a policy."""


class Value:
    """Knowledge about an object of the session. All names of the object share one `Value`, so that
    a change is visible under each name.
    """

    __slots__ = ("kind", "known", "own_word")

    def __init__(self, kind: int, known: Any = UNKNOWN, own_word: str = "") -> None:
        self.kind = kind
        self.known = known
        self.own_word = own_word
        """`class` for a class of the session, `module` for a member of a module (empty for other
        objects). Showing such an object tells nothing new.
        """

    @property
    def is_known(self) -> bool:
        return self.known is not UNKNOWN

    @property
    def is_noise(self) -> bool:
        """True if the value tells nothing about a problem: it depends on the machine, the moment or
        chance, or is a function, class or module.
        """
        known = self.known
        return (
            (known is UNKNOWN and self.kind == GIVEN)
            or isinstance(known, (Function, Module))
            or callable(known)
        )


Scopes = list[dict[str, Value]]


class Function:
    """Function of the session."""

    def __init__(self, node: ast.FunctionDef | ast.Lambda, scopes: Scopes) -> None:
        self.node = node
        self.scopes = scopes


class Module:
    """Imported module, represented by its name."""

    def __init__(self, name: str) -> None:
        self.name = name


class TooLong(Exception):
    """Raised if the budget of steps is used up."""


def collected(make: Callable[[Any], Any], items: list[Any], kind: int) -> Value:
    """Result of `make(items)` (unknown if items have to be hashed and are not small plain data)."""
    if make in (dict, set) and not all(map(is_plain, items)):
        return Value(kind)
    try:
        return Value(kind, make(items))
    except FAILS:
        return Value(GIVEN)


def highest(*values: Value) -> int:
    return max((each.kind for each in values), default=GIVEN)


def parts(value: Value, count: int) -> list[Value]:
    """Values assigned to `count` targets of one assignment."""
    if isinstance(value.known, (list, str, tuple)) and len(cast("Any", value.known)) == count:
        return [Value(value.kind, each) for each in cast("list[Any]", value.known)]
    return [Value(value.kind) for _ in range(count)]


def _is(value: Value, number: int) -> bool:
    return isinstance(value.known, (int, float)) and value.known == number


def same_value(op: ast.operator, left: Value, right: Value) -> Value | None:
    """Result of `left op right` if it is an operand, 0 or 1 without any arithmetic
    (None if not).
    """
    numbers = not any(isinstance(each.known, (str, bytes, list, tuple)) for each in (left, right))
    equal = left is right or (
        isinstance(left.known, (int, float)) and numbers and left.known == right.known
    )
    match op:
        case ast.Add() | ast.Mult() if _is(left, int(isinstance(op, ast.Mult))):
            return right
        case ast.Add() | ast.Sub() | ast.BitOr() | ast.BitXor() | ast.LShift() | ast.RShift() if (
            _is(right, 0)
        ):
            return left
        case ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Pow() if _is(right, 1):
            return left
        case ast.Mult() if numbers and (_is(left, 0) or _is(right, 0)):
            return Value(GIVEN, 0)
        case ast.Sub() | ast.BitXor() | ast.Mod() if equal and numbers:
            return Value(GIVEN, 0)
        case ast.Div() | ast.FloorDiv() if equal and numbers:
            return Value(GIVEN, 1)
        case ast.Pow() if _is(right, 0):
            return Value(GIVEN, 1)
        case _:
            return None


def is_step(op: ast.operator, left: Value, right: Value) -> bool:
    """True if the operation counts up or down by one."""
    return isinstance(op, (ast.Add, ast.Sub)) and (
        _is(right, 1) or (_is(left, 1) and isinstance(op, ast.Add))
    )
