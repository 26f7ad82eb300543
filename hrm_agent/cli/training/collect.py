"""`hrm-agent collect`: runs tasks and records their trajectories, without training."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from hrm_agent.basics.files import alone_in
from hrm_agent.cli.common.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.common.interrupts import resumed_by
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.prompts import refuse_unknown_prompts, tell_unreached_prompts
from hrm_agent.cli.common.run_folder import run_folder
from hrm_agent.config import compare_on_resume, save_config
from hrm_agent.models import DEFAULT_POLICY
from hrm_agent.rewards import load_rubric
from hrm_agent.training.config.commands import FREE_ON_RESUME, CollectConfig
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.rollout.eligibility import error_of, lost_tool_calls
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.training.tasks import load_tasks, refuse_unscored
from hrm_agent.training.tasks.sources import changed_sources, fixed_tasks, tasks_folder
from hrm_agent.training.tasks.spec import WITHOUT_BOX, kind_of
from hrm_agent.training.trackers import require_trackers, track_result
from hrm_agent.trajectory import RunStatus, Trajectory

__all__ = ["USUAL", "collect_run", "collected", "exit_code", "run", "tell_changed_sources"]

_SHOWN = 300
"""Maximum number of characters shown of an error of a tool."""
USUAL = (
    *("policy", "graph", "context", "configurable", "tasks", "rewards", "split", "count"),
    *(
        "prompts",
        "samples",
        "mode",
        "n",
        "concurrency",
        "temperature",
        "max-tokens",
        "top-p",
        "stand-in",
    ),
    *("environment", "store", "seed", "track"),
)
"""Flags that `collect --help` and `eval --help` show."""


def run(words: list[str]) -> int:
    parser = Parser(
        "collect", "Run tasks through a graph and keep the trajectories, without learning."
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="run folder; one on record is resumed [a new one]",
    )
    add_config(parser, CollectConfig, USUAL)
    arguments = parser.read(words)
    config = config_from(arguments, CollectConfig, "collect")
    if arguments.dry_run:
        print_config(config, "collect", as_json=arguments.json)
        return 0
    return collect_run(config, run_folder(arguments.out, "collect"), Output(as_json=arguments.json))


def collect_run(config: CollectConfig, folder: Path, output: Output) -> int:
    """Start or resume the collection and print a summary. Returns the exit code."""
    config = config.model_copy(update={"tasks": fixed_tasks(config.tasks, folder)})
    trajectories = collected(config, "collect", folder)
    statuses = Counter(trajectory.status.value for trajectory in trajectories)
    # metrics of the collection for trackers
    scored = [each for each in trajectories if each.rewards]
    means = {
        name: fmean(found)
        for name, found in (
            ("correct", [each.outcome for each in scored]),
            ("reward", [each.reward for each in scored]),
            ("sampled_tokens", [each.sampled_tokens for each in trajectories]),
            ("tool_calls", [len(each.own_tool_calls) for each in trajectories]),
        )
        if found
    }
    track_result(
        config,
        config,
        "collect",
        folder,
        remark,
        {"trajectories": len(trajectories), "statuses": dict(statuses), **means},
    )
    output.result(
        {"folder": str(folder), "trajectories": len(trajectories), "statuses": dict(statuses)}
    )
    output.say(
        f"{len(trajectories)} trajectories in {folder}: "
        + ", ".join(f"{n} {s}" for s, n in statuses.items())
    )
    output.next(
        f"hrm-agent history --store {folder}",
        f"hrm-agent eval {folder}",
        f"hrm-agent lint {folder}",
    )
    return exit_code(trajectories)


def exit_code(trajectories: Sequence[Trajectory]) -> int:
    """Return 1 if every rollout failed, lost a tool call to the infrastructure, or is without its
    expected reward, since the set-up is then wrong.

    Lines on stderr report how many rollouts failed, were lost, got no reward, or had a prompt that
    was too long for the policy's context window, each with the most frequent cause.
    """
    lost = [each for each in trajectories if lost_tool_calls(each)]
    _tell_lost(lost, len(trajectories))
    failed = [each for each in trajectories if each.status is RunStatus.FAILED]
    unscored = [
        each
        for each in trajectories
        if each.status is not RunStatus.FAILED and each.error and not each.rewards
    ]
    too_long = [
        each
        for each in trajectories
        if each.status is RunStatus.TRUNCATED and each.error and each.rewards
    ]
    causes = (
        (failed, "failed"),
        (unscored, "got no reward"),
        (too_long, "ended at the policy's context window"),
    )
    for found, what in causes:
        if found:
            ((error, at), count), *_ = Counter(
                (error_of(each), each.error_at) for each in found
            ).most_common(1)
            said = (
                f"Every rollout {what}"
                if len(found) == len(trajectories)
                else f"{len(found)} rollouts {what}"
            )
            if at:
                remark(f"{count} of {len(trajectories)} rollouts raised at {at}.")
            remark(f"{said}, most often by: {error}")
    without = {each.id for each in (*failed, *unscored, *lost)}
    return int(bool(trajectories) and len(without) == len(trajectories))


def _tell_lost(lost: Sequence[Trajectory], of: int) -> None:
    if not lost:
        return
    calls = [lost_tool_calls(each)[0] for each in lost]
    (why, _), *_ = Counter(call.stderr or call.content for call in calls).most_common(1)
    text = " ".join(why.split())[:_SHOWN]
    left_out = sum(not each.rewards for each in lost)
    remark(
        f"{len(lost)} of {of} rollouts lost a tool call to the infrastructure,"
        f" {left_out} of them are without a score, most often by: {text}"
    )
    if left_out:
        remark(
            "Those without a score count neither as right nor as wrong. Mend what failed, then run"
            " the same command with --out, or `resume`: it runs them again."
        )


def collected(config: CollectConfig, command: str, folder: Path) -> list[Trajectory]:
    """Trajectories of the run in `folder`. Recorded trajectories are read. For the missing ones,
    tasks are run.
    """
    require_trackers(config)
    refuse_unknown_prompts(config)
    tell_changed_sources(config.tasks, config.split, folder)
    where = tasks_folder(folder)
    tasks = load_tasks(
        config.tasks, split=config.split, seed=config.seed, count=config.count, folder=where
    )
    if config.rewards is not None:
        # a rubric that cannot be imported raises before anything runs
        load_rubric(config.rewards)
    elif command == "eval":
        refuse_unscored(tasks, config.tasks)
    correct = 0
    began = time.time()
    with alone_in(folder), progress(command, len(tasks) * config.samples) as advance:

        def done(trajectory: Trajectory) -> None:
            nonlocal correct
            correct += is_positive(outcome_of(trajectory))
            advance(f"{correct} correct" if config.rewards is None else "")

        compare_on_resume(config, command, folder, free=FREE_ON_RESUME)
        save_config(config, command, folder)
        with resumed_by(f"hrm-agent resume {folder}"):
            trajectories = asyncio.run(collect(config, folder, tasks=tasks, on_rollout=done))
    if trajectories and all(each.ended_at and each.ended_at < began for each in trajectories):
        remark(
            f"All rollouts were recorded in {folder} already, so none was run. Name another --out"
            " to run them again."
        )
    _tell_unasked(config.policy, trajectories)
    tell_unreached_prompts(config.prompts, trajectories)
    _tell_none_right(trajectories, by_verifier=config.rewards is None)
    return trajectories


def _tell_unasked(policy: str, trajectories: Sequence[Trajectory]) -> None:
    """Warn on stderr if a policy was given, but models that the graph names answered all calls."""
    answered = Counter(call.model for trajectory in trajectories for call in trajectory.own_calls)
    if policy == DEFAULT_POLICY or policy in answered or not answered:
        return
    (most, _), *_ = answered.most_common(1)
    said = (
        f"The policy {policy} was asked for nothing: {most}, a model that the graph names,"
        " answered."
    )
    remark(f"{said} --stand-in puts the policy in the place of a graph's own chat model.")


def _tell_none_right(trajectories: Sequence[Trajectory], *, by_verifier: bool) -> None:
    """Warn on stderr if no answer is right and the only reason may be that answers were cut off or
    are not in a box.

    `by_verifier`: True if the verifier of the tasks has scored them, and not a rubric.
    """
    scored = [each for each in trajectories if each.rewards]
    if not scored or any(each.outcome > 0 for each in scored):
        return
    limits = Counter(
        each.stop_reason.value
        for each in scored
        if each.status is RunStatus.TRUNCATED and each.stop_reason and not each.error
    )
    reasons: list[str] = []
    if 2 * (cut := limits.total()) >= len(scored):
        (most, _), *_ = limits.most_common(1)
        reasons.append(
            f"{cut} of {len(scored)} rollouts ended at a limit before they were done, most often"
            f" {most}: raise --max-tokens, or the graph's own limits (--context)."
        )
    done = [
        each.answer
        for each in scored
        if each.status is RunStatus.COMPLETED
        and each.answer
        and kind_of(each.task.family)[0] not in WITHOUT_BOX
    ]
    if by_verifier and done and not any("\\boxed" in answer for answer in done):
        reasons.append(
            "None has what the verifier of the tasks reads, <answer>\\boxed{...}</answer>: have the"
            " graph's prompt ask for it, teach the policy to write it (`train sft`), or score what"
            " is there (--rewards answer:last_number, say)."
        )
    if reasons:
        remark(" ".join(["No answer was right.", *reasons]))


def tell_changed_sources(tasks: str, split: str, folder: Path, *others: str) -> None:
    """Warn on stderr if the code or files of a run's tasks have changed since it started."""
    if changed := changed_sources(tasks, split, folder, *others):
        said = (
            f"changed since the run in {folder} began; tasks that are on record are not run again."
        )
        remark(f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} {said}")
