"""A process that writes to a store, for tests that start several of them.

Each process waits for a message before it opens the store, so that several begin at the same
moment. Its last message is `done`, or the error that refused it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from hrm_agent.errors import HrmError
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    GraphIdentity,
    LogprobKind,
    RunStatus,
    StopReason,
    TaskRef,
    Trajectory,
    call_id,
)

__all__ = ["STEPS", "THREADS", "call", "hold", "main", "run", "write"]

THREADS, STEPS = 5, 8


class Count(TypedDict):
    n: int
    text: str


def graph_over(store: RunStore) -> Any:
    def step(state: Count) -> dict[str, Any]:
        return {"n": state["n"] + 1, "text": f"what is said at step {state['n']} " * 20}

    builder = StateGraph(Count).add_node("step", step).add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda state: "step" if state["n"] < STEPS else END, ["step", END]
    )
    return builder.compile(checkpointer=store.checkpointer)


def write(store: RunStore, name: str, _: Connection) -> None:
    """Run a graph on many threads, with journal entries."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: write_thread(store, f"{name} {i}"), range(THREADS)))


def write_thread(store: RunStore, thread: str) -> None:
    with store.lease(thread):
        store.journal.write_trajectory(trajectory(thread, RunStatus.RUNNING))
        graph_over(store).invoke(
            {"n": 0, "text": ""}, {"configurable": {"thread_id": thread}}, durability="sync"
        )
        for index in range(STEPS):
            store.journal.write_call(call(thread, index))
        store.journal.write_trajectory(trajectory(thread, RunStatus.COMPLETED))


def trajectory(thread: str, status: RunStatus) -> Trajectory:
    ended = status is RunStatus.COMPLETED
    return Trajectory(
        id=f"id of {thread}",
        thread_id=thread,
        task=TaskRef(id="1", family="f", prompt="p"),
        graph="g",
        policy="p",
        status=status,
        stop_reason=StopReason.ANSWER if ended else None,
        started_at=0.0,
        ended_at=1.0 if ended else None,
    )


def call(thread: str, index: int) -> Call:
    return Call(
        id=call_id(thread, "task", index),
        identity=GraphIdentity(thread_id=thread, task_id="task"),
        call_index=index,
        request_hash=str(index),
        model="m",
        parent=None,
        branch_reason=BranchReason.ROOT,
        token_ids=(1, 2),
        mask=(False, True),
        logprobs=(0.0, -1.0),
        logprob_kind=LogprobKind.RAW,
        response={"content": "said by all processes alike"},
        started_at=0.0,
        ended_at=0.0,
    )


def run(store: RunStore, thread: str, other: Connection) -> None:
    """Run a graph on one thread. The graph reads the checkpoint, then waits for the other process
    before it continues.
    """
    saver: Any = store.checkpointer
    read, waits = saver.get_tuple, iter([True])

    def waiting(config: Any) -> Any:
        found = read(config)
        if next(waits, False):
            other.send("has read the thread")
            other.recv()
        return found

    saver.get_tuple = waiting
    graph_over(store).invoke({"n": 0, "text": ""}, {"configurable": {"thread_id": thread}})


def hold(store: RunStore, thread: str, other: Connection) -> None:
    """Hold the lease of a thread until the other end is closed or sends a message."""
    with store.lease(thread):
        other.send("held")
        with suppress(EOFError):
            other.recv()


def main(other: Connection, work: Any, url: str, name: str) -> None:
    other.recv()
    try:
        with open_store(url) as store:
            work(store, name, other)
    except HrmError as error:
        other.send(f"{type(error).__name__}: {error}")
    else:
        other.send("done")
