"""`hrm-agent resume`: continues a run folder, or one thread of a store, as it was started.

If the thread waits for an answer, --answer gives it. --at continues from an earlier moment on a new
thread.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from hrm_agent.cli.common.arguments import Parser, add_graph_options
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.own_types import add_own_types
from hrm_agent.cli.common.run_folder import DEFAULT_STORE, existing_store, run_folder
from hrm_agent.cli.common.tree import ended_as
from hrm_agent.config import COMMAND_KEY, CONFIG_FILE, build_config, read_config_file, secret_in
from hrm_agent.errors import ConfigError, HrmError, RunError, nearest
from hrm_agent.runtime.episode import NO_ANSWER
from hrm_agent.runtime.execution.conversation import RECORDED, kept_elsewhere
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, StopReason, Trajectory

if TYPE_CHECKING:
    from hrm_agent.cli.runs.run import RunConfig

__all__ = ["run", "value_of"]

Resume = Callable[[Path, Output, list[str]], int]
Config = TypeVar("Config", bound=BaseModel)


def run(words: list[str]) -> int:
    parser = Parser(
        "resume",
        "Continue an interrupted run as it was started; what is recorded is not run again.",
    )
    parser.add_argument("run", nargs="?", help="a run folder, or the id of a thread of --store")
    parser.add_argument(
        "--all",
        action="store_true",
        help="every thread of --store that was under way when its process ended",
    )
    parser.add_argument(
        "--store", default=DEFAULT_STORE, help=f"store of the thread [{DEFAULT_STORE}]"
    )
    parser.add_argument(
        "--at", metavar="MOMENT", help="from an earlier moment of the thread, on a new one (a fork)"
    )
    parser.add_argument(
        "--answer",
        nargs="?",
        const=None,
        default=NO_ANSWER,
        metavar="VALUE",
        help=(
            "answer to a pending question, as JSON or text; without a value: continue past a"
            " breakpoint"
        ),
    )
    add_own_types(parser)
    parser.add_argument(
        "--graph", help="of a thread: the graph to continue with, as package.module:attribute"
    )
    add_graph_options(parser, "of a thread: ")
    parser.add_argument("--recursion-limit", type=int, help="of a thread: most steps from here on")
    arguments = parser.read(words)
    if arguments.all or arguments.run is None:
        return _all(arguments)
    output = Output(as_json=arguments.json)
    folder = run_folder(Path(arguments.run), "")
    answer = value_of(arguments.answer)
    allow = list[str](arguments.allow)
    if arguments.at is not None:
        return _from_moment(arguments, output, answer, allow)
    given = any(
        getattr(arguments, name) for name in ("graph", "configurable", "context", "recursion_limit")
    )
    if folder.is_dir() and answer is NO_ANSWER and not given:
        path = folder / CONFIG_FILE
        if not path.exists():
            raise RunError(
                f"{folder} is not a run folder: it has no {CONFIG_FILE}.",
                "Name a folder under runs/.",
            )
        try:
            command = str(tomllib.loads(path.read_text(encoding="utf-8")).get(COMMAND_KEY))
        except ValueError as error:
            raise RunError(
                f"{path} cannot be read: {error}.", "Start a new run in another folder."
            ) from error
        if command not in _COMMANDS:
            raise RunError(
                f"{path} belongs to {command!r}, which cannot be resumed.",
                nearest(command, _COMMANDS),
            )
        return _COMMANDS[command](folder, output, allow)
    from hrm_agent.cli.runs.run import run_task

    where = str(arguments.store)
    config, trajectory, options = _on_record(str(arguments.run), where, answer, allow, arguments)
    return run_task(
        config, trajectory.task, trajectory.thread_id, where, output, answer=answer, **options
    )


def value_of(text: Any) -> Any:
    """Value of the text if it is JSON, else the text itself."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _config(model: type[Config], folder: Path, command: str, allow: list[str]) -> Config:
    values = _allowing(read_config_file(folder / CONFIG_FILE, command), allow)
    return build_config(model, values, CONFIG_FILE, on_record=True)


def _allowing(values: dict[str, Any], allow: list[str]) -> dict[str, Any]:
    """Recorded options, with additional types that the states may hold."""
    return (
        {**values, "allow": [*dict.fromkeys([*values.get("allow", ()), *allow])]}
        if allow
        else values
    )


def _collect(folder: Path, output: Output, allow: list[str]) -> int:
    from hrm_agent.cli.training.collect import collect_run
    from hrm_agent.training.config.commands import CollectConfig

    return collect_run(_config(CollectConfig, folder, "collect", allow), folder, output)


def _eval(folder: Path, output: Output, allow: list[str]) -> int:
    from hrm_agent.cli.training.eval import eval_run
    from hrm_agent.training.config.commands import CollectConfig

    return eval_run(_config(CollectConfig, folder, "eval", allow), folder, output)


def _train_rl(folder: Path, output: Output, allow: list[str]) -> int:
    from hrm_agent.cli.training.train import reinforce
    from hrm_agent.training.config.commands import GrpoConfig

    reinforce(_config(GrpoConfig, folder, "train rl", allow), folder, output)
    return 0


def _train_sft(folder: Path, output: Output, allow: list[str]) -> int:
    from hrm_agent.cli.training.train import fine_tune
    from hrm_agent.training.config.commands import FineTuneConfig

    fine_tune(_config(FineTuneConfig, folder, "train sft", allow), folder, output)
    return 0


def _demo(folder: Path, output: Output, allow: list[str]) -> int:
    from hrm_agent.cli.training.demo import demo_run
    from hrm_agent.training.config.commands import DemoConfig

    demo_run(_config(DemoConfig, folder, "demo", allow), folder, output)
    return 0


def _gate(folder: Path, output: Output, allow: list[str]) -> int:
    from hrm_agent.cli.runs.gate import gate_run
    from hrm_agent.cli.runs.gate_runs import GateConfig

    del allow  # the types of the repeated runs are those of the gate
    values = read_config_file(folder / CONFIG_FILE, "gate")
    return gate_run(build_config(GateConfig, values, CONFIG_FILE, on_record=True), folder, output)


def _roles(folder: Path, output: Output, allow: list[str]) -> int:
    from hrm_agent.cli.training.roles import RolesConfig, roles_run

    del allow  # the types of the repeated runs are those of their run
    values = read_config_file(folder / CONFIG_FILE, "roles")
    return roles_run(build_config(RolesConfig, values, CONFIG_FILE, on_record=True), folder, output)


def _optimize(folder: Path, output: Output, allow: list[str]) -> int:
    from hrm_agent.cli.training.optimize import optimize_run
    from hrm_agent.training.config.commands import OptimizeConfig

    return optimize_run(_config(OptimizeConfig, folder, "optimize", allow), folder, output)


_COMMANDS: dict[str, Resume] = {
    "demo": _demo,
    "collect": _collect,
    "eval": _eval,
    "gate": _gate,
    "optimize": _optimize,
    "roles": _roles,
    "train rl": _train_rl,
    "train sft": _train_sft,
}


def _all(arguments: Namespace) -> int:
    """Resume each thread. If a run fails or cannot be resumed, the others are still resumed, and 1
    is returned.
    """
    given = [
        name
        for name in ("at", "graph", "configurable", "context", "recursion_limit")
        if getattr(arguments, name)
    ]
    given += ["answer"] if arguments.answer is not NO_ANSWER else []
    if not arguments.all:
        raise ConfigError(
            "No run was named.",
            "`hrm-agent resume RUN`; or `hrm-agent resume --all` for all that a store has under"
            " way.",
        )
    if arguments.run is not None or given:
        what = arguments.run or f"--{given[0].replace('_', '-').replace('configurable', 'config')}"
        raise ConfigError(
            f"{what} is for one thread, but --all resumes every thread as it was started.",
            f"Leave out {what}, or leave out --all: `hrm-agent resume THREAD`.",
        )
    from hrm_agent.cli.runs.fork import is_begun
    from hrm_agent.cli.runs.run import header, run_thread

    output = Output(as_json=arguments.json)
    where = str(arguments.store)
    failed = dict[str, str]()
    with existing_store(where) as store:
        left = [
            known.thread_id
            for known in store.journal.headers("status = ?", (RunStatus.RUNNING.value,))
        ]
    with asyncio.Runner() as loop:
        for thread in left:
            with existing_store(where) as store:
                (now,) = store.journal.headers("thread_id = ?", (thread,)) or (None,)
                skipped = _why_not(store, now, begun=now is not None and is_begun(store, now))
            if skipped or now is None:
                output.result({"event": "skipped", "thread": thread, "reason": skipped})
                output.say(f"{thread}  skipped: {skipped}")
                continue
            try:
                config, trajectory, options = _on_record(
                    thread, where, NO_ANSWER, list[str](arguments.allow)
                )
                ended = run_thread(
                    config, trajectory.task, trajectory.thread_id, where, **options, loop=loop
                ).trajectory
            except HrmError as error:
                failed[thread] = " ".join(str(error).split())
                output.result(
                    {"event": "error", "thread": thread, "error": error.message, "hint": error.hint}
                )
                output.say(f"{thread}  not resumed: {failed[thread]}", style="red")
                continue
            if ended.status is RunStatus.FAILED:
                failed[thread] = str(ended.error)
            output.result({"event": "end", **header(ended)})
            output.say(f"{thread}  {ended_as(ended)}")
    _say_stopped(output, where, left)
    under_way = "1 thread was" if len(left) == 1 else f"{len(left)} threads were"
    output.say(f"{under_way} under way" + (f"; {len(failed)} failed:" if failed else "."))
    for thread, error in failed.items():
        output.say(f"  {thread}: {error}")
    return 1 if failed else 0


def _why_not(store: RunStore, now: Trajectory | None, *, begun: bool) -> str:
    """Reason for skipping a thread (empty if it is resumed)."""
    if now is None or now.status is not RunStatus.RUNNING:
        return "it has ended meanwhile"
    if now.thread_id in store.threads_at_work():
        return "a live process is at work on it"
    if now.run_id and store.options.read(now.thread_id) is None:
        return f"it belongs to the run {now.run_id}, which `hrm-agent resume FOLDER` continues"
    if kept_elsewhere(now) is not None and now.thread_id not in store.threads_with_checkpoints():
        return "its program keeps the checkpoints"
    return (
        ""
        if begun
        else f"it is a fork that was not begun, `hrm-agent resume {now.thread_id}` runs it"
    )


def _say_stopped(output: Output, where: str, tried: Collection[str]) -> None:
    """List the threads that need the user: those that wait for an answer, and those that failed and
    may be tried again, except the `tried` ones.
    """
    with existing_store(where) as store:
        stopped = store.journal.headers("status = ?", (RunStatus.TRUNCATED.value,))
        failed = store.journal.headers("status = ?", (RunStatus.FAILED.value,))
    waiting = [known.thread_id for known in stopped if known.stop_reason is StopReason.INTERRUPT]
    output.result({"event": "waiting", "threads": waiting})
    for thread in waiting:
        output.say(
            f"{thread}  waits: `hrm-agent resume {thread} --answer VALUE --store {where}`",
            style="yellow",
        )
    failed += [known for known in stopped if known.stop_reason is StopReason.RECURSION_LIMIT]
    again = [known for known in failed if known.thread_id not in tried and not known.run_id]
    output.result({"event": "stopped", "threads": [known.thread_id for known in again]})
    for known in again:
        command = f"`hrm-agent resume {known.thread_id} --store {where}`"
        output.say(f"{known.thread_id}  {ended_as(known)}; try again: {command}", style="yellow")


def _on_record(
    thread: str, where: str, answer: Any, allow: list[str], arguments: Namespace | None = None
) -> tuple[RunConfig, Trajectory, dict[str, Any]]:
    """Options of a thread, merged with those given now; the thread's record; and further arguments
    of `run_thread`.
    """
    from hrm_agent.cli.runs.run import RunConfig, kept_options, known_config

    with existing_store(where) as store:
        trajectory = store.journal.trajectory(thread)
        kept = kept_options(store, trajectory.thread_id) is not None
        values = known_config(store, trajectory)
        # not None if a program made the thread, which may have kept the checkpoints elsewhere
        missing = kept_elsewhere(trajectory)
        if missing is not None and trajectory.thread_id not in store.threads_with_checkpoints():
            raise missing
        recorded = trajectory.task.family == RECORDED
    if not kept and not trajectory.run_id and not recorded:
        raise RunError(
            f"The options of thread {thread!r} are not recorded, since hrm-agent did not make it.",
            f"Fork the thread with options: `hrm-agent fork {thread} --run`, with --graph,"
            " --policy and others.",
        )
    if not kept and answer is NO_ANSWER and not recorded:
        raise RunError(
            f"Thread {thread!r} belongs to the run {trajectory.run_id!r}, which `hrm-agent run` did"
            " not start.",
            "Resume the whole run: `hrm-agent resume"
            f" {Path(where).parent if Path(where).is_file() else where}`.",
        )
    given, unrecorded = _given_now(arguments, values) if arguments is not None else ({}, {})
    config = build_config(RunConfig, _allowing({**values, **given}, allow), f"of thread {thread!r}")
    return config, trajectory, {"unrecorded": unrecorded, "changed": given}


def _given_now(
    arguments: Namespace, kept: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options that replace recorded ones, and secrets, which the graph gets but which are not
    recorded.
    """
    unrecorded = {name: {} for name in ("configurable", "context")}
    given = {
        name: value
        for name in ("graph", "recursion_limit")
        if (value := getattr(arguments, name)) is not None
    }
    for name, secrets in unrecorded.items():
        pairs: dict[str, Any] = getattr(arguments, name)
        secrets |= {
            key: value for key, value in pairs.items() if secret_in({key: value}) is not None
        }
        if shown := {key: value for key, value in pairs.items() if key not in secrets}:
            given[name] = {**kept.get(name, {}), **shown}
    return given, unrecorded


def _from_moment(arguments: Namespace, output: Output, answer: Any, allow: list[str]) -> int:
    thread = str(arguments.run)
    at = str(arguments.at)
    where = str(arguments.store)
    from hrm_agent.cli.runs.fork import fork_thread, run_forks
    from hrm_agent.cli.runs.run import RunConfig, conclude, known_config
    from hrm_agent.runtime.time_travel.fork import Edit

    with existing_store(where) as store:
        values = _allowing(known_config(store, store.journal.trajectory(thread), at), allow)
    given, unrecorded = _given_now(arguments, values)
    config = build_config(RunConfig, {**values, **given}, f"of thread {thread!r}")
    with existing_store(where, config.allowed_types, writes=True) as store:
        episodes = fork_thread(store, thread, at, config, edit=Edit())
        episodes = [replace(episode, unrecorded=unrecorded) for episode in episodes]
        (trajectory,) = run_forks(store, config, episodes, output, answer)
    return conclude(output, trajectory, where)
