"""`hrm-agent export`: exports trajectories to files for other programs."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import islice
from pathlib import Path

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import existing_store, is_file, stored_trajectories
from hrm_agent.errors import ConfigError, StoreError
from hrm_agent.trajectory import Overlay, Trajectory
from hrm_agent.trajectory.formats import FORMATS, Report, RequestHints, export_to, format_of
from hrm_agent.trajectory.formats.otel.file import no_spans, otel_rows
from hrm_agent.trajectory.formats.otel.spans import spans_of
from hrm_agent.trajectory.formats.shared.messages import NO_MESSAGES, NO_TOOLS
from hrm_agent.trajectory.formats.shared.rows import write_rows

__all__ = ["run"]

_MESSAGES = ("atif", "chat", "preference", "verifiers", "verl")
"""Names of formats that hold messages."""
_WHOLE = ("jsonl", "parquet")
"""Names of formats that hold whole trajectories."""
_SQLITE = b"SQLite format 3\0"
"""First bytes of each SQLite file."""
_AT_ONCE = 50
"""Number of trajectories in one request to a collector."""
OverlayOf = Callable[[Trajectory], Overlay | None]


def run(words: list[str]) -> int:
    """Return 1 if nothing could be written."""
    parser = Parser(
        "export", "Write trajectories to a file; docs/formats.md says what each format keeps."
    )
    parser.add_argument(
        "store", nargs="?", help="a store, a run's folder, or a file exported before"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write; its suffix may name the format"
    )
    written = [name for name, one in FORMATS.items() if one.rows or one.write]
    parser.add_argument("--format", metavar="NAME", help=f"one of {', '.join(written)}")
    parser.add_argument("--run", metavar="RUN", help="only the trajectories of this run")
    parser.add_argument(
        "--reward", type=float, metavar="LEAST", help="chat: only runs with at least this reward"
    )
    parser.add_argument(
        "--role",
        action="append",
        metavar="ROLE",
        help="chat: only calls of this node, such as solve; repeatable",
    )
    parser.add_argument(
        "--system",
        type=Path,
        metavar="FILE",
        help="text of the system message that the graph puts before its state",
    )
    parser.add_argument(
        "--tools",
        type=Path,
        metavar="FILE",
        help="JSON list of the tools that the graph offers the model",
    )
    parser.add_argument(
        "--otlp",
        metavar="URL",
        help="send spans to this OpenTelemetry collector in place of a file, over HTTP",
    )
    parser.add_argument(
        "--otel-content", action="store_true", help="otel: with messages, arguments and results"
    )
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of a JSONL line and stop"
    )
    arguments = parser.read(words)
    if arguments.schema:
        from hrm_agent.trajectory.json_schema import trajectory_schema

        print(json.dumps(trajectory_schema(), indent=2))
        return 0
    if arguments.otlp is not None and arguments.store is not None:
        return send_spans(arguments, Output(as_json=arguments.json))
    if arguments.store is None or arguments.out is None:
        raise ConfigError(
            "export needs a store and a file.", "Write `hrm-agent export STORE --out FILE.jsonl`."
        )
    name = format_of(arguments.out, arguments.format)
    _refuse_source(arguments.out, arguments.store)
    for flag in ("reward", "role"):
        if getattr(arguments, flag) is not None and name != "chat":
            raise ConfigError(
                f"--{flag} works with --format chat only; {name} exports every run.",
                "Add --format chat.",
            )
    if arguments.otel_content and name != "otel":
        raise ConfigError("--otel-content works with --format otel only.", "Add --format otel.")
    if name == "otel":
        report = write_spans(arguments)
    else:
        with _source(arguments, name) as (trajectories, known):
            report = export_to(
                arguments.out, trajectories, name, known, arguments.reward, arguments.role or ()
            )
    _say(Output(as_json=arguments.json), arguments.out, name, report)
    return 0 if report.rows else 1


def _refuse_source(out: Path, source: str) -> None:
    """Refuse to write an export over a store or over the exported file, whose contents would be
    lost.
    """
    if not out.is_file():
        return
    if Path(source).exists() and out.samefile(source):
        raise ConfigError(
            f"--out {out} would overwrite the file that is exported.",
            "Name another file with --out.",
        )
    with out.open("rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE:
            raise ConfigError(
                f"--out {out} would overwrite a store.", "Name another file with --out."
            )


@contextmanager
def _source(
    arguments: Namespace, name: str
) -> Generator[tuple[Iterator[Trajectory], RequestHints]]:
    """Trajectories, with hints about their requests if the format needs messages."""
    if name not in _MESSAGES:
        yield stored_trajectories(arguments.store, arguments.run), RequestHints()
        return
    from hrm_agent.cli.records.request_hints import described_runs

    files = {"system": arguments.system, "tools": arguments.tools}
    with described_runs(arguments.store, arguments.run, **files) as found:
        yield found


def _say(output: Output, path: Path, name: str, report: Report) -> None:
    lacks = {"lacking": dict(report.lacking)} if name == "verifiers" else {}
    rows = (
        {"rows": report.rows, "left_out": dict(report.left_out), **lacks}
        if name not in _WHOLE
        else {}
    )
    output.result({"file": str(path), "format": name, "trajectories": report.trajectories, **rows})
    if not rows:
        output.say(f"{report.trajectories} trajectories in {path}")
        return
    where = f"in {path}" if report.rows else f"were found, and {path} was not written"
    output.say(f"{report.rows} rows of {report.trajectories} trajectories {where}")
    for reason, count in report.left_out.most_common():
        output.say(f"{count} left out: {reason}")
    for reason, count in report.lacking.most_common():
        output.say(f"{count} calls in these rows stand without theirs: {reason}")
    if any(reason in (NO_TOOLS, NO_MESSAGES) for reason in (*report.left_out, *report.lacking)):
        output.say("Name the graph's tools and its system message with --tools and --system.")


def write_spans(arguments: Namespace) -> Report:
    """Write spans to the requested file."""
    with _spans_of_source(arguments) as (trajectories, content, overlay_of):
        return write_rows(trajectories, arguments.out, otel_rows(content, overlay_of))


def send_spans(arguments: Namespace, output: Output) -> int:
    """Send spans to a collector. Returns 1 if there was nothing to send. Raises `StoreError` if the
    collector refuses them.
    """
    from hrm_agent.runtime.telemetry import otlp_sender

    if arguments.out is not None or arguments.format not in (None, "otel"):
        raise ConfigError(
            "--otlp sends spans to a collector, so no file can be written.",
            "Leave out --out and --format, or leave out --otlp.",
        )
    send = otlp_sender(arguments.otlp)
    left_out = Counter[str]()
    sent = 0
    found = 0
    with _spans_of_source(arguments) as (trajectories, content, overlay_of):
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
                    f"{arguments.otlp} did not accept the spans, after {sent} trajectories: {why}",
                    "Run the command again later. The ids of the spans stay the same.",
                )
            sent = sent + len(ended)
            found = found + len(spans)
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
def _spans_of_source(
    arguments: Namespace,
) -> Generator[tuple[Iterator[Trajectory], RequestHints | None, OverlayOf]]:
    """Trajectories, with hints about their messages if requested, and a function that returns a
    trajectory's overlay.
    """
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
