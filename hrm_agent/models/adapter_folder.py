"""Folders that training writes: the base model of an adapter, its loading options, and the codec
options of a model.

A training of an adapter writes PEFT's two files, which any program with PEFT can use. It also
writes the string of the base model, with the type and the quantization of the base model's weights.
An adapter trained on weights in 4 bits compensates their rounding, and only works on such weights.

Training of a whole model writes the codec options of its model string into its folder. Later loads
of the folder use them, too.

If roles of a graph have their own adapters, each of these adapters is in a subfolder. The folder
itself has the adapter that all other roles share.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hrm_agent.errors import ModelError
from hrm_agent.models.model_string import (
    CodecOptions,
    LoadOptions,
    ModelString,
    codec_options,
    is_folder,
    parse_model,
)

__all__ = [
    "BASE_FILE",
    "codec_on_record",
    "is_adapter_folder",
    "on_its_base",
    "rank_on_record",
    "roles_on_record",
    "write_base",
    "write_codec",
]

BASE_FILE = "base.json"
"""File that names the base model of an adapter. If it is missing, PEFT's configuration names the
base model.
"""
_CODEC_FILE = "codec.json"
"""File with the codec options of a whole model in training (missing if it was trained without such
options).
"""
_CONFIG = "adapter_config.json"


def is_adapter_folder(path: str) -> bool:
    """True if a folder has an adapter and no whole model."""
    return (
        is_folder(path)
        and Path(path, _CONFIG).is_file()
        and not Path(path, "config.json").is_file()
    )


def on_its_base(asked: ModelString) -> ModelString:
    """Resolve an adapter's folder to its base model with the adapter. Any other string is
    unchanged. Raises `ModelError`.

    Options in the string take precedence over those of the training.
    """
    if asked.scheme:
        return asked
    if not is_adapter_folder(asked.name):
        return replace(asked, codec=asked.codec.over(codec_on_record(asked.name)))
    base = parse_model(_base_of(asked.name))
    if (
        asked.options.adapter
        or base.options.adapter
        or (not base.scheme and is_adapter_folder(base.name))
    ):
        raise ModelError(
            f"{asked.text!r} puts an adapter on top of another adapter.",
            "Merge the lower adapter into its model by PEFT.",
        )
    usual = LoadOptions()
    given: dict[str, Any] = {
        each.name: value
        for each in fields(LoadOptions)
        if (value := getattr(asked.options, each.name)) != getattr(usual, each.name)
    }
    options = replace(base.options, **{**given, "adapter": asked.name})
    return ModelString(
        asked.text, base.scheme, base.name, options, asked.codec.over(on_its_base(base).codec)
    )


def rank_on_record(folder: str) -> int:
    """Rank of the adapter in a folder. Raises `ModelError` if its configuration has none."""
    try:
        return int(json.loads(Path(folder, _CONFIG).read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"The adapter {folder!r} has no rank in its {_CONFIG}.",
            "Only LoRA adapters of PEFT can be trained on.",
        ) from error


def roles_on_record(folder: str) -> tuple[str, ...]:
    """Roles with their own adapter, each in a subfolder named after the role (empty if all roles
    share one adapter).
    """
    try:
        text = Path(folder, BASE_FILE).read_text(encoding="utf-8")
        return tuple(str(role) for role in json.loads(text).get("roles", ()))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(
            f"The file {BASE_FILE} of the adapter {folder!r} cannot be read: {error}."
        ) from error


def write_base(folder: Path, model: str, roles: Sequence[str] = ()) -> None:
    """Write the base model into an adapter's folder, with the roles that have their own adapter in
    a subfolder.
    """
    said = {"model": model, **({"roles": list(roles)} if roles else {})}
    (folder / BASE_FILE).write_text(json.dumps(said) + "\n", encoding="utf-8")


def write_codec(folder: Path, options: CodecOptions) -> None:
    """Save the codec options of a model in its folder. The chat template is left out, since the
    folder's tokenizer has it.
    """
    if kept := replace(options, template=None).query():
        (folder / _CODEC_FILE).write_text(json.dumps(kept) + "\n", encoding="utf-8")
    else:
        (folder / _CODEC_FILE).unlink(missing_ok=True)


def codec_on_record(folder: str) -> CodecOptions:
    """Codec options that training wrote into the folder of a whole model (empty if there are none,
    or `folder` is not a folder). Raises `ModelError`.
    """
    file = Path(folder, _CODEC_FILE)
    if not is_folder(folder) or not file.is_file():
        return CodecOptions()
    try:
        return codec_options(str(file), json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{file} cannot be read: {error}.",
            "Remove the file. Options can be given in the model string, after ?.",
        ) from error


def _base_of(folder: str) -> str:
    own = Path(folder, BASE_FILE)
    try:
        if own.is_file():
            return str(json.loads(own.read_text(encoding="utf-8"))["model"])
        named = json.loads(Path(folder, _CONFIG).read_text(encoding="utf-8"))[
            "base_model_name_or_path"
        ]
        return named if is_folder(named) else f"hf:{named}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"The adapter {folder!r} does not say which model it is for.",
            f"Name the model, and the adapter as its option: MODEL?adapter={folder}.",
        ) from error
