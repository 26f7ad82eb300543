"""Files that the libraries' own exporters wrote of agents, and the record of the same run.

`benchmarks/traces_in` made them: OpenInference for LangChain 0.1.80, OpenLLMetry for LangChain
0.62.4, OpenTelemetry for OpenAI 2.4b0 with log records, the SDK's console exporter 1.45.2,
langsmith 0.15.1 and langfuse 5.0.4.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from benchmarks.traces_in.compared import compared
from hrm_agent.errors import StoreError
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.formats import import_from, missing_parts, read_jsonl
from hrm_agent.trajectory.formats.traces.otlp import protobuf_messages

DATA = Path(__file__).parents[3] / "support" / "trajectory" / "data" / "traces"
FILES = {
    "console": ["console.json"],
    "langfuse": ["langfuse.pb"],
    "langsmith": ["langsmith.jsonl"],
    "openinference": ["openinference.pb"],
    "openllmetry": ["openllmetry.pb"],
    "otel-openai": ["otel-openai-logs.pb", "otel-openai.pb"],
}


def files(name: str) -> list[Path]:
    return [DATA / one for one in FILES[name]]


def spaces(run: Trajectory) -> set[str]:
    return {call.identity.checkpoint_ns for call in (*run.calls, *run.tool_calls)}


@pytest.mark.parametrize("name", FILES)
def test_a_trace_is_the_record_of_the_same_run(name: str) -> None:
    recorded = list(read_jsonl(DATA / f"{name}.record.jsonl"))
    imported = list(import_from(files(name)))
    calls = sum(len(run.calls) for run in recorded)
    tools = sum(len(run.tool_calls) for run in recorded)
    assert compared(recorded, imported) == {
        "runs": [1, 1],
        "calls": [calls, calls],
        "answers": calls,
        "requests": calls,
        "roles": 0 if name == "otel-openai" else calls,  # a client does not know the graph
        "usage": calls,
        "tools": [tools, tools],
        "arguments": tools,
        "results": tools,
        "outcomes": tools,
        "final": 1,
    }
    assert "token ids and log-probs of calls" in missing_parts(imported[0])
    if name != "otel-openai":
        assert spaces(imported[0]) == spaces(recorded[0])
    assert [run.task.prompt for run in imported] == [run.task.prompt for run in recorded]


def test_the_same_spans_in_each_form_of_otlp(tmp_path: Path) -> None:
    (whole,) = import_from(files("openinference"))
    data = (DATA / "openinference.pb").read_bytes()
    rows = list(protobuf_messages(data, "x"))
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "x.json").write_text(json.dumps(rows[0], indent=2))
    (tmp_path / "x.binpb").write_bytes(struct.pack(">I", len(data)) + data)
    for name in ("x.jsonl", "x.json", "x.binpb"):
        (found,) = import_from(tmp_path / name)
        assert found == whole
        (found,) = import_from(tmp_path / name, "phoenix")
        assert found.calls[0].response == whole.calls[0].response


def test_rows_of_apis(tmp_path: Path) -> None:
    """LangSmith's rows as a list and in an answer, Phoenix's as its API lists them."""
    (whole,) = import_from(files("langsmith"))
    rows = [json.loads(line) for line in (DATA / "langsmith.jsonl").read_text().splitlines()]
    for name, value in (("a.json", rows[::-1]), ("b.json", {"runs": rows, "cursors": {}})):
        (tmp_path / name).write_text(json.dumps(value, indent=1))
        (found,) = import_from(tmp_path / name)
        assert found == whole
    (shown,) = import_from(files("console"))
    text = (DATA / "console.json").read_text()
    spans = [json.loads(one) for one in text.replace("\n}\n{", "\n}\0{").split("\0")]
    listed = [
        {**one, "span_kind": one["attributes"]["openinference.span.kind"], "status_code": "OK"}
        for one in spans
    ]
    (tmp_path / "c.json").write_text(json.dumps({"data": listed, "next_cursor": None}))
    columns = [
        {
            "name": one["name"],
            "context.trace_id": one["context"]["trace_id"],
            "context.span_id": one["context"]["span_id"],
            "parent_id": one["parent_id"],
            "start_time": one["start_time"],
            "end_time": one["end_time"],
            **{f"attributes.{name}": value for name, value in one["attributes"].items()},
        }
        for one in spans
    ]
    (tmp_path / "d.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in columns))
    for name in ("c.json", "d.jsonl"):
        (found,) = import_from(tmp_path / name, "phoenix")
        assert [call.response for call in found.calls] == [call.response for call in shown.calls]


def test_langfuse_s_export(tmp_path: Path) -> None:
    """Rows by the names of its API and of its files."""
    (whole,) = import_from(files("langfuse"))
    from benchmarks.traces_in.receiver import langfuse_rows

    rows = langfuse_rows(files("langfuse"))
    names = {"traceId": "trace_id", "parentObservationId": "parent_observation_id"} | {
        "startTime": "start_time",
        "endTime": "end_time",
        "model": "provided_model_name",
        "modelParameters": "model_parameters",
        "usageDetails": "usage_details",
    }
    texts = [
        {
            names.get(name, name): json.dumps(value) if name in ("input", "output") else value
            for name, value in row.items()
        }
        for row in rows
    ]
    for name, value in (("a", rows), ("b", texts), ("c", {"id": "t", "observations": rows})):
        (tmp_path / name).write_text(json.dumps(value))
        (found,) = import_from(tmp_path / name, "langfuse")
        assert [call.response for call in found.calls] == [call.response for call in whole.calls]
        assert len(found.tool_calls) == len(whole.tool_calls) == 1


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    for name in ("openinference.pb", "langsmith.jsonl", "console.json"):
        (tmp_path / name).write_bytes((DATA / name).read_bytes()[:-40])
        with pytest.raises(StoreError, match=name):
            list(import_from(tmp_path / name))
