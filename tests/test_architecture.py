"""Which room may import which, read from the source; and what stays out of memory until it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PACKAGES = ("hrm_agent", "graphs", "training")
SOURCES = sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))

ALLOWED = {
    "hrm_agent": set(),
    "hrm_agent.errors": set(),
    "hrm_agent.files": {"hrm_agent.errors"},
    "hrm_agent.intervals": set(),
    "hrm_agent.config": {"hrm_agent.errors", "hrm_agent.files"},
    "hrm_agent.trajectory": {"hrm_agent.errors", "hrm_agent.files"},
    "hrm_agent.retrieval": {"hrm_agent.errors", "hrm_agent.files", "hrm_agent.intervals", "hrm_agent.trajectory"},
    "hrm_agent.environment": {"hrm_agent.errors", "hrm_agent.trajectory"},
    "hrm_agent.models": {"hrm_agent.errors", "hrm_agent.trajectory"},
    "hrm_agent.tools": {
        "hrm_agent.environment",
        "hrm_agent.errors",
        "hrm_agent.models",
        "hrm_agent.retrieval",
        "hrm_agent.trajectory",
    },
    "hrm_agent.store": {"hrm_agent.errors", "hrm_agent.trajectory"},
    "hrm_agent.viewer": {"hrm_agent.errors", "hrm_agent.store", "hrm_agent.trajectory"},
}
"""Room -> rooms that it may import, beside itself."""
CORE = set(ALLOWED)
ALLOWED |= {
    "graphs": CORE,
    "training": CORE | {"graphs"},
    "hrm_agent.cli": CORE | {"graphs", "training"},
}
FRONT_DOORS = {
    "hrm_agent.answers.final_answer",
    "hrm_agent.runtime.episode",
    "hrm_agent.runtime.selection.strategies",
    "hrm_agent.answers.json_repair",
    "hrm_agent.graphs.parts.prompts",
    "hrm_agent.answers.equivalence",
}


def room_of(module: str) -> str:
    """`hrm_agent.models.chat` -> `hrm_agent.models`; `hrm_agent.training.tasks.base` -> `training`."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "hrm_agent" else parts[0]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, those inside functions and under TYPE_CHECKING included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_point_one_way() -> None:
    assert {room_of(module_of(path)) for path in SOURCES} <= ALLOWED.keys(), "a room without a place in the order"
    wrong = {module_of(path): found for path in SOURCES if (found := wrong_imports(path))}
    assert wrong == {}


def wrong_imports(path: Path) -> set[str]:
    room = room_of(module_of(path))
    ours = {room_of(name) for name in imports(path) if name.split(".")[0] in PACKAGES}
    return ours - ALLOWED[room] - {room, "hrm_agent.__version__"}


def test_a_wrong_import_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "def f():\n    from hrm_agent.training.grpo import train\n    import hrm_agent.cli.main\n"
    )
    assert {room_of(name) for name in imports(tmp_path / "x.py")} == {"training", "hrm_agent.cli"}


def test_training_reaches_agents_only_through_the_front_door() -> None:
    for path in (path for path in SOURCES if path.is_relative_to(PROJECT / "training")):
        named = set(imports(path))
        assert not {name for name in named if name.split(".")[0] == "langgraph"}, module_of(path)
        assert {".".join(name.split(".")[:2]) for name in named if name.startswith("graphs.")} <= FRONT_DOORS


@pytest.mark.parametrize(
    ("program", "kept_out"),
    [
        ("import hrm_agent", {"torch", "transformers", "langgraph", "pydantic"}),
        ("import hrm_agent.trajectory, hrm_agent.store, hrm_agent.models, hrm_agent.tools", {"torch", "transformers"}),
        (
            "import hrm_agent.runtime.episode, hrm_agent.graphs.tool_loop, hrm_agent.graphs.reasoning.agent, hrm_agent.graphs.research.agent",
            {"torch", "transformers"},
        ),
        ("import hrm_agent.training.collect, hrm_agent.training.evaluation.evaluate", {"torch", "transformers"}),
        ("from hrm_agent.cli.main import main; main(['--help'])", {"torch", "transformers", "langgraph", "pydantic"}),
        (
            "import hrm_agent.cli.records.history, hrm_agent.cli.records.lint, hrm_agent.cli.runs.run",
            {"torch", "transformers"},
        ),
    ],
)
@pytest.mark.whole
def test_what_stays_out_of_memory(program: str, kept_out: set[str]) -> None:
    check = f"import sys; {program}; print(sorted({kept_out!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout.splitlines()[-1] == "[]"


def exported(path: Path) -> list[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return ast.literal_eval(value)
            case _:
                pass
    return []


def test_exports_are_sorted_and_single() -> None:
    """That they are defined is pyright's business."""
    names = {module_of(path): exported(path) for path in SOURCES}
    assert any(names.values())
    assert {module for module, found in names.items() if found != sorted(set(found), key=_by_kind)} == set()


def _by_kind(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_files_stay_small_and_say_what_they_are() -> None:
    texts = {module_of(path): path.read_text(encoding="utf-8") for path in SOURCES if path.stat().st_size}
    assert {module for module, text in texts.items() if len(text.splitlines()) >= 400} == set()
    assert {module for module, text in texts.items() if not ast.get_docstring(ast.parse(text))} == set()
