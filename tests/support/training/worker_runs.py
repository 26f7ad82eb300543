"""Graphs for rollout workers, and the parts of their records that are the same wherever they
ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.rollout import group_episodes, open_run, rollout
from hrm_agent.training.tasks import load_tasks
from hrm_agent.training.workers.pool import opened_workers
from hrm_agent.trajectory import Trajectory

__all__ = ["KINDS", "OWN", "by_graphs", "facts", "on_record", "told"]


def facts(found: Sequence[Trajectory]) -> list[Any]:
    """Contents of each record, except times and the ids that LangGraph creates."""
    return [
        (
            *(
                t.thread_id.partition("/")[2],
                t.task,
                t.graph,
                t.policy,
                t.group_id.partition("/")[2],
                t.sample_index,
            ),
            *(t.status, t.stop_reason, t.answer, t.rewards),
            [
                (
                    c.token_ids,
                    c.mask,
                    c.seed,
                    c.finish_reason,
                    c.model,
                    c.logprob_kind,
                    c.tools_hash,
                )
                for c in t.calls
            ],
            [(c.name, c.arguments, c.status, c.stdout, c.value) for c in t.tool_calls],
        )
        for t in sorted(found, key=lambda t: t.thread_id.partition("/")[2])
    ]


def on_record(folder: Path) -> list[Trajectory]:
    with open_store(folder / "store.db") as store:
        return list(store.journal.trajectories())


OWN = """
import asyncio, os, signal, subprocess
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import END, START, MessagesState, StateGraph
from hrm_agent.models import policy

def of(node):
    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()

async def blocks(state):
    return {"messages": [policy().invoke(state["messages"])]}

async def streams(state):
    pieces = [piece async for piece in policy().astream(state["messages"])]
    return {"messages": [sum(pieces[1:], pieces[0])]}

def waits(state):
    return {"messages": [policy().invoke(state["messages"])]}

def fails(state):
    raise LookupError("no such page")

def asks(state):
    return {"messages": [FakeListChatModel(responses=["hosted"]).invoke(state["messages"])]}

def dies(state):
    os.kill(os.getpid(), signal.SIGKILL)

async def leaves(state):
    # Children that hold what the worker held: one in its session, one in a session of its own.
    for session in (False, True):
        if not os.path.exists(pids := f"children-{session}"):
            child = subprocess.Popen(["sleep", "600"], start_new_session=session, close_fds=False)
            open(pids, "w").write(str(child.pid))
            if not session:
                os.kill(os.getpid(), signal.SIGKILL)
    return await streams(state)

async def gate(state):
    open("waiting", "w").close()  # a named pipe: until the test has opened it, too
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return await streams(state)

blocking, streaming, waiting, failing, hosted, deadly, leaving, gated = map(
    of, (blocks, streams, waits, fails, asks, dies, leaves, gate)
)

async def cancelled(config):
    (task := asyncio.create_task(asyncio.sleep(600))).cancel()
    await task
"""
KINDS = ("blocking", "streaming", "waiting", "failing", "hosted")


def by_graphs(
    own: Path, processes: int, kinds: Sequence[str], ray: str | None = None
) -> list[Trajectory]:
    """One rollout of each kind of graph, in one run."""
    config = CollectConfig(policy="scripted", count=1, concurrency=4, processes=processes, ray=ray)
    draw = partial(
        load_tasks, config.tasks, split=config.split, seed=config.seed, count=config.count
    )
    episodes = [
        replace(episode, thread_id=f"{episode.thread_id}/{kind}", graph=f"{own}:{kind}")
        for kind in kinds
        for episode in group_episodes(draw(), 1, run_id="run", stage="step-0", seed=0, graph="")
    ]

    async def run(engine: ScriptedEngine) -> list[Trajectory]:
        async with (
            open_run(
                own.parent / f"{processes}{'-ray' * bool(ray)}", "scripted", config, backend=engine
            ) as runner,
            opened_workers(processes, runner, config, draw=draw) as workers,
        ):
            return await rollout(runner, episodes, concurrency=4, workers=workers)

    with ScriptedEngine(lambda messages: f"{len(messages)}: {messages[-1].text}"[:40]) as engine:
        return asyncio.run(run(engine))


def told(found: Trajectory) -> Any:
    answers = [call.response["content"] for call in found.calls]
    return found.status, found.error, found.answer, found.rewards, found.policy, answers
