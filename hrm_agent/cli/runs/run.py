"""`hrm-agent run`: runs one task through a graph, and shows it node by node.

The options are stored with the thread. `hrm-agent resume THREAD` continues an interrupted run, in
any folder and on any machine. It uses the stored options, since a recorded answer is only valid for
the same request.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.arguments import (
    Parser,
    add_config,
    config_from,
    print_config,
    refuse_broken,
)
from hrm_agent.cli.common.index_check import refuse_missing_index
from hrm_agent.cli.common.interrupts import resumed_by
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.printer import Printer, indented
from hrm_agent.cli.common.prompts import tell_unreached_prompts
from hrm_agent.cli.common.run_folder import DEFAULT_STORE
from hrm_agent.config import (
    COMMAND_KEY,
    CONFIG_FILE,
    changed_keys,
    read_config_file,
    read_config_text,
    to_toml,
)
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.models import DEFAULT_POLICY
from hrm_agent.prompts import PROMPTS, PromptTexts, recorded_texts
from hrm_agent.runtime.episode import NO_ANSWER, Episode, EpisodeRunner, OnUpdate, policy_for
from hrm_agent.runtime.execution.conversation import (
    ANSWER_PATH,
    CONFIGURABLE,
    RECORDED,
    first_input,
)
from hrm_agent.runtime.execution.input_prompt import asked_by
from hrm_agent.runtime.execution.lazy_policy import policy_of_record
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.execution.run_context import (
    GIVEN_CONTEXT,
    RECURSION_LIMIT,
    options_on_record,
    refuse_unkept,
    run_context,
)
from hrm_agent.runtime.selection.choice import is_choice
from hrm_agent.runtime.selection.strategies import Mode, OnCandidate, Outcome, solve
from hrm_agent.runtime.settings import GraphSettings, RunSettings, SelectionSettings, holds_none
from hrm_agent.runtime.time_travel.read_history import history
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database.leases import COMMAND
from hrm_agent.training.config.commands import FREE_ON_RESUME
from hrm_agent.training.tasks import run_verifier_of, verifier_of
from hrm_agent.trajectory import TASK_INPUTS, RunStatus, StopReason, TaskRef, Trajectory
from hrm_agent.trajectory.call_facts import total_usage
from hrm_agent.trajectory.words import models_of, usage_text

__all__ = [
    "RunConfig",
    "as_given",
    "conclude",
    "context_given",
    "header",
    "keep_options",
    "kept_options",
    "known_config",
    "refuse_other_options",
    "refuse_unkept_options",
    "run",
    "run_task",
    "run_thread",
]


class RunConfig(SelectionSettings, RunSettings, GraphSettings):
    """Options of the run of one task."""

    policy: str = DEFAULT_POLICY
    """Model that answers: a built-in policy, a model folder, hf:NAME, scripted:FILE, or a
    provider's chat model.
    """
    seed: int | None = None
    """Base of the seeds of all model calls: equal commands sample equal tokens. none: a new random
    seed each time.
    """


def run(words: list[str]) -> int:
    """Return 0 if the run ended by itself or at a limit, 1 if it failed."""
    parser = Parser("run", "Run one task through a graph and record it.")
    parser.add_argument("task", nargs="?", help="the task, as text")
    parser.add_argument(
        "--input", metavar="JSON", help="the graph's whole input as JSON, or @FILE that holds it"
    )
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"where to record [{DEFAULT_STORE}]")
    parser.add_argument(
        "--thread", help="name of the thread; a thread on record is resumed [a new one]"
    )
    add_config(parser, RunConfig)
    arguments = parser.read(words, surplus="A task of several words goes in quotes.")
    config = config_from(arguments, RunConfig, "run")
    if arguments.dry_run:
        print_config(config, "run", as_json=arguments.json)
        return 0
    if arguments.input is None:
        if arguments.task is None:
            raise ConfigError(
                "No task was given.",
                "Give it as text, or the graph's input by --input JSON or --input @FILE.",
            )
        task = TaskRef(id="", family="command", prompt=arguments.task)
    else:
        data = _json_of(arguments.input)
        task = TaskRef(
            id="",
            family="command",
            prompt=arguments.task or asked_by(data).prompt,
            metadata={TASK_INPUTS: data},
        )
    refuse_broken(task.prompt)
    thread = arguments.thread or time.strftime("run-%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    return run_task(config, task, thread, arguments.store, Output(as_json=arguments.json))


def _json_of(given: str) -> Any:
    where = "--input"
    try:
        if given.startswith("@"):
            where = given[1:]
            given = Path(where).read_text(encoding="utf-8")
        return json.loads(given, parse_constant=_refuse_constant)
    except OSError as error:
        raise ConfigError(
            f"{where} cannot be read: {error.strerror}.", "Name a file of JSON: --input @FILE."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{where} is not JSON: {error}.", 'Write --input \'{"field": "text"}\'.'
        ) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def keep_options(store: RunStore, thread: str, config: RunConfig) -> None:
    """Store the options of a thread, which `hrm-agent resume` uses."""
    store.options.write(thread, to_toml(config, "run"))


def kept_options(store: RunStore, thread: str) -> dict[str, Any] | None:
    """Stored options of a thread (None if none are stored)."""
    text = store.options.read(thread)
    return (
        None
        if text is None
        else read_config_text(text, "run", f"what is kept of thread {thread!r}")
    )


def as_given(task: TaskRef, config: RunConfig) -> TaskRef:
    """Task of a thread, with the `configurable` and the prompts of `config` in its metadata."""
    given = {
        CONFIGURABLE: {**_without_form(task, CONFIGURABLE), **config.configurable},
        PROMPTS: config.prompts,
    }
    kept = {name: value for name, value in task.metadata.items() if name not in given}
    changed = {name: value for name, value in given.items() if value}
    return task.model_copy(update={"metadata": kept | changed})


def context_given(task: TaskRef, config: RunConfig) -> dict[str, Any]:
    """Run context with which a thread continues if its options are `config`."""
    return {**_without_form(task, GIVEN_CONTEXT), **config.context}


def _without_form(task: TaskRef, where: str) -> dict[str, Any]:
    """Options that a program gave the run but that are not in the stored options, since TOML has no
    null.
    """
    given = task.metadata.get(where, {}) if task.family == RECORDED else {}
    return {name: value for name, value in given.items() if holds_none(value)}


def refuse_unkept_options(
    task: TaskRef,
    thread: str,
    config: RunConfig,
    unrecorded: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Raise `RunError` if a program gave the run an option that is neither recorded nor given now."""
    if task.family == RECORDED:
        more = unrecorded or {}
        given = {
            name: {*getattr(config, name), *more.get(name, {})}
            for name in (CONFIGURABLE, GIVEN_CONTEXT)
        }
        refuse_unkept(task, thread, given)


def refuse_other_options(
    store: RunStore, thread: str, config: RunConfig, changed: Collection[str] = ()
) -> None:
    """Raise `RunError` if options differ from those with which the thread was started. `changed`:
    options that may differ.
    """
    kept = kept_options(store, thread)
    free = FREE_ON_RESUME | {*changed}
    if kept is not None and (changes := changed_keys(config, kept, f"of thread {thread!r}", free)):
        raise RunError(
            f"Thread {thread!r} was started with another configuration ({changes}).",
            f"Resume it as it was by `hrm-agent resume {thread}`, or name another --thread.",
        )


def run_task(
    config: RunConfig,
    asked: TaskRef,
    thread: str,
    where: str,
    output: Output,
    *,
    answer: Any = NO_ANSWER,
    unrecorded: Mapping[str, Mapping[str, Any]] | None = None,
    changed: Collection[str] = (),
) -> int:
    """Start or resume `thread`, print its progress, and return the exit code. The options are those
    of `run_thread`.
    """
    given: dict[str, Any] = {"answer": answer, "unrecorded": unrecorded, "changed": changed}
    printer = Printer(output)

    def over(candidate: Trajectory) -> None:
        output.result({"event": "candidate", **header(candidate)})
        reason = candidate.stop_reason.value if candidate.stop_reason else ""
        output.say(f"{candidate.thread_id}  {candidate.status.value} ({reason})", style="bold")
        output.say(indented(candidate.error or candidate.answer or "no answer"))

    outcome = run_thread(config, asked, thread, where, printer.update, over, **given)
    tell_unreached_prompts(config.prompts, (outcome.trajectory, *outcome.candidates))
    if not printer.updates and config.mode == "single":
        # No node ran. Explain why: the graph had ended, so its result is only shown, or the thread
        # waits for an answer.
        if outcome.trajectory.status is RunStatus.COMPLETED:
            output.say("No node was run: the graph is at its end.", style="yellow")
        if outcome.trajectory.stop_reason is StopReason.INTERRUPT:
            with open_store(where, create=False) as store:
                if outcome.trajectory.thread_id in store.threads_with_checkpoints():
                    printer.questions(history(store, outcome.trajectory.thread_id).last.questions)
    return conclude(output, outcome.trajectory, where, outcome if config.mode != "single" else None)


def run_thread(
    config: RunConfig,
    asked: TaskRef,
    thread: str,
    where: str,
    on_update: OnUpdate | None = None,
    on_candidate: OnCandidate | None = None,
    *,
    answer: Any = NO_ANSWER,
    unrecorded: Mapping[str, Mapping[str, Any]] | None = None,
    changed: Collection[str] = (),
    loop: asyncio.Runner | None = None,
) -> Outcome:
    """Start or resume `thread`. `answer`: answer to the question for which the thread waits.

    `unrecorded`: see `Episode`. `changed`: keys of `config` that may differ from those that the
    thread was started with. `loop`: event loop that several threads share, since a graph's clients
    are bound to the loop in which they started.
    """
    more = unrecorded or {}
    named = {**as_given(asked, config).metadata.get(CONFIGURABLE, {}), **more.get(CONFIGURABLE, {})}
    # an unknown graph must raise before the store is opened, which would create the store
    graph = load_graph(config.graph, named)
    PromptTexts(config.prompts)  # reports an unknown name
    with open_store(where, allow=config.allowed_types) as store, store.lease(thread, COMMAND):
        known = store.journal.find_trajectory(thread)
        own = {**asked.metadata, **config.task_options()}
        task = (
            as_given(known.task, config)
            if known
            else asked.model_copy(update={"id": thread, "metadata": own})
        )
        if task.prompt != asked.prompt:
            raise RunError(
                f"Thread {thread!r} is on record with another task: {task.prompt!r}.",
                f"Leave out --thread for a new one; `hrm-agent chat --thread {thread}` resumes the"
                " conversation.",
            )
        verify = verifier_of(task, store.folder)
        given: dict[str, Any] = {"context": context_given(task, config), "unrecorded": more}
        episode = Episode(
            task,
            thread,
            graph=config.graph,
            seed=config.seed,
            verify=verify,
            verify_run=run_verifier_of(task),
            **given,
        )
        # if nothing is recorded, nothing has run with the stored options, so they may be replaced
        if known is not None:
            refuse_other_options(store, thread, config, changed)
            refuse_unkept_options(task, thread, config, more)
        else:
            refuse_missing_index(run_context(graph, config.context, config.graph), config.context)
            first_input(graph, task, thread)
        backend = policy_for(config.policy, config.graph, stand_in=config.stand_in)
        if config.mode != "single" and answer is not NO_ANSWER:
            raise RunError(
                f"Thread {thread!r} has the result of --mode, and does not wait for an answer.",
                f"Answer the run that asks, `hrm-agent resume {thread}/0 --answer VALUE`, then resume"
                f" {thread}.",
            )

        async def go() -> Outcome:
            async with EpisodeRunner.open(store, config.policy, config, backend=backend) as runner:
                keep_options(store, thread, config)
                runner = replace(runner, takes_up_stopped=True)
                if config.mode != "single":
                    return await _by_mode(config, runner, episode, on_candidate)
                trajectory = await runner.run(episode, on_update, answer=answer)
                return Outcome(trajectory, (trajectory,), thread)

        with resumed_by(f"hrm-agent resume {thread} --store {where}"):
            return (loop.run if loop else asyncio.run)(go())


async def _by_mode(
    config: RunConfig, runner: EpisodeRunner, episode: Episode, on_candidate: OnCandidate | None
) -> Outcome:
    def keep(candidate: Episode) -> None:
        own = config.model_copy(update={"mode": "single", "seed": candidate.seed})
        keep_options(runner.store, candidate.thread_id, own)

    mode = Mode(config.mode, config.n, config.width)
    return await solve(runner, episode, mode, keep=keep, on_candidate=on_candidate)


def known_config(
    store: RunStore, trajectory: Trajectory | None, at: str = "last"
) -> dict[str, Any]:
    """Options with which a thread was run: its stored options, or those of its run folder, or those
    in its record.

    `at`: moment whose options are returned, since a program may give each turn other options.
    """
    if trajectory is None:
        return {}
    own = kept_options(store, trajectory.thread_id)
    if own is not None:
        return own
    place = (
        ""
        if at == "last"
        else history(store, trajectory.thread_id, branches=False).select(at).checkpoint_id
    )
    said = {"graph": trajectory.graph, "policy": policy_of_record(trajectory)}
    # without stored options, the record has those of the graph
    given = trajectory.task.metadata
    recorded = {name: given[name] for name in (ANSWER_PATH,) if name in given}
    if trajectory.task.family == RECORDED and RECURSION_LIMIT in given:
        recorded[RECURSION_LIMIT] = given[RECURSION_LIMIT]
    options = options_on_record(store, trajectory.thread_id, trajectory.task, place)
    recorded |= {GIVEN_CONTEXT: options.context or {}, CONFIGURABLE: options.configurable}
    for name in (CONFIGURABLE, GIVEN_CONTEXT):
        recorded[name] = {
            key: value for key, value in recorded.get(name, {}).items() if not holds_none(value)
        }
    said |= recorded
    # the runs of an optimisation have prompts of their own
    texts = {"prompts": recorded_texts(given)}
    if trajectory.task.family == RECORDED:
        return said | texts
    of_run = store.folder / CONFIG_FILE
    if trajectory.run_id and of_run.exists():
        command = str(tomllib.loads(of_run.read_text(encoding="utf-8")).get(COMMAND_KEY))
        values = read_config_file(of_run, command)
        said |= {
            key: value
            for key, value in values.items()
            if key in RunConfig.model_fields and key != "policy"
        }
        if not is_choice(trajectory.graph):  # a candidate is a single run
            said["mode"] = "single"
    return said | texts


def conclude(
    output: Output, trajectory: Trajectory, where: str, outcome: Outcome | None = None
) -> int:
    """Print the end of a run, and its candidates if it was chosen from several. Returns the exit
    code.
    """
    runs = [trajectory, *(outcome.candidates if outcome else ())]
    used = total_usage(run.used for run in runs)
    told = {"models": trajectory.models, "used": used.model_dump(mode="json")}
    output.result(
        {"event": "end", **header(trajectory), **told, **(_chosen(outcome) if outcome else {})}
    )
    reason = trajectory.stop_reason.value if trajectory.stop_reason else ""
    output.say(f"\n{trajectory.status.value} ({reason})", style="bold")
    at_limit = (
        trajectory.error_at
        if trajectory.status is RunStatus.TRUNCATED and trajectory.error
        else None
    )
    output.say(
        (trajectory.error or trajectory.answer or "no answer")
        + (f" ({at_limit})" if at_limit else "")
    )
    if outcome is not None:
        what = f"chosen: {outcome.chosen}, {outcome.reason}" if outcome.chosen else "none is chosen"
        count = len(outcome.candidates)
        output.say(f"\n{count} run{'s' * (count != 1)}, {what}")
    answered = any(run.own_calls for run in runs)
    failed = trajectory.status in (RunStatus.FAILED, RunStatus.RUNNING) or any(
        run.failed_calls for run in runs
    )
    without = "no model has answered" if failed else "no model was asked"
    cost = f"{models_of(trajectory)}, {usage_text(used)}" if answered else without
    output.say(f"\nthread {trajectory.thread_id}, {cost}. Next:")
    for waiting in (run for run in runs if run.stop_reason is StopReason.INTERRUPT):
        output.say(f"  hrm-agent resume {waiting.thread_id} --answer VALUE --store {where}")
    unfinished = trajectory.status in (RunStatus.RUNNING, RunStatus.FAILED)
    if unfinished or trajectory.stop_reason is StopReason.RECURSION_LIMIT:
        output.say(f"  hrm-agent resume {trajectory.thread_id} --store {where}")
    output.say(f"  hrm-agent show {trajectory.id} --store {where}")
    output.say(f"  hrm-agent history {trajectory.thread_id} --store {where}")
    return 1 if trajectory.status is RunStatus.FAILED else 0


def header(trajectory: Trajectory) -> dict[str, Any]:
    """Trajectory without its calls, as JSON."""
    return trajectory.model_dump(mode="json", exclude={"calls", "tool_calls", "failed_calls"})


def _chosen(outcome: Outcome) -> dict[str, Any]:
    candidates = [candidate.thread_id for candidate in outcome.candidates]
    return {"chosen": outcome.chosen, "reason": outcome.reason, "candidates": candidates}
