"""Folders in an index: several of them, moved files, links, unreadable folders, and files that
change while they are read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.errors import RetrievalError
from hrm_agent.retrieval.index import Chunking, DocumentIndex, files_in, index_folder, remove_folder
from hrm_agent.retrieval.index.folder import FolderReport
from hrm_agent.retrieval.index.reading import Why
from tests.support.retrieval.documents import pdf, powerless, write_texts


@pytest.fixture
def index(tmp_path: Path) -> Iterator[DocumentIndex]:
    with DocumentIndex(tmp_path / "index.db", create=True) as index:
        yield index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    write_texts(folder, 4)
    return folder


def update(index: DocumentIndex, folder: Path, **options: int) -> FolderReport:
    return index_folder(index, folder, files_in(folder), chunking=Chunking(size=64), **options)


def reasons(report: FolderReport) -> dict[str, Why]:
    return {outcome.file: outcome.why for outcome in report.outcomes if outcome.why}


def test_several_folders_share_an_index(index: DocumentIndex, folder: Path, tmp_path: Path) -> None:
    (second := tmp_path / "two" / "docs").mkdir(parents=True)
    (third := tmp_path / "three" / "docs").mkdir(parents=True)
    (folder / "docs").mkdir()
    for place, word in ((second, "walrus"), (third, "walnut"), (folder / "docs", "wallet")):
        (place / "w.txt").write_text(f"the {word}")
    for place in (folder, second, third):
        update(index, place)
    assert index.folders() == {"": str(folder), "docs": str(second), "docs-2": str(third)}
    files = [index.search(word)[0].file for word in ("wallet", "walrus", "walnut")]
    assert files == ["docs/w.txt", "docs//w.txt", "docs-2//w.txt"]
    (second / "w.txt").unlink()
    (second / "x.txt").write_text("the whale")
    assert update(index, second).counts["removed"] == 1
    assert update(index, folder).counts["unchanged"] == 5
    assert remove_folder(index, folder).counts["removed"] == 5
    assert index.sources().keys() == {"docs//x.txt", "docs-2//w.txt"}
    assert index.problems() == []
    with pytest.raises(RetrievalError, match="is not a folder of"):
        remove_folder(index, folder)


def test_folders_within_each_other_are_refused(index: DocumentIndex, folder: Path) -> None:
    update(index, folder)
    for other in (folder / "even", folder.parent):
        with pytest.raises(RetrievalError, match="files in common"):
            update(index, other)


def test_a_folder_that_has_gone_is_said(index: DocumentIndex, folder: Path) -> None:
    update(index, folder)
    folder.rename(folder.parent / "moved")
    report = update(index, folder.parent / "moved")
    (warning,) = report.warnings
    assert str(folder) in warning and "--remove" in warning
    assert remove_folder(index, folder).counts["removed"] == 4
    assert update(index, folder.parent / "moved").warnings == []


def test_a_renamed_file_is_not_indexed_again(index: DocumentIndex, folder: Path) -> None:
    (folder / "twin.txt").write_bytes((folder / "even" / "000.txt").read_bytes())
    update(index, folder)
    (before,) = {hit.revision for hit in index.search("thing0x", k=50)}
    (folder / "even" / "000.txt").rename(folder / "new.txt")
    (folder / "twin.txt").unlink()
    (folder / "even" / "002.txt").rename(folder / "even" / "001.txt")
    counts = update(index, folder).counts
    assert (counts["renamed"], counts["removed"], counts["added"], counts["unchanged"]) == (
        2,
        1,
        0,
        2,
    )
    assert {(hit.file, hit.revision) for hit in index.search("thing0x", k=50)} == {
        ("new.txt", before)
    }
    assert index.sources().keys() == set(files_in(folder))
    assert index.problems() == []


def test_links(index: DocumentIndex, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "else.txt").write_text("outside whale")
    (folder / "file.txt").symlink_to(tmp_path / "else.txt")
    (folder / "inside.txt").symlink_to(folder / "even" / "000.txt")
    (folder / "nowhere.txt").symlink_to(folder / "none")
    (folder / "circle.txt").symlink_to(folder / "circle.txt")
    (folder / "around").symlink_to(folder)
    (folder / "even" / "up").symlink_to(tmp_path)
    for _ in range(2):
        report = update(index, folder)
        assert reasons(report) == {
            "around/": Why.LINK, "even/up/": Why.LINK, "nowhere.txt": Why.LINK, "circle.txt": Why.LINK,
            "file.txt": Why.LINK,
        }  # fmt: skip
        assert report.failed == []
    assert index.size()[0] == 5 and index.search("outside whale") == []
    assert {hit.file for hit in index.search("thing0x", k=50)} == {"even/000.txt", "inside.txt"}


def test_a_link_to_what_is_left_out_for_its_name(index: DocumentIndex, folder: Path) -> None:
    (folder / ".hidden").mkdir()
    for place in (folder / ".env", folder / ".hidden" / "key.txt"):
        place.write_text("the secret walrus")
    (folder / "env.txt").symlink_to(".env")
    (folder / "key.txt").symlink_to(folder / ".hidden" / "key.txt")
    report = update(index, folder)
    assert reasons(report) == {"env.txt": Why.LINK, "key.txt": Why.LINK} and report.failed == []
    assert index.search("secret walrus") == []
    index_folder(index, folder, files_in(folder, follow_links=True), follow_links=True)
    assert {hit.file for hit in index.search("secret walrus")} == {"env.txt", "key.txt"}
    update(index, folder)
    assert index.search("secret walrus") == []


def test_links_are_followed_where_that_is_asked_for(
    index: DocumentIndex, folder: Path, tmp_path: Path
) -> None:
    """Each folder is read once: neither a link to a parent folder nor two links to each other cause
    a loop.
    """
    for name in ("one", "two"):
        (tmp_path / "else" / name).mkdir(parents=True)
        (tmp_path / "else" / name / "whale.txt").write_text(f"outside whale {name}")
    (tmp_path / "else" / "one" / "back").symlink_to(tmp_path / "else" / "two")
    (tmp_path / "else" / "two" / "forth").symlink_to(tmp_path / "else" / "one")
    (folder / "file.txt").symlink_to(tmp_path / "else" / "one" / "whale.txt")
    (folder / "around").symlink_to(folder / "even")
    (folder / "even" / "linked").symlink_to(tmp_path / "else" / "one")
    (folder / "circle").symlink_to(folder / "circle")
    for _ in range(2):
        report = index_folder(index, folder, files_in(folder, follow_links=True), follow_links=True)
        hits = {hit.file for hit in index.search("outside whale", k=50)}
        assert hits == {"file.txt", "even/linked/whale.txt", "even/linked/back/whale.txt"}
        assert index.size()[0] == 4 + 3 and report.failed == []
    (folder / "even" / "above").symlink_to(tmp_path)
    names = files_in(folder, follow_links=True)
    assert len(names) == len(set(names)) < 20
    assert {"even/above/else/two/whale.txt"} <= set(names) or "even/linked/whale.txt" in names
    index_folder(index, folder, names, follow_links=True)
    assert index.search("outside whale", k=50) != []
    update(index, folder)
    assert index.search("outside whale", k=50) == [], (
        "without the option, what it brought in is taken out"
    )
    assert index.size()[0] == 4


@pytest.mark.parametrize("part", ["odd/001.txt", "odd"])
def test_a_link_that_takes_the_place_of_a_file_between_listing_and_reading(
    index: DocumentIndex, folder: Path, tmp_path: Path, part: str
) -> None:
    """The link replaces the file itself, or a folder above it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "001.txt").write_text("the secret walrus")
    names = files_in(folder)
    assert "odd/001.txt" in names
    (folder / part).rename(tmp_path / "moved")
    (folder / part).symlink_to(tmp_path / "secret" / ("001.txt" if part.endswith(".txt") else ""))
    report = index_folder(index, folder, names)
    assert reasons(report)["odd/001.txt"] is Why.LINK and index.search("secret walrus") == []
    link = tmp_path / "link"
    link.symlink_to(folder)
    index_folder(index, link, files_in(link))
    assert index.search("thing0x") != [], "the folder itself may be named by a link"


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    index: DocumentIndex, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = folder / "even" / "000.txt", os.open

    def open_later(name: Path, flags: int) -> int:
        if name == path and path.is_file():
            path.unlink()
            os.mkfifo(path)
        return opened(name, flags)

    monkeypatch.setattr("hrm_agent.retrieval.index.folder.os.open", open_later)
    assert reasons(update(index, folder)) == {"even/000.txt": Why.BINARY}


def test_closed_doors(index: DocumentIndex, folder: Path) -> None:
    """Unreadable files are reported, and their earlier index entries are kept."""
    update(index, folder)
    (folder / "new.txt").write_text("a newt")
    closed = [folder / "odd", folder / "even" / "000.txt"]
    for path in closed:
        path.chmod(0)
    with powerless():
        report = update(index, folder)
    for path in closed:
        path.chmod(0o755)
    assert reasons(report) == {"odd/": Why.UNREADABLE, "even/000.txt": Why.UNREADABLE}
    assert all("before is kept" in outcome.reason for outcome in report.failed)
    assert report.counts["added"] == 1 and report.counts["removed"] == 0
    assert index.size()[0] == 5
    folder.chmod(0)
    with powerless(), pytest.raises(RetrievalError, match="may not be listed"):
        update(index, folder)
    folder.chmod(0o755)
    assert update(index, folder).counts["unchanged"] == 5


def test_a_file_that_changes_while_it_is_read(
    index: DocumentIndex, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read again. A file that keeps changing is reported, and indexed the next time."""
    log, steady, times = folder / "log.txt", folder / "steady.txt", Counter[str]()
    log.write_text("the first whale")
    steady.write_text("half")
    fstat = os.fstat

    def before_and_after_reading(descriptor: int) -> os.stat_result:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        times[name] += 1
        if name == "log.txt":
            log.write_text(f"whale {times[name]}")
        elif name == "steady.txt" and times[name] == 2:
            steady.write_text("the whole walrus")
        return fstat(descriptor)

    monkeypatch.setattr("hrm_agent.retrieval.index.folder.os.fstat", before_and_after_reading)
    report = update(index, folder)
    assert reasons(report) == {"log.txt": Why.UNREADABLE}
    assert "changed while it was read" in report.failed[0].reason
    assert index.search("walrus")[0].text == "the whole walrus"
    monkeypatch.undo()
    assert update(index, folder).counts["added"] == 1


def test_every_bad_file_has_its_message(index: DocumentIndex, folder: Path) -> None:
    (folder / "broken.pdf").write_bytes(pdf("x")[:80])
    (folder / "locked.pdf").write_bytes(pdf("secret", encrypted=True))
    (folder / "scan.pdf").write_bytes(pdf(""))
    (folder / "program").write_bytes(b"\x7fELF\0\0")
    with (folder / "huge.txt").open("wb") as file:
        file.truncate(100 * 2**20)
    report = update(index, folder)
    said = {outcome.file: outcome.reason for outcome in report.outcomes if outcome.why}
    assert (
        "damaged" in said["broken.pdf"]
        and "password" in said["locked.pdf"]
        and "scan" in said["scan.pdf"]
    )
    assert "NUL" in said["program"] and "104,857,600 bytes" in said["huge.txt"]
    assert {outcome.file for outcome in report.failed} == {"broken.pdf", "locked.pdf", "huge.txt"}
    assert report.counts["added"] == 4 and index.problems() == []
