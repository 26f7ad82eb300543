"""Spans of OpenTelemetry files: OTLP in JSON and in protobuf, and spans as the SDK's console exporter
and Phoenix's API write them.

A file holds any number of OTLP messages: JSON objects in lines, as a collector's file exporter
writes them, or one object; one protobuf message, or several with their lengths before them. Log
records count as events of their spans, since some libraries log the messages of a call.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.errors import ConfigError, to_install
from hrm_agent.trajectory.formats.shared.json_documents import refused
from hrm_agent.trajectory.formats.traces.values import (
    as_text,
    elements,
    mapping,
    nested,
    seconds,
    text_at,
)

__all__ = ["Event", "Span", "is_protobuf", "otlp_rows", "protobuf_messages", "shown_span"]

_SIGNALS = {
    "resourceSpans": ("scopeSpans", "spans"),
    "resourceLogs": ("scopeLogs", "logRecords"),
}
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_LONGEST_ID = 128
_ERROR = ("2", "STATUS_CODE_ERROR", "ERROR")


@dataclass(slots=True)
class Event:
    """Event of a span, or log record in it."""

    name: str
    """Name of the event."""
    attributes: dict[str, Any]
    """Attributes and fields of the body."""
    at: float
    """Unix time in seconds."""


@dataclass(slots=True)
class Span:
    """Span of a file, or a log record, which is an event of the span with this id."""

    trace_id: str
    """Id of the trace, in hex digits."""
    id: str
    """Id of the span, in hex digits."""
    parent: str | None
    """Id of the enclosing span (None for a root)."""
    name: str
    """Name of the span."""
    place: str
    """Place in the file, for messages."""
    started_at: float = 0.0
    """Unix time in seconds."""
    ended_at: float | None = None
    """Unix time in seconds (None: the file has no end)."""
    failed: bool = False
    """True if the status is an error."""
    message: str = ""
    """Text of the status."""
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Attributes by name."""
    events: list[Event] = field(default_factory=list[Event])
    """Events; of a log record, the record itself."""
    is_log: bool = False
    """True for a log record."""


def is_protobuf(head: bytes) -> bool:
    """True if a file begins with control characters, which JSON never has."""
    return any(byte < 32 and byte not in b"\t\n\r" for byte in head)


def protobuf_messages(data: bytes, place: str) -> Iterator[dict[str, Any]]:
    """OTLP messages of a file in their JSON form, with ids as hex digits."""
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )
    except ImportError as error:
        raise ConfigError(
            "Reading OTLP in protobuf needs OpenTelemetry's packages.",
            f"Run `{to_install('otel')}`.",
        ) from error
    for number, part in enumerate(_parts(data), 1):
        found: list[dict[str, Any]] = []
        for kind in (ExportTraceServiceRequest, ExportLogsServiceRequest):
            message = kind()
            try:
                message.ParseFromString(part)
                found.append(MessageToDict(message))
            except (DecodeError, UnicodeDecodeError, ValueError, RecursionError):
                continue
        # Spans and log records have different types in the same places, so that a message of the
        # other kind has no ids.
        fitting = [one for one in found if _has_ids(one)]
        if not fitting:
            refused(f"{place}: message {number}", "", "it is no OTLP message in protobuf")
        yield _with_hex_ids(fitting[0])


def _parts(data: bytes) -> list[bytes]:
    """Messages with their lengths before them (4 bytes, the highest first), else the whole."""
    parts: list[bytes] = []
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 0 or at + 4 + size > len(data):
            break
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return parts if at == len(data) and parts else [data]


def _has_ids(message: dict[str, Any]) -> bool:
    rows = [row for _, row in _rows_of(message)]
    return not rows or all("traceId" in row or "body" in row for row in rows)


def _with_hex_ids(message: dict[str, Any]) -> dict[str, Any]:
    for _, row in _rows_of(message):
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in row:
                row[name] = base64.b64decode(row[name]).hex()
    return message


def _rows_of(message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Spans and log records of an OTLP message in JSON, each with its path."""
    for signal, (scopes, rows) in _SIGNALS.items():
        for i, resource in enumerate(elements(message.get(signal))):
            inner = mapping(resource)
            for j, scope in enumerate(
                elements(inner.get(scopes) or inner.get("instrumentationLibrarySpans"))
            ):
                for k, row in enumerate(elements(mapping(scope).get(rows))):
                    yield f"{signal}[{i}].{scopes}[{j}].{rows}[{k}]", mapping(row)


def otlp_rows(row: dict[str, Any], place: str) -> Iterator[Span]:
    """Spans of an OTLP message in JSON."""
    for path, one in _rows_of(row):
        here = f"{place}: {path}"
        if "logRecords" in path:
            if one.get("traceId") and one.get("spanId"):
                yield _log(one, here)
            continue
        status = mapping(one.get("status"))
        yield Span(
            _id(one, "traceId", here),
            _id(one, "spanId", here),
            _id(one, "parentSpanId", here) if _is_given(one.get("parentSpanId")) else None,
            as_text(one.get("name")),
            here,
            seconds(one.get("startTimeUnixNano"), here, "startTimeUnixNano") or 0.0,
            seconds(one.get("endTimeUnixNano"), here, "endTimeUnixNano"),
            str(status.get("code")) in _ERROR,
            as_text(status.get("message")),
            _attributes(one.get("attributes"), here),
            [
                Event(
                    as_text(event.get("name")),
                    _attributes(event.get("attributes"), here),
                    seconds(event.get("timeUnixNano"), here, "timeUnixNano") or 0.0,
                )
                for event in map(mapping, elements(one.get("events")))
            ],
        )


def _log(row: dict[str, Any], place: str) -> Span:
    attributes = _attributes(row.get("attributes"), place)
    name = as_text(row.get("eventName")) or as_text(attributes.get("event.name"))
    body = _value(row.get("body"), place)
    moment = row.get("timeUnixNano") or row.get("observedTimeUnixNano")
    at = seconds(moment, place, "timeUnixNano") or 0.0
    event = Event(name, {**attributes, **mapping(body)}, at)
    return Span(
        _id(row, "traceId", place),
        _id(row, "spanId", place),
        None,
        "",
        place,
        events=[event],
        is_log=True,
    )


def _attributes(value: Any, place: str) -> dict[str, Any]:
    """Attributes by name, of OTLP's list of keys and values."""
    return {
        as_text(one.get("key")): _value(one.get("value"), place)
        for one in map(mapping, elements(value))
    }


def _value(value: Any, place: str) -> Any:
    """Value of OTLP's JSON form. Its nesting is bounded by the reader of the file."""
    held = mapping(value)
    for kind, one in held.items():
        match kind:
            case "intValue":
                text = str(one)
                if not _WHOLE.fullmatch(text):
                    refused(place, "attributes", f"{text[:40]!r} is not an integer")
                return int(text)
            case "arrayValue":
                return [_value(each, place) for each in elements(mapping(one).get("values"))]
            case "kvlistValue":
                return {
                    as_text(each.get("key")): _value(each.get("value"), place)
                    for each in map(mapping, elements(mapping(one).get("values")))
                }
            case _:
                return one
    return None


def shown_span(row: dict[str, Any], place: str) -> Span:
    """Span as the console exporter, Phoenix's API and its data frames show it."""
    # the columns of a data frame are named by paths
    fields = nested(row, place) if any("." in name for name in row) else row
    context = mapping(fields.get("context"))
    status = mapping(fields.get("status"))
    code = as_text(fields.get("status_code") or status.get("status_code"))
    attributes = mapping(fields.get("attributes"))
    if kind := as_text(fields.get("span_kind")):
        attributes = {"openinference.span.kind": kind, **attributes}
    return Span(
        _id(context, "trace_id", place),
        _id(context, "span_id", place),
        _id(fields, "parent_id", place) if _is_given(fields.get("parent_id")) else None,
        as_text(fields.get("name")),
        place,
        seconds(fields.get("start_time"), place, "start_time") or 0.0,
        seconds(fields.get("end_time"), place, "end_time"),
        code == "ERROR",
        as_text(fields.get("status_message") or status.get("description")),
        attributes,
        [
            Event(
                text_at(event, "name"),
                mapping(event.get("attributes")),
                seconds(event.get("timestamp"), place, "timestamp") or 0.0,
            )
            for event in map(mapping, elements(fields.get("events")))
        ],
    )


def _is_given(parent: Any) -> bool:
    """False for no id and for the invalid one of zeros, which some exporters write for no parent."""
    return bool(parent) and parent not in ("0" * 16, f"0x{'0' * 16}", "AAAAAAAAAAA=")


def _id(row: dict[str, Any], name: str, place: str) -> str:
    """Id as hex digits, without the 0x of the console exporter."""
    value = row.get(name)
    if not isinstance(value, str) or not value or len(value) > _LONGEST_ID:
        refused(place, name, f"an id of at most {_LONGEST_ID} characters belongs here")
    text = value.removeprefix("0x").lower()
    if len(text) not in (16, 32):
        # some programs write the bytes of an id in base64
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return text
        return raw.hex() if len(raw) in (8, 16) else text
    return text
