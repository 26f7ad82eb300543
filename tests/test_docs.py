"""The code of README.md and docs/ runs as printed.

Each page has a folder of its own, in which its blocks run from top to bottom: `python` in one
namespace, `bash` line by line; a block that names a file (`python own.py`) is saved as that file.
Of the lines of bash, `hrm-agent` is run (in the background until the page's end, if it ends in
`&`), `sh` and what it is piped to are run by bash, `python -m pytest` runs a file of the page and
`python -m hrm_agent...` a module of the package, `torchrun` its processes, a `make` target has to
exist, and a few commands that would change the machine are only recognised; anything else is a
mistake. A page with a block under a comment `<!-- slow -->` is left to the slow tests, as are a few
that take long. A page with `after: OTHER` in its front matter runs the blocks of OTHER first, in
one folder; OTHER has no test of its own then.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from hrm_agent.cli.main import main
from hrm_agent.training.tasks.packages import GROUP

pytestmark = pytest.mark.whole

PROJECT = Path(__file__).parents[1]
PAGES = [*PROJECT.glob("README.md"), *sorted((PROJECT / "docs").glob("*.md"))]
MENTIONED = {"cd", "git", "pip", "python", "source"}
KILLED = re.compile(r"hrm-agent (.*?)\s*# Ctrl-C")
_FENCE = re.compile(
    r"^(?P<slow><!-- slow -->\n+)?```(?P<language>\w*) ?(?P<file>[\w.]*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


_FRONT_MATTER = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    file: str
    code: str
    slow: bool


def blocks(page: Path) -> list[Block]:
    found = _FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(m["language"], m["file"], m["code"], m["slow"] is not None) for m in found]


def has_slow_blocks(page: Path) -> bool:
    return any(block.slow for block in blocks(page))


def front_matter(page: Path) -> dict[str, str]:
    """Front matter of a page: `description`, which search engines show, and `after`."""
    found = _FRONT_MATTER.match(page.read_text(encoding="utf-8"))
    return yaml.safe_load(found[1]) if found else {}


def begun_by() -> set[str]:
    """Pages that run at the beginning of another one."""
    return {front_matter(page).get("after", "") for page in PAGES}


def run_page(page: Path) -> None:
    if before := front_matter(page).get("after"):
        run_page(page.with_name(before))
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem}"}
    with ExitStack() as shell:
        for block in blocks(page):
            if block.file:
                Path(block.file).write_text(block.code)
            elif block.language == "python":
                exec(
                    compile(block.code, f"{page.name}: python block", "exec", dont_inherit=True),
                    namespace,
                )
            elif block.language in ("bash", "console", "sh"):
                for line in block.code.replace("\\\n", " ").splitlines():
                    run_line(line.removeprefix("$ "), page, shell)


def run_line(line: str, page: Path, shell: ExitStack) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if found := KILLED.fullmatch(line):
        with running(shlex.split(found[1])) as process:
            process.kill()
    elif words[0] == "hrm-agent" and words[-1] == "&":
        shell.enter_context(running(words[1:-1]))
    elif words[0] == "hrm-agent":
        assert main(words[1:]) == 0, f"{page.name}: {line}"
    elif words[:2] == ["python", "-m"] and words[2].split(".")[0] in ("pytest", "hrm_agent"):
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        ended = subprocess.run([sys.executable, *words[1:]], env=own, check=False)
        assert ended.returncode == 0, f"{page.name}: {line}"
    elif words[0] == "torchrun":
        # else its ranks look for each other by the machine's name
        alone = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        assert subprocess.run([*launcher, *words[1:]], env=alone, check=False).returncode == 0, (
            f"{page.name}: {line}"
        )
    elif words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) - {word for word in words if "=" in word} <= set(targets), (
            f"{page.name}: {line}"
        )
    else:
        assert words[0] in MENTIONED, f"{page.name}: {line}"


@contextmanager
def running(words: list[str]) -> Generator[subprocess.Popen[str]]:
    """A command in the background, from its first line of output to its good end, when told, or to
    its kill.
    """
    command = [sys.executable, "-m", "hrm_agent.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process
        finally:
            process.terminate()
        process.stdout.read()
    assert process.returncode in (0, -signal.SIGKILL)


LONG_PAGES = {"deployment.md", "viewer.md"}
"""Seconds each, of commands that quick tests run as well: they are left to the slow tests."""
QUICK_PAGES = [
    pytest.param(page, marks=pytest.mark.slow if page.name in LONG_PAGES else ())
    for page in PAGES
    if not has_slow_blocks(page) and page.name not in begun_by()
]


@pytest.mark.parametrize("page", QUICK_PAGES, ids=lambda page: page.name)
@pytest.mark.timeout(600)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_a_reader_in(tmp_path, monkeypatch)
    run_page(page)
    forget_other_trainers()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if has_slow_blocks(page) and page.name not in begun_by()],
    ids=lambda page: page.name,
)
@pytest.mark.timeout(3000)
def test_the_slow_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_a_reader_in(tmp_path, monkeypatch)
    run_page(page)
    forget_other_trainers()


def forget_other_trainers() -> None:
    """Reset accelerate's settings, which TRL's trainers change for the whole process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


def as_a_reader_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.syspath_prepend(folder)  # of the Python that a reader runs in this folder
    # as `activate` does
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def test_blocks_are_found() -> None:
    assert {block.language for block in blocks(PROJECT / "docs" / "guide.md")} == {
        "bash",
        "python",
        "text",
    }


def test_each_page_says_what_it_is_for() -> None:
    """Descriptions are one line of plain text, for search engines."""
    for page in PAGES:
        if page.name != "README.md":
            words = front_matter(page)["description"]
            assert 40 <= len(words) <= 160 and not re.search(r"[`*\[\]]", words), page.name


def test_an_unknown_command_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match=r"page\.md: frobnicate"):
        run_line("frobnicate --now", Path("page.md"), ExitStack())
    with pytest.raises(AssertionError, match=r"page\.md: make unheard"):
        run_line("make unheard", Path("page.md"), ExitStack())


@pytest.mark.parametrize("page", [*PAGES, PROJECT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(
        r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")
    ):
        led_to = page.parent / target if target else page
        assert led_to.exists(), target
        assert not anchor or anchor in anchors(led_to), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives to the headings of a page: lower case, without punctuation, hyphens
    for spaces.
    """
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


_PATH = re.compile(
    r"`((?:hrm_agent|graphs|training|tests|docs|configs|examples|benchmarks)/[\w./-]*)`"
)
_MODULE = re.compile(r"(?<![\w/.-])hrm_agent(?:\.(?!__)\w+)+")
_COMMAND = re.compile(
    r"python -m ((?:graphs|training|benchmarks|examples|hrm_agent|tests)\b(?:\.\w+)*)(?!\.?\$)"
)
LINKED = {"graphs", "training"}  # imported as packages of hrm_agent only


def test_files_and_modules_that_are_named_are_there() -> None:
    """Names are checked in the pages, configurations and cards of the small policies, and in the
    docstrings and comments of the code.
    """
    texts = [
        *PAGES,
        PROJECT / "CONTRIBUTING.md",
        PROJECT / "Makefile",
        *(PROJECT / "configs").glob("*.toml"),
    ]
    folders = ("hrm_agent", "graphs", "training", "examples", "benchmarks")
    texts += [path for folder in folders for path in (PROJECT / folder).rglob("*.py")]
    texts += [
        *PROJECT.glob("hrm_agent/models/builtin/*/README.md"),
        *PROJECT.glob("training/small_policy/*.md"),
    ]
    lost: dict[str, str] = {}
    for path in texts:
        text = path.read_text(encoding="utf-8")
        lost |= {name: path.name for name in _PATH.findall(text) if not (PROJECT / name).exists()}
        lost |= {name: path.name for name in set(_MODULE.findall(text)) if not is_named(name)}
        lost |= {name: path.name for name in set(_COMMAND.findall(text)) if not can_be_run(name)}
    # written by `make docs`, `make bench`
    built = {"docs/trajectory.schema.json", "benchmarks/results"}
    built.add(GROUP)  # of entry points, and no module
    assert {name: page for name, page in lost.items() if name.rstrip("/") not in built} == {}


def can_be_run(module: str) -> bool:
    """True if `python -m` can run a module."""
    home = PROJECT.joinpath(*module.split("."))
    there = home.with_suffix(".py").is_file() or (home / "__main__.py").is_file()
    return there and module.partition(".")[0] not in LINKED


@cache
def is_named(name: str) -> bool:
    """True if a dotted name is a module of the package, or is defined at the top of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        home = PROJECT.joinpath(*parts[:length])
        if home.with_suffix(".c").is_file():  # compiled on installation
            return True
        found = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
        if found.is_file():
            return parts[length : length + 1] == [] or parts[length] in names_in(found)
    return False


@cache
def names_in(module: Path) -> set[str]:
    """Names that a module defines or imports, also under TYPE_CHECKING, where packages list what
    they load on demand.
    """
    names: set[str] = set()
    nodes = list[ast.AST](ast.parse(module.read_text(encoding="utf-8")).body)
    while nodes:
        match nodes.pop():
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=[ast.Tuple(elts=targets)]):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.If(body=body, orelse=orelse):
                nodes += [*body, *orelse]
            case _:
                pass
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_pages_import_is_there(page: Path) -> None:
    """Imports are checked without running the pages, which takes minutes."""
    trees = [ast.parse(block.code) for block in blocks(page) if block.language == "python"]
    imports = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    ]
    named = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert {name for name in named if name.startswith("hrm_agent.") and not is_named(name)} == set()
