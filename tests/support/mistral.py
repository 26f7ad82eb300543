"""Mistral's tokenizers from mistral-common. The package renders conversations without a template,
and is the oracle for Mistral's chat templates.

The package carries one vocabulary for tekken. Files of later versions are made from it, with the
special tokens of the version and the beginning of the vocabulary, so that they are read quickly.
Both sides read the same file.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from mistral_common.integrations.chat_templates.chat_templates import (
    convert_tokenizer_to_chat_template,
)
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from transformers import PreTrainedTokenizerBase
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

__all__ = ["TOKENS", "Oracle", "load", "write"]

TOKENS = 6000
"""Number of tokens in a file's vocabulary, without special tokens."""


class Oracle:
    """mistral-common's rendering of conversations."""

    def __init__(self, file: Path) -> None:
        self._tokenizer: MistralTokenizer[Any, Any, Any, Any, Any] = MistralTokenizer.from_file(
            file
        )

    def ids(self, messages: list[Any], tools: list[Any]) -> list[int]:
        """The tokens of a prompt. `messages` and `tools` in OpenAI's form."""
        return self._tokenizer.encode_chat_completion(
            ChatCompletionRequest.from_openai(messages, tools=tools)
        ).tokens


def write(folder: Path, version: str, *, thinks: bool = False, tokens: int | None = TOKENS) -> Path:
    """Write a `tekken.json` of a version of the format. `thinks`: with tokens for thoughts.
    `tokens`: number of other tokens (None: all).
    """
    whole = _tekken()
    config = {**whole["config"], "version": version}
    if tokens is not None:
        config["default_vocab_size"] = tokens + config["default_num_special_tokens"]
    made: dict[str, Any] = {**whole, "config": config, "vocab": whole["vocab"][:tokens]}
    if version != "v3":
        former = [str(token["token_str"]) for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
        later = [token.value for token in SpecialTokens if thinks or "THINK" not in token.value]
        named = enumerate(dict.fromkeys([*former, *later]))
        made["special_tokens"] = [
            {"rank": rank, "token_str": text, "is_control": True} for rank, text in named
        ]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tekken.json"
    file.write_text(json.dumps(made), "utf-8")
    return file


def load(file: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of the `tokenizers` library, with the chat template that mistral-common writes
    for the file.
    """
    return convert_tekken_tokenizer(
        str(file), convert_tokenizer_to_chat_template(file, plain_thinking_support=False)
    )


@cache
def _tekken() -> dict[str, Any]:
    return json.loads((files("mistral_common") / "data" / "tekken_240911.json").read_text("utf-8"))
