"""Failed model calls: recorded, not counted, raised again in a replay, and requested again on a
resume.
"""

from __future__ import annotations

import asyncio
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

from hrm_agent import record
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ContextLengthError
from hrm_agent.models import policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay, replay_async
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.browse.lists import uses_of_threads
from hrm_agent.trajectory import RunStatus, TaskRef, Trajectory
from hrm_agent.trajectory.formats import read_jsonl, write_jsonl
from hrm_agent.trajectory.lint import lint

TASK = TaskRef(id="1", family="test", prompt="hello")


class Overloaded(Exception):
    """Error class of a provider."""


class Model(BaseChatModel):
    """Model that raises at the given request numbers and answers other requests with their number."""

    label: str = "model"
    fails: tuple[int, ...] = ()
    asked: list[int] = []

    @property
    def _llm_type(self) -> str:
        return "model"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        self.asked.append(number := len(self.asked))
        if number in self.fails:
            raise Overloaded(f"busy {number}")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"{self.label} {number}"))])


class Streaming(Model):
    def _stream(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.asked.append(len(self.asked))
        for part in ("one ", "two ", "three"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=part))


class Said(TypedDict):
    task: str
    said: Annotated[list[str], add]


def graph_of(node: Any, **options: Any) -> Any:
    return StateGraph(Said).add_node("ask", node, **options).add_edge(START, "ask").compile()


def caught(model: Any) -> Any:
    def node(state: Said) -> dict[str, Any]:
        try:
            return {"said": [model.invoke("hello").text]}
        except Overloaded as error:
            return {"said": [f"{type(error).__name__}: {error}", model.invoke("hello").text]}

    return graph_of(node)


def gathered(model: Any) -> Any:
    async def node(state: Said) -> dict[str, Any]:
        found = await asyncio.gather(
            *(model.ainvoke(text) for text in "abc"), return_exceptions=True
        )
        return {"said": [str(each) if isinstance(each, Exception) else each.text for each in found]}

    return graph_of(node)


def with_fallbacks(model: Any) -> Any:
    other = Model(label="other", asked=[], fails=(1,))
    return graph_of(lambda state: {"said": [model.with_fallbacks([other]).invoke("hello").text]})


def with_retry(model: Any) -> Any:
    again = model.with_retry(wait_exponential_jitter=False, retry_if_exception_type=(Overloaded,))
    return graph_of(lambda state: {"said": [again.invoke("hello").text]})


def retried_node(model: Any) -> Any:
    policy_of_node = RetryPolicy(initial_interval=0, jitter=False, retry_on=Overloaded)
    return graph_of(
        lambda state: {"said": [model.invoke(t).text for t in "ab"]}, retry_policy=policy_of_node
    )


GRAPHS = {
    caught: ["Overloaded: busy 0", "model 1"],
    gathered: None,
    with_fallbacks: ["other 0"],
    with_retry: ["model 1"],
    retried_node: ["model 1", "model 2"],
}


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
async def test_an_error_that_the_program_caught_is_raised_again_in_its_replay(
    make: Any, tmp_path: Path
) -> None:
    model = Model(asked=[], fails=(0,))
    graph = make(model)
    with record(tmp_path / "x.db"):
        end = await graph.ainvoke({"task": "hello", "said": []})
    assert GRAPHS[make] in (None, end["said"])
    asked = len(model.asked)
    with open_store(tmp_path / "x.db") as store:
        (trajectory,) = store.journal.trajectories()
        found = await replay_async(store, trajectory.id, graph=graph)
        uses = uses_of_threads(store, [trajectory.thread_id])
    assert found.equal and found.unused == 0 and len(model.asked) == asked, found
    check_counts(trajectory, uses[trajectory.thread_id].model_calls)


def check_counts(trajectory: Trajectory, counted: int) -> None:
    (failed,) = trajectory.failed_calls
    assert (
        failed.error is not None
        and str(failed.error) == "Overloaded: busy 0"
        and not failed.trainable
    )
    assert counted == len(trajectory.own_calls) and all(
        call.error is None for call in trajectory.calls
    )
    assert lint(trajectory) == [] and failed not in trajectory.policy_calls


class Crash(BaseException):
    """Stand-in for the death of the process."""


@pytest.mark.parametrize("recovers", [True, False])
async def test_a_resume_asks_a_failed_call_again_and_its_replay_is_of_what_was_then(
    recovers: bool, store: RunStore, environment: LocalEnvironment
) -> None:
    model, crashes = Model(asked=[], fails=(0,) if recovers else (0, 2)), [True]

    def node(state: Said) -> dict[str, Any]:
        try:
            said = model.invoke("hello").text
        except Overloaded as error:
            said = str(error)
        other = model.invoke("other").text
        if crashes.pop() if crashes else False:
            raise Crash
        return {"said": [said, other]}

    graph = graph_of(node)
    with ScriptedEngine([]) as nobody:
        runner = EpisodeRunner(store, nobody, "hosted", environment)
        with pytest.raises(Crash):
            await runner.run(Episode(TASK, "t", graph=graph))
        done = await runner.run(Episode(TASK, "t", graph=graph))
    assert done.status is RunStatus.COMPLETED and model.asked == [0, 1, 2]
    state = store.checkpointer.get_tuple({"configurable": {"thread_id": "t"}})
    assert state is not None
    assert state.checkpoint["channel_values"]["said"] == [
        "model 2" if recovers else "busy 2",
        "model 1",
    ]
    assert len(done.failed_calls) == (1 if recovers else 2)
    found = await replay_async(store, "t", graph=graph)
    assert found.equal and found.unused == 0, found


async def test_a_run_that_failed_by_its_model_is_replayed_as_one(
    store: RunStore, environment: LocalEnvironment
) -> None:
    model = Model(asked=[], fails=(0,))
    graph = graph_of(lambda state: {"said": [model.invoke("hello").text]})
    with ScriptedEngine([]) as nobody:
        done = await EpisodeRunner(store, nobody, "hosted", environment).run(
            Episode(TASK, "t", graph=graph)
        )
    assert done.status is RunStatus.FAILED and done.error == "Overloaded: busy 0"
    assert (await replay_async(store, "t", graph=graph)).equal and model.asked == [0]


async def test_a_policys_error_that_a_graph_caught_is_raised_again(
    store: RunStore, environment: LocalEnvironment
) -> None:
    def full(messages: Any) -> str:
        raise ContextLengthError(
            "The prompt has 9 tokens, and model 'm' takes at most 8, the answer included."
        )

    async def node(state: Said) -> dict[str, Any]:
        try:
            return {"said": [(await policy().ainvoke("hello")).text]}
        except ContextLengthError as error:
            return {"said": [error.message]}

    graph = graph_of(node)
    with ScriptedEngine(full) as engine:
        done = await EpisodeRunner(store, engine, "scripted", environment).run(
            Episode(TASK, "t", graph=graph)
        )
    assert done.status is RunStatus.COMPLETED and not done.calls and len(done.failed_calls) == 1
    assert (await replay_async(store, "t", graph=graph)).equal


def left(model: Any) -> Any:
    def node(state: Said) -> dict[str, Any]:
        text = ""
        for chunk in model.stream("hello"):
            text += chunk.text
            if "two" in text:
                break
        return {"said": [text]}

    return graph_of(node)


def left_async(model: Any) -> Any:
    async def node(state: Said) -> dict[str, Any]:
        text = ""
        async for chunk in model.astream("hello"):
            text += chunk.text
            if "two" in text:
                break
        # as any node that awaits something else: Python closes what was left then
        await asyncio.sleep(0)
        return {"said": [text]}

    return graph_of(node)


@pytest.mark.parametrize("make", [left, left_async])
async def test_a_stream_that_the_program_left_replays(make: Any, tmp_path: Path) -> None:
    model = Streaming(asked=[])
    graph = make(model)
    with record(tmp_path / "x.db"):
        assert (await graph.ainvoke({"task": "hello", "said": []}))["said"] == ["one two "]
    with open_store(tmp_path / "x.db") as store:
        (trajectory,) = store.journal.trajectories()
        assert (await replay_async(store, trajectory.id, graph=graph)).equal and model.asked == [0]


def test_failed_calls_are_exported_and_read_back(tmp_path: Path) -> None:
    with record(tmp_path / "x.db"):
        caught(Model(asked=[], fails=(0,))).invoke({"task": "hello", "said": []})
    with open_store(tmp_path / "x.db") as store:
        (trajectory,) = store.journal.trajectories()
        assert replay(store, trajectory.id, graph=caught(Model(asked=[0]))).equal
    write_jsonl([trajectory], tmp_path / "x.jsonl")
    assert list(read_jsonl(tmp_path / "x.jsonl")) == [trajectory]
