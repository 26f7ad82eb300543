"""Places to view: the meaning of a word on the command line, and places that appear, disappear,
break and recover.
"""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

import pytest

from hrm_agent.errors import HrmError, StoreChangedError
from hrm_agent.store import STORE_POINTER, open_store
from hrm_agent.viewer import places as module
from hrm_agent.viewer.json_text import NotThere
from hrm_agent.viewer.places import NoPlaceError, Place, Places
from hrm_agent.viewer.projections.run.curves import metrics
from hrm_agent.viewer.projections.runs import runs
from tests.support.store.bodies import is_file, set_version
from tests.support.trajectory.samples import make_trajectory


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_SCANS", 0)


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_store(path) as store:
        store.journal.write_trajectory(make_trajectory())
    return path


def found(*named: Path | str) -> dict[str, tuple[str, Path | None]]:
    places = Places([str(name) for name in named])
    return {place.id: (place.where, place.folder) for place in places.all()}


def test_what_a_word_stands_for(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make(runs / "store.db")
    make(runs / "more.db")
    make(runs / "one" / "store.db")
    (runs / "two").mkdir()
    (runs / "two" / "metrics.jsonl").touch()
    (runs / "three").mkdir()
    (runs / "three" / STORE_POINTER).write_text(str(runs / "store.db"))
    (runs / "nothing").mkdir()
    (runs / ".hidden").mkdir()
    make(runs / ".hidden" / "store.db")
    (runs / "notes.txt").touch()
    (runs / "theirs.db").write_text("no store")
    assert found(runs) == {
        "store.db": (str(runs / "store.db"), None),
        "more.db": (str(runs / "more.db"), None),
        "one": (str(runs / "one"), runs / "one"),
        "two": (str(runs / "two"), runs / "two"),
        "three": (str(runs / "three"), runs / "three"),
    }
    assert found(runs / "two") == {"two": (str(runs / "two"), runs / "two")}
    assert found(runs / "one" / "store.db") == {"store.db": (str(runs / "one" / "store.db"), None)}
    assert found(f"sqlite:///{runs}/more.db") == {"more.db": (f"sqlite:///{runs}/more.db", None)}
    assert found(runs / "nothing") == {}, "until something comes"
    assert found(tmp_path / "missing") == {"missing": (str(tmp_path / "missing"), None)}


def test_a_store_file_in_the_folder_of_a_training_has_that_folder(tmp_path: Path) -> None:
    make(tmp_path / "run" / "store.db")
    (tmp_path / "run" / "config.toml").touch()
    assert found(tmp_path / "run" / "store.db")["store.db"][1] == tmp_path / "run"


def test_no_two_places_have_one_name(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a" / "store.db"), make(tmp_path / "b" / "store.db")
    assert list(found(first, second, first)) == ["store.db", "store.db-2"]


def test_a_password_is_shown_to_nobody() -> None:
    for url, shown in (
        ("postgresql://me:secret@host:5432/name", "postgresql://me@host:5432/name"),
        ("postgresql://me:se@cr:et@host/name", "postgresql://me@host/name"),
        ("postgresql://host/name", "postgresql://host/name"),
        ("postgresql://me:a?b@host/name", "postgresql://me@host/name"),
        ("postgresql://host/name?password=p@ss&user=me", "postgresql://host/name?user=me"),
        ("postgresql://host/name?%70assword=secret", "postgresql://host/name"),
    ):
        (place,) = Places([url]).all()
        assert (place.id, place.where, place.address) == ("name", shown, url)
    (place,) = Places(["postgresql://me:secret@host"]).all()
    assert place.id == "me@host"


def test_no_message_has_the_password(tmp_path: Path) -> None:
    for url in (
        "postgresql://me:sec%ret@127.0.0.1:1/name",
        "postgresql://me:sec ret@127.0.0.1:1/name?x",
        "postgresql://127.0.0.1:1/name?password=secret",
        "mysql://me:secret@host/name",
    ):
        (tmp_path / STORE_POINTER).write_text(url)
        for named in (url, str(tmp_path)):
            (place,) = Places([named]).all()
            assert "sec" not in f"{problem(place)} {place.where}", url


def test_a_folder_that_names_others_without_end(tmp_path: Path) -> None:
    (tmp_path / STORE_POINTER).write_text(str(tmp_path))
    (place,) = Places([str(tmp_path)]).all()
    assert "leads to no store" in problem(place)
    with (tmp_path / STORE_POINTER).open("wb") as file:
        file.truncate(1 << 36)
    (place,) = Places([str(tmp_path)]).all()
    assert "leads to no store" in problem(place)
    make(tmp_path / "store.db")
    for number in range(3):
        (tmp_path / f"{number}").mkdir()
        named = tmp_path / (str(number - 1) if number else "store.db")
        (tmp_path / f"{number}" / STORE_POINTER).write_text(str(named))
    (place,) = Places([str(tmp_path / "2")]).all()
    assert place.problem is None


def test_nothing_in_a_folder_hides_the_others(tmp_path: Path) -> None:
    make(tmp_path / "one" / "store.db")
    make(tmp_path / "two.db")
    os.mkfifo(tmp_path / "pipe.db")
    (tmp_path / "closed").mkdir(mode=0)
    assert list(found(tmp_path)) == ["one", "two.db"]


def test_runs_come_and_go_and_keep_their_names(tmp_path: Path) -> None:
    make(tmp_path / "one" / "store.db")
    places = Places([str(tmp_path)])
    assert [place.id for place in places.all()] == ["one"]
    places.changed()
    make(tmp_path / "two" / "store.db")
    assert "two" in places.changed()
    one = places.get("one")
    assert one.problem is None
    shutil.rmtree(tmp_path / "one")
    assert "one" in places.changed()
    with pytest.raises(NoPlaceError, match="no place 'one'"):
        places.get("one")
    make(tmp_path / "one" / "store.db")
    assert places.get("one").problem is None
    places.close()


def problem(place: Place) -> str:
    assert place.problem is not None and place.problem["hint"]
    with pytest.raises(HrmError):
        place.store()
    return place.problem["message"]


def test_a_place_that_cannot_be_opened_says_why_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "run" / "store.db"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    places = Places([str(tmp_path / "run")])
    (place,) = places.all()
    assert "There is no store" in problem(place)
    with place.moment():
        assert place.folder == tmp_path / "run", "its folder can be read all the same"
    path.write_text("no database at all " * 50)
    assert "not a run store" in problem(place)
    path.unlink()
    make(path)
    assert place.problem is None
    set_version(f"sqlite:///{path}", 99)
    shutil.copy(path, tmp_path / "newer.db").replace(path)
    assert "schema version 99" in problem(place)
    path.unlink()
    assert "There is no store" in problem(place)
    make(path)
    assert place.problem is None and len(place.store().threads()) == 1
    places.close()


def test_a_fine_tuning_has_curves_and_no_store(tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "config.toml").write_text('command = "train sft"\nsteps = 2\npolicy = "a"\n')
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "accuracy": 0.5}\n{"step": 2, "accuracy": 0.75}\n'
    )
    places = Places([str(tmp_path)])
    (place,) = places.all()
    listed = runs([place])
    assert listed["problems"] == [] and place.problem is None
    (run,) = listed["runs"]
    assert (run["kind"], run["policy"], run["steps"], run["status"]) == (
        "train sft",
        "a",
        2,
        "ended",
    )
    assert metrics(place, run["run"])["series"]["accuracy"] == [0.5, 0.75]
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.toml",
        "metrics.jsonl",
    ], "nothing was written"
    places.close()


def test_an_encrypted_store_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
    with open_store(tmp_path / "store.db", key=key) as store:
        store.journal.write_trajectory(make_trajectory())
    (place,) = Places([str(tmp_path / "store.db")]).all()
    assert "is encrypted" in problem(place)
    monkeypatch.setenv("HRM_AGENT_STORE_KEY", key)
    (place,) = Places([str(tmp_path / "store.db")]).all()
    assert place.problem is None


def test_a_change_is_of_the_place_that_it_is_in(tmp_path: Path) -> None:
    paths = [make(tmp_path / name / "store.db") for name in ("one", "two")]
    for path in paths:
        for file in path.parent.iterdir():
            os.utime(file, (1e9, 1e9))
    places = Places([str(tmp_path)])
    assert places.changed() == ["one", "two"], "they came"
    assert places.changed() == []
    with open_store(paths[0]) as store:
        store.journal.write_trajectory(
            make_trajectory().model_copy(update={"id": "u", "thread_id": "u"})
        )
        assert places.changed() == ["one"]
    (tmp_path / "two" / "metrics.jsonl").write_text("{}\n")
    assert "two" in places.changed()
    places.close()


@pytest.mark.parametrize("body", ["sqlite", "postgresql"])
def test_one_moment_is_read_inside_a_block(
    body: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = (
        f"sqlite:///{tmp_path}/store.db"
        if body == "sqlite"
        else request.getfixturevalue("fresh_database")
    )
    with open_store(url) as other:
        other.journal.write_trajectory(make_trajectory())
        (place,) = Places([url]).all()
        with place.moment():
            assert len(place.store().threads()) == 1
            other.journal.write_trajectory(
                make_trajectory().model_copy(update={"id": "u", "thread_id": "u"})
            )
            assert len(place.store().threads()) == 1
        assert len(place.store().threads()) == 2
        mark = place.mark()
        other.journal.write_trajectory(
            make_trajectory().model_copy(update={"id": "v", "thread_id": "v"})
        )
        assert place.mark() != mark
        assert is_file(url) or ":" not in place.where.partition("@")[0].removeprefix(
            "postgresql://"
        )
        place.close()


def test_an_answer_is_read_again_while_other_processes_write(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make(path)
    (place,) = Places([str(path)]).all()
    read: list[int] = []
    numbers = count()

    def answer(disturbances: int) -> int:
        known = len(place.store().threads())
        read.append(known)
        if len(read) <= disturbances:
            with open_store(path) as other:  # closed within the read, with its log
                name = f"later {next(numbers)}"
                other.journal.write_trajectory(
                    make_trajectory().model_copy(update={"id": name, "thread_id": name})
                )
        return known

    assert place.read(lambda: answer(3)) == read[0] + 3
    assert len(read) == 4
    read.clear()
    with pytest.raises(StoreChangedError, match=r"written to while it was being read\. Read it"):
        place.read(lambda: answer(1000))
    place.close()


def test_a_missing_thing_is_looked_for_once(tmp_path: Path) -> None:
    make(tmp_path / "store.db")
    (place,) = Places([str(tmp_path / "store.db")]).all()
    looked: list[str] = []

    def answer() -> None:
        looked.append("once")
        raise NotThere("Call 'x' is missing.")

    with pytest.raises(NotThere):
        place.read(answer)
    assert looked == ["once"]
    place.close()
