"""`hrm-agent why`: the step of a training, and the rollouts of it, that taught a behaviour."""

from __future__ import annotations

import argparse
import asyncio
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm_agent.cli.common.analyses import save_result
from hrm_agent.cli.common.arguments import Parser, refuse_broken
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.errors import ConfigError, RunError, to_install
from hrm_agent.models.slow_start import told_if_slow

if TYPE_CHECKING:
    from hrm_agent.training.analysis.why import Behaviour, Proof, Push, VersionPoint
    from hrm_agent.training.records.retrace import RecordedTraining

__all__ = ["run"]

_TOKENS = 3
"""Number of tokens shown for a rollout."""
_PAGE_ROLLOUTS, _PAGE_TOKENS, _PAGE_PROMPT = 20, 5_000, 300
"""Number of rollouts whose tokens are saved for the viewer, and maximum lengths of such a rollout in
tokens and of a task in characters.
"""


def run(words: list[str]) -> int:
    """Return 1 if the analysed step did not make the text more likely."""
    parser = Parser(
        "why",
        "Find the step of a training, and its rollouts, that taught the policy a text.",
    )
    add = parser.add_argument
    add("run", type=Path, help="folder of a `train rl`")
    add("prompt", nargs="?", help="task; the text is the beginning of its first answer")
    add("--says", metavar="TEXT", help="the text")
    add("--calls-tool", metavar="NAME", help="the first answer to the task calls this tool")
    add("--thread", help="recorded run; the text is a part of an answer in it")
    add("--turn", type=int, metavar="N", help="N-th call of the policy in that run [the last]")
    add(
        "--flip",
        type=int,
        metavar="N",
        help="the text is the token that flips after step N in the film of the task",
    )
    add("--seed", type=int, metavar="N", help="base of the film's seeds [the training's]")
    add("--step", type=int, metavar="N", help="step to analyse, from 1 [the one that taught most]")
    add("--store", metavar="URL", help="store of the run [found through its folder]")
    add("--top", type=int, default=5, metavar="N", help="number of rollouts shown [5]")
    add(
        "--remove",
        type=int,
        default=3,
        metavar="N",
        help="number of rollouts that the proof removes; 0: no proof [3]",
    )
    add(
        "--then",
        type=int,
        default=5,
        metavar="N",
        help="number of following steps that the proof repeats [5]",
    )
    arguments = parser.read(words, intermixed=True)
    _check(arguments)
    if find_spec("torch") is None:
        raise ConfigError("why needs torch.", f"Run `{to_install('train')}`.")
    with told_if_slow("loading torch; the first time this takes up to a minute"):
        from hrm_agent.training.records.retrace import opened_training
    with opened_training(arguments.run, store=arguments.store) as training:
        return _answer(training, words, arguments, Output(as_json=arguments.json))


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.prompt is None) == (arguments.thread is None):
        raise ConfigError(
            "Name either a task or a recorded run.",
            'Write `why RUN "PROMPT" --says TEXT`, or `why RUN --thread THREAD`.',
        )
    if arguments.flip is not None and any(
        each is not None for each in (arguments.says, arguments.turn, arguments.calls_tool)
    ):
        raise ConfigError(
            "--flip names the text by itself.", "Leave out --says, --turn and --calls-tool."
        )
    if arguments.seed is not None and arguments.flip is None:
        raise ConfigError("--seed is without --flip.", "Name the flip as well.")
    if arguments.calls_tool is not None and (
        arguments.prompt is None or arguments.says is not None
    ):
        raise ConfigError(
            "--calls-tool is for a task, and without --says.",
            'Write `why RUN "PROMPT" --calls-tool NAME`.',
        )
    named = (arguments.says, arguments.calls_tool, arguments.flip)
    if arguments.prompt is not None and all(each is None for each in named):
        raise ConfigError(
            "--says is missing.",
            'Write `why RUN "PROMPT" --says TEXT`, or `--calls-tool NAME`.',
        )
    if arguments.turn is not None and arguments.thread is None:
        raise ConfigError("--turn is without --thread.", "Name the thread as well.")
    for name in ("prompt", "thread", "says", "calls_tool"):
        what = "The task" if name == "prompt" else f"--{name.replace('_', '-')}"
        refuse_broken(getattr(arguments, name) or "", what)
    for name, least in (("top", 1), ("remove", 0), ("then", 0), ("flip", 1), ("step", 1)):
        if (value := getattr(arguments, name)) is not None and value < least:
            raise ConfigError(f"--{name} {value} is below {least}.", f"Write --{name} {least}.")


def _answer(
    training: RecordedTraining,
    words: Sequence[str],
    arguments: argparse.Namespace,
    output: Output,
) -> int:
    from hrm_agent.training.analysis.why import course, most_taught, proof, pushes

    if arguments.step is not None and arguments.step > len(training.rows):
        raise RunError(
            f"{training.folder} has {len(training.rows)} steps, and no step {arguments.step}.",
            f"Write --step 1 to {len(training.rows)}.",
        )
    behaviour = _behaviour(training, arguments)
    points = _points("versions", len(training.kept), course(training, behaviour))
    if arguments.step is not None:
        number = arguments.step - 1
    else:
        points = _completed(training, behaviour, points)
        number = most_taught(points)
    step = training.step(number)
    found = pushes(training, behaviour, step)
    total = math.fsum(each.push for each in found)
    named = [each for each in found if each.push > 0][: arguments.remove]
    proved = None
    if named:
        ids = [each.trajectory_id for each in named]
        proved = proof(training, behaviour, step, ids, following=arguments.then)
    result = {
        "behaviour": _told(behaviour),
        "versions": [asdict(point) for point in points],
        "versions_bytes": training.kept_bytes,
        "step": number + 1,
        "rollouts": [asdict(each) for each in found],
        "removed": [each.trajectory_id for each in named],
        "proof": None if proved is None else asdict(proved),
    }
    output.result(result)
    saved = _for_page(training, behaviour, result)
    shown_by = save_result("why", words, arguments, title=_title(arguments), result=saved)
    if arguments.calls_tool is not None:
        count = 1 + len(behaviour.others)
        which = "beginning that calls" if count == 1 else "beginnings that call"
        output.say(f"P: the first answer has one of {count} known {which} {arguments.calls_tool}.")
    _show_course(output, training, points)
    _show_rollouts(output, training, number, found, arguments.top)
    if proved is not None:
        _show_proof(output, number, len(named), proved)
    if found:
        store = shlex.quote(arguments.store or str(training.folder))
        shown_by.insert(0, f"hrm-agent show {shlex.quote(found[0].thread_id)} --store {store}")
    if shown_by:
        output.next(*shown_by)
    return 0 if total > 0 else 1


def _title(arguments: argparse.Namespace) -> str:
    """Analysed text in one line."""
    if arguments.flip is not None:
        task = arguments.thread or repr(arguments.prompt)
        return f"the token that flips after step {arguments.flip} in {task}"
    if arguments.thread is not None:
        turn = "the last call" if arguments.turn is None else f"call {arguments.turn}"
        context = f"{turn} of {arguments.thread}"
    else:
        context = f"the first answer to {arguments.prompt!r}"
    if arguments.calls_tool is not None:
        return f"a call of {arguments.calls_tool} in {context}"
    return context if arguments.says is None else f"{arguments.says!r} in {context}"


def _for_page(
    training: RecordedTraining, behaviour: Behaviour, result: dict[str, Any]
) -> dict[str, Any]:
    """Result for the viewer: token ids are replaced by texts, and are only those of the first
    rollouts.
    """
    from hrm_agent.training.analysis.token_sample import token_texts

    codec = training.learner.codec
    rollouts: list[dict[str, Any]] = []
    for number, each in enumerate(result["rollouts"]):
        shown = each["tokens"][:_PAGE_TOKENS] if number < _PAGE_ROLLOUTS else []
        rollouts.append(
            each
            | {
                "prompt": each["prompt"][:_PAGE_PROMPT],
                "tokens": len(each["tokens"]),
                "texts": token_texts(codec, [token["token_id"] for token in shown]),
                "pushes": [float(f"{token['push']:.3g}") for token in shown],
            }
        )
    texts = [
        "".join(token_texts(codec, token_ids[behaviour.start :]))
        for token_ids in (behaviour.token_ids, *behaviour.others)
    ]
    return result | {
        "behaviour": {"texts": texts, "temperature": behaviour.temperature, "role": behaviour.role},
        "rollouts": rollouts,
    }


def _told(behaviour: Behaviour) -> dict[str, Any]:
    """Behaviour as JSON, without `others` if it has one text."""
    return {name: value for name, value in asdict(behaviour).items() if name != "others" or value}


def _behaviour(training: RecordedTraining, arguments: argparse.Namespace) -> Behaviour:
    from hrm_agent.training.analysis.behaviours import answer_to, flip_of, tool_called, turn_of
    from hrm_agent.training.analysis.films.tasks import film_episodes

    if arguments.flip is not None:
        prompts = [arguments.prompt] if arguments.prompt is not None else []
        threads = [arguments.thread] if arguments.thread is not None else []
        (episode,) = film_episodes(training, prompts, threads, seed=arguments.seed)
        return asyncio.run(flip_of(training, episode, arguments.flip))
    if arguments.thread is not None:
        return turn_of(training, arguments.thread, arguments.turn, arguments.says)
    if arguments.calls_tool is not None:
        return asyncio.run(tool_called(training, arguments.prompt, arguments.calls_tool))
    return asyncio.run(answer_to(training, arguments.prompt, arguments.says))


def _points(label: str, count: int, points: Iterable[VersionPoint]) -> list[VersionPoint]:
    """List of points, whose computation is shown as progress."""
    found: list[VersionPoint] = []
    with progress(label, count) as advance:
        for point in points:
            found.append(point)
            advance("")
    return found


def _completed(
    training: RecordedTraining, behaviour: Behaviour, points: list[VersionPoint]
) -> list[VersionPoint]:
    """Points with those of the missing versions within the largest rise."""
    from hrm_agent.training.analysis.why import course, largest_rise

    rise = largest_rise(points)
    if rise is None:
        return points
    first, last = rise
    made = course(training, behaviour, training.walk(first, last))
    within = _points("repeated steps", last - first + 1, made)
    return [
        *(each for each in points if each.version < first),
        *within,
        *(each for each in points if each.version > last),
    ]


def _show_course(
    output: Output, training: RecordedTraining, points: Sequence[VersionPoint]
) -> None:
    rows: list[tuple[object, ...]] = []
    for before, point in zip([None, *points], points, strict=False):
        change = "" if before is None else _signed(point.logprob - before.logprob)
        taught = "" if point.taught is None else _signed(point.taught)
        rows.append((point.version, _probability(point.logprob), change, taught))
    output.table(("after step", "P", "change of log P", "taught by the step"), rows)
    if training.kept_bytes:
        output.say(f"The versions take {training.kept_bytes / 1e6:.1f} MB.", style="dim")
    if len(points) <= len(training.rows):
        output.say("Some versions are missing. Train with --keep-versions 1.", style="dim")


def _show_rollouts(
    output: Output, training: RecordedTraining, number: int, found: Sequence[Push], top: int
) -> None:
    from hrm_agent.training.analysis.token_sample import token_texts

    total = math.fsum(each.push for each in found)
    if not found:
        output.say(f"\nNo rollout of step {number + 1} affects this text.")
        return
    rows = [
        (
            each.thread_id,
            each.reward,
            "" if each.advantage is None else f"{each.advantage:+.2f}",
            _signed(each.push),
            _strongest(
                token_texts(training.learner.codec, [t.token_id for t in each.tokens]), each
            ),
        )
        for each in found[:top]
    ]
    output.table(
        ("thread", "reward", "advantage", "push", "strongest tokens"),
        rows,
        title=f"\nStep {number + 1}: {len(found)} rollouts push by {_signed(total)}",
    )


def _strongest(texts: Sequence[str], each: Push) -> str:
    """Tokens with the largest pushes, in the order of the text."""
    by_push = sorted(range(len(texts)), key=lambda i: -each.tokens[i].push)[:_TOKENS]
    return "  ".join(f"{texts[i]!r} {_signed(each.tokens[i].push)}" for i in sorted(by_push))


def _show_proof(output: Output, number: int, removed: int, proved: Proof) -> None:
    until = number + proved.steps
    which = "rollout" if removed == 1 else f"{removed} rollouts"
    output.say(
        f"\nProof: P is {_probability(proved.before)} before step {number + 1}, and"
        f" {_probability(proved.recorded)} after step {until}. Without the first {which} of step"
        f" {number + 1} it is {_probability(proved.without)} (log P"
        f" {proved.without - proved.recorded:+.3f})."
    )


def _signed(value: float) -> str:
    return f"{value:+.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:+.1e}"


def _probability(logprob: float) -> str:
    value = math.exp(logprob)
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"
