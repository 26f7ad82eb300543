"""Cost that the journal adds to the checkpoints if the model is hosted. Its requests are stored as
messages and not as tokens.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import pairwise
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.store.measure import Row
from benchmarks.store.ways import Places
from hrm_agent.models.external.recorded import record_external_models
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.upkeep.maintenance import stats
from hrm_agent.trajectory import Journal, Recording, recording

__all__ = ["growth_of_journal", "step_cost"]

JOURNAL = ("model calls", "tokens", "requests")
"""Kinds in `stats` that belong to calls. Values to which only requests refer are added."""


class _Hosted(BaseChatModel):
    """Chat model that answers at once, with `size` characters."""

    size: int

    @property
    def _llm_type(self) -> str:
        return "hosted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        usage: Any = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        text = f"{len(messages):06}".ljust(self.size, "a")
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))]
        )


def _graph(size: int) -> Any:
    model, system = _Hosted(size=size), SystemMessage("You answer." * 10)

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([system, *state["messages"]])]}

    return StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()


async def _converse(store: RunStore, graph: Any, turns: int, size: int, *, journal: bool) -> None:
    kept = graph.copy(update={"checkpointer": store.checkpointer})
    with recording(Recording(store.journal)) if journal else nullcontext():
        for number in range(turns):
            said = HumanMessage(f"{number:06}".ljust(size, "h"))
            await kept.ainvoke(
                {"messages": [said]}, {"configurable": {"thread_id": "t"}}, durability="sync"
            )


def growth_of_journal(places: Places, lengths: Sequence[int], size: int = 100) -> list[Row]:
    """Bytes of a conversation with a hosted model: the contents of its checkpoints, and what its
    calls add.

    `file` is the database after `vacuum`, with keys and indexes.
    """
    record_external_models()
    rows: list[Row] = []
    for turns in lengths:
        of: dict[bool, tuple[int, int]] = {}
        for journal in (False, True):
            with open_store(places.new("sqlite")) as store:
                asyncio.run(_converse(store, _graph(size), turns, size, journal=journal))
                found = stats(store)
                store.database.vacuum()
                of[journal] = (sum(found.bytes.values()), store.database.size())
        rows.append(
            {
                "turns": turns,
                "checkpoints_kb": of[False][0] / 1e3,
                "journal_kb": (of[True][0] - of[False][0]) / 1e3,
                "journal / checkpoints": (of[True][0] - of[False][0]) / of[False][0],
                "file_without_kb": of[False][1] / 1e3,
                "file_kb": of[True][1] / 1e3,
            }
        )
    return rows


async def _steps(saver: Any, journal: Journal | None, messages: int, size: int) -> float:
    """CPU seconds of a step that sends `messages` messages of `size` characters: the median of the
    steps around it.
    """
    model, began = _Hosted(size=size), list[float]()

    async def step(state: MessagesState) -> dict[str, Any]:
        began.append(time.process_time())
        answer = await model.ainvoke([SystemMessage("You answer."), *state["messages"]])
        return {"messages": [answer, HumanMessage(f"{len(began):06}".ljust(size, "h"))]}

    def more(state: MessagesState) -> str:
        return "step" if len(state["messages"]) < messages + 20 else END

    builder = StateGraph(MessagesState).add_node(step).add_edge(START, "step")
    builder.add_conditional_edges("step", more, ["step", END])
    graph: Any = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": messages + 30}
    durability = {} if saver is None else {"durability": "sync"}
    with recording(Recording(journal)) if journal is not None else nullcontext():
        await graph.ainvoke({"messages": [HumanMessage("h" * size)]}, config, **durability)
    return statistics.median(later - earlier for earlier, later in pairwise(began[-20:]))


async def _stock_steps(saver: AbstractAsyncContextManager[Any], messages: int, size: int) -> float:
    async with saver as opened:
        return await _steps(opened, None, messages, size)


def step_cost(places: Places, sizes: Sequence[tuple[int, int]], repeats: int) -> list[Row]:
    """CPU of a step whose node calls a hosted model. Each way is measured in turn; the best repeat
    counts.

    `sizes`: number of messages in the conversation, and characters of each message. Only `with_ms`
    records the model's calls.
    """
    record_external_models()
    rows: list[Row] = []
    for messages, size in sizes:
        of: dict[str, list[float]] = {
            "none_ms": [],
            "AsyncSqliteSaver_ms": [],
            "without_ms": [],
            "with_ms": [],
        }
        for _ in range(repeats):
            of["none_ms"].append(asyncio.run(_steps(None, None, messages, size)))
            stock = AsyncSqliteSaver.from_conn_string(places.new("sqlite"))
            of["AsyncSqliteSaver_ms"].append(asyncio.run(_stock_steps(stock, messages, size)))
            for name in ("without_ms", "with_ms"):
                with open_store(places.new("sqlite")) as store:
                    journal = store.journal if name == "with_ms" else None
                    of[name].append(
                        asyncio.run(_steps(store.checkpointer, journal, messages, size))
                    )
        row = {name: min(taken) * 1e3 for name, taken in of.items()}
        ratios = {
            "with / without": row["with_ms"] / row["without_ms"],
            "with / AsyncSqliteSaver": row["with_ms"] / row["AsyncSqliteSaver_ms"],
        }
        rows.append({"messages": messages, "characters": size, **row, **ratios})
    return rows
