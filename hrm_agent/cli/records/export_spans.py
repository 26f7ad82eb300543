"""`hrm-agent export --format otel`: spans of OpenTelemetry, to a file or to a collector."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import islice

from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import existing_store, is_file, stored_trajectories
from hrm_agent.errors import ConfigError, StoreError
from hrm_agent.trajectory import Overlay, Trajectory
from hrm_agent.trajectory.formats import Report, RequestHints
from hrm_agent.trajectory.formats.otel.file import no_spans, otel_rows
from hrm_agent.trajectory.formats.otel.spans import spans_of
from hrm_agent.trajectory.formats.shared.rows import write_rows

__all__ = ["send_spans", "write_spans"]

_AT_ONCE = 50
"""Number of trajectories in one request to a collector."""
OverlayOf = Callable[[Trajectory], Overlay | None]


def write_spans(arguments: Namespace) -> Report:
    """Write the requested file."""
    with _source(arguments) as (trajectories, content, overlay_of):
        return write_rows(trajectories, arguments.out, otel_rows(content, overlay_of))


def send_spans(arguments: Namespace, output: Output) -> int:
    """Send spans to a collector. Returns 1 if there was nothing to send. Raises `StoreError` if the
    collector refuses them.
    """
    from hrm_agent.runtime.telemetry import otlp_sender

    if arguments.out is not None or arguments.format not in (None, "otel"):
        raise ConfigError("--otlp sends spans, and writes no file.", "Leave out --out, or --otlp.")
    send = otlp_sender(arguments.otlp)
    left_out, sent, found = Counter[str](), 0, 0
    with _source(arguments) as (trajectories, content, overlay_of):
        while runs := list(islice(trajectories, _AT_ONCE)):
            ended = [
                run
                for run in runs
                if (gap := no_spans(run)) is None or left_out.update([gap.reason])
            ]
            spans = [
                span
                for run in ended
                for span in spans_of(run, overlay=overlay_of(run), content=content)
            ]
            why = send(spans) if spans else None
            if why is not None:
                raise StoreError(
                    f"{arguments.otlp} did not take the spans, after {sent} trajectories: {why}",
                    "Send them again when it does: their ids stay the same.",
                )
            sent, found = sent + len(ended), found + len(spans)
    output.result(
        {
            "sent_to": arguments.otlp,
            "trajectories": sent,
            "spans": found,
            "left_out": dict(left_out),
        }
    )
    output.say(f"{found} spans of {sent} trajectories sent to {arguments.otlp}")
    for reason, count in left_out.most_common():
        output.say(f"{count} left out: {reason}")
    return 0 if sent else 1


@contextmanager
def _source(
    arguments: Namespace,
) -> Generator[tuple[Iterator[Trajectory], RequestHints | None, OverlayOf]]:
    """Trajectories, with hints about their messages if requested, and the overlays of trainings."""
    with ExitStack() as stack:
        overlay_of = _no_overlay
        if not is_file(arguments.store):
            journal = stack.enter_context(existing_store(arguments.store)).journal

            @cache
            def by_trajectory(run_id: str) -> dict[str, Overlay]:
                found = sorted(journal.overlays(run_id), key=lambda each: each.step)
                return {each.trajectory_id: each for each in found}

            def overlay_of(run: Trajectory) -> Overlay | None:
                return by_trajectory(run.run_id).get(run.id) if run.run_id else None

        if not arguments.otel_content:
            yield stored_trajectories(arguments.store, arguments.run), None, overlay_of
            return
        from hrm_agent.cli.records.request_hints import described_runs

        files = {"system": arguments.system, "tools": arguments.tools}
        trajectories, hints = stack.enter_context(
            described_runs(arguments.store, arguments.run, **files)
        )
        yield trajectories, hints, overlay_of


def _no_overlay(run: Trajectory) -> Overlay | None:
    del run
    return None
