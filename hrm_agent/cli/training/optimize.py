"""`hrm-agent optimize`: better prompts of a graph, by reflection on its recorded runs."""

from __future__ import annotations

import asyncio
import difflib
import json
import shlex
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm_agent.basics.files import alone_in, replacing
from hrm_agent.basics.intervals import Estimate
from hrm_agent.cli.common.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.common.interrupts import resumed_by
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.prompts import refuse_unknown_prompts
from hrm_agent.cli.common.run_folder import run_folder
from hrm_agent.cli.training.collect import tell_changed_sources
from hrm_agent.config import compare_on_resume, save_config
from hrm_agent.errors import ConfigError, RunError, TaskError, to_install
from hrm_agent.models.loading.policy_loader import (
    load_policy,
    load_without_retries,
    stamp_of_weights,
)
from hrm_agent.prompts import refuse_unknown_name
from hrm_agent.prompts_file import write_prompts_file
from hrm_agent.rewards import load_rubric
from hrm_agent.runtime.episode import EpisodeRunner, policy_for
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.store import RunStore, open_store
from hrm_agent.training.analysis.saved import save_analysis
from hrm_agent.training.config.commands import FREE_ON_RESUME, OptimizeConfig
from hrm_agent.training.evaluation.budget import Meter
from hrm_agent.training.evaluation.prices import Prices, read_prices
from hrm_agent.training.prompts.rollouts import PromptRuns, SearchBudget, read_search_budget
from hrm_agent.training.rollout.rollout import run_id_of
from hrm_agent.training.rollout.scoring import scoring_by
from hrm_agent.training.tasks import Task, load_tasks, refuse_unscored
from hrm_agent.training.tasks.sources import fixed_tasks, keep_sources, tasks_folder
from hrm_agent.trajectory import Sampling

if TYPE_CHECKING:
    from hrm_agent.training.prompts.evolution import PromptCandidate
    from hrm_agent.training.prompts.optimize import HeldOutResult, Improvement, TaskSplits

__all__ = ["optimize_run", "run"]

USUAL = (
    *("policy", "reflection-policy", "graph", "context", "configurable", "prompts", "prompts-of"),
    *("tasks", "rewards", "budget", "price", "train", "validation", "test", "minibatch"),
    *("temperature", "max-tokens", "concurrency", "environment", "seed"),
)
"""Flags that `optimize --help` shows."""
_FREE = FREE_ON_RESUME | {"budget", "price"}
_WEIGHTS = "weights"
"""File in the folder with the stamps of the policies' files."""
_START = "start.json"
"""File in the folder with the texts at the start."""
_MOST_REPEATED = 8
"""Ratio of the number of tasks that are loaded, if many have the same question, to the usual one."""
PROMPTS_FILE = "prompts.toml"
"""File of the result in the folder."""


def run(words: list[str]) -> int:
    """Return 1 if no text was found that is better on the held-out tasks."""
    parser = Parser(
        "optimize",
        "Improve the prompts of a graph: a model reads recorded runs and proposes texts, which are"
        " kept if they do better.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder of the runs and of prompts.toml; one on record is resumed [a new one]",
    )
    add_config(parser, OptimizeConfig, USUAL)
    arguments = parser.read(words)
    config = config_from(arguments, OptimizeConfig, "optimize")
    if arguments.dry_run:
        print_config(config, "optimize", as_json=arguments.json)
        return 0
    return optimize_run(
        config, run_folder(arguments.out, "optimize"), Output(as_json=arguments.json)
    )


def optimize_run(config: OptimizeConfig, folder: Path, output: Output) -> int:
    """Begin or resume the search in `folder`. Returns the exit code."""
    if find_spec("gepa") is None:
        raise ConfigError("The package gepa is not installed.", f"`{to_install('prompts')}`")
    if not config.budget:
        raise ConfigError(
            "No budget was given.",
            "Limit the runs, as --budget 200rollouts, tokens (200000tokens), or money (2.50).",
        )
    if not config.reflection_policy:
        raise ConfigError(
            "No model was named that writes new texts.", "Name one: --reflection-policy POLICY."
        )
    config = config.model_copy(update={"tasks": fixed_tasks(config.tasks, folder)})
    budget = read_search_budget(config.budget)
    least = 2 * config.test + config.validation + 1
    if budget.rollouts is not None and budget.rollouts < least:
        raise ConfigError(
            f"--budget {config.budget} does not suffice: the held-out tasks are run twice, the"
            f" validation tasks once, and one reflection makes {least}.",
            "Name a larger --budget, or fewer tasks: --test, --validation.",
        )
    prices = read_prices(config.price)
    load_graph(config.graph, config.configurable)
    refuse_unknown_prompts(config)
    for name in config.prompts_of:
        refuse_unknown_name(name)
    if config.rewards is not None:
        _refuse_rewards(config.rewards, budget)
    tell_changed_sources(config.tasks, "train", folder)
    splits = _splits(config, folder)
    _tell_left_out(splits)
    policies = (config.policy, config.reflection_policy)
    if budget.requests is not None:
        answering, reflecting = map(load_without_retries, policies)
    else:
        answering = policy_for(config.policy, config.graph, stand_in=config.stand_in)
        reflecting = load_policy(config.reflection_policy)
    with alone_in(folder), resumed_by(f"hrm-agent resume {folder}"):
        compare_on_resume(config, "optimize", folder, free=_FREE)
        _compare_weights(policies, folder)
        save_config(config, "optimize", folder)
        keep_sources(config.tasks, "train", folder)
        with open_store(config.store or folder / "store.db", allow=config.allowed_types) as store:
            meter = Meter(
                folder / "asked.jsonl", prices, budget.requests, store.journal.calls_among
            )
            found, runs = _search(
                config, folder, store, splits, budget, meter, answering, reflecting
            )
    return _report(output, config, folder, found, len(splits.test), runs, meter, prices)


def _splits(config: OptimizeConfig, folder: Path) -> TaskSplits:
    from hrm_agent.training.prompts.optimize import split_tasks

    def load(split: str, count: int) -> list[Task]:
        return load_tasks(
            config.tasks, split=split, seed=config.seed, count=count, folder=tasks_folder(folder)
        )

    held_out = load("eval", config.test)

    def split(learned: list[Task]) -> TaskSplits:
        if config.rewards is None:
            refuse_unscored([*learned, *held_out], config.tasks)
        return split_tasks(learned, held_out, train=config.train, validation=config.validation)

    # a plain file has the held-out tasks in its training split as well
    count = config.train + config.validation + config.test
    try:
        return split(load("train", count))
    except TaskError:
        return split(load("train", _MOST_REPEATED * count))


def _tell_left_out(splits: TaskSplits) -> None:
    if splits.repeated:
        remark(
            f"{splits.repeated} held-out tasks are left out: another one has the same question."
            f" {len(splits.test)} remain."
        )
    if splits.leaked:
        remark(
            f"{splits.leaked} tasks to learn from are left out: a held-out or an earlier one has"
            " the same question under another id."
        )


def _refuse_rewards(name: str, budget: SearchBudget) -> None:
    rubric, _ = load_rubric(name)
    if "group" in rubric.wants:
        raise ConfigError(
            f"{name} compares the rollouts of a group, and a run of a search has none.",
            "Take rewards that do not compare rollouts.",
        )
    if budget.requests is not None and rubric.judges:
        raise ConfigError(
            f"{name} asks a judge model (the reward {rubric.judges[0]!r}), whose requests are not"
            f" counted in a budget of {'tokens' if budget.requests.tokens else 'money'}.",
            "Limit the runs, as --budget 200rollouts, or take rewards without a judge.",
        )


def _compare_weights(policies: tuple[str, str], folder: Path) -> None:
    """Raise `RunError` if the files of a policy have changed since the search began."""
    kept = folder / _WEIGHTS
    stamps = json.dumps([*map(stamp_of_weights, policies)])
    if not kept.exists():
        with replacing(kept) as part:
            part.write_text(stamps, encoding="utf-8")
    elif kept.read_text(encoding="utf-8") != stamps:
        raise RunError(
            f"The weights of {' or of '.join(dict.fromkeys(policies))} have changed since the search"
            f" in {folder} began.",
            "Begin anew in another folder: --out.",
        )


def _compare_start(folder: Path, start: dict[str, str]) -> None:
    """Raise `RunError` if the prompts in the source have changed since the search began."""
    kept = folder / _START
    if not kept.exists():
        with replacing(kept) as part:
            part.write_text(json.dumps(start), encoding="utf-8")
    elif (before := json.loads(kept.read_text(encoding="utf-8"))) != start:
        names = [name for name in {**before, **start} if before.get(name) != start.get(name)]
        raise RunError(
            f"The prompts {', '.join(names)} of the graph have changed since the search in {folder}"
            " began.",
            "Begin anew in another folder: --out.",
        )


def _search(
    config: OptimizeConfig,
    folder: Path,
    store: RunStore,
    splits: TaskSplits,
    budget: SearchBudget,
    meter: Meter,
    answering: Any,
    reflecting: Any,
) -> tuple[Improvement, PromptRuns]:
    from hrm_agent.training.prompts.optimize import improve_prompts

    options = config.task_options()
    run_id = run_id_of(folder, store if config.store else None)
    with asyncio.Runner() as loop, progress("optimize", budget.rollouts or 0) as advance:
        stack = AsyncExitStack()
        try:
            runner = loop.run(
                stack.enter_async_context(
                    EpisodeRunner.open(store, config.policy, config, backend=answering)
                )
            )
            score = loop.run(stack.enter_async_context(scoring_by(config, store)))
            given = {
                "temperature": config.reflection_temperature,
                "max_tokens": config.reflection_max_tokens,
            }
            runs = PromptRuns(
                runner=replace(runner, repeats_errors=True),
                reflecting=replace(
                    runner,
                    backend=reflecting,
                    policy=config.reflection_policy,
                    sampling=Sampling.model_validate(
                        {name: value for name, value in given.items() if value is not None}
                    ),
                    stand_in=False,
                ),
                score=score,
                meter=meter,
                budget=budget,
                run_id=run_id,
                graph=config.graph,
                seed=config.seed,
                context=config.context,
                options=options,
                verified=config.rewards is None,
                concurrency=config.concurrency,
                base=config.prompts,
                on_done=_counting(advance),
            )
            found = improve_prompts(
                runs,
                splits,
                config.prompts_of,
                loop,
                minibatch=config.minibatch,
                check_start=partial(_compare_start, folder),
            )
        finally:
            loop.run(stack.aclose())
    return found, runs


def _counting(advance: Callable[[str], object]) -> Callable[[], object]:
    return lambda: advance("")


def _report(
    output: Output,
    config: OptimizeConfig,
    folder: Path,
    found: Improvement,
    tested: int,
    runs: PromptRuns,
    meter: Meter,
    prices: Prices,
) -> int:
    """Write and print the result. `tested`: number of held-out tasks. Returns the exit code."""
    result = _result(config, folder, found, runs, meter)
    path = folder / PROMPTS_FILE
    evidence = {
        name: result[name]
        for name in (
            "tasks",
            "recommended",
            "held_out",
            "rollouts",
            "reflections",
            "policy",
            "reflection_policy",
        )
    }
    write_prompts_file(
        path, config.graph, {**config.prompts, **found.texts}, _toml(evidence), _lineage(result)
    )
    with replacing(folder / "results.json") as part:
        part.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    output.result(result)
    _saved(config, folder, result)
    _show_candidates(output, config, found, result)
    refused = [each for each in result["proposals"] if each["refused"]]
    if refused:
        output.say(
            f"{len(refused)} proposed texts were refused, the first: {refused[0]['refused']}"
        )
    for each in _lineage(result):
        output.say(f"\n{each['prompt']}:\n{each['diff']}")
    _show_held_out(output, found.held_out, tested)
    asked = ", ".join(sorted(meter.models)) or "none"
    for name in prices.by_model:
        if name and name not in meter.models:
            remark(f"--price {name}: no model of this name was asked. Asked: {asked}.")
    total = meter.total
    cost = f", cost {total.cost:.4g}" if total.cost > 0 else ""
    output.say(
        f"{runs.rollouts - runs.reflections} runs and {runs.reflections} reflections,"
        f" {total.read:,} + {total.sampled:,} tokens (prompt + completion){cost}. The search ended:"
        f" {found.evolution.ended_by}."
    )
    return _recommend(output, config, found, path)


def _show_candidates(
    output: Output, config: OptimizeConfig, found: Improvement, result: dict[str, Any]
) -> None:
    rows: list[tuple[object, ...]] = [
        (
            number,
            "" if each["parent"] is None else each["parent"],
            each["prompt"] or "start",
            _minibatch(each["minibatch"]),
            each["validation"],
            "best" if number == result["best"] else "",
        )
        for number, each in enumerate(result["candidates"])
    ]
    cut_off = found.evolution.cut_off
    if cut_off is not None:
        parent = "" if cut_off.parent is None else cut_off.parent
        judged = _minibatch((cut_off.before, cut_off.after))
        rows.append(("", parent, cut_off.proposal.prompt, judged, "not judged: budget", ""))
    heads = ("candidate", "parent", "prompt", "minibatch", "validation", "")
    output.table(heads, rows, title=f"Prompts of {config.graph}")


def _show_held_out(output: Output, held_out: HeldOutResult, tested: int) -> None:
    output.say(
        f"Held-out mean reward: {held_out.before.value:.3f} before, {held_out.after.value:.3f}"
        f" after, on {held_out.tasks} tasks: {_interval(held_out.difference)}."
    )
    if held_out.graded:
        shares = held_out.pass_at_1
        output.say(
            f"Held-out pass@1 (outcome above 0.5): {shares.a.pass_at_1.value:.3f} before,"
            f" {shares.b.pass_at_1.value:.3f} after: {_interval(shares.difference)}."
        )
    if held_out.tasks < tested:
        remark(f"The budget sufficed for {held_out.tasks} of {tested} held-out tasks.")
    if held_out.unjudged:
        remark(f"{held_out.unjudged} held-out runs could not be judged, and count as 0.")


def _recommend(output: Output, config: OptimizeConfig, found: Improvement, path: Path) -> int:
    """Say whether the new texts are better on the held-out tasks. Returns the exit code."""
    held_out = found.held_out
    cut_off = found.evolution.cut_off
    if cut_off is not None:
        output.say(
            f"The last text for {cut_off.proposal.prompt} was not judged: the budget did not suffice"
            f" for {'its minibatch' if cut_off.after is None else 'the validation tasks'}. A larger"
            " --budget continues there."
        )
    if not found.changed:
        output.say("No better text was found.")
        return 1
    if not held_out.better:
        output.say(
            f"The new texts are not recommended: on the held-out tasks they are"
            f" {'worse' if round(held_out.difference.value, 9) < 0 else 'not better'}, though their validation"
            f" score is the highest. {path} has them with the evidence."
        )
        return 1
    if not held_out.certain:
        output.say(
            f"The difference is within chance (p = {held_out.p_value:.2g}). More held-out tasks"
            " (--test) in another folder would show more."
        )
    words = ["hrm-agent", "run", "TASK", "--graph", config.graph, "--prompts", str(path)]
    output.next(shlex.join(words))
    return 0


def _result(
    config: OptimizeConfig, folder: Path, found: Improvement, runs: PromptRuns, meter: Meter
) -> dict[str, Any]:
    total = meter.total
    held_out = found.held_out
    shares = held_out.pass_at_1
    cut_off = found.evolution.cut_off
    return {
        "folder": str(folder),
        "graph": config.graph,
        "policy": config.policy,
        "reflection_policy": config.reflection_policy,
        "tasks": config.tasks,
        "budget": config.budget,
        "ended_by": found.evolution.ended_by,
        "rollouts": runs.rollouts - runs.reflections,
        "reflections": runs.reflections,
        "asked": {"read": total.read, "sampled": total.sampled, "cost": _number(total.cost)},
        "start": found.start,
        "texts": found.texts,
        "changed": found.changed,
        "best": found.evolution.best,
        "candidates": [_candidate(each) for each in found.evolution.candidates],
        "proposals": [asdict(each) for each in found.evolution.proposals],
        "not_judged": None if cut_off is None else asdict(cut_off),
        "recommended": found.changed and held_out.better,
        "held_out": {
            "measure": "mean reward",
            "tasks": held_out.tasks,
            "unjudged": held_out.unjudged,
            "before": asdict(held_out.before),
            "after": asdict(held_out.after),
            "difference": asdict(held_out.difference),
            "p_value": held_out.p_value,
            "certain": held_out.certain,
            "better": list(held_out.rises),
            "worse": list(held_out.falls),
            "pass_at_1": {
                "before": asdict(shares.a.pass_at_1),
                "after": asdict(shares.b.pass_at_1),
                "difference": asdict(shares.difference),
                "p_value": shares.p_value,
            },
        },
    }


def _candidate(each: PromptCandidate) -> dict[str, Any]:
    made = each.proposal
    return {
        "parent": each.parent,
        "prompt": made.prompt if made else None,
        "diff": _diff(made.before, made.text) if made else "",
        "why": made.reflection if made else "",
        "reflection": made.trajectory_id if made else "",
        "minibatch": each.minibatch,
        "validation": each.score,
        "texts": each.texts,
    }


def _lineage(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Changes that led to the best candidate, oldest first."""
    changes = list[dict[str, Any]]()
    number = result["best"]
    while (each := result["candidates"][number])["parent"] is not None:
        before, after = each["minibatch"] or (None, None)
        change = {
            "candidate": number,
            "parent": each["parent"],
            "prompt": each["prompt"],
            "minibatch_before": before,
            "minibatch_after": after,
            "validation_before": result["candidates"][each["parent"]]["validation"],
            "validation_after": each["validation"],
            "reflection": each["reflection"],
            "diff": each["diff"],
            "why": each["why"],
        }
        changes.append(_toml(change))
        number = each["parent"]
    return changes[::-1]


def _toml(values: dict[str, Any]) -> dict[str, Any]:
    """Values without None, which TOML does not have."""
    return {
        name: _toml(value) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownArgumentType]
        for name, value in values.items()
        if value is not None
    }


def _saved(config: OptimizeConfig, folder: Path, result: dict[str, Any]) -> None:
    given = {"graph": config.graph, "tasks": config.tasks}
    words = ["hrm-agent", "resume", str(folder)]
    try:
        save_analysis(
            folder,
            "optimize",
            given,
            title=f"Prompts of {config.graph}",
            command=shlex.join(words),
            result=result,
        )
    except OSError as error:
        remark(f"The result is not saved for the viewer: {error}.")


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "before", "after", lineterm=""
    )
    return "\n".join(lines)


def _minibatch(means: tuple[float | None, float | None] | None) -> str:
    before, after = means or (None, None)
    if before is None:
        return ""
    return f"{before:.2f} to {'?' if after is None else f'{after:.2f}'}"


def _number(value: float) -> float | None:
    return None if isnan(value) else value


def _interval(found: Estimate) -> str:
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f}, 95 % interval)"
