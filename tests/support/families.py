"""The chat templates that TRL ships for text models, each on a real tokenizer.

A family whose tokenizer is not available gets the tokenizer of another family, to which the
template's control tokens are added. Parsing a `tokenizer.json` takes up to two seconds. So each
file is parsed once per process, and the tokenizers that `load` returns share its vocabulary, but
not added tokens, template and special tokens.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.support import real_tokenizers

__all__ = [
    "FAMILIES",
    "Family",
    "backend",
    "base",
    "control_tokens",
    "load",
    "template",
    "templates",
]


@dataclass(frozen=True)
class Family:
    """A chat template, with properties of the tokenizer that it was written for."""

    on: str
    """Name of the real tokenizer."""
    eos: str | None = None
    """Token that ends an answer (None: that of the real tokenizer)."""
    bos: str | None = None
    """Token that begins a conversation (None: that of the real tokenizer)."""
    also: tuple[str, ...] = ()
    """Control tokens that the family's models write, but the template does not."""


_COHERE = Family("qwen3", "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>")
_LFM2 = Family(
    "qwen3", "<|im_end|>", "<|startoftext|>", also=("<|tool_call_start|>", "<|tool_call_end|>")
)
_PHI3 = Family("qwen3", "<|endoftext|>")
_QWEN3 = Family("qwen3")
_LLAMA3 = Family("llama3", "<|eot_id|>")
_LLAMA3_1 = Family("llama3_1", "<|eot_id|>", also=("<|eom_id|>", "<|python_tag|>"))
_GEMMA3 = Family("gemma3", "<end_of_turn>")
_GEMMA4 = Family("gemma3", "<turn|>")
_DEEPSEEK = Family("deepseek_v3")

FAMILIES = {
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "deepseek_r1_distill": _DEEPSEEK,
    "deepseekv3": _DEEPSEEK,
    "diffusion_gemma": _GEMMA4,
    "gemma": _GEMMA3,
    "gemma3": _GEMMA3,
    "gemma4": _GEMMA4,
    "gemma4_v2": _GEMMA4,
    "gemma4_v3": _GEMMA4,
    "gemma4_v4": _GEMMA4,
    "gemma4_v5": _GEMMA4,
    "glm4moe": Family("qwen3", "<|endoftext|>"),
    "gptoss": Family("gptoss"),
    "lfm2": _LFM2,
    "lfm2_2_5": _LFM2,
    "lfm2_2_5_v2": _LFM2,
    "lfm2_v2": _LFM2,
    "llama3": _LLAMA3,
    "llama3_1": _LLAMA3_1,
    "llama3_2": _LLAMA3_1,
    "muse_glimmer": Family("llama3", "<|eot|>"),
    "nemotron_3_5_lightning": _QWEN3,
    "nemotron_3_nano": _QWEN3,
    "nemotron_3_super": _QWEN3,
    "nemotron_3_ultra": _QWEN3,
    "phi3": _PHI3,
    "phi3_5": _PHI3,
    "qwen2_5": _QWEN3,
    "qwen3": _QWEN3,
    "qwen3_5_nothink": _QWEN3,
    "qwen3_5_think": _QWEN3,
    "qwen3_6": _QWEN3,
    "qwen3_8": _QWEN3,
    "qwen3_instruct_2507": _QWEN3,
}
"""Families by the names of TRL's files."""

_CONTROL = re.compile(
    r"""<\|[^<>|\s]+\|> | <\|[a-z_]+> | <[a-z_]+\|> | <｜[^<>｜]+｜>
        | <(?:start|end)_of_(?:turn|image)> | \[gMASK\] | <sop>""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def load(name: str) -> PreTrainedTokenizerFast:
    """A fresh tokenizer with the family's template. The template's control tokens are single
    special tokens.
    """
    family = FAMILIES[name]
    settings = _settings(family.on)
    known = backend(family.on).get_added_tokens_decoder().values()
    wanted = [
        *control_tokens(template(name)),
        *family.also,
        *filter(None, (family.bos, family.eos)),
    ]
    lacking = sorted(set(wanted) - {token.content for token in known})
    loaded = base(family.on)
    loaded.backend_tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in lacking]
    )
    loaded.bos_token = family.bos or settings.get("bos_token")
    loaded.eos_token = family.eos or settings["eos_token"]
    loaded.chat_template = template(name)
    return loaded


def base(name: str) -> PreTrainedTokenizerFast:
    """A fresh tokenizer as its configuration describes it, by a name of `real_tokenizers.PACKAGES`.

    `AutoTokenizer` is not used, since for some of these configurations it builds another backend
    than the file's.
    """
    return PreTrainedTokenizerFast(tokenizer_object=_Copied(backend(name)), **_settings(name))


def templates() -> Path:
    """The folder of TRL's chat templates."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "chat_templates"


@cache
def template(name: str) -> str:
    """The text of a family's chat template."""
    return (templates() / f"{name}.jinja").read_text("utf-8")


def control_tokens(text: str) -> list[str]:
    """Control tokens that a template writes, sorted. Tags such as `<think>` are not control
    tokens.
    """
    return sorted(set(_CONTROL.findall(_COMMENT.sub("", text))))


class _Copied:
    """A backend that is copied part by part. transformers copies a backend that it is given, and
    would copy a `Tokenizer` by way of its whole text.
    """

    def __init__(self, given: Tokenizer) -> None:
        self.given = given

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        given = self.given
        made = Tokenizer(given.model)
        if given.normalizer is not None:
            made.normalizer = given.normalizer
        if given.pre_tokenizer is not None:
            made.pre_tokenizer = given.pre_tokenizer
        if given.post_processor is not None:
            made.post_processor = given.post_processor
        if given.decoder is not None:
            made.decoder = given.decoder
        # A token that is not in the vocabulary gets the next id. In the order of their ids, all
        # tokens get the ids that they had.
        made.add_tokens([token for _, token in sorted(given.get_added_tokens_decoder().items())])
        return made


_SETTINGS = {"bos_token", "eos_token", "model_max_length", "pad_token", "unk_token"}
"""Keys of a configuration that are used. Keys about classes and chat templates are left out, and so
is the clean-up of spaces, which transformers ignores for BPE.
"""


@cache
def backend(name: str) -> Tokenizer:
    """A tokenizer as its file describes it. All its users share it."""
    parsed = Tokenizer.from_file(str(_folder(name) / "tokenizer.json"))
    assert parsed.truncation is None
    assert parsed.padding is None
    return parsed


@cache
def _settings(name: str) -> dict[str, Any]:
    configured = json.loads((_folder(name) / "tokenizer_config.json").read_text("utf-8"))
    return {key: _content(value) for key, value in configured.items() if key in _SETTINGS}


def _folder(name: str) -> Path:
    folder = real_tokenizers.folder(name)
    assert folder is not None, real_tokenizers.missing()
    return folder


def _content(value: Any) -> Any:
    """A token's text, which some configurations write as an object."""
    return value["content"] if isinstance(value, dict) else value
