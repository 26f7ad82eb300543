from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hrm_agent.cli.main import main
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime import telemetry
from hrm_agent.runtime.episode import Episode, EpisodeRunner, exporting
from hrm_agent.runtime.settings import RunSettings
from hrm_agent.runtime.telemetry import otlp_sender, span_exporter
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef
from hrm_agent.trajectory.formats import RequestHints
from hrm_agent.trajectory.formats.otel.spans import spans_of
from tests.support.trajectory.samples import make_tool_call, make_trajectory

SCRIPT = (
    (
        '<reason>compute</reason><tool_call>{"name": "python", "arguments": {"code": "6 *'
        ' 7"}}</tool_call>'
    ),
    r"<reason>done</reason><answer>\boxed{42}</answer>",
)
SENT = RunSettings(otel=True)


class Collector(ThreadingHTTPServer):
    """Takes OTLP as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.server.paths.append(self.path)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with Collector() as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server
        server.shutdown()


def episode(thread: str = "t") -> Episode:
    return Episode(TaskRef(id="1", family="command", prompt="6 * 7?"), thread, seed=1)


async def test_a_run_is_sent_as_it_ends_and_not_when_it_is_read_back(
    store: RunStore, environment: LocalEnvironment
) -> None:
    exporter = InMemorySpanExporter()
    with exporting(SENT, exporter) as on_end:
        runner = EpisodeRunner(
            store, ScriptedEngine(SCRIPT), "scripted", environment, on_end=on_end
        )
        ended = await runner.run(episode())
        assert await runner.run(episode()) == ended
    found = exporter.get_finished_spans()
    wanted = spans_of(ended)
    assert [f"{span.context.span_id:016x}" for span in found if span.context] == [
        span.span_id for span in wanted
    ]
    assert [span.name for span in found if span.name.partition(" ")[1]] == [
        "invoke_agent tool_loop",
        "chat scripted",
        "chat scripted",
        "execute_tool python",
    ]
    call = next(span for span in found if span.name == "chat scripted")
    assert call.start_time == pytest.approx(ended.calls[0].started_at * 1e9, abs=2000)
    assert "gen_ai.input.messages" not in (call.attributes or {})


@pytest.mark.parametrize(
    ("variables", "settings"),
    [({}, RunSettings()), ({"OTEL_SDK_DISABLED": "true"}, SENT)],
    ids=["off", "disabled"],
)
def test_nothing_is_sent_unasked(
    variables: dict[str, str], settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with exporting(settings) as on_end:
        assert on_end is None


def test_a_run_that_waits_with_a_question_has_not_ended() -> None:
    exporter = InMemorySpanExporter()
    with exporting(SENT, exporter) as on_end:
        assert on_end is not None
        on_end(
            make_trajectory(
                status=RunStatus.TRUNCATED, stop_reason=StopReason.INTERRUPT, answer=None
            )
        )
    assert exporter.get_finished_spans() == ()


def test_the_variables_say_where_to(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=agents")
    with exporting(RunSettings(otel=True, otel_content=True)) as on_end:
        assert on_end is not None
        on_end(make_trajectory())
    (request,) = collector.requests
    resource = {
        item.key: item.value.string_value for item in request.resource_spans[0].resource.attributes
    }
    assert (resource["service.name"], resource["openinference.project.name"]) == ("mine", "agents")
    assert (
        collector.paths == ["/v1/traces"] and collector.headers[0]["authorization"] == "Basic abc"
    )
    root, *_ = collector.spans
    assert "gen_ai.input.messages" in {item.key for item in root.attributes}


def test_a_collector_that_refuses_is_told_of_and_costs_nothing(
    collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    collector.status = 400
    with exporting(SENT) as on_end:
        assert on_end is not None
        for _ in range(3):
            on_end(make_trajectory())
    said = capsys.readouterr().err
    assert said.count("the run goes on without") == 1 and "400" in said
    assert "3 runs were not sent by --otel" in said


def test_what_waits_is_bounded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telemetry, "_WAITING", 2)
    # not started: nothing is taken out
    sending = telemetry._Sending(lambda spans: None, content=False)
    for _ in range(5):
        sending.put(make_trajectory())
    assert sending._lost == 3 and "too slow" in capsys.readouterr().err


def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="http/protobuf"), exporting(SENT):
        pass


def test_missing_packages_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[otel\]'"), exporting(SENT):
        pass


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nowhere", "is no address of a collector"),
        ("ftp://there", "is no address of a collector"),
        ("http://", "is no address of a collector"),
        ("http://me:hunter2@there", "holds a name or a password"),
    ],
)
def test_what_is_no_address_of_a_collector(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        otlp_sender(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("end", ["", "/", "/v1/traces"])
def test_a_collector_is_named_by_its_base_or_its_whole_address(
    end: str, collector: Collector
) -> None:
    assert otlp_sender(f"{collector.url}{end}")(spans_of(make_trajectory())) is None
    assert collector.paths == ["/v1/traces"] and len(collector.spans) == 9


def test_halves_of_characters_are_sent_as_replaced(collector: Collector) -> None:
    run = make_trajectory(tool_calls=(make_tool_call(name="py\ud800", content="\ud800"),))
    assert otlp_sender(collector.url)(spans_of(run, content=RequestHints())) is None
    assert collector.names[-1] == "execute_tool py\ufffd"


def test_export_sends_a_store(
    collector: Collector,
    store: RunStore,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = make_trajectory()
    store.journal.write_trajectory(sample)
    for call in sample.calls:
        store.journal.write_call(call)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    where = str(store.folder / "store.db")
    assert main(["export", where, "--otlp", collector.url]) == 0
    assert "6 spans of 1 trajectories" in capsys.readouterr().out
    assert main(["export", where, "--otlp", collector.url]) == 0
    once, again = collector.spans[:6], collector.spans[6:]
    assert [span.span_id for span in once] == [span.span_id for span in again]
    collector.status = 403
    assert main(["export", where, "--otlp", collector.url]) != 0
    assert "did not accept the spans" in capsys.readouterr().err


OWN = """
import os, signal
from pathlib import Path
from langgraph.graph import START, MessagesState, StateGraph
from hrm_agent.models import policy

def think(state):
    return {"messages": [policy().invoke(state["messages"])]}

def check(state):
    answer = policy().invoke(state["messages"])
    if not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"messages": [answer]}

builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("check", check)
builder.add_edge(START, "think")
builder.add_edge("think", "check")
graph = builder.compile()
"""


@pytest.mark.whole
def test_a_run_that_was_killed_and_resumed_is_sent_once(
    collector: Collector, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "script.jsonl").write_text('"one"\n"two"\n"three"\n')
    words = [
        "run",
        "task",
        "--graph",
        "./own.py:graph",
        "--policy",
        "scripted:script.jsonl",
        "--thread",
        "t",
        "--otel",
    ]

    def start() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hrm_agent", *words]
        variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables
        )

    assert start().returncode == -signal.SIGKILL
    assert collector.requests == []
    done = start()
    assert done.returncode == 0, done.stderr
    assert start().returncode == 0  # it is read back
    with open_store(tmp_path / "runs" / "store.db") as store:
        record = store.journal.trajectory("t")
    assert [span.span_id.hex() for span in collector.spans] == [
        span.span_id for span in spans_of(record)
    ]
    assert collector.names.count("chat scripted:script.jsonl") == 2


def test_an_exporter_that_raises_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            raise OSError("no route")

    with exporting(SENT, Broken()) as on_end:
        assert on_end is not None
        on_end(make_trajectory())
    assert "OSError: no route" in capsys.readouterr().err
    with pytest.raises(OSError, match="no route"):
        span_exporter(Broken())(spans_of(make_trajectory()))
