"""`hrm-agent dataset ACTION`: named, versioned sets of examples that are made from runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.formatting import sentence
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import existing_store, is_file, stored_trajectories
from hrm_agent.cli.main import command_list
from hrm_agent.errors import ConfigError, RunError, StoreError, TaskError, nearest
from hrm_agent.store import RunStore
from hrm_agent.store.run_store import own_run, shown_url
from hrm_agent.training.datasets import (
    FOLDER,
    Dataset,
    DatasetExample,
    add_examples,
    dataset_names,
    file_of_version,
    list_versions,
    read_version,
    split_reference,
)
from hrm_agent.training.datasets.conditions import FIELDS, Condition, read_condition
from hrm_agent.training.tasks.dataset import example_of
from hrm_agent.trajectory import Scoring, Trajectory

__all__ = ["ACTIONS", "run"]

ACTIONS = {
    "add": "add the tasks of runs to a data set, as a new version",
    "list": "list the data sets with their versions",
    "show": "show the examples of a data set",
    "diff": "compare two data sets, or two versions of one",
}
_ROWS = 20
"""Number of examples that people see without --limit."""
_PROMPT = 80
_COLUMNS = ("example", "split", "family", "prompt", "answer", "trajectory")


def run(words: list[str]) -> int:
    if words and words[0] in _RUN:
        return _RUN[words[0]](words[1:])
    if words and not words[0].startswith("-"):
        raise ConfigError(
            f"`hrm-agent dataset` has no action {words[0]!r}.",
            nearest(words[0], ACTIONS) or f"Actions: {', '.join(ACTIONS)}.",
        )
    about = (
        f"Make and compare data sets of examples.\n\n{command_list(ACTIONS)}\n\n`hrm-agent dataset"
        " ACTION --help` lists its options."
    )
    Parser("dataset ACTION", about).read(words or ["--help"])
    return 0


def _parser(action: str) -> Parser:
    parser = Parser(f"dataset {action}", sentence(ACTIONS[action]))
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(FOLDER),
        help=f"folder of data sets [{FOLDER}]",
    )
    return parser


def _add(words: list[str]) -> int:
    parser = _parser("add")
    add = parser.add_argument
    add("name", help="name of the data set")
    add("runs", metavar="RUN", nargs="+", help="run folder, store or exported file")
    add("--run", metavar="ID", help="only the trajectories of this run of a store")
    help_text = (
        "only runs that fulfil it, as reward<0.5, status=completed or metadata.customer~acme-*; may"
        f" be repeated, and then all hold. Fields: {', '.join(FIELDS)}"
    )
    add("--where", action="append", default=[], metavar="CONDITION", help=help_text)
    help_text = "take the answer of a completed run as the reference of a task that has none"
    add("--answers", action="store_true", help=help_text)
    help_text = "share of the questions that is held out, fixed by the first version [0.2]"
    add("--eval-share", type=float, metavar="SHARE", help=help_text)
    arguments = parser.read(words, intermixed=True)
    share: float | None = arguments.eval_share
    if share is not None and not 0 <= share <= 1:
        raise ConfigError(f"--eval-share {share} is not from 0 to 1.", "Write --eval-share 0.2.")
    _, number = split_reference(arguments.name)
    if number is not None:
        raise ConfigError(
            f"{arguments.name} is a version, which never changes.",
            f"Add to the data set: `hrm-agent dataset add {arguments.name.partition('@')[0]} ...`.",
        )
    conditions = [read_condition(text) for text in arguments.where]
    found: dict[str, DatasetExample] = {}
    counts = Counter[str]()
    for where in arguments.runs:
        for trajectory in _chosen(where, arguments.run, conditions, counts):
            example = example_of(trajectory, answers=arguments.answers)
            if example is None:
                counts["without a task"] += 1
            else:
                found.setdefault(example.id, example)
    if not found:
        raise _nothing_chosen(arguments, counts)
    added = add_examples(arguments.folder, arguments.name, found.values(), share)
    version = added.dataset.version
    output = Output(as_json=arguments.json)
    output.result(
        {
            **_facts(added.dataset),
            "added": added.added,
            "known": added.known,
            "runs": counts["runs"],
            "chosen": counts["chosen"],
            "without_task": counts["without a task"],
            "file": str(version.path),
        }
    )
    output.say(
        f"{counts['chosen']} of {counts['runs']} runs were chosen, with {len(found)} different"
        " tasks."
    )
    if counts["without a task"]:
        output.say(f"{counts['without a task']} of them have no task and were left out.")
    if not added.added:
        output.say(f"{version.reference} has all of them already. No version was made.")
        return 0
    output.say(
        f"{version.reference}: {len(added.dataset.examples)} examples, {added.added} of them new"
        f" ({_counts(added.dataset.splits)})."
    )
    output.next(f"hrm-agent eval --tasks dataset:{version.reference}")
    return 0


def _chosen(
    where: str, run_id: str | None, conditions: Sequence[Condition], counts: Counter[str]
) -> Iterator[Trajectory]:
    """Runs that fulfil all conditions. Calls are read only if a condition needs them."""
    if is_file(where):
        if scored := next((each for each in conditions if each.field == "scores"), None):
            raise ConfigError(
                f"--where {scored.text}: {where} is a file, which has no later scores.",
                "Name the run's folder or store, or compare `reward`.",
            )
        for trajectory in stored_trajectories(where, run_id):
            counts["runs"] += 1
            if all(each.holds(trajectory, {}) for each in conditions):
                counts["chosen"] += 1
                yield trajectory
        return
    of_header = [each for each in conditions if not each.reads_calls]
    of_calls = [each for each in conditions if each.reads_calls]
    with existing_store(where) as store:
        own = run_id or own_run(where)
        query: tuple[str, tuple[str, ...]] = (
            ("1 = 1", ()) if own is None else ("run_id = ?", (own,))
        )
        scorings = _scorings(store, conditions, where)
        for header in store.journal.headers(*query):
            counts["runs"] += 1
            later = {
                name: by_id[header.id] for name, by_id in scorings.items() if header.id in by_id
            }
            if not all(each.holds(header, later) for each in of_header):
                continue
            if of_calls:
                whole = store.journal.with_calls(header, requests=False)
                if not all(each.holds(whole, later) for each in of_calls):
                    continue
            counts["chosen"] += 1
            yield header


def _scorings(
    store: RunStore, conditions: Sequence[Condition], where: str
) -> dict[str, dict[str, Scoring]]:
    """Later scores that conditions compare, by rubric and trajectory."""
    names = {each.key for each in conditions if each.field == "scores"}
    known = store.scorings.rubrics() if names else []
    if unknown := sorted(names - {*known}):
        raise StoreError(
            f"{shown_url(where)} has no scores {unknown[0]!r}. {nearest(unknown[0], known)}".strip(),
            f"It has: {', '.join(known)}." if known else "`hrm-agent rescore` makes scores.",
        )
    return {name: store.scorings.by_rubric(name) for name in names}


def _nothing_chosen(arguments: Arguments, counts: Counter[str]) -> RunError:
    runs = ", ".join(map(shown_url, arguments.runs))
    if not counts["runs"]:
        of_run = f" of the run {arguments.run!r}" if arguments.run else ""
        return RunError(f"{runs} has no runs{of_run}.", "Record some first: `hrm-agent collect`.")
    if not counts["chosen"]:
        said = " and ".join(arguments.where)
        return RunError(
            f"None of the {counts['runs']} runs in {runs} fulfils {said}.",
            f"`hrm-agent history --store {shown_url(arguments.runs[0])}` lists them.",
        )
    return RunError(
        f"None of the {counts['chosen']} runs that were chosen in {runs} has a task: their prompts"
        " are empty.",
        "Name other runs.",
    )


def _list(words: list[str]) -> int:
    arguments = _parser("list").read(words)
    output = Output(as_json=arguments.json)
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    for name in dataset_names(arguments.folder):
        try:
            found += [_facts(read_version(each)) for each in list_versions(arguments.folder, name)]
        except TaskError as error:
            problems.append(f"{error.message} {error.hint}")
            found.append({"name": name, "problem": error.message})
    output.result(found)
    rows = [
        (
            f"{each['name']}@{each['version']}",
            each["examples"],
            each["splits"]["train"],
            each["splits"]["eval"],
            ", ".join(each["families"]),
        )
        for each in found
        if "version" in each
    ]
    if rows:
        output.table(("data set", "examples", "train", "eval", "families"), rows)
    for problem in problems:
        output.say(problem, style="red")
    if not found:
        output.say(
            f"There are no data sets in {arguments.folder}. `hrm-agent dataset add NAME RUN` makes"
            " one of a run."
        )
    return 1 if problems else 0


def _show(words: list[str]) -> int:
    parser = _parser("show")
    parser.add_argument("dataset", metavar="NAME[@VERSION]", help="data set [its newest version]")
    parser.add_argument("--split", choices=("train", "eval"), help="only the examples of a split")
    parser.add_argument(
        "--limit", type=int, help=f"most examples that are listed [{_ROWS}; with --json all]"
    )
    arguments = parser.read(words, intermixed=True)
    limit: int | None = arguments.limit
    if limit is not None and limit < 0:
        raise ConfigError(
            f"--limit {limit} is not a number of examples.", f"Give 0 or more: --limit {_ROWS}."
        )
    output = Output(as_json=arguments.json)
    found = read_version(file_of_version(arguments.folder, arguments.dataset))
    chosen = [
        each for each in found.examples if arguments.split in (None, each.split(found.eval_share))
    ]
    most = limit if limit is not None or arguments.json else _ROWS
    listed = chosen[:most]
    share = found.eval_share
    output.result(
        {
            **_facts(found),
            "eval_share": share,
            "rows": [{**each.model_dump(), "split": each.split(share)} for each in listed],
        }
    )
    output.say(
        f"{found.version.reference}: {len(found.examples)} examples ({_counts(found.splits)}),"
        f" {share:g} of the questions held out, digest {found.version.digest}"
    )
    output.table(_COLUMNS, [_row(each, share) for each in listed], spare=("family", "trajectory"))
    if len(listed) < len(chosen):
        output.say(f"{len(listed)} of {len(chosen)} examples; --limit {len(chosen)} lists them all")
    return 0


def _diff(words: list[str]) -> int:
    parser = _parser("diff")
    parser.add_argument("a", metavar="NAME@A", help="data set that is compared")
    parser.add_argument("b", metavar="NAME@B", help="data set that it is compared with")
    arguments = parser.read(words, intermixed=True)
    output = Output(as_json=arguments.json)
    a, b = (
        read_version(file_of_version(arguments.folder, each)) for each in (arguments.a, arguments.b)
    )
    of_a = {each.id: each for each in a.examples}
    of_b = {each.id: each for each in b.examples}
    removed = [each for id_, each in of_a.items() if id_ not in of_b]
    added = [each for id_, each in of_b.items() if id_ not in of_a]
    moved = [
        id_
        for id_, each in of_a.items()
        if id_ in of_b and each.split(a.eval_share) != each.split(b.eval_share)
    ]
    output.result(
        {
            "a": _facts(a),
            "b": _facts(b),
            "added": [each.model_dump() for each in added],
            "removed": [each.model_dump() for each in removed],
            "other_split": moved,
            "both": len(of_a) - len(removed),
        }
    )
    names = (a.version.reference, b.version.reference)
    output.say(
        f"{len(of_a) - len(removed)} examples are in both, {len(removed)} only in {names[0]},"
        f" {len(added)} only in {names[1]}."
    )
    if moved:
        output.say(f"{len(moved)} of those in both are in another split.", style="yellow")
    rows = [(names[0], *_row(each, a.eval_share)) for each in removed[:_ROWS]]
    rows += [(names[1], *_row(each, b.eval_share)) for each in added[:_ROWS]]
    if rows:
        output.table(("only in", *_COLUMNS), rows, spare=("family", "trajectory"))
    if len(rows) < len(removed) + len(added):
        output.say(f"{len(rows)} of {len(removed) + len(added)} examples; --json has all")
    return 0


def _facts(found: Dataset) -> dict[str, Any]:
    version = found.version
    return {
        "name": version.name,
        "version": version.number,
        "digest": version.digest,
        "examples": len(found.examples),
        "splits": found.splits,
        "families": found.families,
    }


def _row(example: DatasetExample, eval_share: float) -> tuple[str, ...]:
    return (
        example.id[:16],
        example.split(eval_share),
        _short(example.family),
        _short(example.prompt),
        _short(example.answer or ""),
        example.source.trajectory,
    )


def _short(text: str) -> str:
    line = " ".join(text[: 10 * _PROMPT].split())
    return line if len(line) <= _PROMPT else f"{line[:_PROMPT]}..."


def _counts(splits: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in splits.items())


_RUN: dict[str, Callable[[list[str]], int]] = {
    "add": _add,
    "list": _list,
    "show": _show,
    "diff": _diff,
}
