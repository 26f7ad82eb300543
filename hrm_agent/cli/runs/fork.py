"""`hrm-agent fork`: makes forks of a thread at a moment, as one group. With --run, they run at
once.

A fork has the options of its source thread, except for the seed and for options that flags change.
`hrm-agent resume` continues a fork like any thread.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from hrm_agent.cli.common.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.printer import Printer
from hrm_agent.cli.common.prompts import tell_unreached_prompts
from hrm_agent.cli.common.run_folder import DEFAULT_STORE, existing_store
from hrm_agent.cli.runs.run import (
    RunConfig,
    as_given,
    context_given,
    keep_options,
    known_config,
    refuse_unkept_options,
)
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.runtime.episode import NO_ANSWER, Episode, EpisodeRunner, policy_for
from hrm_agent.runtime.execution.conversation import ANSWER_PATH
from hrm_agent.runtime.selection.choice import is_choice
from hrm_agent.runtime.time_travel.fork import Edit, fork, history
from hrm_agent.store import RunStore
from hrm_agent.store.database.leases import COMMAND
from hrm_agent.store.values.damage import in_a_line
from hrm_agent.training.tasks import verifier_of
from hrm_agent.trajectory import RunStatus, Trajectory

__all__ = ["fork_thread", "is_begun", "run", "run_forks"]

_COLUMNS = ("thread", "status", "reward", "calls", "tokens", "answer")


def run(words: list[str]) -> int:
    """Return 0. With --run, return 1 if every fork failed."""
    parser = Parser(
        "fork", "Branch off from a moment of a thread: one or several new threads, as one group."
    )
    parser.add_argument("thread", help="id of a thread, or of its trajectory")
    parser.add_argument(
        "--at",
        default="last",
        metavar="MOMENT",
        help="see `history`: 3, before:NODE, after:NODE [last]",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="CHANNEL=JSON",
        help="new value of a state channel",
    )
    parser.add_argument(
        "--message",
        action="append",
        default=[],
        metavar="ID=TEXT",
        help="new text of a message, by its id or index",
    )
    parser.add_argument(
        "--tool", action="append", default=[], metavar="ID=TEXT", help="new result of a tool call"
    )
    parser.add_argument(
        "--edit",
        metavar="FILE",
        help="the edit as JSON: messages, tools, values, as_node; `-` reads standard input",
    )
    parser.add_argument(
        "--as-node",
        metavar="NODE",
        help="node that the edit is attributed to [those that led to the moment]",
    )
    parser.add_argument("--count", type=int, default=1, help="number of forks [1]")
    parser.add_argument("--name", help="name of the group [THREAD/fork-1 and so on]")
    parser.add_argument("--run", action="store_true", help="run them now")
    parser.add_argument(
        "--store", default=DEFAULT_STORE, help=f"store of the thread [{DEFAULT_STORE}]"
    )
    add_config(parser, RunConfig)
    arguments = parser.read(words)
    in_file = _edit_in_file(arguments.edit) if arguments.edit is not None else Edit()
    edit = Edit(
        values={
            **in_file.values,
            **{name: _json(text, name) for name, text in _pairs(arguments.set, "--set")},
        },
        messages={**in_file.messages, **dict(_pairs(arguments.message, "--message"))},
        tools={**in_file.tools, **dict(_pairs(arguments.tool, "--tool"))},
        as_node=arguments.as_node or in_file.as_node,
    )
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store) as store:
        known = store.journal.find_trajectory(arguments.thread)
        config = config_from(arguments, RunConfig, "run", known_config(store, known, arguments.at))
        if arguments.dry_run:
            print_config(config, "run", as_json=arguments.json)
            return 0
        if known is None and not (vars(arguments)["config:graph"] or arguments.config):
            config = config.model_copy(update={"graph": ""})
    with existing_store(arguments.store, config.allowed_types, writes=True) as store:
        # without a graph among the fork's options, `resume` could not continue the fork
        if not config.graph:
            # report a missing thread first
            history(store, arguments.thread, branches=False)
            raise RunError(
                "The graph of this thread is not recorded.",
                "Name the graph: --graph package.module:attribute.",
            )
        options = {"edit": edit, "count": arguments.count, "name": arguments.name}
        episodes = fork_thread(store, arguments.thread, arguments.at, config, **options)
        if not arguments.run:
            threads = [episode.thread_id for episode in episodes]
            output.result({"group": episodes[0].group_id, "threads": threads})
            output.say(f"Forked, not run yet: {', '.join(threads)}. Next:")
            output.say(f"  hrm-agent resume {threads[0]} --store {arguments.store}")
            return 0
        trajectories = run_forks(store, config, episodes, output)
    tell_unreached_prompts(config.prompts, trajectories)
    group = trajectories[0].group_id
    output.result(
        {"group": group, "trajectories": [_summary(trajectory) for trajectory in trajectories]}
    )
    output.table(
        _COLUMNS,
        [tuple(_summary(trajectory).values()) for trajectory in trajectories],
        title=f"Group {group}",
    )
    output.say(f"\nNext:\n  hrm-agent history {arguments.thread} --store {arguments.store}")
    return 1 if all(trajectory.status is RunStatus.FAILED for trajectory in trajectories) else 0


def is_begun(store: RunStore, known: Trajectory) -> bool:
    """True unless the thread is a fork that was recorded but not run yet."""
    if known.forked_from is None or store.journal.trajectory(known.id).own_calls:
        return True
    newest = history(store, known.thread_id, branches=False).last
    return newest.checkpoint_id != known.forked_from.checkpoint_id and newest.source != "update"


def fork_thread(
    store: RunStore, thread: str, at: str, config: RunConfig, **options: Any
) -> list[Episode]:
    """Fork a thread with the options of `config`, and store these options with each fork."""
    known = store.journal.find_trajectory(thread)
    if known is not None and is_choice(known.graph):
        raise RunError(
            f"Thread {known.thread_id!r} has the result of --mode. The steps of the task are in"
            " its runs.",
            f"Fork one of the runs, such as {known.thread_id}/0.",
        )
    if config.mode != "single":
        raise ConfigError(
            f"--mode {config.mode} cannot be used for a fork, which is a single run.",
            "Leave out --mode. For several forks, give --count.",
        )

    def keep(episode: Episode) -> None:
        own = config.model_copy(update={"seed": episode.seed})
        keep_options(store, episode.thread_id, own)

    task = None
    if known is not None:
        given = as_given(known.task, config).metadata
        kept = {name: value for name, value in given.items() if name != ANSWER_PATH}
        task = known.task.model_copy(update={"metadata": {**config.task_options(), **kept}})
    return fork(
        store,
        thread,
        at,
        seed=config.seed,
        graph=config.graph,
        task=task,
        context=context_given(known.task, config) if known is not None else config.context,
        verify=verifier_of(known.task, store.folder) if known is not None else None,
        policy=config.policy,
        keep=keep,
        **options,
    )


def run_forks(
    store: RunStore,
    config: RunConfig,
    episodes: list[Episode],
    output: Output,
    answer: Any = NO_ANSWER,
) -> list[Trajectory]:
    """Run forks in parallel. If there is only one fork, it is shown node by node."""
    for episode in episodes:
        refuse_unkept_options(episode.task, episode.thread_id, config, episode.unrecorded)
    backend = policy_for(config.policy, config.graph, stand_in=config.stand_in)

    async def go() -> list[Trajectory]:
        async with EpisodeRunner.open(store, config.policy, config, backend=backend) as runner:
            if len(episodes) == 1:
                return [await runner.run(episodes[0], Printer(output).update, answer=answer)]
            return await runner.run_all(episodes)

    with ExitStack() as stack:
        for episode in episodes:
            stack.enter_context(store.lease(episode.thread_id, COMMAND))
        return asyncio.run(go())


def _edit_in_file(name: str) -> Edit:
    """Read an edit from a file, for edits that are long or made by another program."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        return _EditFile.model_validate_json(text).edit()
    except OSError as error:
        raise ConfigError(
            f"--edit {name}: {error.strerror or error}.", "Name a file, or - for standard input."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"--edit {name}: {in_a_line(error)}.", f"Write it as {_EDIT_FORM}."
        ) from error


_EDIT_FORM = (
    '{"messages": {"ID": "TEXT"}, "tools": {"ID": "TEXT"}, "values": {"CHANNEL": JSON}, "as_node":'
    " null}"
)


class _EditFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    messages: dict[str, str] = {}
    tools: dict[str, str] = {}
    values: dict[str, Any] = {}
    as_node: str | None = None

    def edit(self) -> Edit:
        return Edit(
            values=self.values, messages={**self.messages}, tools=self.tools, as_node=self.as_node
        )


def _pairs(given: list[str], flag: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{flag}: {pair!r} has no `=`.", f"Write {flag} {pair}=VALUE.")
        pairs.append((name, value))
    return pairs


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"--set {name}: {text!r} is not JSON: {error}.",
            f"Quote a text: --set '{name}=\"{text}\"'.",
        ) from error


def _summary(trajectory: Trajectory) -> dict[str, Any]:
    reason = trajectory.stop_reason.value if trajectory.stop_reason else ""
    values = (
        trajectory.thread_id,
        f"{trajectory.status.value} ({reason})",
        trajectory.rewards.get("correct"),
        len(trajectory.own_calls),
        trajectory.used.output_tokens,
        trajectory.error or trajectory.answer,
    )
    return dict(zip(_COLUMNS, values, strict=True))
