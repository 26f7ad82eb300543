"""`hrm-agent diff`: compares two threads, or two moments."""

from __future__ import annotations

from typing import Any

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.own_types import add_own_types, allowed_names, named_graph
from hrm_agent.cli.common.run_folder import DEFAULT_STORE, existing_store, thread_name
from hrm_agent.runtime.time_travel.fork import DiffSide, ThreadDiff, thread_diff

__all__ = ["run", "show_difference"]

_COLUMNS = ("", "moment", "steps", "calls", "tool calls", "tokens", "status", "reward", "answer")
_SHOWN = 80
"""Maximum number of characters of an answer in the table."""
_STYLES = {"+": "green", "-": "red"}


def run(words: list[str]) -> int:
    parser = Parser(
        "diff",
        "Compare two threads, or two moments: where they diverged, and how their states differ.",
    )
    parser.add_argument("a", type=thread_name, help="THREAD, or THREAD@MOMENT (see `history`)")
    parser.add_argument("b", type=thread_name, help="THREAD, or THREAD@MOMENT, to compare with")
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"store of both [{DEFAULT_STORE}]")
    add_own_types(parser, graph=True)
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store, allowed_names(arguments)) as store:
        found = thread_diff(store, arguments.a, arguments.b, graph=named_graph(arguments))
    show_difference(output, found)
    return 0


def show_difference(output: Output, found: ThreadDiff) -> None:
    """Show where two sides diverged, what each did since, and the differences of their states."""
    output.result(
        {
            "common": (
                {"index": found.common.index, "checkpoint": found.common.checkpoint_id}
                if found.common
                else None
            ),
            "a": _side(found.a),
            "b": _side(found.b),
            "changes": [
                {"channel": c.channel, "part": c.part, "lines": c.lines} for c in found.changes
            ],
        }
    )
    if found.common is None:
        output.say("They share no checkpoint.", style="bold")
    else:
        ran = ", ".join(dict.fromkeys(found.common.ran.nodes)) or found.common.source
        output.say(f"They diverged at moment {found.common.index}, after {ran}.", style="bold")
    rows = list[tuple[object, ...]]()
    for side in (found.a, found.b):
        *values, answer = _side(side).values()
        said = " ".join(str(answer or "").split())
        rows.append((*values, said if len(said) <= _SHOWN else f"{said[: _SHOWN - 3]}..."))
    output.table(_COLUMNS, rows)
    for change in found.changes:
        output.say(f"\n{change.channel}{change.part}", style="bold")
        for line in change.lines:
            output.say(line, style=_STYLES.get(line[:1], ""))
    if not found.changes:
        output.say("\nTheir states are the same.")


def _side(side: DiffSide) -> dict[str, Any]:
    """JSON of one side: the steps since the sides diverged, and the end."""
    trajectory = side.trajectory
    values = (
        side.thread_id,
        side.moment.index,
        len(side.steps),
        len(side.calls),
        len(side.tool_calls),
        side.used.output_tokens,
        trajectory.status.value if trajectory else None,
        trajectory.rewards.get("correct") if trajectory else None,
        trajectory.answer if trajectory else None,
    )
    return dict(zip(("thread", *_COLUMNS[1:]), values, strict=True))
