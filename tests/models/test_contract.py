"""One suite for every way in which a graph can call a model: the capture is the same in all of
them.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from pydantic import BaseModel

from hrm_agent.errors import ModelError
from hrm_agent.models import PolicyModel, invalid_tool_calls, policy, using_policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import RunStore
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    FinishReason,
    Recording,
    Sampling,
    SentSampling,
    recording,
)

CALL = (
    '<reason>add</reason><tool_call>{"name": "python", "arguments": {"code": "40 + 2"}}</tool_call>'
)
BROKEN = (
    '<reason>add</reason><tool_call>{"name": "python", "arguments": {"code": "40 + 2</tool_call>'
)
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
}


class Answer(BaseModel):
    """The answer."""

    value: int


def echo(messages: list[Any]) -> str:
    """Return an answer that contains its request."""
    return f"answer to {messages[-1].content}"


class State(TypedDict):
    asked: list[str]
    answers: Annotated[list[str], operator.add]


def graph_of(ask: Callable[[str], Any], shape: str) -> Any:
    """`ask` in a sequence of nodes, in parallel branches, or in a subgraph."""

    async def node(state: State) -> dict[str, Any]:
        return {"answers": [await ask(state["asked"][0])]}

    async def branch(question: str) -> dict[str, Any]:
        return {"answers": [await ask(question)]}

    builder = StateGraph(State)
    if shape == "parallel":
        builder.add_node("branch", branch)
        builder.add_conditional_edges(
            START, lambda state: [Send("branch", q) for q in state["asked"]], ["branch"]
        )
        builder.add_edge("branch", END)
        return builder.compile()
    inner = node
    if shape == "subgraph":
        sub = StateGraph(State).add_node("inner", node).add_edge(START, "inner").compile()

        async def inner(state: State) -> dict[str, Any]:
            end = await sub.ainvoke({"asked": state["asked"], "answers": []})
            return {"answers": end["answers"]}

    builder.add_node("first", inner)
    builder.add_node("second", node)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile()


async def by_invoke(question: str) -> str:
    return await asyncio.to_thread(lambda: policy().invoke(question).text)


async def by_ainvoke(question: str) -> str:
    return (await policy().ainvoke(question)).text


async def by_stream(question: str) -> str:
    return await asyncio.to_thread(
        lambda: "".join(chunk.text for chunk in policy().stream(question))
    )


async def by_astream(question: str) -> str:
    chunks: AsyncIterator[Any] = policy().astream(question)
    return "".join([chunk.text async for chunk in chunks])


async def by_batch(question: str) -> str:
    return (await asyncio.to_thread(lambda: policy().batch([question])))[0].text


async def by_abatch(question: str) -> str:
    return (await policy().abatch([question]))[0].text


async def by_bound_tools(question: str) -> str:
    return (await policy().bind_tools([TOOL]).ainvoke(question)).text


WAYS = [by_invoke, by_ainvoke, by_stream, by_astream, by_batch, by_abatch, by_bound_tools]


def calls_of(store: RunStore, thread_id: str) -> list[Call]:
    return store.journal._calls("c.thread_id = ?", (thread_id,))


@pytest.mark.parametrize("shape", ["sequence", "parallel", "subgraph"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_each_call_is_recorded_once_with_its_own_tokens(
    way: Any, shape: str, store: RunStore
) -> None:
    questions = (
        ["first question", "second question", "third"] if shape == "parallel" else ["one question"]
    )
    slowest_first = {question: 0.02 * (len(questions) - i) for i, question in enumerate(questions)}
    engine = ScriptedEngine(echo, delay=lambda messages: slowest_first[messages[-1].content])
    graph = graph_of(way, shape).copy(update={"checkpointer": store.checkpointer})
    with engine, using_policy(engine), recording(Recording(store.journal, seed=1)):
        end = await graph.ainvoke(
            {"asked": questions, "answers": []}, {"configurable": {"thread_id": "t"}}
        )
    calls = calls_of(store, "t")
    assert len(calls) == engine.calls == (3 if shape == "parallel" else 2)
    assert len({call.id for call in calls}) == len(calls)
    seen = {request.prompt_ids: request for request in engine.requests}
    for call in calls:
        prompt = tuple(
            t for t, sampled in zip(call.token_ids, call.mask, strict=True) if not sampled
        )
        answer = [t for t, sampled in zip(call.token_ids, call.mask, strict=True) if sampled]
        question = seen[prompt].messages[-1].content
        assert (
            engine.codec.decode(answer)
            == f"answer to {question}"
            == AIMessage.model_validate(call.response).text
        )
        assert all(
            logprob < 0
            for logprob, sampled in zip(call.logprobs, call.mask, strict=True)
            if sampled
        )
        assert call.identity.checkpoint_id and call.identity.node and call.trainable
    assert sorted(end["answers"]) == sorted(
        f"answer to {q}" for q in (questions if len(calls) == 3 else questions * 2)
    )


async def test_structured_output_is_recorded(store: RunStore) -> None:
    engine = ScriptedEngine(
        ['<tool_call>{"name": "Answer", "arguments": {"value": 42}}</tool_call>']
    )
    with engine, recording(Recording(store.journal)):
        model = PolicyModel(backend=engine).with_structured_output(Answer)
        answer = await model.ainvoke("what is it", {"metadata": {"thread_id": "t"}})
    assert answer == Answer(value=42)
    (call,) = calls_of(store, "t")
    assert call.trainable and call.sampled_tokens == len(
        engine.codec.encode_answer(
            '<tool_call>{"name": "Answer", "arguments": {"value": 42}}</tool_call>'
        )
    )


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        BROKEN,
        "<reason>é漢🎉</reason><answer>\\boxed{1}</answer>",
        f"\n {CALL}\n and more \n",
        "a \n",
    ],
)
async def test_streamed_and_invoked_messages_agree(text: str, store: RunStore) -> None:
    with ScriptedEngine(lambda _: text) as engine, recording(Recording(store.journal)):
        model = PolicyModel(backend=engine).bind_tools([TOOL])
        invoked = await model.ainvoke("q")
        chunks = [chunk async for chunk in model.astream("q")]
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed = streamed + chunk
    assert streamed.text == invoked.text and streamed.id != invoked.id
    assert [(c["name"], c["args"]) for c in streamed.tool_calls] == [
        (c["name"], c["args"]) for c in invoked.tool_calls
    ]
    assert [c["error"] for c in invalid_tool_calls(streamed)] == [
        c["error"] for c in invalid_tool_calls(invoked)
    ]
    assert bool(invalid_tool_calls(invoked)) == (text == BROKEN)


async def test_a_conversation_is_extended_token_by_token(store: RunStore) -> None:
    engine = ScriptedEngine([CALL, "<answer>\\boxed{42}</answer>"])
    with engine, recording(Recording(store.journal)):
        model = PolicyModel(backend=engine).bind_tools([TOOL])
        messages: list[Any] = [SystemMessage("s"), HumanMessage("40 + 2?")]
        first = await model.ainvoke(messages, {"metadata": {"thread_id": "t"}})
        messages += [first, ToolMessage("42", tool_call_id=first.tool_calls[0]["id"])]
        await model.ainvoke(messages, {"metadata": {"thread_id": "t"}})
    one, two = calls_of(store, "t")
    assert (
        one.branch_reason is BranchReason.ROOT
        and two.parent == one.id
        and two.branch_reason is None
    )
    path = store.journal.path_tokens(two.id)
    assert path == one.token_ids + two.token_ids
    assert path[: len(engine.requests[1].prompt_ids)] == engine.requests[1].prompt_ids
    assert (
        engine.requests[0].prompt_ids
        + tuple(t for t, sampled in zip(one.token_ids, one.mask, strict=True) if sampled)
        == engine.requests[1].prompt_ids[: len(one.token_ids)]
    )


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (
            lambda m, model: (
                [m[0], m[1], m[2].model_copy(update={"content": "edited"}), m[3]],
                model,
            ),
            "rewritten",
        ),
        (lambda m, model: ([HumanMessage("other"), *m[1:]], model), "rewritten"),
        (lambda m, model: (m, model.bind_tools([])), "tools"),
    ],
)
async def test_a_branch_names_why_it_branched(edit: Any, reason: str, store: RunStore) -> None:
    engine = ScriptedEngine(["one", "two"])
    with engine, recording(Recording(store.journal)):
        model = PolicyModel(backend=engine)
        messages: list[Any] = [SystemMessage("s"), HumanMessage("h")]
        first = await model.bind_tools([TOOL]).ainvoke(messages, {"metadata": {"thread_id": "t"}})
        edited, asked = edit([*messages, first, HumanMessage("more")], model)
        asked = asked if reason == "tools" else asked.bind_tools([TOOL])
        await asked.ainvoke(edited, {"metadata": {"thread_id": "t"}})
    one, two = calls_of(store, "t")
    assert (two.parent, two.branch_reason, two.branch_of) == (None, BranchReason(reason), one.id)


async def test_another_chat_model_is_recorded_and_marked_as_not_trainable(store: RunStore) -> None:
    external = GenericFakeChatModel(messages=iter([AIMessage("hello"), AIMessage("again")]))
    graph = graph_of(by_ainvoke, "sequence").copy(update={"checkpointer": store.checkpointer})
    with using_policy(external), recording(Recording(store.journal)):
        end = await graph.ainvoke(
            {"asked": ["hi"], "answers": []}, {"configurable": {"thread_id": "t"}}
        )
    calls = calls_of(store, "t")
    assert end["answers"] == ["hello", "again"] and len(calls) == 2
    assert all(
        not c.trainable and c.branch_reason is BranchReason.NO_TOKENS and c.request for c in calls
    )


async def test_a_node_that_runs_again_gets_its_recorded_answers(store: RunStore) -> None:
    """A node asks twice, side by side, and dies; on resume it asks in the other order."""
    runs: list[list[str]] = []

    async def node(state: State) -> dict[str, Any]:
        order = ["a", "b"] if not runs else ["b", "a"]
        answers = await asyncio.gather(*(by_ainvoke(question) for question in order))
        runs.append(answers)
        if len(runs) == 1:
            raise RuntimeError("killed")
        return {"answers": answers}

    builder = StateGraph(State).add_node("node", node).add_edge(START, "node")
    graph = builder.compile(checkpointer=store.checkpointer)
    config: Any = {"configurable": {"thread_id": "t"}}
    with ScriptedEngine(echo) as engine, using_policy(engine):
        with recording(Recording(store.journal)), pytest.raises(RuntimeError, match="killed"):
            await graph.ainvoke({"asked": [], "answers": []}, config)
        with recording(Recording(store.journal)):
            end = await graph.ainvoke(None, config)
    assert end["answers"] == ["answer to b", "answer to a"]
    assert engine.calls == 2 == len(calls_of(store, "t"))


async def test_a_stream_that_is_given_up_frees_its_place_and_its_index(store: RunStore) -> None:
    with (
        ScriptedEngine(lambda _: "x" * 200, delay=600) as engine,
        recording(Recording(store.journal)) as active,
    ):
        config: Any = {"metadata": {"thread_id": "t"}}
        stream = PolicyModel(backend=engine).astream("q", config)
        task = asyncio.ensure_future(anext(stream))
        while not engine.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert calls_of(store, "t") == [] and not any(known.claimed for known in active._tasks.values())


async def test_langchains_cache_is_not_asked(store: RunStore) -> None:
    set_llm_cache(InMemoryCache())
    try:
        with ScriptedEngine(echo) as engine, recording(Recording(store.journal)):
            model = PolicyModel(backend=engine)
            await model.ainvoke("same", {"metadata": {"thread_id": "t"}})
            await model.ainvoke("same", {"metadata": {"thread_id": "t"}})
    finally:
        set_llm_cache(None)
    assert len(calls_of(store, "t")) == 2


async def test_another_chat_model_is_told_the_sampling_parameters_that_are_recorded(
    store: RunStore,
) -> None:
    told: list[dict[str, Any]] = []

    class External(GenericFakeChatModel):
        def _generate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> Any:
            told.append(kwargs)
            return super()._generate(messages, stop, run_manager)

    external = External(
        messages=iter([AIMessage("hello", response_metadata={"stop_reason": "max_tokens"})])
    )
    sampling = Sampling(temperature=0.0, top_p=0.5, max_tokens=7)
    with using_policy(external, sampling), recording(Recording(store.journal)):
        await policy().ainvoke("hi", {"metadata": {"thread_id": "t"}})
    (call,) = calls_of(store, "t")
    assert told == [{"temperature": 0.0, "top_p": 0.5, "max_tokens": 7}]
    assert call.sampling is None and call.sampling_sent == SentSampling(
        temperature=0.0, top_p=0.5, max_tokens=7
    )
    assert call.finish_reason is FinishReason.LENGTH


async def test_a_provider_that_fails_stops_the_run(store: RunStore) -> None:
    class Down(GenericFakeChatModel):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            raise TimeoutError("no answer in 60 s")

    failure = pytest.raises(ModelError, match="gave no answer: TimeoutError: no answer in 60 s")
    with using_policy(Down(messages=iter([]))), recording(Recording(store.journal)), failure:
        await policy().ainvoke("hi")
