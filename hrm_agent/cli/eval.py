"""`hrm-agent eval`: accuracy and tool errors, of a policy or of a run that is on record already."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from hrm_agent.cli.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.collect import collected, exit_code
from hrm_agent.cli.output import Output
from hrm_agent.cli.source import run_folder, stored_trajectories
from training.configs import CollectConfig
from training.evaluate import Evaluation, evaluate

__all__ = ["eval_run", "run"]


def run(words: list[str]) -> int:
    parser = Parser("eval", "Accuracy and tool errors: of a policy on tasks, or of a run that is on record.")
    parser.add_argument(
        "record", nargs="?", help="a store, run folder or export to evaluate instead of running anything"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="run folder; one on record is gone on with [a new one]"
    )
    add_config(parser, CollectConfig)
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    if arguments.record is not None:
        # A fork begins in the middle, at a moment that somebody chose: it is no sample of what the policy does.
        whole = (found for found in stored_trajectories(arguments.record) if found.forked_from is None)
        _report(output, evaluate(whole), arguments.record)
        return 0
    config = config_from(arguments, CollectConfig, "eval")
    if arguments.dry_run:
        print_config(config, "eval", as_json=arguments.json)
        return 0
    return eval_run(config, run_folder(arguments.out, "eval"), output)


def eval_run(config: CollectConfig, folder: Path, output: Output) -> int:
    """Run what is missing, then evaluate the whole; the exit code."""
    trajectories = collected(config, "eval", folder)
    _report(output, evaluate(trajectories), str(folder))
    return exit_code(trajectories)


def _report(output: Output, found: Evaluation, where: str) -> None:
    output.result({"record": where, **asdict(found)})
    low, high = found.interval
    rows = [
        ("problems", found.problems),
        ("trajectories", found.trajectories),
        ("pass@1", f"{found.pass_at_1:.3f}  (95 % interval {low:.3f} to {high:.3f})"),
        ("tool error among the correct", found.correct_with_tool_error),
        ("sampled tokens, mean", found.mean_sampled_tokens),
        ("tool calls, mean", found.mean_tool_calls),
        ("statuses", ", ".join(f"{count} {status}" for status, count in found.statuses.items())),
    ]
    output.table(("metric", where), rows)
