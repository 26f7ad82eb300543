"""Runs that are killed, and checks of what must hold afterwards, for the tests of graphs and of the
store.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from hrm_agent.store import RunStore, open_store
from hrm_agent.store.upkeep.maintenance import verify
from hrm_agent.trajectory import RunStatus
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.kill_driver import CALLS, Plan, tool_line

COMMAND = [sys.executable, "-m", "tests.support.begin", "tests.support.graphs.kill_driver"]


class Driver:
    """A warm process that forks a process for each run."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def start(self, plan: Plan) -> Started:
        return Started(int(self._ask(plan.as_json())), lambda: int(self._ask("")))

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate()


@dataclass(frozen=True)
class Started:
    """The process of a run."""

    pid: int
    result: Callable[[], int]
    """Waits for the end of the process and returns its exit code."""


def fresh(plan: Plan) -> Started:
    process = subprocess.Popen([*COMMAND, plan.as_json()])
    return Started(process.pid, process.wait)


def log_of(plan: Plan) -> list[str]:
    return plan.log.read_text().splitlines() if plan.log.exists() else []


def killed(start: Callable[[Plan], Started], plan: Plan) -> bool:
    """Run a plan. True if the run died at its moment, False if it ended before."""
    code = start(plan).result()
    assert code in (0, -plan.dies_of), Path(plan.folder, "error.txt").read_text()
    return code != 0


@dataclass(frozen=True)
class Done:
    """Work that a store has on record as finished."""

    lines: frozenset[str]
    """Log lines of model calls and tool calls."""
    steps: dict[tuple[str, str], int]
    """Thread and graph around the node -> newest step that has a checkpoint."""


def done_in(plan: Plan) -> Done:
    if not plan.url and not Path(plan.store).exists():
        return Done(frozenset(), {})
    with open_store(plan.store) as store:
        assert list(verify(store)) == [], "the store is not sound after the kill"
        models = {
            f"model {seed}"
            for thread in plan.threads
            for seed in store.journal.seeds_of_thread(thread)
        }
        tools = {
            tool_line(dict(call.arguments)["code"])
            for call in store.journal.tool_calls()
            if call.status
        }
        steps: dict[tuple[str, str], int] = {}
        for found in store.checkpointer.list(None):
            place = place_of(found.config)
            steps[place] = max(steps.get(place, -1), int(found.metadata.get("step", -1)))
    return Done(frozenset(models | tools), steps)


def place_of(config: Any) -> tuple[str, str]:
    """Thread, and the names of the graphs around a checkpoint, as the log has them."""
    named = config["configurable"]
    return (
        named["thread_id"],
        "/".join(part.partition(":")[0] for part in named["checkpoint_ns"].split("|")) or "-",
    )


def calls_in(log: Iterable[str]) -> list[str]:
    return [line for line in log if not line.startswith("node ")]


def check_asked(before: Done, asked: list[str]) -> None:
    """Assert that no finished call or node was begun again, and that no process began a call
    twice.
    """
    assert not before.lines & set(asked), "a finished call was made again"
    assert len(calls_in(asked)) == len(set(calls_in(asked)))
    for line in asked:
        kind, *place = line.split(" ")
        if kind == "node":
            thread, around, step = place
            assert int(step) > before.steps.get((thread, around), -1), f"taken again: {line}"


def cut_short(plan: Plan, asked: list[str], after: Done) -> dict[str, int]:
    """Number of calls, by kind, that a process began and that are not on record after its kill.
    They are made again.

    A branch makes one call at a time, and a model's answer is on record before its branch goes on.
    With durability `steps` a tool's result is on record as early. With `calls` the result is
    committed with the next commit, so that its branch may be asking a model already. The branch
    gets no further, since the commit of the model's answer includes the tool call.
    """
    kinds = Counter(line.partition(" ")[0] for line in set(calls_in(asked)) - after.lines)
    assert max(kinds["model"], kinds["tool"]) <= plan.branches
    assert kinds.total() <= most_cut_short(plan)
    return {"model": kinds["model"], "tool": kinds["tool"]}


def most_cut_short(plan: Plan) -> int:
    """Largest number of calls that one kill cuts short (see `cut_short`)."""
    return plan.branches * {"steps": 1, "calls": 2}[plan.durability]


def killed_often(
    start: Callable[[Plan], Started], plan: Plan, moments: Iterator[int], kills: int
) -> tuple[int, list[str]]:
    """Kill a run up to `kills` times, then let it end. Return the number of kills and the whole
    log.
    """
    count = 0
    while True:
        before, logged = done_in(plan), len(log_of(plan))
        died = killed(start, replace(plan, dies_at=next(moments) if count < kills else None))
        asked = log_of(plan)[logged:]
        check_asked(before, asked)
        after = done_in(plan)
        cut_short(plan, asked, after)
        assert before.lines <= after.lines, "a finished call was lost"
        if not died:
            return count, log_of(plan)
        count += 1


def record_of(plan: Plan) -> dict[str, Any]:
    """Parts of finished runs' records on which two runs with one seed agree."""
    with open_store(plan.store) as store:
        runs = list(store.journal.trajectories())
        assert list(verify(store)) == []
        assert all(run.status is RunStatus.COMPLETED and lint(run) == [] for run in runs)
        for run in runs:
            assert (len(run.calls), len(run.tool_calls)) == CALLS[run.graph]
            assert all(call.status is not None for call in run.tool_calls)
            assert len({call.sampling.seed for call in run.calls}) == len(run.calls), (
                "a call is on record twice"
            )
        return {
            run.thread_id: {
                "answer": (run.status, run.answer, run.rewards),
                "calls": sorted(
                    (
                        c.sampling.seed,
                        c.request_hash,
                        c.identity.path,
                        c.token_ids,
                        c.mask,
                        c.logprobs,
                    )
                    for c in run.calls
                ),
                "tools": sorted(
                    (str(t.arguments), t.status, t.content, t.identity.path) for t in run.tool_calls
                ),
                "states": states_of(store, run.thread_id),
            }
            for run in runs
        }


def states_of(store: RunStore, thread_id: str) -> list[str]:
    """The newest state of each graph of a thread, without random values."""
    newest: dict[str, tuple[str, str]] = {}
    for found in store.checkpointer.list({"configurable": {"thread_id": thread_id}}):
        around = place_of(found.config)[1]
        held = found.checkpoint["channel_values"]
        # `spent` holds times
        values = {
            k: shown(v) for k, v in held.items() if not k.startswith("branch:") and k != "spent"
        }
        newest.setdefault(
            found.config["configurable"]["checkpoint_ns"], (around, str(sorted(values.items())))
        )
    return sorted(map(str, newest.values()))


def shown(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        calls = [(call["name"], call["args"]) for call in getattr(value, "tool_calls", ())]
        return value.type, value.name, value.text, calls
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, (list, tuple)) else value


def plan_in(folder: Path, url: str = "", **options: Any) -> Plan:
    folder.mkdir(parents=True)
    return Plan(str(folder), url, **options)


def check_log(log: list[str], plan: Plan, kills: int) -> None:
    """Assert that each call was begun once, except those that the kills cut short."""
    expected = (
        sum(models + tools for models, tools in (CALLS[graph] for graph in plan.graphs))
        * plan.tasks
    )
    calls = calls_in(log)
    assert len(set(calls)) == expected
    assert len(calls) <= expected + kills * most_cut_short(plan)


def check_campaign(
    start: Callable[[Plan], Started],
    plan: Plan,
    untouched: dict[str, Any],
    moments: Iterator[int],
    kills: int,
) -> int:
    count, log = killed_often(start, plan, moments, kills)
    check_log(log, plan, count)
    assert record_of(plan) == untouched
    return count


def numbers(seed: int | str, largest: int) -> Iterator[int]:
    """Moments, as numbers of lines of a run's log. One in eight is 0: while the store is being
    opened.
    """
    rng = random.Random(seed)
    while True:
        yield 0 if rng.random() < 0.125 else rng.randint(1, largest)


def untouched_record(driver: Driver, plan: Plan, folder: Path) -> dict[str, Any]:
    alone = replace(plan, folder=str(folder), url="")
    folder.mkdir()
    assert driver.start(alone).result() == 0
    return record_of(alone)
