"""What the journal adds to the checkpoints where a hosted model answers, whose requests are messages and not tokens."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.store.measure import Row
from benchmarks.store.ways import Places
from hrm_agent.models.external_models import record_external_models
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.maintenance import stats
from hrm_agent.trajectory import Recording, recording

__all__ = ["growth_of_journal", "step_cost"]

JOURNAL = ("model calls", "tokens", "requests")
"""What `stats` counts of calls; the values that only requests name come on top."""


class _Hosted(BaseChatModel):
    """Answers at once, with as many characters as it is told."""

    size: int

    @property
    def _llm_type(self) -> str:
        return "hosted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        usage: Any = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        text = f"{len(messages):06}".ljust(self.size, "a")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])


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
            await kept.ainvoke({"messages": [said]}, {"configurable": {"thread_id": "t"}}, durability="sync")


def growth_of_journal(places: Places, lengths: Sequence[int], size: int = 100) -> list[Row]:
    """Bytes of a conversation with a hosted model: the contents of its checkpoints, and what its calls add.

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


async def _steps(store: RunStore, messages: int, size: int, *, journal: bool) -> float:
    """CPU seconds of a step, in the middle of those around one that sends `messages` messages."""
    model, began = _Hosted(size=size), list[float]()

    async def step(state: MessagesState) -> dict[str, Any]:
        began.append(time.process_time())
        answer = await model.ainvoke([SystemMessage("You answer."), *state["messages"]])
        return {"messages": [answer, HumanMessage(f"{len(began):06}".ljust(size, "h"))]}

    def more(state: MessagesState) -> str:
        return "step" if len(state["messages"]) < messages + 20 else END

    builder = StateGraph(MessagesState).add_node(step).add_edge(START, "step")
    builder.add_conditional_edges("step", more, ["step", END])
    graph: Any = builder.compile(checkpointer=store.checkpointer)
    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": messages + 30}
    with recording(Recording(store.journal)) if journal else nullcontext():
        await graph.ainvoke({"messages": [HumanMessage("h" * size)]}, config, durability="sync")
    return statistics.median(later - earlier for earlier, later in pairwise(began[-20:]))


def step_cost(places: Places, messages: int, repeats: int, size: int = 2000) -> list[Row]:
    """CPU of a step whose one node asks a hosted model, without the journal and with it: the best of the repeats."""
    record_external_models()
    of: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for journal, taken in of.items():
            with open_store(places.new("sqlite")) as store:
                taken.append(asyncio.run(_steps(store, messages, size, journal=journal)))
    without, kept = min(of[False]) * 1e3, min(of[True]) * 1e3
    return [{"messages": messages, "without_ms": without, "with_ms": kept, "with / without": kept / without}]
