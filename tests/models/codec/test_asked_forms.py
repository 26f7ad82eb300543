"""A form of calls, a template and kept thoughts that a model string asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from hrm_agent.errors import ModelError
from hrm_agent.models.capabilities import Fault
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.codec.opening import load_tokenizer, open_codec
from hrm_agent.models.codec.thoughts import REASONING
from hrm_agent.models.model_string import CodecOptions, parse_model
from hrm_agent.models.policy_loader import load_codec, model_folder

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
NO_TOOLS = """
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""


def test_options_of_speech_are_kept_apart_from_those_of_loading() -> None:
    asked = parse_model("builtin:trained?tools=prompted&load=nf4&thoughts=keep")
    assert asked.codec == CodecOptions(tools="prompted", thoughts="keep") and asked.options.load == "nf4"
    with pytest.raises(ModelError, match="thoughts is not 'drop'"):
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
        load_tokenizer(model_folder("builtin:trained"), CodecOptions(template=str(tmp_path / "none")))
    file.write_text("{% for m in messages %}{{ m.content }", encoding="utf-8")
    with pytest.raises(ModelError, match="line 1"):
        open_codec(load_tokenizer(model_folder("builtin:trained"), options), options)


def test_kept_thoughts_make_one_sequence_of_what_the_template_breaks(stripping_codec: ChatTemplateCodec) -> None:
    keeping = ChatTemplateCodec(stripping_codec.tokenizer, keep_thoughts=True)
    said = [HumanMessage("q"), AIMessage("a", additional_kwargs={REASONING: "long"}), HumanMessage("and?")]
    inserted = keeping.extend(said, 1, ended_by=keeping.end_of_turn)
    assert "and?" in keeping.decode(inserted)


def test_tools_that_would_be_silently_wrong_are_refused_where_they_are_offered() -> None:
    codec: Any = load_codec("builtin:trained")
    assert codec.speech.faults == ()
    codec.speech = replace(codec.speech, faults=(Fault("its calls are not read", "Do this.", about_tools=True),))
    assert codec.encode([HumanMessage("q")])
    with pytest.raises(ModelError, match=r"Tools cannot be offered to .*: its calls are not read. Do this."):
        codec.encode([HumanMessage("q")], TOOLS)
