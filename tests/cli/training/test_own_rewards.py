"""Rubrics that cannot be loaded are reported before any run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize(
    "words", [("collect",), ("eval",), ("train", "rl")], ids=lambda words: words[-1]
)
def test_a_rubric_that_does_not_import_is_told_first(
    words: tuple[str, ...], hrm: Command, tmp_path: Path
) -> None:
    done = hrm(*words, "--rewards", "no.such.module:rubric", "--out", "run")
    assert done.code == 2
    assert "'no.such.module:rubric' does not import: ModuleNotFoundError" in done.err
    assert not (tmp_path / "run").exists()
