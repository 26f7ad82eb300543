"""Expressions of a snippet, retraced without running it (see
`hrm_agent.training.select.retracing.sessions`).

Only functions listed in `hrm_agent.training.select.retracing.given` are called, with small
arguments.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from hrm_agent.training.select.retracing.given import FUNCTIONS, OPERATORS
from hrm_agent.training.select.retracing.objects import Objects
from hrm_agent.training.select.retracing.values import (
    CALCULATED,
    GIVEN,
    UNKNOWN,
    Function,
    Value,
    collected,
    is_step,
    parts,
    same_value,
)

__all__ = ["Expressions"]

_CHANGE = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "remove",
    "reverse",
    "sort",
    "update",
}
_WRITE = {"write", "writelines"}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.NotEq: operator.ne,
    ast.NotIn: lambda a, b: a not in b,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class Expressions(Objects):
    """Evaluates expressions of a snippet in the current scopes."""

    def value(self, node: ast.expr) -> Value:
        self.tick()
        evaluates = self._BY_NODE.get(type(node))
        if evaluates is not None:
            return evaluates(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return Value(CALCULATED)

    def bind(self, target: ast.expr, value: Value) -> None:
        """Bind a value to a target of an assignment."""
        if self.control > value.kind:
            value = Value(self.control, value.known)
        match target:
            case ast.Name(id=name):
                self.scopes[-1][name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for each, part in zip(targets, parts(value, len(targets)), strict=True):
                    self.bind(each.value if isinstance(each, ast.Starred) else each, part)
            case ast.Subscript(value=changed, slice=index):
                base = self.value(changed)
                place = self.value(index)
                self.change(base, "__setitem__", [place, value])
            case ast.Attribute(value=changed):
                self.change(self.value(changed), "", [value])
            case _:
                pass

    def operate(self, op: ast.operator, left: Value, right: Value) -> Value:
        """`left op right`."""
        same = same_value(op, left, right)
        if same is not None:
            return same
        kind = max(left.kind, right.kind)
        if not (left.is_known and right.is_known):
            return Value(kind)
        found = self.applied(OPERATORS.get(type(op), operator.add), [left, right])
        calculates = isinstance(left.known, (int, float, complex)) and isinstance(
            right.known, (int, float, complex)
        )
        if calculates and not is_step(op, left, right):
            return Value(max(kind, CALCULATED), found.known)
        return Value(kind, found.known)

    # --- by node
    # ------------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        return Value(GIVEN, node.value)

    def _name(self, node: ast.Name) -> Value:
        name = node.id
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        if name in FUNCTIONS:
            return Value(GIVEN, FUNCTIONS[name])
        return Value(GIVEN if name.startswith("__") or hasattr(builtins, name) else CALCULATED)

    def _binary(self, node: ast.BinOp) -> Value:
        return self.operate(node.op, self.value(node.left), self.value(node.right))

    def _unary(self, node: ast.UnaryOp) -> Value:
        return self.applied(_UNARY[type(node.op)], [self.value(node.operand)])

    def _logical(self, node: ast.BoolOp) -> Value:
        kind = GIVEN
        value = Value(GIVEN)
        for each in node.values:
            value = self.value(each)
            kind = max(kind, value.kind)
            if value.is_known and bool(value.known) is isinstance(node.op, ast.Or):
                break
        return Value(kind, value.known)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.value(each) for each in (node.left, *node.comparators)]
        found = [
            self.applied(_COMPARE[type(op)], pair)
            for op, *pair in zip(node.ops, values, values[1:])  # noqa: B905
        ]
        kind = max(each.kind for each in values)
        return Value(
            kind,
            all(each.known for each in found) if all(each.is_known for each in found) else UNKNOWN,
        )

    def _either(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        if test.is_known:
            found = self.value(node.body if test.known else node.orelse)
            return found if found.kind >= test.kind else Value(test.kind, found.known)
        return Value(max(test.kind, self.value(node.body).kind, self.value(node.orelse).kind))

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        values: list[Value] = []
        for each in node.elts:
            values += (
                self.items(self.value(each.value))
                if isinstance(each, ast.Starred)
                else [self.value(each)]
            )
        kind = max((each.kind for each in values), default=GIVEN)
        if not all(each.is_known for each in values):
            return Value(kind)
        make = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return collected(make, [each.known for each in values], kind)

    def _dictionary(self, node: ast.Dict) -> Value:
        keys = [self.value(each) if each is not None else Value(CALCULATED) for each in node.keys]
        values = [self.value(each) for each in node.values]
        kind = max((each.kind for each in (*keys, *values)), default=GIVEN)
        if not all(each.is_known for each in (*keys, *values)):
            return Value(kind)
        return collected(
            dict, [(key.known, each.known) for key, each in zip(keys, values, strict=True)], kind
        )

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Value:
        values: list[Value] = []
        element = (
            ast.Tuple([node.key, node.value], ast.Load())
            if isinstance(node, ast.DictComp)
            else node.elt
        )
        self.scopes.append({})
        before = self.control
        self._generate(element, node.generators, values)
        self.control = before
        self.scopes.pop()
        kind = max([GIVEN, *(each.kind for each in values), *self._conditions(node)])
        if not all(each.is_known for each in values):
            return Value(kind)
        make = (
            set
            if isinstance(node, ast.SetComp)
            else dict
            if isinstance(node, ast.DictComp)
            else list
        )
        return collected(make, [each.known for each in values], kind)

    def _conditions(self, node: Any) -> Iterator[int]:
        """Yield the kind `CALCULATED` if a comprehension has conditions, since even its empty
        result tells something about them.
        """
        if any(generator.ifs for generator in node.generators):
            yield CALCULATED

    def _generate(
        self, element: ast.expr, generators: Sequence[ast.comprehension], found: list[Value]
    ) -> None:
        if not generators:
            value = self.value(element)
            found.append(value if value.kind >= self.control else Value(self.control, value.known))
            return
        first, *rest = generators
        for item in self.items(self.value(first.iter)):
            self.bind(first.target, item)
            tests = [self.value(each) for each in first.ifs]
            self.control = max([self.control, *(each.kind for each in tests)])
            if all(not each.is_known or each.known for each in tests):
                self._generate(element, rest, found)

    def _joined(self, node: ast.JoinedStr) -> Value:
        parts = [self.value(each) for each in node.values]
        kind = max((each.kind for each in parts), default=GIVEN)
        if not all(isinstance(each.known, str) for each in parts):
            return Value(kind)
        return Value(kind, "".join(each.known for each in parts))

    def _formatted(self, node: ast.FormattedValue) -> Value:
        value = self.value(node.value)
        spec = self.value(node.format_spec) if node.format_spec is not None else Value(GIVEN, "")
        if node.conversion in (97, 114, 115):
            value = self.applied({97: ascii, 114: repr, 115: str}[node.conversion], [value])
        return self.applied(format, [value, spec])

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute_of(self.value(node.value), node.attr)

    def _subscript(self, node: ast.Subscript) -> Value:
        return self.applied(operator.getitem, [self.value(node.value), self.value(node.slice)])

    def _slice(self, node: ast.Slice) -> Value:
        ends = [
            self.value(each) if each is not None else Value(GIVEN, None)
            for each in (node.lower, node.upper, node.step)
        ]
        kind = max(each.kind for each in ends)
        return Value(
            kind,
            (
                slice(*(each.known for each in ends))
                if all(each.is_known for each in ends)
                else UNKNOWN
            ),
        )

    def _lambda(self, node: ast.Lambda) -> Value:
        return Value(GIVEN, Function(node, list(self.scopes)))

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.bind(node.target, value)
        return value

    # --- calls
    # --------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        args: list[Value] = []
        for each in node.args:
            args += (
                self.items(self.value(each.value))
                if isinstance(each, ast.Starred)
                else [self.value(each)]
            )
        keywords = {each.arg or "**": self.value(each.value) for each in node.keywords}
        if not isinstance(node.func, ast.Attribute):
            if (
                isinstance(node.func, ast.Name)
                and node.func.id == "print"
                and self._name(node.func).known is UNKNOWN
            ):
                return self._print(args, keywords)
            return self.invoke(self.value(node.func), args, keywords)
        base = self.value(node.func.value)
        name = node.func.attr
        function = self.attribute_of(base, name)
        if name in _CHANGE and isinstance(base.known, (bytearray, dict, list, set)):
            return self.change(base, name, args)
        if name in _WRITE or not function.is_known:
            self.shown += [*args, *keywords.values()] if name in _WRITE or function.is_noise else []
        if name in _CHANGE and not base.is_known:
            base.kind = max([base.kind, *(each.kind for each in args)])
            base.own_word = ""
        return self.invoke(function, args, keywords)

    def _print(self, args: list[Value], keywords: dict[str, Value]) -> Value:
        for each in (*args, *keywords.values()):
            kind = self.control if each.own_word else max(each.kind, self.control)
            self.shown.append(Value(kind, each.known))
        return Value(GIVEN, None)

    _BY_NODE: ClassVar[dict[type[ast.expr], Any]] = {
        ast.Attribute: _attribute,
        ast.BinOp: _binary,
        ast.BoolOp: _logical,
        ast.Call: _call,
        ast.Compare: _compare,
        ast.Constant: _constant,
        ast.Dict: _dictionary,
        ast.DictComp: _comprehension,
        ast.FormattedValue: _formatted,
        ast.GeneratorExp: _comprehension,
        ast.IfExp: _either,
        ast.JoinedStr: _joined,
        ast.Lambda: _lambda,
        ast.List: _sequence,
        ast.ListComp: _comprehension,
        ast.Name: _name,
        ast.NamedExpr: _named,
        ast.Set: _sequence,
        ast.SetComp: _comprehension,
        ast.Slice: _slice,
        ast.Subscript: _subscript,
        ast.Tuple: _sequence,
        ast.UnaryOp: _unary,
    }
