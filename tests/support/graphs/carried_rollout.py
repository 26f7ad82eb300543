"""An agent that asks the model twice, and tasks for it. In each group of a step, the second rollout
hangs between the two requests.

The rollout hangs under the weights of its own step, and with `HANGS_ON` set under those of the next
step, too. The other rollouts of its group end after it has begun to hang. The rollouts of the next
step end after the hanging one has ended there. `is_right` says which rollouts are right.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph

from hrm_agent.models import policy
from hrm_agent.models.current_policy import active_policy
from hrm_agent.training.tasks import Task
from hrm_agent.trajectory import active_recording

HANGS_ON = "HRM_AGENT_TEST_HANGS_ON"
GROUPS, SAMPLES, HANGING = 2, 4, 1


def tasks(count: int) -> list[Task]:
    return [
        Task(prompt=f"Number {number}", verify=lambda text: float(text == "right"))
        for number in range(count)
    ]


def is_right(place: int, sample: int) -> bool:
    """True for the first two samples of the first group, and for the hanging sample of each other
    group. Without the hanging sample, all rewards of such a group are equal.
    """
    return sample == HANGING or (place, sample) == (0, 0)


async def reason(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke(state["messages"])]}


async def wait(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    del state
    run, step, place, sample = parts(config)
    journal = active_recording().journal
    if sample == HANGING:
        version: Any = getattr(active_policy().backend, "policy_version", 0)
        if version <= step + (HANGS_ON in os.environ):
            await asyncio.Event().wait()
    else:
        hanging = f"{run}/step-{step}/{place}/{HANGING}"
        await until(
            lambda: (
                (found := journal.find_trajectory(hanging)) is not None and len(found.own_calls) > 0
            )
        )
        if step and HANGS_ON not in os.environ:
            for group in range(GROUPS):
                carried = journal.trajectory(f"{run}/step-{step - 1}/{group}/{HANGING}").id
                await until(lambda carried=carried: journal.is_over(carried))
    return {"messages": [HumanMessage("Go on.")]}


async def answer(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    del state
    _, _, place, sample = parts(config)
    return {"messages": [AIMessage("right" if is_right(place, sample) else "wrong")]}


def parts(config: RunnableConfig) -> tuple[str, int, int, int]:
    """Run, step, place and sample of a thread."""
    found = re.fullmatch(r"(.*)/step-(\d+)/(\d+)/(\d+)", config["configurable"]["thread_id"])
    assert found is not None
    return found[1], int(found[2]), int(found[3]), int(found[4])


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


builder = StateGraph(MessagesState)
builder.add_node("first", reason)
builder.add_node("wait", wait)
builder.add_node("second", reason)
builder.add_node("answer", answer)
builder.add_edge(START, "first")
builder.add_edge("first", "wait")
builder.add_edge("wait", "second")
builder.add_edge("second", "answer")
builder.add_edge("answer", END)
graph = builder.compile()
