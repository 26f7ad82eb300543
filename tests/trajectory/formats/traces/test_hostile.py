"""Trace files that no exporter writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import HrmError, StoreError
from hrm_agent.trajectory import RunStatus
from hrm_agent.trajectory.formats import Origin, import_from
from hrm_agent.trajectory.formats.shared import message_runs
from hrm_agent.trajectory.formats.traces import reading
from tests.trajectory.formats.traces.test_conventions import BASE, FORMS, Row, message, span

NEWEST = FORMS["newest"][0]


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "x.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def deep(levels: int) -> Row:
    return {"kvlistValue": {"values": [{"key": "a", "value": deep(levels - 1)}]}} if levels else {}


def whole(number: str) -> Row:
    return message({**span("1", {}), "attributes": [{"key": "a", "value": {"intValue": number}}]})


RUN: Row = {
    "id": "a",
    "trace_id": "t",
    "run_type": "llm",
    "start_time": "2026-01-01T00:00:00",
    "end_time": "2026-01-01T00:00:01",
    "inputs": {"messages": [{"role": "user", "content": "?"}]},
    "outputs": {"message": {"content": "!"}},
}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (message(span("1", NEWEST, "2"), span("2", {}, "1")), "its own ancestor"),
        (message(span("1", NEWEST, "1")), "its own ancestor"),
        (message(span("1", NEWEST), span("1", {})), "is there twice, with other contents"),
        (message(span("1", NEWEST, spanId="")), "spanId: an id of at most 128"),
        (message(span("1", NEWEST, traceId="a" * 200)), "traceId: an id of at most 128"),
        (message(span("1", NEWEST, startTimeUnixNano="9" * 24)), "is not a time from 1970"),
        (message(span("1", NEWEST, startTimeUnixNano=10**400)), "is not a time from 1970"),
        (message(span("1", NEWEST, startTimeUnixNano="-5")), "is not a time from 1970"),
        (message(span("1", NEWEST, startTimeUnixNano=True)), "is not a time from 1970"),
        (message(span("1", NEWEST, startTimeUnixNano="\u0663")), "is not a time from 1970"),
        (whole("--5"), "attributes: '--5' is not an integer"),
        (whole("\u00b2"), "is not an integer"),
        (
            message({**span("1", {}), "attributes": [{"key": "a", "value": deep(40)}]}),
            "nested more",
        ),
        (message(span("1", {"a." * 40: 1})), "too many parts"),
        (message(span("1", {})), "no trace with a model call"),
        (message(span("1", {**NEWEST, "gen_ai.input.messages": "[" * 9999})), None),
        ({"thing": 1}, "not an OTLP message"),
        ({**RUN, "id": "x" * 999}, "reads an OTLP message .* Add --format langsmith"),
    ],
)
def test_what_is_refused(row: Row, told: str | None, tmp_path: Path) -> None:
    path = written(tmp_path, row)
    if told is None:
        assert len(list(import_from(path, "otel"))) == 1, "a text that is no JSON is a text"
        return
    with pytest.raises(HrmError, match=told) as caught:
        list(import_from(path, "otel"))
    assert "x.jsonl" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": "x" * 999}, "id: an id of at most"),
        ({"parent_run_id": "a"}, "its own ancestor"),
        ({"start_time": "soon"}, "'soon' is not a time"),
        ({"parent_run_id": "b", "trace_id": None}, "needs a trace_id"),
    ],
)
def test_runs_of_langsmith_that_are_refused(change: Row, told: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=told):
        list(import_from(written(tmp_path, {**RUN, **change})))


def test_the_line_of_broken_json_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, RUN, RUN)
    path.write_text(path.read_text()[:-9])
    with pytest.raises(StoreError, match=r"x\.jsonl:2 is not JSON"):
        list(import_from(path))
    path.write_text(json.dumps(RUN, indent=1) + "\n" + json.dumps(RUN, indent=1)[:-9])
    with pytest.raises(StoreError, match=r"x\.jsonl:\d+ is not JSON"):
        list(import_from(path, "langsmith"))
    path.write_bytes(b"\x0a\x10" + b"\x00" * 40)
    with pytest.raises(StoreError, match="no OTLP message in protobuf"):
        list(import_from(path))


def test_order_duplicates_missing_parents_and_times(tmp_path: Path) -> None:
    late = span("2", NEWEST, "1", startTimeUnixNano=str(10**18 + 10**9), endTimeUnixNano="0")
    early = span("3", NEWEST, "9", endTimeUnixNano=str(10**17))
    rows = [message(late), message(early), message(span("1", {})), message(early)]
    origin = Origin()
    (found,) = import_from(written(tmp_path, *rows), origin=origin)
    assert [call.ended_at >= call.started_at for call in found.calls] == [True, True]
    assert found.task.metadata["trace"]["missing"]["enclosing spans of spans"] == 1
    assert dict(origin.notes) == {
        "spans that are there twice were left out": 1,
        "spans ended before they started, and count as ended then": 1,
    }
    (unended,) = import_from(written(tmp_path, message(span("1", NEWEST, endTimeUnixNano="0"))))
    assert unended.status is RunStatus.ABORTED


def test_a_long_chain_of_spans(tmp_path: Path) -> None:
    chain = [
        {**span("1", {}), "spanId": f"{n:016x}", "parentSpanId": f"{n - 1:016x}"}
        for n in range(2, 3000)
    ]
    call = {**span("1", NEWEST), "spanId": "f" * 16, "parentSpanId": f"{2999:016x}"}
    (found,) = import_from(written(tmp_path, message(*chain, call)))
    assert len(found.calls) == 1


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, *(message(span(str(n), NEWEST)) for n in range(1, 5)))
    with monkeypatch.context() as patch:
        patch.setattr(message_runs, "MOST_SENT", 3)
        with pytest.raises(StoreError, match="were sent more than 3 messages"):
            list(import_from(path))
    with monkeypatch.context() as patch:
        patch.setattr(reading, "_MOST_SPANS", 3)
        with pytest.raises(StoreError, match="more than 3 spans"):
            list(import_from(path))
    with monkeypatch.context() as patch:
        patch.setattr(reading, "_MOST_TOTAL", 3)
        with pytest.raises(StoreError, match="larger than"):
            list(import_from(path))
    assert len(next(import_from(path)).calls) == 4


def test_log_records_that_are_there_twice(tmp_path: Path) -> None:
    said = {"stringValue": "Again."}
    body = {"kvlistValue": {"values": [{"key": "content", "value": said}]}}
    ids = {"traceId": "ab" * 16, "spanId": "1" * 16}
    log = {**ids, "eventName": "gen_ai.user.message", "body": body}
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [log, log]}]}]}
    origin = Origin()
    (found,) = import_from(written(tmp_path, message(span("1", BASE)), logs, logs), origin=origin)
    assert [row["content"] for row in found.calls[0].request or ()] == ["Again.", "Again."]
    assert dict(origin.notes) == {"log records that are there twice were left out": 2}


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("\n")
    for name in (None, "otel"):
        with pytest.raises(StoreError, match=r"x\.jsonl is empty"):
            list(import_from(tmp_path / "x.jsonl", name))
