"""Programs around agents from packages, as a newcomer would write them, without any code of this
project.

`react` and `functional` need only packages that the tests' environment has.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AGENTS", "PACKAGES", "REPOSITORIES", "Agent", "Repository"]

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
    "langchain-experimental==0.4.2",
    "langchain-community==0.4.2",
    "langchain-mcp-adapters==0.3.2",
    "langchain-text-splitters==1.1.3",
    "langchain-tavily==0.2.18",
    "python-dotenv==1.2.4",
    "sqlalchemy==2.1.9",
    "greenlet==3.5.6",
    "tabulate==0.10.0",
    "pydantic-settings==2.16.3",
    "httpx-sse==0.4.3",
    "dataclasses-json==0.6.7",
    "marshmallow==4.4.0",
    "typing-inspect==0.9.0",
    "mypy-extensions==1.2.0",
)
"""Packages that are installed without dependencies, since the environment has those. The versions
fit the environment's langchain-core.
"""

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
    """Program of a package's agent."""

    package: str
    """Package whose version the table shows."""
    made_by: str
    body: str
    tail: str = _TAIL
    is_graph: bool = True
    """False for a runnable that is not a graph. `hrm-agent run` runs it as one."""

    @property
    def program(self) -> str:
        """Source of the whole file."""
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
        is_graph=False,
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
        is_graph=False,
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

prompt = ChatPromptTemplate([("human", "{input}"), ("placeholder", "{agent_scratchpad}")])
tools = [tool(multiply), tool(add)]
graph = AgentExecutor(agent=create_tool_calling_agent(model, tools, prompt), tools=tools)
""",
        is_graph=False,
    ),
    "plan": Agent(
        "langchain-experimental",
        "langchain_experimental.plan_and_execute.PlanAndExecute",
        """
from langchain_core.tools import tool
from langchain_experimental.plan_and_execute import PlanAndExecute, load_agent_executor, load_chat_planner

executor = load_agent_executor(model, [tool(multiply)])
graph = PlanAndExecute(planner=load_chat_planner(model), executor=executor)
""",
        is_graph=False,
    ),
    "pandas": Agent(
        "langchain-experimental",
        "langchain_experimental.agents.create_pandas_dataframe_agent",
        """
import pandas
from langchain_experimental.agents import create_pandas_dataframe_agent

table = pandas.DataFrame({"a": [6], "b": [7]})
graph = create_pandas_dataframe_agent(model, table, agent_type="tool-calling", allow_dangerous_code=True)
""",
        is_graph=False,
    ),
    "sql": Agent(
        "langchain-community",
        "langchain_community.agent_toolkits.create_sql_agent",
        """
from langchain_community.agent_toolkits import create_sql_agent
from langchain_community.utilities import SQLDatabase
from sqlalchemy import create_engine, text

engine = create_engine("sqlite:///sums.db")
with engine.begin() as begun:
    begun.execute(text("CREATE TABLE IF NOT EXISTS sums (a INTEGER, b INTEGER)"))
graph = create_sql_agent(model, db=SQLDatabase(engine), agent_type="tool-calling")
""",
        is_graph=False,
    ),
    "mcp": Agent(
        "langchain-mcp-adapters",
        "create_agent with the tools of an MCP server",
        '''
import asyncio
import sys

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient

SERVER = """
from mcp.server.fastmcp import FastMCP

server = FastMCP("sums", log_level="ERROR")


@server.tool()
def multiply(a: int, b: int) -> int:
    return a * b


server.run()
"""
client = MultiServerMCPClient({"sums": {"transport": "stdio", "command": sys.executable, "args": ["-c", SERVER]}})


async def graph():
    return create_agent(model, await client.get_tools())


async def main():
    print(await (await graph()).ainvoke({"messages": [{"role": "user", "content": "What is 6 times 7?"}]}))
''',
        tail="""
if __name__ == "__main__":
    asyncio.run(main())
""",
    ),
    "todo": Agent(
        "langchain",
        "create_agent with a list of things to do, and retries",
        """
from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware, TodoListMiddleware, ToolRetryMiddleware

middleware = [TodoListMiddleware(), PIIMiddleware("email"), ToolRetryMiddleware()]
graph = create_agent(model, [multiply], middleware=middleware)
""",
    ),
}


class Repository(NamedTuple):
    """Public repository with an agent, which runs unchanged in its checkout."""

    owner: str
    name: str
    commit: str
    source: str
    """Folder of its packages."""
    graph: str
    options: str
    """Options of `run` and `train rl` that make the agent use an OpenAI model."""
    asked: str = "'What is 6 times 7?'"
    """Question for `run`."""


REPOSITORIES = (
    Repository(
        "langchain-ai",
        "react-agent",
        "d89d249c2a768e8b166c7c4e3bfeff2c73acb00f",
        "src",
        "./src/react_agent/graph.py:graph",
        "--context model=openai/scripted",
    ),
    Repository(
        "langchain-ai",
        "memory-agent",
        "09bf577731b4d5a35157cf4e18aa5af3c7a5095d",
        "src",
        "./src/memory_agent/graph.py:graph",
        "--context model=openai/scripted",
    ),
    Repository(
        "langchain-ai",
        "langgraph-example",
        "ecf328da62e3efc3270c16fb83e1f6725dd107d1",
        ".",
        "./my_agent/agent.py:graph",
        "--config model_name=openai",
    ),
)
