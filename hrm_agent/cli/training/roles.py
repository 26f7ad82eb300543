"""`hrm-agent roles`: the role of a graph that deserves a better policy, by swaps of single roles."""

from __future__ import annotations

import asyncio
import math
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, ConfigDict

from hrm_agent.basics.files import alone_in
from hrm_agent.basics.intervals import Estimate
from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.interrupts import resumed_by
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.run_folder import existing_store
from hrm_agent.config import (
    COMMAND_KEY,
    CONFIG_FILE,
    build_config,
    compare_on_resume,
    read_config_file,
    save_config,
)
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.models import ActivePolicy, Backend
from hrm_agent.models.adapter_folder import is_adapter_folder, rank_on_record
from hrm_agent.models.loading.policy_loader import (
    load_policy,
    load_without_retries,
    size_of_weights,
    stamp_of_weights,
)
from hrm_agent.models.model_string import is_folder, parse_model
from hrm_agent.rewards import load_rubric
from hrm_agent.runtime.episode import EpisodeRunner
from hrm_agent.runtime.execution.run_context import options_on_record
from hrm_agent.runtime.selection.choice import is_choice
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.run_store import own_run
from hrm_agent.training.analysis.role_swaps import (
    ALL,
    RoleSwap,
    SwappedRun,
    best_role,
    role_swaps,
)
from hrm_agent.training.analysis.saved import save_analysis
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.evaluation.budget import Meter, RequestTotal, read_budget
from hrm_agent.training.evaluation.prices import Prices, read_prices
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.rollout import recorded_seed, run_id_of
from hrm_agent.training.rollout.scoring import scoring_by, scoring_by_family
from hrm_agent.training.tasks import run_verifier_of, verifier_of
from hrm_agent.trajectory import Trajectory, derive_seed, step_in_name

__all__ = ["RolesConfig", "roles_run", "run"]

_FREE = frozenset({"budget", "price", "concurrency", "together"})
"""Options that a resumed command may change."""
_BIGGER = 1.5
"""Ratio of the sizes of two policies above which training is not advised as a substitute."""


class RolesConfig(BaseModel):
    """Options of the command."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    recorded: str = ""
    """Folder of the recorded runs."""
    policy: str = ""
    """Policy to try."""
    weights: str = ""
    """Sizes and times of the policies' files."""
    together: bool = False
    """Swap all roles together as well."""
    temperature: float | None = None
    """Sampling temperature of the policy to try (None: that of the run)."""
    max_tokens: int | None = None
    """Maximum completion tokens of one of its replies (None: that of the run)."""
    budget: str | None = None
    """Limit of all requests, as text (None: no limit)."""
    price: list[str] = []
    """Prices, as texts."""
    concurrency: int = 64
    """Maximum number of runs in progress at a time."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Recorded runs, with the options that they had."""

    folder: Path
    config: CollectConfig | GrpoConfig
    policy: str
    """Policy of the roles that are not swapped."""

    @staticmethod
    def of(where: str) -> _Source:
        path = Path(where)
        if not path.exists():
            raise ConfigError(
                f"{where} is missing.",
                "Name the folder of an `eval`, a `collect` or a `train rl`.",
            )
        folder = path if path.is_dir() else path.parent
        file = folder / CONFIG_FILE
        if not file.is_file():
            raise ConfigError(
                f"{where} is not the folder of a run: it has no {CONFIG_FILE}.",
                "Name the folder of an `eval`, a `collect` or a `train rl`.",
            )
        try:
            command = str(tomllib.loads(file.read_text(encoding="utf-8")).get(COMMAND_KEY))
        except ValueError as error:
            raise RunError(f"{file} cannot be read: {error}.", "Name another run.") from error
        if command in ("collect", "eval"):
            values = read_config_file(file, command)
            config = build_config(CollectConfig, values, CONFIG_FILE, on_record=True)
            return _Source(folder, config, config.policy)
        if command == "train rl":
            values = read_config_file(file, command)
            trained = build_config(GrpoConfig, values, CONFIG_FILE, on_record=True)
            if not (folder / "model").is_dir():
                raise RunError(
                    f"The training in {folder} has not saved its policy yet.",
                    f"Continue it: `hrm-agent resume {folder}`.",
                )
            return _Source(folder, trained, str(folder / "model"))
        raise ConfigError(
            f"{folder} is the folder of `{command}`, whose runs roles cannot repeat.",
            "Name the folder of an `eval`, a `collect` or a `train rl`.",
        )

    @property
    def trained(self) -> bool:
        return isinstance(self.config, GrpoConfig)


def run(words: list[str]) -> int:
    """Return 1 if no role gains."""
    parser = Parser(
        "roles",
        "Say which role of a graph deserves a better policy: recorded runs are repeated with one"
        " role swapped.",
    )
    add = parser.add_argument
    add("run", help="folder of an `eval`, a `collect` or a `train rl` (its last step)")
    add("--try", dest="policy", metavar="POLICY", required=True, help="policy to try in each role")
    add("--all", dest="together", action="store_true", help="swap all roles together as well")
    add("--out", type=Path, metavar="FOLDER", help="folder of the repeated runs [RUN-roles]")
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
    add("--temperature", type=float, help="of the policy to try [that of the run]")
    add("--max-tokens", type=int, metavar="N", help="of its replies [that of the run]")
    add("--concurrency", type=int, metavar="N", help="swapped runs at a time [64]")
    arguments = parser.read(words)
    if (count := arguments.concurrency) is not None and count < 1:
        raise ConfigError(f"--concurrency {count} is below 1.", "Write --concurrency 8.")
    if (least := arguments.max_tokens) is not None and least < 1:
        raise ConfigError(f"--max-tokens {least} is below 1.", "Write --max-tokens 1024.")
    if (heat := arguments.temperature) is not None and not 0 <= heat < math.inf:
        raise ConfigError(f"--temperature {heat} is not a temperature.", "Write --temperature 1.")
    source = _Source.of(arguments.run)
    policy = _resolved(arguments.policy)
    config = RolesConfig(
        recorded=str(source.folder.resolve()),
        policy=policy,
        weights=_weights(source, policy),
        together=arguments.together,
        temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
        budget=arguments.budget,
        price=arguments.price,
        concurrency=arguments.concurrency or 64,
    )
    folder = source.folder.resolve()
    out = arguments.out or folder.with_name(f"{folder.name}-roles")
    return roles_run(config, out, Output(as_json=arguments.json))


def roles_run(config: RolesConfig, out: Path, output: Output) -> int:
    """Run the missing swaps in folder `out`, and report all. Returns the exit code."""
    source = _Source.of(config.recorded)
    if _weights(source, config.policy) != config.weights:
        raise RunError(
            f"The weights of {source.policy} or of {config.policy} have changed since {out} was"
            " begun.",
            "Begin anew in another folder: `hrm-agent roles --out`.",
        )
    budget = None if config.budget is None else read_budget(config.budget)
    prices = read_prices(config.price)
    with existing_store(config.recorded, source.config.allowed_types) as recorded:
        runs, roles = _runs(recorded, source)
        if _same_policy(config.policy, source.policy):
            raise ConfigError(
                f"{config.policy} is the policy of {source.folder} itself.",
                "Try another one: --try.",
            )
        load = load_policy if budget is None else load_without_retries
        tried = load(config.policy)
        others = load(source.policy)
        if source.trained:
            remark(f"Roles that are not swapped are asked of {source.policy}.")
        with alone_in(out):
            compare_on_resume(config, "roles", out, free=_FREE)
            save_config(config, "roles", out)
            with (
                open_store(out / "store.db", allow=source.config.allowed_types) as store,
                resumed_by(f"hrm-agent resume {out}"),
            ):
                meter = Meter(out / "asked.jsonl", prices, budget, store.journal.calls_among)
                swaps = asyncio.run(
                    _swaps(config, source, recorded, store, runs, roles, tried, others, meter, out)
                )
    return _report(output, config, source, swaps, meter, prices, len(runs), out)


def _runs(store: RunStore, source: _Source) -> tuple[list[SwappedRun], list[str]]:
    """Runs that can be repeated, and all roles that they call."""
    run_id = own_run(str(source.folder))
    where: tuple[str, tuple[str, ...]] = (
        ("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,))
    )
    headers = store.journal.headers(*where)
    if any(is_choice(each.graph) for each in headers):
        raise ConfigError(
            f"{source.folder} chose each answer among several runs (--mode).",
            "Name a run of --mode single.",
        )
    steps = [step_in_name(each.thread_id, each.run_id) for each in headers]
    last = max((step for step in steps if step is not None), default=None)
    if source.trained and last is not None:
        headers = [each for each, step in zip(headers, steps, strict=True) if step == last]
    sampled = {each.thread for each in samples_of(headers)}
    judged = [
        each
        for each in headers
        if each.thread_id in sampled and not each.turns and fault_of(each) is None
    ]
    if not judged:
        raise RunError(
            f"No run in {source.folder} has ended and was judged.",
            f"`hrm-agent history --store {source.folder}` lists them.",
        )
    if len(judged) < len(sampled):
        remark(f"{len(sampled) - len(judged)} of {len(sampled)} runs are left out: not judged.")
    roles = dict[str, None]()
    found = list[SwappedRun]()
    rewards = source.config.rewards
    for header in judged:
        each = store.journal.with_calls(header, requests=False)
        called = dict.fromkeys(call.identity.role for call in each.calls)
        roles |= called
        seed = recorded_seed(each, source.config.seed)
        if seed is None:
            seed = derive_seed(source.config.seed, "roles", each.thread_id)
        found.append(
            SwappedRun(
                header,
                frozenset(called),
                options_on_record(store, each.thread_id, each.task).context or {},
                seed,
                verifier_of(each.task, store.folder) if rewards is None else None,
                run_verifier_of(each.task) if rewards is None else None,
            )
        )
    if not roles:
        raise RunError(f"No run in {source.folder} asked a model.", "Name another run.")
    return sorted(found, key=lambda each: _place(each.trajectory)), [*roles]


def _resolved(policy: str) -> str:
    """Model string with the whole path of its folder, since `resume` may run in another one."""
    asked = parse_model(policy)
    if asked.scheme or not is_folder(asked.name):
        return policy
    return policy.replace(asked.name, str(Path(asked.name).resolve()), 1)


def _weights(source: _Source, policy: str) -> str:
    """Stamps of the files of both policies."""
    return "; ".join(map(stamp_of_weights, (source.policy, policy)))


def _same_policy(one: str, other: str) -> bool:
    """True for equal model strings, and for two names of the same files."""
    stamp = stamp_of_weights(one)
    same_files = bool(stamp) and "?" not in one + other and stamp == stamp_of_weights(other)
    return one == other or same_files


def _place(header: Trajectory) -> tuple[object, ...]:
    """Order of the tasks, whichever ended first."""
    parts = header.thread_id.split("/")
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


async def _swaps(
    config: RolesConfig,
    source: _Source,
    recorded: RunStore,
    store: RunStore,
    runs: Sequence[SwappedRun],
    roles: Sequence[str],
    tried: Backend,
    others: Backend,
    meter: Meter,
    out: Path,
) -> list[RoleSwap]:
    settings = source.config
    options = settings.runner_options()
    sampling = options.get("sampling", settings.sampling())
    given = {"temperature": config.temperature, "max_tokens": config.max_tokens}
    own = {name: value for name, value in given.items() if value is not None}
    by_provider = isinstance(tried, BaseChatModel) and source.trained
    swapped = ActivePolicy(
        tried,
        type(sampling).model_validate(
            {**({} if by_provider else sampling.model_dump(exclude_unset=True)), **own}
        ),
        options.get("constrain", True),
    )
    total = sum(len(each.roles) + config.together for each in runs)
    if isinstance(settings, GrpoConfig):
        scoring = scoring_by_family(
            settings, store, carry_over=False, forks=False, keeps_truncated=False
        )
    else:
        scoring = scoring_by(settings, store)
    _refuse_comparing(settings)
    async with (
        EpisodeRunner.open(store, source.policy, settings, backend=others) as runner,
        scoring as score,
    ):
        with progress("swaps", total) as advance:
            return await role_swaps(
                runner,
                recorded,
                runs,
                roles,
                swapped,
                score,
                meter,
                run_id=run_id_of(out),
                together=config.together,
                concurrency=config.concurrency,
                on_done=lambda _: advance(""),
            )


def _refuse_comparing(settings: CollectConfig | GrpoConfig) -> None:
    """Raise `ConfigError` for a rubric that compares the rollouts of a group: some swaps are not
    run.
    """
    rubrics = settings.rubrics if isinstance(settings, GrpoConfig) else (settings.rewards,)
    for name in filter(None, rubrics):
        rubric, _ = load_rubric(name)
        if "group" in rubric.wants:
            raise ConfigError(
                f"{name} compares the rollouts of a group, and a swapped rollout has none.",
                "Score the run by another rubric: `hrm-agent collect --rewards`.",
            )


def _report(
    output: Output,
    config: RolesConfig,
    source: _Source,
    swaps: Sequence[RoleSwap],
    meter: Meter,
    prices: Prices,
    recorded: int,
    out: Path,
) -> int:
    best = best_role(swaps)
    others = [each.role for each in swaps if each.role not in (best, ALL)]
    total = meter.total
    said = _advice(config, source, best, others)
    compared = swaps[0].comparison
    runs = compared.a.trajectories
    unjudged = swaps[0].unjudged
    result = {
        "run": config.recorded,
        "policy": source.policy,
        "try": config.policy,
        "tasks": compared.problems,
        "runs": runs,
        "recorded_runs": recorded,
        "unjudged_runs": unjudged,
        "budget": config.budget,
        "budget_used_up": meter.closed,
        "roles": [_data(each) for each in swaps],
        "asked": _asked(total),
        "best": best,
        "advice": said,
        "folder": str(out),
    }
    output.result(result)
    _saved(config, result, out)
    rows = [
        (
            each.role,
            each.called,
            each.comparison.a.pass_at_1.value,
            each.comparison.b.pass_at_1.value,
            _interval(each.comparison.difference),
            _tokens(each.asked),
            _tokens(each.asked_others),
            _amount(each.cost),
            _amount(each.for_a_point(each.tokens)),
            _amount(each.for_a_point(each.cost)),
        )
        for each in swaps
    ]
    heads = (
        *(
            "role",
            "runs",
            "before",
            "after",
            "gain (95 % interval)",
            "asked of it",
            "asked of others",
        ),
        *("cost", "tokens a point", "cost a point"),
    )
    priced = any(each.cost > 0 for each in swaps)
    kept = [n for n, head in enumerate(heads) if priced or not head.startswith("cost")]
    output.table(
        [heads[n] for n in kept],
        [[row[n] for n in kept] for row in rows],
        title=f"{config.policy} in each role of {config.recorded}",
    )
    tasks = "1 task" if compared.problems == 1 else f"{compared.problems} tasks"
    output.say(f"Based on {tasks}{_cut(meter, config, runs, recorded - unjudged)}.")
    if unjudged:
        remark(f"{unjudged} of {recorded} runs are left out: a swap of theirs was not judged.")
    asked = ", ".join(sorted(meter.models)) or "none"
    for name in prices.by_model:
        if name and name not in meter.models:
            remark(f"--price {name}: no model of this name was asked. Asked: {asked}.")
    cost = f", cost {total.cost:.4g}" if priced else ""
    output.say(f"Asked in all: {_tokens(total)} tokens (prompt + completion){cost}.")
    output.say(said)
    return 0 if best else 1


def _saved(config: RolesConfig, result: dict[str, Any], out: Path) -> None:
    """Save a result for the viewer. If the run's folder cannot be written to, that is reported."""
    given = config.model_dump(include={"policy", "weights", "temperature", "max_tokens"})
    words = ["hrm-agent", "resume", str(out)]
    title = f"{config.policy} in each role"
    try:
        save_analysis(
            Path(config.recorded), "roles", given, title=title, command=shlex.join(words),
            result=result,
        )  # fmt: skip
    except OSError as error:
        remark(f"The result is not saved for the viewer: {error}.")


def _cut(meter: Meter, config: RolesConfig, runs: int, recorded: int) -> str:
    if runs == recorded:
        return ""
    why = f": the budget of {config.budget} does not suffice for more" if meter.closed else ""
    return f", {runs} of {recorded} runs{why}"


def _advice(config: RolesConfig, source: _Source, best: str, others: Sequence[str]) -> str:
    if not best:
        return "No role gains: no interval lies clearly above 0."
    how = f"policy(model={config.policy!r}) in its node"
    if source.config.graph == "reasoning":
        how = f"--context {shlex.quote(f'models.{best}={config.policy}')}"
    trainable = parse_model(source.policy).local
    if not trainable or not parse_model(config.policy).local:
        return f"Give {best} the bigger model: {how}"
    training = f"`{shlex.join(_training(source, others))}`"
    sizes = (size_of_weights(config.policy), size_of_weights(source.policy))
    if not all(sizes):
        return f"Give {best} the other policy ({how}), or train it: {training}"
    if sizes[0] > _BIGGER * sizes[1]:
        return f"Give {best} the bigger model: {how}"
    return f"Train {best} next: {training}"


def _training(source: _Source, frozen: Sequence[str]) -> list[str]:
    """Command that trains the policy of a run on its tasks. Training always stands in for models
    of the graph, so it has no option for this.
    """
    words = ["hrm-agent", "train", "rl", "--policy", source.policy, "--graph", source.config.graph]
    for name in ("tasks", "rewards", "max_tokens"):
        value = getattr(source.config, name)
        if value != GrpoConfig.model_fields[name].default:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if is_adapter_folder(source.policy):
        words += ["--lora-rank", str(rank_on_record(source.policy))]
    return [*words, *(word for role in frozen for word in ("--frozen-roles", role))]


def _data(each: RoleSwap) -> dict[str, Any]:
    cost = each.cost
    comparison = asdict(each.comparison)
    # the recorded runs were read without their calls
    for side in (comparison, comparison["a"], comparison["b"]):
        del side["sampled_tokens"], side["tool_errors"]
    return {
        "role": each.role,
        "called": each.called,
        "comparison": {**comparison, "certain": each.comparison.certain},
        "asked": _asked(each.asked),
        "asked_others": _asked(each.asked_others),
        "cost": cost,
        "tokens_for_a_point": each.for_a_point(each.tokens),
        "cost_for_a_point": each.for_a_point(cost),
    }


def _asked(asked: RequestTotal) -> dict[str, float]:
    return {"read": asked.read, "sampled": asked.sampled, "cost": asked.cost}


def _tokens(asked: RequestTotal) -> str:
    return f"{asked.read:,} + {asked.sampled:,}"


def _amount(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _interval(found: Estimate) -> str:
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
