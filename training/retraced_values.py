"""Expressions of a snippet, retraced without running it: `hrm_agent.training.retracing` says what for.

Only functions of `hrm_agent.training.given_values` are called, on small data.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, cast

from hrm_agent.training.given_values import (
    CALCULATES,
    FUNCTIONS,
    MODULES,
    NOISY_ATTRIBUTES,
    OPERATORS,
    REWRITES,
    TooLarge,
    apply,
    method,
)

__all__ = ["CALCULATED", "GIVEN", "LONG", "READ", "UNKNOWN", "Expressions", "Function", "Scopes", "TooLong", "Value"]

GIVEN, CALCULATED, READ, LONG = range(4)
"""Kinds of values, each above what it is made of."""
UNKNOWN: Any = object()
"""In place of what a value is, where that is not known."""
FAILS = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What the functions that are called raise."""
_DEEPEST = 12
_CHANGE = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "reverse", "sort", "update"}
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


class Value:
    """What is known of an object of the session. Names of one object share it, so that a change is seen by all."""

    __slots__ = ("kind", "known")

    def __init__(self, kind: int, known: Any = UNKNOWN) -> None:
        self.kind = kind
        self.known = known

    @property
    def is_known(self) -> bool:
        return self.known is not UNKNOWN

    @property
    def is_noise(self) -> bool:
        """Whether it says nothing of a problem, whatever it is: of the machine, or a function, class or module."""
        known = self.known
        return (known is UNKNOWN and self.kind == GIVEN) or isinstance(known, (Function, Module)) or callable(known)


Scopes = list[dict[str, Value]]


class Function:
    """A function of the session."""

    def __init__(self, node: ast.FunctionDef | ast.Lambda, scopes: Scopes) -> None:
        self.node = node
        self.scopes = scopes


class Module:
    """A module by its name."""

    def __init__(self, name: str) -> None:
        self.name = name


class TooLong(Exception):
    """The budget of steps is used up."""


class Expressions:
    """What an expression is worth, in the scopes of the moment."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.scopes: Scopes = [{}]
        self.shown: list[Value] = []
        self.steps = 0
        self.depth = 0
        self.control = GIVEN
        """Kind of the conditions under which what is looked at is reached."""

    def enter(self, function: Function, local: dict[str, Value]) -> Value:
        """What the body of a function returns."""
        raise NotImplementedError

    def tick(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TooLong

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
        """Give a value to a target of an assignment."""
        if self.control > value.kind:
            value = Value(self.control, value.known)
        match target:
            case ast.Name(id=name):
                self.scopes[-1][name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for each, part in zip(targets, _parts(value, len(targets)), strict=True):
                    self.bind(each.value if isinstance(each, ast.Starred) else each, part)
            case ast.Subscript(value=changed, slice=index):
                base, place = self.value(changed), self.value(index)
                self._change(base, "__setitem__", [place, value])
            case ast.Attribute(value=changed):
                self._change(self.value(changed), "", [value])
            case _:
                pass

    def items(self, value: Value) -> Iterator[Value]:
        """The items of an iterable; one unknown item where they are not known."""
        known = value.known
        if isinstance(known, range) and len(known) > 10_000:
            raise TooLong
        if not isinstance(known, (bytes, dict, frozenset, list, range, set, str, tuple)):
            yield Value(value.kind)
            return
        for item in list(cast("Iterable[Any]", known)):
            self.tick()
            yield Value(value.kind, item)

    def operate(self, op: ast.operator, left: Value, right: Value) -> Value:
        """`left op right`."""
        same = _same_value(op, left, right)
        if same is not None:
            return same
        kind = max(left.kind, right.kind)
        if not (left.is_known and right.is_known):
            return Value(kind)
        found = self._applied(OPERATORS.get(type(op), operator.add), [left, right])
        calculates = isinstance(left.known, (int, float, complex)) and isinstance(right.known, (int, float, complex))
        if calculates and not _is_step(op, left, right):
            return Value(max(kind, CALCULATED), found.known)
        return Value(kind, found.known)

    # --- by node ------------------------------------------------------------------------------------------------------

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
        return self._applied(_UNARY[type(node.op)], [self.value(node.operand)])

    def _logical(self, node: ast.BoolOp) -> Value:
        kind, value = GIVEN, Value(GIVEN)
        for each in node.values:
            value = self.value(each)
            kind = max(kind, value.kind)
            if value.is_known and bool(value.known) is isinstance(node.op, ast.Or):
                break
        return Value(kind, value.known)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.value(each) for each in (node.left, *node.comparators)]
        found = [self._applied(_COMPARE[type(op)], pair) for op, *pair in zip(node.ops, values, values[1:])]  # noqa: B905
        kind = max(each.kind for each in values)
        return Value(kind, all(each.known for each in found) if all(each.is_known for each in found) else UNKNOWN)

    def _either(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        if test.is_known:
            found = self.value(node.body if test.known else node.orelse)
            return found if found.kind >= test.kind else Value(test.kind, found.known)
        return Value(max(test.kind, self.value(node.body).kind, self.value(node.orelse).kind))

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        values: list[Value] = []
        for each in node.elts:
            values += self.items(self.value(each.value)) if isinstance(each, ast.Starred) else [self.value(each)]
        kind = max((each.kind for each in values), default=GIVEN)
        if not all(each.is_known for each in values):
            return Value(kind)
        make = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return _collected(make, [each.known for each in values], kind)

    def _dictionary(self, node: ast.Dict) -> Value:
        keys = [self.value(each) if each is not None else Value(CALCULATED) for each in node.keys]
        values = [self.value(each) for each in node.values]
        kind = max((each.kind for each in (*keys, *values)), default=GIVEN)
        if not all(each.is_known for each in (*keys, *values)):
            return Value(kind)
        return _collected(dict, [(key.known, each.known) for key, each in zip(keys, values, strict=True)], kind)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        values: list[Value] = []
        element = ast.Tuple([node.key, node.value], ast.Load()) if isinstance(node, ast.DictComp) else node.elt
        self.scopes.append({})
        before = self.control
        self._generate(element, node.generators, values)
        self.control = before
        self.scopes.pop()
        kind = max([GIVEN, *(each.kind for each in values), *self._conditions(node)])
        if not all(each.is_known for each in values):
            return Value(kind)
        make = {ast.SetComp: set, ast.DictComp: dict}.get(type(node), list)
        return _collected(make, [each.known for each in values], kind)

    def _conditions(self, node: Any) -> Iterator[int]:
        """Nothing may have been chosen: it says as much of the conditions."""
        if any(generator.ifs for generator in node.generators):
            yield CALCULATED

    def _generate(self, element: ast.expr, generators: Sequence[ast.comprehension], found: list[Value]) -> None:
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
            value = self._applied({97: ascii, 114: repr, 115: str}[node.conversion], [value])
        return self._applied(format, [value, spec])

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute_of(self.value(node.value), node.attr)

    def attribute_of(self, base: Value, name: str) -> Value:
        """`base.name`."""
        known = base.known
        if (name.startswith("__") and name.endswith("__")) or name in NOISY_ATTRIBUTES:
            return Value(GIVEN)
        if isinstance(known, Module):
            own = MODULES.get(known.name, {})
            return Value(GIVEN, own[name]) if name in own else Value(CALCULATED)
        if base.is_noise:
            return Value(GIVEN)
        bound = method(known, name)
        if bound is not None:
            return Value(base.kind, bound)
        numeric = isinstance(known, (int, float, complex)) and name in ("real", "imag")
        return Value(base.kind, getattr(known, name)) if numeric else Value(max(base.kind, CALCULATED))

    def _subscript(self, node: ast.Subscript) -> Value:
        return self._applied(operator.getitem, [self.value(node.value), self.value(node.slice)])

    def _slice(self, node: ast.Slice) -> Value:
        ends = [
            self.value(each) if each is not None else Value(GIVEN, None) for each in (node.lower, node.upper, node.step)
        ]
        kind = max(each.kind for each in ends)
        return Value(kind, slice(*(each.known for each in ends)) if all(each.is_known for each in ends) else UNKNOWN)

    def _lambda(self, node: ast.Lambda) -> Value:
        return Value(GIVEN, Function(node, list(self.scopes)))

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.bind(node.target, value)
        return value

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        args: list[Value] = []
        for each in node.args:
            args += self.items(self.value(each.value)) if isinstance(each, ast.Starred) else [self.value(each)]
        keywords = {each.arg or "**": self.value(each.value) for each in node.keywords}
        if not isinstance(node.func, ast.Attribute):
            if isinstance(node.func, ast.Name) and node.func.id == "print" and self._name(node.func).known is UNKNOWN:
                return self._print(args, keywords)
            return self.invoke(self.value(node.func), args, keywords)
        base, name = self.value(node.func.value), node.func.attr
        function = self.attribute_of(base, name)
        if name in _CHANGE and isinstance(base.known, (bytearray, dict, list, set)):
            return self._change(base, name, args)
        if name in _WRITE or not function.is_known:
            self.shown += [*args, *keywords.values()] if name in _WRITE or function.is_noise else []
        if name in _CHANGE and not base.is_known:
            base.kind = max([base.kind, *(each.kind for each in args)])
        return self.invoke(function, args, keywords)

    def _print(self, args: list[Value], keywords: dict[str, Value]) -> Value:
        for each in (*args, *keywords.values()):
            self.shown.append(each if each.kind >= self.control else Value(self.control, each.known))
        return Value(GIVEN, None)

    def invoke(self, function: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
        """`function(*args, **keywords)`."""
        known = function.known
        if isinstance(known, Function):
            return self._entered(known, args, keywords)
        if known in (map, filter) and len(args) == 2:
            return self._mapped(args[0], args[1], chooses=known is filter)
        if known is next and args:
            return next(self.items(args[0]), Value(args[0].kind))
        if known is UNKNOWN or known is iter:
            return args[0] if known is iter and args else Value(_highest(function, *args, *keywords.values()))
        if not callable(known):
            return Value(max(CALCULATED, _highest(function, *args)))
        found = self._applied(known, args, keywords)
        return found if found.kind >= function.kind else Value(function.kind, found.known)

    def _mapped(self, function: Value, items: Value, *, chooses: bool) -> Value:
        values: list[Value] = []
        kind = items.kind
        for item in self.items(items):
            value = self.invoke(function, [item], {}) if function.known is not None else item
            kind = max(kind, value.kind)
            values += [value] if not chooses else [item] if not value.is_known or value.known else []
        known = all(each.is_known for each in values)
        return Value(max(kind, CALCULATED) if chooses else kind, [each.known for each in values] if known else UNKNOWN)

    def _entered(self, function: Function, args: list[Value], keywords: dict[str, Value]) -> Value:
        spec = function.node.args
        names = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        local = {
            each.arg: Value(CALCULATED) for each in (*spec.kwonlyargs, spec.vararg, spec.kwarg) if each is not None
        }
        local |= {name: self.value(each) for name, each in zip(names[::-1], spec.defaults[::-1], strict=False)}
        local |= dict(zip(names, args, strict=False)) | keywords
        if spec.vararg is not None and all(each.is_known for each in args):
            rest = args[len(names) :]
            local[spec.vararg.arg] = Value(_highest(*rest), tuple(each.known for each in rest))
        if self.depth >= _DEEPEST:
            raise TooLong
        self.depth += 1
        scopes, self.scopes = self.scopes, [*function.scopes, local]
        found = self.enter(function, local)
        self.scopes = scopes
        self.depth -= 1
        return found

    def _change(self, base: Value, name: str, args: list[Value]) -> Value:
        """A method that changes the object it is called on."""
        base.kind = max([base.kind, self.control, *(each.kind for each in args)])
        change = getattr(base.known, name, None) if isinstance(base.known, (bytearray, dict, list, set)) else None
        if change is None or not all(each.is_known for each in args):
            base.known = UNKNOWN
            return Value(base.kind)
        return self._applied(change, args)

    def _applied(self, function: Any, args: Sequence[Value], keywords: dict[str, Value] | None = None) -> Value:
        every = [*args, *(keywords or {}).values()]
        kind = max(_highest(*every), READ if self._reads(function, every) else GIVEN)
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
        """Whether something is found out about words or lists that stand in the problem."""
        if not self.problem or function in REWRITES:
            return False
        own = getattr(function, "__self__", None)
        return any(self._is_of_problem(each) for each in (own, *(value.known for value in values)))

    def _is_of_problem(self, value: Any) -> bool:
        if isinstance(value, str):
            return len(value) > 2 and value in self.problem
        if not isinstance(value, (list, tuple)) or not 2 < len(items := cast("list[Any]", value)) < 100:
            return False
        return all(isinstance(each, (int, float, str)) and str(each) in self.problem for each in items)

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


def _collected(make: Callable[[Any], Any], items: list[Any], kind: int) -> Value:
    try:
        return Value(kind, make(items))
    except FAILS:
        return Value(GIVEN)


def _highest(*values: Value) -> int:
    return max((each.kind for each in values), default=GIVEN)


def _parts(value: Value, count: int) -> list[Value]:
    """What `count` targets of one assignment are given."""
    if isinstance(value.known, (list, str, tuple)) and len(cast("Any", value.known)) == count:
        return [Value(value.kind, each) for each in cast("list[Any]", value.known)]
    return [Value(value.kind) for _ in range(count)]


def _is(value: Value, number: int) -> bool:
    return isinstance(value.known, (int, float)) and value.known == number


def _same_value(op: ast.operator, left: Value, right: Value) -> Value | None:
    """The operand that `left op right` is equal to, or 0 or 1, where no arithmetic is needed to tell."""
    numbers = not any(isinstance(each.known, (str, bytes, list, tuple)) for each in (left, right))
    equal = left is right or (isinstance(left.known, (int, float)) and numbers and left.known == right.known)
    match op:
        case ast.Add() | ast.Mult() if _is(left, int(isinstance(op, ast.Mult))):
            return right
        case ast.Add() | ast.Sub() | ast.BitOr() | ast.BitXor() | ast.LShift() | ast.RShift() if _is(right, 0):
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


def _is_step(op: ast.operator, left: Value, right: Value) -> bool:
    """Whether it counts on or back by one."""
    return isinstance(op, (ast.Add, ast.Sub)) and (_is(right, 1) or (_is(left, 1) and isinstance(op, ast.Add)))
