"""Simulated cost of a step of rollouts on many engines: policies of the scheduler, and the paper's
size.

    python -m benchmarks.simulate policies [--tightness 0.15 0.3 0.6] [--seeds 1] [--policies NAME ...]
    python -m benchmarks.simulate step [--times 1 10] [--json FILE] [--pictures FOLDER] [--processes 2]

`policies` prints one row for each policy, tightness and seed. `share` is the least time that a step
could take over the time that it took. The last columns are the speed relative to other policies on
the same work. `step` prints the load on engines, environment and store at the paper's size (64
engines and 512 prompts x 32, with limits of 8K and 12K tokens), and at multiples of engines and
prompts. Seconds are those that the model of an engine predicts; `docs/scale.md` has the
assumptions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.simulate.cases import (
    ENGINES,
    Case,
    cases_of,
    read_model,
    read_rows,
    row_of,
    run_cases,
)
from benchmarks.simulate.fleet import Outcome
from benchmarks.simulate.report import Found, compared, costs, draw_engines, draw_shares
from benchmarks.simulate.workload import Workload
from hrm_agent.errors import HrmError
from hrm_agent.training.engines.policies import POLICIES

LIMITS = {8_000: 3_000.0, 12_000: 5_000.0}
"""Mean response by limit of the response, in tokens. The paper's mean grows from 1K to 4K under the
first limit, to 6K under the second.
"""
WATCHED = ("static_prompts", "static_rollouts", "expected_peak")


def policies_cases(options: argparse.Namespace) -> list[Case]:
    work = Workload(groups=8 * options.engines)
    return [
        case
        for tightness in options.tightness
        for seed in range(1, options.seeds + 1)
        for case in cases_of(
            options.model, options.engines, work, seed, tightness, options.policies
        )
    ]


def step_cases(options: argparse.Namespace) -> list[Case]:
    """Cases of `step`, at the tightness that follows from the engine's cache and the limit of
    12K.
    """
    work = Workload(groups=8 * options.engines)
    found: list[Case] = []
    for times in options.times:
        for limit in options.limits:
            mean = LIMITS[limit]
            engines, sized = (
                options.engines * times,
                replace(work, max_response=limit, mean_response=mean).times(times),
            )
            tightness = (
                options.model.capacity_tokens
                * engines
                / (sized.count * (mean + sized.prompt_tokens))
            )
            found += cases_of(options.model, engines, sized, 1, tightness, options.policies)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("policies", "step"), default="policies")
    parser.add_argument(
        "--engine", type=Path, default=ENGINES / "mi300x-qwen3-14b.json", help="its constants"
    )
    parser.add_argument("--engines", type=int, default=64, help="with 8 prompts x 32 for each")
    parser.add_argument("--tightness", type=float, nargs="+", default=[0.15, 0.3, 0.6])
    parser.add_argument(
        "--times", type=int, nargs="+", default=[1, 10], help="of the paper's size, for `step`"
    )
    parser.add_argument(
        "--limits", type=int, nargs="+", choices=LIMITS, default=[*LIMITS], help="longest responses"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--policies", nargs="+", choices=sorted(POLICIES), help="all of them, by default"
    )
    parser.add_argument(
        "--blind", action="store_true", help="the scheduler learns lengths at the end of turns only"
    )
    parser.add_argument("--processes", type=int, default=1, help="that simulate at the same time")
    parser.add_argument(
        "--seen",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="show what earlier runs wrote, run nothing",
    )
    parser.add_argument(
        "--quick", action="store_true", help="two engines, one seed: to see that it runs"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--pictures", type=Path, help="draw into this folder")
    options = parser.parse_args()
    if options.quick:
        options.engines, options.seeds, options.tightness, options.times = 2, 1, [0.3], [1]
    options.policies = options.policies or (WATCHED if options.what == "step" else sorted(POLICIES))
    return options


def pictures(found: Found, options: argparse.Namespace) -> None:
    options.pictures.mkdir(parents=True, exist_ok=True)
    if options.what == "policies":
        draw_shares(found, options.pictures / "simulated-share.png")
    else:
        draw_engines(
            [each for each in found if each[0] is found[-1][0] or each[1].timeline],
            options.pictures / "simulated-engines.png",
        )


def _place(found: tuple[Case, Outcome]) -> tuple[float, int, str]:
    return found[0].tightness, found[0].seed, found[0].policy


def main() -> None:
    options = _options()
    console = Console(width=150)  # wide enough for the tables, also in a file
    try:
        options.model = read_model(options.engine)
    except HrmError as error:
        raise SystemExit(str(error)) from None
    cases = policies_cases(options) if options.what == "policies" else step_cases(options)
    cases = [replace(case, streamed=not options.blind) for case in cases]
    if options.what == "step":  # only the largest limit at the paper's size is drawn
        drawn = [case for case in cases if case.engines == options.engines][
            -len(options.policies) :
        ]
        cases = [replace(case, watch_seconds=2.0) if case in drawn else case for case in cases]

    def report(case: Case, outcome: Outcome) -> tuple[Case, Outcome]:
        console.print(
            f"{case.tightness:.2f} {case.label}: {outcome.seconds:,.0f} s, {outcome.share:.3f}",
            style="dim",
        )
        return case, outcome

    if options.seen:
        found: Any = sorted((each for path in options.seen for each in read_rows(path)), key=_place)
    else:
        found = run_cases(cases, options.processes, report)
    console.print(compared(found) if options.what == "policies" else costs(found))
    console.print(f"Simulated. {options.model.source}")
    if options.pictures:
        pictures(found, options)
    if options.json:
        settings = {"what": options.what, "engine": options.engine.stem, "cores": os.cpu_count()}
        rows = {
            "settings": {**settings, "python": platform.python_version()},
            "rows": [row_of(*each) for each in found],
        }
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
