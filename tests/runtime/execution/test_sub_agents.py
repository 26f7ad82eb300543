"""Agents that call other agents by a tool. Each named one is a role of its own."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.prebuilt import create_react_agent

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.models import policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner, refuse_other_roles
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, TaskRef
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.own_agent import multiply

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")


def named(agent: Any, name: str) -> Any:
    """Agent with a name, as LangChain's `create_agent` gives it one."""
    return agent.with_config(metadata={"lc_agent_name": name})


def boss() -> Any:
    """Agent with a named sub-agent that has a tool, and an unnamed one."""
    expert = named(create_react_agent(policy(), [multiply]), "expert")
    writer = create_react_agent(policy(), [])

    def asked(agent: Any, question: str) -> str:
        return agent.invoke({"messages": [("user", question)]})["messages"][-1].content

    @tool
    def ask_expert(question: str) -> str:
        """Ask the expert."""
        return asked(expert, question)

    @tool
    def ask_writer(question: str) -> str:
        """Ask the writer."""
        return asked(writer, question)

    return named(create_react_agent(policy(), [ask_expert, ask_writer]), "boss")


SCRIPT = [
    '<tool_call>\n{"name": "ask_expert", "arguments": {"question": "17 * 23?"}}\n</tool_call>',
    '<tool_call>\n{"name": "multiply", "arguments": {"a": 17, "b": 23}}\n</tool_call>',
    "It is 391.",
    '<tool_call>\n{"name": "ask_writer", "arguments": {"question": "391?"}}\n</tool_call>',
    "three hundred and ninety-one",
    "391",
]


async def test_a_named_sub_agent_is_a_role_and_replays(
    store: RunStore, environment: LocalEnvironment
) -> None:
    graph = boss()
    task = TaskRef(id="1", family="test", prompt="What is 17 * 23?", answer="391")
    with ScriptedEngine(SCRIPT) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        found = await runner.run(Episode(task, "thread", graph=graph, seed=1))
    assert (found.status, found.answer) == (RunStatus.COMPLETED, "391")
    roles = [call.identity.role for call in found.calls]
    assert roles == ["agent", "expert", "expert", "agent", "tools", "agent"]
    assert [call.identity.agent for call in found.calls] == [
        "expert" if role == "expert" else "" for role in roles
    ]
    by_name = {call.name: call.identity.role for call in found.tool_calls}
    assert by_name == {"ask_expert": "tools", "multiply": "expert", "ask_writer": "tools"}
    assert lint(found) == []
    again = await replay_async(store, "thread", graph=graph)
    assert again.equal


def test_roles_of_an_agent_with_tools_are_not_known_beforehand() -> None:
    refuse_other_roles(["expert"], "lora_roles", [boss()], {})
    with pytest.raises(ConfigError, match="the graph tool_loop has no such node"):
        refuse_other_roles(["expert"], "lora_roles", ["tool_loop"], {})
    with pytest.raises(ConfigError, match="the graph tool_loop or reasoning has no such node"):
        refuse_other_roles(["expert"], "lora_roles", ["tool_loop", "reasoning"], {})
