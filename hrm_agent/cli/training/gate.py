"""`hrm-agent gate`: is the changed agent better or worse than the one whose runs are recorded?"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hrm_agent.basics.files import alone_in
from hrm_agent.cli.common.arguments import Parser, add_graph_options
from hrm_agent.cli.common.interrupts import resumed_by
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.own_types import add_own_types
from hrm_agent.cli.common.run_folder import existing_store
from hrm_agent.cli.training.gate_report import (
    expected_data,
    expected_lines,
    expected_money,
    left_out_lines,
    markdown,
    print_report,
    report_data,
    save_for_viewer,
)
from hrm_agent.cli.training.gate_runs import RunsToRepeat, Wanted, runs_to_repeat, scorer_of
from hrm_agent.config import compare_on_resume, save_config, secret_in
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, parse_isolation
from hrm_agent.environment.open import opened_environment
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.import_by_name import types_by_name
from hrm_agent.models.loading.policy_loader import stamp_of_weights
from hrm_agent.models.model_string import is_folder, parse_model
from hrm_agent.rewards import load_rubric, opened_scorer
from hrm_agent.store import open_store
from hrm_agent.training.analysis.gate import (
    Expected,
    GateResult,
    compare_runs,
    expected_cost,
    repeated_offline,
)
from hrm_agent.training.analysis.gate_repeats import Repeat, Repeats, ToolRule
from hrm_agent.training.evaluation.budget import Meter, read_budget
from hrm_agent.training.evaluation.prices import read_prices
from hrm_agent.training.rollout.rollout import run_id_of
from hrm_agent.training.tasks.own_verifier import RUN_VARIABLE

__all__ = ["GateConfig", "gate_run", "run"]

FREE = frozenset(
    {"budget", "price", "concurrency", "margin", "samples", "report", "fail_on", "environment"}
)
"""Options that a resumed command may change."""
_CONCURRENCY = 8
_SEED = 0
"""Seed of the order of the tasks."""


class GateConfig(BaseModel):
    """Options of the command."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    recorded: str = ""
    """Store or run folder of the recorded runs."""
    run: str = ""
    """Only the trajectories of this run (empty: all of the store, or of the folder's run)."""
    graph: str = ""
    """Graph of the new agent (empty: the recorded one, with its current code)."""
    policy: str = ""
    """Policy of the new agent (empty: the recorded one)."""
    weights: str = ""
    """Sizes and times of the policy's files."""
    stand_in: bool = False
    """Let the policy answer for models that the graph holds itself."""
    rewards: str = ""
    """Rubric of both sides (empty: that of the recorded run, or the tasks' verifiers)."""
    samples: int = 1
    """Samples of the new agent for each run."""
    tools: ToolRule = "recorded"
    """Rule for tool calls."""
    temperature: float | None = None
    """Sampling temperature of the policy (None: that of the run)."""
    max_tokens: int | None = None
    """Maximum completion tokens of one of its replies (None: that of the run)."""
    context: dict[str, Any] = {}
    """Options of the graph, over the recorded ones."""
    configurable: dict[str, Any] = {}
    """Values of config["configurable"], over the recorded ones."""
    allow: list[str] = []
    """Types that states may hold."""
    isolation: str = DEFAULT_ISOLATION
    """Minimum isolation of model-written code."""
    environment: str | None = None
    """Environment of model-written code (None: this machine)."""
    margin: float = 0.05
    """Largest difference that is regarded as none."""
    budget: str | None = None
    """Limit of all requests, as text (None: no limit)."""
    price: list[str] = []
    """Prices, as texts."""
    concurrency: int | None = None
    """Maximum number of repetitions in progress at a time (None: 8, or 1 under a budget)."""
    report: str = ""
    """File of the report in Markdown (empty: none)."""
    fail_on: Literal["worse", "undecided"] = "worse"
    """Verdict from which on the exit code is 1."""


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
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_gate(config, Path(folder), output, ask=False))


def gate_run(config: GateConfig, out: Path, output: Output) -> int:
    """Run or resume the gate in folder `out`, and report it. Returns the exit code."""
    if config.policy and stamp_of_weights(config.policy) != config.weights:
        raise RunError(
            f"The weights of {config.policy} have changed since {out} was begun.",
            "Begin anew in another folder: `hrm-agent gate --out`.",
        )
    with existing_store(config.recorded, types_by_name(config.allow)):
        pass  # reports a missing store before a folder is made
    with alone_in(out):
        compare_on_resume(config, "gate", out, free=FREE)
        save_config(config, "gate", out)
        with resumed_by(f"hrm-agent resume {out}"):
            return asyncio.run(_gate(config, out, output, ask=True))


async def _gate(config: GateConfig, out: Path, output: Output, *, ask: bool) -> int:
    """Repeat the runs in folder `out`. `ask`: False to report only what would be asked."""
    prices = read_prices(config.price)
    budget = None if config.budget is None else read_budget(config.budget)
    concurrency = config.concurrency or (_CONCURRENCY if budget is None else 1)
    allowed = types_by_name(config.allow)
    async with AsyncExitStack() as stack:
        source = stack.enter_context(existing_store(config.recorded, allowed))
        store = stack.enter_context(open_store(out / "store.db", allow=allowed))
        environment = await stack.enter_async_context(
            opened_environment(config.environment, isolation=parse_isolation(config.isolation))
        )
        found = runs_to_repeat(source, _wanted(config, budget is None), store, environment)
        spec = scorer_of(found, source, config.rewards)
        refuse_comparing(spec)
        meter = Meter(out / "asked.jsonl", prices, budget, store.journal.calls_among)
        before = meter.requests
        closed = Meter(out / "asked.jsonl", prices, None, store.journal.calls_among)
        closed.close()
        repeats = Repeats(source, store, run_id_of(out), config.tools, meter)
        with progress("replay", len(found.runs)) as advance:
            offline = await repeated_offline(
                repeats,
                found.runs,
                closed,
                concurrency=_CONCURRENCY,
                on_done=lambda: advance(""),
            )
        if config.policy and config.policy not in found.policies:
            _refuse_without_effect(config.policy, offline)
        expected = expected_cost(offline, config.samples)
        cost = expected_money(expected, prices, config.policy)
        if not ask:
            output.result(expected_data(found, expected, cost))
            for line in (*left_out_lines(found), *expected_lines(found, expected, cost)):
                output.say(line)
            return 0
        for line in (*left_out_lines(found), *expected_lines(found, expected, cost)):
            remark(line)
        variables = {RUN_VARIABLE: str(found.folder.resolve())} if found.folder else {}
        scorer = await stack.enter_async_context(opened_scorer(spec, environment=variables))
        with progress("gate", len(found.runs)) as advance:
            result = await compare_runs(
                repeats,
                offline,
                source,
                store,
                scorer,
                meter,
                samples=config.samples,
                margin=config.margin,
                seed=_SEED,
                concurrency=concurrency,
                on_done=lambda: advance(""),
            )
    return _report(config, out, output, found, result, expected, cost, meter, before)


def _wanted(config: GateConfig, retries: bool) -> Wanted:
    given = {"temperature": config.temperature, "max_tokens": config.max_tokens}
    return Wanted(
        where=config.recorded,
        run=config.run,
        graph=config.graph,
        policy=config.policy,
        stand_in=config.stand_in,
        sampling={name: value for name, value in given.items() if value is not None},
        context=config.context,
        configurable=config.configurable,
        retries=retries,
    )


def _refuse_without_effect(policy: str, offline: Sequence[Repeat]) -> None:
    """Raise `ConfigError` if no run would ask another policy."""
    if all(each.trajectory is not None for each in offline):
        raise ConfigError(
            f"No run asks {policy}: the graph asks models of its own.",
            "Let the graph take its model from policy(), or let the policy answer for them:"
            " --stand-in.",
        )


def refuse_comparing(spec: str) -> None:
    """Raise `ConfigError` for a rubric that compares the rollouts of a group."""
    rubric, _ = load_rubric(spec)
    if "group" in rubric.wants:
        raise ConfigError(
            f"{spec} compares the rollouts of a group, and a repeated run has none.",
            "Name another rubric: --rewards.",
        )


def _report(
    config: GateConfig,
    out: Path,
    output: Output,
    found: RunsToRepeat,
    result: GateResult,
    expected: Expected,
    cost: float,
    meter: Meter,
    before: int,
) -> int:
    data = report_data(config, out, found, result, expected, cost, meter, before)
    output.result(data)
    if config.report:
        file = Path(config.report)
        file.write_text(markdown(data), encoding="utf-8")
    save_for_viewer(config, data, out)
    print_report(output, data)
    failing = ("worse",) if config.fail_on == "worse" else ("worse", "undecided")
    return 1 if result.verdict in failing else 0
