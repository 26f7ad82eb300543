"""Reader of trace files: the spans of all files, by trace, as trajectories.

The spans of one trace may be in several lines and files, in any order, since exporters send them in
batches. So all files of an import are read before the first trajectory is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hrm_agent.errors import StoreError
from hrm_agent.trajectory.formats.shared.json_documents import (
    MOST_BYTES,
    printable,
    refused,
    values,
)
from hrm_agent.trajectory.formats.shared.token_runs import Origin
from hrm_agent.trajectory.formats.traces.attributes import observed
from hrm_agent.trajectory.formats.traces.foreign_span import ForeignSpan
from hrm_agent.trajectory.formats.traces.langfuse import langfuse_observation
from hrm_agent.trajectory.formats.traces.langsmith import langsmith_run
from hrm_agent.trajectory.formats.traces.messages import Messages
from hrm_agent.trajectory.formats.traces.otlp import (
    Span,
    is_protobuf,
    otlp_rows,
    protobuf_messages,
    shown_span,
)
from hrm_agent.trajectory.formats.traces.runs import trajectory_of
from hrm_agent.trajectory.formats.traces.values import as_text, elements, mapping
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.schema import Trajectory

__all__ = ["TRACE_FORMATS", "read_traces", "trace_format"]

_HEAD = 4096
_MOST_SPANS = 1_000_000
"""Maximum number of spans and log records of an import."""
_MOST_TOTAL = 4 * MOST_BYTES
"""Maximum bytes of all files of an import, since all spans are held at once."""
_ENVELOPES = ("data", "runs", "observations", "spans", "traces", "items")
"""Keys under which an API's answer has its rows."""
_LANGFUSE_TYPES = {
    "agent",
    "chain",
    "embedding",
    "evaluator",
    "event",
    "generation",
    "guardrail",
    "retriever",
    "span",
    "tool",
}
_SHAPES = {
    "otlp": "an OTLP message",
    "span": "a span of OpenTelemetry's console exporter or of Phoenix",
    "langsmith": "a run of LangSmith",
    "langfuse": "an observation of Langfuse",
}
TRACE_FORMATS = {
    "otel": ("otlp", "span"),
    "phoenix": ("otlp", "span"),
    "langsmith": ("langsmith",),
    "langfuse": ("langfuse", "otlp"),
}
"""Format -> shapes of rows that it reads."""


def read_traces(paths: Sequence[Path], origin: Origin, name: str) -> Iterator[Trajectory]:
    """Trajectories of all traces with a model call, by their start. Raises `StoreError` if there is
    none.
    """
    if sum(path.stat().st_size for path in paths if path.is_file()) > _MOST_TOTAL:
        refused(str(paths[0]), "", f"the files are larger than {_MOST_TOTAL // 2**20} MiB together")
    collection = _Collection(name)
    for path in paths:
        for place, row in _rows(path):
            collection.add(row, place)
    traces = collection.by_trace()
    notes = collection.notes
    found = [
        run for spans in traces.values() if (run := trajectory_of(spans, origin, name)) is not None
    ]
    if len(found) < len(traces):
        notes["traces without a model call were left out"] += len(traces) - len(found)
    if not found:
        raise StoreError(
            f"{', '.join(map(str, paths))[:500]}: no trace with a model call is in it"
            f" ({len(traces)} traces without).",
            "Export the spans of the model's library as well; docs/formats.md names what is read.",
        )
    origin.notes.update(notes)
    yield from sorted(found, key=lambda run: (run.started_at, run.id))


def trace_format(path: Path) -> str | None:
    """Format of a trace file, seen from its first row (None for other files)."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if is_protobuf(file.read(_HEAD)):
            return "otel"
    try:
        shape = next((_shape(row) for _, row in _rows(path, deep=False)), None)
    except StoreError:
        return None
    return {"otlp": "otel", "span": "otel"}.get(shape or "", shape)


class _Collection:
    """Spans of all files, until all are read."""

    def __init__(self, name: str) -> None:
        self.notes = Counter[str]()
        """Numbers of what was left out, in words."""
        self._format = name
        self._messages = Messages()
        self._spans: dict[tuple[str, str], Span] = {}
        self._logs: list[Span] = []
        self._known_logs = Counter[str]()
        self._found: dict[tuple[str, str], ForeignSpan] = {}

    def add(self, row: dict[str, Any], place: str) -> None:
        """Add the spans of a row."""
        match shape := _shape(row):
            case _ if shape is None or shape not in TRACE_FORMATS[self._format]:
                _refuse(place, shape, self._format)
            case "otlp":
                spans = list(otlp_rows(row, place))
                for span in spans:
                    if not span.is_log:
                        self._add_once(self._spans, (span.trace_id, span.id), span)
                self._add_logs([span for span in spans if span.is_log])
            case "span":
                span = shown_span(row, place)
                self._add_once(self._spans, (span.trace_id, span.id), span)
            case "langsmith":
                run = langsmith_run(row, place, self._messages)
                self._add_once(self._found, (run.trace_id, run.id), run)
            case _ if row.get("type") is not None:
                one = langfuse_observation(row, place, self._messages)
                self._add_once(self._found, (one.trace_id, one.id), one)
            case _:  # rows of Langfuse's traces have nothing that its observations do not have
                pass
        if len(self._spans) + len(self._logs) + len(self._found) > _MOST_SPANS:
            refused(place, "", f"there are more than {_MOST_SPANS:,} spans")

    def _add_logs(self, logs: list[Span]) -> None:
        """Add log records of a row. Those of another row again are left out; equal records of one
        row are different ones.
        """
        here = Counter[str]()
        for log in logs:
            # records have no id
            key = content_hash(log.trace_id, log.id, [asdict(event) for event in log.events])
            here[key] += 1
            if here[key] > self._known_logs[key]:
                self._known_logs[key] += 1
                self._logs.append(log)
            else:
                self.notes["log records that are there twice were left out"] += 1

    def _add_once(self, known: dict[tuple[str, str], Any], key: tuple[str, str], one: Any) -> None:
        """Add a span. The same span again, as after a repeated request, is left out."""
        before = known.setdefault(key, one)
        if before is one:
            return
        if before != replace(one, place=before.place):
            refused(
                one.place,
                "",
                f"span {key[1][:80]} is there twice, with other contents at {before.place}",
            )
        self.notes["spans that are there twice were left out"] += 1

    def by_trace(self) -> dict[str, list[ForeignSpan]]:
        """Observations by trace, with the log records of their spans."""
        for log in self._logs:
            span = self._spans.get((log.trace_id, log.id))
            if span is None:
                self.notes["log records without their span were left out"] += 1
            else:
                span.events += log.events
        for key, span in self._spans.items():
            self._found[key] = observed(span, self._messages)
        traces: dict[str, list[ForeignSpan]] = {}
        for one in self._found.values():
            if one.ended_at is not None and one.ended_at < one.started_at:
                self.notes["spans ended before they started, and count as ended then"] += 1
            traces.setdefault(one.trace_id, []).append(one)
        return traces


def _rows(path: Path, *, deep: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a file as (place, object): of lists and of the answers of APIs, each element."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            data = head + file.read(MOST_BYTES + 1 - len(head)) if is_protobuf(head) else None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}.", "Name a file of traces.") from error
    if data is not None:
        if len(data) > MOST_BYTES:
            refused(str(path), "", f"it is larger than {MOST_BYTES // 2**20} MiB")
        for number, row in enumerate(protobuf_messages(data, str(path)), 1):
            yield f"{path}: message {number}", row
        return
    for place, value in values(path):
        yield from _unfolded(value, place, 0)
        if not deep:
            return


def _unfolded(value: Any, place: str, level: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, list):
        for index, one in enumerate(elements(value)):
            yield from _unfolded(one, f"{place}: [{index}]", level + 1)
        return
    if not isinstance(value, dict) or level > 4:
        refused(place, "", "an object belongs here")
    row = mapping(value)
    if _shape(row) is None:
        for name in _ENVELOPES:
            if isinstance(row.get(name), list):
                yield from _unfolded(row[name], f"{place}: {name}", level + 1)
                return
    yield place, row


def _shape(row: dict[str, Any]) -> str | None:
    """Shape of a row (None if unknown)."""
    if any(name in row for name in ("resourceSpans", "resourceLogs", "resourceMetrics")):
        return "otlp"
    if "run_type" in row:
        return "langsmith"
    if "trace_id" in mapping(row.get("context")) or "context.trace_id" in row:
        return "span"
    if as_text(row.get("type")).lower() in _LANGFUSE_TYPES and (
        row.get("traceId") or row.get("trace_id")
    ):
        return "langfuse"
    if (
        "timestamp" in row
        and "observations" not in row
        and ("bookmarked" in row or "sessionId" in row)
    ):
        return "langfuse"
    return None


def _refuse(place: str, shape: str | None, name: str) -> None:
    """Raise `StoreError` for a row that the format does not have."""
    wanted = " or ".join(_SHAPES[one] for one in TRACE_FORMATS[name])
    if shape is not None:
        fits = next(one for one, shapes in TRACE_FORMATS.items() if shape in shapes)
        raise StoreError(
            f"{printable(place)}: {_SHAPES[shape]}, and {name} reads {wanted}.",
            f"Add --format {fits}.",
        )
    raise StoreError(
        f"{printable(place)}: not {wanted}.",
        "docs/formats.md says how to export from each of these, and what is read.",
    )
