"""Tests of what a diff touches: `python -m tests.support.changed` prints their paths.

It compares the working tree, new files included, with the commit that is named (by default HEAD, or
the commit before it if nothing has changed since). A source file is tested by the file of its
mirrored path (`training/select/roc.py` by `tests/training/select/test_roc*.py`), or else by the
folder of its package.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["changed_files", "paths_to_test"]

PROJECT = Path(__file__).parents[2]
ALWAYS = ("tests/test_architecture.py", "tests/test_language.py")
"""Quick tests of rules that concern every source file."""


def changed_files(since: str | None = None) -> list[str]:
    """Paths that differ from a commit, relative to the repository."""
    listed = _git("diff", "--name-only", since or "HEAD") + _git(
        "ls-files", "--others", "--exclude-standard"
    )
    return listed or _git("diff", "--name-only", "HEAD~1", "HEAD")


def paths_to_test(files: Iterable[str]) -> list[str]:
    """Paths of test files and folders to run, without those inside another one."""
    found = {str(each) for file in files for each in _paths_for(Path(file))}
    if not found:
        return []
    found.update(ALWAYS)
    return sorted(
        each for each in found if not any(each.startswith(f"{other}/") for other in found)
    )


def _paths_for(file: Path) -> list[Path]:
    if file.suffix == ".md":
        return [Path("tests/test_docs.py")]
    if file.parts[0] == "tests":
        if file.name.startswith("test_"):
            return [file] if (PROJECT / file).exists() else []
        folder = Path("tests", *file.parts[2:-1]) if file.parts[1] == "support" else file.parent
        return [] if folder == Path("tests") else [_existing(folder)]
    if file.suffix != ".py":
        return []
    place = Path(*file.parts[1:] if file.parts[0] == "hrm_agent" else file.parts)
    if place.parts[0] == "benchmarks":
        return [Path("tests/test_benchmarks.py")]
    mirrored = Path("tests") / place.parent
    named = sorted((PROJECT / mirrored).glob(f"test_{place.stem}*.py"))
    if named:
        return [each.relative_to(PROJECT) for each in named]
    return [_existing(mirrored)] if len(mirrored.parts) > 1 else []


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above that exists."""
    while not (PROJECT / folder).is_dir():
        folder = folder.parent
    return folder


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


if __name__ == "__main__":
    print(" ".join(paths_to_test(changed_files(*sys.argv[1:2]))))
