"""Pages of the site that are not in docs/: a reference, the command line, and the files that pages
link to.

* The reference is made from docstrings, which mkdocstrings reads without importing anything.
  `REFERENCE` names the modules; the names in `__all__` of each are shown.
* The command line is what `--help-all` prints.
* A link that leaves docs/ (`../examples/own_graph.py`) works on a code host as it is. On the site
  it leads to a page that shows the file.
* A fence such as `python own.py`, which gives the name under which a block is saved, gets that name
  as its title.
"""

from __future__ import annotations

import ast
import io
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).parents[2]
OWN_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}
"""Pages of the site for files at the top of the repository. The first page is the README."""
DESCRIPTIONS = {
    "README.md": (
        "LangGraph agents that learn. One record of every run is resumed from, replayed, looked at and"
        " trained on."
    ),
    "CHANGELOG.md": "What changed in each version of hrm-agent, newest first.",
    "CONTRIBUTING.md": (
        "How to work on hrm-agent, with its checks, where things belong, and how we write."
    ),
}
REFERENCE: dict[str, tuple[str, str, list[str]]] = {
    "records": (
        "Records",
        "Recording programs, the store, and the trajectories in it.",
        ["hrm_agent", "hrm_agent.store", "hrm_agent.trajectory", "hrm_agent.errors"],
    ),
    "models": (
        "Models and tools",
        "What nodes call, which is policies and tools.",
        ["hrm_agent.models", "hrm_agent.tools"],
    ),
    "rewards": (
        "Rewards and tasks",
        "Rubrics, answer readers, judges, and tasks.",
        ["hrm_agent.rewards", "hrm_agent.training.tasks"],
    ),
    "environment": ("Environment", "Where model-written code runs.", ["hrm_agent.environment"]),
    "retrieval": (
        "Retrieval",
        "Tokenizers, chunks, indexes and citations.",
        [
            "hrm_agent.retrieval",
            "hrm_agent.retrieval.index",
            "hrm_agent.retrieval.citations.quotes",
        ],
    ),
    "runtime": (
        "Runtime",
        "Episodes, time travel and replay, from Python.",
        [
            "hrm_agent.runtime.episode",
            "hrm_agent.runtime.settings",
            "hrm_agent.runtime.time_travel.fork",
            "hrm_agent.runtime.time_travel.thread_diff",
            "hrm_agent.runtime.replay.player",
            "hrm_agent.runtime.replay.result",
        ],
    ),
    "graphs": (
        "Graphs",
        "The agents that come with the package, and what they share.",
        [
            "hrm_agent.graphs.tool_loop",
            "hrm_agent.graphs.single_call",
            "hrm_agent.graphs.reasoning.agent",
            "hrm_agent.graphs.reasoning.state",
            "hrm_agent.graphs.research.agent",
            "hrm_agent.graphs.research.state",
            "hrm_agent.graphs.parts.roles",
            "hrm_agent.graphs.parts.budget",
        ],
    ),
    "training": (
        "Training",
        "Configuration, rollouts, advantages, objectives and the loop.",
        [
            "hrm_agent.training.config.commands",
            "hrm_agent.training.config.parts",
            "hrm_agent.training.rollout.collect",
            "hrm_agent.training.grpo",
            "hrm_agent.training.sft",
            "hrm_agent.training.select.roc",
            "hrm_agent.training.update.advantages",
            "hrm_agent.training.update.objectives",
            "hrm_agent.training.records.rescoring",
        ],
    ),
    "testing": ("Testing", "For tests of your own agents.", ["hrm_agent.testing"]),
}
"""Titles, descriptions and modules of the reference pages."""
_FENCE = re.compile(r"^```(\w+) ([\w.-]+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LEAVING = re.compile(r"\]\(((?:\.\./)+)([^)#\s]+)(#[^)\s]*)?\)")
_LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".json": "json",
    ".md": "markdown",
    ".yml": "yaml",
    ".c": "c",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    made = {"reference/commands.md": commands_page()}
    made |= {f"reference/{name}.md": reference_page(*page) for name, page in REFERENCE.items()}
    made |= {OWN_PAGES[name]: at_the_top(name, about) for name, about in DESCRIPTIONS.items()}
    sources = [*made.values(), *(file.content_string for file in files.documentation_pages())]
    for path in sorted({path for text in sources for path in linked(text)}):
        made[file_page(path)] = shown(path)
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Name the blocks that are files, and point links that leave docs/ to pages of the site."""
    here = posixpath.dirname(page.file.src_uri)

    def led(found: re.Match[str]) -> str:
        target = OWN_PAGES.get(found[2]) or file_page(found[2])
        return f"]({posixpath.relpath(target, here or '.')}{found[3] or ''})"

    return _LEAVING.sub(led, _FENCE.sub(r'```\1 title="\2"', markdown))


def linked(text: str) -> Iterator[str]:
    """Files outside docs/ that a page links to and that are not pages of the site."""
    for found in _LEAVING.finditer(_CODE.sub("", text)):
        if found[2] not in OWN_PAGES:
            yield found[2]


def file_page(path: str) -> str:
    return f"files/{path.rstrip('/')}.md"


def shown(path: str) -> str:
    """Page that shows a file, or lists a folder."""
    home = PROJECT / path
    if home.is_dir():
        body = "\n".join(f"* `{path.rstrip('/')}/{each.name}`" for each in sorted(home.iterdir()))
    else:
        body = f"````{_LANGUAGES.get(home.suffix, 'text')}\n{home.read_text(encoding='utf-8')}````"
    return f"---\ndescription: {path}, as it is in the repository.\n---\n\n# {path}\n\n{body}\n"


def at_the_top(name: str, about: str) -> str:
    """Page of a file at the top of the repository. Its links are relative to there."""
    text = f"---\ndescription: {about}\n---\n\n{(PROJECT / name).read_text(encoding='utf-8')}"
    return re.sub(
        r"\]\((?![a-z]+:|#)(?:docs/)?", lambda found: "](" if "docs/" in found[0] else "](../", text
    )


def reference_page(title: str, about: str, modules: list[str]) -> str:
    parts = [
        (
            f"---\ndescription: {about} Python reference.\nsearch:\n  boost: 0.5\n---\n\n#"
            f" {title}\n\n{about}\n"
        )
    ]
    for module in modules:
        names = "".join(f"\n        - {name}" for name in public_names(module))
        parts.append(
            f"::: {module}\n    options:\n      show_root_full_path: true\n      members:{names}\n"
        )
    return "\n".join(parts)


def public_names(module: str) -> list[str]:
    """Names in `__all__` of a module, read without importing it. Raise `LookupError` if there is
    none.
    """
    home = PROJECT.joinpath(*module.split("."))
    path = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
            case _:
                pass
    raise LookupError(f"{path} has no __all__: leave it out of the reference, or give it one.")


def commands_page() -> str:
    """Page with the output of `--help-all`, command by command."""
    sys.path.insert(0, str(PROJECT))
    from hrm_agent.cli.main import COMMAND_GROUPS

    about = "Every command of hrm-agent with its options, as --help-all prints them."
    parts = [
        f"---\ndescription: {about}\nsearch:\n  boost: 0.5\n---\n\n# Command line\n\n{about}\n"
    ]
    for group, commands in COMMAND_GROUPS.items():
        parts.append(f"## {group.capitalize()}\n")
        for command in commands:
            text = help_of(command)
            parts.append(f"### hrm-agent {command}\n\n```text\n{text}```\n")
            parts += [
                f"#### hrm-agent {command} {action}\n\n```text\n{help_of(command, action)}```\n"
                for action in actions(text)
            ]
    return "\n".join(parts)


def help_of(*words: str) -> str:
    from hrm_agent.cli.main import main

    out = io.StringIO()
    with redirect_stdout(out), patch.dict(os.environ, {"COLUMNS": "100"}), suppress(SystemExit):
        main([*words, "--help-all"])
    return out.getvalue().rstrip() + "\n"


def actions(text: str) -> list[str]:
    """Actions of a command that has several, such as `store`, which are listed before its options
    (empty if it has none).
    """
    if not re.search(r"^usage: hrm-agent \w+ (ACTION|\{)", text):
        return []
    return re.findall(r"^  (\w+)  ", text.partition("options:")[0], re.MULTILINE)
