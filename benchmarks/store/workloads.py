"""Workloads of the store benchmark, a function for each table."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from benchmarks.store.measure import Row, best, spent
from benchmarks.store.recorded import (
    Operation,
    chat,
    loop_graph,
    record_chat,
    record_loop,
    replay,
    replay_async,
)
from benchmarks.store.ways import FLOORS, NOTHING, WAYS, Floor, Places, Way
from hrm_agent.store import open_store
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    GraphIdentity,
    LogprobKind,
    RunStatus,
    TaskRef,
    Trajectory,
)

__all__ = ["conversations", "growth", "listing", "loops", "replays", "rollouts", "tokens"]

MESSAGE = 2000
"""Characters of a message."""
ROLLOUTS, TURNS = 32, 12
TOKENS, CALLS = 1000, 25
STOCK_UP_TO = 200
"""Maximum messages for stock savers, which are slow with longer conversations."""


def loops(places: Places, steps: int, repeats: int) -> list[Row]:
    """Rows of a two-node loop through LangGraph. `none` is the loop without a checkpointer,
    `NOTHING` with an idle one.
    """
    graph, rows = loop_graph(steps), list[Row]()
    for _ in range(repeats):
        for durability in ("sync", "async"):
            for way in (None, NOTHING, *WAYS.values()):
                rows.append(_loop(way, graph, places, steps, durability))
    return best(rows, "way", "durability")


def _loop(way: Way | None, graph: Any, places: Places, steps: int, durability: str) -> Row:
    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": steps + 10}
    given = {"n": 0, "note": ""}
    if way is None:
        with spent() as used:
            graph.invoke(given, config)
    elif way.opened is None:
        used = asyncio.run(_loop_async(way, graph, places, config, durability))
    else:
        with way.opened(places.new(way.body)) as saver:
            kept = graph.copy(update={"checkpointer": saver})
            with spent() as used:
                kept.invoke(given, config, durability=durability)
    name, survives = (way.name, way.survives) if way else ("none", "")
    return {"way": name, "survives": survives, "durability": durability, **_rates(used, steps)}


async def _loop_async(way: Way, graph: Any, places: Places, config: Any, durability: str) -> Any:
    async with way.opened_async(places.new(way.body)) as saver:
        kept = graph.copy(update={"checkpointer": saver})
        with spent() as used:
            await kept.ainvoke({"n": 0, "note": ""}, config, durability=durability)
    return used


def _rates(used: Any, steps: int) -> Row:
    return {"steps_s": steps / used.wall, "ms_cpu": used.cpu / steps * 1e3, "seconds": used.wall}


def replays(places: Places, steps: int, messages: int, repeats: int) -> list[Row]:
    """Rows of a run's recorded calls of a checkpointer, replayed on each checkpointer without
    LangGraph, and of bare inserts of the rows that our store wrote.
    """
    rows: list[Row] = []
    for _ in range(repeats):
        for kind in ("loop", "chat"):
            tables: dict[str, dict[str, list[Any]]] = {}
            count = 0
            for way in WAYS.values():
                row, place, count = _replay(
                    way, places, kind, steps if kind == "loop" else messages
                )
                rows.append(row)
                if way.ours:
                    tables[way.body] = _tables(place)
            rows.extend(_floor(floor, places, kind, tables[floor.body], count) for floor in FLOORS)
    return best(rows, "way", "sequence")


def _record(saver: BaseCheckpointSaver[Any], kind: str, length: int) -> list[Operation]:
    return (
        record_loop(saver, length) if kind == "loop" else record_chat(saver, chat(length, MESSAGE))
    )


def _replay(way: Way, places: Places, kind: str, length: int) -> tuple[Row, str, int]:
    place = places.new(way.body)
    if way.opened is None:
        used, count = asyncio.run(_replay_async(way, place, kind, length))
    else:
        with way.opened(place) as saver:
            operations = _record(saver, kind, length)
            with spent() as used:
                replay(saver, operations)
        count = sum(name == "put" for name, _ in operations)
    return (
        {"way": way.name, "survives": way.survives, "sequence": kind, **_rates(used, count)},
        place,
        count,
    )


async def _replay_async(way: Way, place: str, kind: str, length: int) -> tuple[Any, int]:
    async with way.opened_async(place) as saver:
        operations = _record(saver, kind, length)
        with spent() as used:
            await replay_async(saver, operations)
    return used, sum(name == "put" for name, _ in operations)


def _tables(place: str) -> dict[str, list[Any]]:
    """All rows that our store keeps for its checkpoints."""
    with open_store(place) as store, store.database.read() as cursor:
        names = ("blobs", "checkpoints", "writes")
        tables = {name: cursor.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    return {name: [tuple(row) for row in rows] for name, rows in tables.items() if rows}


def _floor(
    floor: Floor, places: Places, kind: str, tables: dict[str, list[Any]], commits: int
) -> Row:
    place = places.new(floor.body)
    with spent() as used:
        floor.write(place, tables, commits)
    return {
        "way": floor.name,
        "survives": floor.survives,
        "sequence": kind,
        **_rates(used, commits),
    }


def conversations(places: Places, lengths: Sequence[int]) -> list[Row]:
    """Rows of a conversation that is written, then opened again and read: first the newest state,
    then the whole history.
    """
    names = ("ours", "SqliteSaver", "ours, PostgreSQL", "PostgresSaver")
    return [_conversation(WAYS[name], places, length) for length in lengths for name in names]


def _conversation(way: Way, places: Places, length: int) -> Row:
    assert way.opened is not None
    place = places.new(way.body)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with way.opened(place) as saver:
        empty = places.size(place)
        operations = _record(saver, "chat", length)
        with spent() as write:
            replay(saver, operations)
    with way.opened(place) as saver:
        with spent() as history:
            found = [*saver.list(config)]
        assert len(found[0].checkpoint["channel_values"]["messages"]) == length
        newest = statistics.median(_seconds(lambda: saver.get_tuple(config)) for _ in range(15))
    size = places.size(place) - (empty if way.body == "postgresql" else 0)
    return {
        "way": way.name,
        "messages": length,
        "said_mb": length * MESSAGE / 1e6,
        "stored_mb": size / 1e6,
        "write_s": write.wall,
        "history_s": history.wall,
        "newest_ms": newest * 1e3,
    }


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def tokens(places: Places) -> list[Row]:
    """Rows of a run's token ids, mask and log-probs, kept in the journal, or as other projects do
    in the messages' metadata.
    """
    ids, logprobs = list(range(TOKENS)), [-i / 7 for i in range(TOKENS)]
    kept = {"token_ids": ids, "logprobs": logprobs}
    rows: list[Row] = []
    for name in ("ours", "SqliteSaver", "ours, PostgreSQL", "PostgresSaver"):
        way = WAYS[name]
        assert way.opened is not None
        place = places.new(way.body)
        with way.opened(place) as saver:
            empty = places.size(place)
            said = chat(
                2 * CALLS, MESSAGE, lambda i, ours=way.ours: {"call": str(i)} if ours else kept
            )
            operations = record_chat(saver, said)
            calls = [_call(i, tuple(ids), tuple(logprobs)) for i in range(CALLS)]
            with spent() as used:
                replay(saver, operations)
        if way.ours:
            with open_store(place) as store, spent() as journal:
                for call in calls:
                    store.journal.write_call(call)
            used.wall, used.cpu = used.wall + journal.wall, used.cpu + journal.cpu
        size = places.size(place) - (empty if way.body == "postgresql" else 0)
        rows.append(
            {"way": name, "stored_mb": size / 1e6, "write_s": used.wall, "write_cpu_s": used.cpu}
        )
    return rows


def _call(index: int, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Call:
    return Call(
        id=f"call {index}",
        identity=GraphIdentity(thread_id="t", task_id=f"task {index}"),
        call_index=index,
        request_hash=f"request {index}",
        model="m",
        parent=f"call {index - 1}" if index else None,
        branch_reason=None if index else BranchReason.ROOT,
        token_ids=ids,
        mask=(False,) * (TOKENS // 2) + (True,) * (TOKENS // 2),
        logprobs=logprobs,
        logprob_kind=LogprobKind.RAW,
        response={"content": "as in the message"},
        started_at=0.0,
        ended_at=0.0,
    )


def rollouts(places: Places) -> list[Row]:
    """Rows of parallel rollouts in one event loop, on one store."""
    names = ("ours", "ours, power", "AsyncSqliteSaver", "ours, PostgreSQL", "PostgresSaver")
    return [asyncio.run(_rollouts(way, places)) for way in (None, *(WAYS[name] for name in names))]


async def _rollouts(way: Way | None, places: Places) -> Row:
    graph, steps = loop_graph(TURNS), ROLLOUTS * TURNS
    given = {"n": 0, "note": ""}
    configs: list[Any] = [
        {"configurable": {"thread_id": str(i)}, "recursion_limit": 50} for i in range(ROLLOUTS)
    ]
    if way is None:
        with spent() as used:
            await asyncio.gather(*(graph.ainvoke(given, config) for config in configs))
        return {"way": "none", "survives": "", **_rates(used, steps)}
    async with way.opened_async(places.new(way.body)) as saver:
        kept = graph.copy(update={"checkpointer": saver})
        with spent() as used:
            await asyncio.gather(
                *(kept.ainvoke(given, config, durability="sync") for config in configs)
            )
    return {"way": way.name, "survives": way.survives, **_rates(used, steps)}


def listing(places: Places, threads: int) -> list[Row]:
    """Rows for listing the names of all threads. Stock savers cannot list threads, so their users
    list every checkpoint.
    """
    rows: list[Row] = []
    for name in ("ours", "SqliteSaver NORMAL", "ours, PostgreSQL"):
        way = WAYS[name]
        assert way.opened is not None
        place = places.new(way.body)
        with way.opened(place) as saver:
            (_, given), *_ = record_loop(saver, 2)
            asyncio.run(_many_threads(saver, given, threads, gathered=way.body == "postgresql"))
        if way.ours:
            with open_store(place) as store:
                for i in range(0, threads if way.body == "sqlite" else 0, 2):
                    store.journal.write_trajectory(_trajectory(str(i)))
                seconds = statistics.median(_seconds(store.threads) for _ in range(5))
                assert len(store.threads()) == threads
        else:
            with way.opened(place) as saver:
                seconds = _seconds(
                    lambda saver=saver: {_thread(found.config) for found in saver.list(None)}
                )
        rows.append({"way": name, "threads": threads, "ms": seconds * 1e3})
    return rows


def _thread(config: Any) -> str:
    return config["configurable"]["thread_id"]


async def _many_threads(saver: Any, given: Any, threads: int, *, gathered: bool) -> None:
    """Write one checkpoint on each thread."""
    config, checkpoint, metadata, versions = given

    def named(i: int) -> Any:
        return {**config, "configurable": {"thread_id": str(i), "checkpoint_ns": ""}}

    if not gathered:
        for i in range(threads):
            saver.put(named(i), checkpoint, metadata, versions)
        return
    for start in range(0, threads, 500):
        some = range(start, min(start + 500, threads))
        await asyncio.gather(*(saver.aput(named(i), checkpoint, metadata, versions) for i in some))


def _trajectory(thread: str) -> Trajectory:
    return Trajectory(
        id=f"trajectory {thread}",
        thread_id=thread,
        run_id="run",
        task=TaskRef(id="1", family="f", prompt="p"),
        graph="g",
        policy="p",
        status=RunStatus.COMPLETED,
        started_at=0.0,
    )


def growth(places: Places, lengths: Sequence[int]) -> list[Row]:
    """Size by the length of a conversation. Stock savers store each message again in every later
    checkpoint.
    """
    rows: list[Row] = []
    for length in lengths:
        row: Row = {
            "messages": length,
            "ours, kB a message": None,
            "SqliteSaver NORMAL, kB a message": None,
        }
        for name in ("ours", "SqliteSaver NORMAL") if length <= STOCK_UP_TO else ("ours",):
            way = WAYS[name]
            assert way.opened is not None
            place = places.new(way.body)
            with way.opened(place) as saver:
                replay(saver, _record(saver, "chat", length))
            row[f"{name}, kB a message"] = places.size(place) / length / 1e3
        rows.append(row)
    return rows
