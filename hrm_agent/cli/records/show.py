"""`hrm-agent show`: one trajectory as it happened, and what training runs made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.citations_view import cited_lines, source_data, source_lines, values_of
from hrm_agent.cli.common.formatting import call_lines, models_of, tool_call_lines, usage_text
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.own_types import add_own_types, allowed_names
from hrm_agent.cli.common.run_folder import DEFAULT_STORE, existing_store
from hrm_agent.trajectory import Call, Overlay, RolePenalty, Scoring, ToolCall, Trajectory, Turn

__all__ = ["run"]


def run(words: list[str]) -> int:
    parser = Parser("show", "Show one trajectory: messages, tool calls, tokens, and the verdicts of training runs.")
    parser.add_argument("trajectory", help="id of the trajectory, or of its thread")
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"store or run folder [{DEFAULT_STORE}]")
    parser.add_argument(
        "--sources", nargs="?", const="", metavar="N", help="the sources of its answer; with a number, the cited span"
    )
    add_own_types(parser)
    arguments = parser.read(words)
    with existing_store(arguments.store, allowed_names(arguments)) as store:
        trajectory = store.journal.trajectory(arguments.trajectory, requests=arguments.json)
        if arguments.sources is not None:
            values = values_of(store, trajectory.thread_id, trajectory.graph)
            return _show_sources(Output(as_json=arguments.json), values, arguments.sources)
        scorings = store.scorings.of(trajectory.id)
        verdicts = [o for o in store.journal.overlays(trajectory.run_id) if o.trajectory_id == trajectory.id]
    output = Output(as_json=arguments.json)
    output.result(
        {
            **trajectory.model_dump(mode="json"),
            "overlays": [overlay.model_dump(mode="json") for overlay in verdicts],
            "scorings": [scoring.model_dump(mode="json") for scoring in scorings],
        }
    )
    _print(output, trajectory, verdicts)
    for scoring in scorings:
        for line in _scored(scoring):
            output.say(line)
    return 0


def _show_sources(output: Output, values: Mapping[str, Any], wanted: str) -> int:
    lines = list(cited_lines(values, wanted) if wanted else source_lines(values))
    output.result(source_data(values))
    for text, style in lines:
        output.say(text, style=style)
    return 0


def _print(output: Output, trajectory: Trajectory, verdicts: list[Overlay]) -> None:
    output.table(("trajectory", trajectory.id), list(_header(trajectory)))
    output.say()
    numbers = {turn.id: number for number, turn in enumerate(trajectory.turns, start=2)}
    credited = _credited(trajectory, verdicts)
    for record in sorted([*trajectory.turns, *trajectory.calls, *trajectory.tool_calls], key=_moment):
        if isinstance(record, Turn):
            output.say(f"turn {numbers[record.id]}: {record.prompt}\n", style="bold magenta")
            continue
        first, *rest = call_lines(record) if isinstance(record, Call) else tool_call_lines(record)
        output.say(first + credited.get(record.id, ""), style="bold" if isinstance(record, Call) else "cyan")
        for line in rest:
            output.say(line)
        output.say()
    for verdict in verdicts:
        credit = "" if verdict.advantage is None else f", advantage {verdict.advantage:+.3f}"
        output.say(f"step {verdict.step} of {verdict.run_id}: {verdict.verdict.value}{credit}: {verdict.reason}")
        for role, penalty in (verdict.penalty_by_role or {}).items():
            output.say(f"  {role}: {_held_against(penalty)}")


def _credited(trajectory: Trajectory, verdicts: list[Overlay]) -> dict[str, str]:
    """By the id of a call, what it was credited with; empty where its run gave all calls the same."""
    return {
        call.id: f", credit {given[call.id]:+.3f}" if call.id in given else ", no credit"
        for given in (verdict.credit for verdict in verdicts)
        if given is not None
        for call in trajectory.own_calls
    }


def _held_against(penalty: RolePenalty) -> str:
    counted = f"{penalty.failed} of {penalty.failed + penalty.effective} tool calls that count failed"
    error = "no tools" if penalty.error is None else f"p_err {penalty.error:.3f} ({counted})"
    return error + ("" if penalty.format is None else f", p_format {penalty.format:.3f}")


def _scored(scoring: Scoring) -> Iterator[str]:
    """What a rubric gave, each part with its reason."""
    total = "no reward" if scoring.total is None or scoring.outcome is None else f"reward {scoring.total:g}"
    yield f"scored by {scoring.rubric}: {total}"
    for score in scoring.scores:
        value = "no opinion" if score.value is None else f"{score.value:g}"
        said = value if score.fault is None else f"fault ({score.fault.value})"
        weight = "" if score.weight == 1 else f", weight {score.weight:g}"
        yield f"  {score.name} {said}{weight}" + (f": {score.reason}" if score.reason else "")


def _moment(record: Call | ToolCall | Turn) -> float:
    return record.ended_at if isinstance(record, Call) else record.started_at


def _header(trajectory: Trajectory) -> Iterator[tuple[str, object]]:
    reason = f" ({trajectory.stop_reason.value})" if trajectory.stop_reason else ""
    yield "thread", trajectory.thread_id
    yield "task", f"{trajectory.task.family} {trajectory.task.id}"
    yield "prompt", trajectory.task.prompt
    if trajectory.turns:
        yield "turns", f"{len(trajectory.prompts)}, of which the newest: {trajectory.prompts[-1]}"
    yield "graph", trajectory.graph
    asked = {call.model for call in trajectory.own_calls}
    if not asked or trajectory.policy in asked:
        yield "policy", f"{trajectory.policy or 'no model has answered'}, version {trajectory.policy_version}"
    if asked - {trajectory.policy}:
        yield "answered by", models_of(trajectory)
    yield "status", trajectory.status.value + reason
    if trajectory.error:
        yield "error", trajectory.error
    yield "answer", trajectory.answer
    yield "rewards", ", ".join(f"{name} {value:g}" for name, value in trajectory.rewards.items()) or "not verified"
    inherited = len(trajectory.calls) - len(trajectory.own_calls)
    before = f", after {inherited} model of the run it was forked from" if inherited else ""
    yield "calls", f"{len(trajectory.own_calls)} model, {len(trajectory.own_tool_calls)} tool{before}"
    yield "used", usage_text(trajectory.used)
    if trajectory.forked_from:
        yield "forked from", f"{trajectory.forked_from.trajectory_id} at {trajectory.forked_from.checkpoint_id}"
