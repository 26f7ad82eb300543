"""Call forms, templates and kept thoughts requested by a model string."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, ToolMessage
from transformers import GenerationConfig

from hrm_agent.errors import ModelError
from hrm_agent.models.capabilities import Fault
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.codec.opening import load_tokenizer, open_codec
from hrm_agent.models.codec.thoughts import REASONING
from hrm_agent.models.engine import TemplateMismatch
from hrm_agent.models.loading.policy_loader import load_codec, model_folder
from hrm_agent.models.model_string import CodecOptions, parse_model
from tests.models.conftest import make_tokenizer

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
]
NO_TOOLS = """
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""


CALL = {"name": "f", "args": {}, "id": "1"}


def chatml(answer: str, results: str = "") -> str:
    """A template of ChatML with tools. `answer`: an answer's content; `results`: what else a turn
    of a tool writes.
    """
    return (
        "{% if tools %}{{ '<|im_start|>system\n' ~ tools | tojson ~ '<|im_end|>\n' }}{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}"
        f"{{% if m.role == 'assistant' %}}{answer}"
        "{% for c in m.tool_calls or [] %}"
        """{{ '<tool_call>{"name": "' ~ c.function.name ~ '", "arguments": ' ~ c.function.arguments | tojson ~ '}' }}"""
        "{{ '</tool_call>' }}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}"
        f"{results}{{% endfor %}}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def test_options_of_speech_are_kept_apart_from_those_of_loading() -> None:
    asked = parse_model("builtin:trained?tools=prompted&load=nf4&thoughts=keep")
    assert (
        asked.codec == CodecOptions(tools="prompted", thoughts="keep")
        and asked.options.load == "nf4"
    )
    with pytest.raises(ModelError, match="thoughts cannot be 'drop'"):
        parse_model("builtin:trained?thoughts=drop")


def test_a_form_that_the_template_does_not_write_is_refused() -> None:
    with pytest.raises(ModelError, match="does not write calls in the form 'qwen_xml'"):
        load_codec("builtin:trained?tools=qwen_xml")
    with pytest.raises(ModelError, match="Did you mean 'hermes'"):
        load_codec("builtin:trained?tools=hermess")


def test_tools_may_be_prompted_although_the_template_knows_some() -> None:
    codec: Any = load_codec("builtin:trained?tools=prompted")
    assert codec.dialect.shape.prompted and "You can use tools" in codec.decode(
        codec.encode([HumanMessage("q")], TOOLS)
    )


def test_a_template_of_a_file_is_the_models(tmp_path: Path) -> None:
    file = tmp_path / "plain.jinja"
    file.write_text(NO_TOOLS, encoding="utf-8")
    options = CodecOptions(template=str(file))
    codec: Any = open_codec(load_tokenizer(model_folder("builtin:trained"), options), options)
    assert codec.dialect.shape.prompted and codec.speech.faults == ()
    with pytest.raises(ModelError, match=r"cannot be read.*\?template=FILE"):
        load_tokenizer(
            model_folder("builtin:trained"), CodecOptions(template=str(tmp_path / "none"))
        )
    file.write_text("{% for m in messages %}{{ m.content }", encoding="utf-8")
    with pytest.raises(ModelError, match="line 1"):
        open_codec(load_tokenizer(model_folder("builtin:trained"), options), options)


def test_kept_thoughts_make_one_sequence_of_what_the_template_breaks(
    stripping_codec: ChatTemplateCodec,
) -> None:
    keeping = ChatTemplateCodec(stripping_codec.tokenizer, keep_thoughts=True)
    said = [
        HumanMessage("q"),
        AIMessage("a", additional_kwargs={REASONING: "long"}),
        HumanMessage("and?"),
    ]
    inserted = keeping.extend(said, 1, ended_by=keeping.end_of_turn)
    assert "and?" in keeping.decode(inserted)


def test_kept_thoughts_keep_nothing_else(stripping_codec: ChatTemplateCodec) -> None:
    """Earlier turns that change are no continuation,
    and no text of a turn is taken for the answer.
    """
    thought = {REASONING: "long"}
    forged = "hey ANSWER\U0010fffd ANSWER\U0010fffdANSWER there"
    keeping = ChatTemplateCodec(stripping_codec.tokenizer, keep_thoughts=True)
    said = [HumanMessage(forged), AIMessage("a", additional_kwargs=thought), HumanMessage("and?")]
    inserted = keeping.extend(said, 1, ended_by=None)
    assert (
        keeping.decode(inserted)
        == "<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )
    looped = [
        *said[:2],
        ChatMessage(role="tool", content="r"),
        AIMessage("b"),
        HumanMessage("and?"),
    ]
    assert keeping.extend(looped, 3, ended_by=None) == inserted
    moving = stripping_codec.tokenizer.chat_template.replace(
        "message.role +", "message.role ~ loop.revindex ~"
    )
    keeping = ChatTemplateCodec(make_tokenizer(moving), keep_thoughts=True)
    with pytest.raises(TemplateMismatch, match="before the answer"):
        keeping.extend(said, 1, ended_by=None)


def test_words_beside_a_call_stay_where_thoughts_have_no_place() -> None:
    """The template continues differently after a result than after a call without words."""
    results = (
        "{% if m.role == 'tool' and messages[loop.index0 - 1].content %}{{ 'So.' }}{% endif %}"
    )
    codec = ChatTemplateCodec(make_tokenizer(chatml("{{ m.content }}", results)))
    called = AIMessage("MY WORDS", tool_calls=[CALL])
    said: list[BaseMessage] = [HumanMessage("q"), called, ToolMessage("r", tool_call_id="1")]
    assert codec.dialect.thoughts is None
    assert "MY WORDS<tool_call>" in codec.decode(codec.encode(said, TOOLS))


@pytest.mark.parametrize(
    "answer",
    [
        "{{ m.reasoning_content }}\n{{ m.content }}",
        "Why: {{ m.reasoning_content }}\n{{ m.content }}",
    ],
)
def test_thoughts_without_a_mark_after_them_are_none(answer: str) -> None:
    codec: Any = open_codec(make_tokenizer(chatml(answer)))
    assert codec.dialect.thoughts is None
    assert codec.parse("hello").content == "hello"


def test_a_template_that_refuses_thoughts_beside_calls_is_refused_tools_alone() -> None:
    answer = (
        "{% if m.reasoning_content and m.tool_calls %}{{ raise_exception('no') }}{% endif %}"
        "{{ '<think>' ~ (m.reasoning_content or '') ~ '</think>' ~ m.content }}"
    )
    codec: Any = open_codec(make_tokenizer(chatml(answer)))
    assert codec.encode([HumanMessage("q")])
    with pytest.raises(ModelError, match="Tools cannot be offered"):
        codec.encode([HumanMessage("q")], TOOLS)


def test_answers_in_a_row_lose_nothing_where_roles_alternate() -> None:
    refusing = (
        "{% if not loop.first and m.role == messages[loop.index0 - 1].role and not m.tool_calls %}"
        "{{ raise_exception('roles alternate') }}{% endif %}"
    )
    answer = "{{ '<think>' ~ (m.reasoning_content or '') ~ '</think>' ~ m.content }}"
    codec = ChatTemplateCodec(make_tokenizer(chatml(answer, refusing)))
    assert codec.dialect.shape.alternates
    answers = [AIMessage(f"a{i}", additional_kwargs={REASONING: f"t{i}"}) for i in range(2)]
    calls = [AIMessage("", tool_calls=[{**CALL, "name": f"f{i}"}]) for i in range(2)]
    said = codec.decode(
        codec.encode([HumanMessage("q"), *answers, HumanMessage("r"), *calls], TOOLS)
    )
    assert all(text in said for text in ("a0", "a1", "t0", "t1", '"f0"', '"f1"'))


def test_an_end_that_the_tokenizer_does_not_know_is_shown_by_its_id() -> None:
    tokenizer = load_tokenizer(model_folder("builtin:trained"))
    codec: Any = open_codec(
        tokenizer, None, GenerationConfig(eos_token_id=[tokenizer.eos_token_id, 10**6])
    )
    assert codec.speech.ends == ("#1000000", tokenizer.eos_token)
    assert pickle.loads(pickle.dumps(codec)).speech == codec.speech


def test_tools_that_would_be_silently_wrong_are_refused_where_they_are_offered() -> None:
    codec: Any = load_codec("builtin:trained")
    assert codec.speech.faults == ()
    codec.speech = replace(
        codec.speech, faults=(Fault("its calls are not read", "Do this.", about_tools=True),)
    )
    assert codec.encode([HumanMessage("q")])
    with pytest.raises(
        ModelError, match=r"Tools cannot be offered to .*: its calls are not read. Do this."
    ):
        codec.encode([HumanMessage("q")], TOOLS)
