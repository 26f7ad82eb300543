"""Splitting of a snippet: a last line that is an expression is found without a syntax tree, and
keeps its meaning.
"""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any

import pytest

from hrm_agent.environment.sandbox import snippet
from hrm_agent.environment.sandbox.protocol import SNIPPET

BY_LINE = {
    "alone": "12 * 7",
    "call": "print(1)",
    "after statements": "x = 0\nfor y in (1, 2):\n    x += y\nx",
    "after a text of lines": "x = '''\nprint(1)\n'''\nx",
    "after a bracket": "x = [\n1,\n]\nx[0]",
    "blank lines": "x = 1\n\n\nx\n\n  \t\n",
    "after a class": "class A:\n    '''of it'''\nA.__doc__",
    "after a finally": "try:\n    1\nfinally:\n    2\n3",
    "after a decorated one": "@str\ndef f(): ...\nf",
    "a comment behind": "x = 1\nx  # it",
    "docstring before": "'of it'\n__doc__",
    "of the future": "from __future__ import annotations\ndef f(x: y): ...\nf.__annotations__",
    "walrus": "x = 1\n(y := x)",
    "lambda": "lambda: (yield)",
    "dots": "...",
    "other letters": "é = 'ü'\né",
}
BY_TREE = {
    "continued": "x = 1\\\n+1",
    "continued and nothing": "\\\n1",
    "in a text": "'''\nabc\n'''",
    "line of a text": "x = '''\n1\n2'''",
    "in a bracket": "x = (\n1)",
    "argument": "print(\n1)",
    "two on a line": "a = 1; a",
    "with a star": "*[1], 2",
    "else": "if 1:\n    2\nelse: 3",
    "block": "if 1:\n    2",
    "block on a line": "if 1: 2",
    "statement": "x = 1",
    "comment last": "x = 1\nx\n# it",
    "returned": "x = 1\rx",
    "half": "if 1:\n2",
    "decorated": "@x\n1",
    "nothing": "\n\n",
    "quoted": "'of it'",
    "no code": "1 +",
    "no code before": "def\n1",
    "zero": "1\0",
    "outside": "x = 1\nyield x",
    "no space": "x\n\u00a0",
    "indented": "x = 1\n 1",
}


def by_tree(source: str) -> tuple[CodeType | None, CodeType | None]:
    tree, value = ast.parse(source, SNIPPET), None
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        tree.body.pop()
        value = compile(ast.Expression(last.value), SNIPPET, "eval", dont_inherit=True)
    return compile(tree, SNIPPET, "exec", dont_inherit=True) if tree.body else None, value


def told(found: object) -> Any:
    """Code by all that runs or is told of it."""
    if not isinstance(found, CodeType):
        return repr(found)
    parts = found.co_code, found.co_names, found.co_flags, found.co_name, found.co_firstlineno
    return *parts, [*found.co_positions()], [told(part) for part in found.co_consts]


def outcome(take_apart: Any, source: str) -> Any:
    try:
        return [told(part) for part in take_apart(source)]
    except (SyntaxError, ValueError) as error:
        return type(error), str(error), getattr(error, "offset", None)


@pytest.mark.parametrize("source", [*BY_LINE.values(), *BY_TREE.values()], ids=[*BY_LINE, *BY_TREE])
def test_it_means_what_the_tree_says(source: str) -> None:
    for whole in (source, source + "\n", "z = 3\n" + source + "\n"):
        assert outcome(snippet._compile, whole) == outcome(by_tree, whole)


@pytest.mark.parametrize("source", BY_LINE.values(), ids=BY_LINE)
def test_most_cells_need_no_tree(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(snippet.ast, "parse")
    assert snippet._compile(source)[1] is not None


@pytest.mark.parametrize("source", BY_TREE.values(), ids=BY_TREE)
def test_others_do(source: str) -> None:
    assert snippet._split_by_line(source) is None
