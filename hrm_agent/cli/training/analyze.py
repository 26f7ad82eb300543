"""`hrm-agent analyze`: statistics of a recorded run: tokens, tool errors, lengths and selection. With
`--failures` it puts failed runs in classes (`hrm_agent.cli.training.failures`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.cli.common.run_folder import refuse_without_rollouts
from hrm_agent.errors import ConfigError, to_install

if TYPE_CHECKING:
    from hrm_agent.training.analysis.report import AnalysisReport, TokenReport

__all__ = ["run"]

_SHOWN = 12
"""Maximum number of tokens in a table on the console."""


_OF_TOKENS = ("policy", "steps", "limit", "seed", "share", "window", "tokens")
_OF_FAILURES = ("judge", "against", "by", "budget", "price", "max_tokens", "top")


def _refuse(
    parser: Parser, arguments: argparse.Namespace, names: Sequence[str], reason: str
) -> None:
    """Raise `ConfigError` for a given option that has no effect."""
    for name in names:
        if getattr(arguments, name) != parser.get_default(name):
            option = name.replace("_", "-")
            raise ConfigError(
                f"--{option} {reason}.", "`hrm-agent analyze --help` lists both forms."
            )


def run(words: list[str]) -> int:
    parser = _parser()
    arguments = parser.read(words)
    if arguments.failures:
        from hrm_agent.cli.training.failures import failures_run

        _refuse(parser, arguments, _OF_TOKENS, "belongs to the analysis without --failures")
        return failures_run(arguments, words)
    _refuse(parser, arguments, _OF_FAILURES, "needs --failures")
    return _analyse(arguments)


def _parser() -> Parser:
    parser = Parser(
        "analyze",
        "What a run on record says: entropy of its tokens, tool errors, lengths, selection; or why"
        " its runs failed (--failures).",
    )
    add = parser.add_argument
    add("run", help="a run folder, a store, or an exported file")
    add("--out", type=Path, metavar="FOLDER", help="where to [RUN/analysis, RUN/failures]")
    add(
        "--policy",
        metavar="MODEL",
        help="weights that compute all entropies [those on record that sampled]",
    )
    help_text = (
        "steps whose tokens are analysed, from 1: 3, 10-12, eval-after, all [those whose weights"
        " are on record]"
    )
    add("--steps", nargs="+", default=[], metavar="STEP", help=help_text)
    add(
        "--limit",
        type=int,
        default=64,
        metavar="N",
        help="most rollouts of each step whose tokens are analysed [64]",
    )
    add("--seed", type=int, default=0, help="draws them [0]")
    add(
        "--share",
        type=float,
        default=0.2,
        help="of the tokens, those of highest entropy are forking tokens [0.2]",
    )
    add(
        "--window",
        type=int,
        default=16,
        help="completion tokens after a tool response that are looked at [16]",
    )
    add(
        "--tokens",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="entropies; without them no model is loaded",
    )
    add(
        "--allow",
        nargs="+",
        default=[],
        metavar="MODULE:CLASS",
        help="your own types in the states",
    )
    add(
        "--failures",
        action="store_true",
        help="put failed runs in classes instead, by rules that say why each run failed",
    )
    add("--judge", metavar="POLICY", help="model that is asked about runs that no rule explains")
    add("--against", metavar="OTHER", help="other run whose failures are compared with these")
    add(
        "--budget",
        metavar="AMOUNT",
        help="limit of the judge's requests: money as 2.50, or tokens as 200000tokens",
    )
    add(
        "--price",
        action="append",
        default=[],
        metavar="[MODEL=]PROMPT,COMPLETION",
        help="price of a million prompt and completion tokens of the judge",
    )
    add("--max-tokens", type=int, metavar="N", help="of the judge's replies [by the model]")
    add("--by", metavar="NAME", help="judge runs by the scores under this name (`rescore`)")
    add("--top", type=int, default=3, metavar="N", help="examples of each class of failures [3]")
    return parser


def _analyse(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    refuse_without_rollouts(arguments.run)
    if find_spec("torch") is None:
        raise ConfigError("An analysis needs torch.", f"Run `{to_install('train')}`.")
    from hrm_agent.models.slow_start import told_if_slow

    with told_if_slow("loading torch; the first time this takes up to a minute"):
        from hrm_agent.training.analysis.files import check_folder, write_analysis
        from hrm_agent.training.analysis.report import analyse
        from hrm_agent.training.analysis.token_sample import TokenOptions
        from hrm_agent.training.records.runs import opened_runs

    options = TokenOptions(
        policy=arguments.policy,
        steps=tuple(arguments.steps),
        limit=arguments.limit,
        seed=arguments.seed,
        share=arguments.share,
        window=arguments.window,
    )
    check_folder(folder)
    with (
        opened_runs([arguments.run], arguments.allow) as (runs,),
        progress("analyze", 100) as advance,
    ):
        report, marked = analyse(
            runs,
            options,
            with_tokens=arguments.tokens,
            on_progress=lambda what, done, total: advance(what, min(99, round(100 * done / total))),
        )
        advance("", 100)
    files = write_analysis(report, marked, folder)
    output = Output(as_json=arguments.json)
    output.result({"folder": str(folder), "files": files, **asdict(report)})
    tokens = report.tokens
    output.say(f"{report.rollouts} rollouts.")
    if tokens is not None:
        columns = (
            "sampled by",
            "version",
            "computed by",
            "the same",
            "calls",
            "tokens",
            "temperature",
            "mean nats",
        )
        rows: list[Sequence[object]] = [
            (
                use.model,
                use.version,
                use.weights.removeprefix(f"{report.run.rstrip('/')}/"),
                "yes" if use.exact else "NO",
                use.calls,
                use.tokens,
                ", ".join(f"{each:g}" for each in use.temperatures),
                use.mean_entropy,
                f"{use.mean_difference:.2g}",
            )
            for use in tokens.weights
        ]
        _show(
            output,
            [
                _Columns(
                    "weights, and how far their log-probs are from those recorded",
                    (*columns, "|log-prob - recorded|"),
                    rows,
                )
            ],
        )
        output.say(
            f"Mean entropy {tokens.mean_entropy:.3f} nats over {tokens.tokens} completion tokens of"
            f" {tokens.rollouts} rollouts; {tokens.share:.0%} are above {tokens.threshold:.4g}."
        )
        responses: list[Sequence[object]] = [
            (each.after, each.calls, each.tokens, each.mean_entropy, each.marked_share)
            for each in tokens.reflection
        ]
        names = (
            "tool response before",
            "calls",
            "tokens",
            "mean nats",
            "share above the threshold",
        )
        _show(
            output,
            [
                *_token_tables(tokens),
                _Columns(
                    f"the first {tokens.window} completion tokens of a call", names, responses
                ),
            ],
        )
    by_length: list[Sequence[object]] = [
        (f"{each.least} to {each.most}", each.rollouts, each.accuracy, *each.interval)
        for each in report.length_bins
    ]
    tables = [_error_class_table(report)] * bool(report.tool_errors) + [
        _Columns(
            "accuracy by completion tokens",
            ("tokens", "rollouts", "right", "from", "to"),
            by_length,
        )
    ] * bool(report.length_bins)
    _show(output, tables + (_selection_table(report) if report.selection else []))
    for name, why in report.missing.items():
        output.say(f"Missing: {name}, because {why}.", style="yellow")
    for why, count in report.left_out.items():
        output.say(f"Left out: {count} ({why}).")
    if tokens is not None and any(not use.exact for use in tokens.weights):
        output.say(
            "If entropies were computed with other weights than those that sampled, they belong"
            " to another policy: see |log-prob - recorded|."
        )
    output.say(f"\nIn {folder}: {', '.join(files)}.")
    return 0


def _folder(arguments: argparse.Namespace) -> Path:
    if arguments.out is not None:
        return arguments.out
    if Path(arguments.run).is_dir():
        return Path(arguments.run) / "analysis"
    if "://" not in arguments.run and not Path(arguments.run).exists():
        raise ConfigError(
            f"There is no run at {arguments.run}.",
            "Name its folder, its store, or an exported file.",
        )
    raise ConfigError(
        f"{arguments.run} is not a folder, so the analysis cannot be written into it.",
        "Name a folder: --out runs/analysis.",
    )


def _show(output: Output, tables: Sequence[_Columns]) -> None:
    for found in tables:
        output.say("")
        output.table(found.columns, found.rows, title=found.title)


class _Columns(NamedTuple):
    """One table."""

    title: str
    """Title of the table."""
    columns: tuple[str, ...]
    """Column names."""
    rows: list[Sequence[object]]
    """Rows of cells."""


def _token_tables(tokens: TokenReport) -> list[_Columns]:
    """Tables of forking and reflection tokens by text."""
    titled = [(f"forking tokens, above {tokens.threshold:.4g} nats", tokens.forking)]
    titled += [
        (f"reflection tokens after tool responses: {each.after}", each.rows)
        for each in tokens.reflection
        if each.after != "none"
    ]
    columns = ("token", "count", "share", "mean nats", "of so many", "for example")
    return [
        _Columns(
            title,
            columns,
            [
                (
                    repr(row.text),
                    row.count,
                    row.share,
                    row.mean_entropy,
                    row.occurrences,
                    "".join(
                        f"{each.before[-24:]}[{each.text}]{each.after[:24]}"
                        for each in row.examples[:1]
                    ).replace("\n", "⏎"),
                )
                for row in rows[:_SHOWN]
            ],
        )
        for title, rows in titled
        if rows
    ]


def _error_class_table(report: AnalysisReport) -> _Columns:
    """Table of tool calls by status, with raised errors by class."""
    statuses: dict[str, int] = {}
    for row in report.tool_errors:
        for name, count in row.statuses.items():
            statuses[name] = statuses.get(name, 0) + count
    rows: list[Sequence[object]] = [(name, "", count, "", "") for name, count in statuses.items()]
    rows += [
        ("error", each.name, each.calls, each.correct_rollouts, each.example)
        for each in report.error_classes
    ]
    columns = ("status", "class", "calls", "correct rollouts with it", "commonest last line")
    return _Columns("tool calls by how they ended", columns, rows)


def _selection_table(report: AnalysisReport) -> list[_Columns]:
    """Tables that compare all rollouts with those trained on, and give the reasons for the others."""
    rows: list[Sequence[object]] = [
        (
            each.measure,
            *(
                (int(value) if math.isfinite(value) and value.is_integer() and value > 1 else value)
                for value in (each.all, each.in_groups, each.kept)
            ),
        )
        for each in report.selection
    ]
    columns = ("measure", "all rollouts", "in groups with a signal", "trained on")
    drops: list[Sequence[object]] = [
        (d.verdict, d.reason, d.rollouts, d.correct) for d in report.drops
    ]
    return [
        _Columns("all rollouts against those trained on", columns, rows),
        _Columns("left out", ("verdict", "reason", "rollouts", "correct"), drops),
    ]
