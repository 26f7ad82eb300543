"""Export of spans to an OpenTelemetry collector: OTLP over HTTP, by the standard OTEL_* variables.

Spans are made from the record (`hrm_agent.trajectory.formats.otel.spans`) when a run has ended.
This is done in a thread of its own, with a bounded queue: a slow, wrong or missing collector costs
a run nothing, and is reported once. Missed runs stay recorded, and `hrm-agent export RUN --otlp
URL` sends them, with the same ids.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.basics.unicode import without_surrogates
from hrm_agent.errors import ConfigError, to_install
from hrm_agent.runtime.settings import RolloutSettings
from hrm_agent.trajectory import StopReason, Trajectory

if TYPE_CHECKING:
    from hrm_agent.trajectory.formats.otel.spans import TraceSpan

__all__ = ["OnEnd", "SpanSender", "exporting", "otlp_exporter", "otlp_sender", "span_exporter"]

OnEnd = Callable[[Trajectory], None]
"""Callback for a run, or a turn of one, that has ended."""
_WAITING = 1000
"""Maximum number of runs that wait to be sent. Further runs are left out."""
_AT_ONCE = 50
"""Maximum number of runs in one request."""
_SECONDS_AT_THE_END = 10.0
_LONGEST = 300
_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class SpanSender(Protocol):
    """Sender of the spans of a run."""

    def __call__(self, spans: Iterable[TraceSpan]) -> str | None:
        """Send spans; return the reason if they were not taken (else None)."""
        ...


@contextmanager
def exporting(settings: RolloutSettings, exporter: Any = None) -> Generator[OnEnd | None]:
    """Yield the callback for runs that end inside the block (None if spans are disabled).

    `exporter`: a `SpanExporter` in place of the one that the OTEL_* variables describe. Raises
    `ConfigError` if the packages are missing, or the variables request something that does not
    exist.
    """
    if not settings.otel or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield None
        return
    thread = _Sending(span_exporter(exporter or otlp_exporter()), content=settings.otel_content)
    thread.start()
    try:
        yield thread.put
    finally:
        thread.end()


class _Sending(Thread):
    """Thread that sends runs one after the other."""

    def __init__(self, send: SpanSender, *, content: bool) -> None:
        super().__init__(name="otel", daemon=True)
        self._send = send
        self._content = content
        self._runs: queue.Queue[Trajectory | None] = queue.Queue(_WAITING)
        self._lost = 0
        self._told = False
        self._is_over = False

    def put(self, run: Trajectory) -> None:
        """Queue a run that has ended. A run that waits with a question has not ended."""
        if run.stop_reason is StopReason.INTERRUPT:
            return
        try:
            self._runs.put_nowait(run)
        except queue.Full:
            self._lose("the collector is too slow")

    def run(self) -> None:
        from hrm_agent.trajectory.formats.otel.spans import spans_of
        from hrm_agent.trajectory.formats.shared.messages import RequestHints

        content = RequestHints() if self._content else None
        guard = LoopGuard("otel")
        while runs := self._waiting():
            with guard:
                spans = (
                    span
                    for run in runs
                    for span in spans_of(run, content=content, newest_turn=True)
                )
                try:
                    why = self._send(spans)
                # no error of a collector, or of its exporter, may affect the run
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"
                if why is not None:
                    self._lose(why, len(runs))

    def _waiting(self) -> list[Trajectory]:
        """Runs that wait to be sent, at most as many as one request may hold; empty at the end."""
        runs: list[Trajectory] = []
        while not self._is_over and len(runs) < _AT_ONCE and (not runs or not self._runs.empty()):
            run = self._runs.get()
            self._is_over = run is None
            runs += [run] if run is not None else []
        return runs

    def end(self) -> None:
        """Wait until queued runs are sent, for some seconds at most."""
        ends = time.monotonic() + _SECONDS_AT_THE_END
        try:
            self._runs.put(None, timeout=_SECONDS_AT_THE_END)
            self.join(max(0.0, ends - time.monotonic()))
        except queue.Full:
            pass
        left = self._runs.qsize()
        if self.is_alive() or self._lost > 1:
            many = f"{self._lost + left} or more" if self.is_alive() else str(self._lost)
            _tell(
                f"{many} runs were not sent by --otel. `hrm-agent export RUN --format otel --otlp"
                " URL` sends them."
            )

    def _lose(self, why: str, many: int = 1) -> None:
        self._lost += many
        if not self._told:
            self._told = True
            _tell(f"spans were not sent, and the run goes on without them: {why}")


def _tell(text: str) -> None:
    sys.stderr.write(f"hrm-agent: {text}\n")


def span_exporter(exporter: Any) -> SpanSender:
    """Sender by a `SpanExporter` of OpenTelemetry's SDK."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    from hrm_agent.trajectory.formats.otel.file import SERVICE

    found = Resource.create()  # of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    unnamed = str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    resource = found.merge(Resource({SERVICE_NAME: SERVICE})) if unnamed else found

    def send(spans: Iterable[TraceSpan]) -> str | None:
        with _heard() as said:
            taken = exporter.export([_readable(span, resource) for span in spans])
        if taken is SpanExportResult.SUCCESS:
            return None
        first = (
            said[0] if said else "the exporter does not say why"
        )  # later messages are of retries
        return first.partition(" encountered while")[0][:_LONGEST]

    return send


def otlp_sender(url: str) -> SpanSender:
    """Sender to the collector at `url`: its base, or the whole address that ends in /v1/traces.
    Raises `ConfigError`.
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "The address of the collector holds a name or a password, which would be shown wherever"
            " the address is shown.",
            "Put it into OTEL_EXPORTER_OTLP_HEADERS, as Authorization=Basic%20..., and leave it out"
            " of the address.",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{url!r} is no address of a collector.", "Write one such as http://localhost:4318."
        )
    where = url if url.rstrip("/").endswith("/v1/traces") else f"{url.rstrip('/')}/v1/traces"
    return span_exporter(otlp_exporter(where))


def otlp_exporter(where: str | None = None) -> Any:
    """Exporter of OTLP over HTTP, as the OTEL_* variables describe it. Raises `ConfigError`."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "Spans need OpenTelemetry's packages.", f"Run `{to_install('otel')}`."
        ) from error
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        raise ConfigError(
            f"Spans are sent by http/protobuf, and OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}.",
            "Set it to http/protobuf, and the endpoint to the collector's port for HTTP (mostly"
            " 4318).",
        )
    return OTLPSpanExporter(endpoint=where)


@contextmanager
def _heard() -> Generator[Sequence[str]]:
    """Capture the exporter's messages on a failure, which it would write to stderr each time."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger = logging.getLogger(_LOGGER)
    listener = Listener()
    before = logger.propagate
    logger.propagate = False
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)
        logger.propagate = before


def _readable(span: TraceSpan, resource: Any) -> Any:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    from hrm_agent import __version__
    from hrm_agent.trajectory.formats.otel.file import SCOPE, nanoseconds

    def place(span_id: str) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(
            int(span.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags
        )

    def whole(value: Any) -> Any:
        # protobuf refuses surrogates
        return without_surrogates(value) if isinstance(value, str) else value

    return ReadableSpan(
        whole(span.name),
        context=place(span.span_id),
        parent=place(span.parent_id) if span.parent_id is not None else None,
        resource=resource,
        attributes={name: whole(value) for name, value in span.attributes.items()},
        kind=SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL,
        status=(
            Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error)
        ),
        start_time=nanoseconds(span.started_at),
        end_time=nanoseconds(span.ended_at),
        instrumentation_scope=InstrumentationScope(SCOPE, __version__),
    )
