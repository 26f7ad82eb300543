"""`hrm-agent resume`: goes on with a run folder, or with one thread of a store, as it was started."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hrm_agent.cli.arguments import Parser
from hrm_agent.cli.output import Output
from hrm_agent.cli.source import DEFAULT_STORE, existing_store, run_folder
from hrm_agent.config import COMMAND_KEY, CONFIG_FILE, build_config, read_config_file
from hrm_agent.errors import RunError, nearest

__all__ = ["run"]

Resume = Callable[[Path, Output], int]


def run(words: list[str]) -> int:
    parser = Parser("resume", "Go on with an interrupted run as it was started; what is on record is not run again.")
    parser.add_argument("run", help="a run folder, or the id of a thread of --store")
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"store of the thread [{DEFAULT_STORE}]")
    arguments = parser.read(words)
    output, folder = Output(as_json=arguments.json), run_folder(Path(arguments.run), "")
    if folder.is_dir():
        return _COMMANDS[_command(folder)](folder, output)
    return _thread(arguments.run, arguments.store, output)


def _command(folder: Path) -> str:
    path = folder / CONFIG_FILE
    if not path.exists():
        raise RunError(f"{folder} is no run folder: it has no {CONFIG_FILE}.", "Name a folder under runs/.")
    try:
        command = str(tomllib.loads(path.read_text(encoding="utf-8")).get(COMMAND_KEY))
    except ValueError as error:
        raise RunError(f"{path} cannot be read: {error}.", "Start the run anew in another folder.") from error
    if command not in _COMMANDS:
        raise RunError(f"{path} is of no command that can be resumed: {command!r}.", nearest(command, _COMMANDS))
    return command


def _values(folder: Path, command: str) -> dict[str, Any]:
    return read_config_file(folder / CONFIG_FILE, command)


def _collect(folder: Path, output: Output) -> int:
    from hrm_agent.cli.collect import collect_run
    from training.configs import CollectConfig

    return collect_run(build_config(CollectConfig, _values(folder, "collect"), CONFIG_FILE), folder, output)


def _eval(folder: Path, output: Output) -> int:
    from hrm_agent.cli.eval import eval_run
    from training.configs import CollectConfig

    return eval_run(build_config(CollectConfig, _values(folder, "eval"), CONFIG_FILE), folder, output)


def _train_rl(folder: Path, output: Output) -> int:
    from hrm_agent.cli.train import reinforce
    from training.configs import GrpoConfig

    reinforce(build_config(GrpoConfig, _values(folder, "train rl"), CONFIG_FILE), folder, output)
    return 0


def _demo(folder: Path, output: Output) -> int:
    from hrm_agent.cli.demo import demo_run
    from training.configs import DemoConfig

    demo_run(build_config(DemoConfig, _values(folder, "demo"), CONFIG_FILE), folder, output)
    return 0


_COMMANDS: dict[str, Resume] = {"demo": _demo, "collect": _collect, "eval": _eval, "train rl": _train_rl}


def _thread(thread: str, where: str, output: Output) -> int:
    from hrm_agent.cli.run import RunConfig, config_folder, run_task

    with existing_store(where) as store:
        trajectory = store.journal.trajectory(thread)
        folder = config_folder(store, trajectory.id)
    if not (folder / CONFIG_FILE).exists():
        raise RunError(
            f"Thread {thread!r} belongs to the run {trajectory.run_id!r}, which `hrm-agent run` did not start.",
            f"Resume the whole run: `hrm-agent resume {Path(where).parent if Path(where).is_file() else where}`.",
        )
    config = build_config(RunConfig, _values(folder, "run"), str(folder / CONFIG_FILE))
    return run_task(config, trajectory.task.prompt, trajectory.thread_id, where, output)
