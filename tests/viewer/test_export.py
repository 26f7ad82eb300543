"""Copies of the page in one file: its parts, and the answers in it."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.store import open_store
from hrm_agent.training.analysis.saved import KINDS, save_analysis
from hrm_agent.viewer.export import data_key, export
from hrm_agent.viewer.json_text import json_text
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections import ENDPOINTS
from tests.support.trajectory.samples import make_call, make_trajectory


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


class Copy(HTMLParser):
    """A copy as a browser reads it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.answers: dict[str, Any] = {}
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._key: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        self._key = dict(attrs).get("data-key") or (tag if tag == "script" else None)

    def handle_endtag(self, tag: str) -> None:
        self._key = None

    def handle_data(self, data: str) -> None:
        if self._key == "script":
            self.scripts.append(data)
        elif self._key is not None:
            self.answers[self._key] = json.loads(data)


def copied(places: Sequence[Place], **options: Any) -> tuple[Copy, dict[str, int]]:
    file = StringIO()
    left_out = export(places, file, **options)
    return Copy(file.getvalue()), left_out


def test_a_copy_has_the_page_and_the_server_s_answers(place: Place) -> None:
    copy, left_out = copied([place])
    stored = copy.answers
    (script,) = copy.scripts
    digest = b64encode(sha256(script.encode()).digest()).decode()
    attributes = dict(copy.attributes)
    assert any(f"script-src 'sha256-{digest}'" in str(value) for _, value in copy.attributes)
    assert "hrm.live.start()" in script and "src" not in attributes
    loaded = [value for name, value in copy.attributes if name in ("src", "href")]
    assert all(str(value).startswith("data:") for value in loaded), "nothing is fetched"
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
    assert stored["about?"]["static"] is True and stored["about?"]["left_out"] == {}
    assert [run["run"] for run in stored["runs?"]["runs"]] == ["r & é"]
    assert left_out == {}


def test_a_key_is_what_the_page_asks_for() -> None:
    assert (
        data_key("step", {"step": 3, "run": "a/b c", "place": "é", "x": None})
        == "step?place=%C3%A9&run=a%2Fb%20c&step=3"
    )


def test_a_copy_is_bounded_and_says_what_was_left_out(place: Place) -> None:
    copy, left_out = copied([place], limit=2)
    assert left_out == {"trajectories": 3}
    assert [key for key in copy.answers if key.startswith("trajectory?")] == [
        data_key("trajectory", {"place": "a place", "id": id_}) for id_ in ("id-4", "id-3")
    ]
    listed = copy.answers[data_key("trajectories", {"place": "a place", "run": "r & é"})]
    assert {row[1] for row in listed["rows"]} == {"id-3", "id-4"} and listed["total"] == 5
    with pytest.raises(ConfigError, match="no run 'x'"):
        copied([place], runs=["x"])


def test_a_copy_of_one_trajectory_opens_there(place: Place) -> None:
    copy, left_out = copied([place], only=["id-1"], start="#/trajectory?id=id-1")
    assert ("content", "#/trajectory?id=id-1") in copy.attributes and left_out == {}
    kept = [key for key in copy.answers if key.startswith("trajectory?")]
    assert kept == [data_key("trajectory", {"place": "a place", "id": "id-1"})]
    groups = copy.answers[data_key("groups", {"place": "a place", "run": "r & é"})]["groups"]
    assert "id-1" in {rollout["trajectory"] for group in groups for rollout in group["rollouts"]}


def test_the_analyses_of_a_run_are_in_a_copy(place: Place, tmp_path: Path) -> None:
    (tmp_path / "run_id").write_text("r & é")
    said = {"title": "</script>", "command": "c", "result": {"step": 1}}
    path = save_analysis(tmp_path, "why", {}, **said)
    here = {"place": "a place", "run": "r & é"}
    of_folder = Place("a place", place.address, tmp_path)
    copy, _ = copied([of_folder], limit=1)
    (listed,) = copy.answers[data_key("analyses", here)]["analyses"]
    assert (listed["name"], listed["title"]) == (path.stem, "</script>")
    found = copy.answers[data_key("analysis", here | {"name": path.stem})]
    assert found == {"name": path.stem, "kind": "why", **said}
    alone, _ = copied([of_folder], only=["id-1"])
    assert not any(key.startswith("analys") for key in alone.answers)
    of_folder.close()
    (script,) = copy.scripts
    for kind in KINDS:
        assert re.search(rf"hrm\.analyses(\.{kind}|\[\"{kind}\"\]) = ", script), kind


def test_a_place_that_cannot_be_opened_is_told(place: Place, tmp_path: Path) -> None:
    missing = Place("gone", str(tmp_path / "gone.db"), None)
    copy, left_out = copied([missing, place])
    runs = copy.answers["runs?"]
    assert runs["problems"][0]["place"] == "gone" and left_out["places"] == 1
    assert len(runs["runs"]) == 1


@pytest.mark.whole
def test_of_a_training_the_newest_steps_are_there(trained_run: Path) -> None:
    place = Place("small", str(trained_run), trained_run)
    copy, left_out = copied([place], runs=["small"], limit=20)
    place.close()
    keys = copy.answers
    assert data_key("step", {"place": "small", "run": "small", "step": 3}) in keys
    assert data_key("step", {"place": "small", "run": "small", "step": 1}) not in keys
    assert sum(key.startswith("trajectory?") for key in keys) == 20 and left_out["trajectories"] > 0
    assert any(key.startswith("moment?") for key in keys)
    assert any(key.startswith("graph?") for key in keys)
