"""`hrm-agent train rl` and `hrm-agent train sft`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm_agent.basics.files import alone_in
from hrm_agent.cli.common.arguments import Parser, add_config, as_pairs, config_from, print_config
from hrm_agent.cli.common.interrupts import resumed_by
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.prompts import refuse_unknown_prompts, tell_unreached_prompts
from hrm_agent.cli.common.run_folder import run_folder
from hrm_agent.cli.main import command_list, fitted
from hrm_agent.cli.training.by_model import fitted_rl, fitted_sft, say_chosen, shown_rl, shown_sft
from hrm_agent.config import (
    CONFIG_FILE,
    attribute_of,
    build_config,
    compare_on_resume,
    read_config_file,
    save_config,
)
from hrm_agent.errors import ConfigError, ModelError, RunError, TaskError, nearest
from hrm_agent.rewards import load_rubric

if TYPE_CHECKING:
    from hrm_agent.training.config.commands import FineTuneConfig, GrpoConfig


__all__ = [
    "ACTIONS",
    "USUAL_RL",
    "USUAL_SFT",
    "chosen_groups",
    "fine_tune",
    "panel",
    "reinforce",
    "run",
    "watched",
]


def chosen_groups(
    config: GrpoConfig, folder: Path, *, one_pass: bool
) -> tuple[GrpoConfig, list[str]]:
    """Configuration for training on recorded groups, and lines to print about the groups. The
    configuration has absolute paths, and, with `one_pass`, the number of steps of one pass.

    Raises `TaskError`, before a folder is created, if there is no group to learn from.
    """
    from hrm_agent.models.slow_start import told_if_slow

    with told_if_slow("loading torch; the first time this takes up to a minute"):
        from hrm_agent.training.records.groups import kept_groups, select_groups
        from hrm_agent.training.records.offline import own_store

    whole = tuple(
        where if "://" in where else str(Path(where).resolve()) for where in config.source
    )
    config = config.but(on_record=True, source=whole)
    groups = kept_groups(folder)
    if groups is not None and groups.sources != whole:
        raise RunError(
            f"The run in {folder} learns from {', '.join(groups.sources)}.",
            "Name another folder with --out.",
        )
    groups = groups or select_groups(config, own_store(config, folder))
    if one_pass:
        config = config.but(
            on_record=True, steps=groups.steps_of_pass(config.rollout.prompts_per_step)
        )
    return config, groups.lines(config.steps, config.rollout.prompts_per_step)


WIDTH = 80
_MANY = 0.5
"""Share of groups without a signal from which on the panel gives advice."""


def panel(row: Mapping[str, Any], config: GrpoConfig) -> list[str]:
    """Lines about the newest step: accuracy, selection, and advice if few groups were selected."""
    from hrm_agent.training.select.verdicts import advice

    stage = ""
    if config.stages:
        number = int(row["stage"])
        stage = (
            f"stage {number + 1} of {len(config.stages)} {config.stages[number].name}".rstrip()
            + "; "
        )
    held_out = ""
    if row.get("eval/correct") is not None:
        held_out = f"held-out {_number(row['eval/correct'])} (best {_number(row.get('eval/best'))})"
    tools = f"tool errors {_number(row.get('rollout/correct_with_tool_error'))} of them"
    kept = f"kept {_number(row['select/kept'], 0)} of {_number(row['rollout/count'], 0)} rollouts"
    tokens = _number(row["rollout/sampled_tokens"], 0)
    entropy = _number(row.get("entropy_estimate"))
    right = f"{stage}correct {_number(row['rollout/correct'])}"
    lines = [
        ", ".join(filter(None, [right, held_out, tools])),
        f"tokens {tokens}, {kept}, entropy {entropy}, rate {row['learning_rate']:.1e}",
    ]
    rejected = row.get("select/groups_rejected") or 0.0
    if rejected >= _MANY:
        lines.append(f"{rejected:.0%} of the groups have no signal. {advice([dict(row)])}")
    elif row.get("select/unfilled") and config.rollout.refill:
        lines.append(
            f"{row['select/unfilled']:.0f} groups are lacking, in spite of {config.rollout.refill}"
            " refills"
        )
    if row.get("skipped"):
        lines.append(f"skipped: {row['skipped']}")
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines]


def _number(value: Any, places: int = 3) -> str:
    return f"{value:.{places}f}" if isinstance(value, (int, float)) and isfinite(value) else "none"


ACTIONS = {
    "rl": "reinforcement learning on recorded graph runs: grpo, grpo-roc, and their controls",
    "sft": "supervised fine-tuning on conversations",
}
USUAL_RL = (
    *("policy", "graph", "context", "tasks", "rewards", "steps", "prompts-per-step", "group-size"),
    *("algorithm", "advantages", "objective", "learning-rate", "max-tokens", "temperature"),
    *("lora-rank", "engine", "concurrency", "eval-every", "seed", "track"),
)
"""Flags that `train rl --help` shows."""
USUAL_SFT = (
    *("policy", "steps", "batch-size", "optimizer", "learning-rate", "warmup-steps", "cooldown"),
    *("lora-rank", "reward", "checkpoint-every", "seed", "track"),
)
"""Flags that `train sft --help` shows."""
_WATCHED = {
    "rollout/correct": "correct",
    "rollout/correct_with_tool_error": "correct_with_tool_error",
    "rollout/reward_mean": "reward",
    "select/groups_rejected": "groups_rejected",
    "loss": "loss",
    "eval/correct": "held-out",
}
"""Metrics that are shown during a run, with their labels. metrics.jsonl has all metrics."""


def run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "--help-all"):
        usage = "usage: hrm-agent train {rl,sft} [OPTIONS]"
        print(
            fitted(
                f"{usage}\n\n{command_list(ACTIONS)}\n\n`hrm-agent train rl --help-all` lists the"
                " options."
            )
        )
        return 0
    if words[0] not in _KINDS:
        raise ConfigError(
            f"There is no training {words[0]!r}.", nearest(words[0], _KINDS) or "Write rl or sft."
        )
    return _KINDS[words[0]](words[1:])


def _rl(words: list[str]) -> int:
    from hrm_agent.training.config.commands import GrpoConfig

    parser = Parser("train rl", "Reinforcement learning on recorded graph runs.")
    help_text = "learn from the rollouts of stores, run folders or exports, and sample nothing"
    parser.add_argument(
        "--from", dest="source", metavar="STORE", nargs="+", action="extend", help=help_text
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="run folder; one on record is resumed [a new one]",
    )
    add_config(parser, GrpoConfig, USUAL_RL)
    arguments = parser.read(words)
    if arguments.source is not None:  # the flag is a short name of a configuration key
        setattr(arguments, "config:source", arguments.source)
    config = config_from(arguments, GrpoConfig, "train rl")
    if arguments.dry_run:
        print_config(shown_rl(config, arguments.out), "train rl", as_json=arguments.json)
        return 0
    in_file = read_config_file(arguments.config, "train rl") if arguments.config else {}
    one_pass = (
        bool(config.source)
        and getattr(arguments, "config:steps") is None
        and "steps" not in in_file
    )
    folder = run_folder(arguments.out, attribute_of(config.select.algorithm))
    reinforce(config, folder, Output(as_json=arguments.json), one_pass=one_pass)
    return 0


def reinforce(config: GrpoConfig, folder: Path, output: Output, *, one_pass: bool = False) -> None:
    """Start or resume the training in `folder`. `one_pass`: make one pass over the recorded groups,
    whatever the configured number of steps.

    If several processes train together, each of them calls this function and takes part in the work
    of the first.
    """
    from hrm_agent.models.slow_start import told_if_slow
    from hrm_agent.training.ranks.processes import is_first_process, require_ranks

    if config.optim.sharding == "none" and not is_first_process():
        return  # the first process reports why several processes cannot train together
    require_ranks(config.optim.sharding)

    with told_if_slow("loading torch; the first time this takes up to a minute"):
        from hrm_agent.training.ranks.learner import follow
    from hrm_agent.training.ranks.processes import several_ranks

    with several_ranks(config) as ranks:
        if ranks is not None and not ranks.leads:
            asyncio.run(follow(ranks))
        else:
            _reinforce(config, folder, output, one_pass=one_pass)


def _reinforce(config: GrpoConfig, folder: Path, output: Output, *, one_pass: bool) -> None:
    from hrm_agent.cli.training.collect import tell_changed_sources
    from hrm_agent.models.loading.policy_loader import model_folder
    from hrm_agent.runtime.execution.loading import load_graph, refuse_other_roles
    from hrm_agent.training.grpo import train
    from hrm_agent.training.trackers import require_trackers, tracking
    from hrm_agent.training.update.trial import try_own_parts

    if config.same_as_clipped:
        remark(config.same_as_clipped)
    config = _with_fixed_tasks(config, folder)
    # These checks come before the folder is created, so that an impossible training leaves nothing
    # behind.
    require_trackers(config)
    refuse_unknown_prompts(config)
    model_folder(config.policy, adapter=config.adapter.lora_rank > 0)
    config, choice = fitted_rl(config, folder)
    for rubric in config.rubrics:
        load_rubric(rubric)
    try_own_parts(config)
    said: list[str] = []
    learn: Callable[..., Coroutine[Any, Any, Path]] = train
    if config.source:
        from hrm_agent.training.records.offline import train_on_record

        learn = train_on_record
        config, said = chosen_groups(config, folder, one_pass=one_pass)
    else:
        if not (folder / CONFIG_FILE).exists():
            for graph in config.graphs:
                load_graph(graph, config.configurable)
            _check_families(config, folder)
            for key, roles in (
                ("lora_roles", config.adapter.lora_roles),
                ("frozen_roles", config.loss.frozen_roles),
            ):
                refuse_other_roles(roles, key, config.graphs, config.configurable)
        tell_changed_sources(config.tasks, "train", folder, *config.tasks_of_stages)
    # a process that does not get the lock must not change the configuration
    with resumed_by(f"hrm-agent resume {folder}"), alone_in(folder):
        is_new = not (folder / CONFIG_FILE).exists()
        taken_up = _is_taken_up(config, "train rl", folder)
        with tracking(config, config, "train rl", folder, remark, first_step=1):
            if taken_up:
                say_chosen(choice, output)
                for line in said:
                    output.say(line)
                with (
                    progress(attribute_of(config.select.algorithm), config.steps) as advance,
                    _withdrawn(folder, is_new=is_new),
                ):
                    asyncio.run(learn(config, folder, on_step=_shown(config, advance)))
            else:
                output.say(_nothing_left(folder, config.steps))
    if config.prompts and not config.source:
        from hrm_agent.store import open_store

        with open_store(config.store or folder / "store.db") as store:
            tell_unreached_prompts(config.prompts, store.journal.trajectories())
    _report(config, folder, output)


def _with_fixed_tasks(config: GrpoConfig, folder: Path) -> GrpoConfig:
    """Configuration in which data sets have the versions that the run in `folder` began with, else
    the newest ones.
    """
    from hrm_agent.training.tasks.sources import fixed_tasks

    stages = [
        stage
        if stage.tasks is None
        else stage.model_copy(update={"tasks": fixed_tasks(stage.tasks, folder)})
        for stage in config.stages
    ]
    tasks = fixed_tasks(config.tasks, folder)
    return config.model_copy(update={"tasks": tasks, "stages": tuple(stages)})


def _check_families(config: GrpoConfig, folder: Path) -> None:
    """Raise `ConfigError` for a family without tasks, and for an option or an answer path that its
    graph does not have.
    """
    from hrm_agent.runtime.execution.answer_path import check_answer_path
    from hrm_agent.runtime.execution.loading import load_graph
    from hrm_agent.runtime.execution.run_context import run_context
    from hrm_agent.training.rollout.source import refuse_unknown_families

    for own in (config.of_family(each.name) for each in config.families):
        graph = load_graph(own.graph, own.configurable)
        run_context(graph, own.context, own.graph)
        check_answer_path(graph, own.answer_path)
    refuse_unknown_families(config, folder)


def _report(config: GrpoConfig, folder: Path, output: Output) -> None:
    """Report what a training has learnt, where its files are, and the next commands."""
    from hrm_agent.training.metrics import read_metrics
    from hrm_agent.training.select.verdicts import when_learning_stopped, why_nothing_was_learnt

    model = folder / "model"
    metrics = folder / "metrics.jsonl"
    rows = read_metrics(metrics)
    # number of updates (unknown without metrics)
    taken = sum(bool(row["stepped"]) for row in rows) if rows else None
    lack = why_nothing_was_learnt(rows)
    stopped = when_learning_stopped(rows)
    found = {
        "folder": str(folder),
        "model": str(model),
        "optimizer_steps": taken,
        "nothing_learnt": lack,
        "learning_stopped": stopped,
    }
    output.result({**found, "last": rows[-1] if rows else None})
    for said_of_it in filter(None, (lack, stopped)):
        remark(said_of_it)
    steps = f"{len(rows)} step{'s' * (len(rows) != 1)}" + (
        f", {taken} with an update" if taken != len(rows) else ""
    )
    curves = _curves(rows, config, folder) if rows else ""
    told = (
        f"The run has {steps}; the metrics are {metrics}{curves}"
        if rows
        else f"{metrics} has no rows"
    )
    output.say(f"{told}; the policy is {model}.")
    rollouts = [] if config.source else [f"hrm-agent history --store {folder}"]
    families = list(rows[-1].get("families") or ()) if rows and config.families else []
    evaluations = [f"hrm-agent eval --policy {model}{flags}" for flags in _same(config, families)]
    output.next(*evaluations, *rollouts)


def _same(config: GrpoConfig, families: Sequence[str]) -> list[str]:
    """Flags with which `eval` asks as the training did at its end, where this is not the default:
    for all tasks, or for each of the families of tasks.
    """
    from hrm_agent.training.rollout.source import at_stage

    config = at_stage(config, -1)
    own = [config.of_family(name).but(tasks=name, families=()) for name in families]
    return [_flags_of(each) for each in own or [config]]


def _flags_of(config: GrpoConfig) -> str:
    usual = type(config)()
    names = ("graph", "answer_path", "tasks", "rewards", "max_tokens")
    other = {
        name: getattr(config, name)
        for name in names
        if getattr(config, name) != getattr(usual, name)
    }
    flags = [
        f" --{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in other.items()
    ]
    flags += [f" --context {shlex.quote(pair)}" for pair in as_pairs(config.context)]
    return "".join([*flags, " --stand-in"] if "graph" in other else flags)  # as in training


def _curves(rows: Sequence[Mapping[str, Any]], config: GrpoConfig, folder: Path) -> str:
    """Draw the curves if matplotlib is installed. Returns a phrase about the file (empty if nothing
    was drawn).
    """
    if find_spec("matplotlib") is None:
        return ""
    from hrm_agent.training.plots.plots import plot_curves

    title = f"{attribute_of(config.select.algorithm)}, {config.graph}, seed {config.seed}"
    plot_curves(rows, folder / "curves.png", title, problems=config.evaluation.eval_problems)
    return f", drawn in {folder / 'curves.png'}"


@contextmanager
def _withdrawn(folder: Path, *, is_new: bool) -> Generator[None]:
    """Delete the configuration of a new run if its tasks or policy are refused. The next command
    can then name others for the folder.
    """
    try:
        yield
    except (ModelError, TaskError) as error:
        # only if nothing was sampled yet
        if is_new and (isinstance(error, TaskError) or not (folder / "run_id").exists()):
            (folder / CONFIG_FILE).unlink()
        raise


def _is_taken_up(
    config: GrpoConfig | FineTuneConfig, command: str, folder: Path, *, writes: bool = True
) -> bool:
    """True if the run has steps left. Raises `RunError` if `folder` has another run.

    `writes`: True to save the configuration, if the run can be continued.
    """
    from hrm_agent.training.checkpoints import Checkpoints, has_model
    from hrm_agent.training.config.commands import FREE_IN_TRAINING, GrpoConfig
    from hrm_agent.training.config.fitted import decided
    from hrm_agent.training.update.schedule import Schedule, refuse_other_course

    earlier_version = (folder / "checkpoint").is_dir() and not (folder / "checkpoints").is_dir()
    free = FREE_IN_TRAINING - {"steps"} if earlier_version else FREE_IN_TRAINING
    compare_on_resume(config, command, folder, free=free)
    if (folder / CONFIG_FILE).exists():
        kept = read_config_file(folder / CONFIG_FILE, command)
        before = build_config(type(config), kept, CONFIG_FILE, on_record=True)
        optim = config.optim if isinstance(config, GrpoConfig) else config
        least = config.optim.least_rate if isinstance(config, GrpoConfig) else 0.0
        steps = decided(config.steps, "steps")
        steps_before = decided(before.steps, "steps")
        warmup_steps = decided(optim.warmup_steps, "warmup_steps")
        schedule = Schedule(steps, warmup_steps, optim.cooldown, optim.fall, least)
        taken = max(Checkpoints(folder).newest_step, _steps_on_record(config, steps_before, folder))
        refuse_other_course(schedule, steps_before, taken, folder)
        if has_model(folder, steps):
            compare_on_resume(config, command, folder, free=free - {"data"})
            return False
    if writes:
        save_config(config, command, folder)
    return True


def _steps_on_record(config: GrpoConfig | FineTuneConfig, steps_before: int, folder: Path) -> int:
    """Number of steps on which the recorded rollouts depend. They are not sampled again, so a
    changed configuration must not change these steps. 0 if the number of steps is unchanged, since
    nothing has to be compared then.
    """
    from hrm_agent.store import open_store
    from hrm_agent.training.config.commands import GrpoConfig
    from hrm_agent.training.rollout.rollout import run_id_of, steps_with_rollouts

    if not isinstance(config, GrpoConfig) or config.steps == steps_before:
        return 0
    with open_store(config.store or folder / "store.db") as store:
        return steps_with_rollouts(store, run_id_of(folder), config.rollout.versions_behind)


def _nothing_left(folder: Path, steps: int | None) -> str:
    return (
        f"The run in {folder} has taken its {steps} steps already: nothing was done. More:"
        " --steps N."
    )


def _shown(
    config: GrpoConfig, advance: Callable[[str, int], None]
) -> Callable[[Mapping[str, Any]], None]:
    """Callback that shows progress: a panel on a terminal, or a line per step elsewhere."""
    on_terminal = sys.stderr.isatty()
    return lambda row: advance(
        "\n".join(panel(row, config)) if on_terminal else watched(row), int(row["step"]) + 1
    )


def watched(row: Mapping[str, Any]) -> str:
    """Line about a step with the watched metrics, and, if the step changed nothing, the reason.

    The mean reward is only shown if it differs from the share of right answers.
    """
    shown = {name: row.get(key) for key, name in _WATCHED.items()}
    if shown["reward"] == shown["correct"]:
        del shown["reward"]
    # A small negative loss is rounded to -0.0. Adding 0.0 removes this sign.
    parts = [
        f"{name} {round(value, 3) + 0.0:.3f}"
        for name, value in shown.items()
        if value is not None and isfinite(value)
    ]
    return ", ".join([*parts, f"skipped: {row['skipped']}"] if row.get("skipped") else parts)


def _sft(words: list[str]) -> int:
    from hrm_agent.training.config.commands import FineTuneConfig

    parser = Parser(
        "train sft", "Supervised fine-tuning on conversations: each answer in them is learnt."
    )
    parser.add_argument(
        "data",
        nargs="?",
        help='JSONL file, a line: {"messages": [{"role": ..., "content": ...}, ...]}',
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="STORE",
        help="learn from the completed runs of a store, run folder or export",
    )
    parser.add_argument(
        "--role",
        action="append",
        metavar="ROLE",
        help="with --from: only answers of it; repeatable",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="run folder; one on record is resumed [a new one]",
    )
    add_config(parser, FineTuneConfig, USUAL_SFT)
    arguments = parser.read(words)
    for name, given in (
        ("data", arguments.data),
        ("source", arguments.source),
        ("roles", arguments.role),
    ):
        if given is not None:  # these flags are short names of configuration keys
            setattr(arguments, f"config:{name}", given)
    config = config_from(arguments, FineTuneConfig, "train sft")
    if arguments.dry_run:
        print_config(shown_sft(config, arguments.out), "train sft", as_json=arguments.json)
        return 0
    fine_tune(config, run_folder(arguments.out, "sft"), Output(as_json=arguments.json))
    return 0


def fine_tune(config: FineTuneConfig, folder: Path, output: Output) -> None:
    """Start or resume the training in `folder`."""
    from hrm_agent.cli.training.from_records import CONVERSATIONS, select
    from hrm_agent.training.metrics import NOT_FINITE, read_metrics
    from hrm_agent.training.ranks.processes import is_first_process, wait_for_all
    from hrm_agent.training.trackers import require_trackers, tracking

    if (folder / "model").exists() and not (folder / "checkpoints").exists():
        raise RunError(f"{folder} already has a trained model.", "Name another folder with --out.")
    config = _with_whole_paths(config)
    main = is_first_process()  # only the first of the processes that share batches writes files
    chosen = (
        select(config)
        if main and config.source and not (folder / CONVERSATIONS).is_file()
        else None
    )
    require_trackers(config)
    if not main:
        # the first process writes the conversations and the configuration, which all processes use
        wait_for_all()
    config, choice = fitted_sft(config, folder, chosen.report.rows if chosen is not None else None)
    with alone_in(folder) if main else nullcontext():
        taken_up = _is_taken_up(config, "train sft", folder, writes=main)
        if taken_up and chosen is not None:
            chosen.write(folder)
        if main:
            wait_for_all()
        with tracking(config, config, "train sft", folder, remark) if main else nullcontext():
            if taken_up:
                for line in chosen.lines() if chosen is not None else ():
                    output.say(line)
                if main:
                    say_chosen(choice, output)
                _fine_tune(config, folder, writes=main)
            else:
                output.say(_nothing_left(folder, config.steps))
    model = folder / "model"
    skipped = sum(row.get("stepped") == 0 for row in read_metrics(folder / "metrics.jsonl"))
    found = {"folder": str(folder), "model": str(model), "skipped_steps": skipped}
    output.result(found | ({"taken": chosen.data()} if chosen else {}))
    if skipped:
        remark(
            f"{skipped} of {config.steps} steps were skipped: {NOT_FINITE}. Check the data, or"
            " lower learning_rate."
        )
    output.say(f"The policy is {model}, the metrics are {folder / 'metrics.jsonl'}.")
    rank = f" --lora-rank {config.adapter.lora_rank}" if config.adapter.lora_rank else ""
    output.next(f"hrm-agent eval --policy {model}", f"hrm-agent train rl --policy {model}{rank}")


def _with_whole_paths(config: FineTuneConfig) -> FineTuneConfig:
    """Make paths absolute, since a run may be resumed in another working directory. Raises
    `TaskError` if there is no training data.
    """
    if config.source:
        is_url = "://" in config.source
        return (
            config
            if is_url
            else config.model_copy(update={"source": str(Path(config.source).resolve())})
        )
    if not Path(config.data).is_file():
        named = (
            f"There is no file {config.data}."
            if config.data
            else "No file of conversations was named."
        )
        raise TaskError(
            named,
            'Name a JSONL file of lines {"messages": [...]}, or recorded runs: --from STORE.',
        )
    return config.model_copy(update={"data": str(Path(config.data).resolve())})


def _fine_tune(config: FineTuneConfig, folder: Path, *, writes: bool) -> None:
    """Train on the configured data, and save the model."""
    from hrm_agent.cli.training.from_records import CONVERSATIONS
    from hrm_agent.training.checkpoints import Checkpoints, keep_model
    from hrm_agent.training.config.fitted import decided
    from hrm_agent.training.metrics import NOT_FINITE
    from hrm_agent.training.sft import read_chats, train_sft
    from hrm_agent.training.update.trained_policy import TrainedPolicy

    data = folder / CONVERSATIONS if config.source else Path(config.data)
    conversations = read_chats(data)
    if not conversations:
        raise TaskError(f"{data} has no conversation.", 'Write lines such as {"messages": [...]}.')
    # conversations of a folder may have been written before the configuration
    config, _ = fitted_sft(config, folder, len(conversations))
    steps = decided(config.steps, "steps")
    # In half precision, an update at a small learning rate would be lost by rounding.
    policy = TrainedPolicy.load(
        config.policy, config.adapter, dtype="float32", device="cpu", seed=config.seed
    )
    with progress("sft", steps) as advance:
        train_sft(
            policy.model,
            policy.codec,
            conversations,
            config,
            metrics_path=folder / "metrics.jsonl",
            checkpoints=Checkpoints(folder, keep=config.checkpoints, every=config.checkpoint_every),
            adapter=policy.adapter,
            progress=lambda row: advance(
                f"loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}"
                + ("" if row["stepped"] else f", skipped: {NOT_FINITE}"),
                int(row["step"]),
            ),
        )
    card = f"# {folder.name}\n\n{config.policy}, fine-tuned by {steps} steps on {data.name} "
    card += "(`hrm-agent train sft`).\n"
    if writes:
        keep_model(folder, steps, lambda part: policy.save(part, card))


_KINDS: dict[str, Callable[[list[str]], int]] = {"rl": _rl, "sft": _sft}
