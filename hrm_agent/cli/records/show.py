"""`hrm-agent show`: shows one trajectory, and its use in training runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from urllib.parse import urlencode

from hrm_agent.basics.files import read_whole
from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.citations_view import cited_lines, source_data, source_lines, values_of
from hrm_agent.cli.common.formatting import call_lines, tool_call_lines
from hrm_agent.cli.common.output import Output, remark
from hrm_agent.cli.common.own_types import add_own_types, allowed_names
from hrm_agent.cli.common.pages import writing_page
from hrm_agent.cli.common.run_folder import DEFAULT_STORE, existing_store, thread_name
from hrm_agent.errors import ConfigError, StoreError
from hrm_agent.trajectory import Call, Overlay, Trajectory, Turn
from hrm_agent.trajectory.words import (
    credited,
    header_facts,
    in_order,
    judged,
    penalty_lines,
    rewarded,
    score_text,
    scoring_text,
)

__all__ = ["run"]


def run(words: list[str]) -> int:
    parser = Parser(
        "show",
        "Show one trajectory: messages, tool calls, tokens, and the verdicts of training runs.",
    )
    add = parser.add_argument
    add("trajectory", nargs="?", type=thread_name, help="id of the trajectory, or of its thread")
    add("--store", default=DEFAULT_STORE, help=f"store or run folder [{DEFAULT_STORE}]")
    help_text = "the sources of its answer; with a number, the cited span"
    add("--sources", nargs="?", const="", metavar="N", help=help_text)
    add(
        "--html",
        metavar="FILE",
        help="write it as a page in one file, as `view` shows it; `-` for stdout",
    )
    add("--group", help="with --html: the rollouts of a group side by side")
    add(
        "--step",
        type=int,
        metavar="N",
        help="with --html: the groups of a training step, from 1 as the console counts",
    )
    add_own_types(parser)
    arguments = parser.read(words)
    names = {"an id": arguments.trajectory, "--group": arguments.group, "--step": arguments.step}
    given = [name for name, value in names.items() if value is not None]
    if len(given) != 1:
        said = f"{' and '.join(given)} were given" if given else "Nothing was named"
        raise ConfigError(
            f"{said}, so it is not clear what to show.",
            "Name an id, or --group GROUP, or --step N; `hrm-agent history` lists ids.",
        )
    if arguments.html is not None and (arguments.json or arguments.sources is not None):
        raise ConfigError("--html only writes a page.", "Leave out --json and --sources.")
    output = Output(as_json=arguments.json)
    if arguments.html is not None:
        _write_page(arguments, output)
        return 0
    if arguments.trajectory is None:
        raise ConfigError(
            f"{given[0]} is shown as a page.",
            f"Name the file of the page: {given[0]} ... --html FILE.",
        )
    with existing_store(arguments.store, allowed_names(arguments)) as store:
        trajectory = store.journal.trajectory(str(arguments.trajectory), requests=arguments.json)
        if arguments.sources is not None:
            values = values_of(store, trajectory.thread_id, trajectory.graph)
            lines = list(
                cited_lines(values, arguments.sources)
                if arguments.sources
                else source_lines(values)
            )
            output.result(source_data(values))
            for text, style in lines:
                output.say(text, style=style)
            return 0
        scorings = store.scorings.of(trajectory.id)
        verdicts = [
            o for o in store.journal.overlays(trajectory.run_id) if o.trajectory_id == trajectory.id
        ]
    output.result(
        {
            **trajectory.model_dump(mode="json"),
            "overlays": [overlay.model_dump(mode="json") for overlay in verdicts],
            "scorings": [scoring.model_dump(mode="json") for scoring in scorings],
        }
    )
    _print(output, trajectory, verdicts)
    for scoring in scorings:
        output.say(scoring_text(scoring))
        for score in scoring.scores:
            output.say(f"  {score_text(score)}")
    return 0


def _write_page(arguments: Arguments, output: Output) -> None:
    """Write the viewer's copy of a trajectory, of a group or of a training step."""
    from hrm_agent.viewer.export import export
    from hrm_agent.viewer.places import Places

    run, ids, page = _chosen(arguments)
    places = Places([arguments.store])
    first = places.all()[:1]
    start = f"#/{page[0]}?{urlencode({'place': first[0].id, **page[1]})}"
    try:
        if arguments.html == "-":
            page_text = StringIO()  # printed completely, or not at all if there is an error
            export(first, page_text, runs=[run], limit=len(ids), only=ids, start=start)
            sys.stdout.write(page_text.getvalue())
            return
        path = Path(arguments.html)
        with writing_page(path) as file:
            left_out = export(first, file, runs=[run], limit=len(ids), only=ids, start=start)
    finally:
        places.close()
    output.say(f"Written: {path} ({path.stat().st_size / 1000:,.0f} kB)")
    for what, count in left_out.items():
        output.say(f"left out: {count} {what}")


def _chosen(arguments: Arguments) -> tuple[str, list[str], tuple[str, Mapping[str, object]]]:
    """Run, ids of the trajectories to show, and the page for them as (name, values). Raises
    `ConfigError` and `StoreError`.
    """
    with existing_store(arguments.store, allowed_names(arguments)) as store:
        if arguments.trajectory is not None:
            found = store.journal.trajectory(arguments.trajectory, requests=False)
            return found.run_id, [found.id], ("trajectory", {"id": found.id})
        if arguments.group is not None:
            rollouts = list(
                store.journal.trajectories(
                    group_id=arguments.group, on_damage=_tell, requests=False
                )
            )
            if not rollouts:
                raise StoreError(
                    f"There is no group {arguments.group!r}.",
                    "`hrm-agent history --json` names the group of each run.",
                )
            run = rollouts[0].run_id
            return run, [each.id for each in rollouts], ("groups", {"run": run})
        run_id = read_whole(Path(arguments.store) / "run_id")
        if run_id is None:
            raise ConfigError(
                f"{arguments.store} is not the folder of a training run.",
                "Name the folder: --store FOLDER.",
            )
        if arguments.step < 1:
            raise ConfigError(
                f"--step {arguments.step}: steps count from 1, as in the console.",
                "Write --step 1.",
            )
        judged = store.journal.overlays(run_id, arguments.step - 1)
        if not judged:
            raise StoreError(
                f"Step {arguments.step} of run {run_id!r} has no rollout on record.",
                "Name another step.",
            )
        page = ("step", {"run": run_id, "step": arguments.step})
        return run_id, [each.trajectory_id for each in judged], page


def _tell(id_: str, error: StoreError) -> None:
    remark(f"trajectory {id_} is left out: {error.message}")


def _print(output: Output, trajectory: Trajectory, verdicts: list[Overlay]) -> None:
    output.table(("trajectory", trajectory.id), list(header_facts(trajectory)))
    output.say()
    numbers = {turn.id: number for number, turn in enumerate(trajectory.turns, start=2)}
    credit = credited(trajectory, verdicts)
    rewards = rewarded(trajectory)
    for record in in_order(trajectory):
        if isinstance(record, Turn):
            output.say(f"turn {numbers[record.id]}: {record.prompt}\n", style="bold magenta")
            continue
        (first, style), *rest = (
            call_lines(record) if isinstance(record, Call) else tool_call_lines(record)
        )
        given = [each[record.id] for each in (rewards, credit) if record.id in each]
        output.say(", ".join((first, *given)), style=style)
        for line, style in rest:
            output.say(line, style=style)
        output.say()
    for verdict in verdicts:
        output.say(
            f"step {verdict.step + 1} of {verdict.run_id}: {judged(verdict)}: {verdict.reason}"
        )
        for line in penalty_lines(verdict):
            output.say(f"  {line}")
