"""Copies of the page: their files, the data in their scripts, and the folders they may be written
to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.store import open_store
from hrm_agent.viewer.export import data_key, export
from hrm_agent.viewer.json_text import json_text
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections import ENDPOINTS
from tests.support.trajectory.samples import make_call, make_trajectory

_LINE = re.compile(r'hrm\.store\((".*?(?<!\\)"),JSON\.parse\((".*")\)\);')


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with open_store(tmp_path / "store.db") as store:
        for number in range(5):
            thread = f"t/{number}"
            header = make_trajectory().model_copy(
                update={
                    "id": f"id-{number}",
                    "thread_id": thread,
                    "run_id": "r & é",
                    "calls": (),
                    "tool_calls": (),
                }
            )
            store.journal.write_trajectory(
                header.model_copy(update={"answer": "</script>\u2028" + "long " * 2_000})
            )
            call = make_call(f"task-{number}")
            store.journal.write_call(
                call.model_copy(
                    update={"identity": call.identity.model_copy(update={"thread_id": thread})}
                )
            )
    found = Place("a place", str(tmp_path / "store.db"), None)
    yield found
    found.close()


def files_of(folder: Path) -> dict[str, str]:
    """Files by key, from the copy's index."""
    index = (folder / "data" / "index.js").read_text(encoding="ascii").splitlines()[0]
    return json.loads(
        json.loads(index.removeprefix("hrm.storeFiles(JSON.parse(").removesuffix("));"))
    )


def answers_of(path: Path) -> dict[str, Any]:
    """Key -> answer, of a data file."""
    lines = path.read_text(encoding="ascii").splitlines()
    found = [match for line in lines if (match := _LINE.fullmatch(line)) is not None]
    return {json.loads(match[1]): json.loads(json.loads(match[2])) for match in found}


def test_a_copy_has_the_page_and_the_server_s_answers(place: Place, tmp_path: Path) -> None:
    told = export([place], tmp_path / "copy")
    folder = tmp_path / "copy"
    page = (folder / "index.html").read_text()
    assert '<script defer src="data/index.js"></script>' in page and "<!-- data -->" not in page
    for script in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert (folder / script).is_file(), script
    files = files_of(folder)
    stored = {key: answers_of(folder / name)[key] for key, name in files.items()}
    id_ = {"place": "a place", "id": "id-3"}
    for name, values in (
        ("trajectory", id_),
        ("citations", id_),
        ("environment", {"place": "a place", "run": "r & é"}),
    ):
        query = {key: value for key, value in values.items() if key != "place"}
        answer = ENDPOINTS[name].function(place, **ENDPOINTS[name].read(query))
        assert stored[data_key(name, values)] == json.loads(json_text(answer))
    items = stored[data_key("items", id_)]
    assert items["next"] is None and items["items"][0]["kind"] == "call"
    tokens = stored[
        data_key("tokens", {"place": "a place", "call": items["items"][0]["id"], "run": "r & é"})
    ]
    assert tokens["ids"] == [5, 6, 7, 2]
    blob = stored[
        data_key("blob", {"place": "a place", "item": "trajectory:id-3", "field": "answer"})
    ]
    assert blob["text"] == "</script>\u2028" + "long " * 2_000 and blob["next"] is None
    index = answers_of(folder / "data" / "index.js")
    assert index["about?"]["static"] is True and index["about?"]["left_out"] == {}
    assert [run["run"] for run in index["runs?"]["runs"]] == ["r & é"]
    assert told["left_out"] == {} and told["files"] == sum(
        path.is_file() for path in folder.rglob("*")
    )
    assert told["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_key_is_what_the_page_asks_for() -> None:
    assert (
        data_key("step", {"step": 3, "run": "a/b c", "place": "é", "x": None})
        == "step?place=%C3%A9&run=a%2Fb%20c&step=3"
    )


def test_a_copy_is_bounded_and_says_what_was_left_out(place: Place, tmp_path: Path) -> None:
    told = export([place], tmp_path / "copy", limit=2)
    assert told["left_out"] == {"trajectories": 3}
    keys = [key for key in files_of(tmp_path / "copy") if key.startswith("trajectory?")]
    assert keys == [
        data_key("trajectory", {"place": "a place", "id": id_}) for id_ in ("id-4", "id-3")
    ]
    key = data_key("trajectories", {"place": "a place", "run": "r & é"})
    listed = answers_of(tmp_path / "copy" / files_of(tmp_path / "copy")[key])[key]
    assert {row[1] for row in listed["rows"]} == {"id-3", "id-4"} and listed["total"] == 5


def test_it_is_written_into_its_own_folder_only(place: Place, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        export([place], full)
    assert [path.name for path in full.iterdir()] == ["thesis.txt"]
    with pytest.raises(ConfigError, match="is a file"):
        export([place], full / "thesis.txt")
    (full / "export.json").write_text(
        '{"made_by": "hrm-agent view --export", "files": ["../keep", "/etc/passwd"]}'
    )
    (tmp_path / "keep").write_text("kept")
    export([place], full, limit=1)
    assert (tmp_path / "keep").read_text() == "kept" and (full / "thesis.txt").read_text() == "mine"
    (full / "data" / "trajectory-9999.js").touch()
    export([place], full, limit=1)
    assert not (full / "data" / "trajectory-9999.js").exists(), (
        "left by a copy that was not finished"
    )
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "my-code.js").write_text("theirs")
    for link, leads_to in (("data", "theirs"), ("index.html", "keep")):
        linked = tmp_path / f"linked-{link}"
        linked.mkdir()
        (linked / "export.json").write_text('{"made_by": "hrm-agent view --export", "files": []}')
        (linked / link).symlink_to(tmp_path / leads_to)
        with pytest.raises(ConfigError, match="is a link"):
            export([place], linked, limit=1)
    assert (tmp_path / "theirs" / "my-code.js").read_text() == "theirs" and (
        tmp_path / "keep"
    ).read_text() == "kept"
    with pytest.raises(ConfigError, match="no run 'x'"):
        export([place], tmp_path / "other", runs=["x"])


def test_a_place_that_cannot_be_opened_is_told(place: Place, tmp_path: Path) -> None:
    missing = Place("gone", str(tmp_path / "gone.db"), None)
    told = export([missing, place], tmp_path / "copy")
    index = answers_of(tmp_path / "copy" / "data" / "index.js")
    assert index["runs?"]["problems"][0]["place"] == "gone" and told["left_out"]["places"] == 1
    assert len(index["runs?"]["runs"]) == 1


@pytest.mark.whole
def test_of_a_training_the_newest_steps_are_there(trained_run: Path, tmp_path: Path) -> None:
    place = Place("small", str(trained_run), trained_run)
    told = export([place], tmp_path / "copy", runs=["small"], limit=20)
    place.close()
    keys = files_of(tmp_path / "copy")
    assert data_key("step", {"place": "small", "run": "small", "step": 3}) in keys
    assert data_key("step", {"place": "small", "run": "small", "step": 1}) not in keys
    assert (
        sum(key.startswith("trajectory?") for key in keys) == 20
        and told["left_out"]["trajectories"] > 0
    )
    assert any(key.startswith("moment?") for key in keys) and any(
        key.startswith("graph?") for key in keys
    )
