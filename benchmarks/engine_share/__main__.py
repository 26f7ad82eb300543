"""Share of the bare engine in the cost of a rollout.

    python -m benchmarks.engine_share [--sizes 0.5M,5M,25M,100M] [--rollouts 64] [--repeats 3] [--threads 1]
                                      [--peers PYTHON] [--json FILE] [--picture FILE]

Word problems are recorded once with the shipped small policy. Then they are repeated with random
networks of several sizes, which return the recorded answers, token by token. `bare`: the in-process
engine alone is given the recorded prompts; a conversation's next prompt follows as soon as the
previous one is answered. `whole`: `collect` from an empty folder to a closed store, with the graph
`tool_loop`, checkpoints, record, and every call of the tool in the sandbox. The share is the CPU
seconds of `bare` over those of `whole`. CPU seconds are read from a cgroup if possible, so that no
process of the sandbox is missed. `bare` and `whole` take turns; the median of the repeats counts.

Each size runs in a separate process. `OMP_NUM_THREADS` is what `--threads` says, on both sides:
threads of torch that wait for one another would count as work of the engine.

PYTHON is the interpreter of a virtual environment that has `trl` and `smolagents`. Their cost is
compared with the bare `generate` of transformers, with the same networks and answers (see
`peers_driver.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.engine_share.networks import SIZES
from benchmarks.engine_share.peers import peers
from hrm_agent.basics.plotting import new_figure, save_figure

GOAL = 0.85
"""Goal for the share, from 100 million parameters on."""
OURS = "hrm-agent"
Row = dict[str, Any]


def measured(size: str, options: argparse.Namespace) -> Row:
    words = [sys.executable, "-m", "benchmarks.engine_share.measured", "--size", size]
    for name in ("rollouts", "repeats", "threads"):
        words += [f"--{name}", str(getattr(options, name))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return with_share({"by": OURS, **json.loads(done.stdout.splitlines()[-1])})


def with_share(found: Row) -> Row:
    pairs = list(zip(found["bare"], found["whole"], strict=True))
    shares = {what: [bare[what] / whole[what] for bare, whole in pairs] for what in ("CPU", "wall")}
    return {
        **found,
        "share": {what: statistics.median(each) for what, each in shares.items()},
        "shares": shares,
    }


def measure(options: argparse.Namespace) -> list[Row]:
    """Rows of all sizes, ours first."""
    rows = [measured(size, options) for size in options.sizes]
    for ours in list(rows) if options.peers else []:
        theirs = peers(
            ours["size"], options.peers, options.rollouts, options.repeats, options.threads
        )
        rows += [
            with_share({**row, "size": ours["size"], "parameters": ours["parameters"]})
            for row in theirs
        ]
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    """Table of medians. The range of the CPU share is over the repeats."""
    names = (
        "by",
        "parameters",
        "bare CPU s",
        "whole CPU s",
        "share, CPU",
        "least",
        "most",
        "share, wall",
    )
    table = Table(title="The share of the bare generation")
    for name in names:
        table.add_column(name, no_wrap=name in ("by", "parameters"))
    for row in rows:
        bare, whole = (
            statistics.median(one["CPU"] for one in row[way]) for way in ("bare", "whole")
        )
        shares = row["shares"]["CPU"]
        figures = (row["share"]["CPU"], min(shares), max(shares), row["share"]["wall"])
        named = (row["by"], f"{row['parameters'] / 1e6:,.1f}M", f"{bare:,.2f}", f"{whole:,.2f}")
        table.add_row(*named, *(f"{figure:.3f}" for figure in figures))
    return table


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the share over the number of parameters."""
    figure = new_figure(8, 4.5, "The share of the bare engine")
    axes = figure.add_subplot()
    for by in dict.fromkeys(row["by"] for row in rows):
        own = [row for row in rows if row["by"] == by]
        sizes, shares = [row["parameters"] for row in own], [row["shares"]["CPU"] for row in own]
        (line,) = axes.plot(
            sizes, [row["share"]["CPU"] for row in own], "-o", label=f"{by}, CPU seconds"
        )
        axes.fill_between(
            sizes, [min(each) for each in shares], [max(each) for each in shares], alpha=0.2
        )
        if by == OURS:
            wall = [row["share"]["wall"] for row in own]
            axes.plot(
                sizes, wall, "--s", color=line.get_color(), label=f"{by}, seconds on the wall"
            )
    axes.axhline(GOAL, color="grey", linewidth=1, linestyle=":", label=f"goal from 100M on: {GOAL}")
    axes.set(
        xscale="log", xlabel="parameters", ylabel="bare generation / whole rollout", ylim=(0, 1.1)
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    save_figure(figure, path, None)


def _sizes(text: str) -> list[str]:
    sizes = text.split(",")
    if unknown := [size for size in sizes if size not in SIZES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(SIZES)}")
    return sizes


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=_sizes, default=list(SIZES), help=f"of {','.join(SIZES)}")
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="torch threads, of both sides")
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="PYTHON",
        help="measure TRL and smolagents in this interpreter",
    )
    parser.add_argument(
        "--quick", action="store_true", help="the smallest size, once: to see that it runs"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--picture", type=Path, help="draw the share over the size: .png or .svg")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.rollouts, options.repeats = ["0.5M"], 8, 1
    return options


def main() -> None:
    options = _options()
    rows = measure(options)
    console = Console()
    console.print(table_of(rows))
    first = rows[0]
    console.print(
        f"{first['rollouts']} rollouts, {first['calls']} model calls, {first['tool calls']} of the"
        f" tool, {first['sampled tokens']:,} sampled tokens; threads of torch: {options.threads};"
        f" CPU by {first['account']}"
    )
    if not options.peers:
        console.print("peers not measured: --peers was not given")
    if options.picture:
        draw(rows, options.picture)
    if options.json:
        settings = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": os.getloadavg(),
            "threads": options.threads,
            "rollouts": options.rollouts,
            "repeats": options.repeats,
        }
        options.json.write_text(
            json.dumps({"settings": settings, "rows": rows}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
