"""Retraces the output of a session's snippets with an interpreter that calculates nothing.

A policy can pad a rollout with calls that only show what the policy wrote into the code. There are
endless ways to write such calls (`print('ok')`, `if True: print('ok')`, a variable of an earlier
call, `chr(111) + chr(107)`, a function that returns the text). Therefore literals, and what results
from rewriting, choosing or counting them, are followed through variables, branches, loops and
functions of the session. A value is of one of four kinds:

* *given*: the value appears in the code or results from such values as above. A step of one (`n +
  1`) and a comparison of given values are given, too. A given value that is unknown is noise: it
  depends on the machine, the moment or chance.
* *calculated*: the value results from arithmetic, was set under a calculated condition, or comes
  from a function that is not retraced.
* *read*: the value tells something about words or lists of the problem, such as
  `'strawberry'.count('r')`.
* *long*: the value comes from a loop that was too long to be followed.

The snippet itself is not run. Only functions listed in `hrm_agent.training.select.retracing.given`
are called, with small arguments. Each snippet has a budget of steps, so that even a hostile snippet
takes only some milliseconds.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar

from hrm_agent.training.select.retracing.expressions import Expressions
from hrm_agent.training.select.retracing.given import NOISE, is_plain
from hrm_agent.training.select.retracing.values import (
    CALCULATED,
    GIVEN,
    LONG,
    UNKNOWN,
    Function,
    Module,
    TooLong,
    Value,
)

__all__ = ["Retraced", "SessionValues"]

_MOST_STEPS = 800
_MANY_STEPS = 250
_MADE = (ast.BinOp, ast.Call, ast.JoinedStr, ast.Subscript)
_MOST_MADE = 20
_SHOWN = "RESULT"
"""Variable whose value is shown if the snippet does not end with an expression."""


class _Leave(Exception):
    """Raised at a `break`, `continue` or `return`. `value`: the returned value, or the kind of the
    conditions under which a loop is left.
    """

    def __init__(self, how: type[ast.stmt], value: Value) -> None:
        super().__init__()
        self.how = how
        self.value = value


class Retraced:
    """Result of retracing one snippet: what it may have shown, and which names it left
    unchanged.
    """

    __slots__ = ("certain", "given", "kept", "long", "shown")

    def __init__(
        self,
        shown: list[Value],
        given: list[Value],
        kept: frozenset[str],
        *,
        long: bool,
        certain: bool,
    ) -> None:
        self.shown = shown
        self.given = given
        """Values of kind *given* inside code that is not followed (classes, generators)."""
        self.certain = certain
        """True if it was known which branches the snippet took."""
        self.kept = kept
        """Names that the snippet set to the values that they already had."""
        self.long = long
        """True if the snippet took many steps."""


class SessionValues(Expressions):
    """Values of one session, updated call by call."""

    def __init__(self, problem: str = "") -> None:
        """`problem`: prompt of the rollout's task (empty if unknown)."""
        super().__init__(problem)
        self._names = self.scopes[0]
        self._certain = True
        self._given: list[Value] = []

    def follow(self, code: str, kept_among: Iterable[str] = ()) -> Retraced | None:
        """Follow the snippet of the next call (None if the snippet cannot be parsed). `kept_among`:
        names that are checked for `Retraced.kept`.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                body = ast.parse(code).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        self.shown = []
        self.steps = _MOST_STEPS
        self.depth = 0
        self.control = GIVEN
        self._certain = True
        self._given, self.scopes = [], [self._names]
        before = {
            name: (value, _image(value))
            for name in kept_among
            if (value := self._names.get(name)) is not None
        }
        for statement in body:
            self._follow(statement, last=statement is body[-1])
        kept = (
            name
            for name, (value, image) in before.items()
            if _is_kept(self._names.get(name), value, image)
        )
        long = self.steps < _MOST_STEPS - _MANY_STEPS
        return Retraced(self.shown, self._given, frozenset(kept), long=long, certain=self._certain)

    def _follow(self, statement: ast.stmt, *, last: bool) -> None:
        """Follow a statement at the top level of the snippet. If this takes too many steps, the
        names that the statement sets are unknown afterwards.
        """
        before = len(self.shown)
        try:
            if last and isinstance(statement, ast.Expr):
                self._show(self.value(statement.value))
                return
            self._do(statement)
            stored = self._names.get(_SHOWN) if last else None
            if stored is not None and _SHOWN in _stored(statement):
                self._show(stored)
        except _Leave:
            pass
        except (TooLong, RecursionError):
            self.scopes = [self._names]
            self.depth = 0
            self.control = GIVEN
            self.steps = _MOST_STEPS // 4
            long = Value(LONG)
            self._names.update(dict.fromkeys(_stored(statement), long))
            if len(self.shown) == before:
                self.shown.append(long)

    def _show(self, value: Value) -> None:
        if value.known is not None:
            self.shown.append(value if not value.own_word else Value(GIVEN))

    def enter(self, function: Function, local: dict[str, Value]) -> Value:
        node = function.node
        if isinstance(node, ast.Lambda):
            return self.value(node.body)
        try:
            self._block(node.body)
        except _Leave as left:
            return left.value
        return Value(GIVEN, None)

    # --- statements
    # ---------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], condition: Value | None = None) -> None:
        """Follow statements under the condition by which they are reached."""
        before = self.control
        self.control = max(before, condition.kind if condition is not None else GIVEN)
        try:
            for statement in body:
                self._do(statement)
        finally:
            self.control = before

    def _do(self, node: ast.stmt) -> None:
        self.tick()
        does = self._BY_STATEMENT.get(type(node))
        if does is not None:
            does(self, node)

    def _expression(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        self.bind(
            node.target, self.operate(node.op, self.value(node.target), self.value(node.value))
        )

    def _if(self, node: ast.If) -> None:
        test = self.value(node.test)
        self._certain &= test.is_known
        for body, reached in (
            (node.body, not test.is_known or test.known),
            (node.orelse, not test.known),
        ):
            if reached or not test.is_known:
                self._block(body, test)

    def _for(self, node: ast.For) -> None:
        for item in self.items(self.value(node.iter)):
            self.bind(node.target, item)
            if not self._round(node, Value(item.kind)):
                return
        self._block(node.orelse)

    def _while(self, node: ast.While) -> None:
        while True:
            self.tick()
            test = self.value(node.test)
            if test.is_known and not test.known:
                return self._block(node.orelse)
            if not self._round(node, test) or test.is_noise:
                return None
            if not test.is_known:
                raise TooLong

    def _round(self, node: ast.For | ast.While, condition: Value) -> bool:
        """Follow one round of a loop. Returns True if another round may follow. After a `break`,
        names set in the loop depend on the conditions of the `break`.
        """
        try:
            self._block(node.body, condition)
        except _Leave as left:
            if left.how is ast.Return:
                raise
            names = self.scopes[-1]
            for name in _stored(node) & names.keys() if left.how is ast.Break else ():
                names[name] = Value(max(names[name].kind, left.value.kind), names[name].known)
            return left.how is ast.Continue
        return True

    def _try(self, node: ast.Try) -> None:
        self._block(node.body)
        self._certain &= not node.handlers
        for handler in node.handlers:
            if handler.name:
                self.scopes[-1][handler.name] = Value(GIVEN)
            self._block(handler.body)
        self._block(node.orelse)
        self._block(node.finalbody)

    def _with(self, node: ast.With) -> None:
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        self._block(node.body)

    def _define(self, node: ast.FunctionDef) -> None:
        if node.decorator_list or any(
            isinstance(each, (ast.Yield, ast.YieldFrom)) for each in ast.walk(node)
        ):
            return self._opaque(node)
        self.scopes[-1][node.name] = Value(GIVEN, Function(node, list(self.scopes)))
        return None

    def _opaque(self, node: ast.ClassDef | ast.AsyncFunctionDef | ast.FunctionDef) -> None:
        """Bind the name of a class or function that is not followed, and collect the values of kind
        *given* inside it.
        """
        self.scopes[-1][node.name] = Value(
            CALCULATED, own_word="class" if isinstance(node, ast.ClassDef) else ""
        )
        for each in islice(
            (each for each in ast.walk(node) if isinstance(each, _MADE)), _MOST_MADE
        ):
            value = self.value(each)
            self._given += [value] if value.kind == GIVEN else []

    def _import(self, node: ast.Import) -> None:
        for each in node.names:
            name = each.asname or each.name.partition(".")[0]
            self.shown += [Value(GIVEN)] if name == "this" else []  # importing `this` prints
            self.scopes[-1][name] = _module(each.name if each.asname else name)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = _module(node.module or "")
        for each in node.names:
            self.scopes[-1][each.asname or each.name] = self.attribute_of(module, each.name)

    def _return(self, node: ast.Return) -> None:
        value = self.value(node.value) if node.value is not None else Value(GIVEN, None)
        raise _Leave(ast.Return, Value(max(value.kind, self.control), value.known))

    def _leave(self, node: ast.Break | ast.Continue) -> None:
        raise _Leave(type(node), Value(self.control))

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.scopes[-1].pop(target.id, None)

    _BY_STATEMENT: ClassVar[dict[type[ast.stmt], Any]] = {
        ast.AnnAssign: _annotated,
        ast.Assign: _assign,
        ast.AsyncFunctionDef: _opaque,
        ast.AugAssign: _augmented,
        ast.Break: _leave,
        ast.ClassDef: _opaque,
        ast.Continue: _leave,
        ast.Delete: _delete,
        ast.Expr: _expression,
        ast.For: _for,
        ast.FunctionDef: _define,
        ast.If: _if,
        ast.Import: _import,
        ast.ImportFrom: _import_from,
        ast.Return: _return,
        ast.Try: _try,
        ast.While: _while,
        ast.With: _with,
    }


def _module(name: str) -> Value:
    return Value(GIVEN) if name.partition(".")[0] in NOISE else Value(GIVEN, Module(name))


def _stored(node: ast.stmt) -> set[str]:
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


def _image(value: Value) -> Any:
    """Copy of a value for later comparison, since the object itself may change."""
    known = value.known
    if not value.is_known or not (
        callable(known) or isinstance(known, (bytes, range, str)) or is_plain(known)
    ):
        return UNKNOWN
    return repr(known)


def _is_kept(now: Value | None, before: Value, image: Any) -> bool:
    return now is before if image is UNKNOWN else now is not None and _image(now) == image
