"""Folders that an analysis leaves behind when its process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.training.analysis.files import _whole

KILLED = """
import os, signal, sys
from pathlib import Path
from hrm_agent.training.analysis.files import _whole

with _whole(Path(sys.argv[1])) as part:
    (part / "report.json").write_text("{}")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def hidden(folder: Path) -> set[Path]:
    return set(folder.glob(".*"))


def test_what_a_killed_analysis_left_is_taken_away_and_what_a_live_one_writes_is_not(
    tmp_path: Path,
) -> None:
    folder, notes = tmp_path / "analysis", tmp_path / ".analysis-my_notes"
    notes.mkdir()
    (notes / "mine.txt").touch()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL and len(hidden(tmp_path)) == 2
    with _whole(folder) as one:
        assert hidden(tmp_path) == {notes, one}
        with _whole(folder) as other:
            assert hidden(tmp_path) == {notes, one, other}
            (other / "report.json").write_text("other")
        (one / "report.json").write_text("one")
    assert hidden(tmp_path) == {notes} and (folder / "report.json").read_text() == "one"


def test_one_that_was_killed_between_two_renames_loses_no_analysis(tmp_path: Path) -> None:
    folder, before = tmp_path / "analysis", tmp_path / ".analysis-abcdefgh-before"
    before.mkdir()
    (before / "report.json").write_text("earlier")
    with pytest.raises(KeyError), _whole(folder):
        raise KeyError
    assert (folder / "report.json").read_text() == "earlier" and hidden(tmp_path) == set()


def test_pictures_of_somebody_elses_are_not_taken_away(tmp_path: Path) -> None:
    """A folder's name alone does not prove that an analysis has made it."""
    pictures = tmp_path / ".analysis-holidays"
    pictures.mkdir()
    (pictures / "beach.png").touch()
    with _whole(tmp_path / "analysis"):
        assert (pictures / "beach.png").exists()
    assert hidden(tmp_path) == {pictures}


def test_the_folder_that_a_link_names_is_replaced(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.mkdir()
    link.symlink_to(there)
    with _whole(link) as part:
        (part / "report.json").write_text("new")
    assert (
        link.is_symlink()
        and (there / "report.json").read_text() == "new"
        and hidden(tmp_path) == set()
    )
