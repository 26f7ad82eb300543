"""Folders of the cache: whole or missing, whatever ends the process that fills them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hrm_agent.errors import ModelError
from hrm_agent.models.cached.folders import (
    Card,
    check_sizes,
    differing_file,
    fill_folder,
    models_cache,
    read_card,
)
from tests.models.cached.conftest import left_in

CARD = Card("Tiny", "wheel", "a test", None)


def fill(part: Path) -> Card:
    (part / "weights").write_bytes(b"12345")
    return CARD


def test_the_cache_is_where_the_user_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert models_cache() == tmp_path / "cache" / "hrm-agent" / "models"
    for unset in ("", "relative"):  # the XDG specification: a relative path is ignored
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert models_cache() == Path.home() / ".cache" / "hrm-agent" / "models"


def test_a_folder_has_a_card_of_its_files(cache: Path) -> None:
    assert fill_folder(cache / "tiny", fill, lambda: False)
    card = read_card(cache / "tiny")
    assert card is not None and (card.title, card.files["weights"].bytes) == ("Tiny", 5)
    check_sizes(cache / "tiny", card, "")
    assert differing_file(cache / "tiny", card) is None
    (cache / "tiny" / "weights").write_bytes(b"54321")
    check_sizes(cache / "tiny", card, "")
    assert differing_file(cache / "tiny", card) == "weights"
    (cache / "tiny" / "weights").write_bytes(b"5432")
    with pytest.raises(ModelError, match=r"weights .* has 4 bytes instead of 5\. Get it again\."):
        check_sizes(cache / "tiny", card, "Get it again.")
    (cache / "tiny" / "weights").unlink()
    with pytest.raises(ModelError, match=r"weights of the model in .* is missing"):
        check_sizes(cache / "tiny", card, "")
    (cache / "tiny" / "card.json").write_text("{}")
    assert read_card(cache / "tiny") is None


def test_what_fails_leaves_nothing(cache: Path) -> None:
    def failing(part: Path) -> Card:
        fill(part)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_folder(cache / "tiny", failing, lambda: False)
    assert left_in(cache) == []


def test_a_killed_process_leaves_the_place_as_it_was(cache: Path) -> None:
    killed = f"""
import os
from pathlib import Path
from hrm_agent.models.cached.folders import fill_folder
def fill(part):
    (part / "weights").write_bytes(b"half")
    os._exit(9)
fill_folder(Path({str(cache / "tiny")!r}), fill, lambda: False)
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == 9
    assert not (cache / "tiny").exists() and left_in(cache) == [".tiny.part", ".tiny.part/weights"]
    assert fill_folder(cache / "tiny", fill, lambda: False)
    assert left_in(cache) == ["tiny/card.json", "tiny/weights"]


def test_a_folder_that_was_changed_is_replaced(cache: Path) -> None:
    fill_folder(cache / "tiny", fill, lambda: False)
    (cache / "tiny" / "weights").write_bytes(b"5432")
    fill_folder(cache / "tiny", fill, lambda: False)
    assert left_in(cache) == ["tiny/card.json", "tiny/weights"]
    assert (cache / "tiny" / "weights").read_bytes() == b"12345"


@pytest.mark.parametrize("new", [False, True])
def test_a_replacement_that_was_left_half_done_is_undone(cache: Path, *, new: bool) -> None:
    def there() -> bool:
        return read_card(cache / "tiny") is not None

    fill_folder(cache / "tiny", fill, there)
    # a process that is killed after it, or after the next rename
    (cache / "tiny").rename(cache / ".tiny.old")
    if new:
        shutil.copytree(cache / ".tiny.old", cache / "tiny")
    assert not fill_folder(cache / "tiny", fill, there)
    assert left_in(cache) == ["tiny/card.json", "tiny/weights"]


def test_the_second_of_two_waits_and_finds_it(cache: Path) -> None:
    inside = threading.Event()
    go = threading.Event()
    made: list[bool] = []

    def slow(part: Path) -> Card:
        inside.set()
        go.wait()
        return fill(part)

    def there() -> bool:
        return read_card(cache / "tiny") is not None

    first = threading.Thread(target=lambda: made.append(fill_folder(cache / "tiny", slow, there)))
    first.start()
    inside.wait()
    second = threading.Thread(target=lambda: made.append(fill_folder(cache / "tiny", slow, there)))
    second.start()
    go.set()
    first.join()
    second.join()
    assert sorted(made) == [False, True]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelError, match=r"cannot be written: .* XDG_CACHE_HOME"):
        fill_folder(models_cache() / "tiny", fill, lambda: False)
