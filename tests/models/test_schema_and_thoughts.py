"""An answer that is held to a schema has no thoughts: what the prompt opened is closed before its
first token.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from hrm_agent.models.chat import PolicyModel
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.current_policy import using_policy
from hrm_agent.models.scripted import ScriptedEngine
from tests.support import families

pytestmark = pytest.mark.real_tokenizers
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("qwen3_6", "<think>\n\n</think>\n\n"),
        ("nemotron_3_nano", "<think>\n\n</think>\n\n"),
        ("gptoss", "<|start|>assistant<|channel|>final<|message|>"),
        ("muse_glimmer", "<|start|>assistant to=user<|message|>"),
        ("qwen3", "<|im_start|>assistant\n"),
    ],
)
def test_the_prompt_of_a_held_answer_ends_where_its_words_begin(name: str, closed: str) -> None:
    codec = ChatTemplateCodec(families.load(name))
    with ScriptedEngine(['{"x": 1}', '{"x": 2}'], codec=codec) as engine:
        with using_policy(engine, constrain=True):
            model = PolicyModel(answer_schema=SCHEMA)
            first = model.invoke([HumanMessage("one")])
            assert isinstance(first, AIMessage) and first.text == '{"x": 1}'
            assert (
                "".join(str(chunk.content) for chunk in model.stream([HumanMessage("two")]))
                == '{"x": 2}'
            )
        shown = codec.tokenizer.decode(
            list(engine.requests[0].prompt_ids), skip_special_tokens=False
        )
    assert shown.endswith(closed), shown[-80:]
