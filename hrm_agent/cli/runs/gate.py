"""`hrm-agent gate`: is the changed agent better or worse than the one whose runs are recorded?"""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import tempfile
from collections.abc import Collection, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import alone_in
from hrm_agent.cli.common.arguments import Parser, add_graph_options
from hrm_agent.cli.common.interrupts import resumed_by
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.own_types import add_own_types
from hrm_agent.cli.common.prompts import (
    names_reached,
    refuse_unreached_prompts,
    tell_unreached_prompts,
)
from hrm_agent.cli.common.run_folder import existing_store
from hrm_agent.cli.runs.gate_report import (
    expected_data,
    expected_lines,
    expected_money,
    left_out_lines,
    markdown,
    print_report,
    report_data,
    save_for_viewer,
)
from hrm_agent.cli.runs.gate_runs import GateConfig, RunsToRepeat, runs_to_repeat, scorer_of
from hrm_agent.config import (
    CONFIG_FILE,
    compare_on_resume,
    read_config_file,
    save_config,
    secret_in,
)
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, parse_isolation
from hrm_agent.environment.open import opened_environment
from hrm_agent.errors import ConfigError, HrmError, RunError
from hrm_agent.import_by_name import types_by_name
from hrm_agent.models.loading.policy_loader import stamp_of_weights
from hrm_agent.models.model_string import is_folder, parse_model
from hrm_agent.rewards import load_rubric, opened_scorer
from hrm_agent.store import RunStore, open_store
from hrm_agent.training.analysis.gate import (
    Expected,
    GateScores,
    compare_runs,
    expected_cost,
    repeated_offline,
)
from hrm_agent.training.analysis.gate_repeats import Repeat, Repeats
from hrm_agent.training.evaluation.budget import Meter, RequestBudget, read_budget
from hrm_agent.training.evaluation.prices import Prices, read_prices
from hrm_agent.training.rollout.rollout import run_id_of
from hrm_agent.training.select.roc import outcome_of
from hrm_agent.training.tasks.own_verifier import RUN_VARIABLE

__all__ = ["GateConfig", "gate_run", "run"]

FREE = frozenset(
    {"budget", "price", "concurrency", "margin", "samples", "report", "fail_on", "environment"}
)
"""Options that a resumed command may change."""
_CONCURRENCY = 8
_SEED = 0
"""Seed of the order of the tasks."""


def run(words: list[str]) -> int:
    """Return 1 if the new agent is worse (with `--fail-on undecided` also if this is not clear)."""
    parser = Parser(
        "gate",
        "Compare a changed agent with the one whose runs are recorded: each run is repeated from"
        " its record, and only what follows from the change is asked.",
    )
    _add_options(parser)
    arguments = parser.read(words)
    _refuse_invalid(arguments)
    config = _config_of(arguments)
    output = Output(as_json=arguments.json)
    if arguments.dry_run:
        return _dry_run(config, output)
    return gate_run(config, arguments.out or _default_folder(config), output)


def _add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("runs", metavar="RUNS", help="a store or a run folder")
    add("--run", metavar="NAME", help="only the trajectories of this run")
    add("--graph", help="graph of the new agent [the recorded one, as it is now]")
    add("--policy", help="policy of the new agent [the recorded one]")
    add(
        "--stand-in",
        action="store_true",
        help="let the policy answer for models that the graph holds itself",
    )
    add("--rewards", metavar="RUBRIC", help="scores both sides [the run's own, or the verifiers]")
    add("--prompts", metavar="FILE", help="prompts file of the new agent [texts of the run]")
    add("--samples", type=int, default=1, metavar="N", help="of the new agent for each run [1]")
    add(
        "--tools",
        choices=("recorded", "run", "refuse"),
        default="recorded",
        help="recorded results if call and history are equal, others run; run: all run; refuse:"
        " others end the run [recorded]",
    )
    add(
        "--budget",
        metavar="AMOUNT",
        help="limit of all requests: money as 2.50, or tokens as 200000tokens",
    )
    add(
        "--price",
        action="append",
        default=[],
        metavar="[MODEL=]PROMPT,COMPLETION",
        help="price of a million prompt and completion tokens, for all models or one; repeatable",
    )
    add("--margin", type=float, default=0.05, help="largest difference regarded as none [0.05]")
    add("--temperature", type=float, help="of the policy [that of the run]")
    add("--max-tokens", type=int, metavar="N", help="of its replies [that of the run]")
    add_graph_options(parser)
    add_own_types(parser)
    add(
        "--isolation",
        type=parse_isolation,
        default=DEFAULT_ISOLATION,
        help=f"the lowest isolation that is accepted [{DEFAULT_ISOLATION}]",
    )
    add("--environment", help="where model-written code runs [this machine]")
    add("--concurrency", type=int, metavar="N", help="runs at a time [8; 1 under a budget]")
    add("--out", type=Path, metavar="FOLDER", help="folder of the repeated runs [beside RUNS]")
    add("--report", metavar="FILE.md", help="write the report as Markdown")
    add(
        "--fail-on",
        choices=("worse", "undecided"),
        default="worse",
        help="verdict from which on the exit code is 1 [worse]",
    )
    add("--dry-run", action="store_true", help="say what would be asked, and stop")


def _refuse_invalid(arguments: argparse.Namespace) -> None:
    for name in ("samples", "concurrency", "max_tokens"):
        if (count := getattr(arguments, name)) is not None and count < 1:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} {count} is below 1.", f"Write {flag} 1.")
    if (heat := arguments.temperature) is not None and not 0 <= heat < math.inf:
        raise ConfigError(f"--temperature {heat} is not a temperature.", "Write --temperature 1.")
    if not 0 < arguments.margin < 1:
        raise ConfigError(
            f"--margin {arguments.margin} is not a share between 0 and 1.",
            "Write --margin 0.05 for 5 points.",
        )
    if arguments.stand_in and not arguments.policy:
        raise ConfigError("--stand-in needs --policy.", "Name the policy, or leave it out.")
    if (name := secret_in({**arguments.configurable, **arguments.context})) is not None:
        raise ConfigError(
            f"The option {name!r} is named like a secret, or has an address with a password, and"
            " would be recorded.",
            "Let the graph read it from an environment variable.",
        )


def _config_of(arguments: argparse.Namespace) -> GateConfig:
    given = {
        name: value
        for name, value in vars(arguments).items()
        if name in GateConfig.model_fields and value is not None
    }
    policy = arguments.policy and _resolved(arguments.policy)
    where = arguments.runs
    return GateConfig.model_validate(
        given
        | {
            "recorded": where if "://" in where else str(Path(where).resolve()),
            "policy": policy or "",
            "weights": stamp_of_weights(policy) if policy else "",
        }
    )


def _resolved(policy: str) -> str:
    """Model string with the whole path of its folder, since `resume` may run in another one."""
    asked = parse_model(policy)
    if asked.scheme or not is_folder(asked.name):
        return policy
    return policy.replace(asked.name, str(Path(asked.name).resolve()), 1)


def _default_folder(config: GateConfig) -> Path:
    """Folder beside the runs, whose name depends on what is compared."""
    compared = config.model_dump_json(exclude=set(FREE))
    digest = sha256(compared.encode()).hexdigest()[:8]
    if "://" in config.recorded:
        return Path("runs") / f"gate-{digest}"
    recorded = Path(config.recorded)
    return recorded.with_name(
        f"{recorded.stem if recorded.is_file() else recorded.name}-gate-{digest}"
    )


def _dry_run(config: GateConfig, output: Output) -> int:
    async def go() -> int:
        async with AsyncExitStack() as stack:
            gate = await _prepared(config, stack)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            _, _, expected, cost = await _replayed(gate, Path(folder), stack)
        output.result(expected_data(gate.found, expected, cost))
        for line in (*left_out_lines(gate.found), *expected_lines(gate.found, expected, cost)):
            output.say(line)
        return 0

    return asyncio.run(go())


def gate_run(config: GateConfig, out: Path, output: Output) -> int:
    """Run or resume the gate in folder `out`, and report it. Returns the exit code."""
    if config.policy and stamp_of_weights(config.policy) != config.weights:
        raise RunError(
            f"The weights of {config.policy} have changed since {out} was begun.",
            "Begin anew in another folder: `hrm-agent gate --out`.",
        )
    _refuse_folder(config, out)
    with resumed_by(f"hrm-agent resume {out}"):
        data = asyncio.run(_decide(config, out))
    output.result(data)
    print_report(output, data)
    save_for_viewer(config, data, out)
    if config.report:
        Path(config.report).write_text(markdown(data), encoding="utf-8")
    failing = ("worse",) if config.fail_on == "worse" else ("worse", "undecided")
    return 1 if data["verdict"] in failing else 0


def _refuse_folder(config: GateConfig, out: Path) -> None:
    """Raise `ConfigError` for a folder or a report that cannot be written."""
    store = out / "store.db"
    if store.exists() and not (out / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{out} has a store that is not of a gate.", "Name another folder: --out."
        )
    if config.recorded in (str(out.resolve()), str(store.resolve())):
        raise ConfigError(f"{out} has the recorded runs.", "Name another folder: --out.")
    if (out / CONFIG_FILE).is_file():
        read_config_file(out / CONFIG_FILE, "gate")  # reports the folder of another command
    report = Path(config.report)
    if config.report and (report.is_dir() or not report.parent.is_dir()):
        raise ConfigError(
            f"The report cannot be written to {report}: it is a folder, or its folder is missing.",
            "Name a file: --report gate.md.",
        )


@dataclass(frozen=True, slots=True)
class _Prepared:
    config: GateConfig
    source: RunStore
    found: RunsToRepeat
    spec: str
    """Import path of the rubric."""
    prices: Prices
    budget: RequestBudget | None


async def _prepared(config: GateConfig, stack: AsyncExitStack) -> _Prepared:
    """Check everything that can be checked before a folder is made."""
    prices = read_prices(config.price)
    budget = None if config.budget is None else read_budget(config.budget)
    allowed = types_by_name(config.allow)
    source = stack.enter_context(existing_store(config.recorded, allowed))
    environment = await stack.enter_async_context(
        opened_environment(config.environment, isolation=parse_isolation(config.isolation))
    )
    found = runs_to_repeat(source, config, environment)
    spec = scorer_of(found, source, config.rewards)
    _refuse_comparing(spec)
    return _Prepared(config, source, found, spec, prices, budget)


async def _replayed(
    gate: _Prepared, out: Path, stack: AsyncExitStack, store: RunStore | None = None
) -> tuple[Repeats, list[Repeat], Expected, float]:
    """Repeat all runs offline in folder `out`."""
    if store is None:
        allowed = types_by_name(gate.config.allow)
        store = stack.enter_context(open_store(out / "store.db", allow=allowed))
    answered = store.journal.calls_among
    file = out / "asked.jsonl"
    meter = Meter(file, gate.prices, gate.budget, answered, own_models=True)
    closed = Meter(file, gate.prices, None, answered)
    closed.close()
    repeats = Repeats(gate.source, store, run_id_of(out), gate.config.tools, meter)
    runs = gate.found.runs
    with progress("replay", len(runs)) as advance:
        offline = await repeated_offline(
            repeats, runs, closed, concurrency=_CONCURRENCY, on_done=lambda: advance("")
        )
    if all(each.trajectory is not None for each in offline):
        _refuse_without_effect(gate.config.policy, repeats.policies)
    _refuse_unreached(gate, offline)
    expected = expected_cost(offline, gate.config.samples)
    cost = expected_money(expected, gate.prices, gate.config.policy)
    return repeats, offline, expected, cost


async def _decide(config: GateConfig, out: Path) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        gate = await _prepared(config, stack)
        with _removed_on_error(out):
            stack.enter_context(alone_in(out))
            compare_on_resume(config, "gate", out, free=FREE)
            save_config(config, "gate", out)
            allowed = types_by_name(config.allow)
            store = stack.enter_context(open_store(out / "store.db", allow=allowed))
            folder = gate.found.folder
            scorer = await stack.enter_async_context(
                opened_scorer(
                    gate.spec,
                    environment={RUN_VARIABLE: str(folder.resolve())} if folder else {},
                )
            )
            scores = GateScores(scorer, gate.source, store)
            old = await _recorded_scores(gate, scores)
        for line in left_out_lines(gate.found):
            remark(line)
        repeats, offline, expected, cost = await _replayed(gate, out, stack, store)
        before = repeats.meter.requests
        for line in expected_lines(gate.found, expected, cost):
            remark(line)
        with progress("gate", len(offline)) as advance:
            result = await compare_runs(
                repeats,
                offline,
                old,
                scores,
                samples=config.samples,
                margin=config.margin,
                seed=_SEED,
                concurrency=config.concurrency or (_CONCURRENCY if gate.budget is None else 1),
                on_done=lambda: advance(""),
            )
        _refuse_without_effect(config.policy, repeats.policies)
        if config.prompts and not names_reached(config.prompts, store.journal.trajectories()):
            refuse_unreached_prompts(config.prompts)
        tell_unreached_prompts(config.prompts, store.journal.trajectories())
    return report_data(config, out, gate.found, result, expected, cost, repeats.meter, before)


async def _recorded_scores(gate: _Prepared, scores: GateScores) -> dict[str, float]:
    """Scores of the recorded runs, by trajectory id. Runs that cannot be judged are moved to those
    that are left out.
    """
    runs = gate.found.runs
    with progress("score", len(runs)) as advance:
        found = await scores.of(
            gate.source, [each.trajectory for each in runs], lambda: advance("")
        )
    gate.found.runs = []
    reasons = list[str]()
    judged = dict[str, float]()
    changed = 0
    for run, score in zip(runs, found, strict=True):
        if isinstance(score, str):
            reasons.append(score)
            gate.found.left_out[f"cannot be judged: {score}"].append(run.trajectory.thread_id)
            continue
        gate.found.runs.append(run)
        judged[run.trajectory.id] = score
        changed += bool(run.trajectory.rewards) and outcome_of(run.trajectory) != score
    if not judged:
        raise RunError(
            f"None of {len(runs)} recorded runs can be judged: {reasons[0]}.",
            "Name a rubric that can score them: --rewards.",
        )
    if changed:
        remark(
            f"{changed} of {len(runs)} recorded runs had another score. Both sides have those of"
            f" {gate.spec} as it is now."
        )
    return judged


@contextmanager
def _removed_on_error(folder: Path) -> Generator[None]:
    """Remove a folder that was made inside the block, if an error ends it."""
    there = folder.exists()
    try:
        yield
    except HrmError:
        if not there:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _refuse_without_effect(policy: str, asked: Collection[str]) -> None:
    """Raise `ConfigError` if no run asks the new policy. `asked`: models behind policy()."""
    loaded = policy.partition(":")[2].partition("?")[0]
    if policy and not {policy, loaded} & {*asked}:
        raise ConfigError(
            f"No run asks {policy}: the graph asks models of its own.",
            "Let the graph take its model from policy(), or let the policy answer for them:"
            " --stand-in.",
        )


def _refuse_unreached(gate: _Prepared, offline: Sequence[Repeat]) -> None:
    """Raise `ConfigError` if the texts of --prompts reach no request. `offline`: the repetitions, as
    far as the record answers them.
    """
    if gate.config.prompts and not any(each.other_requests for each in offline):
        recorded = (gate.source.journal.trajectory(each.trajectory.id) for each in gate.found.runs)
        if not names_reached(gate.config.prompts, recorded):
            refuse_unreached_prompts(gate.config.prompts)


def _refuse_comparing(spec: str) -> None:
    """Raise `ConfigError` for a rubric that compares the rollouts of a group."""
    rubric, _ = load_rubric(spec)
    if "group" in rubric.wants:
        raise ConfigError(
            f"{spec} compares the rollouts of a group, and a repeated run has none.",
            "Name another rubric: --rewards.",
        )
