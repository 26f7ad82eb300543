"""Stores on a server and encrypted stores are shown like the same store in a file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import open_store
from hrm_agent.store.upkeep.copying import copy_store
from hrm_agent.viewer.json_text import json_text
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections import ENDPOINTS
from hrm_agent.viewer.projections.evaluations import evaluations_key

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("body", ["encrypted", "postgresql"])
def test_every_answer_is_the_same(
    body: str,
    trained_run: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Place("one", str(trained_run / "store.db"), None)
    asked = questions(plain)
    answers = {key: told(plain, *key) for key in asked}
    key = base64.b64encode(bytes(range(32))).decode() if body == "encrypted" else None
    url = (
        str(tmp_path / "copy.db")
        if body == "encrypted"
        else request.getfixturevalue("fresh_database")
    )
    with (
        open_store(trained_run / "store.db", create=False) as source,
        open_store(url, key=key) as target,
    ):
        copy_store(source, target)
    if key is not None:
        monkeypatch.setenv("HRM_AGENT_STORE_KEY", key)
    copied = Place("one", url, None)
    for question, answer in answers.items():
        assert told(copied, *question) == answer, question
    copied.close()
    plain.close()


def questions(place: Place) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Every endpoint, of a trajectory with a tool call."""
    listed = ENDPOINTS["trajectories"].function(place, run="small")["rows"]
    row, other = [row for row in listed if row[12]][:2]
    thread = {"thread": row[2]}
    found = ENDPOINTS["moments"].function(place, row[2])["moments"]
    call = next(
        each
        for each in ENDPOINTS["items"].function(place, row[1])["items"]
        if each["kind"] == "call"
    )
    run, id_ = {"run": "small"}, {"id": row[1]}
    asked: dict[str, dict[str, str]] = {
        **dict.fromkeys(("metrics", "groups", "trajectories", "environment", "analyses"), run),
        **dict.fromkeys(("trajectory", "items", "citations"), id_),
        **dict.fromkeys(("moments", "graph"), thread),
        "runs": {},
        "threads": {},
        "step": {**run, "step": "2"},
        "moment": {**thread, "checkpoint": found[-1]["checkpoint"]},
        "tokens": {"call": call["id"]},
        "search": {"q": row[1]},
        "compare": {"a": row[1], "b": other[1]},
        "evaluations": {"runs": evaluations_key([("one", "small"), ("one", "small")])},
        "blob": {"item": f"call:{call['id']}", "field": "prompt/1"},
    }
    of_files = {"source", "analysis", "datasets", "dataset"}
    assert asked.keys() | of_files == ENDPOINTS.keys(), "a new endpoint is asked here, too"
    return [(name, tuple(query.items())) for name, query in asked.items()]


def told(place: Place, name: str, query: tuple[tuple[str, str], ...]) -> Any:
    """Answer of an endpoint without parts that differ between stores: name, row numbers, times,
    commands and next page.
    """
    endpoint = ENDPOINTS[name]
    with place.moment():
        answer = endpoint.function(
            [place] if endpoint.everywhere else place, **endpoint.read(dict(query))
        )
    found: Any = json.loads(json_text(answer).replace(place.where, "STORE"))
    for row in found.get("rows", ()) if name == "trajectories" else ():
        del row[0]
    for run in found.get("runs", ()):
        del run["updated_at"]
    return {key: value for key, value in found.items() if key not in ("commands", "next")}
