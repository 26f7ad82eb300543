"""The built-in policies' template describes tools by names and types alone and is used as it is."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from transformers import AutoTokenizer

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.codec.dialect import PROBE_TOOL
from hrm_agent.models.loading.policy_loader import model_folder


@pytest.mark.parametrize("name", ["builtin:cold-start", "builtin:trained"])
def test_a_built_in_policy_is_told_of_tools_by_its_own_template(name: str) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder(name))
    codec = ChatTemplateCodec(tokenizer)
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 6 * 7?"},
    ]
    theirs = tokenizer.apply_chat_template(said, tools=[PROBE_TOOL], add_generation_prompt=True)
    asked = [SystemMessage("Be brief."), HumanMessage("What is 6 * 7?")]
    assert codec.encode(asked, [PROBE_TOOL]) == theirs["input_ids"]
    assert codec.dialect.shape.plain and codec.dialect.form.name == "hermes"
