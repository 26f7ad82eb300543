"""Cases of the simulation, each a step under one policy. Several cases run in separate
processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.simulate.engine import EngineModel
from benchmarks.simulate.fleet import Outcome, simulate
from benchmarks.simulate.workload import Planned, Workload, drawn
from hrm_agent.errors import ConfigError
from hrm_agent.training.engines.policies import LengthCurve, scheduling_policy

ENGINES = Path(__file__).with_name("engines")
FIXED_LIMITS = (0.8, 1.0, 1.2, 1.4, 1.7)
"""Fixed limits, as multiples of the number of rollouts of mean final length that a cache holds."""
_STEP_BEFORE = 1_000
"""Offset of the seed for the earlier step whose lengths the policies know."""


@dataclass(frozen=True)
class Case:
    """Step to simulate."""

    model: EngineModel
    engines: int
    work: Workload
    policy: str
    seed: int
    tightness: float
    """Tightness: tokens that all caches hold over the tokens of all rollouts at their ends. At 1
    all rollouts fit.
    """
    options: dict[str, float] = field(default_factory=dict[str, float])
    """Options of the policy."""
    streamed: bool = True
    """True if the scheduler receives tokens as they are sampled, and not only when a turn ends."""
    told: bool = True
    """True if the scheduler receives the constants of the engine."""
    watch_seconds: float = 0.0

    @property
    def label(self) -> str:
        shown = {
            name: value
            for name, value in self.options.items()
            if name in ("of the fitting", "over_commit")
        }
        return self.policy + "".join(f", {name} {value:g}" for name, value in shown.items())


def read_model(path: Path) -> EngineModel:
    """Read a model of an engine. Raise `ConfigError` for a file that is missing or has other fields
    than `EngineModel`.
    """
    try:
        return EngineModel(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        known = ", ".join(sorted(each.stem for each in ENGINES.glob("*.json")))
        raise ConfigError(
            f"{path} has no constants of an engine: {error}.",
            f"Name a file as those in {ENGINES}: {known}.",
        ) from error


def cases_of(
    model: EngineModel,
    engines: int,
    work: Workload,
    seed: int,
    tightness: float,
    policies: Iterable[str],
) -> list[Case]:
    """Cases of each policy: `fixed_limit` for all of `FIXED_LIMITS`, `safe_maximum` in both its
    variants.
    """
    sized = replace(
        model, capacity_tokens=round(tightness * work.count / engines * final_tokens(work, seed))
    )
    fits = tightness * work.count / engines
    options: dict[str, list[dict[str, float]]] = {
        "fixed_limit": [
            {"limit": max(1, min(work.count, round(times * fits))), "of the fitting": times}
            for times in FIXED_LIMITS
        ],
        "safe_maximum": [
            {"max_response_tokens": work.max_response, "over_commit": factor}
            for factor in (1.0, 0.7)
        ],
    }
    return [
        Case(sized, engines, work, policy, seed, tightness, chosen)
        for policy in policies
        for chosen in options.get(policy, [{}])
    ]


def final_tokens(work: Workload, seed: int) -> float:
    """Mean length of a rollout at its end, prompt included."""
    rollouts = _drawn(work, seed)
    return sum(each.prompt_tokens + each.response_tokens for each in rollouts) / len(rollouts)


@lru_cache(maxsize=2)
def _drawn(work: Workload, seed: int) -> list[Planned]:
    return drawn(work, seed)


@lru_cache(maxsize=2)
def _curve(work: Workload, seed: int) -> LengthCurve:
    return LengthCurve.of(each.response_tokens for each in drawn(work, seed + _STEP_BEFORE))


def run_case(case: Case) -> Outcome:
    """Simulate a case. The known lengths are those of another step of the same distribution."""
    options = {name: value for name, value in case.options.items() if name != "of the fitting"}
    return simulate(
        _drawn(case.work, case.seed),
        case.model,
        case.engines,
        scheduling_policy(case.policy, **options),
        _curve(case.work, case.seed),
        seed=case.seed,
        streamed=case.streamed,
        told=case.told,
        watch_seconds=case.watch_seconds,
    )


def run_cases(cases: Sequence[Case], processes: int, report: Any) -> list[Outcome]:
    """Outcomes in the order of the cases. `report` is called after each."""
    if processes == 1:
        return [report(case, run_case(case)) for case in cases]
    with ProcessPoolExecutor(processes) as pool:
        return [
            report(case, outcome)
            for case, outcome in zip(cases, pool.map(run_case, cases), strict=True)
        ]


def row_of(case: Case, outcome: Outcome) -> dict[str, Any]:
    """Row of a case for a results file."""
    model = {name: value for name, value in asdict(case.model).items() if name != "source"}
    return {
        "policy": case.policy,
        **{
            name: getattr(case, name)
            for name in ("options", "engines", "seed", "tightness", "streamed", "told")
        },
        "model": model,
        "work": asdict(case.work),
        **{name: value for name, value in asdict(outcome).items() if name != "timeline"},
    }


def read_rows(path: Path) -> list[tuple[Case, Outcome]]:
    """Cases and outcomes of an earlier run, written with `row_of`."""
    found: list[tuple[Case, Outcome]] = []
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        told = {field.name: row[field.name] for field in fields(Outcome) if field.name in row}
        known = {name: row[name] for name in ("policy", "engines", "seed", "tightness", "options")}
        found.append(
            (
                Case(EngineModel(**row["model"]), work=Workload(**row["work"]), **known),
                Outcome(**told),
            )
        )
    return found
