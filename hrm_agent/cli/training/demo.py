"""`hrm-agent demo`: trains a weak policy, evaluates it before and after, and lets it solve a
problem. All output is in one folder.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from hrm_agent.basics.files import alone_in
from hrm_agent.cli.common.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.common.output import Advance, Output, progress, remark
from hrm_agent.cli.common.printer import Printer
from hrm_agent.cli.training.by_model import fitted_demo
from hrm_agent.cli.training.train import USUAL_RL, watched
from hrm_agent.config import compare_on_resume, save_config
from hrm_agent.training.config.commands import FREE_ON_RESUME, DemoConfig
from hrm_agent.training.demo import Stage, demo
from hrm_agent.training.ranks.processes import is_first_process, require_one_process
from hrm_agent.training.trackers import require_trackers, tracking

__all__ = ["demo_run", "run"]

_FOLDER = Path("runs/demo")
_OWN = ("from-scratch", "eval-problems", "problem")
_ANOTHER = "A farm keeps 23 hens and 45 cows. How many legs do they have?"
"""Problem of a family on which the small policy is trained."""


def run(words: list[str]) -> int:
    parser = Parser(
        "demo",
        "Evaluate a small policy, train it by GRPO-RoC, evaluate it again, solve a problem.",
    )
    parser.add_argument(
        "--out", type=Path, default=_FOLDER, metavar="FOLDER", help=f"run folder [{_FOLDER}]"
    )
    parser.add_argument(
        "--track", action="append", metavar="VALUE", help="a shorter name for --train.track"
    )
    add_config(parser, DemoConfig, [*_OWN, *(f"train.{flag}" for flag in USUAL_RL)])
    arguments = parser.read(words)
    if arguments.track is not None:
        setattr(arguments, "config:train.track", arguments.track)
    config = config_from(arguments, DemoConfig, "demo")
    if arguments.dry_run:
        print_config(fitted_demo(config, arguments.out)[0], "demo", as_json=arguments.json)
        return 0
    demo_run(config, arguments.out, Output(as_json=arguments.json))
    return 0


def demo_run(config: DemoConfig, folder: Path, output: Output) -> None:
    """Run, or resume, the demo in `folder`."""
    if not is_first_process():
        return  # the first process reports why several processes cannot run the demo together
    require_one_process()
    require_trackers(config.train)
    printer = Printer(Output(as_json=output.as_json))
    config, choice = fitted_demo(config, folder)
    if choice.warning:
        remark(choice.warning)
    with alone_in(folder), _Stages() as stages:
        compare_on_resume(
            config, "demo", folder, free=frozenset(f"train.{key}" for key in FREE_ON_RESUME)
        )
        save_config(config, "demo", folder)

        def on_update(namespace: tuple[str, ...], data: dict[str, Any]) -> None:
            stages.close()
            printer.update(namespace, data)

        with tracking(config.train, config, "demo", folder, remark, first_step=1):
            report = asyncio.run(demo(config, folder, on_progress=stages, on_update=on_update))
    output.result({"event": "report", **report.model_dump(mode="json")})
    output.say()
    output.table(("held-out problems", "before", "after"), [*report.rows()])
    spent = ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in report.cpu_seconds.items())
    output.say(
        f"\n{report.steps} steps, {report.groups_rejected:.0%} of groups without a signal; CPU"
        f" seconds: {spent}"
    )
    output.say(f"The hierarchical graph answered after {report.rounds} plan(s): {report.answer}")
    output.say(
        f"\nIn {folder}: store.db (every run), model (the policy), metrics.jsonl, curves.png,"
        " report.json. Next:"
    )
    output.say(f"  hrm-agent show {report.solved} --store {folder}")
    output.say(f"  hrm-agent lint {folder}")
    output.say(f'  hrm-agent run "{_ANOTHER}" --policy {report.model}')


class _Stages:
    """Progress bars, one after the other."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._stage: Stage | None = None
        self._advance: Advance | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, stage: Stage, done: int, of: int, facts: dict[str, Any]) -> None:
        if stage != self._stage:
            self.close()
            self._stage, self._advance = (
                stage,
                self._open.enter_context(progress(stage.replace("_", " "), of)),
            )
        if self._advance is not None:
            self._advance(watched(facts), done)

    def close(self) -> None:
        """End the current bar before other output is printed."""
        self._open.close()
        self._stage = None
        self._advance = None
