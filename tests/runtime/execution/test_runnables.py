"""Runnables, workflows that declare no input, subgraphs without checkpoints, graphs that want a
store.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel

from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.printer import Printer
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import GraphError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution import graph_names
from hrm_agent.runtime.execution.conversation import first_input
from hrm_agent.runtime.execution.graph_names import graph_name
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, TaskRef, Trajectory
from tests.support.graphs.own_agent import HostedModel, builder

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?")


class Found(BaseModel):
    """An object of a library, which no state declares."""

    text: str


model = HostedModel(disable_streaming=True)
chain = ChatPromptTemplate([("system", "You do sums."), ("human", "{question}")]) | model
inner = builder.compile(checkpointer=False)
around = RunnableLambda(lambda given: {"messages": given["messages"]}) | inner | RunnableLambda(
    lambda state: [Found(text=state["messages"][-1].text)]
)  # fmt: skip


async def run(store: RunStore, environment: LocalEnvironment, graph: Any) -> Trajectory:
    with ScriptedEngine([]) as nobody:
        return await EpisodeRunner(store, nobody, "hosted", environment).run(
            Episode(TASK, "t", graph=graph)
        )


@pytest.mark.parametrize(("name", "calls"), [("chain", 1), ("around", 2)])
@pytest.mark.parametrize("by", ["object", "name"])
async def test_it_is_recorded_and_replayed(
    name: str, calls: int, by: str, store: RunStore, environment: LocalEnvironment
) -> None:
    named = f"{__name__}:{name}"
    done = await run(store, environment, globals()[name] if by == "object" else named)
    assert (done.status, done.graph, len(done.calls)) == (
        RunStatus.COMPLETED,
        named,
        calls,
    ), done.error
    assert done.calls[0].request is not None and "6 * 7" in str(done.calls[0].request)
    if name == "around":
        assert done.answer == "[{'text': 'It is 42.'}]", "what no schema declares is kept as JSON"
        assert [call.name for call in done.tool_calls] == ["multiply"]
    found = await replay_async(store, "t")
    assert found.equal, found


def test_the_same_object_is_the_same_graph_and_a_model_is_none() -> None:
    assert load_graph(chain) is load_graph(chain) is load_graph(f"{__name__}:chain")
    with pytest.raises(GraphError, match="HostedModel is not a LangGraph graph"):
        load_graph(model)
    with pytest.raises(GraphError, match=r"'model' in .* is HostedModel, not a LangGraph graph"):
        load_graph(f"{__name__}:model")


def test_a_name_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Includes a graph that has no hash, and one that no module holds."""
    lambdas = [RunnableLambda(lambda given: given), builder.compile()]
    named = [graph_name(graph) for graph in (chain, inner, *lambdas)]
    assert named[:2] == [f"{__name__}:chain", f"{__name__}:inner"]
    monkeypatch.setattr(graph_names, "_watched", lambda: pytest.fail("looked for again"))
    assert [graph_name(graph) for graph in (chain, inner, *lambdas)] == named


def test_a_module_that_is_edited_is_looked_at_for_every_graph_and_an_installed_one_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A web program that compiles a graph for each request must not pay for every library that it
    has imported.
    """
    theirs = ModuleType("theirs")
    theirs.graph = None
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    graph_name(RunnableLambda(str))
    theirs.graph = RunnableLambda(str)
    assert graph_name(theirs.graph) == "theirs:graph"
    spec = ModuleSpec("installed", None, origin="/x/site-packages/installed.py")
    spec.has_location = True
    installed = module_from_spec(spec)
    for name in ("first", "second"):
        setattr(installed, name, RunnableLambda(str))
    monkeypatch.setitem(sys.modules, "installed", installed)
    monkeypatch.setattr(graph_names, "_is_importable", lambda name, file: True)
    assert [graph_name(getattr(installed, each)) for each in ("first", "second")] == [
        "installed:first",
        "installed:second",
    ]
    monkeypatch.setitem(sys.modules, "odd", ModuleType("odd"))
    del sys.modules["odd"].__spec__
    watched = graph_names._watched()
    assert "theirs" in watched and not watched & {"json", "langgraph.graph.state", "pydantic.main"}


class Asked(TypedDict):
    question: str


def test_the_task_has_a_place_in_every_input() -> None:
    message = HumanMessage(
        TASK.prompt, id=first_input(load_graph(inner), TASK, "t")["messages"][0].id
    )
    undeclared = {"messages": [message], "input": TASK.prompt}
    for taken, given in [
        (str, TASK.prompt),
        (list, [message]),
        (list[Any], [message]),
        (dict, undeclared),
        (dict[str, Any], undeclared),
        (Any, undeclared),
        (Asked, {"question": TASK.prompt}),
        (MessagesState, {"messages": [message]}),
    ]:

        async def workflow(asked: Any) -> Any:
            return asked

        workflow.__annotations__["asked"] = taken
        assert first_input(entrypoint()(workflow), TASK, "t") == given, taken
    assert first_input(load_graph(chain), TASK, "t") == {"question": TASK.prompt}


async def test_a_subgraph_without_checkpoints_runs_inside_a_node(
    store: RunStore, environment: LocalEnvironment
) -> None:
    outer = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()
    done = await run(store, environment, outer)
    assert (done.status, done.answer) == (RunStatus.COMPLETED, "It is 42."), done.error
    assert (await replay_async(store, "t", graph=outer)).equal


async def test_a_graph_that_asks_for_a_store_has_one_of_its_own_in_each_run(
    store: RunStore, environment: LocalEnvironment
) -> None:
    async def remember(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
        assert runtime.store is not None
        known = await runtime.store.asearch(("memories",))
        await runtime.store.aput(("memories",), "it", {"text": state["messages"][-1].text})
        return {"messages": [AIMessage(f"{len(known)} before")]}

    graph = StateGraph(MessagesState).add_node(remember).add_edge(START, "remember").compile()
    with ScriptedEngine([]) as nobody:
        runner = EpisodeRunner(store, nobody, "hosted", environment)
        for thread in ("t", "u"):
            done = await runner.run(Episode(TASK, thread, graph=graph))
            assert done.answer == "0 before", done.error
            assert (await replay_async(store, thread, graph=graph)).equal


def test_what_a_reducer_takes_besides_messages_does_not_end_a_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said: Runnable[Any, Any] | Any = [
        AIMessage("Yes."),
        {"op": "delete", "target": "1"},
        ("user", "And?"),
        7,
    ]
    Printer(Output(as_json=False)).update((), {"node": {"messages": said}})
    told = capsys.readouterr().out
    assert "Yes." in told and "And?" in told and "delete" not in told


@pytest.mark.parametrize("way", ["generate", "agenerate", "generate_prompt", "agenerate_prompt"])
@pytest.mark.parametrize("stand_in", [True, False])
async def test_a_model_that_is_asked_as_older_chains_do_is_recorded_and_the_policy_stands_in_for_it(
    way: str, stand_in: bool, store: RunStore, environment: LocalEnvironment
) -> None:
    async def ask(question: str) -> str:
        messages = [HumanMessage(question)]
        asked: Any = [ChatPromptValue(messages=messages)] if way.endswith("prompt") else [messages]
        found: Any = getattr(model, way)(asked)
        return (await found if way.startswith("a") else found).generations[0][0].text

    with ScriptedEngine(["forty-two"]) as engine:
        runner = EpisodeRunner(store, engine, "policy", environment, stand_in=stand_in)
        done = await runner.run(
            Episode(TASK, "t", graph=RunnableLambda(ask).with_types(input_type=str))
        )
    assert (done.answer == "forty-two", done.trainable, len(done.calls)) == (
        stand_in,
        stand_in,
        1,
    ), done.error


PROGRAM = """
from langgraph.graph import START, MessagesState, StateGraph
builder = StateGraph(MessagesState).add_node("node", lambda _: {{}}).add_edge(START, "node")
{top}
def told():
    made = 1
if __name__ == "__main__":
    made = {made}
"""


@pytest.mark.parametrize(
    ("top", "made", "name"),
    [
        ("graph = builder.compile()", "graph", "graph"),
        ("graph = builder.compile()", "builder.compile()", "graph"),
        ("", "builder.compile()", "builder"),
        (
            "graph = builder.compile()\nbound = graph.with_config(tags=['a'])",
            "graph.with_config(tags=['b'])",
            "graph",
        ),
    ],
)
def test_a_program_s_graph_is_named_by_what_an_import_of_its_file_finds(
    top: str, made: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ModuleType("__main__")
    program.__file__ = str(tmp_path / "program.py")
    text = PROGRAM.format(top=top, made=made)
    Path(program.__file__).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", program)
    exec(text, vars(program))
    assert graph_name(program.made) == f"./program.py:{name}"
