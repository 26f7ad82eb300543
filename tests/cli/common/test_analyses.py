"""Results of analyses that commands save in a run's folder."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.cli.common.analyses import save_result

WORDS = ["RUN", "a 'task'", "--store", "postgresql://me:secret@host/db", "--json"]


def save(folder: Path, says: str, number: int, **display: Any) -> list[str]:
    arguments = Namespace(run=folder, store=WORDS[3], says=says, **display)
    return save_result("why", WORDS, arguments, title="a\nb " + "c" * 300, result={"n": number})


def test_the_same_arguments_replace_a_result(tmp_path: Path) -> None:
    assert save(tmp_path / "a run", "x", 1, top=1) == [f"hrm-agent view '{tmp_path}/a run'"]
    save(tmp_path / "a run", "x", 2, top=9)
    (path,) = (tmp_path / "a run" / "analyses").iterdir()
    text = path.read_text()
    assert json.loads(text) == {
        "kind": "why",
        "title": "a b " + "c" * 196 + "...",
        "command": "hrm-agent why RUN 'a '\"'\"'task'\"'\"'' --store postgresql://me@host/db",
        "result": {"n": 2},
    }
    save(tmp_path / "a run", "y", 3)
    assert len([*path.parent.iterdir()]) == 2


def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "analyses").write_text("a file in the place of the folder")
    assert save(tmp_path, "x", 1) == []
    assert capsys.readouterr().err.startswith("hrm-agent: The result is not saved for the viewer")
