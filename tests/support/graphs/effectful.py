"""Graphs whose nodes have effects outside of the record: on files of the working directory, or on a
port that a file there names.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.models import policy

LOG = Path("effects.log")


def _compiled(do: Callable[[], Any]) -> Any:
    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await policy().ainvoke(state["messages"])]}

    def act(state: MessagesState) -> dict[str, Any]:
        do()
        return {"messages": [AIMessage("done", id="done")]}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_node("act", act)
    return builder.add_edge(START, "ask").add_edge("ask", "act").compile()


def _append() -> None:
    with LOG.open("a") as file:
        file.write("acted\n")


def _append_and_swallow() -> None:
    try:
        _append()
    except Exception:  # as careless nodes do
        return


def _append_in_a_loop() -> None:
    asyncio.run(asyncio.to_thread(_append))


def _append_in_an_executor() -> None:
    """Append in the loop's default executor, as aiofiles does."""

    async def append() -> None:
        await asyncio.get_running_loop().run_in_executor(None, _append)

    asyncio.run(append())


_POOL = ThreadPoolExecutor(1)
_POOL.submit(int).result()


def _append_in_a_pool() -> None:
    """Append in a pool whose thread already exists."""
    _POOL.submit(_append).result()


def _append_in_a_thread_of_its_own() -> None:
    thread = threading.Thread(target=_append)
    thread.start()
    thread.join()


def _append_in_a_pool_of_threads() -> None:
    with ThreadPool(1) as pool:
        pool.apply(_append)


def _in_a_subgraph() -> None:
    appends.invoke({"messages": [AIMessage("inner", id="inner")]})


def _connect() -> None:
    with socket.socket() as connection:
        connection.connect_ex(("127.0.0.1", 9))


def _start() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def _spawn() -> None:
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()


def _read() -> None:
    """Do only what is no effect: read a file, write to the null device, print."""
    Path(__file__).read_text()
    with Path(os.devnull).open("w") as nothing:
        print("read", file=nothing)


appends = (
    StateGraph(MessagesState)
    .add_node("inner", lambda _: _append())
    .add_edge(START, "inner")
    .compile()
)
writes, swallows, in_a_thread, below = map(
    _compiled, (_append, _append_and_swallow, _append_in_a_loop, _in_a_subgraph)
)
in_an_executor, in_a_pool = map(_compiled, (_append_in_an_executor, _append_in_a_pool))
in_its_own, in_threads = map(
    _compiled, (_append_in_a_thread_of_its_own, _append_in_a_pool_of_threads)
)
connects, starts, spawns, reads = map(_compiled, (_connect, _start, _spawn, _read))
