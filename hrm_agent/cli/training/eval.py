"""`hrm-agent eval`: evaluates a policy on tasks, or a recorded run, or compares runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.common.output import Output, remark
from hrm_agent.cli.common.run_folder import existing_store, is_file, run_folder, stored_trajectories
from hrm_agent.cli.training.collect import USUAL, collected, exit_code
from hrm_agent.errors import ConfigError
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.evaluation.compare import compare
from hrm_agent.training.evaluation.evaluate import Evaluation, evaluate
from hrm_agent.training.evaluation.prices import Prices, read_prices
from hrm_agent.training.evaluation.reports import (
    comparison_lines,
    comparison_rows,
    role_rows,
    summary,
    write_comparison,
    write_results,
    write_side_by_side,
)
from hrm_agent.training.evaluation.rubrics import scored_by, scorings_named
from hrm_agent.training.evaluation.samples import Problem, problem_of, samples_of
from hrm_agent.training.evaluation.side_by_side import (
    differing_rows,
    side_by_side,
    side_by_side_lines,
    side_by_side_rows,
)
from hrm_agent.training.tasks.sources import fixed_tasks
from hrm_agent.training.trackers import track_result
from hrm_agent.trajectory import RunStatus, Trajectory

__all__ = ["eval_run", "run"]

_PROMPT = 200
"""Maximum characters of a prompt in the list of differing problems."""


def run(words: list[str]) -> int:
    parser = Parser("eval", "Evaluate a policy on tasks, evaluate a recorded run, or compare runs.")
    parser.add_argument(
        "record",
        nargs="?",
        help="a store, run folder or export to evaluate, without running anything",
    )
    help_text = (
        "two records or more: their problems are paired, and differences to the first are tested"
    )
    parser.add_argument("--compare", nargs="+", metavar="RECORD", help=help_text)
    help_text = (
        "evaluate a record by the scores under this name (`hrm-agent rescore`), in place of its own"
    )
    parser.add_argument("--by", metavar="NAME", help=help_text)
    help_text = (
        "run folder; one on record is resumed [a new one]. With a record: where its results are"
        " written"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=help_text)
    help_text = (
        "price of a million prompt tokens and completion tokens, for all models or for one; may be"
        " repeated"
    )
    parser.add_argument(
        "--price", action="append", metavar="[MODEL=]PROMPT,COMPLETION", help=help_text
    )
    add_config(parser, CollectConfig, USUAL)
    arguments = parser.read(
        words, surplus="Records are compared by `hrm-agent eval --compare A B C`."
    )
    output = Output(as_json=arguments.json)
    prices = read_prices(arguments.price) if arguments.price else None
    if arguments.compare:
        records: list[str] = arguments.compare
        if arguments.record is not None:
            raise ConfigError(
                f"--compare was given, but {arguments.record} was named before it.",
                "Name all records after --compare.",
            )
        if len(records) < 2:
            raise ConfigError(
                "--compare takes two records or more, but one was given.",
                "Name the others after it: eval --compare A B C.",
            )
        places = [str(Path(each).resolve()) if "://" not in each else each for each in records]
        if twice := next((a for n, a in enumerate(records) if places[n] in places[:n]), None):
            raise ConfigError(
                f"--compare names {twice} twice.", "Name each record once: eval --compare A B C."
            )
        if len(records) > 2:
            return _compare_several(output, records, arguments.by, prices, arguments.out)
        a, b = (samples_of(_trajectories(record, arguments.by)[0]) for record in records)
        compared = compare(a, b, (records[0], records[1]))
        written = write_comparison(compared, arguments.out) if arguments.out is not None else []
        output.result({**asdict(compared), "certain": compared.certain})
        heads = ("", f"A: {records[0]}", f"B: {records[1]}", "B less A")
        output.table(heads, comparison_rows(compared))
        for line in comparison_lines(compared):
            output.say(line)
        _say_written(output, written)
        return 0
    if arguments.record is not None:
        trajectories, left_out = _trajectories(arguments.record, arguments.by)
        found = evaluate(trajectories, prices=prices)
        return _report(
            output, found, arguments.record, arguments.out, by=arguments.by, left_out=left_out
        )
    if arguments.by is not None:
        raise ConfigError(
            "--by evaluates a record, but no record was named.", "Write: eval RUN --by NAME"
        )
    config = config_from(arguments, CollectConfig, "eval")
    if arguments.dry_run:
        print_config(config, "eval", as_json=arguments.json)
        return 0
    return eval_run(config, run_folder(arguments.out, "eval"), output, prices)


def _compare_several(
    output: Output, records: list[str], by: str | None, prices: Prices | None, out: Path | None
) -> int:
    prompts: dict[Problem, str] = {}
    found = side_by_side(
        [samples_of(_noting_prompts(_trajectories(each, by)[0], prompts)) for each in records],
        records,
        prompts=prompts,
        prices=prices,
    )
    written = write_side_by_side(found, out) if out is not None else []
    output.result(asdict(found))
    output.table(*side_by_side_rows(found))
    for line in side_by_side_lines(found):
        output.say(line)
    if found.differing:
        output.table(*differing_rows(found))
    _say_written(output, written)
    return 0


def _noting_prompts(
    trajectories: Iterable[Trajectory], prompts: dict[Problem, str]
) -> Iterator[Trajectory]:
    """All trajectories, one at a time, while the beginnings of their prompts are noted."""
    for each in trajectories:
        prompts.setdefault(problem_of(each), each.task.prompt[:_PROMPT])
        yield each


def eval_run(
    config: CollectConfig, folder: Path, output: Output, prices: Prices | None = None
) -> int:
    """Run missing rollouts, then evaluate all. Returns the exit code."""
    config = config.model_copy(update={"tasks": fixed_tasks(config.tasks, folder)})
    trajectories = collected(config, "eval", folder)
    # The store is evaluated, since it also has the candidates of a mode, of which only one is
    # returned.
    found = evaluate(stored_trajectories(str(folder)), seed=config.seed, prices=prices)
    _report(output, found, str(folder), folder, config.model_dump(mode="json"))
    track_result(config, config, "eval", folder, remark, asdict(found))
    return exit_code(trajectories)


def _trajectories(where: str, by: str | None) -> tuple[Iterable[Trajectory], int]:
    """Trajectories to evaluate, and the number of those that were left out. If `by` is given, their
    rewards are those of the scores with this name, and trajectories without such scores are left
    out.
    """
    if by is None:
        return _with_rewards(stored_trajectories(where), where), 0
    if is_file(where):
        raise ConfigError(
            f"{where} is a file, which has no scores but the trajectories' own rewards.",
            "Name the run's folder or store.",
        )
    everything = list(stored_trajectories(where))
    with existing_store(where) as store:
        scorings = scorings_named(store, by, everything)
    found = [one for each in everything if (one := scored_by(each, scorings)) is not None]
    return found, len(everything) - len(found)


def _with_rewards(trajectories: Iterable[Trajectory], where: str) -> Iterator[Trajectory]:
    """All trajectories, one at a time. After the last, raises `ConfigError` if runs have completed
    but none has a reward.
    """
    answered = scored = False
    for each in trajectories:
        answered |= each.status is RunStatus.COMPLETED
        scored |= bool(each.rewards)
        yield each
    if answered and not scored:
        raise ConfigError(
            f"No run in {where} has a reward.",
            f"Run `hrm-agent rescore {where} --rewards module:attribute` to score them, then"
            " evaluate with `--by NAME`.",
        )


def _report(
    output: Output,
    found: Evaluation,
    where: str,
    folder: Path | None,
    config: Mapping[str, Any] | None = None,
    *,
    by: str | None = None,
    left_out: int = 0,
) -> int:
    title = where if by is None else f"{where} by {by}"
    written = write_results(found, folder, title, config) if folder is not None else []
    output.result(
        {"record": where, **asdict(found), **({"by": by, "without_score": left_out} if by else {})}
    )
    output.table(("metric", title), summary(found))
    if left_out:
        output.say(f"{left_out} trajectories were left out: {by} gave them no reward.")
    if len(found.families) > 1:
        rows = [
            (n, s.problems, s.pass_at_1.value, s.pass_at_1.low, s.pass_at_1.high)
            for n, s in found.families.items()
        ]
        output.table(("family", "problems", "pass@1", "from", "to"), rows)
    if found.roles:
        output.table(*role_rows(found))
    _say_written(output, written)
    return 0


def _say_written(output: Output, written: list[Path]) -> None:
    if written:
        output.say(f"Written: {', '.join(map(str, written))}")
    if written and written[0].name == "results.json" and len(written) < 3:
        output.say(
            "No picture was drawn, since matplotlib is not installed. Run `pip install matplotlib`."
        )
