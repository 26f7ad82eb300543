from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from langchain_core.messages import HumanMessage, SystemMessage
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from hrm_agent.trajectory import (
    ForkRef,
    Overlay,
    RunStatus,
    StopReason,
    ToolStatus,
    Trajectory,
    Turn,
    TurnEnd,
    Verdict,
)
from hrm_agent.trajectory.formats import RequestHints, export_to, import_from
from hrm_agent.trajectory.formats.otel.file import otel_rows
from hrm_agent.trajectory.formats.otel.spans import TraceSpan, spans_of, trace_id_of
from hrm_agent.trajectory.formats.shared.messages import answer_of, context_hash
from hrm_agent.trajectory.formats.shared.rows import write_rows
from tests.support.trajectory.samples import identity, make_call, make_tool_call, make_trajectory

OVERLAY = Overlay(
    run_id="run-1",
    step=4,
    trajectory_id="trajectory-1",
    group_id="group-1",
    reward=1.0,
    verdict=Verdict.KEPT,
    reason="drawn among the right ones",
    penalty_error=0.0,
    penalty_format=0.0,
    advantage=0.5,
)


def named(spans: list[TraceSpan]) -> dict[str, TraceSpan]:
    return {span.name: span for span in spans}


def tree(spans: list[TraceSpan]) -> list[tuple[str, str | None]]:
    names = {span.span_id: span.name for span in spans}
    return [(span.name, names[span.parent_id] if span.parent_id else None) for span in spans]


def test_a_run_is_a_tree_of_its_tasks() -> None:
    spans = spans_of(make_trajectory())
    assert tree(spans) == [
        ("invoke_agent tool_loop", None),
        ("reason", "invoke_agent tool_loop"),
        ("reason", "invoke_agent tool_loop"),
        ("tools", "invoke_agent tool_loop"),
        ("chat builtin:trained", "reason"),
        ("chat builtin:trained", "reason"),
        ("chat builtin:trained", "reason"),
        ("execute_tool python", "tools"),
        ("execute_tool python", "tools"),
    ]
    assert len({span.span_id for span in spans}) == len(spans)
    assert {span.trace_id for span in spans} == {trace_id_of(make_trajectory())}
    assert [(span.started_at, span.ended_at) for span in spans[:4]] == [
        (99.0, 105.0),
        (100.0, 101.5),
        (102.0, 104.0),
        (101.6, pytest.approx(101.91)),
    ]


def test_attributes_are_those_of_the_conventions() -> None:
    root, call, tool = (
        named(spans_of(make_trajectory(), overlay=OVERLAY))[name].attributes
        for name in ("invoke_agent tool_loop", "chat builtin:trained", "execute_tool python")
    )
    assert root == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "tool_loop",
        "gen_ai.conversation.id": "thread-1",
        "hrm_agent.trajectory_id": "trajectory-1",
        "hrm_agent.run_id": "run-1",
        "hrm_agent.group_id": "group-1",
        "hrm_agent.sample_index": 0,
        "hrm_agent.task_id": "wp-1",
        "hrm_agent.task_family": "word_problems",
        "hrm_agent.policy": "builtin:trained",
        "hrm_agent.policy_version": 3,
        "hrm_agent.status": "completed",
        "hrm_agent.stop_reason": "answer",
        "hrm_agent.sampled_tokens": 6,
        "hrm_agent.reward": 1.0,
        "hrm_agent.reward.correct": 1.0,
        "hrm_agent.verdict": "kept",
        "hrm_agent.verdict_reason": "drawn among the right ones",
        "hrm_agent.advantage": 0.5,
        "hrm_agent.step": 5,
    }
    last = make_trajectory().calls[-1]
    assert call == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "hrm_agent",
        "gen_ai.conversation.id": "thread-1",
        "gen_ai.request.model": "builtin:trained",
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.seed": 11,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 2,
        "hrm_agent.call_id": last.id,
        "hrm_agent.role": "reason",
        "hrm_agent.policy_version": 3,
        "hrm_agent.queue_seconds": 0.25,
        "hrm_agent.branch_reason": "root",
    }
    assert tool["gen_ai.tool.name"] == "python" and tool["hrm_agent.isolation"] == "L2"
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in (root, call, tool) for name in span if name.startswith("gen_ai.")}
    assert used <= known


def test_tokens_that_a_call_extends_are_tokens_that_it_read() -> None:
    answered = spans_of(make_trajectory())[5]
    assert (
        answered.attributes["gen_ai.usage.input_tokens"],
        answered.attributes["gen_ai.usage.output_tokens"],
    ) == (
        6,
        2,
    )


def test_what_a_provider_answered_is_its_own() -> None:
    asked = make_call(
        "task-a",
        model="openai:gpt-x",
        answered_by="gpt-x-2026",
        token_ids=(),
        mask=(),
        logprobs=(),
        sampling=None,
        response={
            "type": "ai",
            "content": "42",
            "usage_metadata": {
                "input_tokens": 9,
                "output_tokens": 3,
                "total_tokens": 12,
                "input_token_details": {"cache_read": 4},
            },
        },
    )
    span = spans_of(make_trajectory(calls=(asked,), tool_calls=()))[-1]
    wanted = {
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.response.model": "gpt-x-2026",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert (
        span.name == "chat gpt-x" and span.is_client and wanted.items() <= span.attributes.items()
    )


def test_thoughts_are_a_part_of_their_own() -> None:
    thought = {"type": "ai", "content": "42", "additional_kwargs": {"reasoning_content": "I add."}}
    run = make_trajectory(calls=(make_call("task-a", response=thought),), tool_calls=())
    call = next(
        span for span in spans_of(run, content=RequestHints()) if span.name.startswith("chat")
    ).attributes
    (answer,) = json.loads(str(call["gen_ai.output.messages"]))
    assert answer["parts"] == [
        {"type": "reasoning", "content": "I add."},
        {"type": "text", "content": "42"},
    ]
    assert "I add." not in json.dumps([span.attributes for span in spans_of(run)])


def test_messages_are_in_it_only_where_they_are_asked_for() -> None:
    secret = ("17 + 25", "42", "add")
    bare = json.dumps([span.attributes for span in spans_of(make_trajectory())])
    assert not any(part in bare for part in secret)
    request = (
        {"type": "system", "content": "Be brief."},
        {"type": "human", "content": "What is 17 + 25?"},
    )
    run = make_trajectory()
    sent = (SystemMessage("Be brief."), HumanMessage("What is 17 + 25?"))
    first = run.calls[0].model_copy(
        update={"request": request, "context_hash": context_hash((*sent, answer_of(run.calls[0])))}
    )
    spans = spans_of(
        run.model_copy(update={"calls": (first, *run.calls[1:])}), content=RequestHints()
    )
    call = next(span for span in spans if span.name.startswith("chat")).attributes
    assert json.loads(str(call["gen_ai.system_instructions"])) == [
        {"type": "text", "content": "Be brief."}
    ]
    assert json.loads(str(call["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "What is 17 + 25?"}]}
    ]
    (answer,) = json.loads(str(call["gen_ai.output.messages"]))
    assert answer["finish_reason"] == "tool_calls"
    assert answer["parts"][1] == {
        "type": "tool_call",
        "id": "tc-0",
        "name": "python",
        "arguments": {"code": "17 + 25"},
    }
    tool = named(spans)["execute_tool python"].attributes
    assert (
        tool["gen_ai.tool.call.arguments"] == '{"code": "17 + 25"}'
        and tool["gen_ai.tool.call.result"] == "42"
    )
    root = spans[0].attributes
    assert "What is 17 + 25?" in str(root["gen_ai.input.messages"]) and "boxed" in str(
        root["gen_ai.output.messages"]
    )


def test_failures_are_errors_by_their_status() -> None:
    late = make_tool_call("tc-9", status=ToolStatus.TIMEOUT)
    died = make_tool_call("tc-8", status=None, duration_seconds=0.0)
    run = make_trajectory(
        status=RunStatus.FAILED,
        stop_reason=StopReason.ERROR,
        error="KeyError: 'x'",
        tool_calls=(late, died),
    )
    root, *_, timed_out, unfinished = spans_of(run)
    assert (root.error, root.attributes["error.type"]) == ("failed", "KeyError")
    assert (timed_out.error, timed_out.attributes["error.type"]) == ("timeout", "timeout")
    assert unfinished.error == "unfinished"


def test_nested_graphs_are_nested_spans() -> None:
    inner = identity("b").model_copy(update={"checkpoint_ns": "solve:a|reason:b", "node": "reason"})
    run = make_trajectory(calls=(make_call("b", identity=inner),), tool_calls=())
    assert tree(spans_of(run)) == [
        ("invoke_agent tool_loop", None),
        ("solve", "invoke_agent tool_loop"),
        ("reason", "solve"),
        ("chat builtin:trained", "reason"),
    ]


def test_a_fork_has_its_own_calls_only() -> None:
    inherited = make_call("task-0", identity=identity("task-0", thread_id="origin"))
    own = make_call("task-1", started_at=110.0, ended_at=111.0)
    run = make_trajectory(
        forked_from=ForkRef(trajectory_id="origin-1", checkpoint_id="c"),
        calls=(inherited, own),
        tool_calls=(),
    )
    spans = spans_of(run)
    assert [
        span.attributes.get("hrm_agent.call_id") for span in spans if span.name.startswith("chat")
    ] == [own.id]
    assert spans[0].attributes["hrm_agent.forked_from"] == "origin-1"


def test_turns_are_roots_of_one_trace() -> None:
    first = make_trajectory()
    end = TurnEnd(status=RunStatus.FAILED, error="ValueError: no")
    later = make_call("task-d", started_at=201.0, ended_at=202.0)
    both = first.model_copy(
        update={
            "turns": (Turn(id="m", prompt="And doubled?", before=end, started_at=200.0),),
            "calls": (*first.calls, later),
            "ended_at": 203.0,
        }
    )
    before, now = spans_of(first), spans_of(both)
    roots = [span for span in now if span.parent_id is None]
    assert [(span.started_at, span.ended_at, span.error) for span in roots] == [
        (99.0, 104.0, "failed"),
        (200.0, 203.0, None),
    ]
    assert {span.span_id for span in before} <= {span.span_id for span in now}
    added = spans_of(both, newest_turn=True)
    assert [span.name for span in added] == [
        "invoke_agent tool_loop",
        "reason",
        "chat builtin:trained",
    ]
    assert {span.span_id for span in added} & {span.span_id for span in before} == set()


def test_a_thread_of_the_same_name_elsewhere_is_another_trace() -> None:
    assert trace_id_of(make_trajectory()) != trace_id_of(make_trajectory(started_at=98.0))


def test_a_file_is_otlp_of_one_run_a_line(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    under_way = make_trajectory(id="trajectory-2", status=RunStatus.RUNNING, ended_at=None)
    report = export_to(path, [make_trajectory(), under_way], "otel")
    assert (report.rows, report.left_out) == (1, Counter({"the run is under way": 1}))
    (line,) = map(json.loads, path.read_text().splitlines())
    spans: Any = (
        ParseDict(_with_base64_ids(line), TracesData()).resource_spans[0].scope_spans[0].spans
    )
    wanted = spans_of(make_trajectory())
    assert [span.span_id.hex() for span in spans] == [span.span_id for span in wanted]
    assert [span.start_time_unix_nano for span in spans] == [
        round(span.started_at * 1e9) for span in wanted
    ]
    once = path.read_text()
    export_to(path, [make_trajectory()], "otel")
    assert path.read_text() == once


def _with_base64_ids(line: dict[str, Any]) -> dict[str, Any]:
    """OTLP has hex digits where protobuf's own JSON has base64."""
    for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = b64encode(bytes.fromhex(span[name])).decode()
    return line


def test_spans_come_back_as_a_run(tmp_path: Path) -> None:
    turn = Turn(
        id="m2",
        prompt="And then?",
        before=TurnEnd(status=RunStatus.COMPLETED, stop_reason=StopReason.ANSWER, answer="42"),
        started_at=101.55,
    )
    run = make_trajectory(turns=(turn,), rewards={"correct": 1.0, "short": 0.5})
    write_rows([run], tmp_path / "spans.jsonl", otel_rows(RequestHints()))
    (found,) = import_from(tmp_path / "spans.jsonl")
    assert [answer_of(call).text for call in found.calls] == [
        answer_of(call).text for call in run.calls
    ]
    for name in ("model", "policy_version", "finish_reason"):
        assert [getattr(call, name) for call in found.calls] == [
            getattr(call, name) for call in run.calls
        ]
    assert [call.identity.role for call in found.calls] == [
        call.identity.role for call in run.calls
    ]
    same = ("tool_call_id", "name", "arguments", "status", "content")
    assert [[getattr(call, name) for name in same] for call in found.tool_calls] == [
        [getattr(call, name) for name in same] for call in run.tool_calls
    ]
    assert (found.status, found.answer, found.rewards) == (run.status, run.answer, run.rewards)
    assert (found.group_id, found.task.id, found.task.family, found.policy) == (
        run.group_id,
        run.task.id,
        run.task.family,
        run.policy,
    )
    assert [(one.prompt, one.before.answer) for one in found.turns] == [("And then?", "42")]


def test_a_run_without_calls_is_a_span() -> None:
    run: Trajectory = make_trajectory(calls=(), tool_calls=())
    assert [span.name for span in spans_of(run)] == ["invoke_agent tool_loop"]
