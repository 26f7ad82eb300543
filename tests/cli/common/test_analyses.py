"""Results of analyses that commands save in a run's folder."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.cli.common.analyses import save_result
from hrm_agent.training.analysis import saved
from hrm_agent.viewer.run_files import json_file

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


def test_a_result_too_large_for_the_viewer_is_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def saved_by(text: str) -> list[str]:
        arguments = Namespace(run=tmp_path)
        return save_result("why", [], arguments, title="", result={"text": text})

    assert saved_by("")
    (path,) = (tmp_path / "analyses").iterdir()
    most = saved.MOST_BYTES - path.stat().st_size
    assert saved_by("a" * most)
    assert json_file(path.parent, path.name)
    assert saved_by("a" * (most + 1)) == []
    assert "not saved for the viewer: it has 16,777,217 bytes" in capsys.readouterr().err
