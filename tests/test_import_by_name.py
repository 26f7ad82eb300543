"""A user's types have one name wherever their project lies and however it is run, and threads that
hold them resume.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import ormsgpack
import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.import_by_name import (
    file_named,
    import_by_name,
    natural_name,
    stem_of,
    types_by_name,
)
from hrm_agent.store import open_store
from hrm_agent.store.upkeep.verification import ValueCount, verify
from hrm_agent.store.values.refusals import RefusedValue, UnknownType
from hrm_agent.store.values.serializer import StrictSerializer

MODELS = """
from enum import Enum
from typing import Any, NamedTuple
from pydantic import BaseModel
import pydantic.v1 as v1

class Plan(BaseModel):
    steps: list[str]
    pairs: Any = None

class Old(v1.BaseModel):
    a: int

class Kind(Enum):
    ONE = 1

class Pair(NamedTuple):
    a: int
    b: int
"""
AGENT = """
from dataclasses import dataclass
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from models_beside import Kind, Old, Pair, Plan

class Home:
    @dataclass
    class Note:
        held: tuple[int, ...]

class State(TypedDict, total=False):
    task: str
    plan: Plan
    old: Old
    kind: Kind
    pairs: list[Pair]
    note: Home.Note
    answer: str

def make(state):
    return {"plan": Plan(steps=["a"], pairs={(1, 2)}), "old": Old(a=1), "kind": Kind.ONE, "pairs": [Pair(1, 2)],
            "note": Home.Note((1,))}

def ask(state):
    interrupt("go on?")
    return {}

def use(state):
    return {"answer": " ".join(repr(state[name]) for name in ("plan", "old", "kind", "pairs", "note"))}

builder = StateGraph(State)
for node in (make, ask, use):
    builder.add_node(node.__name__, node)
builder.add_edge(START, "make")
builder.add_edge("make", "ask")
builder.add_edge("ask", "use")
graph = builder.compile()

if __name__ == "__main__":
    graph.invoke({"task": "x"}, {"configurable": {"thread_id": "t"}})
"""
ANSWER = (
    "Plan(steps=['a'], pairs={(1, 2)}) Old(a=1) <Kind.ONE: 1> [Pair(a=1, b=2)] Home.Note(held=(1,))"
)


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hrm_agent", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


WAYS = {
    "a file": (
        ["run", "x", "--graph", "./own_agent.py:graph", "--thread", "t"],
        "./own_agent.py:graph",
    ),
    "a program": (["record"], "./own_agent.py:graph"),
    "a module": (
        ["run", "x", "--graph", "own_agent:graph", "--thread", "t"],
        "./own_agent.py:graph",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_with_types_of_ones_own_resumes_in_a_folder_of_another_name(
    way: str, tmp_path: Path
) -> None:
    (words, graph), store = WAYS[way], str(tmp_path / "s.db")
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    (one / "models_beside.py").write_text(MODELS)
    (one / "own_agent.py").write_text(AGENT)
    program = ["--", sys.executable, "own_agent.py"] if words == ["record"] else []
    command(one, *words, "--store", store, *program)
    one.rename(two)
    # however it was named
    command(two, "resume", "t", "--answer", "yes", "--graph", graph, "--store", store)
    with open_store(store) as opened:
        (found,) = opened.journal.trajectories()
        assert found.answer == ANSWER
        count = ValueCount()
        assert "which is not allowed" in " ".join(verify(opened, (), count))
        assert "own_agent.Home.Note" in " ".join(count.refused.values()) and count.made
    assert "equal, byte for byte" in command(
        two, "replay", "t", "--graph", "./own_agent.py:graph", "--store", store
    )


LAYOUTS = {
    ("agent.py",): "agent",
    ("pyproject.toml", "agent.py"): "agent",
    ("pyproject.toml", "src/pkg/__init__.py", "src/pkg/agent.py"): "pkg.agent",
    ("langgraph.json", "agents/agent.py"): "agents.agent",
    ("langgraph.json", "back/app/__init__.py", "back/app/agent.py"): "app.agent",
    ("pyproject.toml", "src/__init__.py", "src/pkg/__init__.py", "src/pkg/agent.py"): "pkg.agent",
    ("pkg/__init__.py", "pkg/inner/__init__.py", "pkg/inner/agent.py"): "pkg.inner.agent",
}


@pytest.mark.parametrize("files", LAYOUTS)
def test_a_file_has_the_name_that_its_project_gives_it(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    assert natural_name(import_by_name(files[-1], str(tmp_path)).__name__) == LAYOUTS[files]


def test_an_earlier_local_name_is_found_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("from enum import Enum\nclass Kind(Enum):\n    ONE = 1\n")
    module = import_by_name("early.py", str(tmp_path))
    assert stem_of("user_graph_early_0123abcd") == "early" == stem_of(module.__name__)
    serializer = StrictSerializer([(module.__name__, "Kind")])
    stored = serializer.dumps_typed(module.Kind.ONE)[1]
    assert b"user_graph" not in stored and b"early" in stored
    for earlier in ("user_graph_early_0123abcd", "__main__", "elsewhere.early"):
        data = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb([earlier, "Kind", 1])))
        assert serializer.loads_typed(("msgpack", data)) is module.Kind.ONE
    with pytest.raises(UnknownType):
        StrictSerializer().loads_typed(("msgpack", stored))


def test_two_files_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    modules = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twin.py").write_text(
            "from enum import Enum\nclass Kind(Enum):\n    ONE = 1\n"
        )
        modules.append(import_by_name("twin.py", str(tmp_path / folder)))
    names = [(module.__name__, "Kind") for module in modules]
    for module, name in zip(modules, names, strict=True):
        serializer = StrictSerializer([name])
        assert serializer.loads_typed(serializer.dumps_typed(module.Kind.ONE)) is module.Kind.ONE
    both = StrictSerializer(names)
    with pytest.raises(RefusedValue, match="two files of one name"):
        both.loads_typed(StrictSerializer(names[:1]).dumps_typed(modules[0].Kind.ONE))


def test_a_module_beside_a_file_is_not_another_projects(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_of_two.py").write_text("")
        (tmp_path / folder / f"needs_{folder}.py").write_text("import beside_of_two\n")
    import_by_name("one/needs_one.py", str(tmp_path))
    with pytest.raises(
        ImportError,
        match=r"imports beside_of_two, but this process has already loaded .*one.beside_of_two.py",
    ):
        import_by_name("two/needs_two.py", str(tmp_path))


def test_a_type_of_a_module_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'gone\.module:Plan' does not import: ModuleNotFoundError"
    ):
        types_by_name(["gone.module:Plan"])


def test_a_file_that_two_threads_want_at_once_is_run_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "slow_agent.py"
    path.write_text(
        "import threading\n\nthreading.Event().wait(0.3)\nGRAPH = object()\n", encoding="utf-8"
    )
    together = Barrier(2)

    def get(_: int) -> object:
        together.wait()
        return import_by_name(path.name, str(tmp_path)).GRAPH

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(get, range(2))
    assert first is second


def test_a_file_of_a_package_imports_from_beside_it_and_above(tmp_path: Path) -> None:
    inner = tmp_path / "src" / "pack_of_relatives" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (inner.parent / "models.py").write_text("class Plan:\n    pass\n")
    (inner / "agent.py").write_text("from ..models import Plan\nfrom . import near\n")
    (inner / "near.py").write_text("import pack_of_relatives.models\n")
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("")
    module = import_by_name("src/pack_of_relatives/inner/agent.py", str(tmp_path))
    assert (
        module.Plan.__module__ == "pack_of_relatives.models"
        and module.near.pack_of_relatives.models.Plan is module.Plan
    )
    other = tmp_path / "other" / "pack_of_relatives"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "agent.py").write_text("from .models import Plan\n")
    with pytest.raises(
        ImportError, match=r"its own package, pack_of_relatives, but .* Python finds .*src"
    ):
        import_by_name("other/pack_of_relatives/agent.py", str(tmp_path))


def test_a_module_and_its_file_name_one_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pkg").mkdir()
    for file in ("agent.py", "pkg/__init__.py", "pkg/agent.py"):
        (tmp_path / file).write_text("")
    monkeypatch.chdir(tmp_path)
    assert (
        file_named("agent:graph")
        == file_named("./agent.py:graph")
        == file_named(f"{tmp_path}/agent.py:graph")
    )
    assert (
        file_named("pkg.agent:graph")
        == file_named("pkg/agent.py:graph")
        != file_named("agent:graph")
    )
    assert file_named("pkg:graph") == file_named("./pkg/__init__.py:graph")
    assert file_named("agent:other") != file_named("agent:graph")
    assert [file_named(name) for name in ("tool_loop", "not_there:graph")] == [
        "tool_loop",
        "not_there:graph",
    ]
