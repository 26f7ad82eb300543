"""`hrm-agent history`: what a store holds, and the checkpoints of one thread with the calls made from each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from hrm_agent.cli.arguments import Parser
from hrm_agent.cli.output import Output
from hrm_agent.cli.rendering import SUMMARY_COLUMNS, summary_row
from hrm_agent.cli.source import DEFAULT_STORE, existing_store
from hrm_agent.store import RunStore
from hrm_agent.trajectory import Trajectory

__all__ = ["run"]

_CHECKPOINT_COLUMNS = ("step", "checkpoint", "parent", "source", "namespace", "model calls", "tool calls")


def run(words: list[str]) -> int:
    parser = Parser(
        "history", "List the runs of a store; with a thread, its checkpoints and what was called from each."
    )
    parser.add_argument("thread", nargs="?", help="id of a thread, or of its trajectory")
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"store or run folder [{DEFAULT_STORE}]")
    parser.add_argument("--run", metavar="RUN", help="only the trajectories of this run")
    parser.add_argument("--limit", type=int, default=50, help="at most so many rows [50]")
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store) as store:
        if arguments.thread is None:
            _list_runs(output, store, arguments.run, arguments.limit)
        else:
            _list_checkpoints(output, store, store.journal.trajectory(arguments.thread), arguments.limit)
    return 0


def _list_runs(output: Output, store: RunStore, run_id: str | None, limit: int) -> None:
    rows = [summary_row(trajectory) for trajectory in islice(store.journal.trajectories(run_id=run_id), limit)]
    output.result([dict(zip(SUMMARY_COLUMNS, row, strict=True)) for row in rows])
    output.table(SUMMARY_COLUMNS, rows)
    output.say(f"{len(rows)} trajectories in {store.path}" + (f" (the first {limit})" if len(rows) == limit else ""))


def _list_checkpoints(output: Output, store: RunStore, trajectory: Trajectory, limit: int) -> None:
    rows = list(islice(_checkpoints(store, trajectory), limit))
    output.result([dict(zip(_CHECKPOINT_COLUMNS, row, strict=True)) for row in rows])
    output.table(_CHECKPOINT_COLUMNS, rows, title=f"Thread {trajectory.thread_id}, newest checkpoint first")


def _checkpoints(store: RunStore, trajectory: Trajectory) -> Iterator[tuple[object, ...]]:
    for found in store.checkpointer.list({"configurable": {"thread_id": trajectory.thread_id}}):
        here: dict[str, Any] = dict(found.config.get("configurable", {}))
        before: dict[str, Any] = dict((found.parent_config or {}).get("configurable", {}))
        checkpoint = str(here["checkpoint_id"])
        yield (
            found.metadata.get("step"),
            checkpoint,
            before.get("checkpoint_id"),
            found.metadata.get("source"),
            here.get("checkpoint_ns") or None,
            sum(call.identity.checkpoint_id == checkpoint for call in trajectory.calls),
            sum(call.identity.checkpoint_id == checkpoint for call in trajectory.tool_calls),
        )
