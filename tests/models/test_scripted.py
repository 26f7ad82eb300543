"""The scripted engine behaves like an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.messages import HumanMessage

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.loading.policy_loader import load_policy, loaded_policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.trajectory import FinishReason, Sampling


def request(text: str = "hello", on_token: Any = None, **sampling: Any) -> GenerationRequest:
    return GenerationRequest((1, 2), Sampling(seed=0, **sampling), [HumanMessage(text)], on_token)


def test_a_sequence_is_dealt_out_in_order_and_then_exhausted() -> None:
    with ScriptedEngine(["a", "b"]) as engine:
        futures = [engine.submit(request()) for _ in range(3)]
        assert [engine.codec.decode(future.result(60).token_ids) for future in futures[:2]] == [
            "a",
            "b",
        ]
        with pytest.raises(ModelError, match="2 answers"):
            futures[2].result(60)
        assert engine.calls == 3
        assert engine.requests[0].messages[0].content == "hello"


def test_a_function_answers_the_conversation_and_may_fail() -> None:
    with ScriptedEngine(lambda messages: str(10 // int(messages[-1].text))) as engine:
        assert engine.codec.decode(engine.submit(request("5")).result(60).token_ids) == "2"
        with pytest.raises(ZeroDivisionError):
            engine.submit(request("0")).result(60)


def test_answers_are_the_same_every_time(codec: ChatTemplateCodec) -> None:
    answers = []
    for _ in range(2):
        with ScriptedEngine(["<reason>x</reason>"], codec=codec) as engine:
            answers.append(engine.submit(request()).result(60))
    assert (answers[0].token_ids, answers[0].logprobs) == (
        answers[1].token_ids,
        answers[1].logprobs,
    )
    assert answers[0].token_ids == tuple(codec.encode_answer("<reason>x</reason>"))
    assert all(logprob < 0 for logprob in answers[0].logprobs)


def test_limits_stop_strings_and_observers() -> None:
    seen: list[int] = []
    with ScriptedEngine(["abcdef", "abcdef", "ab"]) as engine:
        cut = engine.submit(request(max_tokens=3, on_token=seen.append)).result(60)
        assert (bytes(cut.token_ids), cut.finish_reason, bytes(seen)) == (
            b"abc",
            FinishReason.LENGTH,
            b"abc",
        )
        stopped = engine.submit(request(stop=("x", "cd"))).result(60)
        assert (bytes(stopped.token_ids), stopped.finish_reason) == (b"abcd", FinishReason.STOP)
        whole = engine.submit(request(max_tokens=3)).result(60)
        assert (whole.token_ids[-1], whole.finish_reason) == (
            engine.codec.end_of_turn,
            FinishReason.STOP,
        )


def test_answers_can_overtake_each_other() -> None:
    seconds = {"slow": 600.0, "fast": 0.0, "later": 0.05}
    with ScriptedEngine(
        ["slow", "fast", "later"], delay=lambda messages: seconds[messages[-1].text]
    ) as engine:
        slow, *others = (engine.submit(request(text)) for text in seconds)
        assert [engine.codec.decode(future.result(60).token_ids) for future in others] == [
            "fast",
            "later",
        ]
        assert not slow.done()


def test_closing_fails_what_is_pending() -> None:
    engine = ScriptedEngine(lambda _: "x", delay=600)
    futures = [engine.submit(request()) for _ in range(20)]
    engine.close()
    assert all(isinstance(future.exception(60), ModelError) for future in futures)
    with pytest.raises(ModelError, match="closed"):
        engine.submit(request())


def test_publishing_changes_the_version() -> None:
    with ScriptedEngine(["a", "b"]) as engine:
        before = engine.submit(request()).result(60)
        engine.publish(3)
        assert (before.policy_version, engine.submit(request()).result(60).policy_version) == (0, 3)


def test_a_relative_path_names_the_file_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process may work in several folders, so the string alone does not identify the model."""
    name, opened = "scripted:script.jsonl", list[Any]()
    for word in ("one", "two", "one"):
        (tmp_path / word).mkdir(exist_ok=True)
        (tmp_path / word / "script.jsonl").write_text(json.dumps(word))
        monkeypatch.chdir(tmp_path / word)
        opened.append(load_policy(name))
        assert loaded_policy(name) is opened[-1]
    one, two, again = opened
    assert again is one
    assert [
        each.codec.decode(each.submit(request()).result(60).token_ids) for each in (one, two)
    ] == ["one", "two"]


async def test_a_watched_event_loop_may_ask_for_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`langgraph dev` raises in code that blocks its loop, and counts a query of the current folder
    as such.
    """
    monkeypatch.chdir(tmp_path)
    with blockbuster_ctx(["hrm_agent"]):
        for name in (
            "scripted:script.jsonl",
            f"scripted:{tmp_path / 'script.jsonl'}",
            "a_folder",
            "hf:a/model?x=1",
        ):
            assert loaded_policy(name) is None
