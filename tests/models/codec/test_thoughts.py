"""Sampled tokens of an answer that hold thoughts."""

from __future__ import annotations

import time

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.codec.calls.channels import HARMONY, MUSE
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.codec.thoughts import REASONING, Thoughts
from tests.support import families


@pytest.mark.parametrize(
    ("text", "thoughts"),
    [
        ("<think>ab</think>c", "<think>ab</think>"),
        (
            "\n<think>\nthe sum \u00e9 \U0001f600\n</think>\n\nthe two numbers",
            "\n<think>\nthe sum \u00e9 \U0001f600\n</think>",
        ),
        ("<think>a</think>\n<think>b</think>c", "<think>a</think>\n<think>b</think>"),
        ("<think></think>c", "<think></think>"),
        ("<think>never ended \u00e9", "<think>never ended \u00e9"),
        ("no thoughts, </think> or not", ""),
    ],
)
def test_the_marks_count_and_what_follows_does_not(
    text: str, thoughts: str, stripping_codec: ChatTemplateCodec
) -> None:
    ids = stripping_codec.encode_answer(text)
    count = stripping_codec.thought_tokens(ids)
    assert stripping_codec.decode(ids[:count]) == thoughts
    assert stripping_codec.decode(ids[count:]) == text.removeprefix(thoughts)
    cut = ids[: count + 1]
    assert stripping_codec.thought_tokens(cut) == count, "a cut answer has no end of its turn"


def test_a_character_that_the_end_of_the_answer_cuts(stripping_codec: ChatTemplateCodec) -> None:
    ids = stripping_codec.encode_answer("<think>a \U0001f600")[:-3]
    assert stripping_codec.decode(ids).endswith("\ufffd") and stripping_codec.thought_tokens(
        ids
    ) == len(ids)


def test_channels() -> None:
    first = "<|channel|>analysis<|message|>I think.<|end|>"
    called = "<|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>"
    second = "<|start|>assistant<|channel|>analysis<|message|>More.<|end|>"
    last = "<|start|>assistant<|channel|>final<|message|>So."
    text = first + called + second + last
    assert HARMONY.thought_spans is not None and MUSE.thought_spans is not None
    assert [text[a:b] for a, b in HARMONY.thought_spans(text)] == [first, second]
    assert HARMONY.read(text, {}).reasoning == "I think.\n\nMore."
    assert HARMONY.thought_spans(last) == []
    text = " to=self<|message|>I think.<|eom|><|start|>assistant to=user<|message|>So.<|eot|>"
    assert [text[a:b] for a, b in MUSE.thought_spans(text)] == [
        " to=self<|message|>I think.<|eom|>"
    ]


def test_looping_thoughts_take_time_in_proportion_to_them() -> None:
    thoughts = Thoughts("<think>", "</think>", None)

    def seconds(count: int) -> float:
        began = time.process_time()
        assert thoughts.split("<think></think>" * count + "so") == ("", "so")
        return time.process_time() - began

    quarter = seconds(50_000)
    assert seconds(200_000) < 8 * max(quarter, 0.02), "a quadratic reader takes 16 times as long"


@pytest.mark.real_tokenizers
def test_looping_channels_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = ChatTemplateCodec(families.load("gptoss"))
    ids = codec.encode_text("<|channel|>analysis<|message|>I think.<|end|><|start|>assistant" * 100)
    decoded: list[int] = []
    decode = codec.decode
    monkeypatch.setattr(codec, "decode", lambda some: decoded.append(len(some)) or decode(some))
    assert codec.thought_tokens(ids) == len(ids) - 2, "the header of a next message holds none"
    assert sum(decoded) < 20 * len(ids)


def test_bytes_have_none() -> None:
    codec = ByteCodec()
    assert codec.thought_tokens(codec.encode_answer("<reason>a</reason>b")) == 0


@pytest.mark.real_tokenizers
@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3_6", "gptoss", "glm4moe", "nemotron_3_nano", "muse_glimmer"]
)
def test_families(name: str) -> None:
    codec = ChatTemplateCodec(families.load(name))
    asked: list[BaseMessage] = [HumanMessage("What is 6 * 7?")]
    said = AIMessage("It is 42.", additional_kwargs={REASONING: "Six sevens, I compute."})
    ids = codec.encode_turn([*asked, said])
    count = codec.thought_tokens(ids)
    before, after = (
        codec.tokenizer.decode(part, skip_special_tokens=False)
        for part in (ids[:count], ids[count:])
    )
    assert "Six sevens, I compute." in before and "42" not in before
    assert "It is 42." in after and "compute" not in after and count >= 8
