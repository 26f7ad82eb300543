"""`hrm-agent init NAME`: writes a project folder with an agent, tasks, rewards, a test and a
training configuration.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions
from keyword import iskeyword
from pathlib import Path

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.errors import ConfigError

__all__ = ["run"]

_TEMPLATES = Path(__file__).parent / "project"
_FILES = {
    "README.md": "README.md",
    "agent.py": "agent.py",
    "tasks.py": "tasks.py",
    "rewards.py": "rewards.py",
    "test_agent.py": "test_agent.py",
    "train.toml": "train.toml",
    "pyproject.toml": "pyproject.toml",
    "gitignore": ".gitignore",
    "workflow.yml": ".github/workflows/test.yml",
}
"""Templates with their target names. A template has no leading dot in its name, since such files
would have an effect in this repository.
"""
_PLACE = "PROJECT"
"""Placeholder of the project's name in the templates."""
_NAME = re.compile(r"[A-Za-z](\w*[A-Za-z0-9])?", re.ASCII)
"""Pattern of project names: valid as a Python identifier and as a pip name."""


def run(words: list[str]) -> int:
    """Return 0. Raises `ConfigError` for an invalid name, or a folder that is not empty."""
    parser = Parser(
        "init", "Start a project of your own: an agent, tasks, rewards, a test and a training."
    )
    parser.add_argument(
        "name", metavar="NAME", help="of the folder that is made here, and of the project's package"
    )
    arguments = parser.read(words)
    name = arguments.name
    if not _NAME.fullmatch(name) or iskeyword(name):
        raise ConfigError(
            f"A project cannot be called {name!r}, since the name has to be valid for a Python"
            " package.",
            "A name has letters, digits and _, begins with a letter, does not end with _, and is"
            " not a keyword of Python.",
        )
    if name in {"hrm_agent", *sys.stdlib_module_names, *packages_distributions()}:
        raise ConfigError(
            f"A project cannot be called {name!r}, since an installed module has this name.",
            f"Try my_{name}.",
        )
    folder = Path(arguments.name)
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(
                f"The folder {folder} exists and is not empty.", "Choose another name, or empty it."
            )
        for template, target in _FILES.items():
            text = (
                (_TEMPLATES / template).read_text(encoding="utf-8").replace(_PLACE, arguments.name)
            )
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            (folder / target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be written: {error.strerror}.", "Choose another name."
        ) from error
    output = Output(as_json=arguments.json)
    output.result({"folder": str(folder.resolve()), "files": sorted(_FILES.values())})
    output.say(f"{folder}: {', '.join(_FILES.values())}\n\nNext:\n  cd {folder}\n  pytest")
    output.say(
        "  hrm-agent train rl --config train.toml --out runs/rl\n\nREADME.md has the other"
        " commands."
    )
    return 0
