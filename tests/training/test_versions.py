"""Versions of the weights, each kept as its difference from the one before."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import pytest

from hrm_agent.errors import RunError
from hrm_agent.training import versions as module
from hrm_agent.training.versions import Versions


def checkpoint(folder: Path, number: int, size: int = 4099) -> Path:
    """A folder of a file that changes a little, one that stays, and one of growing length."""
    made = folder / f"checkpoint-{number}"
    (made / "role").mkdir(parents=True)
    content = bytearray(random.Random(0).randbytes(size))
    for each in range(number):
        content[each * 7] ^= each + 1
    (made / "role" / "weights").write_bytes(bytes(content))
    (made / "tokenizer").write_text("the same")
    (made / "state").write_text("x" * number)
    return made


def contents(folder: Path) -> dict[str, bytes]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}


def test_each_version_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WHOLE_EVERY", 3)
    versions = Versions(tmp_path)
    made = {number: checkpoint(tmp_path, number) for number in range(1, 9)}
    for number, folder in made.items():
        versions.keep(number, folder)
    assert versions.numbers == [*made]
    for wanted in ([*made], [8, 2, 5], [6], []):
        with versions.opened(wanted) as found:
            assert [
                number for number, folder in found if contents(folder) == contents(made[number])
            ] == sorted(wanted)
    sizes = {
        number: (tmp_path / f"versions/step-{number:06}.zip").stat().st_size for number in made
    }
    assert {number for number, size in sizes.items() if size > 4000} == {1, 4, 7}
    assert versions.size == sum(sizes.values())


def test_an_equal_version_is_left_as_it_is_and_another_one_replaces_it(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    made = {number: checkpoint(tmp_path, number) for number in (1, 2, 3, 4)}
    for number in (1, 2, 3):
        versions.keep(number, made[number])
    written = (tmp_path / "versions/step-000002.zip").stat().st_mtime_ns
    versions.keep(2, made[2])  # the run goes on from a checkpoint before its newest version
    assert versions.numbers == [1, 2, 3]
    assert (tmp_path / "versions/step-000002.zip").stat().st_mtime_ns == written
    (made[2] / "state").write_text("of a longer plan")
    versions.keep(2, made[2])
    assert versions.numbers == [1, 2]
    for number in (3, 4):
        versions.keep(number, made[number])
    with versions.opened(made) as found:
        assert [contents(folder) for _, folder in found] == [
            contents(each) for each in made.values()
        ]


def test_files_of_another_version_are_no_base(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    first, second, other = (checkpoint(tmp_path, number) for number in (1, 2, 3))
    versions.keep(1, first)
    versions.keep(2, second)
    state = tmp_path / "versions" / "newest" / "state"
    state.unlink()
    state.write_text("changed")
    versions.keep(3, other)
    with versions.opened([3]) as found:
        ((_, folder),) = found
        assert contents(folder) == contents(other)
    with zipfile.ZipFile(tmp_path / "versions/step-000003.zip") as archive:
        assert json.loads(archive.read("index.json"))["before"] is None


def test_large_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 1024)
    versions = Versions(tmp_path)
    made = [checkpoint(tmp_path, number, 10_001) for number in (1, 2)]
    for number, folder in enumerate(made, 1):
        versions.keep(number, folder)
    with versions.opened([1, 2]) as found:
        assert [contents(folder) for _, folder in found] == [contents(each) for each in made]


@pytest.mark.parametrize(
    "damage", ["cut", "changed", "escaping", "no index", "a circle", "of lists", "of nothing"]
)
def test_a_damaged_version_is_refused(damage: str, tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    for number in (1, 2):
        versions.keep(number, checkpoint(tmp_path, number))
    path = tmp_path / "versions" / "step-000002.zip"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-30])
    else:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        index = json.loads(members.pop("index.json"))
        if damage == "changed":
            members["role/weights"] = bytes(len(members["role/weights"]))
        if damage == "escaping":
            index["files"] = {"../../outside": {"sha256": "", "whole": True}}
        if damage == "a circle":
            index["before"] = 2
        if damage == "of lists":
            index["files"] = [1]
        if damage == "of nothing":
            index = []
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            if damage != "no index":
                archive.writestr("index.json", json.dumps(index))
    with versions.opened([1, 2]) as found:
        assert next(found)[0] == 1
        with pytest.raises(RunError, match=r"step-000002\.zip is damaged"):
            next(found)
    assert not (tmp_path.parent / "outside").exists()
