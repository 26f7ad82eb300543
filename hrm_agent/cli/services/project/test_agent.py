"""Test of the agent with a script in place of the model. The graph, its tool and the record are
real. No network is needed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from hrm_agent import record
from hrm_agent.models import using_policy
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import open_store
from hrm_agent.testing import ScriptedEngine, loopback_only
from langchain_core.messages import HumanMessage

from agent import graph

TASK = HumanMessage("A farm keeps 23 hens and 45 cows. How many legs do they have?")
CALL = '<tool_call>{"name": "python", "arguments": {"code": "23 * 2 + 45 * 4"}}</tool_call>'
ANSWER = r"<answer>\boxed{226}</answer>"


def test_a_run_replays_to_the_same(tmp_path: Path) -> None:
    asyncio.run(run_and_replay(tmp_path / "runs.db"))


async def run_and_replay(path: Path) -> None:
    with loopback_only() as tried, ScriptedEngine([CALL, ANSWER]) as engine, using_policy(engine):
        async with record(path):
            state = await graph.ainvoke({"messages": [TASK]})
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert state["messages"][2].text == "226"
    with open_store(path, create=False) as store:
        (run,) = store.journal.headers()
        assert (await replay_async(store, run.id, graph=graph)).equal
    assert tried == []  # no other machine was contacted
