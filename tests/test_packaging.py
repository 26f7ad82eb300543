"""Contents of an installation: one name at the top, whatever form it has, and room for packages
called as ours are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from hrm_agent.errors import to_install

pytestmark = pytest.mark.whole

PROJECT = Path(__file__).parents[1]
OWN_GRAPH = """
from langgraph.graph import START, MessagesState, StateGraph

def answer(state):
    return {"messages": [("ai", "<answer>\\\\boxed{mine}</answer>")]}

builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
graph = builder.compile()
"""
STARTUP = "hrm_agent_record.pth"
"""File that Python reads at its start. Its name cannot be imported."""
STARTUP_SOURCE = "hrm_agent/runtime/recording/startup/" + STARTUP
MADE_BY_TOOLS = {"__pycache__", ".ruff_cache"}
OWN_EMBEDDINGS = """
from langchain_core.embeddings import DeterministicFakeEmbedding
embeddings = DeterministicFakeEmbedding(size=8)
"""
OWN_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "owner"
version = "1"
[tool.hatch.build.targets.wheel]
packages = ["graphs", "training"]
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, out: Path, *what: str) -> Sequence[Path]:
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        *what,
        "--outdir",
        out,
        folder,
        cwd=out.parent,
    )
    return sorted(out.iterdir())


class Built(NamedTuple):
    sdist: Path
    from_sdist: Path
    from_checkout: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    wheel, sdist = sorted(build(PROJECT, folder / "both"), key=lambda path: path.suffix == ".gz")
    (direct,) = build(PROJECT, folder / "direct", "--wheel")
    return Built(sdist, wheel, direct)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def test_a_wheel_has_one_name_at_the_top_and_everything_below_it(built: Built) -> None:
    names = names_in(built.from_checkout)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "hrm_agent",
        STARTUP,
    }
    for folder in ("hrm_agent", "graphs", "training"):
        inside = "" if folder == "hrm_agent" else "hrm_agent/"
        sources = {
            inside + str(path.relative_to(PROJECT)) for path in written_files(PROJECT / folder)
        }
        assert sources <= names | {STARTUP_SOURCE}, sources - names
    # and templates, cards, whatever else is no Python
    assert any(name.endswith(".safetensors") for name in names)


def written_files(folder: Path) -> Iterator[Path]:
    """Files written by people or by a training: no bytecode, nothing compiled."""
    for path in folder.rglob("*"):
        if path.is_file() and not MADE_BY_TOOLS.intersection(path.parts) and path.suffix != ".so":
            yield path


def test_the_sdist_makes_the_same_wheel(built: Built) -> None:
    """Files are equal to the byte, except compiled ones and RECORD: what holds for one installed
    holds for the other.
    """
    with zipfile.ZipFile(built.from_sdist) as one, zipfile.ZipFile(built.from_checkout) as other:
        assert set(one.namelist()) == set(other.namelist())
        differing = [name for name in one.namelist() if one.read(name) != other.read(name)]
    assert all(name.endswith((".so", "/RECORD")) for name in differing), differing
    with tarfile.open(built.sdist) as opened:
        assert not [member.name for member in opened if member.issym() or member.islnk()]


def test_what_is_built_can_be_uploaded(built: Built) -> None:
    """Rules of the Python Package Index hold: it accepts the metadata and can show the description."""
    run(
        sys.executable,
        "-m",
        "twine",
        "check",
        "--strict",
        built.sdist,
        built.from_sdist,
        cwd=built.sdist.parent,
    )


class Machine(NamedTuple):
    """An environment with our dependencies, in which nothing of ours is installed yet, and a
    project of its user.
    """

    python: Path
    project: Path

    def pip(self, *words: str | Path) -> None:
        run(
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            *words,
            "--quiet",
            cwd=self.project,
        )

    def hrm_agent(self, *words: str, **environment: str) -> str:
        return run(self.python.with_name("hrm-agent"), *words, cwd=self.project, **environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    packages = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
    ).strip()
    Path(packages, "__dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    project = tmp_path / "project"
    for folder in ("graphs", "training"):
        (project / folder).mkdir(parents=True)
        (project / folder / "__init__.py").write_text(f'OWNER = "user of {folder}"\n')
    (project / "graphs" / "mine.py").write_text(OWN_GRAPH)
    (project / "graphs" / "near.py").write_text(OWN_EMBEDDINGS)
    (project / "texts").mkdir()
    (project / "texts" / "whales.md").write_text(
        "The blue whale feeds almost exclusively on krill."
    )
    (project / "pyproject.toml").write_text(OWN_PROJECT)
    return Machine(python, project)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["wheel", "editable"])
def test_packages_of_a_user_that_are_called_as_ours(
    form: str, built: Built, machine: Machine, tmp_path: Path
) -> None:
    forms = {"wheel": [built.from_checkout], "editable": ["-e", PROJECT]}
    machine.pip("install", "--no-deps", "--no-index", "--no-build-isolation", *forms[form])
    task = (
        "run",
        "What is mine?",
        "--graph",
        "graphs.mine:graph",
        "--policy",
        "scripted:none.jsonl",
        "--thread",
    )
    (machine.project / "none.jsonl").write_text("")
    assert "mine" in machine.hrm_agent(*task, "folder")
    assert "mine" in machine.hrm_agent(*task, "path", PYTHONPATH=".")
    where = ("--vectors", "graphs.near:embeddings", "--store", "documents.db")
    machine.hrm_agent("index", "texts", *where)
    assert "krill" in machine.hrm_agent("search", "krill", *where)
    (own,) = build(machine.project, tmp_path / "own", "--wheel")
    machine.pip("install", "--no-deps", "--no-index", own)
    check = (
        "import graphs, training, hrm_agent.graphs, hrm_agent.training; print(graphs.OWNER,"
        " training.OWNER)"
    )
    assert run(machine.python, "-c", check, cwd=tmp_path) == "user of graphs user of training\n"
    machine.pip("uninstall", "--yes", "owner")
    assert "folder" in machine.hrm_agent("history")
    names = run(
        machine.python,
        "-c",
        "import hrm_agent.graphs.tool_loop as t; print(t.__name__)",
        cwd=tmp_path,
    )
    assert names == "hrm_agent.graphs.tool_loop\n"


def test_an_installation_says_its_version(built: Built, machine: Machine) -> None:
    machine.pip("install", "--no-deps", "--no-index", built.from_sdist)
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert machine.hrm_agent("--version").startswith(f"hrm-agent {declared}, python ")
    assert f"\n## {declared} (" in (PROJECT / "CHANGELOG.md").read_text()


def test_a_variable_records_a_program_of_an_installation(built: Built, machine: Machine) -> None:
    machine.pip("install", "--no-deps", "--no-index", built.from_checkout)
    (machine.project / "theirs.py").write_text(f"{OWN_GRAPH}\ngraph.invoke({{'messages': []}})\n")
    for words in (["theirs.py"], ["-m", "theirs"]):
        run(machine.python, *words, cwd=machine.project, HRM_AGENT_STORE="runs/x.db")
    assert machine.hrm_agent("history", "--store", "runs/x.db").count("answer") == 2
    check = "import sys; print([name for name in sys.modules if name.startswith('hrm_agent')])"
    assert run(machine.python, "-c", check, cwd=machine.project) == "[]\n"


def test_a_checkout_runs_a_graph_of_a_package_that_is_called_as_ours(machine: Machine) -> None:
    (machine.project / "none.jsonl").write_text("")
    task = (
        "run",
        "What is mine?",
        "--graph",
        "graphs.mine:graph",
        "--policy",
        "scripted:none.jsonl",
    )
    words = (machine.python, "-m", "hrm_agent", *task)
    assert "mine" in run(*words, cwd=machine.project, PYTHONPATH=str(PROJECT))


@pytest.mark.parametrize("name", ["graphs", "training"])
def test_a_module_has_one_name(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "import it by that name" in done.stderr


def test_the_oldest_numpy_that_is_declared_is_one_that_py3langid_takes() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    (declared,) = (one for one in map(Requirement, project["dependencies"]) if one.name == "numpy")
    (oldest,) = (one.version for one in declared.specifier if one.operator == ">=")
    (needed,) = (
        one for one in map(Requirement, requires("py3langid") or ()) if one.name == "numpy"
    )
    assert needed.specifier.contains(oldest)


PATH = "file:///home/me/my%20code"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": PATH, "dir_info": {"editable": True}}, "pip install -e '/home/me/my code[train]'"),
        ({"url": PATH, "dir_info": {}}, "pip install '/home/me/my code[train]'"),
        (
            {"url": f"{PATH}/a.whl", "archive_info": {}},
            "pip install '/home/me/my code/a.whl[train]'",
        ),
        (
            {"url": "https://x.org/a.whl", "archive_info": {}},
            "pip install 'hrm-agent[train] @ https://x.org/a.whl'",
        ),
        (
            {"url": "https://x.org/a.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'hrm-agent[train] @ git+https://x.org/a.git@abc'",
        ),
        (None, "pip install 'hrm-agent[train]'"),
    ],
)
def test_what_is_missing_is_installed_from_where_the_package_came(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (about := tmp_path / "hrm_agent-1.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hrm-agent\nVersion: 1\n")
    if origin is not None:
        (about / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    assert to_install.__wrapped__("train") == command


def test_no_hint_names_the_package_by_a_name_that_no_index_has() -> None:
    """`to_install` alone knows what to type."""
    folders = ("hrm_agent", "graphs", "training", "docs")
    texts = [
        PROJECT / "README.md",
        *(path for folder in folders for path in (PROJECT / folder).rglob("*.[pm][yd]")),
    ]
    by_name = re.compile(r"pip install ['\"]?hrm-agent(?!\S* @ )")
    found = [
        str(path) for path in texts if by_name.search(path.read_text()) and path.name != "errors.py"
    ]
    assert found == []
