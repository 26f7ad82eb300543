"""Programs that know nothing of records, recorded in one line: every way in, side by side, cut
short, failing.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, interrupt

from hrm_agent import record
from hrm_agent.errors import StoreFullError
from hrm_agent.models.recorded_values import unpack_answer
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.recording.record import current_recorder
from hrm_agent.runtime.replay.player import replay
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, StopReason, Trajectory, open_recording
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.own_agent import HostedModel, multiply
from tests.support.graphs.own_agent import graph as own

OWN = "tests.support.graphs.own_agent:graph"


class Echo(BaseChatModel):
    """Model that answers with the text of its prompt."""

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(f"echo {messages[-1].text}"))]
        )


def asking(node: Any, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("ask", node)
    builder.add_edge(START, "ask")
    return builder.compile(**options)


def echo(state: MessagesState) -> dict[str, Any]:
    return {"messages": [Echo().invoke(state["messages"])]}


async def echo_async(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Echo().ainvoke(state["messages"])]}


echoing, echoing_async = asking(echo), asking(echo_async)


def said(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "x.db"


def recorded(where: Path) -> list[Trajectory]:
    with open_store(where, create=False) as store:
        found = list(store.journal.trajectories())
    assert [problem for trajectory in found for problem in lint(trajectory)] == []
    return found


def test_one_line_records_calls_checkpoints_and_the_model_that_answered(where: Path) -> None:
    with record(where):
        answer = own.invoke(said("What is 6 * 7?"))
    (trajectory,) = recorded(where)
    assert answer["messages"][-1].text == trajectory.answer == "It is 42."
    assert (trajectory.graph, trajectory.policy, trajectory.task.prompt) == (
        OWN,
        "HostedModel",
        "What is 6 * 7?",
    )
    assert (trajectory.status, len(trajectory.calls)) == (RunStatus.COMPLETED, 2)
    assert [(call.name, call.content) for call in trajectory.tool_calls] == [("multiply", "42")]
    with open_store(where) as store:
        played = replay(store, trajectory.id)
    assert played.equal and played.checkpoints > 3


async def test_every_way_in_is_recorded_once(where: Path) -> None:
    async with record(where):
        echoing.invoke(said("1"))
        assert len(list(echoing.stream(said("2"), stream_mode=["updates", "messages"]))) > 1
        await echoing_async.ainvoke(said("3"))
        assert [step async for step in echoing_async.astream(said("4"), stream_mode="custom")] == []
        assert [event async for event in echoing_async.astream_events(said("5"))]
        assert len(echoing.batch([said("6"), said("7")])) == 2
        assert open_recording() is None
    found = recorded(where)
    assert sorted(t.task.prompt for t in found) == list("1234567")
    assert all(t.answer == f"echo {t.task.prompt}" and len(t.calls) == 1 for t in found)


async def test_many_threads_and_tasks_at_once_do_not_mix(where: Path) -> None:
    """Tasks made in the block are in it, and so are threads that are given its context."""
    with record(where), ThreadPoolExecutor(16) as pool:
        in_threads = [
            pool.submit(copy_context().run, echoing.invoke, said(f"thread {i}")) for i in range(40)
        ]
        await asyncio.gather(*(echoing_async.ainvoke(said(f"task {i}")) for i in range(40)))
        for done in in_threads:
            await asyncio.wrap_future(done)
    found = recorded(where)
    assert len({t.thread_id for t in found}) == len({t.task.prompt for t in found}) == 80
    assert all(
        [call.response["content"] for call in t.calls] == [f"echo {t.task.prompt}"] for t in found
    )


async def test_requests_beside_a_block_are_not_in_it(tmp_path: Path) -> None:
    """A server with three tenants, each with a store, and requests of users without one, in tasks
    and in threads.
    """
    tenants = ("a", "b", "c")
    go = asyncio.Event()

    async def request(number: int) -> str:
        text, ask = f"request {number}", asyncio.to_thread if number % 4 < 2 else None
        await go.wait()
        if number % 2:
            async with record(tmp_path / tenants[number % 3]):
                return await answer(text, ask)
        return await answer(text, ask)

    async def answer(text: str, ask: Any) -> str:
        if ask is not None:
            return (await ask(echoing.invoke, said(text)))["messages"][-1].text
        return (await echoing_async.ainvoke(said(text)))["messages"][-1].text

    requests = [asyncio.create_task(request(number)) for number in range(200)]
    # of another part of the server, open all the time
    with record(tmp_path / "d"), ThreadPoolExecutor(8) as pool:
        go.set()
        plain = [pool.submit(echoing.invoke, said(f"thread {number}")) for number in range(20)]
        assert await asyncio.gather(*requests) == [
            f"echo request {number}" for number in range(200)
        ]
        for done in plain:
            await asyncio.wrap_future(done)
    for rest, tenant in enumerate(tenants):
        prompts = sorted(t.task.prompt for t in recorded(tmp_path / tenant))
        assert prompts == sorted(
            f"request {number}" for number in range(1, 200, 2) if number % 3 == rest
        )
    assert recorded(tmp_path / "d") == []


def test_a_process_that_is_recorded_as_a_whole_is_recorded_in_every_thread(where: Path) -> None:
    program = f"""
import threading
from hrm_agent.runtime.recording.record import record_process
record_process({str(where)!r})
from tests.runtime.recording.test_record import echoing, said
threads = [threading.Thread(target=echoing.invoke, args=(said(str(i)),)) for i in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])
    assert sorted(t.task.prompt for t in recorded(where)) == ["0", "1", "2"]


def test_nothing_is_recorded_or_held_outside(where: Path) -> None:
    with record(where):
        left = echoing.stream(said("outside"))
    assert current_recorder() is None
    assert list(left), "a stream that is begun after the block runs as it would without"
    echoing.invoke(said("outside"))
    assert recorded(where) == []


def test_blocks_on_one_path_share_a_store_and_a_function_may_be_one(where: Path) -> None:
    @record(where)
    def inner() -> Any:
        echoing.invoke(said("inner"))
        return current_recorder()

    @record(where)
    async def inner_async() -> Any:
        return await echoing_async.ainvoke(said("async"))

    with record(where), record(where):
        assert inner() is current_recorder()
        asyncio.run(inner_async())
    inner()
    assert [t.task.prompt for t in recorded(where)] == ["inner", "async", "inner"]


async def _async_steps() -> Any:
    yield


async def test_blocks_that_end_in_another_order_leave_the_ones_around_them_in_force(
    tmp_path: Path,
) -> None:
    with record(tmp_path / "around.db"):
        around = current_recorder()
        shared, ended = record(tmp_path / "shared.db"), asyncio.Event()

        async def task(pause: float) -> Any:
            async with shared:
                await asyncio.sleep(pause)
            return current_recorder()

        async def outlives() -> Any:
            await ended.wait()
            return current_recorder()

        assert await asyncio.gather(*map(task, (0.02, 0.01, 0.0))) == [around] * 3
        with record(tmp_path / "inner.db"):
            late = asyncio.create_task(outlives())
        ended.set()
        assert await late is around


@pytest.mark.parametrize("steps", [lambda: (yield), _async_steps])
def test_a_block_over_a_generator_is_refused(steps: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="before its first step"):
        record(tmp_path / "x.db")(steps)


def test_two_paths_in_two_threads_each_keep_their_own(where: Path, tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def program(name: str) -> None:
        with record(tmp_path / name):
            both.wait(10)
            echoing.invoke(said(name))
            both.wait(10)

    threads = [threading.Thread(target=program, args=(name,)) for name in ("a.db", "b.db")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[t.task.prompt for t in recorded(tmp_path / name)] for name in ("a.db", "b.db")] == [
        ["a.db"],
        ["b.db"],
    ]


def test_a_graph_without_a_checkpointer_remembers_nothing_with_a_record_either(where: Path) -> None:
    config: Any = {"configurable": {"thread_id": "t", "user": "u"}}
    seen = list[Any]()

    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        seen.append(config["configurable"]["thread_id"])
        return {"messages": [AIMessage(str(len(state["messages"])))]}

    graph = asking(node)
    with record(where):
        assert [graph.invoke(said("again"), config)["messages"][-1].text for _ in range(2)] == [
            "1",
            "1",
        ]
        with pytest.raises(ValueError, match="No checkpointer set"):
            graph.get_state(config)
    first, second = recorded(where)
    assert seen == ["t", "t"] and first.thread_id == "t" and second.thread_id.startswith("t#")
    assert not first.turns and first.graph == "(LangGraph)"


def test_the_programs_own_checkpointer_stays_and_a_thread_goes_on_as_a_conversation(
    where: Path,
) -> None:
    saver = InMemorySaver()
    graph, config = asking(echo, checkpointer=saver), {"configurable": {"thread_id": "talk"}}
    with record(where):
        graph.invoke(said("one"), config)
        graph.invoke({"messages": [HumanMessage("two", id="mine")]}, config)
    with record(where):
        assert len(graph.invoke(said("three"), config)["messages"]) == 6
    (trajectory,) = recorded(where)
    assert trajectory.prompts == ("one", "two", "three") and trajectory.turns[0].id == "mine"
    assert (trajectory.answer, len(trajectory.calls)) == ("echo three", 3)
    assert trajectory.task.metadata["checkpointer"] == "InMemorySaver"
    assert saver.get_tuple(config) is not None


def test_an_error_of_the_graph_is_the_programs_and_ends_the_record_as_failed(where: Path) -> None:
    error = KeyError("the program's own")

    def failing(state: MessagesState) -> None:
        Echo().invoke(state["messages"])
        raise error

    with record(where), pytest.raises(KeyError) as caught:
        asking(failing).invoke(said("fail"))
    assert caught.value is error
    (trajectory,) = recorded(where)
    assert (trajectory.status, trajectory.error) == (
        RunStatus.FAILED,
        'KeyError: "the program\'s own"',
    )
    assert trajectory.policy == "Echo"


def test_a_limit_of_steps_is_one(where: Path) -> None:
    with record(where), pytest.raises(Exception, match="recursion") as caught:
        own.invoke(said("What is 6 * 7?"), {"recursion_limit": 1})
    assert type(caught.value).__name__ == "GraphRecursionError"
    assert recorded(where)[0].stop_reason is StopReason.RECURSION_LIMIT


class Drafts(TypedDict):
    drafts: Annotated[list[str], add]


@pytest.mark.parametrize(
    "saver", [None, InMemorySaver()], ids=["the store's checkpoints", "its own"]
)
def test_a_question_is_recorded_and_its_answer_goes_on_in_the_same_trajectory(
    where: Path, saver: Any
) -> None:
    def ask(state: Drafts) -> dict[str, Any]:
        draft = Echo().invoke([HumanMessage("draft")]).text
        return {"drafts": [draft, interrupt("fine?")]}

    builder = StateGraph(Drafts)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph, config = builder.compile(checkpointer=saver), {"configurable": {"thread_id": "q"}}
    with record(where):
        assert graph.invoke({"drafts": []}, config)["__interrupt__"][0].value == "fine?"
        with open_store(where) as store:
            assert [t.stop_reason for t in store.journal.headers()] == [StopReason.INTERRUPT]
        assert graph.invoke(Command(resume="yes"), config)["drafts"] == ["echo draft", "yes"]
    (trajectory,) = recorded(where)
    assert (trajectory.status, trajectory.stop_reason, len(trajectory.calls)) == (
        RunStatus.COMPLETED,
        StopReason.ANSWER,
        1,
    )
    assert trajectory.task.prompt == '{"drafts": []}'


async def test_a_stream_that_is_left_ends_as_aborted(where: Path) -> None:
    with record(where):
        for _ in own.stream(said("left")):
            break
        async for _ in own.astream(said("left")):
            break
        kept = own.stream(said("kept"))
        next(kept)
        cancelled = asyncio.create_task(waits.ainvoke(said("cancelled")))
        await waiting.wait()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    found = recorded(where)
    assert [t.status for t in found] == [RunStatus.ABORTED] * 4
    assert [len(t.calls) for t in found] == [1, 1, 1, 0]
    assert list(kept), "the program's own stream still runs"


waiting = asyncio.Event()


async def _wait(state: MessagesState) -> None:
    waiting.set()
    await asyncio.Event().wait()


waits = asking(_wait)


def test_prebuilt_agents_subgraphs_and_workflows_are_one_trajectory_each(where: Path) -> None:
    agent = create_react_agent(HostedModel(disable_streaming=True), [multiply])
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node(
        "other", lambda state: {"messages": echoing.invoke(said("inner"))["messages"][-1:]}
    )
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "other")
    around = builder.compile()

    @task
    def asked(text: str) -> str:
        return Echo().invoke(text).text

    @entrypoint()
    def workflow(text: str) -> str:
        return asked(text).result().upper()

    with record(where):
        agent.invoke(said("one"))
        around.invoke(said("two"))
        assert workflow.invoke("three") == "ECHO THREE"
    one, two, three = recorded(where)
    assert (len(one.calls), len(one.tool_calls), one.answer) == (2, 1, "It is 42.")
    assert (len(two.calls), len(two.tool_calls), two.answer) == (3, 1, "echo inner")
    assert (three.task.prompt, three.answer, len(three.calls)) == ("three", "ECHO THREE", 1)


def test_a_streaming_model_is_recorded_and_streams(where: Path) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
    graph = asking(lambda state: {"messages": [model.invoke(state["messages"])]})
    with record(where):
        chunks = [chunk.text for chunk, _ in graph.stream(said("count"), stream_mode="messages")]
    assert "".join(chunks) == "one two three" and len(chunks) > 2
    assert recorded(where)[0].calls[0].response["content"] == "one two three"


class Odd:
    """Has no stored form."""

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


class Oddities(TypedDict):
    held: Any
    text: str


def test_what_cannot_be_stored_does_not_reach_the_program(
    where: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = StateGraph(Oddities)
    builder.add_node("hold", lambda state: {"held": Odd()})
    builder.add_node("ask", lambda state: {"text": Echo().invoke("x").text})
    builder.add_edge(START, "hold")
    builder.add_edge("hold", "ask")
    with record(where):
        assert builder.compile().invoke({"text": ""})["text"] == "echo x"
    (trajectory,) = recorded(where)
    assert (trajectory.status, len(trajectory.calls)) == (RunStatus.COMPLETED, 1)
    assert "the program goes on" in caplog.text and "Odd" in caplog.text


def test_a_store_that_is_gone_does_not_stop_the_program(
    where: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        recorder = current_recorder()
        assert recorder is not None
        recorder.store.database.close()
        return echo(state)

    with record(where):
        assert asking(node).invoke(said("go on"))["messages"][-1].text == "echo go on"
    assert "the program goes on" in caplog.text


def test_a_store_that_is_full_for_a_while_is_tried_once_and_the_record_says_so_at_its_end(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[str]()

    def full(work: Any, *given: Any, **options: Any) -> Any:
        if work.__name__ != "_for_nobody":  # of the store's own clock
            tried.append("write")
        raise StoreFullError("The disk is full.")

    def node(state: MessagesState) -> dict[str, Any]:
        recorder = current_recorder()
        assert recorder is not None
        with monkeypatch.context() as patch:
            patch.setattr(recorder.store.database, "submit", full)
            answers = [Echo().invoke(text) for text in "abc"]
        return {"messages": answers}

    with record(where):
        assert asking(node).invoke(said("go on"))["messages"][-1].text == "echo c"
    (trajectory,) = recorded(where)
    assert (trajectory.status, tried) == (RunStatus.COMPLETED, ["write"])
    assert trajectory.task.metadata["not_recorded"] == "StoreFullError: The disk is full."


class Signed(Echo):
    """Answers with the signature of its thought, as providers do, and an object of its client."""

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        extra = {"signature": b"\x12\xff", "raw": Odd()}
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage("a whale", additional_kwargs=extra))]
        )


async def test_an_answer_that_json_cannot_hold_does_not_end_the_program(where: Path) -> None:
    seen = list[Any]()

    async def node(state: MessagesState) -> dict[str, Any]:
        seen.append(Signed().invoke("one").additional_kwargs)
        seen.append((await Signed().abatch(["two"]))[0].additional_kwargs)
        seen.append(
            (await Signed().agenerate([[HumanMessage("three")]]))
            .generations[0][0]
            .message.additional_kwargs
        )
        return {"messages": [AIMessage("done")]}

    async with record(where):
        await asking(node).ainvoke(said("sign"))
    assert [(each["signature"], type(each["raw"])) for each in seen] == [(b"\x12\xff", Odd)] * 3
    (trajectory,) = recorded(where)
    assert [call.lost for call in trajectory.calls] == [("additional_kwargs.raw: Odd",)] * 3


class Quoting(BaseChatModel):
    """Calls a tool with the text of a message, which LangChain has a class for."""

    @property
    def _llm_type(self) -> str:
        return "quoting"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        call = {"name": "search", "args": {"query": messages[-1].text}, "id": "c"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])


async def test_the_text_of_a_message_is_kept(where: Path) -> None:
    async with record(where):
        await asking(lambda state: {"messages": [Quoting().invoke(state["messages"])]}).ainvoke(
            said("whales")
        )
    (trajectory,) = recorded(where)
    (call,) = trajectory.calls
    assert call.lost is None and unpack_answer(call).tool_calls[0]["args"] == {"query": "whales"}


@pytest.mark.parametrize(
    "request_",
    [
        [HumanMessage("x", additional_kwargs={"raw": Odd()})],
        [HumanMessage([{"type": "text", "text": "x"}, {"type": "media", "data": b"\x89\xff"}])],
        [HumanMessage([{"type": "text", "text": "x", "raw": Odd()}])],
        [HumanMessage("x\ud83d")],
    ],
)
@pytest.mark.parametrize(
    "options", [{}, {"tools": [Odd(), {"a": b"x"}], "logit_bias": {1: 2.0}, "form": Odd}]
)
def test_a_request_that_json_cannot_hold_is_recorded_and_replays(
    request_: Any, options: dict[str, Any], where: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = asking(
        lambda state: {"messages": [AIMessage(Echo().invoke(request_, **options).text[:6])]}
    )
    with record(where):
        assert graph.invoke(said("odd"))["messages"][-1].text == "echo x"
    (trajectory,) = recorded(where)
    assert (
        len(trajectory.calls) == 1
        and "not_recorded" not in trajectory.task.metadata
        and not caplog.messages
    )
    with open_store(where) as store:
        assert replay(store, trajectory.id, graph=graph).equal


def test_graphs_are_named_so_that_they_can_be_loaded(where: Path) -> None:
    with record(where):
        own.with_config({"tags": ["x"]}).invoke(said("a"))
        load_graph("tool_loop").get_graph()
    assert recorded(where)[0].graph == OWN
    assert load_graph(recorded(where)[0].graph) is own
