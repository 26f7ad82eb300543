"""`hrm-agent film`: the same tasks with the same noise, under each kept version of a training."""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm_agent.cli.common.analyses import save_result
from hrm_agent.cli.common.arguments import Parser, refuse_broken
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.errors import ConfigError, to_install
from hrm_agent.models.slow_start import told_if_slow
from hrm_agent.store.run_store import shown_url

if TYPE_CHECKING:
    from hrm_agent.training.records.retrace import RecordedTraining

__all__ = ["run"]

_TASKS = 8
"""Number of held-out tasks if no task is named."""


def run(words: list[str]) -> int:
    """Return 0."""
    parser = Parser(
        "film",
        "Run tasks under each kept version of a training's weights with the same noise, and show the"
        " tokens that change.",
    )
    add = parser.add_argument
    add("run", type=Path, help="folder of a `train rl`")
    add("prompt", nargs="*", help="tasks")
    add("--thread", action="append", help="rollout of the training, with its seed; may be repeated")
    add(
        "--tasks",
        type=int,
        metavar="N",
        help=f"the first N held-out tasks [{_TASKS}, if none is named]",
    )
    add("--seed", type=int, metavar="N", help="base of all seeds [the training's]")
    add("--store", metavar="URL", help="store of the run [found through its folder]")
    arguments = parser.read(words, intermixed=True)
    if arguments.tasks is not None and arguments.tasks < 1:
        raise ConfigError(f"--tasks {arguments.tasks} is below 1.", "Write --tasks 1.")
    for text in arguments.prompt:
        refuse_broken(text)
    for text in arguments.thread or []:
        refuse_broken(text, "--thread")
    if find_spec("torch") is None:
        raise ConfigError("film needs torch.", f"Run `{to_install('train')}`.")
    with told_if_slow("loading torch; the first time this takes up to a minute"):
        from hrm_agent.training.records.retrace import opened_training
    with opened_training(arguments.run, store=arguments.store) as training:
        return _answer(training, words, arguments, Output(as_json=arguments.json))


def _answer(
    training: RecordedTraining,
    words: Sequence[str],
    arguments: argparse.Namespace,
    output: Output,
) -> int:
    from hrm_agent.training.analysis.films.film import film
    from hrm_agent.training.analysis.films.result import film_result
    from hrm_agent.training.analysis.films.tasks import film_episodes

    threads: list[str] = arguments.thread or []
    named = bool(arguments.prompt or threads)
    count = arguments.tasks or (0 if named else _TASKS)
    episodes = film_episodes(training, arguments.prompt, threads, count, arguments.seed)
    with progress("versions", len(training.kept)) as advance:
        made = asyncio.run(film(training, episodes, on_version=lambda _: advance("")))
    result = film_result(training, made)
    sources = [[each.task.prompt] for each in episodes]
    sources[len(episodes) - len(threads) :] = [["--thread", each] for each in threads]
    options = [] if arguments.seed is None else ["--seed", str(arguments.seed)]
    options += [] if arguments.store is None else ["--store", shown_url(arguments.store)]
    for task, source in zip(result["tasks"], sources, strict=True):
        task["why"] = shlex.join(["hrm-agent", "why", str(arguments.run), *source, *options])
    output.result(result)
    steps = f"over {len(training.rows)} step{'' if len(training.rows) == 1 else 's'}"
    one = len(episodes) == 1
    title = f"{episodes[0].task.prompt} ({steps})" if one else f"{len(episodes)} tasks {steps}"
    shown_by = save_result("film", words, arguments, title=title, result=result)
    for task in result["tasks"]:
        _show(output, task, len(made.versions))
    if made.versions != [*range(len(training.rows) + 1)]:
        output.say("\nSome versions are missing. Train with --keep-versions 1.", style="dim")
    changes = [
        f"{task['why']} --flip {scene['version']}"
        + (f" --step {scene['version']}" if scene["first_step"] == scene["version"] else "")
        for task in result["tasks"]
        for scene in task["scenes"]
        if scene["flips"]
    ]
    if shown_by or changes:
        output.next(*shown_by, *changes[:1])
    return 0


def _show(output: Output, task: Mapping[str, Any], versions: int) -> None:
    rows: list[tuple[object, ...]] = []
    for scene in task["scenes"]:
        judged = {True: "right", False: "wrong", None: ""}[scene["right"]]
        if scene["status"] != "completed":
            judged = f"{judged} ({scene['status']})".strip()
        version = scene["version"]
        exact = scene["first_step"] in (None, version)
        step = version if exact else f"{version} (between step {scene['first_step']} and {version})"
        answer = "" if scene["answer"] is None else scene["answer"]
        first, *others = scene["flips"] or [None]
        rows.append((step, *_flip(first), answer, judged))
        rows += [("", *_flip(flip), "", "") for flip in others]
    columns = ("after step", "call", "token", "old", "P", "new", "P", "answer", "")
    changes = len(task["scenes"]) - 1
    output.table(
        columns,
        rows,
        title=f"\n{task['prompt']}\n{changes} of {versions - 1} versions change the run.",
    )


def _flip(flip: Mapping[str, Any] | None) -> tuple[object, ...]:
    if flip is None:
        return ("",) * 6
    return (
        f"{flip['call'] + 1} {flip['role']}",
        flip["token"] + 1,
        repr(flip["old"]),
        f"{flip['old_before']:.3f} -> {flip['old_now']:.3f}",
        repr(flip["new"]),
        f"{flip['new_now']:.3f}",
    )
