"""Conversion of a GGUF file into a folder in Hugging Face's layout. transformers unpacks the
weights and rebuilds the tokenizer.

It silently omits two things, which would change the model: rotary scaling, and the way in which a
byte-level tokenizer splits text before encoding. This module restores both if it knows them.
Otherwise, it refuses the file.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from tqdm.auto import tqdm
from transformers import modeling_gguf_pytorch_utils
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hrm_agent import __version__
from hrm_agent.errors import ModelError
from hrm_agent.models.cached.gguf_head import GgufFacts

__all__ = ["convert_gguf"]

_library: Any = transformers
_unpacking: Any = modeling_gguf_pytorch_utils
_AS_GPT2 = {"gigachat", "gpt-2", "jais", "mpt", "olmo", "phi-2", "trillion"}
"""Tokenizers of llama.cpp that split text as GPT-2 does."""
_DIGIT_BY_DIGIT = {
    "codeshell",
    "command-r",
    "exaone",
    "minerva-7b",
    "refact",
    "smollm",
    "starcoder",
}
"""Tokenizers of llama.cpp that first split off digits one by one."""
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Rotary scaling of Llama 3.1 to 3.3. A GGUF file only has the factors that result from these
numbers.
"""
_PLAIN_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16}


def convert_gguf(file: Path, facts: GgufFacts, folder: Path) -> dict[str, str]:
    """Write configuration, weights, tokenizer and chat template of `file` into `folder`.

    Returns the versions of the packages used. Weights quantized in blocks become float32, which
    represents them exactly. Other weights keep their type. Raises `ModelError`.
    """
    with _quiet():
        tokenizer, model = _unpacked(file, facts)
        _put_rope(file, facts, model.config)
        _put_split(file, facts, tokenizer)
        _save(model, folder)
        tokenizer.save_pretrained(folder)
    return {"hrm-agent": __version__, "transformers": transformers.__version__}


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the library inside the block: no progress bars, and errors are reported here."""
    logging = _library.utils.logging
    bars = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    drawn_by = _unpacking.tqdm
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    # transformers' module draws a bar despite the library's setting
    _unpacking.tqdm = partial(tqdm, disable=True)
    try:
        yield
    finally:
        _unpacking.tqdm = drawn_by
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _unpacked(file: Path, facts: GgufFacts) -> tuple[Any, Any]:
    """Tokenizer and model as transformers reads them. Raises `ModelError`."""
    halves = [dtype for name, dtype in _PLAIN_TYPES.items() if name in facts.types]
    plain = halves and facts.types <= {*_PLAIN_TYPES, "F32"}
    try:
        tokenizer = _library.AutoTokenizer.from_pretrained(
            file.parent, gguf_file=file.name, trust_remote_code=False
        )
        model, loaded = _library.AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=halves[0] if plain else torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except Exception as error:  # the file may make the library raise anything
        raise _refusal(
            file, facts, " ".join(str(error).split()).partition(". ")[0][:300].rstrip(".")
        ) from error
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise _refusal(file, facts, f"{len(missing)} tensors are missing, {missing[0]} for example")
    return tokenizer, model


def _refusal(file: Path, facts: GgufFacts, why: str) -> ModelError:
    return ModelError(
        f"The GGUF file {file} ({facts.architecture}) cannot be converted by transformers"
        f" {transformers.__version__}: {why}.",
        "Use the model's folder in Hugging Face's layout, or hf:NAME.",
    )


def _save(model: Any, folder: Path) -> None:
    """Save the weights as a new model of the same configuration. The model that was read counts as
    quantized, so transformers would not save it.
    """
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        fresh = _library.AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    fresh.load_state_dict(model.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    fresh.save_pretrained(folder)


def _put_split(file: Path, facts: GgufFacts, tokenizer: Any) -> None:
    """Make the tokenizer split text as in its training. transformers splits text as GPT-2 does if
    it knows no other way.
    """
    backend = tokenizer.backend_tokenizer
    if facts.splits_like is None or facts.splits_like in _AS_GPT2:
        return
    if facts.splits_like in _DIGIT_BY_DIGIT:
        first = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [first, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        how = (
            f"how it splits text ({facts.splits_like})"
            if facts.splits_like
            else "how its tokenizer splits text"
        )
        raise _refusal(
            file,
            facts,
            f"it is not known {how}, so its tokens would differ from those of its training",
        )


def _put_rope(file: Path, facts: GgufFacts, config: Any) -> None:
    """Restore rotary scaling if transformers has omitted it. Raises `ModelError` for any other
    scaling than Llama 3's, which a file stores as a tensor of factors.
    """
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if facts.rope_scaling is None or rope.get("rope_type", "default") != "default":
        return
    if facts.rope_factors:
        scaled = deepcopy(config)
        scaled.rope_parameters = rope | _LLAMA3 | {"factor": max(facts.rope_factors)}
        ours, _ = ROPE_INIT_FUNCTIONS["llama3"](scaled)
        size = 2 * len(ours)
        plain = rope["rope_theta"] ** -(torch.arange(0, size, 2) / size)
        factors = torch.tensor(facts.rope_factors)
        if len(factors) == len(ours) and torch.allclose(ours * factors, plain, rtol=1e-4):
            config.rope_parameters = scaled.rope_parameters
            return
    raise _refusal(
        file,
        facts,
        f"its rotary embedding is scaled ({facts.rope_scaling}), which would be left out",
    )
