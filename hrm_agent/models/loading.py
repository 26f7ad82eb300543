"""Load a model and its tokenizer from a folder or from the Hugging Face hub, and say plainly what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from hrm_agent.errors import ModelError

__all__ = ["load_pretrained"]

_library: Any = transformers
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "tokenizer.model")


def load_pretrained(path_or_name: str, *, dtype: str = "auto", device: str = "cpu") -> tuple[Any, Any]:
    """The causal LM, in evaluation mode, and its tokenizer, which has a chat template. Raises `ModelError`."""
    _library.utils.logging.disable_progress_bar()
    if Path(path_or_name).is_dir():
        _check_folder(Path(path_or_name))
    try:
        tokenizer = _library.AutoTokenizer.from_pretrained(path_or_name)
        model = _library.AutoModelForCausalLM.from_pretrained(path_or_name, dtype=dtype)
    except Exception as error:  # whatever the files made the library raise
        raise ModelError(
            f"The model {path_or_name!r} cannot be loaded: {error}",
            "Check the folder, or the name on huggingface.co/models and the network.",
        ) from error
    if not tokenizer.chat_template:
        raise ModelError(
            f"The tokenizer of {path_or_name!r} has no chat template.",
            "Use an instruction-tuned model, or add chat_template.jinja to the folder.",
        )
    return model.to(device).eval(), tokenizer


def _check_folder(folder: Path) -> None:
    wanted = (
        ("config.json", "configuration", (folder / "config.json").is_file()),
        ("model.safetensors", "weights", any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))),
        ("tokenizer.json", "tokenizer", any((folder / name).is_file() for name in _TOKENIZER_FILES)),
    )
    for file, what, there in wanted:
        if not there:
            raise ModelError(
                f"The model folder {str(folder)!r} has no {what} ({file}).",
                "Name a folder written by `save_pretrained` for both the model and its tokenizer.",
            )
