"""A tokenizer and models small enough to be made while the tests run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.testing import tiny_network

SPECIAL = ["<|im_start|>", "<|im_end|>"]
TAGS = [
    "<reason>",
    "</reason>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
]

CHATML = """
{%- if tools %}{{ '<|im_start|>system\n<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor -%}
{{ '</tools><|im_end|>\n' }}{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user\n<tool_response>' + message.content + '</tool_response><|im_end|>\n' }}
{%- elif message.role == 'assistant' -%}
{{ '<|im_start|>assistant\n' + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\n' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""

THINK_STRIPPING = """
{%- set ns = namespace(last=0) -%}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}
{%- for message in messages -%}
{%- set text = message.content -%}
{%- if message.role == 'assistant' and '</think>' in text and loop.index0 < ns.last -%}
{%- set text = text.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{ '<|im_start|>' + message.role + '\n' + text + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
"""Template like Qwen3's: reasoning is dropped from turns before the last user turn."""


def make_tokenizer(template: str = CHATML) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["the sum of the two numbers is printed by the tool"] * 4, trainer
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=template,
    )


def make_model(kind: str, seed: int = 0, **more: Any) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 340,
        "max_position_embeddings": 320,
        "initializer_range": 0.3,
        **more,
    }
    if kind == "llama":
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    rope = {"rope_theta": 10_000.0, "rope_type": "default"}
    return tiny_network(
        seed, **sizes, head_dim=16, rope_parameters=rope, pad_token_id=None, eos_token_id=None
    )


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="session")
def codec(tokenizer: Any) -> ChatTemplateCodec:
    return ChatTemplateCodec(tokenizer)


@pytest.fixture(scope="session")
def stripping_codec() -> ChatTemplateCodec:
    return ChatTemplateCodec(make_tokenizer(THINK_STRIPPING))


@pytest.fixture(scope="session", params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


@pytest.fixture
def own_model() -> Any:
    """Model that a test may change."""
    return make_model("qwen3", seed=1)
