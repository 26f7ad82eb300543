"""`hrm-agent history`: lists the runs of a store, or the moments of one thread as a tree."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.formatting import SUMMARY_COLUMNS, summary_row
from hrm_agent.cli.common.output import Output, remark
from hrm_agent.cli.common.own_types import add_own_types, allowed_names, named_graph
from hrm_agent.cli.common.run_folder import DEFAULT_STORE, existing_store, thread_name
from hrm_agent.errors import ConfigError, StoreError
from hrm_agent.store import RunStore

if TYPE_CHECKING:  # a list of runs does not need this import
    from hrm_agent.runtime.execution.loading import Graph

__all__ = ["run"]

_ROWS = 50
"""Number of rows of a list that people see without --limit."""
_FLAT_COLUMNS = (
    "index",
    "step",
    "checkpoint",
    "parent",
    "source",
    "namespace",
    "model calls",
    "tool calls",
    "next",
)
_FLAT_SPARE = ("parent", "namespace", "source", "step")
_SPARE = ("trajectory", "model", "tools", "calls", "graph", "tokens", "started")
"""Columns that are omitted on a narrow terminal, in this order. The trajectory's id is the first,
since the thread also identifies a run.
"""


def run(words: list[str]) -> int:
    """Return 1 if a trajectory cannot be read."""
    parser = Parser(
        "history",
        "List the runs of a store; with a thread, the tree of its moments and what ran between"
        " them.",
    )
    parser.add_argument(
        "thread", nargs="?", type=thread_name, help="id of a thread, or of its trajectory"
    )
    parser.add_argument(
        "--store", default=DEFAULT_STORE, help=f"store or run folder [{DEFAULT_STORE}]"
    )
    parser.add_argument("--run", metavar="RUN", help="only the trajectories of this run")
    parser.add_argument(
        "--limit", type=int, help=f"most rows of a list, the newest [{_ROWS}; with --json all]"
    )
    parser.add_argument(
        "--flat",
        action="store_true",
        help="moments as a list, newest first, with those of subgraphs",
    )
    add_own_types(parser, graph=True)
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    limit = arguments.limit if arguments.limit is not None or arguments.json else _ROWS
    if limit is not None and limit < 0:
        raise ConfigError(
            f"--limit {limit} is not a number of rows.", f"Give 0 or more, such as --limit {_ROWS}."
        )
    with existing_store(arguments.store, allowed_names(arguments)) as store:
        if arguments.thread is None:
            return _list_runs(output, store, arguments.run, limit)
        if arguments.flat:
            _list_moments(output, store, arguments.thread, limit, named_graph(arguments))
        else:
            from hrm_agent.cli.common.tree import tree_data, tree_lines
            from hrm_agent.runtime.time_travel.read_history import history

            found = history(store, arguments.thread, graph=named_graph(arguments), values=False)
            output.result(tree_data(found))
            for text, style in tree_lines(found):
                output.say(text, style=style)
    return 0


def _list_runs(output: Output, store: RunStore, run_id: str | None, limit: int | None) -> int:
    damaged: dict[str, str] = {}

    def on_damage(id_: str, error: StoreError) -> None:
        damaged[id_] = error.message

    found = store.journal.trajectories(
        run_id=run_id, on_damage=on_damage, requests=False, newest_first=True
    )
    rows = [summary_row(trajectory) for trajectory in islice(found, limit)]
    told = [{"trajectory": id_, "error": reason} for id_, reason in damaged.items()]
    begun = reversed(rows)  # JSON has the order of the record, oldest first
    output.result([*(dict(zip(SUMMARY_COLUMNS, row, strict=True)) for row in begun), *told])
    output.table(SUMMARY_COLUMNS, rows, spare=_SPARE)
    for id_, reason in damaged.items():
        output.say(f"trajectory {id_}: {reason}", style="red")
    count = store.journal.count_trajectories(run_id)
    if limit is None or count <= limit:
        output.say(f"{len(rows)} trajectories in {store.url}, newest first")
    else:
        _say_cut(output, f"{len(rows)} of {count} trajectories in {store.url}, newest first", count)
    if not rows and run_id is None:
        output.say(
            'Nothing is recorded yet: `hrm-agent run "What is 6 times 7?"`, or `hrm-agent record --'
            " PROGRAM`."
        )
    bare = [thread.thread_id for thread in store.threads() if thread.trajectory_id is None]
    if bare and run_id is None:
        output.say(
            f"{len(bare)} threads with checkpoints only:"
            f" {', '.join(bare[:8])}{' ...' * (len(bare) > 8)}"
        )
    return 1 if damaged else 0


def _say_cut(output: Output, what: str, count: int) -> None:
    """Report that a list was cut. With `--json`, this goes to stderr, since the array has no place
    for it.
    """
    remark_or_say = remark if output.as_json else output.say
    remark_or_say(f"{what}; --limit {count} lists them all")


def _list_moments(
    output: Output, store: RunStore, thread: str, limit: int | None, graph: Graph | None
) -> None:
    from hrm_agent.runtime.time_travel.read_history import history

    found = history(store, thread, graph=graph, branches=False, values=False)
    newest_first = sorted(found.walk(), key=lambda moment: moment.checkpoint_id, reverse=True)
    rows = [
        (
            moment.index,
            moment.step,
            moment.checkpoint_id,
            moment.parent,
            moment.source,
            moment.namespace or None,
            len(moment.ran.calls),
            len(moment.ran.tool_calls),
            ", ".join(moment.next),
        )
        for moment in newest_first[:limit]
    ]
    output.result([dict(zip(_FLAT_COLUMNS, row, strict=True)) for row in rows])
    output.table(
        _FLAT_COLUMNS,
        rows,
        title=f"Thread {found.thread_id}, newest moment first",
        spare=_FLAT_SPARE,
    )
    if len(rows) < len(newest_first):
        _say_cut(output, f"{len(rows)} of {len(newest_first)} moments", len(newest_first))
