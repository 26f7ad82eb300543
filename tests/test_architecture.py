"""Imports that each package may have, read from the source, and modules that stay out of memory
until needed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise, zip_longest
from pathlib import Path

import pytest

from hrm_agent.store import open_store
from tests.support.structure import PROJECT, SOURCES, arrows, circle, imports, module_of, parsed
from tests.support.trajectory.samples import make_trajectory

ALLOWED: dict[str, set[str]] = {
    "hrm_agent": {"hrm_agent.prompts", "hrm_agent.runtime"},  # what is asked for alone
    "hrm_agent.errors": set(),
    "hrm_agent.basics": {"hrm_agent.errors"},
    "hrm_agent.langgraph_format": set(),
    "hrm_agent.config": {"hrm_agent.basics", "hrm_agent.errors"},
    "hrm_agent.answers": {"hrm_agent.basics"},
    "hrm_agent.trajectory": {
        "hrm_agent",
        "hrm_agent.basics",
        "hrm_agent.errors",
        "hrm_agent.langgraph_format",
    },
    "hrm_agent.draws": {"hrm_agent.errors", "hrm_agent.langgraph_format", "hrm_agent.trajectory"},
    "hrm_agent.import_by_name": {"hrm_agent.errors", "hrm_agent.trajectory"},
    "hrm_agent.retrieval": {
        "hrm_agent.answers",
        "hrm_agent.basics",
        "hrm_agent.errors",
        "hrm_agent.trajectory",
    },
    "hrm_agent.environment": {
        "hrm_agent",
        "hrm_agent.basics",
        "hrm_agent.errors",
        "hrm_agent.trajectory",
    },
    "hrm_agent.prompts": {"hrm_agent.errors", "hrm_agent.import_by_name"},
    "hrm_agent.prompts_file": {"hrm_agent.basics", "hrm_agent.config", "hrm_agent.errors"},
    "hrm_agent.models": {
        "hrm_agent.basics",
        "hrm_agent.errors",
        "hrm_agent.prompts",
        "hrm_agent.trajectory",
    },
    "hrm_agent.tools": {
        "hrm_agent.answers",
        "hrm_agent.basics",
        "hrm_agent.environment",
        "hrm_agent.errors",
        "hrm_agent.import_by_name",
        "hrm_agent.langgraph_format",
        "hrm_agent.models",
        "hrm_agent.retrieval",
        "hrm_agent.trajectory",
    },
    "hrm_agent.rewards": {
        "hrm_agent.answers",
        "hrm_agent.basics",
        "hrm_agent.environment",
        "hrm_agent.errors",
        "hrm_agent.import_by_name",
        "hrm_agent.models",
        "hrm_agent.trajectory",
    },
    "hrm_agent.store": {
        "hrm_agent.basics",
        "hrm_agent.errors",
        "hrm_agent.import_by_name",
        "hrm_agent.langgraph_format",
        "hrm_agent.trajectory",
    },
}
"""Package -> packages that it may import, beside itself. No package is above another that is above
it.
"""
CORE = set(ALLOWED)
ALLOWED |= {
    "hrm_agent.graphs": CORE,
    "hrm_agent.testing": CORE,
    "hrm_agent.runtime": CORE,
    "hrm_agent.training": CORE | {"hrm_agent.graphs", "hrm_agent.runtime"},
    "hrm_agent.__main__": {"hrm_agent.cli"},
    "hrm_agent.viewer": CORE | {"hrm_agent.graphs", "hrm_agent.runtime", "hrm_agent.training"},
    "hrm_agent.cli": (
        CORE | {"hrm_agent.graphs", "hrm_agent.runtime", "hrm_agent.training", "hrm_agent.viewer"}
    ),
}
FRONT_DOORS = {
    "hrm_agent.graphs.parts.prompts",
    "hrm_agent.runtime.episode",
    "hrm_agent.runtime.execution.run_group",
    "hrm_agent.runtime.newest_state",
    "hrm_agent.runtime.replay.adopting",
    "hrm_agent.runtime.replay.ends",
    "hrm_agent.runtime.replay.repeats",
    "hrm_agent.runtime.selection",
    "hrm_agent.runtime.settings",
}
"""Modules of agents, and of what runs them, that a trainer may import."""


def home_of(module: str) -> str:
    """`hrm_agent.models.chat` -> `hrm_agent.models`."""
    return ".".join(module.split(".")[:2])


def test_imports_point_one_way() -> None:
    assert {home_of(module_of(path)) for path in SOURCES} <= ALLOWED.keys(), (
        "a package without a place in the order"
    )
    wrong = {module_of(path): found for path in SOURCES if (found := wrong_imports(path))}
    assert wrong == {}


def wrong_imports(path: Path) -> set[str]:
    home = home_of(module_of(path))
    ours = {home_of(name) for name in imports(path) if name.split(".")[0] == "hrm_agent"}
    return ours - ALLOWED[home] - {home, "hrm_agent.__version__"}


def test_a_wrong_import_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "def f():\n    from hrm_agent.training.grpo import train\n    import hrm_agent.cli.main\n"
    )
    assert {home_of(name) for name in imports(tmp_path / "x.py")} == {
        "hrm_agent.training",
        "hrm_agent.cli",
    }


def test_training_reaches_agents_only_through_the_front_door() -> None:
    for path in (path for path in SOURCES if path.is_relative_to(PROJECT / "training")):
        named = set(imports(path))
        assert not {name for name in named if name.split(".")[0] == "langgraph"}, module_of(path)
        inside = {
            name for name in named if home_of(name) in {"hrm_agent.graphs", "hrm_agent.runtime"}
        }
        assert {name for name in inside if not name.startswith(tuple(FRONT_DOORS))} == set(), (
            module_of(path)
        )


def test_no_package_goes_round_in_a_circle() -> None:
    """Modules and packages of every package can be ordered so that each imports only earlier ones."""
    pairs = arrows(for_types=False)
    packages = [module_of(path) for path in SOURCES if path.name == "__init__.py"]
    assert {package: found for package in packages if (found := circle(package, pairs))} == {}


HEAVY = {"torch", "transformers"}
KEPT_OUT = {
    "import hrm_agent": HEAVY | {"langgraph", "pydantic"},
    "from hrm_agent.cli.main import main; main(['--help'])": HEAVY | {"langgraph", "pydantic"},
    "import hrm_agent.trajectory, hrm_agent.store, hrm_agent.models, hrm_agent.tools": HEAVY,
    "from hrm_agent.graphs import reasoning, research, tool_loop": HEAVY,
    "import hrm_agent.runtime.episode, hrm_agent.runtime.selection.strategies": HEAVY,
    "import hrm_agent.cli.records.history, hrm_agent.cli.records.lint, hrm_agent.cli.runs.run": (
        HEAVY
    ),
    "import hrm_agent.training.rollout.collect, hrm_agent.training.evaluation.evaluate": HEAVY,
}
"""Program -> modules that neither it nor the programs above it import. All run in one process."""


@pytest.mark.whole
def test_what_stays_out_of_memory() -> None:
    looked = [
        f"{program}\nfound[{program!r}] = sorted({out!r} & sys.modules.keys())"
        for program, out in KEPT_OUT.items()
    ]
    check = "\n".join(["import sys; found = {}", *looked, "print(found)"])
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    assert done.stdout.splitlines()[-1] == str({program: [] for program in KEPT_OUT})


def loaded(program: str, names: set[str]) -> str:
    """List of the `names` that are imported when a program has run."""
    check = f"import sys; {program}; print(sorted({names!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "words", [["history"], ["show", "trajectory-1"], ["history", "--help"], ["--version"]]
)
@pytest.mark.whole
def test_the_journal_is_shown_without_langgraph(words: list[str], tmp_path: Path) -> None:
    """A list of runs is looked at often, and is to be there at once."""
    sample = make_trajectory()
    with open_store(tmp_path / "store.db") as store:
        store.journal.write_trajectory(sample)
        for call in sample.calls:
            store.journal.write_call(call)
    where = (
        [] if "--help" in words or "--version" in words else ["--store", str(tmp_path / "store.db")]
    )
    program = f"""
from hrm_agent.cli.main import main
try:
    assert main({[*words, *where]}) == 0
except SystemExit as end:  # of --help
    assert end.code == 0
"""
    heavy = {"torch", "transformers", "numpy", "langgraph", "langchain_core", "langchain"}
    assert loaded(f"exec({program!r})", heavy) == "[]"


@pytest.mark.parametrize(
    "package",
    ["hrm_agent.retrieval", "hrm_agent.retrieval.index", "hrm_agent.store", "hrm_agent.tools"],
)
def test_names_that_are_loaded_when_asked_for_are_there(package: str) -> None:
    """Pyright reads their imports under TYPE_CHECKING; where they are found at run time is written
    a second time.
    """
    module = import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)


SAME_NAME: dict[str, str] = {}
"""Public class that two modules define -> reason."""


def test_a_public_class_is_the_only_one_of_its_name() -> None:
    """Searches for `class NAME` find the one that is meant."""
    homes = defaultdict[str, list[str]](list)
    for path in SOURCES:
        for node in parsed(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module_of(path))
    assert {
        name: found for name, found in homes.items() if len(found) > 1 and name not in SAME_NAME
    } == {}
    assert {name for name in SAME_NAME if len(homes[name]) < 2} == set(), "is the only one now"


def exported(path: Path) -> list[str]:
    for node in parsed(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return ast.literal_eval(value)
            case _:
                pass
    return []


def test_exports_are_sorted_and_single() -> None:
    """Pyright checks that they are defined."""
    names = {module_of(path): exported(path) for path in SOURCES}
    assert any(names.values())
    assert {
        module for module, found in names.items() if found != sorted(set(found), key=_by_kind)
    } == set()


def _by_kind(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_files_say_what_they_are() -> None:
    texts = {
        module_of(path): path.read_text(encoding="utf-8") for path in SOURCES if path.stat().st_size
    }
    assert {
        module for module, text in texts.items() if not ast.get_docstring(parsed(text))
    } == set()


EVERY_FIELD = {
    "hrm_agent.config",
    "hrm_agent.runtime.settings",
    "hrm_agent.training.config.parts",
    "hrm_agent.training.config.commands",
    "hrm_agent.trajectory.call_facts",
    "hrm_agent.trajectory.enums",
    "hrm_agent.trajectory.schema",
}
"""Modules whose field docstrings are read by users, as `--help` or as the published format: every
class counts.
"""
RECORDS = {
    "BaseChatModel",
    "BaseModel",
    "BaseRetriever",
    "BaseTool",
    "NamedTuple",
    "TypedDict",
    "dataclass",
}
"""Bases and decorators that make the names in a class its fields."""
WITHOUT_FIELD_DOCSTRINGS: dict[str, str] = {}
"""Public class whose fields need no docstrings -> reason."""
LEANING = re.compile(r"likewise|as above|as below|here and below|so the next", re.IGNORECASE)
"""Phrases that refer to a neighbouring docstring: each field's docstring has to be complete by
itself.
"""


def name_of(node: ast.expr) -> str:
    """The last name of a base or decorator: `dataclass(frozen=True)` -> `dataclass`, `Generic[T]`
    -> `Generic`.
    """
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return name_of(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def classes_in(source: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(parsed(source)) if isinstance(node, ast.ClassDef)]


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Classes by module."""
    return {module_of(path): classes_in(path.read_text(encoding="utf-8")) for path in SOURCES}


def makers_of(found: ast.ClassDef, known: dict[str, set[str]]) -> set[str]:
    """Names of all bases and decorators of a class, those of its bases included as far as they are
    `known`.
    """
    names, waiting = set[str](), {name_of(node) for node in (*found.bases, *found.decorator_list)}
    while waiting:
        names |= waiting
        waiting = {above for name in waiting for above in known.get(name, ())} - names
    return names


def is_text(node: ast.AST | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def undocumented(found: ast.ClassDef) -> list[str]:
    """Public fields of a class without a string under them."""
    missing: list[str] = []
    for statement, following in zip_longest(found.body, found.body[1:]):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                private = name.startswith("_") or name == "model_config"
                missing += [] if private or is_text(following) else [name]
            case _:
                pass
    return missing


def test_every_public_field_has_a_docstring() -> None:
    known = {
        each.name: {name_of(node) for node in (*each.bases, *each.decorator_list)}
        for found in classes().values()
        for each in found
    }
    asked = {
        f"{module}.{each.name}": each
        for module, found in classes().items()
        for each in found
        if module in EVERY_FIELD
        or (not each.name.startswith("_") and makers_of(each, known) & RECORDS)
    }
    missing = {name: fields for name, each in asked.items() if (fields := undocumented(each))}
    assert {
        name: fields for name, fields in missing.items() if name not in WITHOUT_FIELD_DOCSTRINGS
    } == {}
    assert WITHOUT_FIELD_DOCSTRINGS.keys() - missing.keys() == set(), "has none missing now"


def test_a_field_without_a_docstring_would_be_seen() -> None:
    first, second = classes_in(
        'class A(pydantic.BaseModel):\n    x: int\n    """Told."""\n    y: int\n    _z: int\nclass'
        " B(A):\n    z = 1\n"
    )
    assert makers_of(second, {"A": makers_of(first, {})}) & RECORDS == {"BaseModel"}
    assert (undocumented(first), undocumented(second)) == (["y"], ["z"])


def docstrings_of_attributes(path: Path) -> Iterator[str]:
    """Strings under assignments: of fields, of attributes in functions, of a module's names."""
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for statement, following in pairwise(body if isinstance(body, list) else ()):
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and is_text(following):
                yield following.value.value


def test_each_docstring_of_a_field_stands_by_itself() -> None:
    """Readers see it alone: in `--help`, in a tooltip, in a row of a table."""
    leaning = {
        module_of(path): list(filter(LEANING.search, docstrings_of_attributes(path)))
        for path in SOURCES
    }
    assert {module: texts for module, texts in leaning.items() if texts} == {}


TESTS_OF_NO_PACKAGE = {
    "hrm_agent.benchmarks",
    "hrm_agent.environment.attacks",
    "hrm_agent.examples",
}
"""Tests of what stands outside of the packages, and the corpus of attacks."""


def test_tests_stand_in_the_folder_of_their_package() -> None:
    """`tests/graphs/research` has the tests of `graphs/research`, `tests/store` those of
    `hrm_agent/store`.
    """
    folders = {
        path.parent.relative_to(PROJECT / "tests")
        for path in (PROJECT / "tests").rglob("test_*.py")
    }
    packages = {module_of(path) for path in SOURCES if path.name == "__init__.py"}
    tested = {".".join(("hrm_agent", *folder.parts)) for folder in folders}
    assert tested - packages - TESTS_OF_NO_PACKAGE == set(), "tests of a package that is not there"


def test_the_map_for_contributors_is_of_the_folders() -> None:
    page = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## The map")[2].partition("**Reading order.**")[0]
    shown: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE):
        folders = re.findall(r"`([\w/]+/)`", row[0])
        shown |= set(folders)
        shown |= {
            folders[0] + inner for inner in re.findall(r"`(\w+/)`", row[1]) if len(folders) == 1
        }
    assert not {folder for folder in shown if not (PROJECT / folder).is_dir()}
    packages = {
        str(path.parent.relative_to(PROJECT)) + "/"
        for path in SOURCES
        if path.name == "__init__.py"
    }
    wanted = {
        package
        for package in packages
        if package.count("/") == 2 or package.startswith("hrm_agent/cli/")
    }
    assert wanted - shown - {"hrm_agent/cli/"} == set(), "packages that the map leaves out"
