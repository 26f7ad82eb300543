"""Cost of rescoring stored runs, compared with a bare loop over the same rows.

    python -m benchmarks.rescoring [--trajectories 10000] [--calls 1000] [--workers 2] [--quick] [--json FILE]

A store is filled with trajectories, eight for each task. Each has a text of a few hundred
characters, a reference, two model calls with 400 tokens, and a tool call. Two rubrics score the
store: one reads text and reference, for which only headers are loaded; the other reads the calls,
for which whole trajectories are loaded, on a part of the store. The floor reads the same records,
calls the same functions in this process without limits, and writes the same rows. Times are wall
clock of one process with its workers. CPU seconds are of all these processes together, and are more
reliable on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hrm_agent.rewards import Rollout, Rubric, answer_is, opened_scorer
from hrm_agent.rewards.rollout import arguments_of, as_score, scoring_of
from hrm_agent.store import RunStore, open_store
from hrm_agent.training.records.rescoring import rescore
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    GraphIdentity,
    RunStatus,
    StopReason,
    TaskRef,
    ToolCall,
    ToolStatus,
    Trajectory,
)

Row = dict[str, Any]
SAMPLES, TOKENS = 8, 400
GOAL_SECONDS = 10.0
"""Goal for 10,000 trajectories by a rubric that reads text and reference."""
BY_TEXT, BY_CALLS = (
    "answer:boxed",
    f"{__name__ if __name__ != '__main__' else 'benchmarks.rescoring'}:by_calls",
)


def few_tokens(calls: tuple[Call, ...]) -> float:
    """Reward that reads calls."""
    return 1 / (1 + sum(call.sampled_tokens for call in calls))


by_calls = Rubric([few_tokens])


def made(store: RunStore, count: int, with_calls: int) -> None:
    """Fill a store. The first `with_calls` trajectories have calls."""
    with store.database.whole():
        for number in range(count):
            trajectory = _trajectory(number)
            store.journal.write_trajectory(trajectory)
            for call in _calls(trajectory.thread_id) if number < with_calls else ():
                store.journal.write_call(call)
            if number < with_calls:
                store.journal.write_tool_call(_tool_call(trajectory.thread_id))


def _trajectory(number: int) -> Trajectory:
    task = number // SAMPLES
    text = "So the first part is added to the second one, and the sum is compared. " * 5
    return Trajectory(
        id=f"{number:016x}",
        thread_id=f"run/collect/{task}/{number % SAMPLES}",
        run_id="run" if number else "first",
        group_id=f"run/collect/{task}",
        sample_index=number % SAMPLES,
        task=TaskRef(
            id=f"wp-{task}",
            family="word_problems",
            prompt=f"What is {task} + 1?",
            answer=str(task + 1),
        ),
        graph="tool_loop",
        policy="builtin:trained",
        status=RunStatus.COMPLETED,
        stop_reason=StopReason.ANSWER,
        answer=f"<reason>{text}</reason><answer>\\boxed{{{task + number % 2}}}</answer>",
        rewards={"correct": float(number % 2)},
        started_at=100.0,
        ended_at=110.0,
    )


def _identity(thread: str, task: str) -> GraphIdentity:
    return GraphIdentity(thread_id=thread, checkpoint_id="c", task_id=task, node="reason", path="1")


def _calls(thread: str) -> list[Call]:
    return [
        Call(
            id=f"{thread}-{index}",
            identity=_identity(thread, f"task-{index}"),
            call_index=index,
            request_hash="r",
            model="builtin:trained",
            branch_reason=BranchReason.ROOT,
            token_ids=tuple(range(TOKENS)),
            mask=(False,) * (TOKENS // 2) + (True,) * (TOKENS // 2),
            logprobs=(-0.5,) * TOKENS,
            response={"type": "ai", "content": "<reason>add</reason>" * 20, "tool_calls": []},
            started_at=100.0,
            ended_at=101.0,
        )
        for index in range(2)
    ]


def _tool_call(thread: str) -> ToolCall:
    return ToolCall(
        id=f"{thread}-tool",
        identity=_identity(thread, "tools"),
        tool_call_id="t",
        name="python",
        arguments={"code": "1 + 1"},
        status=ToolStatus.OK,
        content="2",
    )


class _Spent:
    wall = cpu = 0.0


@contextmanager
def spent() -> Generator[_Spent]:
    """Wall-clock and CPU seconds of the block, including processes that ended in it."""
    found, cpu, wall = _Spent(), _cpu(), time.perf_counter()
    yield found
    found.wall, found.cpu = time.perf_counter() - wall, _cpu() - cpu


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def ours(store: RunStore, spec: str, wanted: int, workers: int) -> int:
    """Rescore like the command: read, score in processes, write."""
    headers = store.journal.headers()[:wanted]
    async with opened_scorer(
        spec, name=f"{spec}-ours", folder=Path.cwd(), workers=workers
    ) as scorer:
        return (await rescore(store, scorer, headers)).scored


async def floor(store: RunStore, rubric: Rubric, name: str, wanted: int) -> int:
    """Call the functions of a rubric one after the other in this process, and write the same
    scores.
    """
    whole = bool(rubric.wants & {"calls", "tool_calls", "trajectory"})
    async with opened_scorer(rubric, name=name) as scorer:
        code = scorer.code
    scorings: list[Any] = []
    for header in store.journal.headers()[:wanted]:
        rollout = Rollout(store.journal.with_calls(header) if whole else header)
        given = [
            (part, part.function(**arguments_of(part, rollout, (rollout,))))
            for part in rubric.parts
        ]
        scores = [
            as_score(part, value, rollout.trajectory, decides=part.name == rubric.outcome)
            for part, value in given
        ]
        scorings.append(scoring_of(scorer.rubric, code, header, scores))
    store.scorings.write(scorings)
    return len(scorings)


def measured(store: RunStore, trajectories: int, with_calls: int, workers: int) -> list[Row]:
    rows: list[Row] = []
    for what, spec, rubric, count in (
        ("text and reference", BY_TEXT, Rubric([answer_is("boxed")]), trajectories),
        ("calls", BY_CALLS, by_calls, with_calls),
    ):
        for way, work in (
            ("ours", ours(store, spec, count, workers)),
            ("floor", floor(store, rubric, what, count)),
        ):
            with spent() as used:
                scored = asyncio.run(work)
            assert scored == count
            rows.append(
                {
                    "rubric reads": what,
                    "way": way,
                    "trajectories": count,
                    "seconds": used.wall,
                    "cpu_seconds": used.cpu,
                    "ms_cpu_each": 1000 * used.cpu / count,
                }
            )
    return rows


def show(rows: list[Row]) -> None:
    table = Table(*rows[0], title="Stored trajectories scored again", title_justify="left")
    for row in rows:
        table.add_row(
            *(f"{value:,.3f}" if isinstance(value, float) else str(value) for value in row.values())
        )
    Console(width=max(120, Console().width)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument(
        "--calls",
        type=int,
        default=1000,
        help="trajectories that have calls, and are scored by them",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--quick", action="store_true", help="a fiftieth of everything, which says little"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    part = 50 if arguments.quick else 1
    count, with_calls = (
        arguments.trajectories // part,
        min(arguments.calls, arguments.trajectories) // part,
    )
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/store.db") as store:
        made(store, count, with_calls)
        rows = measured(store, count, with_calls, arguments.workers)
    show(rows)
    reached, cpu = (rows[0][name] * 10_000 / count for name in ("seconds", "cpu_seconds"))
    print(
        f"10,000 by text and reference: {reached:.1f} s (goal: {GOAL_SECONDS:g} s), {cpu:.1f}"
        " of CPU"
    )
    if arguments.json:
        settings = {
            "cores": os.cpu_count(),
            "workers": arguments.workers,
            "load": os.getloadavg()[0],
        }
        goal = {
            "seconds_for_10000": reached,
            "cpu_seconds_for_10000": cpu,
            "at_most": GOAL_SECONDS,
            "met": reached <= GOAL_SECONDS,
        }
        arguments.json.write_text(
            json.dumps({"settings": settings, "rows": rows, "goal": goal}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
