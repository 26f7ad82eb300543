"""Engines in another process: through a proxy they behave as in this one."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from hrm_agent.errors import ConfigError, ContextLengthError, ModelError
from hrm_agent.models import Engine, GenerationRequest, load_policy
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.training.workers.engine_proxy import EngineHost, EngineProxy
from hrm_agent.training.workers.wire import Message, error_of, packed, told, unpacked
from hrm_agent.trajectory import Sampling

TALK = (HumanMessage("What is 6 * 7?"),)


def asked(engine: Any, **sampling: Any) -> GenerationRequest:
    prompt = tuple(engine.codec.encode(list(TALK)))
    return GenerationRequest(prompt, Sampling(**{"seed": 3, "max_tokens": 12, **sampling}), TALK)


class Joined:
    """A proxy and a host, joined by frames as the two processes are."""

    def __init__(self, engine: Engine) -> None:
        self.host = EngineHost({"key": engine}, self.hear)
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = count()

    async def proxy(self) -> EngineProxy:
        facts = self.expect()
        await self.host.load(max(self._waiting), "key")
        return EngineProxy("key", facts.result(), self.ask)

    def expect(self) -> Future[Any]:
        self._waiting[next(self._numbers)] = found = Future[Any]()
        return found

    def hear(self, messages: Sequence[Message]) -> None:
        for kind, number, found in unpacked(packed(messages)):
            future = self._waiting.pop(number)
            if kind == "error":
                future.set_exception(error_of(*found))
            else:
                future.set_result(found)

    def ask(self, answer: Future[Any], request: Message) -> None:
        number = next(self._numbers)
        self._waiting[number] = answer
        answer.add_done_callback(
            lambda done: self.host.cancel(number) if done.cancelled() else None
        )
        self.host.ask(number, unpacked(packed([request]))[0])


def through_proxy(engine: Engine, work: Callable[[EngineProxy], Future[Any]]) -> Any:
    async def ask() -> Any:
        return await asyncio.wrap_future(work(await Joined(engine).proxy()))

    return asyncio.run(ask())


@pytest.mark.parametrize("name", ["builtin:cold-start", "scripted"])
def test_a_proxy_answers_as_the_engine_does(name: str) -> None:
    engine: Any = load_policy(name) if name != "scripted" else ScriptedEngine(lambda _: "forty-two")
    there = engine.submit(asked(engine)).result()

    async def ask() -> None:
        proxy = await Joined(engine).proxy()
        assert (proxy.name, proxy.logprob_kind) == (engine.name, engine.logprob_kind)
        assert proxy.policy_version == engine.policy_version
        conversation = [*TALK, AIMessage("<answer>42</answer>"), HumanMessage("Why?")]
        assert proxy.codec.encode(conversation) == engine.codec.encode(conversation)
        here = await asyncio.wrap_future(proxy.submit(asked(proxy)))
        assert (here.token_ids, here.finish_reason) == (there.token_ids, there.finish_reason)
        assert here.logprobs == pytest.approx(there.logprobs, abs=1e-5)

    asyncio.run(ask())


def test_who_asks_is_told() -> None:
    with ScriptedEngine(lambda _: "42") as engine:
        heard: list[str] = []
        submit = engine.submit
        engine.submit = lambda request: (heard.append(request.role), submit(request))[1]  # type: ignore[method-assign]
        through_proxy(engine, lambda proxy: proxy.submit(replace(asked(proxy), role="plan")))
        assert heard == ["plan"]


def test_tokens_are_told_one_by_one_and_what_hears_them_may_fail() -> None:
    heard: list[int] = []
    with ScriptedEngine(lambda _: "forty-two") as engine:
        request = asked(engine)
        tokens = engine.submit(request).result().token_ids

        def hearing(on_token: Callable[[int], None]) -> GenerationRequest:
            return GenerationRequest(request.prompt_ids, request.sampling, TALK, on_token)

        assert (
            through_proxy(engine, lambda proxy: proxy.submit(hearing(heard.append))).token_ids
            == tokens
        )
        assert heard == list(tokens)
        with pytest.raises(ZeroDivisionError):
            through_proxy(engine, lambda proxy: proxy.submit(hearing(lambda token: token // 0)))


def test_errors_keep_their_class_their_words_and_their_hint() -> None:
    with ScriptedEngine([]) as engine, pytest.raises(ModelError, match="has 0 answers") as raised:
        through_proxy(engine, lambda proxy: proxy.submit(asked(proxy)))
    assert raised.value.hint.startswith("Add answers")
    with pytest.raises(ModelError, match="is closed"):
        through_proxy(engine, lambda proxy: proxy.submit(asked(proxy)))


@pytest.mark.parametrize(
    "error",
    [
        ContextLengthError("too long", "shorten it"),
        LookupError("no such page"),
        UnicodeDecodeError("a", b"", 0, 1, "b"),
    ],
)
def test_an_error_that_is_told_has_the_name_and_the_text_that_it_had(error: Exception) -> None:
    again = error_of(*pickle.loads(pickle.dumps(told(error))))
    assert (type(again).__name__, str(again)) == (type(error).__name__, str(error))


def test_a_request_that_is_given_up_is_given_up_in_the_engine() -> None:
    engine: Any = load_policy("builtin:cold-start")

    async def ask() -> None:
        joined = Joined(engine)
        future = (await joined.proxy()).submit(asked(engine, max_tokens=1024))
        (theirs,) = joined.host._open.values()  # pyright: ignore[reportPrivateUsage]
        assert future.cancel() and theirs.cancelled()
        assert future.cancelled()

    asyncio.run(ask())


class Unsendable(ByteCodec):
    def __reduce__(self) -> Any:
        raise TypeError("it holds a file")


def test_a_codec_that_cannot_be_sent_is_told() -> None:
    refusal = r"codec of 'scripted' cannot be sent.*it holds a file"
    with (
        ScriptedEngine([], codec=Unsendable()) as engine,
        pytest.raises(ConfigError, match=refusal),
    ):
        through_proxy(engine, lambda proxy: proxy.submit(asked(proxy)))
