"""A run that a test kills: rollouts of three graphs. Each call of the engine and of a tool is
logged outside the process.

    python -m tests.support.graphs.kill_driver '{"folder": ...}'      one run, with the real sandbox
    python -m tests.support.graphs.kill_driver                        a run for each line of stdin, in a fork of this
    process

A line of the log is written when the engine is asked, the sandbox is called, or a node of the graph
with subgraphs begins: `model SEED`, `tool CODE`, `node THREAD PLACE STEP`. The seed identifies a
model call, because it is a function of the call's place in the run. The code identifies a tool
call, because each task has other numbers.

The run kills itself when the line of the log that its plan names is written, in the thread that
writes it. A kill from outside could not hit this moment exactly.

A fork costs no imports, so that a test can afford hundreds of runs. The process id of a fork is
printed, and after an empty line on stdin its exit code.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from hrm_agent.environment import Environment, ExecutionResult, LocalEnvironment, using_environment
from hrm_agent.environment.base import Submission
from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.models import using_policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.settings import Durability
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database import leases, postgres_reading
from hrm_agent.store.database.database import Database
from hrm_agent.training.rollout.rollout import group_episodes, rollout
from hrm_agent.training.tasks import Task
from hrm_agent.trajectory import Recording, ToolStatus, Trajectory, recording
from tests.support.graphs.killed_team import Log, nodes
from tests.support.graphs.scripts import Roles, multiplier

TEAM = "tests.support.graphs.killed_team:team"
GRAPHS = ("tool_loop", "reasoning", TEAM)
CALLS = {"tool_loop": (2, 1), "reasoning": (9, 3), TEAM: (5, 2)}
"""Model calls and tool calls of one task."""
BRANCHES = {"tool_loop": 1, "reasoning": 2, TEAM: 2}
"""Parallel branches of one task. Each makes one call at a time."""
AT_A_TIME = 8
"""Number of tasks that run at a time."""


@dataclass(frozen=True)
class Plan:
    """Settings of one process of a run."""

    folder: str
    """Folder of the log, and of the store unless `url` names one."""
    url: str = ""
    graphs: tuple[str, ...] = GRAPHS
    tasks: int = 12
    """Number of tasks of each graph."""
    sandbox: bool = True
    """True for the real sandbox, False for arithmetic in this process."""
    durability: Durability = "steps"
    """Durability of the runner."""
    patience: float = 60.0
    """Longest wait for a PostgreSQL server, in seconds."""
    stock: bool = False
    """Checkpoints go to LangGraph's own SqliteSaver, and only the journal to the store."""
    dies_at: int | None = None
    """Number of the line of this process's log at which it dies (0: while it opens its store, None:
    never).
    """
    dies_of: int = int(signal.SIGKILL)
    later: float = 0.0
    """Longest random delay of the death after that line, in seconds."""
    gathers: bool = False
    """True if tool calls end only when each branch has begun a tool call. Then the model calls that
    follow in the first task are answered when all its branches have asked; those of other tasks are
    never answered. No commit is made because time has passed.
    """

    @property
    def threads(self) -> list[str]:
        return [f"run/{graph}/{place}/0" for graph in self.graphs for place in range(self.tasks)]

    @property
    def branches(self) -> int:
        """Largest number of branches that run at a time."""
        return sum(
            sorted(BRANCHES[graph] for graph in self.graphs for _ in range(self.tasks))[-AT_A_TIME:]
        )

    @property
    def store(self) -> str:
        return self.url or f"{self.folder}/store.db"

    @property
    def log(self) -> Path:
        return Path(self.folder, "log.txt")

    @property
    def answers(self) -> Path:
        """The final states of a run on a stock saver."""
        return Path(self.folder, "answers.json")

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def tool_line(code: str) -> str:
    return "tool " + code.replace("\n", " ")


class LoggedEngine(ScriptedEngine):
    log: Log
    gathers: int = 0
    """Number of requests with a tool's result to wait for, before such requests of the first task
    are answered. Those of other tasks are never answered (0: all are answered at once).
    """

    def submit(self, request: Any) -> Any:
        self.log.write(f"model {request.sampling.seed}")
        if not (self.gathers and request.messages[-1].type == "tool"):
            return super().submit(request)
        self._gathered.append((request, Future[Any]()))
        if len(self._gathered) == self.gathers:
            for held, answer in self._gathered:
                if any(FIRST in message.text for message in held.messages):
                    super().submit(held).add_done_callback(
                        lambda done, answer=answer: answer.set_result(done.result())
                    )
        return self._gathered[-1][1]

    @cached_property
    def _gathered(self) -> list[tuple[Any, Future[Any]]]:
        return []


class LoggedSandbox(LocalEnvironment):
    log: Log

    async def run(self, submission: Submission) -> ExecutionResult:
        self.log.write(tool_line(submission.code))
        return await super().run(submission)


class Arithmetic(Environment):
    """Environment that evaluates the last line of a snippet without a sandbox, since the snippets
    are written in this file.
    """

    isolation = "L0"
    log: Log
    gathers: asyncio.Barrier | None = None
    """Barrier at which calls end together (None: each ends by itself)."""

    async def run(self, submission: Submission) -> ExecutionResult:
        self.log.write(tool_line(submission.code))
        await (self.gathers.wait() if self.gathers else asyncio.sleep(0.002))
        *before, last = submission.code.splitlines()
        names: dict[str, Any] = {}
        exec("\n".join(before), names)
        return ExecutionResult(ToolStatus.OK, value=repr(eval(last, names)), duration_seconds=0.002)

    async def fork_session(self, source: str, target: str, *, run: str = "") -> None: ...

    async def end_session(self, session: str, *, run: str = "") -> None: ...

    async def metrics(self) -> str:
        return ""

    async def close(self) -> None: ...


def answer(messages: Any) -> str:
    time.sleep(0.005)
    if messages[0].text == "add":
        return f"Answer: {messages[1].text}"
    if messages[0].text in (TOOL_LOOP_PROMPT, "work"):
        return multiplier(messages)
    roles = Roles()
    number = messages[1].text.partition("Sort ")[2].partition(":")[0]
    roles.plan = {
        "subgoals": [
            {"name": "apples", "goal": f"3 * {number}", "needs": []},
            {"name": "pears", "goal": f"5 * {number}", "needs": []},
            {"name": "total", "goal": "apples + pears", "needs": ["apples", "pears"]},
        ]
    }
    return roles(messages)


FIRST = "* 11"
"""Text that only the subgoals of the first task contain."""
PROMPTS = {"tool_loop": "What is {} * 7?", "reasoning": "Sort {}: fruit", TEAM: "Team {}"}


def tasks(graph: str, number: int) -> list[Task]:
    prompts = [PROMPTS[graph].format(i + 11) for i in range(number)]
    return [
        Task(
            id=str(i),
            family="test",
            prompt=prompt,
            verify=lambda text: float("Answer" in text or "boxed" in text),
        )
        for i, prompt in enumerate(prompts)
    ]


class Deadly(Log):
    """Log of a run that dies when a certain line is written."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.log)
        self._plan, self._lines = plan, 0
        self._lock = threading.Lock()
        if plan.dies_at == 0 and not plan.url.startswith("postgres"):
            sys.addaudithook(
                lambda event, _: self._die() if event == "sqlite3.connect/handle" else None
            )

    def write(self, line: str) -> None:
        super().write(line)
        with self._lock:
            self._lines += 1
            last = self._plan.dies_at is not None and self._lines == max(1, self._plan.dies_at)
        if last and self._plan.later:
            threading.Timer(random.random() * self._plan.later, self._die).start()
        elif last:
            self._die()

    def _die(self) -> None:
        os.kill(os.getpid(), self._plan.dies_of)


async def main(plan: Plan) -> list[Trajectory]:
    """Begin the run of a plan, or resume it."""
    log = Deadly(plan)
    nodes.append(log)
    engine, environment = LoggedEngine(answer), LoggedSandbox() if plan.sandbox else Arithmetic()
    engine.log = environment.log = log
    if plan.gathers:
        engine.gathers = plan.branches
        environment.gathers = asyncio.Barrier(plan.branches)
        Database.joined_seconds = leases.HEARTBEAT_SECONDS = 3600.0
    episodes = [
        episode
        for graph in plan.graphs
        for episode in group_episodes(
            tasks(graph, plan.tasks), 1, run_id="run", stage=graph, seed=7, graph=graph
        )
    ]
    with open_store(plan.store) as store, engine:
        if plan.stock:
            return await on_stock_saver(plan, store, engine, environment, episodes)
        runner = EpisodeRunner(store, engine, "scripted", environment, durability=plan.durability)
        done = await rollout(runner, episodes, concurrency=AT_A_TIME)
    await environment.close()
    return done


async def on_stock_saver(
    plan: Plan, store: RunStore, engine: Any, environment: Any, episodes: Any
) -> list[Trajectory]:
    """Run episodes like users with a checkpointer of their own: by `graph.ainvoke` inside a
    recording.
    """

    async def invoke(episode: Episode) -> list[Any]:
        graph = load_graph(episode.graph).copy(update={"checkpointer": saver})
        config: Any = {"configurable": {"thread_id": episode.thread_id}}
        begun = (await graph.aget_state(config)).values
        given = None if begun else {"messages": [HumanMessage(episode.task.prompt)]}
        state = await graph.ainvoke(given, config, durability="sync")
        return [[message.type, message.text] for message in state["messages"]]

    async with AsyncSqliteSaver.from_conn_string(f"{plan.folder}/own.db") as saver:
        with (
            recording(Recording(store.journal, 7)),
            using_policy(engine),
            using_environment(environment),
        ):
            states = await asyncio.gather(*map(invoke, episodes))
    plan.answers.write_text(json.dumps(states))
    return []


def run(given: str) -> int:
    """Run a plan, given as JSON, to its end. Return the exit code of its process."""
    plan = Plan(
        **{
            name: tuple(value) if name == "graphs" else value
            for name, value in json.loads(given).items()
        }
    )
    postgres_reading._PATIENCE_SECONDS = plan.patience
    try:
        asyncio.run(main(plan))
        return 0
    except BaseException:
        Path(plan.folder, "error.txt").write_text(traceback.format_exc())
        return 1


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            random.seed()
            os._exit(run(line))
        print(child, flush=True)
        sys.stdin.readline()  # the child is not reaped before, so its process id is not reused
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(run(sys.argv[1]))
    serve()
