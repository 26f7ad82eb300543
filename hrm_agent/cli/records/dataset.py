"""`hrm-agent dataset ACTION`: named, versioned sets of examples that are made from runs."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.actions import run_action
from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.formatting import counted, sentence
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import existing_store, is_file, stored_trajectories
from hrm_agent.errors import ConfigError, RunError, StoreError, TaskError, nearest
from hrm_agent.store import RunStore
from hrm_agent.store.run_store import own_run, shown_url
from hrm_agent.training.datasets import (
    FOLDER,
    Added,
    Dataset,
    DatasetExample,
    add_examples,
    dataset_names,
    file_of_version,
    find_version,
    list_versions,
    read_version,
    split_reference,
)
from hrm_agent.training.datasets.conditions import FIELDS, Condition, read_condition
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT
from hrm_agent.training.tasks.dataset import evaluated_by, example_of
from hrm_agent.training.tasks.registry import families_of, run_verifier_of, verifier_of
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
    return run_action("dataset", "Make and compare data sets of examples.", ACTIONS, _RUN, words)


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
    counts = Counter[str]()
    found, unanswered = _examples(arguments, conditions, counts)
    if not found:
        raise _nothing_chosen(arguments, counts)
    added = add_examples(arguments.folder, arguments.name, found, share, unanswered=unanswered)
    output = Output(as_json=arguments.json)
    output.result(
        {
            **_facts(added.dataset),
            "added": added.added,
            "known": added.known,
            "joined": added.joined,
            "runs": counts["runs"],
            "chosen": counts["chosen"],
            "without_task": counts["without a task"],
            "not_own": counts["not own"],
            "several_answers": counts["several answers"],
            "file": str(added.dataset.version.path),
        }
    )
    output.say(
        f"{counts['chosen']} of {counted(counts['runs'], 'run')} were chosen, with"
        f" {counted(len(found), 'different task')}."
    )
    if counts["without a task"]:
        output.say(f"{counts['without a task']} of them have no task and were left out.")
    if counts["not own"]:
        output.say(
            f"{counts['not own']} more were left out: forks, first attempts of repeated rollouts,"
            " and candidates among which a run chose its answer."
        )
    if counts["several answers"]:
        output.say(
            f"The runs of {counted(counts['several answers'], 'task')} gave different answers. The"
            " most frequent one was taken, the first if several are.",
            style="yellow",
        )
    _say_version(output, added, arguments)
    return 0


def _say_version(output: Output, added: Added, arguments: Arguments) -> None:
    found = added.dataset
    reference = found.version.reference
    if added.joined:
        output.say(f"{reference} joins {added.joined} versions of several branches.")
    elif not added.added:
        output.say(f"{reference} has all of them already. No version was made.")
        return
    output.say(
        f"{reference}: {counted(len(found.examples), 'example')}, {added.added} of them new"
        f" ({_counts(found.splits)})."
    )
    spec, verified = evaluated_by(
        found, arguments.folder, arguments.runs, verifier_of, run_verifier_of, families_of
    )
    rewards = "" if verified else " --rewards module:attribute"
    output.next(f"hrm-agent eval --tasks {shlex.quote(spec)}{rewards}")


def _examples(
    arguments: Arguments, conditions: Sequence[Condition], counts: Counter[str]
) -> tuple[list[DatasetExample], list[str]]:
    """Different examples of the chosen runs, and the ids of those whose tasks have no reference
    answer of their own, of which each task has one.
    """
    found: dict[str, DatasetExample] = {}
    unanswered: defaultdict[str, list[DatasetExample]] = defaultdict(list)
    for where in arguments.runs:
        for trajectory in _chosen(where, arguments.run, conditions, counts):
            example = example_of(trajectory, answers=arguments.answers)
            if example is None:
                counts["without a task"] += 1
            elif trajectory.task.answer is None:
                unanswered[example.task_digest].append(example)
            else:
                found.setdefault(example.id, example)
    of_tasks = [_most_frequent(each) for each in unanswered.values()]
    counts["several answers"] = sum(
        len({each.answer for each in of_task} - {None}) > 1 for of_task in unanswered.values()
    )
    found |= {each.id: each for each in of_tasks}
    return list(found.values()), [each.id for each in of_tasks]


def _most_frequent(examples: Sequence[DatasetExample]) -> DatasetExample:
    """Example of a task with the answer that most of its runs gave, of the first such run."""
    counts = Counter(each.answer for each in examples if each.answer is not None)
    answer = counts.most_common(1)[0][0] if counts else None
    return next(each for each in examples if each.answer == answer)


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
        threads = {each.thread_id for each in stored_trajectories(where, run_id)}
        for trajectory in _own(stored_trajectories(where, run_id), threads, counts):
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
        headers = store.journal.headers(*query)
        threads = {header.thread_id for header in headers}
        for header in _own(headers, threads, counts):
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


def _own(
    runs: Iterable[Trajectory], threads: set[str], counts: Counter[str]
) -> Iterator[Trajectory]:
    """Runs of their tasks, as evaluations count them: without forks, first attempts of repeated
    rollouts, and candidates, whose group is the thread that chooses.
    """
    for run in runs:
        own = (
            run.forked_from is None
            and run.group_id not in threads
            and run.thread_id + SECOND_ATTEMPT not in threads
        )
        counts["runs" if own else "not own"] += 1
        if own:
            yield run


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
    if counts["not own"] and not counts["runs"]:
        return RunError(
            f"{runs} has only forks and candidates among which a run chose its answer.",
            "Name the run that they belong to.",
        )
    if not counts["runs"]:
        of_run = f" of the run {arguments.run!r}" if arguments.run else ""
        return RunError(f"{runs} has no runs{of_run}.", "Record some first: `hrm-agent collect`.")
    if not counts["chosen"]:
        said = " and ".join(arguments.where)
        return RunError(
            f"No run in {runs} fulfils {said} (runs: {counts['runs']}).",
            f"`hrm-agent history --store {shown_url(arguments.runs[0])}` lists them.",
        )
    return RunError(
        f"No run that was chosen in {runs} has a task: their prompts are empty (runs:"
        f" {counts['chosen']}).",
        "Name other runs.",
    )


def _list(words: list[str]) -> int:
    arguments = _parser("list").read(words)
    output = Output(as_json=arguments.json)
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    for name in dataset_names(arguments.folder):
        try:
            versions = list_versions(arguments.folder, name)
            found += [_facts(read_version(each)) for each in versions]
            find_version(arguments.folder, name)
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
        f"{found.version.reference}: {counted(len(found.examples), 'example')}"
        f" ({_counts(found.splits)}),"
        f" {share:g} of the questions held out, digest {found.version.digest}"
    )
    output.table(_COLUMNS, [_row(each, share) for each in listed], spare=("family", "trajectory"))
    if len(listed) < len(chosen):
        output.say(f"{len(listed)} of {len(chosen)} examples; --limit {len(chosen)} lists all")
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
        f"Examples in both: {len(of_a) - len(removed)}, only in {names[0]}: {len(removed)}, only in"
        f" {names[1]}: {len(added)}."
    )
    if moved:
        output.say(f"In both, but in another split: {len(moved)}.", style="yellow")
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
