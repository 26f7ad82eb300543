"""Docstrings begin with the noun of the thing or with a verb, and lean on no other docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.support.structure import PROJECT, SOURCES, parsed

FIRST_WORDS = """
Of That Those This These It Its They Their What Whatever Who
Whoever Whose Whom Where Whether When While How However Which Why As
By In Into For From On To With Without And Or But
So At Until Since Because If Unless None No Not Nothing Nobody
Also Likewise Beside Besides Between Before After Only Both There Here Like
Than Then Though Although Such
""".split()  # noqa: SIM905
"""Words that begin a docstring only where it has no subject, or one that another docstring names."""
LEANING = re.compile(rf"(?:{'|'.join(FIRST_WORDS)})\b|(?:The same|The ones?|All that|All of)\b")
BEGINS_A_LINE = re.compile(rf'^[ \t]*[rR]?["\']+\s*(?:{LEANING.pattern})', re.MULTILINE)
"""Texts of files that are worth parsing: some string that begins a line begins so."""
ATTACKS = PROJECT / "tests" / "environment" / "attacks" / "corpus"
"""Programs whose docstrings are read as data."""
SENT = {
    "graphs/parts/support.py",
    "graphs/reasoning/critique.py",
    "graphs/reasoning/plan.py",
    "graphs/research/planner.py",
    "hrm_agent/runtime/selection/choice.py",
    "tests/support/tools/mcp_server.py",
}
"""Files with docstrings that a model reads: a part of requests on record, found by their hash."""
FILES = [
    *SOURCES,
    *(path for path in (PROJECT / "tests").rglob("*.py") if ATTACKS not in path.parents),
    *(path for folder in ("benchmarks", "examples") for path in (PROJECT / folder).rglob("*.py")),
]


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and texts of docstrings: of modules, classes, functions, fields and names of a module."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and body and is_text(body[0]):
            yield body[0].lineno, body[0].value.value
        for statement, following in pairwise(body):
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and is_text(following):
                yield following.lineno, following.value.value


def is_text(node: ast.AST) -> bool:
    """True for a string that stands alone."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def test_every_docstring_has_a_subject_of_its_own() -> None:
    sources = {f"{path.relative_to(PROJECT)}": path.read_text(encoding="utf-8") for path in FILES}
    found = {
        f"{name}:{line}": text.strip().splitlines()[0]
        for name, source in sources.items()
        if name not in SENT and BEGINS_A_LINE.search(source)
        for line, text in docstrings(parsed(source))
        if LEANING.match(text.strip())
    }
    assert found == {}


@pytest.mark.parametrize("text", ["Of a run: its id.", "What was asked.", "The same for a folder."])
def test_a_docstring_without_a_subject_would_be_seen(text: str) -> None:
    source = f'x = 1\n"""{text}"""\n'
    tree = parsed(source)
    assert BEGINS_A_LINE.search(source)
    assert [LEANING.match(each) is not None for _, each in docstrings(tree)] == [True]
