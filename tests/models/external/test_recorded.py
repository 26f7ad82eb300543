"""Chat models held by a graph: called once for each request, by any method."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import httpx
import openai
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.errors import GraphInterrupt
from pydantic import BaseModel, ValidationError

from hrm_agent.models.external.recorded import record_external_models
from hrm_agent.store import RunStore
from hrm_agent.trajectory import MemoryJournal, Recording, recording

CONFIG: Any = {
    "metadata": {
        "thread_id": "t",
        "langgraph_checkpoint_ns": "ask:1",
        "langgraph_node": "ask",
        "langgraph_step": 1,
    }
}
QUESTION = [HumanMessage("hello there")]


class Hosted(BaseChatModel):
    """Model that counts its requests, and answers with the number, a tool call and a fact about the
    answer.
    """

    model: str = "hosted-1"
    asked: list[int] = []

    @property
    def _llm_type(self) -> str:
        return "hosted"

    def _next(self) -> str:
        self.asked.append(len(self.asked))
        return f"answer {self.asked[-1]}"

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        calls = [{"name": "f", "args": {"x": 1}, "id": "c", "type": "tool_call"}]
        message = AIMessage(self._next(), tool_calls=calls, response_metadata={"tier": "gold"})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for part in self._next().split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=part))
        yield ChatGenerationChunk(
            message=AIMessageChunk(content="", response_metadata={"tier": "gold"})
        )


@pytest.fixture
def journal() -> MemoryJournal:
    record_external_models()
    return MemoryJournal()


def drain(chunks: Iterator[Any]) -> tuple[AIMessage, int]:
    seen = list(chunks)
    whole = seen[0]
    for chunk in seen[1:]:
        whole += chunk
    return whole, len(seen)


async def ask(model: Any, how: str) -> tuple[AIMessage, int]:
    if how == "invoke":
        return model.invoke(QUESTION, CONFIG), 1
    if how == "ainvoke":
        return await model.ainvoke(QUESTION, CONFIG), 1
    if how == "stream":
        return drain(model.stream(QUESTION, CONFIG))
    return drain(iter([chunk async for chunk in model.astream(QUESTION, CONFIG)]))


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
async def test_it_is_asked_once_and_answers_the_same(how: str, journal: MemoryJournal) -> None:
    model = Hosted(asked=[])
    with recording(Recording(journal)):
        first, chunks = await ask(model, how)
    assert chunks > 1 or "stream" not in how
    with recording(Recording(journal)):  # the node runs again
        again, chunks = await ask(model, how)
        more, _ = await ask(model, how)
    assert len(model.asked) == 2, "a second request of the node is a request of its own"
    assert chunks == 1, "a recorded answer comes as one chunk"
    kept = {"content", "id", "tool_calls", "response_metadata", "usage_metadata"}
    assert again.model_dump(include=kept) == first.model_dump(include=kept)
    assert (first.response_metadata["tier"] == "gold") and more.text != first.text
    calls = journal.calls_of_task("t", "1")
    assert [call.call_index for call in calls] == [0, 1]
    assert [call.model for call in calls] == ["hosted-1"] * 2 and all(
        call.untrainable for call in calls
    )


async def test_the_record_is_there_before_the_last_chunk_is_seen(journal: MemoryJournal) -> None:
    with recording(Recording(journal)):
        stream = Hosted(asked=[]).stream(QUESTION, CONFIG)
        seen = [len(journal.calls_of_task("t", "1")) for _ in stream]
    assert seen[0] == 0 and seen[-1] == 1


class Repeating(Hosted):
    """Model whose chunks each name the model."""

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for part, reason in (("a", ""), ("b", "stop")):
            told = {"model_name": "hosted-1", "finish_reason": reason}
            yield ChatGenerationChunk(message=AIMessageChunk(content=part, response_metadata=told))


@pytest.mark.parametrize("how", ["stream", "astream"])
async def test_what_every_chunk_says_is_on_record_once(how: str, journal: MemoryJournal) -> None:
    with recording(Recording(journal)):
        await ask(Repeating(asked=[]), how)
    (call,) = journal.calls_of_task("t", "1")
    assert call.answered_by == "hosted-1"
    assert call.response["response_metadata"]["finish_reason"] == "stop"


@pytest.mark.parametrize("seen", [1, 2])
async def test_a_stream_that_is_left_is_on_record_as_left_with_what_was_seen(
    seen: int, journal: MemoryJournal
) -> None:
    with recording(Recording(journal)):
        stream = Hosted(asked=[]).stream(QUESTION, CONFIG)
        text = "".join(next(stream).text for _ in range(seen))
        stream.close()  # pyright: ignore[reportAttributeAccessIssue]
        (left,) = journal.calls_of_task("t", "1")
        assert (
            left.error is not None and left.error.kinds == () and left.response["content"] == text
        )
        await ask(Hosted(asked=[]), "invoke")
    answered = [call for call in journal.calls_of_task("t", "1") if call.error is None]
    assert [call.call_index for call in answered] == [0], "its index was given back"


class Plan(BaseModel):
    steps: list[str]


class Mood(Enum):
    CALM = "calm"


class OwnMessage(AIMessage):
    """A provider's class of messages, with a field of its own."""

    citations: tuple[int, ...] = ()


class Provider:
    """An object of a provider's client: it has no stored form."""


ODD: dict[str, Any] = {
    "signature": b"\x12\xff\x00",
    "parsed": Plan(steps=["a"]),
    "pair": (1, (2.5, None)),
    "names": {"a", "b"},
    "half": "\ud83d",
    "rate": float("inf"),
    "by number": {1: "one"},
    "mood": Mood.CALM,
    "at": datetime(2026, 1, 2, tzinfo=UTC),
    "nested": [{"deep": [b"x"]}],
}


class Answering(Hosted):
    """Model that always gives one message."""

    message: Any = None

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.message)])


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("where", ["additional_kwargs", "response_metadata"])
async def test_an_answer_comes_back_as_it_was_and_the_program_has_its_own(
    name: str, where: str, store: RunStore
) -> None:
    record_external_models()
    given = OwnMessage("a whale", citations=(1, 2), **{where: {"odd": ODD[name]}})
    model = Answering(message=given)
    with recording(Recording(store.journal)):
        answer = model.invoke(QUESTION, CONFIG)
    assert type(answer) is OwnMessage and getattr(answer, where)["odd"] is ODD[name]
    (call,) = store.journal.calls_of_task("t", "1")
    assert call.lost is None
    with recording(Recording(store.journal)):
        again = Answering(message=None).invoke(QUESTION, CONFIG)
    assert type(again) is OwnMessage and again.citations == (1, 2)
    assert getattr(again, where)["odd"] == ODD[name] and type(getattr(again, where)["odd"]) is type(
        ODD[name]
    )
    assert again.response_metadata["call_id"] == answer.response_metadata["call_id"]


async def test_what_has_no_stored_form_is_a_mark_in_the_record(store: RunStore) -> None:
    record_external_models()
    circle: list[Any] = []
    circle.append(circle)
    extra: dict[str, Any] = {"raw": Provider(), "circle": circle, "kept": b"x"}
    model = Answering(message=AIMessage("a whale", additional_kwargs=extra))
    with recording(Recording(store.journal)):
        assert model.invoke(QUESTION, CONFIG).additional_kwargs["raw"] is extra["raw"]
    (call,) = store.journal.calls_of_task("t", "1")
    assert call.lost is not None and "additional_kwargs.raw: Provider" in call.lost
    with recording(Recording(store.journal)):
        again = Answering(message=None).invoke(QUESTION, CONFIG)
    assert (
        again.text == "a whale"
        and again.additional_kwargs["kept"] == b"x"
        and "raw" not in again.additional_kwargs
    )


class Breaking(Hosted):
    """Model that raises before its answer or within it."""

    error: Any = None

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        self.asked.append(len(self.asked))
        raise self.error

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        self.asked.append(len(self.asked))
        for part in ("one", "two"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=part))
        raise self.error


class Refused(openai.RateLimitError):
    """Error class of the program."""


def _refused(kind: type[openai.APIStatusError]) -> Exception:
    told = {"retry-after": "2", "set-cookie": "key=1"}
    response = httpx.Response(
        429, headers=told, json={"why": "rate"}, request=httpx.Request("POST", "http://x")
    )
    return kind("slow down", response=response, body={"code": "rate"})


def _invalid() -> Exception:
    with pytest.raises(ValidationError) as caught:
        Plan.model_validate({"steps": "none"})
    return caught.value


ERRORS = [
    ValueError("429"),
    KeyError("a"),
    TimeoutError(),
    _invalid(),
    _refused(openai.RateLimitError),
    _refused(Refused),
]


class Replaying(Recording):
    """Gives out what failed, too, as a replay does."""

    def claim(self, *asked: Any, **options: Any) -> Any:
        return self.journal.calls_of_task("t", "1")[0]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
async def test_what_a_model_raised_is_on_record_and_raised_again_but_asked_again_on_resume(
    how: str, error: Exception, store: RunStore
) -> None:
    record_external_models()
    model, seen = Breaking(asked=[], error=error), list[str]()

    async def asked() -> None:
        if how == "stream":
            seen.extend(chunk.text for chunk in model.stream(QUESTION, CONFIG))
        elif how == "astream":
            async for chunk in model.astream(QUESTION, CONFIG):
                seen.append(chunk.text)
        else:
            await ask(model, how)

    async def told() -> Exception:
        seen.clear()
        with pytest.raises(type(error)) as caught:
            await asked()
        return caught.value

    with recording(Recording(store.journal)):
        assert str(await told()) == str(error) and model.asked == [0]
        assert "stream" not in how or seen == ["one", "two"]
    (failed,) = store.journal.calls_of_task("t", "1")
    assert failed.error is not None and not failed.token_ids and failed.seed is None
    with recording(Replaying(store.journal)):
        again = await told()
    assert model.asked == [0] and "".join(seen) == ("onetwo" if "stream" in how else "")
    assert type(again) is type(error) and str(again) == str(error)
    assert getattr(again, "status_code", None) == getattr(error, "status_code", None)
    if isinstance(again, openai.APIStatusError):
        assert again.response.headers["retry-after"] == "2" and again.response.json() == {
            "why": "rate"
        }
        assert "set-cookie" not in again.response.headers
    with recording(Recording(store.journal)):
        await told()
    assert model.asked == [0, 1]
    _, second = store.journal.calls_of_task("t", "1")
    assert second.instead_of == failed.id and second.call_index == failed.call_index


@pytest.mark.parametrize("stop", [asyncio.CancelledError, KeyboardInterrupt, GraphInterrupt])
async def test_what_stops_a_run_is_no_failure_of_the_model(
    stop: Any, journal: MemoryJournal
) -> None:
    with recording(Recording(journal)), pytest.raises(stop):
        Breaking(asked=[], error=stop()).invoke(QUESTION, CONFIG)
    assert journal.calls_of_task("t", "1") == []


@pytest.mark.parametrize(
    "difference", [{"stop": ["."]}, {"tool_choice": "any"}, {"model": "hosted-2"}]
)
async def test_another_request_is_asked(difference: dict[str, Any], journal: MemoryJournal) -> None:
    model = Hosted(asked=[])
    with recording(Recording(journal)):
        model.invoke(QUESTION, CONFIG)
    with recording(Recording(journal)):
        model.invoke(QUESTION, CONFIG, **difference)
    assert len(model.asked) == 2


async def test_outside_of_a_recording_and_of_a_graph_nothing_changes(
    journal: MemoryJournal,
) -> None:
    model = Hosted(asked=[])
    model.invoke(QUESTION, CONFIG)
    with recording(Recording(journal)):
        assert "call_id" not in model.invoke(QUESTION).response_metadata
    assert len(model.asked) == 2 and journal.calls_of_task("t", "1") == []


class Slow(Hosted):
    async def _agenerate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        self._next()
        return await asyncio.Future[ChatResult]()

    async def _astream(
        self, messages: Any, *args: Any, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content=self._next()))
        yield ChatGenerationChunk(message=AIMessageChunk(content="more"))
        await asyncio.Future[None]()


@pytest.mark.parametrize("how", ["ainvoke", "astream"])
async def test_a_call_that_the_program_cancelled_waits_to_be_cancelled_in_a_replay(
    how: str, journal: MemoryJournal
) -> None:
    model, texts = Slow(asked=[]), list[str]()

    async def asking() -> None:
        if how == "ainvoke":
            await model.ainvoke(QUESTION, CONFIG)
        async for chunk in model.astream(QUESTION, CONFIG):
            texts.append(chunk.text)

    async def cancelled_after(asked: int) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asking(), 0.2)
        assert len(model.asked) == asked

    with recording(Recording(journal)):
        await cancelled_after(1)
    (call,) = journal.calls_of_task("t", "1")
    assert call.error is not None and call.error.name == "CancelledError"
    shown = texts.copy()
    with recording(Replaying(journal)):
        await cancelled_after(1)
    assert texts == shown * 2
    with recording(Recording(journal)):  # a resumed run asks again
        await cancelled_after(2)


class Told(BaseCallbackHandler):
    def __init__(self) -> None:
        self.events = list[str]()

    def on_chat_model_start(self, *args: Any, **options: Any) -> None:
        self.events.append("start")

    def on_llm_new_token(self, token: Any, **options: Any) -> None:
        self.events.append("chunk")

    def on_llm_end(self, response: Any, **options: Any) -> None:
        self.events.append("end")


@pytest.mark.parametrize("how", ["stream", "astream"])
async def test_callbacks_hear_of_a_stream_that_is_on_record(
    how: str, journal: MemoryJournal
) -> None:
    events = list[list[str]]()
    for _ in range(2):
        told, model = Told(), Hosted(asked=[])
        with recording(Recording(journal)):
            await ask(model.with_config(callbacks=[told]), how)
        events.append(told.events)
    assert [[*dict.fromkeys(each)] for each in events] == [["start", "chunk", "end"]] * 2
