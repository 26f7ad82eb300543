"""Facts of a Python snippet: its form without wording, and the variables that it reads and sets.
The snippet is compiled, but never run.

`form` is equal for two snippets that differ only in comments, whitespace, parentheses, annotations,
docstrings, `pass`, standalone constants, `x = x`, and names of variables, functions and classes
that they define. It is computed from the bytecode, in which all these are missing or numbered.
Names taken from the session, and names of attributes and keywords, are part of the form.

Snippets come from a model and may have any size and depth. A snippet that is too long, or nested
too deep, has no facts.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from inspect import CO_OPTIMIZED
from types import CodeType
from typing import Any, cast

__all__ = ["MAX_CHARACTERS", "CodeFacts", "code_facts"]

MAX_CHARACTERS = 8 * 1024
"""Maximum length of a snippet. An ordinary snippet takes milliseconds, the worst less than a
second, since constructs that the compiler does not handle in linear time are removed or refused.
"""
_MAX_SCOPES = 20
"""Maximum nesting of functions, classes and comprehensions. The compiler passes a variable of the
outermost scope through each scope.
"""
_MAX_PATTERNS = 200
"""Maximum number of patterns of `match`. The compiler moves each name that a pattern binds past all
others.
"""
_SCOPES = (
    *(ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Lambda),
    *(ast.DictComp, ast.GeneratorExp, ast.ListComp, ast.SetComp),
)
_FOLDED = (ast.BinOp, ast.Constant, ast.Subscript, ast.Tuple, ast.UnaryOp)
"""Expressions that the compiler may replace by their value."""
_MUTATORS = {
    *(
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "pop",
        "popitem",
        "popleft",
    ),
    *("remove", "reverse", "rotate", "setdefault", "sort", "update"),
}
"""Methods that change the object on which they are called."""
_ARGUMENT_MUTATORS = {"heapify", "heappop", "heappush", "insort", "setattr", "shuffle"}
"""Functions that change their first argument."""
_RECITERS = {"print", "repr", "str"}
_LITERALS = (
    *(
        ast.Constant,
        ast.Dict,
        ast.FormattedValue,
        ast.JoinedStr,
        ast.List,
        ast.Set,
        ast.Tuple,
        ast.UnaryOp,
    ),
    *(ast.expr_context, ast.keyword, ast.unaryop),
)
_BLOCKS = {"body", "finalbody", "orelse"}
_ANNOTATIONS = {"annotation", "returns"}
_CACHE = dis.opmap["CACHE"]
_LOAD_CONST, _LOAD_GLOBAL, _LOAD_NAME = (
    dis.opmap[name] for name in ("LOAD_CONST", "LOAD_GLOBAL", "LOAD_NAME")
)
_ITEM_STORES = {
    dis.opmap[name]
    for name in ("DELETE_SUBSCR", "STORE_ATTR", "STORE_SLICE", "STORE_SUBSCR")
    if name in dis.opmap
}
_STORES = {dis.opmap["STORE_GLOBAL"], dis.opmap["STORE_NAME"]}
_OF_VARIABLES = {
    dis.opmap[f"{what}_{where}"]
    for what in ("DELETE", "LOAD", "STORE")
    for where in ("GLOBAL", "NAME")
}
_SHIFTS = {dis.opmap["LOAD_GLOBAL"]: 1}  # number of bits below a name's index in an argument
if sys.version_info >= (3, 12):
    _SHIFTS |= {dis.opmap["LOAD_ATTR"]: 1, dis.opmap["LOAD_SUPER_ATTR"]: 2}
_ORDERED_BY_NAME = {
    dis.opmap[name] for name in ("COPY_FREE_VARS", "LOAD_CLOSURE", "MAKE_CELL") if name in dis.opmap
}


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """Facts of one snippet."""

    form: str
    """Digest of the snippet without its wording (empty if the snippet does nothing)."""
    shows: bool
    """True if the snippet prints or ends with an expression, so that it may have output."""
    recites: bool
    """True if all output is contained in the code: literals, and variables set to literals."""
    renames: tuple[tuple[str, str], ...]
    """Pairs of new and old name, in order (empty unless the snippet only renames variables)."""
    reads: frozenset[str]
    """Names that the snippet takes from its session: names that it reads before it sets them."""
    sets: frozenset[str]
    """Names that the snippet binds in its session."""
    changes: frozenset[str]
    """Names of the objects that the snippet changes by assignment to an item or attribute, or by a
    method such as `append`.
    """
    through: tuple[tuple[str, frozenset[str]], ...]
    """Functions and classes defined by the snippet, each as (name, names that its body takes from
    the session).
    """


@lru_cache(maxsize=4096)
def code_facts(code: str) -> CodeFacts | None:
    """Facts of a snippet (None if it is not Python, too long, or nested too deep)."""
    if len(code) > MAX_CHARACTERS:
        return None
    try:
        # Ignore warnings about odd escapes; the model sees them when its code runs.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = _plain(ast.parse(code))
            parts = _compiled(body)
            flow = _Flow()
            for part in parts:
                flow.follow(part)
            flow.end()
            return CodeFacts(
                form=_form(parts, flow.sets - flow.reads) if body else "",
                shows=bool(body) and (isinstance(body[-1], ast.Expr) or "print" in flow.loaded),
                recites=_recites(body),
                renames=_renames(body),
                reads=frozenset(flow.reads),
                sets=frozenset(flow.sets),
                changes=frozenset(_changes(body) if flow.changes else ()),
                through=tuple((name, frozenset(free)) for name, free in flow.through.items()),
            )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# --- the source
# -------------------------------------------------------------------------------------------------------


def _plain(tree: ast.Module) -> list[ast.stmt]:
    """Statements of a snippet, all on one line. Annotations, and statements that do nothing, are
    removed.

    With several lines, the bytecode would contain NOPs for lines that do nothing.
    """
    patterns = 0
    nodes: list[tuple[Any, int]] = [(tree, 0)]
    while nodes:  # walks the tree as ast.walk does, in a third of the time
        node, depth = nodes.pop()
        values: dict[str, Any] = node.__dict__
        for name in values.keys() & _BLOCKS:
            if values[name] and isinstance(values[name], list):
                block = [each for each in map(_simpler, values[name]) if not _is_idle(each)]
                values[name] = block or ([_on_one_line(ast.Pass())] if node is not tree else [])
        if "lineno" in values:
            _on_one_line(node)
        values.update(dict.fromkeys(values.keys() & _ANNOTATIONS))
        if isinstance(node, ast.BinOp):
            _keep_factors(node)
        depth += isinstance(node, _SCOPES)
        patterns += isinstance(node, ast.pattern)
        if depth > _MAX_SCOPES or patterns > _MAX_PATTERNS:
            raise ValueError("it would take too long to compile")
        for value in values.values():
            if isinstance(value, ast.AST):
                nodes.append((value, depth))
            elif isinstance(value, list):
                nodes += [
                    (each, depth)
                    for each in cast("list[object]", value)
                    if isinstance(each, ast.AST)
                ]
    return tree.body


def _simpler(node: ast.stmt) -> ast.stmt:
    """Statement without its annotation, or without `finally`.

    The block of a `finally` is moved behind its `try`, under a condition that no source contains.
    In place, the compiler would copy the block to each exit, which doubles the size per nesting
    level.
    """
    if isinstance(node, (ast.Try, ast.TryStar)) and node.finalbody:
        last = node.finalbody
        node.finalbody = []
        return _if_empty_set([_if_empty_set([node] if node.handlers else node.body), *last])
    if not isinstance(node, ast.AnnAssign):
        return node
    return _on_one_line(ast.Pass() if node.value is None else ast.Assign([node.target], node.value))


def _if_empty_set(body: list[ast.stmt]) -> ast.If:
    return _on_one_line(ast.If(_on_one_line(ast.Set([])), body, []))


def _keep_factors(node: ast.BinOp) -> None:
    """Keep the compiler from multiplying constants. The product can be 4 kB for nine characters,
    and each sum of such products stays in memory.
    """
    if (
        isinstance(node.op, ast.Mult)
        and isinstance(node.left, _FOLDED)
        and isinstance(node.right, _FOLDED)
    ):
        shown = _on_one_line(ast.FormattedValue(node.right, -1))
        # no real snippet multiplies by an f-string, so the marked product equals no other
        node.right = _on_one_line(ast.JoinedStr([shown]))


def _on_one_line(node: Any) -> Any:
    node.lineno = node.end_lineno = 1
    node.col_offset = node.end_col_offset = 0
    return node


def _is_idle(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=source)):
            return target == source
        case _:
            return False


def _recites(body: list[ast.stmt]) -> bool:
    known = set(_RECITERS)
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_literal(value, known):
                known.add(name)
            case ast.Expr(value=value) if _is_literal(value, known):
                pass
            case _:
                return False
    return True


def _is_literal(value: ast.expr, known: set[str]) -> bool:
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in _RECITERS:
                pass
            case ast.Name(id=name) if name in known:
                pass
            case _ if not isinstance(node, _LITERALS):
                return False
            case _:
                pass
    return True


def _renames(body: list[ast.stmt]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=new)], value=ast.Name(id=old)):
                found.append((new, old))
            case _:
                return ()
    return tuple(found)


def _compiled(body: list[ast.stmt]) -> list[CodeType]:
    """Code objects of a snippet. If the last statement is an expression, whose value a notebook
    shows, it is a separate, second code object.
    """
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr):
        return [compile(ast.Module(body, []), "", "exec", dont_inherit=True)]
    shown = compile(ast.Expression(last.value), "", "eval", dont_inherit=True)
    return [
        *([compile(ast.Module(body[:-1], []), "", "exec", dont_inherit=True)] if body[1:] else []),
        shown,
    ]


def _at_once(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes that are evaluated when the snippet itself runs. Bodies of functions and classes are
    left out.
    """
    nodes = list(body)
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)


def _changes(body: Iterable[ast.AST]) -> Iterator[str]:
    for node in _at_once(body):
        match node:
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield from _base(node)
            case ast.Call(func=ast.Attribute(value=changed, attr=name)) if name in _MUTATORS:
                yield from _base(changed)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[changed, *_]):
                yield from _base(changed) if name in _ARGUMENT_MUTATORS else ()
            case _:
                pass


def _base(node: ast.AST) -> Iterator[str]:
    """`x` of `x.y[0].z`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


# --- the bytecode
# -----------------------------------------------------------------------------------------------------


def _instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    """Opcode and argument of each instruction. `dis` would also make texts, and take a hundred
    times as long.
    """
    extended = 0
    raw = code.co_code
    for place in range(0, len(raw), 2):
        opcode = raw[place]
        argument = raw[place + 1]
        if opcode == dis.EXTENDED_ARG:
            extended = (extended | argument) << 8
            continue
        if opcode != _CACHE:
            yield opcode, extended | argument
        extended = 0


class _Flow:
    """Names that a snippet reads and sets, found in the order of its instructions.

    A name that is set on one of two branches counts as set. So a name that the snippet may have set
    is never attributed to the session.
    """

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.sets: set[str] = set()
        self.through: dict[str, set[str]] = {}
        self.loaded: set[str] = set()
        self.changes = False

    def follow(self, code: CodeType) -> None:
        self.changes |= not _MUTATORS.isdisjoint(
            code.co_names
        ) or not _ARGUMENT_MUTATORS.isdisjoint(code.co_names)
        for opcode, argument in _instructions(code):
            if opcode == _LOAD_NAME:
                self._read({code.co_names[argument]})
            elif opcode == _LOAD_GLOBAL:
                self._read({code.co_names[argument >> 1]})
            elif opcode in _STORES:
                self.sets.add(code.co_names[argument])
            elif opcode in _ITEM_STORES:
                self.changes = True
            elif opcode == _LOAD_CONST and isinstance(inner := code.co_consts[argument], CodeType):
                if inner.co_name.startswith("<"):  # code of a comprehension or a lambda
                    self._read(_globals(inner))
                else:
                    self.through[inner.co_name] = _globals(inner)

    def end(self) -> None:
        """Add the names that functions of the snippet take from the session, if the snippet calls
        these functions.
        """
        for name in self.loaded & self.through.keys():
            self.reads |= self.through[name] - self.sets

    def _read(self, names: set[str]) -> None:
        self.loaded |= names
        self.reads |= names - self.sets


def _globals(code: CodeType) -> set[str]:
    """Names that a function, or a function nested in it, takes from the session."""
    found = {
        code.co_names[argument >> 1]
        for opcode, argument in _instructions(code)
        if opcode == _LOAD_GLOBAL
    }
    found |= {
        code.co_names[argument] for opcode, argument in _instructions(code) if opcode == _LOAD_NAME
    }
    return found.union(
        *(_globals(inner) for inner in code.co_consts if isinstance(inner, CodeType))
    )


def _form(parts: Iterable[CodeType], own: set[str]) -> str:
    numbers: dict[str, int] = {}
    written = [_written(part, own, numbers, {}) for part in parts]
    return hashlib.sha256(repr(written).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _written(
    code: CodeType, own: set[str], numbers: dict[str, int], around: dict[str, str]
) -> tuple[Any, ...]:
    """Code without its wording. In bytecode, variables of functions and constants are numbered by
    their first appearance.

    Variables that nested functions share are in alphabetical order there, so they are numbered
    here. `around`: numbers of the shared variables of enclosing functions. `numbers`: numbers of
    the names in `own`, over the whole snippet.
    """
    shared = {name: around[name] for name in code.co_freevars if name in around}
    flow: list[tuple[int | str, ...]] = []
    for opcode, argument in _instructions(code):
        if opcode in dis.hasfree:
            if opcode not in _ORDERED_BY_NAME:
                name = _variable(code, argument)
                flow.append((opcode, shared.setdefault(name, f"{len(around)}.{len(shared)}")))
        elif opcode in dis.hasname:
            shift = _SHIFTS.get(opcode, 0)
            name = code.co_names[argument >> shift]
            if opcode in _OF_VARIABLES and name in own:
                name = f"#{numbers.setdefault(name, len(numbers))}"
            flow.append((opcode, argument & ((1 << shift) - 1), name))
        else:
            flow.append((opcode, argument))
    classes = {
        each.co_name
        for each in code.co_consts
        if isinstance(each, CodeType) and not each.co_flags & CO_OPTIMIZED
    }
    classes &= own
    constants = [
        (
            _written(each, own, numbers, shared)
            if isinstance(each, CodeType)
            else (
                "a name"
                if isinstance(each, str) and (each in classes or each == code.co_qualname)
                else _constant(each)
            )
        )
        for each in code.co_consts
    ]
    parameters = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return parameters, flow, constants


def _variable(code: Any, argument: int) -> str:
    return code._varname_from_oparg(argument)


def _constant(value: Any) -> str:
    shown = sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
    return f"{type(value).__name__} {shown}"
