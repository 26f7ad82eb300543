"""Reader of trace files: the spans of all files, by trace, as trajectories.

The spans of one trace may be in several lines and files, in any order, since exporters send them in
batches. So all files of an import are read before the first trajectory is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from hrm_agent.trajectory.formats.traces.attributes import add_langfuse, observed
from hrm_agent.trajectory.formats.traces.langsmith import langsmith_run
from hrm_agent.trajectory.formats.traces.messages import Messages
from hrm_agent.trajectory.formats.traces.observation import Observation
from hrm_agent.trajectory.formats.traces.otlp import (
    Span,
    is_protobuf,
    otlp_rows,
    protobuf_messages,
    shown_span,
)
from hrm_agent.trajectory.formats.traces.runs import trajectory_of
from hrm_agent.trajectory.formats.traces.values import as_text, elements, mapping, seconds
from hrm_agent.trajectory.schema import Trajectory

__all__ = ["TRACE_FORMATS", "read_traces", "trace_format"]

_HEAD = 4096
_MOST_SPANS = 1_000_000
"""Maximum number of spans and log records of an import."""
_MOST_TOTAL = 4 * MOST_BYTES
"""Maximum bytes of all files of an import, since all spans are held at once."""
_ENVELOPES = ("data", "runs", "observations", "spans", "traces", "items")
"""Keys under which an API's answer has its rows."""
_LANGFUSE_TYPES = frozenset(
    "span generation event agent tool chain retriever evaluator embedding guardrail".split()
)
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
    traces, notes = _observations(paths, name)
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


def _observations(
    paths: Sequence[Path], name: str
) -> tuple[dict[str, list[Observation]], Counter[str]]:
    """Observations by trace, and counts of what was left out."""
    if sum(path.stat().st_size for path in paths if path.is_file()) > _MOST_TOTAL:
        refused(str(paths[0]), "", f"the files are larger than {_MOST_TOTAL // 2**20} MiB together")
    messages = Messages()
    spans: dict[tuple[str, str], Span] = {}
    logs: list[Span] = []
    found: dict[tuple[str, str], Observation] = {}
    notes = Counter[str]()
    for place, row in (one for path in paths for one in _rows(path)):
        shape = _shape(row)
        if shape is None or shape not in TRACE_FORMATS[name]:
            _refuse(place, shape, name)
        if shape in ("otlp", "span"):
            for span in otlp_rows(row, place) if shape == "otlp" else (shown_span(row, place),):
                if span.is_log:
                    logs.append(span)
                else:
                    _add(spans, (span.trace_id, span.id), span, notes)
        elif shape == "langsmith":
            run = langsmith_run(row, place, messages)
            _add(found, (run.trace_id, run.id), run, notes)
        elif row.get("type") is not None:
            one = _langfuse_observation(row, place, messages)
            _add(found, (one.trace_id, one.id), one, notes)
        if len(spans) + len(logs) + len(found) > _MOST_SPANS:
            refused(place, "", f"there are more than {_MOST_SPANS:,} spans")
    for log in logs:
        span = spans.get((log.trace_id, log.id))
        if span is None:
            notes["log records without their span were left out"] += 1
        else:
            span.events += log.events
    for key, span in spans.items():
        found[key] = observed(span, messages)
    return _by_trace(found.values(), notes), notes


def _by_trace(observations: Any, notes: Counter[str]) -> dict[str, list[Observation]]:
    traces: dict[str, list[Observation]] = {}
    for one in observations:
        if one.ended_at is not None and one.ended_at < one.started_at:
            notes["spans ended before they started, and count as ended then"] += 1
            one.ended_at = one.started_at
        traces.setdefault(one.trace_id, []).append(one)
    return traces


def _add(known: dict[tuple[str, str], Any], key: tuple[str, str], one: Any, notes: Any) -> None:
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
    notes["spans that are there twice were left out"] += 1


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
    if isinstance(row.get("context"), dict) or "context.trace_id" in row:
        return "span"
    if as_text(row.get("type")).lower() in _LANGFUSE_TYPES and (
        row.get("traceId") or row.get("trace_id")
    ):
        return "langfuse"
    # rows of Langfuse's traces say nothing that its observations do not
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


def _langfuse_observation(row: dict[str, Any], place: str, messages: Messages) -> Observation:
    """Observation of Langfuse's export, whose columns are named in two ways."""

    def value(*names: str) -> Any:
        return next((row[name] for name in names if row.get(name) is not None), None)

    def identity(*names: str) -> str:
        found = value(*names)
        if not isinstance(found, str) or not found or len(found) > 128:
            refused(place, names[0], "an id of at most 128 characters belongs here")
        return found

    parent = value("parentObservationId", "parent_observation_id")
    found = Observation(
        identity("traceId", "trace_id"),
        identity("id"),
        identity("parentObservationId", "parent_observation_id") if parent else None,
        place,
        as_text(row.get("name")),
        started_at=seconds(value("startTime", "start_time"), place, "startTime") or 0.0,
        ended_at=seconds(value("endTime", "end_time"), place, "endTime"),
    )
    told = {
        "type": row.get("type"),
        "input": row.get("input"),
        "output": row.get("output"),
        "metadata": row.get("metadata"),
        "level": row.get("level"),
        "status_message": value("statusMessage", "status_message"),
        "model": value("providedModelName", "provided_model_name", "model"),
        "model_parameters": value("modelParameters", "model_parameters"),
        "usage_details": value("usageDetails", "usage_details", "usage"),
        "cost_details": value("costDetails", "cost_details"),
        "total_cost": value("totalCost", "total_cost", "calculatedTotalCost"),
        "session_id": value("sessionId", "session_id"),
    }
    add_langfuse(found, told, messages)
    return found
