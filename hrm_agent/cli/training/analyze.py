"""`hrm-agent analyze`: statistics of a recorded run: tokens, tool errors, lengths and selection."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.cli.common.run_folder import refuse_without_rollouts
from hrm_agent.errors import ConfigError, to_install

if TYPE_CHECKING:
    from hrm_agent.training.analysis.report import AnalysisReport
    from hrm_agent.training.analysis.tables import Columns

__all__ = ["run"]


def run(words: list[str]) -> int:
    arguments = _parser().read(words)
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
    _tell(output, report)
    output.say(f"\nIn {folder}: {', '.join(files)}.")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "analyze",
        "What a run on record says: entropy of its tokens, tool errors, lengths, selection.",
    )
    add = parser.add_argument
    add("run", help="a run folder, a store, or an exported file")
    add("--out", type=Path, metavar="FOLDER", help="where to [RUN/analysis]")
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
    return parser


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
        f"{arguments.run} is no folder that the analysis could be put into.",
        "Name one: --out runs/analysis.",
    )


def _tell(output: Output, report: AnalysisReport) -> None:
    from hrm_agent.training.analysis.tables import (
        error_class_table,
        length_table,
        reflection_table,
        selection_table,
        token_tables,
        weights_table,
    )

    tokens = report.tokens
    output.say(f"{report.rollouts} rollouts.")
    if tokens is not None:
        _show(output, [weights_table(tokens, report.run)])
        output.say(
            f"Mean entropy {tokens.mean_entropy:.3f} nats over {tokens.tokens} completion tokens of"
            f" {tokens.rollouts} rollouts; {tokens.share:.0%} are above {tokens.threshold:.4g}."
        )
        _show(output, [*token_tables(tokens), reflection_table(tokens)])
    tables = [error_class_table(report)] * bool(report.tool_errors) + [length_table(report)] * bool(
        report.length_bins
    )
    _show(output, tables + (selection_table(report) if report.selection else []))
    for name, why in report.missing.items():
        output.say(f"Missing: {name}, because {why}.", style="yellow")
    for why, count in report.left_out.items():
        output.say(f"Left out: {count} ({why}).")
    if tokens is not None and any(not use.exact for use in tokens.weights):
        output.say(
            "Entropies by weights other than those that sampled are of another policy: see"
            " |log-prob - recorded|."
        )


def _show(output: Output, tables: Sequence[Columns]) -> None:
    for found in tables:
        output.say("")
        output.table(found.columns, found.rows, title=found.title)
