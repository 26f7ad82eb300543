"""A user's unchanged graph: recorded with its own model, and trainable with the policy standing in
for it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import RetryPolicy, interrupt
from pydantic import BaseModel, SecretStr

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError, GraphError, ModelError, StoreFullError
from hrm_agent.models import policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.replay.player import replay
from hrm_agent.runtime.selection.choice import CHOICE_GRAPH, is_choice
from hrm_agent.store import RunStore
from hrm_agent.store.upkeep.maintenance import verify as verify_store
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, ToolStatus, Trajectory
from hrm_agent.trajectory.lint import lint

OWN = "tests.support.graphs.own_agent:graph"
TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?")
CALL = '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'


async def run(
    store: RunStore, environment: LocalEnvironment, *, stand_in: bool, graph: str = OWN
) -> Trajectory:
    with ScriptedEngine([CALL, "It is 42, says the policy."]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment, stand_in=stand_in)
        return await runner.run(Episode(TASK, f"thread {stand_in}", graph=graph, seed=1))


async def test_its_own_model_is_recorded_and_not_trainable(
    store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run(store, environment, stand_in=False)
    assert (trajectory.status, trajectory.answer) == (RunStatus.COMPLETED, "It is 42.")
    assert len(trajectory.calls) == 2 and not trajectory.trainable
    assert all(call.untrainable and call.request for call in trajectory.calls)
    assert [(c.name, c.arguments, c.status, c.content) for c in trajectory.tool_calls] == [
        ("multiply", {"a": 6, "b": 7}, ToolStatus.OK, "42")
    ]
    assert lint(trajectory) == []


async def test_the_policy_stands_in_for_it_and_it_is_trainable(
    store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run(store, environment, stand_in=True)
    assert trajectory.answer == "It is 42, says the policy." and trajectory.trainable
    assert trajectory.calls[1].parent == trajectory.calls[0].id
    assert [c.status for c in trajectory.tool_calls] == [ToolStatus.OK]
    assert lint(trajectory) == []


def test_two_graphs_of_one_file_share_its_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "from tests.support.graphs.replayed_agents import drafting\nfrom pydantic import"
        " BaseModel\n"
    )
    text += (
        "class State(BaseModel):\n    messages: list = []\none, two = drafting(State),"
        " drafting(State)\n"
    )
    Path("pair.py").write_text(text)
    one, two = (load_graph(f"./pair.py:{name}") for name in ("one", "two"))
    assert one is not two and one.builder.state_schema is two.builder.state_schema
    Path("half.py").write_text("raise ValueError('not yet')\n")
    with pytest.raises(GraphError, match="not yet"):
        load_graph("./half.py:graph")
    Path("half.py").write_text(text)
    assert load_graph("./half.py:one").name == one.name


def test_graphs_are_found_by_the_names_of_older_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tool_loop", "reasoning", "research"):
        assert load_graph(f"graphs.{name}:graph") is load_graph(name)
    assert load_graph("graphs.choice:graph") is load_graph(CHOICE_GRAPH)
    assert is_choice("graphs.choice:graph") and not is_choice("graphs.reasoning:graph")


def test_a_graph_of_the_user_goes_before_one_of_an_older_record(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "__init__.py").touch()
    (tmp_path / "graphs" / "research.py").write_text(
        "from hrm_agent.graphs.tool_loop import graph\n"
    )
    program = (
        "from hrm_agent.runtime.execution.loading import"
        " load_graph;print([load_graph(f'graphs.{name}:graph') is load_graph('tool_loop') for name"
        " in ('research', 'reasoning')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[True, False]\n"


def test_a_graph_that_is_no_graph_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ended.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    cases: list[tuple[str, str]] = [
        ("tool_lop", "Did you mean 'tool_loop'?"),
        ("no.such.module:graph", "does not import: ModuleNotFoundError"),
        ("./ended.py:graph", "does not import: SystemExit: 3"),
        ("tests.support.graphs.own_agent:grap", "Graphs found there: builder, graph."),
        ("tests.support.graphs.own_agent:multiply", "is StructuredTool, not a LangGraph graph"),
    ]
    for name, message in cases:
        with pytest.raises(GraphError) as caught:
            load_graph(name)
        assert message in str(caught.value)


def test_a_builder_is_compiled_and_a_file_is_imported(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    assert load_graph("tests.support.graphs.own_agent:builder").channels.keys() >= {"messages"}
    (tmp_path / "graphs.py").write_text(
        "from tests.support.graphs.own_agent import graph as agent\nprint('executed')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_graph("./graphs.py:agent") is load_graph("./graphs.py:agent") is load_graph(OWN)
    assert capsys.readouterr().out == "executed\n", "the file is executed once"
    assert load_graph("tool_loop") is not None, "a user's graphs.py does not take the place of ours"


async def test_an_option_that_the_graph_does_not_know(
    store: RunStore, environment: LocalEnvironment
) -> None:
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        with pytest.raises(ConfigError, match="Did you mean 'max_turns'"):
            await runner.run(Episode(TASK, "thread", context={"max_turn": 3}))
    assert list(store.journal.trajectories()) == []


async def test_what_a_graph_raises_is_on_record(
    store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run_graph(store, environment, failing)
    assert trajectory.status is RunStatus.FAILED and trajectory.error == "ValueError: no such fruit"
    assert lint(trajectory) == []


async def test_what_a_person_can_mend_is_raised_and_can_be_gone_on_with(
    store: RunStore, environment: LocalEnvironment
) -> None:
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        with pytest.raises(ModelError, match="one more was requested"):
            await runner.run(Episode(TASK, "thread"))
    with ScriptedEngine(["<answer>\\boxed{42}</answer>"]) as engine:
        trajectory = await EpisodeRunner(store, engine, "scripted", environment).run(
            Episode(TASK, "thread")
        )
    assert trajectory.status is RunStatus.COMPLETED and len(trajectory.calls) == 1
    assert lint(trajectory) == []


async def run_graph(
    store: RunStore, environment: LocalEnvironment, build: Any, **options: Any
) -> Trajectory:
    """Run a graph built by a function of this module, by its name."""
    with ScriptedEngine(options.pop("script", lambda _: "hello")) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        name = f"tests.runtime.execution.test_own_graph:{build.__name__}_graph"
        return await runner.run(
            Episode(TASK, f"thread of {build.__name__}", graph=name, seed=1, **options)
        )


@pytest.mark.parametrize("name", ["tool_loop", "reasoning"])
def test_the_built_in_graphs_have_json_schemas(name: str) -> None:
    """`langgraph dev` shows them."""
    graph = load_graph(name)
    assert "messages" in graph.get_input_jsonschema()["properties"]
    assert "max_tokens" in (graph.get_context_jsonschema() or {})["properties"]


def failing(state: MessagesState) -> dict[str, Any]:
    raise ValueError("no such fruit")


def one_node(node: Any, **options: Any) -> Any:
    retry = options.pop("retry_policy", None)
    schema = options.pop("schema", MessagesState)
    builder = StateGraph(schema, **options).add_node("node", node, retry_policy=retry)
    return builder.add_edge(START, "node")


failing_graph = one_node(failing).compile()


async def choosy(state: MessagesState) -> dict[str, Any]:
    answer = await policy().ainvoke(state["messages"])
    if "ripe" not in answer.text:
        raise ConnectionError("not this one")
    return {"messages": [answer]}


choosy_graph = one_node(
    choosy, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.01)
).compile()


async def test_a_retried_node_asks_anew(store: RunStore, environment: LocalEnvironment) -> None:
    answers = iter(["green", "ripe"])
    trajectory = await run_graph(store, environment, choosy, script=lambda _: next(answers))
    assert trajectory.answer == "ripe" and trajectory.status is RunStatus.COMPLETED
    assert [(c.identity.attempt, c.call_index) for c in trajectory.calls] == [(1, 0), (2, 1)]
    assert lint(trajectory) == []


class Own(TypedDict):
    messages: Annotated[list[Any], add_messages]
    question: str
    answer: str
    stop_reason: str


class Question(TypedDict):
    question: str


class Reply(TypedDict):
    answer: str


def schemas(state: Own) -> dict[str, Any]:
    return {
        "messages": [AIMessage("scratch")],
        "answer": state["question"].upper(),
        "stop_reason": "end_turn",
    }


schemas_graph = one_node(schemas, schema=Own, input_schema=Question, output_schema=Reply).compile()


async def test_input_and_output_schemas_are_honoured(
    store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run_graph(store, environment, schemas)
    assert (trajectory.status, trajectory.stop_reason) == (RunStatus.COMPLETED, StopReason.ANSWER)
    assert trajectory.answer == TASK.prompt.upper()


def asks_a_person(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(str(interrupt("really?")))]}


asks_a_person_graph = one_node(asks_a_person).compile()


def paused(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("done")]}


paused_graph = one_node(paused).compile(interrupt_before=["node"])


@pytest.mark.parametrize("build", [asks_a_person, paused])
async def test_an_interrupted_run_is_no_answer(
    build: Any, store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run_graph(store, environment, build, verify=lambda _: 1.0)
    assert (trajectory.status, trajectory.stop_reason) == (
        RunStatus.TRUNCATED,
        StopReason.INTERRUPT,
    )


async def test_a_verifier_may_give_several_numbers(
    store: RunStore, environment: LocalEnvironment
) -> None:
    numbers = {"correct": 0.5, "lines": 3}
    trajectory = await run_graph(store, environment, paused, verify=lambda _: numbers)
    assert trajectory.rewards == numbers and trajectory.reward == 0.5


@pytest.mark.parametrize(
    "verify",
    [
        lambda _: 7.0,
        lambda _: 1 / 0,
        lambda _: {"lines": 3},
        lambda _: {"correct": 1, "reward": 2},
        lambda _: {"correct": 1, "lines": float("nan")},
    ],
)
async def test_a_verifier_that_fails_is_on_record(
    verify: Any, store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run_graph(store, environment, paused, verify=verify)
    assert trajectory.status is RunStatus.FAILED and "the verifier failed" in (
        trajectory.error or ""
    )
    assert trajectory.rewards == {} and lint(trajectory) == []


async def looks(state: MessagesState) -> dict[str, Any]:
    model = GenericFakeChatModel(messages=iter([AIMessage("a photo")]))
    return {
        "messages": [
            await model.ainvoke([HumanMessage([{"image": {"source": {"bytes": b"\xff\xd8"}}}])])
        ]
    }


looks_graph = one_node(looks).compile()


async def test_a_model_that_is_sent_bytes_is_recorded(
    store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run_graph(store, environment, looks)
    assert (trajectory.status, trajectory.answer) == (RunStatus.COMPLETED, "a photo")
    (call,) = store.journal.trajectory(trajectory.id).calls
    assert call.request is not None and call.request[0]["content"] == [
        {"image": {"source": {"bytes": "/9g="}}}
    ]
    assert [*verify_store(store)] == []


async def swallows(state: MessagesState) -> dict[str, Any]:
    try:
        await policy().ainvoke(state["messages"])
    except Exception:
        return {"messages": [AIMessage("never mind")]}
    return {}


swallows_graph = one_node(swallows).compile()


async def test_a_lost_record_is_raised_whatever_the_graph_swallows(
    store: RunStore, environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise StoreFullError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(store.journal, "write_call", full)
        with pytest.raises(StoreFullError):
            await run_graph(store, environment, swallows)
    trajectory = await run_graph(store, environment, swallows)
    assert trajectory.status is RunStatus.COMPLETED and lint(trajectory) == []


async def slow(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke(state["messages"])]}


slow_graph = one_node(slow).compile()


async def test_a_thread_is_run_by_one_at_a_time(
    store: RunStore, environment: LocalEnvironment
) -> None:
    both = [run_graph(store, environment, slow) for _ in range(2)]
    done = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(result).__name__ for result in done) == ["RunError", "Trajectory"]


async def test_a_cancelled_episode_is_gone_on_with(
    store: RunStore, environment: LocalEnvironment
) -> None:
    seconds = [600.0]
    with ScriptedEngine(lambda _: "late", delay=lambda _: seconds[-1]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        episode = Episode(
            TASK, "thread", graph="tests.runtime.execution.test_own_graph:slow_graph", seed=1
        )
        task = asyncio.create_task(runner.run(episode))
        while not engine.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        seconds.append(0.0)
        trajectory = await runner.run(episode)
    assert trajectory.answer == "late" and len(trajectory.calls) == 1
    assert lint(trajectory) == []


class Plan(BaseModel):
    """Structured output of a planner."""

    steps: list[str]


def planner(form: Any = Plan, *, streams: bool = False) -> Any:
    llm = ChatOpenAI(
        model="gpt-5", api_key=SecretStr("x"), base_url="http://127.0.0.1:1/v1", max_retries=0
    )
    structured = llm.with_structured_output(form)

    async def plan(state: MessagesState) -> dict[str, Any]:
        if streams:
            parts = [part async for part in structured.astream(state["messages"])]
            return {"messages": [AIMessage(repr(parts[-1]))]}
        return {"messages": [AIMessage(repr(await structured.ainvoke(state["messages"])))]}

    return StateGraph(MessagesState).add_node("plan", plan).add_edge(START, "plan").compile()


@pytest.mark.parametrize(
    ("graph", "shown"),
    [
        (planner(), "Plan(steps=['a'])"),
        (planner(streams=True), "Plan(steps=['a'])"),
        (planner(Plan.model_json_schema() | {"title": "plan"}), "{'steps': ['a']}"),
    ],
)
@pytest.mark.parametrize("constrain", [True, False])
def test_structured_output_is_what_the_providers_class_gives(
    graph: Any, shown: str, constrain: bool, store: RunStore, environment: LocalEnvironment
) -> None:
    with ScriptedEngine(['{"steps": ["a"]}', '{"steps": 1}']) as engine:
        runner = EpisodeRunner(
            store, engine, "scripted", environment, stand_in=True, constrain=constrain
        )
        right = asyncio.run(runner.run(Episode(TASK, "right", graph=graph)))
        wrong = asyncio.run(runner.run(Episode(TASK, "wrong", graph=graph)))
        schemas = [request.schema for request in engine.requests]
    assert right.answer == shown
    assert all(
        (schema or {}).get("properties", {}).keys() == ({"steps"} if constrain else set())
        for schema in schemas
    )
    assert "parsed" not in right.calls[0].response["additional_kwargs"]
    if shown.startswith("Plan"):
        assert str(wrong.error).startswith("ValidationError: 1 validation error for Plan")
    assert replay(store, "right", graph=graph).equal and replay(store, "wrong", graph=graph).equal
