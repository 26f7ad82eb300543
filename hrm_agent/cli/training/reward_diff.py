"""`hrm-agent reward-diff`: what another reward would teach, before anything is trained."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm_agent.cli.common.analyses import save_result
from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.errors import ConfigError, RunError, to_install
from hrm_agent.models.slow_start import told_if_slow

if TYPE_CHECKING:
    from hrm_agent.training.analysis.reward_diff import PushedToken, RewardDifference
    from hrm_agent.training.records.retrace import RecordedTraining

__all__ = ["run"]

_TOKENS = 200
"""Maximum number of pushed tokens in the JSON, in each direction."""
_REASON_CHARACTERS = 160
_PAGE_TOKENS, _PAGE_TEXT = 5_000, 300
"""Maximum lengths of what is saved for the viewer: of a rollout in tokens, and of a task, an answer
or a reason in characters.
"""
_UNITS = {
    "accuracy": "accuracy (the task's verifier)",
    "tool_use": "answers with a tool call",
    "length": "sampled tokens",
    "tool_errors": "failed tool calls",
}


def run(words: list[str]) -> int:
    """Compare the rewards. Returns 0, with warnings or without."""
    parser = Parser(
        "reward-diff",
        "Compare what two rewards would teach from recorded rollouts. Nothing is trained.",
    )
    add = parser.add_argument
    add("run", type=Path, help="folder of a `train rl`")
    help_text = (
        "module:attribute, ./file.py:attribute, answer:READER, verifier (the tasks' own), or"
        " recorded (the training's own)"
    )
    add("--new", required=True, metavar="RUBRIC", help=f"new reward: {help_text}")
    add("--old", default="recorded", metavar="RUBRIC", help="reward to compare it with [recorded]")
    add("--step", type=int, metavar="N", help="step whose rollouts are compared, from 1")
    add(
        "--steps",
        type=int,
        metavar="N",
        help="number of steps: the newest whose weights are kept, or those up to --step [3]",
    )
    add("--store", metavar="URL", help="store of the run [found through its folder]")
    add("--top", type=int, default=5, metavar="N", help="number of rollouts and tokens shown [5]")
    arguments = parser.read(words)
    for name in ("step", "steps", "top"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ConfigError(f"--{name} {value} is below 1.", f"Write --{name} 1.")
    if find_spec("torch") is None:
        raise ConfigError("reward-diff needs torch.", f"Run `{to_install('train')}`.")
    with told_if_slow("loading torch; the first time this takes up to a minute"):
        from hrm_agent.training.records.retrace import opened_training
    with opened_training(arguments.run, store=arguments.store) as training:
        return _answer(training, words, arguments, Output(as_json=arguments.json))


def _answer(
    training: RecordedTraining,
    words: Sequence[str],
    arguments: argparse.Namespace,
    output: Output,
) -> int:
    from hrm_agent.training.analysis.reward_diff import reward_difference

    numbers = _numbers(training, arguments.step, arguments.steps)
    with progress("steps", len(numbers)) as advance:
        found = reward_difference(
            training,
            arguments.old,
            arguments.new,
            numbers,
            on_step=lambda number: advance(""),
        )
    result = _result(found)
    output.result(result)
    title = f"{found.new} in place of {found.old}"
    shown_by = save_result("reward-diff", words, arguments, title=title, result=_for_page(result))
    _show(output, found, arguments.top)
    if found.rollouts:
        store = shlex.quote(arguments.store or str(training.folder))
        thread = shlex.quote(found.rollouts[0].thread_id)
        shown_by.insert(0, f"hrm-agent show {thread} --store {store}")
    if shown_by:
        output.next(*shown_by)
    return 0


def _numbers(training: RecordedTraining, step: int | None, count: int | None) -> list[int]:
    """Numbers, from 0, of the steps to compare."""
    from hrm_agent.training.analysis.reward_diff import newest_steps

    if step is None:
        return newest_steps(training, count or 3)
    if step > len(training.rows):
        raise RunError(
            f"{training.folder} has {len(training.rows)} steps, and no step {step}.",
            f"Write --step 1 to {len(training.rows)}.",
        )
    return list(range(max(0, step - (count or 1)), step))


def _result(found: RewardDifference) -> dict[str, Any]:
    changes = {
        name: asdict(change) | {"difference": change.difference}
        for name, change in found.changes.items()
    }
    return asdict(found) | {
        "changes": changes,
        "up": [asdict(each) for each in found.up[:_TOKENS]],
        "down": [asdict(each) for each in found.down[:_TOKENS]],
    }


def _for_page(result: dict[str, Any]) -> dict[str, Any]:
    """Result for the viewer: tokens as columns, and long texts cut."""

    def side(given: dict[str, Any]) -> dict[str, Any]:
        return given | {"reason": given["reason"][:_PAGE_TEXT]}

    rollouts = [
        each
        | {name: each[name][:_PAGE_TEXT] for name in ("prompt", "answer")}
        | {name: side(each[name]) for name in ("old", "new")}
        | {
            "tokens": len(each["tokens"]),
            "texts": [token["text"] for token in each["tokens"][:_PAGE_TOKENS]],
            "pushes": [
                [float(f"{token[name]:.3g}") for token in each["tokens"][:_PAGE_TOKENS]]
                for name in ("old", "new")
            ],
        }
        for each in result["rollouts"]
    ]
    return result | {"rollouts": rollouts}


def _show(output: Output, found: RewardDifference, top: int) -> None:
    flips = found.flips
    steps = f"step {found.steps[0]}" if len(found.steps) == 1 else f"steps {_listed(found.steps)}"
    output.say(
        f"{found.new} (new) against {found.old} (old): {flips.rollouts} rollouts of {steps}."
    )
    output.say(f"{flips.rewards} of them have another reward.")
    rows = [
        ("without a reward", flips.missing_by_old, flips.missing_by_new),
        ("right", flips.right_by_old, flips.right_by_new),
        ("trained on", flips.kept_by_old, flips.kept_by_new),
        ("pushed up, and down by the other", flips.down, flips.up),
    ]
    output.table(("rollouts", "old only", "new only"), rows)
    examples = [each for each in found.rollouts if each.difference][:top]
    if examples:
        output.table(
            ("thread", "advantage, old", "new", "reward, old", "new", "parts"),
            [
                (
                    each.thread_id,
                    _advantage(each.old.advantage),
                    _advantage(each.new.advantage),
                    each.old.reward,
                    each.new.reward,
                    _short(f"{each.old.reason} -> {each.new.reason}"),
                )
                for each in examples
            ],
            title="\nLargest differences",
        )
    output.table(
        ("role", "share of the update, old", "new"),
        [(role, *both) for role, both in found.roles.items()],
    )
    if all(found.norms):
        output.say(
            f"Cosine of the two updates, as AdamW would take them: {found.cosine:.3f} (norms"
            f" {found.norms[0]:.3g} and {found.norms[1]:.3g})."
        )
    else:
        none = "either reward" if not any(found.norms) else "one of the rewards"
        output.say(f"There is no update by {none}, so their directions cannot be compared.")
    output.table(
        ("predicted change by one step", "old", "new", "difference", "standard error"),
        [
            (
                _UNITS[name],
                *(f"{value:+.2g}" for value in (each.old, each.new, each.difference)),
                f"{each.difference_error:.2g}",
            )
            for name, each in found.changes.items()
        ],
        title="",
    )
    for title, tokens in (
        ("Pushed up by the new reward, down by the old one", found.up),
        ("Pushed down by the new reward, up by the old one", found.down),
    ):
        if tokens:
            output.table(
                ("after", "token", "times", "old", "new"),
                [_token(each) for each in tokens[:top]],
                title=f"\n{title}",
            )
    output.say("")
    for each in found.warnings:
        output.say(f"Warning ({each.kind}): the new reward {each.text}.", style="yellow")
    if not found.warnings:
        output.say("No warning.")


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


def _token(each: PushedToken) -> tuple[str, ...]:
    pushes = (f"{each.old:+.3f}", f"{each.new:+.3f}")
    return (repr(each.before), repr(each.text), str(each.count), *pushes)


def _advantage(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARACTERS else f"{line[:_REASON_CHARACTERS]} ..."
