"""Programs around agents that come as packages: what a newcomer writes, with nothing of this project in it.

`react` and `functional` need no package but those that the tests' environment has.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AGENTS", "PACKAGES", "Agent"]

PACKAGES = (
    "langchain==1.4.5",
    "langchain-classic==1.0.8",
    "langgraph-supervisor==0.0.31",
    "langgraph-swarm==0.1.0",
    "langgraph-reflection==0.0.1",
    "langgraph-bigtool==0.0.3",
    "langgraph-codeact==0.1.3",
    "deepagents==0.7.32",
    "trustcall==0.0.39",
    "langmem==0.0.30",
    "dydantic==0.0.8",
    "jsonpatch==1.47",
    "jsonpointer==3.12",
    "wcmatch==12.0.1",
    "bracex==3.2.2",
)
"""Installed without what they ask for, which is in the environment: those that fit its version of langchain-core."""

_HEAD = '''
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="scripted")


def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b
'''
_TAIL = """
if __name__ == "__main__":
    print(graph.invoke({"messages": [{"role": "user", "content": "What is 6 times 7?"}]}))
"""


class Agent(NamedTuple):
    """A program of an agent's package."""

    package: str
    """Whose version the table shows."""
    made_by: str
    body: str
    tail: str = _TAIL

    @property
    def program(self) -> str:
        """The whole file."""
        return f"{_HEAD}\n{self.body.strip()}\n\n{self.tail}"


AGENTS = {
    "react": Agent(
        "langgraph-prebuilt",
        "langgraph.prebuilt.create_react_agent",
        """
from langgraph.prebuilt import create_react_agent

graph = create_react_agent(model, [multiply, add])
""",
    ),
    "langchain": Agent(
        "langchain",
        "langchain.agents.create_agent",
        """
from langchain.agents import create_agent

graph = create_agent(model, [multiply, add], system_prompt="You do sums.")
""",
    ),
    "middleware": Agent(
        "langchain",
        "create_agent with a summary and a limit of calls",
        """
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, SummarizationMiddleware

middleware = [SummarizationMiddleware(model=model, trigger=("messages", 3), keep=("messages", 1)),
              ModelCallLimitMiddleware(run_limit=8)]
graph = create_agent(model, [multiply, add], middleware=middleware)
""",
    ),
    "structured": Agent(
        "langchain",
        "create_agent with response_format",
        """
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from pydantic import BaseModel


class Verdict(BaseModel):
    value: int


graph = create_agent(model, [multiply], response_format=ToolStrategy(Verdict))
""",
    ),
    "supervisor": Agent(
        "langgraph-supervisor",
        "langgraph_supervisor.create_supervisor",
        """
from langgraph.prebuilt import create_react_agent
from langgraph_supervisor import create_supervisor

adder = create_react_agent(model, [add], name="adder")
multiplier = create_react_agent(model, [multiply], name="multiplier")
graph = create_supervisor([adder, multiplier], model=model).compile()
""",
    ),
    "swarm": Agent(
        "langgraph-swarm",
        "langgraph_swarm.create_swarm",
        """
from langgraph.prebuilt import create_react_agent
from langgraph_swarm import create_handoff_tool, create_swarm

ann = create_react_agent(model, [add, create_handoff_tool(agent_name="Bob")], name="Ann")
bob = create_react_agent(model, [multiply, create_handoff_tool(agent_name="Ann")], name="Bob")
graph = create_swarm([ann, bob], default_active_agent="Ann").compile()
""",
    ),
    "deep": Agent(
        "deepagents",
        "deepagents.create_deep_agent",
        """
from deepagents import create_deep_agent

helper = {"name": "helper", "description": "does sums", "system_prompt": "You do sums.", "tools": [multiply]}
graph = create_deep_agent(model=model, tools=[add], subagents=[helper])
""",
    ),
    "bigtool": Agent(
        "langgraph-bigtool",
        "langgraph_bigtool.create_agent",
        '''
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore
from langgraph_bigtool import create_agent


def find(query: str) -> list[str]:
    """Find tools."""
    return ["multiply"]


tools = {"multiply": tool(multiply), "add": tool(add)}
graph = create_agent(model, tools, retrieve_tools_function=find).compile(store=InMemoryStore())
''',
    ),
    "reflection": Agent(
        "langgraph-reflection",
        "langgraph_reflection.create_reflection_graph",
        """
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph_reflection import create_reflection_graph


def critic(state):
    said = model.invoke([{"role": "system", "content": "Is it right?"}, *state["messages"]])
    return {} if len(state["messages"]) > 5 else {"messages": [{"role": "user", "content": said.text}]}


solver = StateGraph(MessagesState).add_node("solve", create_react_agent(model, [multiply])).add_edge(START, "solve")
judge = StateGraph(MessagesState).add_node("critic", critic).add_edge(START, "critic")
graph = create_reflection_graph(solver.compile(), judge.compile(), state_schema=MessagesState).compile()
""",
    ),
    "codeact": Agent(
        "langgraph-codeact",
        "langgraph_codeact.create_codeact",
        """
import contextlib
import io

from langgraph_codeact import create_codeact


def evaluate(code, names):
    told, before = io.StringIO(), set(names)
    with contextlib.redirect_stdout(told):
        exec(code, names)
    return told.getvalue() or "nothing", {}


graph = create_codeact(model, [multiply], evaluate).compile()
""",
    ),
    "trustcall": Agent(
        "trustcall",
        "trustcall.create_extractor",
        """
from pydantic import BaseModel
from trustcall import create_extractor


class Person(BaseModel):
    name: str
    age: int


graph = create_extractor(model, tools=[Person], tool_choice="Person")
""",
    ),
    "langmem": Agent(
        "langmem",
        "langmem's memory tools in create_react_agent",
        """
from langgraph.prebuilt import create_react_agent
from langgraph.store.memory import InMemoryStore
from langmem import create_manage_memory_tool, create_search_memory_tool

tools = [create_manage_memory_tool(namespace=("memories",)), create_search_memory_tool(namespace=("memories",))]
graph = create_react_agent(model, tools, store=InMemoryStore())
""",
    ),
    "memory_manager": Agent(
        "langmem",
        "langmem.create_memory_manager",
        """
from langmem import create_memory_manager

graph = create_memory_manager(model)
""",
    ),
    "functional": Agent(
        "langgraph",
        "langgraph.func, around create_react_agent",
        """
from langgraph.func import entrypoint, task
from langgraph.prebuilt import create_react_agent

inner = create_react_agent(model, [multiply])


@task
def solve(messages):
    return inner.invoke({"messages": messages})["messages"]


@entrypoint()
def graph(asked: dict) -> dict:
    told = [solve(asked["messages"]), solve(asked["messages"])]
    return {"messages": told[0].result()[-1:] + told[1].result()[-1:]}
""",
    ),
    "executor": Agent(
        "langchain-classic",
        "langchain_classic.agents.AgentExecutor",
        """
from langchain_classic.agents import AgentExecutor, create_tool_calling_agent
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool

prompt = ChatPromptTemplate([("human", "{messages}"), ("placeholder", "{agent_scratchpad}")])
tools = [tool(multiply), tool(add)]
graph = AgentExecutor(agent=create_tool_calling_agent(model, tools, prompt), tools=tools)
""",
    ),
}
