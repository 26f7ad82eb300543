"""`hrm-agent plot`: draws curves of training runs in one picture. Runs of the same configuration
are one line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hrm_agent.basics.files import replacing
from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output, remark
from hrm_agent.errors import ConfigError

__all__ = ["run"]

_FORMATS = ("png", "svg")
_BROKEN_NAMED = 5


def run(words: list[str]) -> int:
    parser = Parser(
        "plot",
        "Curves of training runs as one picture. Runs that differ in the seed alone are one line.",
    )
    add = parser.add_argument
    add(
        "run",
        nargs="+",
        type=Path,
        help="folder of a run of `train rl`, `train sft` or `demo`, under way or ended",
    )
    add("--out", type=Path, metavar="FILE", help="a .png or .svg file [plot.png]")
    add("--format", choices=_FORMATS, help="what is written [what --out ends in]")
    add(
        "--metrics",
        nargs="+",
        default=(),
        metavar="NAME",
        help="names of metrics.jsonl [the usual ones]",
    )
    add(
        "--x",
        choices=("step", "tokens", "seconds"),
        default="step",
        help="what the curves are drawn over [step]",
    )
    add("--smooth", type=int, default=1, metavar="N", help="each point is the mean of N steps [1]")
    parser.add_argument(
        "--by-seed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="runs of one configuration are one line, their mean with a band [yes]",
    )
    help_text = (
        "what the band shows: lowest to highest run, or the 95 %% interval of the mean over runs"
        " [minmax]"
    )
    add("--band", choices=("minmax", "interval", "none"), default="minmax", help=help_text)
    help_text = (
        "name of a run's line, once for each run in their order; runs of one label are one line"
    )
    add("--label", action="append", default=[], metavar="NAME", help=help_text)
    arguments = parser.read(words)
    from hrm_agent.training.plots.plots import PlotStyle, draw_lines, metrics_of, plot_lines
    from hrm_agent.training.plots.runs import read_run

    suffix = arguments.out.suffix.lower().removeprefix(".") if arguments.out is not None else "png"
    if arguments.format is None and suffix not in _FORMATS:
        raise ConfigError(
            f"The suffix of {arguments.out} is not a known format.",
            "Use the suffix .png or .svg, or write --format svg.",
        )
    kind = arguments.format or suffix
    if arguments.smooth < 1:
        raise ConfigError(
            f"--smooth {arguments.smooth} is not a number of steps of at least 1.",
            "Write --smooth 5.",
        )
    seen: set[Path] = set()
    for folder in arguments.run:
        if folder.resolve() in seen:  # one run would count as two seeds
            raise ConfigError(f"{folder} was named twice.", "Name each run once.")
        seen.add(folder.resolve())
    runs = [read_run(folder) for folder in arguments.run]
    for each in (run for run in runs if run.broken):
        numbers = ", ".join(map(str, each.broken[:_BROKEN_NAMED]))
        more = (
            f" and {len(each.broken) - _BROKEN_NAMED} more"
            if len(each.broken) > _BROKEN_NAMED
            else ""
        )
        said = (
            f"metrics.jsonl of {each.name}: line {numbers}{more} cannot be read and was left out."
        )
        remark(said)
    lines = plot_lines(runs, by_seed=arguments.by_seed, labels=arguments.label)
    metrics = metrics_of(runs, arguments.metrics)
    out: Path = arguments.out or Path(f"plot.{kind}")
    style = PlotStyle(arguments.x, arguments.band, arguments.smooth)
    try:
        with replacing(out) as part:
            draw_lines(
                lines, metrics, part, kind, style, title=lines[0].label if len(lines) == 1 else ""
            )
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written: {error.strerror or error}.", "Name another file by --out."
        ) from error
    output = Output(as_json=arguments.json)
    output.result(
        {
            "picture": str(out),
            "metrics": metrics,
            "lines": [
                {"label": o.label, "runs": [r.name for r in o.runs], "steps": o.steps}
                for o in lines
            ],
            "broken_lines": {run.name: list(run.broken) for run in runs if run.broken},
        }
    )
    for line in lines:
        names = ", ".join(run.name for run in line.runs)
        output.say(
            f"{line.label}: {line.steps} steps" + (f" of {names}" if names != line.label else "")
        )
    output.say(f"Drawn: {out}")
    return 0
