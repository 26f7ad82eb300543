"""Stores of untrusted origin: any content is shown as strict JSON, reported as damaged, or skipped."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage

from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.store import open_store
from hrm_agent.store.values.value_reader import DICT, LIST, TREE, hash_of
from hrm_agent.trajectory import BranchReason, ForkRef, Overlay, Verdict
from hrm_agent.viewer.json_text import NotThere, foreign, json_text
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections import ENDPOINTS
from hrm_agent.viewer.projections.trajectory.tokens import token_texts
from hrm_agent.viewer.run_files import metrics_of
from tests.support.trajectory.samples import make_call, make_tool_call, make_trajectory

Ask = Callable[..., dict[str, Any]]
LONG = "word " * 2_000_000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place("odd", str(tmp_path / "odd"), tmp_path / "odd")
    (tmp_path / "odd").mkdir()
    yield found
    found.close()


@pytest.fixture
def ask(place: Place) -> Ask:
    def asked(name: str, /, **query: str) -> dict[str, Any]:
        endpoint = ENDPOINTS[name]
        answer = endpoint.function(
            [place] if endpoint.everywhere else place, **endpoint.read(query)
        )
        return json.loads(json_text(answer), parse_constant=refuse)

    return asked


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def write(place: Place, *calls: Any, **changes: Any) -> str:
    trajectory = make_trajectory().model_copy(update={"calls": (), "tool_calls": (), **changes})
    with open_store(place.where) as store:
        store.journal.write_trajectory(trajectory)
        for call in calls:
            write_one = (
                store.journal.write_call
                if hasattr(call, "token_ids")
                else store.journal.write_tool_call
            )
            write_one(call)
    return trajectory.id


def write_to(place: Place) -> None:
    with open_store(place.where) as store:
        store.journal.write_trajectory(make_trajectory())


def change(place: Place, statement: str, *values: Any) -> None:
    place.close()
    with sqlite3.connect(Path(place.where) / "store.db") as database:
        database.execute(statement, values)
    database.close()


def test_long_texts_are_cut_and_had_in_pieces(place: Place, ask: Ask) -> None:
    task = make_trajectory().task.model_copy(update={"prompt": LONG})
    id_ = write(place, make_tool_call(content=LONG), task=task, answer="\0\x1b[31m" + LONG)
    found, (tool,) = ask("trajectory", id=id_), ask("items", id=id_)["items"]
    prompt = found["header"]["task"]["prompt"]
    assert (len(prompt["text"]), prompt["chars"], prompt["cut"]) == (4_000, len(LONG), True)
    assert len(json.dumps(found)) < 60_000 and len(json.dumps(tool)) < 60_000
    for cut in (prompt, tool["content"]):
        piece = ask("blob", **cut["blob"], **{"from": "65536"})
        assert (piece["text"], piece["next"]) == (LONG[65536 : 2 * 65536], 2 * 65536)
    last = ask("blob", **prompt["blob"], **{"from": str(len(LONG) - 3)})
    assert (len(last["text"]), last["next"]) == (3, None)
    assert ask("search", q="word word")["rows"][0]["where"] == "prompt"
    with pytest.raises(NotThere):
        ask("blob", item=f"trajectory:{id_}", field="__class__")


def test_what_is_no_json() -> None:
    for value, shown in (
        (math.nan, None),
        (math.inf, None),
        (2**70, str(2**70)),
        (-(10**5000), "an integer of 16610 bits"),
        ({"a": [math.nan]}, {"a": [None]}),
        (b"bytes", "5 bytes"),
        ("\ud800", "\ud800"),
        (object(), "a value of the type object"),
    ):
        assert foreign(value) == shown
        assert (
            json.loads(json_text({"value": value, "nan": math.nan}), parse_constant=refuse)["value"]
            == shown
        )


def test_nesting_without_end() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert "more deeply" in json_text({"deep": deep})


def test_metrics_that_are_no_numbers(place: Place, ask: Ask) -> None:
    write(place, run_id="odd")
    (Path(place.where) / "metrics.jsonl").write_text(
        '{"step": 0, "loss": NaN, "x": 1e999, "note": {"deep": 1}, "roles": {"a": {"t": -Infinity},'
        ' "b": 3}}\n{"step": 1, "loss": 2.5, "big": '
        + "9" * 400
        + "}\n"
        + "[1]\n"
        + '{"step": 2, "loss": 1}\n'
    )
    found = ask("metrics", run="odd")
    assert found["series"]["loss"] == [None, 2.5] and found["total"] == 2, (
        "nothing counts after a row that is none"
    )
    assert found["roles"] == {"a": {"t": [None, None]}}
    assert ask("step", run="odd", step="1")["metrics"]["loss"] is None


def test_a_key_of_a_role_that_is_there_twice(place: Place, ask: Ask) -> None:
    write(place, run_id="odd")
    row = '{"step": %d, "roles/a/t": 1, "roles": {"a": {"t": 2}}}\n'
    (Path(place.where) / "metrics.jsonl").write_text(row % 0 + row % 1)
    assert ask("metrics", run="odd")["roles"] == {"a": {"t": [1, 1]}}


def test_no_share_of_problems(place: Place, ask: Ask) -> None:
    write(place, run_id="odd", group_id="odd/eval-1/0")
    (Path(place.where) / "config.toml").write_text('command = "train rl"')
    (Path(place.where) / "metrics.jsonl").write_text('{"step": 0, "eval/correct": 5.0}\n')
    (point,) = ask("metrics", run="odd")["held_out"]
    assert (point["value"], point["low"], point["problems"]) == (5.0, None, 1)
    assert ask("runs")["runs"][0]["accuracy"] == 5.0


def test_a_column_of_another_type(place: Place, ask: Ask, tmp_path: Path) -> None:
    """SQLite stores values of any type, whatever the type of the column."""
    id_ = write(place, make_call("task-a"))
    other = Place("other", str(tmp_path / "other.db"), None)
    write_to(other)
    sound = Path(place.where, "store.db").read_bytes()
    for statement, told in (
        ("UPDATE trajectories SET started_at = 'text'", "runs"),
        ("UPDATE threads SET updated_at = x'ff'", "runs"),
        ("UPDATE trajectories SET record = 9223372036854775807", "trajectory"),
        ("UPDATE calls SET record = 2000000000", "items"),
    ):
        change(place, statement)
        if told == "runs":
            found = ENDPOINTS["runs"].function([place, other])
            assert [run["place"] for run in found["runs"]] == ["other"] and found["problems"][0][
                "place"
            ] == "odd"
        elif told == "trajectory":
            with pytest.raises(HrmError, match="cannot be read"):
                ask("trajectory", id=id_)
        else:
            assert ask("items", id=id_)["damaged"], "and no 2 GB of zeros were made"
        Path(place.where, "store.db").write_bytes(sound)
    other.close()


def test_a_request_that_is_none(place: Place, ask: Ask) -> None:
    id_ = write(place, make_call("task-a"))
    for data in (
        b"\xff",
        ormsgpack.packb([3]),
        ormsgpack.packb([[9, 1]]),
        ormsgpack.packb({"a": 1}),
    ):
        change(
            place, "INSERT OR REPLACE INTO requests (call_id, data) SELECT id, ? FROM calls", data
        )
        assert len(ask("items", id=id_)["items"]) == 1


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("a = [" * 10_000)
    (tmp_path / "metrics.jsonl").mkdir()
    place = Place("odd", str(tmp_path), tmp_path)
    write(place)
    assert ENDPOINTS["runs"].function([place])["runs"][0]["kind"] == "run"
    assert metrics_of(tmp_path) is None
    place.close()


def test_a_damaged_row_is_told_and_the_others_are_shown(place: Place, ask: Ask) -> None:
    good = write(place, make_call("task-a"), make_call("task-c"), make_tool_call(), group_id="g")
    bad = write(place, id="bad", thread_id="thread-2", group_id="g")
    change(place, "UPDATE trajectories SET record = ? WHERE id = ?", b"{not json", bad)
    change(place, "UPDATE calls SET record = ? WHERE seq = 1", b'{"id": 3}')
    listed = ask("trajectories", run=make_trajectory().run_id)
    assert [row[1] for row in listed["rows"]] == [good] and listed["damaged"][0]["id"] == bad
    found, items = ask("trajectory", id=good), ask("items", id=good)
    assert found["counts"]["model_calls"] == 1 and len(found["damaged"]) == 1
    assert {item["kind"] for item in items["items"]} == {"tool", "call"}
    assert [
        each["trajectory"]
        for each in ask("groups", run=make_trajectory().run_id)["groups"][0]["rollouts"]
    ] == [good]
    with pytest.raises(HrmError, match="cannot be read"):
        ask("trajectory", id=bad)
    change(
        place,
        "UPDATE tokens SET logprobs = ? WHERE call_id = (SELECT id FROM calls WHERE seq = 2)",
        b"abc",
    )
    item = next(item for item in ask("items", id=good)["items"] if item["kind"] == "call")
    assert item["problem"] == "This record cannot be read."


def test_parents_and_forks_that_go_round_in_a_circle(place: Place, ask: Ask) -> None:
    calls = [make_call("task-a"), make_call("task-c")]
    id_ = write(
        place, *calls, forked_from=ForkRef(trajectory_id=make_trajectory().id, checkpoint_id="c")
    )
    change(place, "UPDATE calls SET parent = ? WHERE id = ?", calls[1].id, calls[0].id)
    change(place, "UPDATE calls SET parent = ? WHERE id = ?", calls[0].id, calls[1].id)
    found = ask("tokens", call=calls[0].id)
    assert [each["call"] for each in found["path"]] == [calls[1].id, calls[0].id] and found[
        "total"
    ] == 8
    assert ask("trajectory", id=id_)["items"] == 2
    assert ask("compare", a=id_, b=id_)["shared"] is None
    with open_store(place.where) as store:
        assert len(store.journal.path_tokens(calls[0].id)) > 8, "it ends"


def test_log_probs_that_are_no_numbers(place: Place, ask: Ask) -> None:
    call = make_call("task-a", logprobs=(0.0, 0.0, math.nan, -math.inf))
    write(place, call)
    assert ask("tokens", call=call.id)["logprob"] == [None] * 4


@pytest.mark.whole
def test_a_store_names_no_file_that_is_opened(
    place: Place, tmp_path: Path, trained_run: Path
) -> None:
    outside = tmp_path / "secret"
    outside.mkdir()
    (outside / "tokenizer.json").write_bytes(
        (trained_run / "model" / "tokenizer.json").read_bytes()
    )
    folder = Path(place.where)
    (folder / "link").symlink_to(outside)
    for name in (
        str(outside),
        "../secret",
        "odd/../../secret",
        "link",
        "",
        ".",
        "a\0b",
        "builtin:../secret",
        "hf:x/y",
    ):
        assert token_texts(name, folder)[0] is None, name
    (folder / "model").mkdir()
    (folder / "model" / "tokenizer.json").write_bytes((outside / "tokenizer.json").read_bytes())
    for name in ("odd/model", "runs/odd/model", str(folder / "model")):
        assert token_texts(name, folder)[0] is not None, name
    assert token_texts("model", None)[0] is None
    (folder / "model" / "tokenizer.json").write_text('{"model": []}')
    assert "cannot be read" in str(token_texts("odd/model", folder)[1])


def test_values_of_unknown_types_are_told_and_nothing_is_imported(
    place: Place, ask: Ask, tmp_path: Path
) -> None:
    evil = tmp_path / "evil_module.py"
    evil.write_text("raise SystemExit('imported')")
    sys.path.insert(0, str(tmp_path))
    try:
        write(place, graph="evil_module:graph", thread_id="t")
        with open_store(place.where) as store:
            saver = store.checkpointer
            empty: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
            values = {
                "messages": [HumanMessage("hi", id="h"), AIMessage("yes", id="a")],
                "note": "n",
                "odd": 1.5,
            }
            versions = dict.fromkeys(values, 1)
            checkpoint = checkpoint_of(values)
            saver.put(empty, checkpoint, {"source": "input", "step": -1, "parents": {}}, versions)
        packed = ormsgpack.packb(
            ormsgpack.Ext(0, ormsgpack.packb(["evil_module", "Type", [1, {"a": 2}]]))
        )
        forged = manifest_with(place, "odd", [3, packed])
        change(place, "UPDATE checkpoints SET manifest = ?", forged)
        found = ask("moment", thread="t", checkpoint=checkpoint["id"])
        channels = {channel["name"]: channel for channel in found["channels"]}
        assert channels["odd"]["kind"] == "unread" and "evil_module.Type" in channels["odd"]["why"]
        assert [message["type"] for message in channels["messages"]["messages"]] == ["human", "ai"]
        assert channels["note"]["text"]["text"] == "n"
        assert ask("graph", thread="t")["source"] == "observed"
        assert (
            ask("compare", a="t", b="t")["states"] == []
            and ask("citations", id="t")["citations"] == []
        )
        assert "evil_module" not in sys.modules
    finally:
        sys.path.remove(str(tmp_path))


def checkpoint_of(values: dict[str, Any]) -> Any:
    return {
        "v": 4,
        "id": "1f1e93a3-46c0-6a75-8008-e2fef11c0f71",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
        "versions_seen": {},
    }


def test_forged_checkpoints_are_told(place: Place, ask: Ask) -> None:
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    ids = [f"1f1e93a3-46c0-6a75-8008-e2fef11c0f7{number}" for number in range(4)]
    with open_store(place.where) as store:
        for number, id_ in enumerate(ids):
            made = checkpoint_of({"note": number}) | {
                "id": id_,
                "ts": "no time" if number == 1 else "2026-01-01",
            }
            facts: Any = {"source": "loop", "step": number - 1, "parents": {}}
            config = store.checkpointer.put(config, made, facts, {"note": number + 1})
    assert [
        each["checkpoint"] for each in ask("moments", thread="t")["moments"] if "problem" in each
    ] == ids[1:3]
    change(place, "UPDATE checkpoints SET metadata = ? WHERE id = ?", b"\xc1", ids[3])
    found = ask("moments", thread="t")
    assert [each["checkpoint"] for each in found["moments"] if "problem" in each] == ids[
        1:
    ] and found["damaged"]
    assert ask("graph", thread="t")["damaged"]


ANALYSIS = {"kind": "why", "title": "t", "command": "c", "result": {"step": 2**60, "p": math.nan}}


def test_only_valid_analyses_are_shown(place: Place, ask: Ask, tmp_path: Path) -> None:
    write(place, run_id="odd")
    folder = Path(place.where) / "analyses"
    folder.mkdir()
    valid, *others = (f"why-{number:016x}" for number in range(9))
    for name, text in zip(
        others,
        (
            json.dumps(ANALYSIS | {"kind": "other"}),
            json.dumps(ANALYSIS | {"result": []}),
            json.dumps(ANALYSIS | {"more": 1}),
            json.dumps(ANALYSIS | {"title": None}),
            json.dumps(ANALYSIS) + " " * (1 << 24),
            "[" * 100_000,
        ),
        strict=False,
    ):
        (folder / f"{name}.json").write_text(text)
    outside = tmp_path / "outside.json"
    for path in (outside, folder / f"{valid}.json", folder / "other-0123456789abcdef.json"):
        path.write_text(json.dumps(ANALYSIS))
    (folder / f"{others[6]}.json").symlink_to(outside)
    os.mkfifo(folder / f"{others[7]}.json")
    found = ask("analyses", run="odd")
    assert [(each["name"], each["title"]) for each in found["analyses"]] == [(valid, "t")]
    assert found["unreadable"] == 8, "the name of the last file is not that of a known kind"
    shown = ask("analysis", run="odd", name=valid)
    assert shown == {**ANALYSIS, "name": valid, "result": {"step": str(2**60), "p": None}}
    for name in (*others, "../outside", f"../analyses/{valid}", valid + "\n", valid.upper()):
        with pytest.raises(NotThere):
            ask("analysis", run="odd", name=name)
    assert ask("analyses", run="another")["analyses"] == []
    with pytest.raises(NotThere):
        ask("analysis", run="another", name=valid)
    (folder / f"{valid}.json").write_text(json.dumps(ANALYSIS | {"title": "longer"}))
    assert ask("analyses", run="odd")["analyses"][0]["title"] == "longer"


def test_no_pipe_of_a_run_folder_is_waited_for(place: Place, ask: Ask) -> None:
    write(place)
    for name in ("run_id", "config.toml", "metrics.jsonl", "report.json", "results.json"):
        os.mkfifo(Path(place.where) / name)
    assert ask("runs")["runs"][0]["trajectories"] == 1 and ask("metrics", run="odd")["total"] == 0


@pytest.mark.parametrize("kind", [LIST, TREE, DICT])
def test_few_rows_that_stand_for_more_than_memory_holds(kind: int, place: Place, ask: Ask) -> None:
    id_, thread = write(place, make_call("task-a")), make_trajectory().thread_id
    with open_store(place.where) as store:
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        checkpoint = checkpoint_of({"odd": "o"})
        store.checkpointer.put(
            config, checkpoint, {"source": "input", "step": -1, "parents": {}}, {"odd": 1}
        )
    reference: Any = [LIST, ormsgpack.packb([])]
    for _ in range(40):
        named = [[str(n), reference] for n in range(10)] if kind == DICT else [reference] * 10
        data = ormsgpack.packb(named)
        reference = hash_of(kind, data)
        change(
            place, "INSERT INTO blobs (hash, kind, data) VALUES (?, ?, ?)", reference, kind, data
        )
    change(place, "UPDATE checkpoints SET manifest = ?", manifest_with(place, "odd", reference))
    row = ormsgpack.packb([reference])
    change(place, "INSERT OR REPLACE INTO requests (call_id, data) SELECT id, ? FROM calls", row)
    with pytest.raises(HrmError, match="parts"):
        ask("moment", thread=thread, checkpoint=checkpoint["id"])
    assert "problem" in ask("items", id=id_)["items"][0]


def manifest_with(place: Place, name: str, reference: Any) -> bytes:
    with sqlite3.connect(Path(place.where) / "store.db") as database:
        (stored,) = database.execute("SELECT manifest FROM checkpoints").fetchone()
    rest, channels = ormsgpack.unpackb(stored)
    return ormsgpack.packb([rest, [[n, v, reference if n == name else r] for n, v, r in channels]])


def test_forged_citations_are_not_verified(place: Place, ask: Ask) -> None:
    write(place, thread_id="t", answer="It is so [1][2] and [99].\n\nSources:\n[1] x")
    text = "The moon is made of rock."
    cited = [
        {"source": "S1", "start": 4, "end": 8, "quote": "moon", "url": "https://example.org/a"},
        {"source": "S1", "start": -5, "end": 10**9, "quote": "moon", "url": "javascript:alert(1)"},
        {"source": "S9", "start": 0, "end": 1, "quote": "T"},
        {"source": ["S1"], "start": "x", "end": None, "quote": None},
        {"source": "S1", "start": 2**60, "end": 2**61, "quote": "moon"},
        "no citation",
    ]
    with open_store(place.where) as store:
        values: dict[str, Any] = {
            "citations": cited,
            "sources": {"S1": {"title": "Moon", "text": text}, "S2": "odd"},
        }
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        store.checkpointer.put(
            config,
            checkpoint_of(values),
            {"source": "input", "step": -1, "parents": {}},
            dict.fromkeys(values, 1),
        )
    found = ask("citations", id="t")
    assert [each["verified"] for each in found["citations"]] == [True, False, False, False, False]
    assert [each["url"] for each in found["citations"][:2]] == ["https://example.org/a", None]
    assert [part.get("citation") for part in found["parts"]] == [None, 1, 2, None]
    span = ask("source", id="t", source="S1", start="4", end="8")
    assert (span["before"], span["span"], span["after"]) == ("The ", "moon", " is made of rock.")
    far = ask("source", id="t", source="S1", start="999999", end="3")
    assert (far["span"], far["after"]) == ("", "")
    with pytest.raises(NotThere):
        ask("source", id="t", source="S9")


def test_an_overlay_may_say_anything(place: Place, ask: Ask) -> None:
    id_ = write(place, make_call("task-a"))
    with open_store(place.where) as store:
        store.journal.write_overlays([Overlay(run_id="r", step=2**40, trajectory_id=id_, group_id="", reward=0.5,
            verdict=Verdict.KEPT, reason=LONG, penalty_error=0, penalty_format=0, credit={"x": 1.0})])  # fmt: skip
    found = ask("trajectory", id=id_)["overlays"][0]
    assert found["step"] == 2**40 + 1 and found["reason"]["cut"]
    assert ask("blob", **found["reason"]["blob"])["chars"] == len(LONG)
    call = ask("items", id=id_)["items"][0]
    assert (
        call["credit"] is None and ask("tokens", call=call["id"], run="r")["weight"] == [None] * 4
    )


def test_query_values_are_checked() -> None:
    for name, query in (("items", {}), ("items", {"id": "x", "limit": "0"}), ("items", {"id": "x", "after": "-1"}),
        ("items", {"id": "x", "limit": "1e3"}), ("items", {"id": "x", "no": "1"}), ("items", {"id": "x" * 20_000}),
        ("step", {"run": "x"}), ("runs", {"place": "x"}), ("tokens", {"call": "x", "to": "9" * 30})):  # fmt: skip
        with pytest.raises(ConfigError):
            ENDPOINTS[name].read(query)
    assert ENDPOINTS["items"].read({"place": "p", "id": "x"}) == {
        "id": "x",
        "after": 0,
        "limit": 200,
    }


def test_a_root_says_why(place: Place, ask: Ask) -> None:
    request = (
        {"type": "human", "content": "q"},
        {"type": "odd", "content": [{"text": "b"}, 5]},
        {"content": None},
    )
    id_ = write(place, make_call("task-a", request=request, branch_reason=BranchReason.NO_TOKENS))
    (call,) = ask("items", id=id_)["items"]
    assert call["branch_reason"] == "no_tokens"
    assert [(message["role"], message["text"]["text"]) for message in call["prompt_messages"]] == [
        ("user", "q"), ("odd", "b"), ("unread", "")
    ]  # fmt: skip
