"""`hrm-agent replay`: replays stored runs from their recorded answers, with the current graphs.

No model is loaded and no sandbox is started, unless `--live-after` continues a run with a policy.
With `--check`, the command is a regression test of the graphs: all ended runs of a store are
replayed, and the exit code is 1 if one of them differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.arguments import Parser, add_graph_options
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.own_types import add_own_types, allowed_names
from hrm_agent.cli.common.prompts import tell_unreached_prompts
from hrm_agent.cli.common.run_folder import DEFAULT_STORE, existing_store, thread_name
from hrm_agent.config import secret_in
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, parse_isolation
from hrm_agent.environment.open import opened_environment
from hrm_agent.errors import ConfigError, HrmError, RunError
from hrm_agent.prompts import PromptTexts
from hrm_agent.prompts_file import read_prompts_file
from hrm_agent.runtime.episode import EpisodeRunner, policy_for
from hrm_agent.runtime.execution.conversation import RECORDED
from hrm_agent.runtime.execution.lazy_policy import policy_of_record
from hrm_agent.runtime.replay.effects import Effect
from hrm_agent.runtime.replay.ignored_paths import IgnoredPath
from hrm_agent.runtime.replay.player import Replay, ReplayVerdict, replay, replay_async
from hrm_agent.runtime.replay.request_diff import looks_drawn, request_diff
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, Sampling, Trajectory

__all__ = ["in_words", "recorded_sampling", "run"]

_MOST_SHOWN = 20
"""Maximum number of ignored differences that are listed."""
_OTHER_SOURCES = (
    "`hrm_agent.draws.drawn` records what it is given, from `secrets`, `os.urandom`, numpy or a"
    " monotonic clock; one PYTHONHASHSEED for the run and its replay keeps the order of sets."
)


def run(words: list[str]) -> int:
    """Return 0 if every replay gave the recorded result, else 1. With `--live-after`, return 1 if
    the continued run failed, else 0.
    """
    parser = Parser(
        "replay",
        "Replay stored runs from their recorded answers, with the graphs as they are now. No model"
        " is asked and no tool is run. The nodes' own code runs again, with what it does outside:"
        " files, connections, processes.",
    )
    parser.add_argument(
        "trajectory", nargs="?", type=thread_name, help="id of the trajectory, or of its thread"
    )
    parser.add_argument(
        "--check", metavar="STORE", help="replay every finished run of a store or a run folder"
    )
    parser.add_argument(
        "--run", metavar="RUN", help="with --check: only the trajectories of this run"
    )
    parser.add_argument(
        "--store", default=DEFAULT_STORE, help=f"store of the trajectory [{DEFAULT_STORE}]"
    )
    parser.add_argument(
        "--graph",
        help="another graph, as package.module:attribute [the recorded one, as it is now]",
    )
    parser.add_argument(
        "--live-after",
        action="store_true",
        help="where it asks something new, continue with a policy on a new thread",
    )
    parser.add_argument(
        "--no-effects",
        action="store_true",
        help="end a replay where a node itself would write a file, connect, or start a process",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        type=IgnoredPath.parse,
        metavar="PATH",
        help=(
            "differences at this path are told and do not count: messages[*].additional_kwargs.x, "
            "request.messages[0].content; may be given several times"
        ),
    )
    parser.add_argument(
        "--policy", help="with --live-after: the policy that answers [the recorded policy]"
    )
    parser.add_argument("--thread", help="with --live-after: name of the new thread")
    parser.add_argument(
        "--isolation",
        type=parse_isolation,
        help="with --live-after: the lowest isolation that is accepted [L2]",
    )
    parser.add_argument(
        "--environment", help="with --live-after: where model-written code runs [this machine]"
    )
    add_graph_options(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts file whose texts replace prompts of the graph, over [those of the run]",
    )
    add_own_types(parser)
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    if (arguments.trajectory is None) is (arguments.check is None):
        raise ConfigError(
            "No run was named.",
            "`hrm-agent replay TRAJECTORY`, or `hrm-agent replay --check STORE` for all.",
        )
    # Refuse flags that would have no effect, since they show that the user expects something else,
    # such as a continued run.
    live = {
        name: getattr(arguments, name) for name in ("policy", "thread", "isolation", "environment")
    }
    idle = (
        []
        if arguments.live_after
        else [(name, "--live-after") for name, given in live.items() if given]
    )
    idle += [("run", "--check")] if arguments.run and arguments.check is None else []
    if idle:
        raise ConfigError(
            f"--{idle[0][0]} needs {idle[0][1]}.", f"Add {idle[0][1]}, or leave it out."
        )
    if (
        arguments.live_after
        and (name := secret_in({**arguments.configurable, **arguments.context})) is not None
    ):
        raise ConfigError(
            f"The option {name!r} is named like a secret, or has an address with a password, and"
            " --live-after would record it.",
            "Let the graph read it from an environment variable.",
        )
    if arguments.check is not None and arguments.live_after:
        raise ConfigError(
            "--check cannot be combined with --live-after.",
            "Name the run to continue: `hrm-agent replay RUN --live-after`.",
        )
    if arguments.check is not None:
        return _check(arguments, output)
    with existing_store(
        arguments.store, allowed_names(arguments), writes=bool(arguments.live_after)
    ) as store:
        if arguments.live_after:
            return _live(store, arguments, output)
        found = replay(store, arguments.trajectory, graph=arguments.graph, **_options(arguments))
        _show(store, found, output)
        _tell_unreached(store, found, arguments)
    return 0 if found.equal else 1


def _options(arguments: Any) -> dict[str, Any]:
    """Options of every replay of the command."""
    return {
        "refuse_effects": arguments.no_effects,
        "ignore": arguments.ignore,
        "configurable": arguments.configurable,
        "context": arguments.context,
        "prompts": read_prompts_file(arguments.prompts) if arguments.prompts else None,
    }


# one run


def _live(store: RunStore, arguments: Any, output: Output) -> int:
    trajectory = store.journal.trajectory(arguments.trajectory)

    async def go() -> Replay:
        async with _runner(store, trajectory, arguments) as runner:
            options = {"graph": arguments.graph, "thread": arguments.thread, **_options(arguments)}
            return await replay_async(store, trajectory.id, live_after=runner, **options)

    found = asyncio.run(go())
    _show(store, found, output)
    _tell_unreached(store, found, arguments)
    if found.live is None:
        return 0 if found.equal else 1
    return 1 if found.live.status is RunStatus.FAILED else 0


@asynccontextmanager
async def _runner(
    store: RunStore, trajectory: Trajectory, arguments: Any
) -> AsyncGenerator[EpisodeRunner]:
    """Runner that continues a run. By default, it uses the recorded policy and sampling parameters."""
    graph = arguments.graph or trajectory.graph
    name = arguments.policy or policy_of_record(trajectory)
    sampling = recorded_sampling(trajectory)
    least = arguments.isolation or DEFAULT_ISOLATION
    async with opened_environment(arguments.environment, isolation=least) as environment:
        yield EpisodeRunner(store, policy_for(name, graph), name, environment, sampling)


def recorded_sampling(trajectory: Trajectory) -> Sampling:
    """Newest recorded temperature and top-p, and the highest recorded token limit. Values that no
    request had are defaults.
    """
    used = [
        held
        for call in trajectory.calls
        if (held := call.sampling or call.sampling_sent) is not None
    ]
    if not used:
        return Sampling()
    limits = [one.max_tokens for one in used if one.max_tokens is not None]
    said = {
        "temperature": used[-1].temperature,
        "top_p": used[-1].top_p,
        "max_tokens": max(limits, default=None),
    }
    return Sampling.model_validate(
        {name: value for name, value in said.items() if value is not None}
    )


def _show(store: RunStore, found: Replay, output: Output) -> None:
    lines = _difference(store, found)
    output.result(
        {**_row(found), "difference": lines, "live": found.live.id if found.live else None}
    )
    output.table(
        ("trajectory", found.trajectory.id),
        [
            ("thread", found.trajectory.thread_id),
            ("graph", found.graph),
            ("compared", _compared(found.checkpoints, found.tasks, found.writes)),
            ("verdict", in_words(found)),
        ],
    )
    for line in lines:
        output.say(f"  {line}", style={"+": "green", "-": "red"}.get(line[:1], ""))
    if found.not_compared:
        output.say(f"Not compared: {'; '.join(found.not_compared)}.")
    if _may_be_drawn(found, lines):
        output.say(_how_to_record_draws(store, found.trajectory))
    _say_ignored(found.ignored, found.unmatched, output)
    _say_effects(found.effects, output, refused=found.verdict is ReplayVerdict.REFUSED)
    if found.unused and not found.equal:
        output.say(f"{found.unused} recorded answers were not used.")
    if found.live is not None:
        said = found.live.error or found.live.answer or "no answer"
        output.say(
            f"\nContinued as thread {found.live.thread_id}: {found.live.status.value}. {said}"
        )
        output.say(f"  hrm-agent show {found.live.id} --store {store.url}")


def _tell_unreached(store: RunStore, found: Replay, arguments: Any) -> None:
    """Report the texts of --prompts that neither the record nor the first other request has."""
    if arguments.prompts:
        texts = read_prompts_file(arguments.prompts)
        if found.divergence is not None:
            asked = found.divergence.asked.messages
            request = [{"type": each.type, "content": each.content} for each in asked]
            seen = PromptTexts(texts).names_in(request)
            texts = {name: text for name, text in texts.items() if name not in seen}
        tell_unreached_prompts(texts, [store.journal.trajectory(found.trajectory.id)])


def _tell_unreached_by_all(store: RunStore, arguments: Any) -> None:
    """Report the texts of --prompts that no run of the store has."""
    if arguments.prompts:
        texts = read_prompts_file(arguments.prompts)
        tell_unreached_prompts(texts, store.journal.trajectories(run_id=arguments.run))


def _compared(checkpoints: int, tasks: int, writes: int) -> str:
    return f"{checkpoints} checkpoints, {tasks} tasks, {writes} writes"


def _may_be_drawn(found: Replay, difference: Sequence[str]) -> bool:
    return not found.equal and (found.drawn or looks_drawn(difference))


def _how_to_record_draws(store: RunStore, trajectory: Trajectory) -> str:
    """Hint for a difference that may come from a time, an id or a random number that was not
    recorded.
    """
    looks = "The difference may be a time, an id or a random number that a node took anew"
    if trajectory.task.family == RECORDED and not store.journal.draws_of(trajectory):
        return (
            f"{looks}: none is on record. Record the next run with them, `hrm-agent record --draws"
            " -- COMMAND` (or HRM_AGENT_DRAWS=1, or record(..., draws=True)). Where that was done,"
            f" it is from a source that is not recorded by itself: {_OTHER_SOURCES} For this run,"
            " --ignore leaves a part out, such as request.messages[0].content."
        )
    return (
        f"{looks}, from a source that is not recorded by itself: {_OTHER_SOURCES} Or leave it out"
        " by --ignore, such as request.messages[0].content."
    )


def _say_ignored(ignored: Sequence[str], unmatched: Sequence[str], output: Output) -> None:
    for difference in ignored[:_MOST_SHOWN]:
        output.say(f"Ignored: {difference}")
    if len(ignored) > _MOST_SHOWN:
        output.say(f"Ignored: {len(ignored) - _MOST_SHOWN} more differences.")
    for path in unmatched:
        output.say(f"--ignore {path} matched nothing.", style="yellow")


def _say_effects(effects: Sequence[Effect], output: Output, *, refused: bool) -> None:
    if effects and not refused:
        output.say("Done again outside of the record (--no-effects refuses it):")
        for effect in effects:
            output.say(f"  node {effect.node}: it {effect.what}")


def _difference(store: RunStore, found: Replay) -> list[str]:
    if found.divergence is not None:
        return request_diff(store, found.divergence.asked, found.divergence.nearest)
    return [
        line
        for change in found.changes
        for line in (f"{change.channel} {change.part}".rstrip(), *change.lines)
    ]


def in_words(found: Replay) -> str:
    """Verdict as text for people."""
    if found.verdict is ReplayVerdict.REFUSED:
        return f"refused: node {found.effects[0].node}: it {found.effects[0].what}"
    if found.divergence is not None:
        what = "runs a tool" if found.divergence.asked.tool_call is not None else "asks the model"
        new = (
            "differently than recorded"
            if found.divergence.nearest is not None
            else "where the record has nothing"
        )
        return f"step {found.divergence.step}, node {found.divergence.node}: it {what} {new}"
    if found.equal:
        counts = ((found.renamed_ids, "generated id"), (len(found.ignored), "ignored difference"))
        apart = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
        return "equal" + (f", apart from {' and '.join(apart)}" if apart else ", byte for byte")
    where = ", ".join(f"{change.channel} {change.part}".rstrip() for change in found.changes)
    since = f" from step {found.step} on" if found.step is not None else ""
    differs = (
        f"step {found.step} differs: {where}"
        if found.on_the_way
        else f"the state differs{since}: {where}"
    )
    return "; ".join(part for part in (found.ended, differs if where else "") if part)


def _row(found: Replay) -> dict[str, Any]:
    return {
        "trajectory": found.trajectory.id,
        "thread": found.trajectory.thread_id,
        "graph": found.graph,
        "verdict": found.verdict.value,
        "words": in_words(found),
        "node": found.divergence.node if found.divergence else None,
        "step": found.divergence.step if found.divergence else found.step,
        "checkpoints": found.checkpoints,
        "tasks": found.tasks,
        "writes": found.writes,
        "not_compared": list(found.not_compared),
        "renamed_ids": found.renamed_ids,
        "ignored": list(found.ignored),
        "unmatched": list(found.unmatched),
        "unused": found.unused,
        "effects": [asdict(effect) for effect in found.effects],
    }


# all runs of a store


def _refuse_thread(where: str) -> None:
    if (
        "://" in where
        or Path(where).exists()
        or Path(where).suffix == ".db"
        or len(Path(where).parts) > 1
    ):
        return  # opening the path raises a clearer error
    raise ConfigError(
        f"There is no store at {where}.",
        "--check takes a store or a run folder, and replays all of it; one run alone is replayed"
        f" by `hrm-agent replay {where}`, with --store STORE where it is not in {DEFAULT_STORE}.",
    )


def _check(arguments: Any, output: Output) -> int:
    _refuse_thread(arguments.check)
    checked = 0
    rows = list[dict[str, Any]]()
    run_id = arguments.run
    drawn = ""
    again: dict[Effect, None] = {}
    ignored: dict[str, None] = {}
    unmatched = {path.text for path in arguments.ignore}
    renamed = 0
    counts = {"checkpoints": 0, "tasks": 0, "writes": 0}
    not_compared: list[str] = []
    options = {"graph": arguments.graph, **_options(arguments)}
    with existing_store(arguments.check, allowed_names(arguments)) as store:
        for header in store.journal.headers():
            if header.status is RunStatus.RUNNING or run_id not in (None, header.run_id):
                continue
            checked += 1
            row, found = _row_of(store, header, options)
            again |= {Effect(**effect): None for effect in row.get("effects", ())}
            ignored |= dict.fromkeys(row.get("ignored", ()))
            unmatched &= set(row.get("unmatched", unmatched))
            renamed += row.get("renamed_ids", 0)
            counts = {name: count + row.get(name, 0) for name, count in counts.items()}
            if row.get("not_compared"):
                not_compared.append(f"of {header.id}, {'; '.join(row['not_compared'])}")
            if row["verdict"] != ReplayVerdict.EQUAL:
                rows.append(row)
                output.say(f"{header.id}  {header.thread_id}  {row['words']}")
                if (
                    not drawn
                    and found is not None
                    and _may_be_drawn(found, _difference(store, found))
                ):
                    drawn = f"{header.thread_id}: {_how_to_record_draws(store, found.trajectory)}"
        if not checked:  # without runs, the test has not passed
            of_run = f" of the run {run_id!r}" if run_id else ""
            raise RunError(
                f"{store.url} has no trajectory{of_run} that has ended.",
                f"`hrm-agent history --store {store.url}`",
            )
        _tell_unreached_by_all(store, arguments)
    told = {
        **counts,
        "not_compared": not_compared,
        "renamed_ids": renamed,
        "ignored": [*ignored],
        "unmatched": sorted(unmatched),
    }
    output.result({"replayed": checked, "equal": checked - len(rows), "differ": rows, **told})
    output.say(f"Compared: {_compared(**counts)}.")
    for what in not_compared[:_MOST_SHOWN]:
        output.say(f"Not compared: {what}.")
    if len(not_compared) > _MOST_SHOWN:
        output.say(
            f"Not compared: something of {len(not_compared) - _MOST_SHOWN} more runs (--json lists"
            " it)."
        )
    _say_ignored([*ignored], sorted(unmatched), output)
    _say_effects([*again], output, refused=arguments.no_effects)
    if drawn:
        output.say(drawn)
    apart = f", apart from {renamed} generated id{'s' * (renamed != 1)}" if renamed else ""
    output.say(
        f"{checked} run{'s' * (checked != 1)} replayed, {checked - len(rows)} equal{apart},"
        f" {len(rows)} not"
    )
    return 1 if rows else 0


def _row_of(
    store: RunStore, header: Trajectory, options: dict[str, Any]
) -> tuple[dict[str, Any], Replay | None]:
    """Row of a run. If the run cannot be replayed, the row has the error, and other runs are still
    replayed.
    """
    try:
        found = replay(store, header.id, **options)
        return _row(found), found
    except HrmError as error:
        row = {
            "trajectory": header.id,
            "thread": header.thread_id,
            "verdict": "error",
            "words": str(error),
        }
        return row, None
