"""OpenTelemetry spans as a file: OTLP in its JSON form, one trajectory a line.

A collector's file receiver reads the file, and `curl` can post a line to `/v1/traces`.
`hrm_agent.trajectory.formats.otel.spans` describes the spans of a run and their ids. Messages,
arguments and results are included only on request (`--otel-content`). Runs in progress have no end
and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hrm_agent import __version__
from hrm_agent.trajectory.formats.otel.spans import TraceSpan, spans_of
from hrm_agent.trajectory.formats.shared.messages import RequestHints
from hrm_agent.trajectory.formats.shared.rows import Row, RowMaker, Skipped
from hrm_agent.trajectory.judgements import Overlay
from hrm_agent.trajectory.schema import RunStatus, Trajectory

__all__ = ["SCOPE", "SERVICE", "nanoseconds", "no_spans", "otel_rows"]

SERVICE = "hrm-agent"
"""Default name of the service, if OTEL_SERVICE_NAME gives none."""
SCOPE = "hrm_agent"
"""Name of the instrumentation scope."""
_INTERNAL, _CLIENT = 1, 3
_FAILED = 2


def otel_rows(
    content: RequestHints | None = None,
    overlay_of: Callable[[Trajectory], Overlay | None] = lambda run: None,
) -> RowMaker:
    """Row maker with one line per trajectory. `content`: include messages. `overlay_of`: judgement
    by a training run.
    """

    def rows(trajectory: Trajectory) -> Iterator[Row | Skipped]:
        yield no_spans(trajectory) or _line(
            spans_of(trajectory, overlay=overlay_of(trajectory), content=content)
        )

    return rows


def no_spans(trajectory: Trajectory) -> Skipped | None:
    """Reason why a trajectory has no spans yet (None if it has them)."""
    return Skipped("the run is under way") if trajectory.status is RunStatus.RUNNING else None


def nanoseconds(seconds: float) -> int:
    """Unix time in nanoseconds, as in spans."""
    return round(seconds * 1_000_000) * 1000  # a float of today's time is exact to a microsecond


def _line(spans: list[TraceSpan]) -> Row:
    scope = {"name": SCOPE, "version": __version__}
    resource = {"attributes": _attributes({"service.name": SERVICE})}
    # Span in OTLP's JSON form: ids as hex digits, whole numbers as text
    shown = {
        "scope": scope,
        "spans": [
            {
                "traceId": span.trace_id,
                "spanId": span.span_id,
                **({"parentSpanId": span.parent_id} if span.parent_id is not None else {}),
                "name": span.name,
                "kind": _CLIENT if span.is_client else _INTERNAL,
                "startTimeUnixNano": str(nanoseconds(span.started_at)),
                "endTimeUnixNano": str(nanoseconds(span.ended_at)),
                "attributes": _attributes(span.attributes),
                "status": {"code": _FAILED, "message": span.error}
                if span.error is not None
                else {},
            }
            for span in spans
        ],
    }
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [shown]}]}


def _attributes(values: dict[str, Any]) -> list[Row]:
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: Any) -> Row:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [{"stringValue": str(each)} for each in value]}}
        case _:
            return {"stringValue": str(value)}
