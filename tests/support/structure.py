"""Structure of the source: modules, imports, import circles. As a program it prints a report.

`python -m tests.support.structure` prints, by package: modules, statements, private functions, the
fullest folder, modules whose only importer is in the same folder, imports between the parts, and
import circles.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

__all__ = [
    "PROJECT",
    "SOURCES",
    "arrows",
    "circle",
    "imports",
    "module_of",
    "owner",
    "parsed",
    "part_of",
]

PROJECT = Path(__file__).parents[2]
OUTSIDE = ("graphs", "training")
"""Packages of `hrm_agent` whose folders are at the top of the repository. They are imported through
a link.
"""
WRITTEN_OUT = PROJECT / "hrm_agent" / "cli" / "services" / "project"
"""Files that `hrm-agent init` writes: a user's code, which is no module of ours."""
SOURCES = sorted(
    path
    for folder in ("hrm_agent", *OUTSIDE)
    for path in (PROJECT / folder).rglob("*.py")
    if not {WRITTEN_OUT, *(PROJECT / "hrm_agent" / name for name in OUTSIDE)} & set(path.parents)
)


def module_of(path: Path) -> str:
    """Name by which a file is imported."""
    name = ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.split(".")[0] == "hrm_agent" else f"hrm_agent.{name}"


@cache
def parsed(text: str) -> ast.Module:
    """Syntax tree of a text."""
    return ast.parse(text)


@cache
def imports(path: Path, *, for_types: bool = True) -> frozenset[str]:
    """Names that a file imports, also inside functions. `for_types`: also those under
    TYPE_CHECKING.
    """
    return frozenset(_imports(path, for_types))


def _imports(path: Path, for_types: bool) -> Iterator[str]:
    nodes = list[ast.AST]([parsed(path.read_text(encoding="utf-8"))])
    while nodes:
        node = nodes.pop()
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) if not for_types:
                nodes += node.orelse
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case _:
                nodes += ast.iter_child_nodes(node)


def owner(imported: str, modules: Collection[str]) -> str:
    """Module of ours that an import names: `a.b.name` -> `a.b` (empty for an import of a
    library).
    """
    while imported and imported not in modules:
        imported = imported.rpartition(".")[0]
    return imported


def part_of(module: str, package: str) -> str:
    """Child of `package` that is `module` or contains it (empty if there is none)."""
    return module[len(package) + 1 :].split(".")[0] if module.startswith(f"{package}.") else ""


def arrows(*, for_types: bool = True) -> set[tuple[str, str]]:
    """Pairs of our modules: importer and imported."""
    modules = {module_of(path): path for path in SOURCES}
    named = (
        (name, owner(each, modules))
        for name, path in modules.items()
        for each in imports(path, for_types=for_types)
    )
    return {
        (importer, imported) for importer, imported in named if imported and importer != imported
    }


def circle(package: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Parts of a package that form an import circle (empty if none do)."""
    below = defaultdict[str, set[str]](set)
    for importer, imported in pairs:
        above, under = part_of(importer, package), part_of(imported, package)
        if above and under and above != under:
            below[above].add(under)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def statements(path: Path) -> int:
    """Statements of a file without its docstrings."""
    nodes = [
        node
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.stmt)
    ]
    return sum(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in nodes
    )


def functions(path: Path) -> list[str]:
    """Names of a file's functions, special methods left out."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        node.name
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
    ]
    return [name for name in found if not name.startswith("__")]


def lone(pairs: Collection[tuple[str, str]], packages: Collection[str]) -> set[str]:
    """Modules whose only importer is in their own folder."""
    importers = defaultdict[str, set[str]](set)
    for importer, imported in pairs:
        importers[imported].add(importer)
    return {
        module
        for module, found in importers.items()
        if len(found) == 1 and module not in packages and _folder(*found) == _folder(module)
    }


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def report() -> str:
    """Figures of the structure as a table, and the circles below it."""
    modules = {module_of(path): path for path in SOURCES}
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    pairs = arrows()
    alone = lone(pairs, packages)
    lines = [f"{'':28}modules  statements  private  fullest  one importer  arrows"]
    for package in ("hrm_agent", *sorted(name for name in packages if name.count(".") == 1)):
        inside = {name: path for name, path in modules.items() if _is_in(name, package)}
        named = [name for path in inside.values() for name in functions(path)]
        private = sum(name.startswith("_") for name in named) / max(1, len(named))
        parts = {(part_of(one, package), part_of(other, package)) for one, other in pairs}
        between = [pair for pair in parts if all(pair) and pair[0] != pair[1]]
        row = (
            f"{len(inside):7}  {sum(map(statements, inside.values())):10}  {private:7.0%} "
            f" {_fullest(inside):7}"
        )
        lines.append(f"{package:28}{row}  {len(alone & inside.keys()):12}  {len(between):6}")
    found = {name: circle(name, pairs) for name in sorted(packages)}
    lines += [f"circle in {name}: {' -> '.join(parts)}" for name, parts in found.items() if parts]
    return "\n".join(lines)


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _fullest(modules: Mapping[str, Path]) -> int:
    """Most modules in one folder, `__init__.py` not counted."""
    counts = defaultdict[Path, int](int)
    for path in modules.values():
        counts[path.parent] += path.name != "__init__.py"
    return max(counts.values(), default=0)


if __name__ == "__main__":
    print(report())
