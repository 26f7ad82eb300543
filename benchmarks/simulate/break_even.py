"""Break-even of holding rollouts back: the gain over a static split, by b.

    python -m benchmarks.simulate.break_even [--seeds 2] [--quick] [--json FILE]

b is the time to compute a token again for each of the n sequences that fit, over the time of an
iteration, which samples such a token: P n / (max(W, C n) + O) (see `benchmarks.simulate.engine`).
Each row has few engines, with the constants of a GPU or of a server on a core, short rollouts and
expensive tokens. `hold` is the time of `static_rollouts` over that of `expected_peak` without the
engine's constants. `all` is the time of `static_rollouts` over that of `expected_peak` when it
admits every rollout.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.simulate.cases import ENGINES, cases_of, read_model, run_case
from benchmarks.simulate.engine import EngineModel
from benchmarks.simulate.workload import Workload

SHORT = Workload(
    groups=8, group_size=16, prompt_tokens=64, mean_response=100, max_response=256, tool_tokens=10
)
TOKEN_MS = (0.1, 0.25, 0.5, 1.0, 2.0, 8.0)
Row = dict[str, Any]


def measured(
    label: str, model: EngineModel, engines: int, work: Workload, tightness: float, seeds: int
) -> Row:
    found: dict[str, list[float]] = {"b": [], "hold": [], "all": []}
    for seed in range(1, seeds + 1):
        static, hold = cases_of(
            model, engines, work, seed, tightness, ["static_rollouts", "expected_peak"]
        )
        longest = work.max_response + work.prompt_tokens + 2 * model.block_tokens
        sized = replace(static.model, capacity_tokens=max(static.model.capacity_tokens, longest))
        static, hold = replace(static, model=sized), replace(hold, model=sized, told=False)
        everybody = replace(hold, options={"admit_all": True})
        base = run_case(static).seconds
        found["hold"].append(base / run_case(hold).seconds)
        found["all"].append(base / run_case(everybody).seconds)
        fits = sized.capacity_tokens / (work.mean_response + work.prompt_tokens)
        found["b"].append(model.costs.recompute_share(fits))
    medians = {name: statistics.median(each) for name, each in found.items()}
    return {
        "engine": label,
        "engines": engines,
        "rollouts": work.count,
        "tightness": tightness,
        **medians,
    }


def rows(seeds: int, quick: bool) -> Iterator[Row]:
    core = EngineModel(0.005, 0.005, 1e-7, 0.0, 1, block_tokens=32, max_running=64)
    for milliseconds in TOKEN_MS[:1] if quick else TOKEN_MS:
        for tightness in (0.15, 0.3):
            model = replace(core, token_s=milliseconds / 1e3)
            yield measured(
                f"a core, {milliseconds:g} ms a token", model, 2, SHORT, tightness, seeds
            )
    if not quick:
        gpu = read_model(ENGINES / "mi300x-qwen3-14b.json")
        for engines in (2, 8):
            for groups in (2, 8):
                for tightness in (0.15, 0.3):
                    work = Workload(groups=engines * groups)
                    yield measured("GPU", gpu, engines, work, tightness, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one engine: to see that it runs")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    found = sorted(rows(options.seeds, options.quick), key=lambda row: row["b"])
    table = Table(*found[0])
    for row in found:
        table.add_row(
            *(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values())
        )
    Console(width=110).print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
